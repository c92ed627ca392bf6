// See cross_entropy.hpp. The unfused form keeps PyTorch's access patterns: broadcasting operators one fp32 element an
// access (elementwise_kernel<128, 2>), the cast unvectorised, row reductions and exp vectorised.
#include "common.cuh"
#include "cross_entropy.hpp"
#include "elementwise.hpp"

namespace pipewright::kernels {
namespace {

struct Subtract {
  static __device__ __forceinline__ float apply(float a, float b) { return a - b; }
};
struct Divide {
  static __device__ __forceinline__ float apply(float a, float b) { return a / b; }
};
struct Multiply {
  static __device__ __forceinline__ float apply(float a, float b) { return a * b; }
};

// x = x op row[token], 128 threads x 2 elements, in place.
template <class Op>
__global__ void __launch_bounds__(128) broadcast_kernel(float* x, const float* row, std::uint32_t n, Offsets offsets) {
  std::uint32_t i = blockIdx.x * 256u + threadIdx.x;
#pragma unroll
  for (int u = 0; u < 2; ++u, i += 128) {
    if (i >= n) return;
    std::uint32_t at[3];
    offsets.find(i, at);
    x[at[0]] = Op::apply(x[at[1]], row[at[2]]);
  }
}

struct Max {
  static __device__ __forceinline__ float start() { return -3.4e38f; }
  static __device__ __forceinline__ float apply(float a, float b) { return a != a || a > b ? a : b; }  // NaN passes
  static __device__ __forceinline__ float block(float x, float* scratch) { return block_max(x, scratch); }
};
struct Sum {
  static __device__ __forceinline__ float start() { return 0.0f; }
  static __device__ __forceinline__ float apply(float a, float b) { return a + b; }
  static __device__ __forceinline__ float block(float x, float* scratch) { return block_sum(x, scratch); }
};

template <class Op>
__global__ void __launch_bounds__(512) reduce_kernel(const float* x, float* out, std::int64_t vocab) {
  __shared__ float scratch[32];
  const float* row = x + blockIdx.x * vocab;
  float result = Op::start();
  for (std::int64_t c = threadIdx.x * 4ll; c < vocab; c += 512 * 4) {
    const auto v = load<float, 4>(row + c);
#pragma unroll
    for (int j = 0; j < 4; ++j) result = Op::apply(result, v.v[j]);
  }
  result = Op::block(result, scratch);
  if (threadIdx.x == 0) out[blockIdx.x] = result;
}

__global__ void __launch_bounds__(128) exp_kernel(const float* in, float* out, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 128ll + threadIdx.x;
  if (i >= vectors) return;
  auto v = load<float, 4>(in + i * 4);
#pragma unroll
  for (int j = 0; j < 4; ++j) v.v[j] = __expf(v.v[j]);
  store(out + i * 4, v);
}

// Native: rows in bf16 to fp32 with their maximum. torch.compile's accesses: 16 bytes of fp32 a thread, side by side.
__global__ void __launch_bounds__(512) cast_max_kernel(const bf16* in, float* out, float* maxima, std::int64_t vocab) {
  __shared__ float scratch[32];
  const std::int64_t base = blockIdx.x * vocab;
  float most = -3.4e38f;
  for (std::int64_t c = threadIdx.x * 4ll; c < vocab; c += 512 * 4) {
    const auto v = load<bf16, 4>(in + base + c);
    Vec<float, 4> y;
#pragma unroll
    for (int j = 0; j < 4; ++j) most = fmaxf(most, y.v[j] = to_float(v.v[j]));
    store(out + base + c, y);
  }
  most = block_max(most, scratch);
  if (threadIdx.x == 0) maxima[blockIdx.x] = most;
}

// The logits are an input of the compiled function and changed in it: exponentials go to a copy, which a second loop
// over the row writes back.
__global__ void __launch_bounds__(512)
    exp_sum_kernel(float* x, float* copy, const float* maxima, float* sums, std::int64_t vocab) {
  __shared__ float scratch[32];
  const std::int64_t base = blockIdx.x * vocab;
  const float most = maxima[blockIdx.x];
  float sum = 0;
  for (std::int64_t c = threadIdx.x * 4ll; c < vocab; c += 512 * 4) {
    auto v = load<float, 4>(x + base + c);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += v.v[j] = __expf(v.v[j] - most);
    store(copy + base + c, v);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  for (std::int64_t c = threadIdx.x * 4ll; c < vocab; c += 512 * 4)
    store(x + base + c, load<float, 4>(copy + base + c));
}

// 1024 elements a block of 128 threads.
__global__ void __launch_bounds__(128)
    row_divide_kernel(float* x, const float* sums, std::uint32_t vectors, FastDivide vectors_a_row) {
  std::uint32_t i = blockIdx.x * 256u + threadIdx.x;
#pragma unroll
  for (int half = 0; half < 2; ++half, i += 128) {
    if (i >= vectors) return;
    const float sum = sums[vectors_a_row.quotient(i)];
    auto v = load<float, 4>(x + i * 4ll);
#pragma unroll
    for (int j = 0; j < 4; ++j) v.v[j] = __fdividef(v.v[j], sum);
    store(x + i * 4ll, v);
  }
}

// The softmax is an input of the compiled function and changed in it: copied, and written back with the gradient.
__global__ void __launch_bounds__(128) copy_kernel(const float* in, float* out, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 128ll + threadIdx.x;
  if (i < vectors) store(out + i * 4, load<float, 4>(in + i * 4));
}

__global__ void __launch_bounds__(128)
    scale_cast_write_back_kernel(const float* work, const float* factors, float* x, bf16* out, std::uint32_t vectors,
                                 FastDivide vectors_a_row) {
  std::uint32_t i = blockIdx.x * 256u + threadIdx.x;
#pragma unroll
  for (int half = 0; half < 2; ++half, i += 128) {
    if (i >= vectors) return;
    const float factor = factors[vectors_a_row.quotient(i)];
    const auto v = load<float, 4>(work + i * 4ll);
    Vec<bf16, 4> y;
#pragma unroll
    for (int j = 0; j < 4; ++j) y.v[j] = from_float<bf16>(v.v[j] * factor);
    store(x + i * 4ll, v);
    store(out + i * 4ll, y);
  }
}

template <class Op>
void broadcast(float* x, const float* row, std::int64_t tokens, std::int64_t vocab, Stream stream) {
  const std::int64_t n = tokens * vocab;
  Offsets offsets;
  offsets.dims = 2;
  offsets.sizes[0] = FastDivide(static_cast<std::uint32_t>(vocab));
  offsets.sizes[1] = FastDivide(static_cast<std::uint32_t>(tokens));
  offsets.strides[0][0] = offsets.strides[0][1] = 1;
  offsets.strides[1][0] = offsets.strides[1][1] = static_cast<std::uint32_t>(vocab);
  offsets.strides[1][2] = 1;
  broadcast_kernel<Op><<<blocks_for(n, 256), 128, 0, stream>>>(x, row, static_cast<std::uint32_t>(n), offsets);
}

}  // namespace

void cross_entropy_unfused_forward(const void* logits, float* work, float* exponentials, float* rows_out,
                                   std::int64_t tokens, std::int64_t vocab, Stream stream) {
  const unsigned rows = static_cast<unsigned>(tokens);
  cast_bf16_f32(logits, work, tokens * vocab, stream);
  reduce_kernel<Max><<<rows, 512, 0, stream>>>(work, rows_out, vocab);
  broadcast<Subtract>(work, rows_out, tokens, vocab, stream);
  exp_kernel<<<blocks_for(tokens * vocab / 4, 128), 128, 0, stream>>>(work, exponentials, tokens * vocab / 4);
  reduce_kernel<Sum><<<rows, 512, 0, stream>>>(exponentials, rows_out, vocab);
  broadcast<Divide>(exponentials, rows_out, tokens, vocab, stream);
}

void cross_entropy_unfused_backward(float* gradient, const float* row_gradient, void* logits_gradient,
                                    std::int64_t tokens, std::int64_t vocab, Stream stream) {
  broadcast<Multiply>(gradient, row_gradient, tokens, vocab, stream);
  cast_f32_bf16(gradient, logits_gradient, tokens * vocab, stream);
}

void cross_entropy_native_forward(const void* logits, float* work, float* copy, float* rows_out, std::int64_t tokens,
                                  std::int64_t vocab, Stream stream) {
  const unsigned rows = static_cast<unsigned>(tokens);
  cast_max_kernel<<<rows, 512, 0, stream>>>(static_cast<const bf16*>(logits), work, rows_out, vocab);
  exp_sum_kernel<<<rows, 512, 0, stream>>>(work, copy, rows_out, rows_out + tokens, vocab);
  const std::int64_t vectors = tokens * vocab / 4;
  row_divide_kernel<<<blocks_for(vectors, 256), 128, 0, stream>>>(
      work, rows_out + tokens, static_cast<std::uint32_t>(vectors), FastDivide(static_cast<std::uint32_t>(vocab / 4)));
}

void cross_entropy_native_backward(float* softmax, float* work, const float* row_gradient, void* logits_gradient,
                                   std::int64_t tokens, std::int64_t vocab, Stream stream) {
  const std::int64_t vectors = tokens * vocab / 4;
  copy_kernel<<<blocks_for(vectors, 128), 128, 0, stream>>>(softmax, work, vectors);
  scale_cast_write_back_kernel<<<blocks_for(vectors, 256), 128, 0, stream>>>(
      work, row_gradient, softmax, static_cast<bf16*>(logits_gradient), static_cast<std::uint32_t>(vectors),
      FastDivide(static_cast<std::uint32_t>(vocab / 4)));
}

}  // namespace pipewright::kernels
