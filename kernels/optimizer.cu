// See optimizer.hpp. 512 threads a block, 4 elements a thread and step; Adam in decoupled (AdamW) form.
#include "common.cuh"
#include "optimizer.hpp"

namespace pipewright::kernels {
namespace {

constexpr int kThreads = 512, kUnroll = 4;
constexpr std::int64_t kChunk = 2048 * 32, kBlocks = 320;

// One element an access, `kUnroll` independent ones in flight (the fused Adam of Transformer Engine does the same).
__global__ void __launch_bounds__(kThreads) adam_kernel(const float* g, float* p, float* m, float* v, std::int64_t n) {
  const std::int64_t base = blockIdx.x * kChunk, end = base + kChunk < n ? base + kChunk : n;
  for (std::int64_t start = base; start < end; start += kThreads * kUnroll) {
    float rg[kUnroll], rp[kUnroll], rm[kUnroll], rv[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = start + threadIdx.x + u * kThreads;
      if (i < end) rg[u] = g[i], rp[u] = p[i], rm[u] = m[i], rv[u] = v[i];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      rm[u] = 0.9f * rm[u] + 0.1f * rg[u];
      rv[u] = 0.95f * rv[u] + 0.05f * rg[u] * rg[u];
      rp[u] -= 1e-5f * (rm[u] / (sqrtf(fabsf(rv[u])) + 1e-8f) + 0.1f * rp[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = start + threadIdx.x + u * kThreads;
      if (i < end) p[i] = rp[u], m[i] = rm[u], v[i] = rv[u];
    }
  }
}

__global__ void __launch_bounds__(kThreads) l2norm_kernel(const float* x, float* partial, std::int64_t n) {
  __shared__ float scratch[32];
  const std::int64_t base = blockIdx.x * kChunk, end = base + kChunk < n ? base + kChunk : n;
  float sum = 0;
  for (std::int64_t i = base + threadIdx.x * 4ll; i < end; i += kThreads * 4) {
    const auto v = load<float, 4>(x + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += v.v[j] * v.v[j];
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] += sum;
}

__global__ void __launch_bounds__(kThreads) cleanup_kernel(const float* partial, float* out) {
  __shared__ float scratch[32];
  const float total = block_sum(threadIdx.x < kBlocks ? partial[threadIdx.x] : 0.0f, scratch);
  if (threadIdx.x == 0) *out = sqrtf(total);
}

__global__ void __launch_bounds__(kThreads) scale_kernel(const float* in, float* out, float factor, std::int64_t n) {
  const std::int64_t base = blockIdx.x * kChunk, end = base + kChunk < n ? base + kChunk : n;
  for (std::int64_t i = base + threadIdx.x * 4ll; i < end; i += kThreads * 4) {
    auto v = load<float, 4>(in + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) v.v[j] *= factor;
    store(out + i, v);
  }
}

// Calls launch(first element, number of elements, blocks) for each launch of at most 320 chunks.
template <class Launch>
void for_chunks(std::int64_t elements, Launch launch) {
  for (std::int64_t first = 0; first < elements; first += kBlocks * kChunk) {
    const std::int64_t n = elements - first < kBlocks * kChunk ? elements - first : kBlocks * kChunk;
    launch(first, n, blocks_for(n, kChunk));
  }
}

}  // namespace

void adam(const float* gradient, float* parameter, float* exp_avg, float* exp_avg_sq, std::int64_t elements,
          Stream stream) {
  for_chunks(elements, [&](std::int64_t first, std::int64_t n, unsigned blocks) {
    adam_kernel<<<blocks, kThreads, 0, stream>>>(gradient + first, parameter + first, exp_avg + first,
                                                 exp_avg_sq + first, n);
  });
}

void l2norm(const float* x, float* partial, std::int64_t elements, Stream stream) {
  for_chunks(elements, [&](std::int64_t first, std::int64_t n, unsigned blocks) {
    l2norm_kernel<<<blocks, kThreads, 0, stream>>>(x + first, partial, n);
  });
  cleanup_kernel<<<1, kThreads, 0, stream>>>(partial, partial + kBlocks);
}

void scale(const float* in, float* out, float factor, std::int64_t elements, Stream stream) {
  for_chunks(elements, [&](std::int64_t first, std::int64_t n, unsigned blocks) {
    scale_kernel<<<blocks, kThreads, 0, stream>>>(in + first, out + first, factor, n);
  });
}

}  // namespace pipewright::kernels
