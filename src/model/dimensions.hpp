// Sizes of one rank's share of the model, and the choices that decide which kernels and tensors a layer has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/scenario.hpp"

namespace pipewright::model {

using Int = scenario::Int;

/// What linear layers compute in: bf16, or one of Transformer Engine's FP8 recipes (reference 5.1).
enum class Recipe : std::uint8_t { bf16, tensorwise, delayed, blockwise };

struct Dimensions {
  explicit Dimensions(const scenario::Scenario& scenario);

  Int b, s;           ///< micro batch; sequence of one context-parallel rank
  Int tokens, local;  ///< b*s; tokens/t with sequence parallelism, else the same
  Int h, f, q, kv;    ///< hidden; FFN, query and key widths of a tensor-parallel rank
  Int heads, groups, head_dim;
  Int vocab;          ///< of a tensor-parallel rank
  Int t, cp, dp, pp;  ///< dp: data-parallel size without context parallelism
  bool sp, gated, rms_norm, bias, qkv_bias, qk_norm, rope, fused_rope;
  bool fused_gradients;  ///< gradient_accumulation_fusion
  Int gradient_bytes;    ///< of an element of the main gradient buffer: 4 or 2
  double hidden_dropout, attention_dropout;
  std::string activation;  ///< kernel family: "swiglu", "gelu", ...
  std::string tp_link, cp_link, dp_link;
  Recipe recipe = Recipe::bf16;
  bool fp8_parameters = false;       ///< linear weights are stored in FP8 (fp8_param_gather)
  bool fp8_cached_weights = true;    ///< FP8 copies of weights live from the first microbatch on
  bool recompute_attention = false;  ///< recompute_modules: core_attn
  bool recompute_mlp = false;        ///< recompute_modules: mlp
  bool graphed_mlp = false;          ///< TE CUDA graphs of scope mlp
  bool tp_overlap = false;           ///< tp_comm_overlap
  bool deferred_head_wgrad = false;  ///< defer_embedding_wgrad_compute

  Int ffn_in() const { return gated ? 2 * f : f; }  ///< width of fc1's output
  Int qkv() const { return q + 2 * kv; }
  Int boundary_bytes() const { return 2 * local * h; }
};

}  // namespace pipewright::model
