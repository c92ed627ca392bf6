// Norms over all heads of a token together (qk_layernorm_whole), which Megatron Bridge builds in two ways.
#pragma once

#include "pipewright/scenario/derived.hpp"

namespace pipewright::scenario {

/// MiniMax-M2's eager operations in fp32 (minimax_m2_provider.py), the only ones that take keys of fewer heads than
/// queries have, and heads split over tensor-parallel ranks (they add up their sums of squares). OLMoE's are
/// Transformer Engine's kernels of all heads on every rank (olmoe_provider.py): where one rank has all.
inline bool norms_in_eager_operations(const Scenario& s) {
  return s.model.qk_layernorm && s.model.qk_layernorm_whole &&
         (num_query_groups(s) != s.model.num_attention_heads || s.settings.tensor_model_parallel_size > 1);
}

}  // namespace pipewright::scenario
