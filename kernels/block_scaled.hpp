// Casts to MXFP8 and NVFP4, row-wise and column-wise at once, as Transformer Engine makes them. Scales are written row
// by row; the products' own order is a pass of its own over them. Shapes are multiples of 128. They run on every GPU
// that has FP8; only the products need Blackwell.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

/// e4m3 with an E8M0 scale for 32 elements of a row, and again for 32 of a column (not transposed).
void quantize_mxfp8(const void* in, void* rowwise, void* row_scales, void* columnwise, void* column_scales,
                    std::int64_t rows, std::int64_t cols, Stream stream);
/// e2m1 with an e4m3 scale for 16 elements of a row, and transposed for 16 of a column; `amax_and_scale` of the tensor.
void quantize_nvfp4(const void* in, const float* amax_and_scale, void* rowwise, void* row_scales, void* transposed,
                    void* column_scales, std::int64_t rows, std::int64_t cols, Stream stream);

}  // namespace pipewright::kernels
