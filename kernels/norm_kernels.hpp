// RMSNorm and LayerNorm over the last dimension, bf16 in and out, statistics in fp32; cols a multiple of 8, <= 32768.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

void norm_forward(bool layer, const void* x, const void* gamma, void* y, float* statistics, std::int64_t rows,
                  std::int64_t cols, Stream stream);

/// dx, and dgamma (dbeta) through `partials`: partial sums of norm_partial_rows() blocks, then a finalize kernel.
void norm_backward(bool layer, const void* x, const void* dy, const void* gamma, const float* statistics, void* dx,
                   float* partials, void* dgamma, std::int64_t rows, std::int64_t cols, int multiprocessors,
                   Stream stream);
std::int64_t norm_partial_rows(int multiprocessors);

}  // namespace pipewright::kernels
