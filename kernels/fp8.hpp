// Quantisation to FP8 with one scale a tensor (current scaling) or a block. Shapes are multiples of 128 where blocks or
// transposed outputs are involved, else of 16.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

/// Three kernels, as current scaling launches them: zero the amax, reduce it, turn it into a scale.
void amax(const void* in, float* amax_and_scale, std::int64_t elements, Stream stream);
/// Only the reduction; also a plain read of the tensor (it leaves the tail of it in the L2 cache).
void amax_only(const void* in, float* amax_and_scale, std::int64_t elements, Stream stream);
void cast_fp8(const void* in, const float* amax_and_scale, void* out, std::int64_t elements, Stream stream);
void cast_transpose_fp8(const void* in, const float* amax_and_scale, void* out, void* transposed, std::int64_t rows,
                        std::int64_t cols, Stream stream);
/// The same of a tensor of any shape, by a kernel that does not count on whole tiles.
void cast_transpose_any_fp8(const void* in, const float* amax_and_scale, void* out, void* transposed, std::int64_t rows,
                            std::int64_t cols, Stream stream);
void transpose_fp8(const void* in, void* out, std::int64_t rows, std::int64_t cols, Stream stream);
/// 1 x 128 blocks along rows and along columns, both outputs with their scales.
void quantize_blockwise_fp8(const void* in, void* out, float* scales, void* transposed, float* transposed_scales,
                            std::int64_t rows, std::int64_t cols, Stream stream);

}  // namespace pipewright::kernels
