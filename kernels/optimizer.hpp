// Multi-tensor optimizer kernels on fp32 (Adam, gradient norm, scaling) as NVIDIA's multi_tensor_apply launches them:
// at most 320 blocks a launch, each for one chunk of 65536 elements.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

void adam(const float* gradient, float* parameter, float* exp_avg, float* exp_avg_sq, std::int64_t elements,
          Stream stream);
/// `partial` holds 321 floats.
void l2norm(const float* x, float* partial, std::int64_t elements, Stream stream);
void scale(const float* in, float* out, float factor, std::int64_t elements, Stream stream);

}  // namespace pipewright::kernels
