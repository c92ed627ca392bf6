// SwiGLU as TorchInductor generates it for Hopper, with and without a weight for each row.
#pragma once

#include "common.cuh"

namespace pipewright::kernels {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

__device__ __forceinline__ float full_range_sigmoid(float x) {  // with the division that Triton emits
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(1.0f), "f"(1.0f + __expf(-x)));
  return result;
}

struct Unweighted {
  __device__ __forceinline__ float operator()(std::uint32_t) const { return 1.0f; }
};
struct ByRow {
  const float* weight;
  __device__ __forceinline__ float operator()(std::uint32_t row) const { return weight[row]; }
};

constexpr int kSwigluWidth = 8, kSwigluThreads = 256;  // bf16 in 16 bytes
template <class Weight>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_kernel(const bf16* in, bf16* out, std::int64_t vectors,
                                                                FastDivide per_row, std::int64_t ffn, Weight weight) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kSwigluThreads) + threadIdx.x;
  if (i >= vectors) return;
  const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
  const std::int64_t c = (i - static_cast<std::int64_t>(row) * per_row.divisor) * kSwigluWidth;
  const auto gate = load<bf16, kSwigluWidth>(in + row * 2 * ffn + c),
             up = load<bf16, kSwigluWidth>(in + (row * 2 + 1) * ffn + c);
  const float p = weight(row);
  Vec<bf16, kSwigluWidth> y;
#pragma unroll
  for (int j = 0; j < kSwigluWidth; ++j) {
    const float g = to_float(gate.v[j]);
    y.v[j] = from_float<bf16>(g * sigmoid(g) * to_float(up.v[j]) * p);
  }
  store(out + i * kSwigluWidth, y);
}

// One thread a vector of outputs of the joined gradient. As the generated kernel does, it computes the gate's and the
// up projection's gradient for every output, each from its own (masked) loads, and selects.
constexpr int kGradientThreads = 128;
template <class Weight>
__global__ void __launch_bounds__(kGradientThreads)
    swiglu_gradient_kernel(const bf16* in, const bf16* dy, bf16* dx, std::int64_t vectors, FastDivide per_row,
                           std::int64_t ffn, Weight weight) {
  using Part = Vec<bf16, kSwigluWidth>;
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kGradientThreads) + threadIdx.x;
  if (i >= vectors) return;
  const std::uint32_t row = per_row.quotient(static_cast<std::uint32_t>(i));
  const std::int64_t c = (i - static_cast<std::int64_t>(row) * per_row.divisor) * kSwigluWidth;
  const bf16 *x = in + row * 2 * ffn, *d = dy + row * ffn;
  const float p = weight(row);
  const bool is_gate = c < ffn;
  Part gate_a{}, dy_a{}, up_a{}, gate_b{}, dy_b{}, out;
  if (is_gate) {
    gate_a = load<bf16, kSwigluWidth>(x + c);
    dy_a = load<bf16, kSwigluWidth>(d + c);
    up_a = load<bf16, kSwigluWidth>(x + ffn + c);
  } else {
    gate_b = load<bf16, kSwigluWidth>(x + c - ffn);
    dy_b = load<bf16, kSwigluWidth>(d + c - ffn);
  }
#pragma unroll
  for (int j = 0; j < kSwigluWidth; ++j) {
    const float g = to_float(gate_a.v[j]), s = full_range_sigmoid(g), h = to_float(gate_b.v[j]);
    const float of_gate = to_float(dy_a.v[j]) * p * to_float(up_a.v[j]) * s * (1.0f + g * (1.0f - s));
    const float of_up = to_float(dy_b.v[j]) * p * h * full_range_sigmoid(h);
    out.v[j] = from_float<bf16>(is_gate ? of_gate : of_up);
  }
  store(dx + i * kSwigluWidth, out);
}

template <class Weight>
void launch_swiglu(const bf16* in, bf16* out, std::int64_t rows, std::int64_t ffn, Weight weight, Stream stream) {
  const std::int64_t vectors = rows * ffn / kSwigluWidth;
  swiglu_kernel<<<blocks_for(vectors, kSwigluThreads), kSwigluThreads, 0, stream>>>(
      in, out, vectors, FastDivide(static_cast<std::uint32_t>(ffn / kSwigluWidth)), ffn, weight);
}

template <class Weight>
void launch_swiglu_gradient(const bf16* in, const bf16* dy, bf16* dx, std::int64_t rows, std::int64_t ffn,
                            Weight weight, Stream stream) {
  const std::int64_t vectors = rows * 2 * ffn / kSwigluWidth;
  swiglu_gradient_kernel<<<blocks_for(vectors, kGradientThreads), kGradientThreads, 0, stream>>>(
      in, dy, dx, vectors, FastDivide(static_cast<std::uint32_t>(2 * ffn / kSwigluWidth)), ffn, weight);
}

}  // namespace pipewright::kernels
