// Which layers a model chunk holds (megatron/core/transformer/transformer_block.py get_num_layers_to_build,
// transformer_layer.py get_transformer_layer_offset and pipeline_parallel_layer_layout.py of core_r0.19.0).
//
//   p = 2, v = 2, 8 layers      rank 0: chunk 0 = 0 1, chunk 1 = 4 5
//                               rank 1: chunk 0 = 2 3, chunk 1 = 6 7
#pragma once

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

inline constexpr const char* layout_key = "settings.pipeline_model_parallel_layout";

/// A layout string unrolled: one string of E, t, m, L a virtual stage. "Et*3|(tt|)*2,m|L" -> Ettt, tt, tt, m, L.
/// Throws UsageError at `where` for letters Megatron does not know.
Strings unroll_layout(const std::string& layout, const Position& where);
/// The same of a scenario's own: kept until this thread asks for another, as every rank and chunk asks for one.
const Strings& unrolled_layout(const Scenario& scenario);

/// Throws UsageError for a split that Megatron refuses, with its text.
void check_split(const Scenario& scenario);

}  // namespace pipewright::scenario
