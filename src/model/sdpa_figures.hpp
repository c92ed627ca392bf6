// Attention whose kernel no profile holds, by what cuDNN's own benchmark says it takes of the usual one's time:
// NVIDIA/cudnn-frontend 3929da2, benchmark/sdpa_benchmark_training/results (GB200 and GB300: cuDNN 9.22, batch 2; H200:
// 9.19, batch 1), causal, 64 heads of 128 in 8 groups, or 128 latent ones of 192 and 128.
//
// In FP8 (fp8_dot_product_attention) Transformer Engine quantizes queries, keys and values, and in backward the
// output's gradient, and calls cuDNN's FP8 kernels, which put out 16 bits (TE d0067d0da pytorch/attention/
// dot_product_attention/backends.py, FusedAttnFunc; utils.py, combine_and_quantize):
//
//   MXFP8        q, k, v -> both copies each, scales put in order   dO -> both copies, beside dO itself
//   tensorwise   q, k, v joined -> amax -> one cast                 dO -> amax -> cast
//
// Saved: the quantized q, k, v, O in 16 bits (NVTE_DPA_FP8CS_O_in_F16 is on), row statistics.
//
// Deterministic (NVTE_ALLOW_NONDETERMINISTIC_ALGO=0), cuDNN adds up dQ in one order in backward: on Hopper by dS of all
// scores in memory and a product of its own, on Blackwell block after block (cudnn-frontend 3929da2
// include/cudnn_frontend/node/scaled_dot_product_flash_attention.h:1482-1487 and 1912-1945).
#pragma once

#include "dimensions.hpp"

namespace pipewright::model {

/// Time of the causal FP8 kernel over that of 16 bits.
/// Precondition: there are figures of such a GPU.
double fp8_attention_share(const Dimensions& dimensions, bool forward);

bool times_fp8_attention(const profile::Device& gpu, bool latent, bool blocks);

/// Time of the causal backward kernel in 16 bits, deterministic over usual.
/// Precondition: there are figures of such a GPU.
double deterministic_attention_share(const Dimensions& dimensions);

bool times_deterministic_attention(const profile::Device& gpu, bool latent);

/// What it takes for dS and the row sums of dO x O, to the byte what cuDNN 9.19 asked for on an H100 (and the benchmark
/// on an H200: 64.01 and 256.02 GiB for 128 latent heads at 16384 and 32768 tokens).
Int deterministic_workspace(const Dimensions& dimensions);

}  // namespace pipewright::model
