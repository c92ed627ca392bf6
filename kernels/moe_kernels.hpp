// Memory-bound kernels of a mixture-of-experts layer, moving what Transformer Engine's Triton kernels
// (transformer_engine/common/triton/permutation.py) and TorchInductor's generated ones move.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

/// SwiGLU times the row's probability; backward also gives the probability's gradient (a reduction over ffn).
void weighted_swiglu_forward(const void* in, const float* probability, void* out, std::int64_t rows, std::int64_t ffn,
                             Stream stream);
void weighted_swiglu_backward(const void* in, const void* dy, const float* probability, void* dx, float* dprobability,
                              std::int64_t rows, std::int64_t ffn, Stream stream);

/// routing: tokens x experts bytes. ids: tokens x (2 experts + 1): of each token, the rows of its copies.
void balanced_routing(unsigned char* routing, std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                      Stream stream);
/// `counts`: experts x blocks of 1024 tokens.
void row_id_maps(const unsigned char* routing, std::int32_t* ids, std::int32_t* counts, std::int64_t tokens,
                 std::int64_t experts, Stream stream);
void permute(const void* in, const std::int32_t* ids, const float* probabilities, void* out, float* out_probabilities,
             std::int64_t tokens, std::int64_t hidden, std::int64_t experts, Stream stream);
void unpermute(const void* in, const std::int32_t* ids, void* out, std::int64_t tokens, std::int64_t hidden,
               std::int64_t experts, Stream stream);

/// Chunks of equal sizes in another order: where each row goes, and the rows moved there.
void sort_map(std::int32_t* to, std::int64_t rows, std::int64_t chunks, Stream stream);
void sort_chunks(const void* in, const std::int32_t* to, void* out, std::int64_t rows, std::int64_t cols,
                 Stream stream);

/// Heads of `dim` elements, `stride` apart, their last `rotated` elements rotated, the others copied.
void rope_mla(bool backward, const void* in, const float* angles, void* out, std::int64_t tokens, std::int64_t heads,
              std::int64_t dim, std::int64_t stride, std::int64_t rotated, Stream stream);

}  // namespace pipewright::kernels
