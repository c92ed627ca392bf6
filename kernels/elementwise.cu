// See elementwise.hpp. Sources of the access patterns: Transformer Engine's fused_rope.cu (one block a token, one
// element an access), PyTorch's elementwise kernels (CUDALoops.cuh: 128 threads x 4 elements, strided views and type
// casts unvectorised).
#include "common.cuh"
#include "elementwise.hpp"
#include "swiglu.cuh"

namespace pipewright::kernels {
namespace {

constexpr int kWidth = 8;

template <bool Backward>
__global__ void rope_kernel(const bf16* in, const float* angles, bf16* out, int heads, int dim) {
  extern __shared__ float sines[];  // then cosines
  float* cosines = sines + dim;
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * heads * dim;
  const int half = dim / 2;
  for (int d = threadIdx.y * blockDim.x + threadIdx.x; d < dim; d += blockDim.x * blockDim.y) {
    sincosf(angles[static_cast<std::int64_t>(blockIdx.x) * dim + d], &sines[d], &cosines[d]);
  }
  __syncthreads();
  for (int d = threadIdx.x; d < dim; d += blockDim.x) {
    const float cosine = cosines[d], sine = (d < half) == Backward ? sines[d] : -sines[d];
    const int partner = d < half ? d + half : d - half;
#pragma unroll 4
    for (int h = threadIdx.y; h < heads; h += blockDim.y) {
      const bf16* x = in + base + static_cast<std::int64_t>(h) * dim;
      out[base + static_cast<std::int64_t>(h) * dim + d] =
          from_float<bf16>(to_float(x[d]) * cosine + to_float(x[partner]) * sine);
    }
  }
}

constexpr int kThreads = 128, kUnroll = 4;

__global__ void __launch_bounds__(kThreads)
    copy_strided_kernel(const bf16* in, bf16* out, std::uint32_t n, Offsets offsets) {
  std::uint32_t i = blockIdx.x * (kThreads * kUnroll) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u, i += kThreads) {
    if (i >= n) return;
    std::uint32_t at[3];
    offsets.find(i, at);
    out[at[0]] = in[at[1]];
  }
}

struct CatInput {
  const bf16* in;
  std::uint32_t first, vectors;  ///< in a row of the output, in units of 16 bytes
};

// One thread 16 bytes of the output.
__global__ void __launch_bounds__(128)
    cat_kernel(CatInput a, CatInput b, CatInput c, bf16* out, std::uint32_t vectors, FastDivide per_row) {
  const std::uint32_t i = blockIdx.x * 128u + threadIdx.x;
  if (i >= vectors) return;
  const std::uint32_t row = per_row.quotient(i), column = i - row * per_row.divisor;
  const CatInput input = column < b.first ? a : column < c.first ? b : c;
  const auto from = static_cast<std::int64_t>(row) * input.vectors + (column - input.first);
  store(out + static_cast<std::int64_t>(i) * kWidth, load<bf16, kWidth>(input.in + from * kWidth));
}

struct Gelu {  // tanh form, as Megatron's bias_gelu
  static __device__ __forceinline__ float forward(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456f * x * (1.0f + 0.044715f * x * x)));
  }
  static __device__ __forceinline__ float derivative(float x) {
    const float t = tanhf(0.79788456f * x * (1.0f + 0.044715f * x * x));
    return 0.5f * x * (1.0f - t * t) * (0.79788456f + 0.1070322243f * x * x) + 0.5f * (1.0f + t);
  }
};
struct SquaredRelu {
  static __device__ __forceinline__ float forward(float x) { return x > 0 ? x * x : 0.0f; }
  static __device__ __forceinline__ float derivative(float x) { return x > 0 ? 2 * x : 0.0f; }
};

template <class F>
__global__ void __launch_bounds__(256) activation_forward_kernel(const bf16* in, bf16* out, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= vectors) return;
  auto x = load<bf16, kWidth>(in + i * kWidth);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) x.v[j] = from_float<bf16>(F::forward(to_float(x.v[j])));
  store(out + i * kWidth, x);
}

template <class F>
__global__ void __launch_bounds__(256)
    activation_backward_kernel(const bf16* in, const bf16* dy, bf16* dx, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= vectors) return;
  const auto x = load<bf16, kWidth>(in + i * kWidth);
  auto d = load<bf16, kWidth>(dy + i * kWidth);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) d.v[j] = from_float<bf16>(to_float(d.v[j]) * F::derivative(to_float(x.v[j])));
  store(dx + i * kWidth, d);
}

