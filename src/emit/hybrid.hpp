// How Megatron-LM's command line and Megatron Bridge name a hybrid: its specification, its program, its pattern by
// older names and ratios.
#pragma once

#include <string>
#include <vector>

#include "pipewright/scenario/types.hpp"

namespace pipewright::emit {

/// Values of --spec: module and name, as the version calls them.
std::vector<std::string> hybrid_spec(const scenario::Software& software);
/// Does --spec name a hybrid's specification, by either name?
bool is_hybrid_spec(const std::vector<std::string>& values);
/// --hybrid-attention-ratio and --hybrid-mlp-ratio of 0.16.
std::string pattern_from_ratios(scenario::Int layers, double attention, double mlp);

/// Layers of multi-token prediction that are stated apart (mtp_hybrid_override_pattern) join the pattern, once for each
/// of mtp_num_layers depths; where the pattern has them, it says how many depths there are.
void join_depths(scenario::Scenario& scenario);

}  // namespace pipewright::emit
