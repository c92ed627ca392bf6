// How Megatron-LM's command line names a hybrid: its specification, its program, and the older ratios.
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

}  // namespace pipewright::emit