__global__ void __launch_bounds__(256)
    dropout_forward_kernel(const bf16* in, bf16* out, unsigned char* mask, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= vectors) return;
  auto x = load<bf16, kWidth>(in + i * kWidth);
  Vec<unsigned char, kWidth> keep;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {  // a hash as the random draw, keep with probability 0.9
    std::uint32_t h = static_cast<std::uint32_t>(i) * kWidth + j;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    keep.v[j] = (h ^ (h >> 16)) > 429496729u;
    x.v[j] = from_float<bf16>(keep.v[j] ? to_float(x.v[j]) * (1.0f / 0.9f) : 0.0f);
  }
  store(out + i * kWidth, x);
  store(mask + i * kWidth, keep);
}

__global__ void __launch_bounds__(256)
    dropout_backward_kernel(const bf16* dy, const unsigned char* mask, bf16* dx, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= vectors) return;
  auto d = load<bf16, kWidth>(dy + i * kWidth);
  const auto keep = load<unsigned char, kWidth>(mask + i * kWidth);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) d.v[j] = from_float<bf16>(keep.v[j] ? to_float(d.v[j]) * (1.0f / 0.9f) : 0.0f);
  store(dx + i * kWidth, d);
}

__global__ void __launch_bounds__(128) add_kernel(const bf16* a, const bf16* b, bf16* out, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 128ll + threadIdx.x;
  if (i >= vectors) return;
  const auto x = load<bf16, kWidth>(a + i * kWidth), y = load<bf16, kWidth>(b + i * kWidth);
  Vec<bf16, kWidth> z;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) z.v[j] = from_float<bf16>(to_float(x.v[j]) + to_float(y.v[j]));
  store(out + i * kWidth, z);
}

// Mixed types are not vectorised in PyTorch: 4 elements a thread, one an access, all loads before the first store.
__global__ void __launch_bounds__(kThreads)
    add_mixed_kernel(void* main, Type main_type, int main_bytes, const void* gradient, Type type, int bytes,
                     std::int64_t n) {
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kThreads * kUnroll) + threadIdx.x;
  float x[kUnroll], g[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = first + u * kThreads;
    if (i >= n) break;
    x[u] = fetch(main_type, static_cast<const char*>(main) + i * main_bytes);
    g[u] = fetch(type, static_cast<const char*>(gradient) + i * bytes);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = first + u * kThreads;
    if (i < n) put(main_type, static_cast<char*>(main) + i * main_bytes, x[u] + g[u]);
  }
}

__global__ void __launch_bounds__(kThreads)
    cast_mixed_kernel(const void* in, Type type, int bytes, void* out, Type out_type, int out_bytes, std::int64_t n) {
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kThreads * kUnroll) + threadIdx.x;
  float x[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (first + u * kThreads < n) x[u] = fetch(type, static_cast<const char*>(in) + (first + u * kThreads) * bytes);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (first + u * kThreads < n) put(out_type, static_cast<char*>(out) + (first + u * kThreads) * out_bytes, x[u]);
}

__global__ void __launch_bounds__(128) cast_f32_bf16_kernel(const float* in, bf16* out, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 128ll + threadIdx.x;
  if (i >= vectors) return;
  const auto low = load<float, 4>(in + i * kWidth), high = load<float, 4>(in + i * kWidth + 4);
  Vec<bf16, kWidth> y;
#pragma unroll
  for (int j = 0; j < 4; ++j) y.v[j] = from_float<bf16>(low.v[j]), y.v[j + 4] = from_float<bf16>(high.v[j]);
  store(out + i * kWidth, y);
}

__global__ void __launch_bounds__(128) fill_kernel(uint4* out, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 128ll + threadIdx.x;
  if (i < vectors) out[i] = make_uint4(0, 0, 0, 0);
}

const bf16* in16(const void* p) { return static_cast<const bf16*>(p); }
bf16* out16(void* p) { return static_cast<bf16*>(p); }

}  // namespace

void rope(bool backward, const void* in, const float* angles, void* out, std::int64_t tokens, std::int64_t heads,
          std::int64_t head_dim, Stream stream) {
  const dim3 block(32, heads < 16 ? 4 : 8);
  const auto kernel = backward ? rope_kernel<true> : rope_kernel<false>;
  kernel<<<static_cast<unsigned>(tokens), block, static_cast<unsigned>(2 * head_dim * sizeof(float)), stream>>>(
      in16(in), angles, out16(out), static_cast<int>(heads), static_cast<int>(head_dim));
}

