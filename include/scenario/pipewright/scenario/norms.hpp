// Norms over all heads of a token together (qk_layernorm_whole), which Megatron Bridge builds in two ways.
#pragma once

#include "pipewright/scenario/derived.hpp"

namespace pipewright::scenario {

/// MiniMax-M2's eager operations in fp32 (minimax_m2_provider.py), whose keys have fewer heads than its queries;
/// OLMoE's, which have as many, are Transformer Engine's kernels.
inline bool norms_in_eager_operations(const Scenario& s) {
  return s.model.qk_layernorm && s.model.qk_layernorm_whole && num_query_groups(s) != s.model.num_attention_heads;
}

}  // namespace pipewright::scenario
