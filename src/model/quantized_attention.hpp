// Attention in FP8 (fp8_dot_product_attention): Transformer Engine quantizes queries, keys and values, and in backward
// the output's gradient, and calls cuDNN's FP8 kernels, which put out 16 bits (TE d0067d0da pytorch/attention/
// dot_product_attention/backends.py, FusedAttnFunc; utils.py, combine_and_quantize):
//
//   MXFP8        q, k, v -> both copies each, scales put in order   dO -> both copies, beside dO itself
//   tensorwise   q, k, v joined -> amax -> one cast                 dO -> amax -> cast
//
// Saved: the quantized q, k, v, O in 16 bits (NVTE_DPA_FP8CS_O_in_F16 is on), row statistics.
#pragma once

#include "dimensions.hpp"

namespace pipewright::model {

/// Time of cuDNN's causal FP8 kernel over that of 16 bits: NVIDIA/cudnn-frontend 3929da2, benchmark/
/// sdpa_benchmark_training/results (GB200 and GB300: cuDNN 9.22, batch 2; H200: 9.19, batch 1), 64 heads of 128 in 8
/// groups, or 128 latent ones of 192 and 128.
/// Precondition: there are figures of such a GPU.
double fp8_attention_share(const Dimensions& dimensions, bool forward);

bool times_fp8_attention(const profile::Device& gpu, bool latent, bool blocks);

}  // namespace pipewright::model