void copy_strided(const void* in, void* out, std::int64_t rows, std::int64_t cols, std::int64_t stride, Stream stream) {
  const std::int64_t n = rows * cols;
  Offsets offsets;
  offsets.dims = 2;
  offsets.sizes[0] = FastDivide(static_cast<std::uint32_t>(cols));
  offsets.sizes[1] = FastDivide(static_cast<std::uint32_t>(rows));
  offsets.strides[0][0] = offsets.strides[0][1] = 1;
  offsets.strides[1][0] = static_cast<std::uint32_t>(cols);
  offsets.strides[1][1] = static_cast<std::uint32_t>(stride);
  copy_strided_kernel<<<blocks_for(n, kThreads * kUnroll), kThreads, 0, stream>>>(
      in16(in), out16(out), static_cast<std::uint32_t>(n), offsets);
}

void cat(const void* const in[3], const std::int64_t cols[3], void* out, std::int64_t rows, Stream stream) {
  CatInput inputs[3];
  std::uint32_t width = 0;
  for (int i = 0; i < 3; ++i) {
    inputs[i] = {in16(in[i]), width, static_cast<std::uint32_t>(cols[i] / kWidth)};
    width += inputs[i].vectors;
  }
  const auto vectors = static_cast<std::uint32_t>(rows) * width;
  cat_kernel<<<blocks_for(vectors, 128), 128, 0, stream>>>(inputs[0], inputs[1], inputs[2], out16(out), vectors,
                                                           FastDivide(width));
}

void swiglu_forward(const void* in, void* out, std::int64_t rows, std::int64_t ffn, Stream stream) {
  launch_swiglu(in16(in), out16(out), rows, ffn, Unweighted{}, stream);
}

void swiglu_backward(const void* in, const void* dy, void* dx, std::int64_t rows, std::int64_t ffn, Stream stream) {
  launch_swiglu_gradient(in16(in), in16(dy), out16(dx), rows, ffn, Unweighted{}, stream);
}

void activation_forward(Activation kind, const void* in, void* out, std::int64_t elements, Stream stream) {
  const auto kernel =
      kind == Activation::gelu ? activation_forward_kernel<Gelu> : activation_forward_kernel<SquaredRelu>;
  kernel<<<blocks_for(elements / kWidth, 256), 256, 0, stream>>>(in16(in), out16(out), elements / kWidth);
}

void activation_backward(Activation kind, const void* in, const void* dy, void* dx, std::int64_t elements,
                         Stream stream) {
  const auto kernel =
      kind == Activation::gelu ? activation_backward_kernel<Gelu> : activation_backward_kernel<SquaredRelu>;
  kernel<<<blocks_for(elements / kWidth, 256), 256, 0, stream>>>(in16(in), in16(dy), out16(dx), elements / kWidth);
}

void dropout_forward(const void* in, void* out, unsigned char* mask, std::int64_t elements, Stream stream) {
  dropout_forward_kernel<<<blocks_for(elements / kWidth, 256), 256, 0, stream>>>(in16(in), out16(out), mask,
                                                                                 elements / kWidth);
}

void dropout_backward(const void* dy, const unsigned char* mask, void* dx, std::int64_t elements, Stream stream) {
  dropout_backward_kernel<<<blocks_for(elements / kWidth, 256), 256, 0, stream>>>(in16(dy), mask, out16(dx),
                                                                                  elements / kWidth);
}

void add(const void* a, const void* b, void* out, std::int64_t elements, Stream stream) {
  add_kernel<<<blocks_for(elements / kWidth, 128), 128, 0, stream>>>(in16(a), in16(b), out16(out), elements / kWidth);
}

void add_f32(float* main, const void* gradient, std::int64_t elements, Stream stream) {
  add_mixed_kernel<<<blocks_for(elements, kThreads * kUnroll), kThreads, 0, stream>>>(main, Type::f32, 4, gradient,
                                                                                      Type::bf16, 2, elements);
}

void cast_bf16_f32(const void* in, float* out, std::int64_t elements, Stream stream) {
  cast_mixed_kernel<<<blocks_for(elements, kThreads * kUnroll), kThreads, 0, stream>>>(in, Type::bf16, 2, out,
                                                                                       Type::f32, 4, elements);
}

void cast_f32_bf16(const float* in, void* out, std::int64_t elements, Stream stream) {
  cast_f32_bf16_kernel<<<blocks_for(elements / kWidth, 128), 128, 0, stream>>>(in, out16(out), elements / kWidth);
}

void fill(void* out, std::int64_t bytes, Stream stream) {
  fill_kernel<<<blocks_for(bytes / 16, 128), 128, 0, stream>>>(static_cast<uint4*>(out), bytes / 16);
}

}  // namespace pipewright::kernels
