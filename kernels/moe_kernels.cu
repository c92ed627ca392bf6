// See moe.hpp.
#include "common.cuh"
#include "moe_kernels.hpp"
#include "swiglu.cuh"

namespace pipewright::kernels {
namespace {

constexpr int kWidth = 8;  // bf16 in 16 bytes
using Part = Vec<bf16, kWidth>;

__global__ void __launch_bounds__(512)
    probability_gradient_kernel(const bf16* in, const bf16* dy, float* out, std::int64_t ffn) {
  __shared__ float scratch[32];
  const std::int64_t row = blockIdx.x;
  const bf16* x = in + row * 2 * ffn;
  float sum = 0;
  for (std::int64_t c = threadIdx.x * kWidth; c < ffn; c += blockDim.x * kWidth) {
    const auto gate = load<bf16, kWidth>(x + c), up = load<bf16, kWidth>(x + ffn + c),
               d = load<bf16, kWidth>(dy + row * ffn + c);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float g = to_float(gate.v[j]);
      sum += g * sigmoid(g) * to_float(up.v[j]) * to_float(d.v[j]);
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) out[row] = sum;
}

__global__ void routing_kernel(unsigned char* routing, std::int64_t n, std::int64_t experts, std::int64_t topk) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  const std::int64_t token = i / experts, expert = i % experts, first = token * topk % experts;
  routing[i] = (expert + experts - first) % experts < topk;
}

constexpr int kBlock = 1024;

// Pass 1: within a block of tokens, how many of them precede each on its expert.
__global__ void __launch_bounds__(kBlock) count_kernel(const unsigned char* routing, std::int32_t* ids,
                                                       std::int32_t* counts, int tokens, int experts, int blocks) {
  __shared__ int warps[32];
  const int expert = blockIdx.x, block = blockIdx.y, token = block * kBlock + threadIdx.x;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int chosen = token < tokens ? routing[static_cast<std::int64_t>(token) * experts + expert] : 0;
  const unsigned ballot = __ballot_sync(0xffffffffu, chosen);
  if (lane == 0) warps[warp] = __popc(ballot);
  __syncthreads();
  int before = __popc(ballot & ((1u << lane) - 1));
  for (int w = 0; w < warp; ++w) before += warps[w];
  if (token < tokens) ids[static_cast<std::int64_t>(token) * (2 * experts + 1) + expert] = chosen ? before + 1 : 0;
  if (threadIdx.x == kBlock - 1) counts[expert * blocks + block] = before + chosen;
}

// Pass 2: the same over all tokens and the experts before.
__global__ void __launch_bounds__(kBlock)
    offset_kernel(std::int32_t* ids, const std::int32_t* counts, int tokens, int experts, int blocks) {
  __shared__ float scratch[32];
  const int expert = blockIdx.x, block = blockIdx.y, token = block * kBlock + threadIdx.x;
  float sum = 0;
  for (int i = threadIdx.x; i < expert * blocks + block; i += kBlock) sum += static_cast<float>(counts[i]);
  const int before = static_cast<int>(block_sum(sum, scratch));
  if (token >= tokens) return;
  std::int32_t& id = ids[static_cast<std::int64_t>(token) * (2 * experts + 1) + expert];
  id = id > 0 ? id - 1 + before : -1;
}

// Pass 3: of each token, the rows of its copies first, then their experts, then their number.
__global__ void __launch_bounds__(32) compact_kernel(std::int32_t* ids, int experts) {
  std::int32_t* row = ids + static_cast<std::int64_t>(blockIdx.x) * (2 * experts + 1);
  int kept = 0;
  for (int e = threadIdx.x; e - static_cast<int>(threadIdx.x) < experts; e += 32) {
    const int id = e < experts ? row[e] : -1;
    const unsigned ballot = __ballot_sync(0xffffffffu, id >= 0);
    const int at = kept + __popc(ballot & ((1u << threadIdx.x) - 1));
    __syncwarp();
    if (id >= 0) row[at] = id, row[experts + at] = e;
    kept += __popc(ballot);
    __syncwarp();
  }
  if (threadIdx.x == 0) row[2 * experts] = kept;
}

__global__ void __launch_bounds__(256)
    permute_kernel(const bf16* in, const std::int32_t* ids, const float* probabilities, bf16* out,
                   float* out_probabilities, std::int64_t hidden, int experts) {
  const std::int32_t* row = ids + static_cast<std::int64_t>(blockIdx.x) * (2 * experts + 1);
  const std::int64_t c = (blockIdx.y * 256ll + threadIdx.x) * kWidth;
  const int copies = row[2 * experts];
  if (c >= hidden) return;
  const auto x = load<bf16, kWidth>(in + static_cast<std::int64_t>(blockIdx.x) * hidden + c);
  for (int i = 0; i < copies; ++i) {
    const std::int64_t to = row[i];
    store(out + to * hidden + c, x);
    if (c == 0)
      out_probabilities[to] = probabilities[static_cast<std::int64_t>(blockIdx.x) * experts + row[experts + i]];
  }
}

__global__ void __launch_bounds__(256)
    unpermute_kernel(const bf16* in, const std::int32_t* ids, bf16* out, std::int64_t hidden, int experts) {
  const std::int32_t* row = ids + static_cast<std::int64_t>(blockIdx.x) * (2 * experts + 1);
  const std::int64_t c = (blockIdx.y * 256ll + threadIdx.x) * kWidth;
  const int copies = row[2 * experts];
  if (c >= hidden) return;
  float sum[kWidth] = {};
  for (int i = 0; i < copies; ++i) {
    const auto x = load<bf16, kWidth>(in + static_cast<std::int64_t>(row[i]) * hidden + c);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += to_float(x.v[j]);
  }
  Part y;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) y.v[j] = from_float<bf16>(sum[j]);
  store(out + static_cast<std::int64_t>(blockIdx.x) * hidden + c, y);
}

// One block a row, as the Triton kernel: every block finds its row's chunk among all chunks.
__global__ void __launch_bounds__(128) sort_map_kernel(std::int32_t* to, int rows, int chunks) {
  __shared__ float scratch[32];
  const int size = (rows + chunks - 1) / chunks, row = blockIdx.x;
  float before = 0;
  for (int i = threadIdx.x; i < chunks; i += 128) before += (i + 1) * size <= row ? 1.0f : 0.0f;
  const int chunk = static_cast<int>(block_sum(before, scratch));
  // Chunks stand by source rank, then expert (two ranks); they go by expert, then source rank.
  const int half = chunks / 2, moved = chunk < half ? 2 * chunk : 2 * (chunk - half) + 1;
  float ahead = 0;
  for (int i = threadIdx.x; i < moved; i += 128) ahead += static_cast<float>(size);
  const int first = static_cast<int>(block_sum(ahead, scratch));
  if (threadIdx.x == 0) to[row] = min(first + row - chunk * size, rows - 1);
}

__global__ void __launch_bounds__(256)
    sort_chunks_kernel(const bf16* in, const std::int32_t* to, bf16* out, std::int64_t cols) {
  const std::int64_t c = (blockIdx.y * 256ll + threadIdx.x) * kWidth;
  if (c >= cols) return;
  store(out + static_cast<std::int64_t>(to[blockIdx.x]) * cols + c,
        load<bf16, kWidth>(in + static_cast<std::int64_t>(blockIdx.x) * cols + c));
}

// One block a token; the last `rotated` elements of each head are rotated in pairs, the others copied.
template <bool Backward>
__global__ void rope_mla_kernel(const bf16* in, const float* angles, bf16* out, int heads, int dim, int stride,
                                int rotated) {
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * heads * stride;
  const float* angle = angles + static_cast<std::int64_t>(blockIdx.x) * rotated;
  const int vectors = dim / kWidth;
  for (int i = threadIdx.x; i < heads * vectors; i += blockDim.x) {
    const std::int64_t at = base + static_cast<std::int64_t>(i / vectors) * stride + i % vectors * kWidth;
    const int first = i % vectors * kWidth - (dim - rotated);
    auto x = load<bf16, kWidth>(in + at);
    if (first >= 0) {
#pragma unroll
      for (int j = 0; j < kWidth; j += 2) {
        float sine, cosine;
        __sincosf(angle[first + j], &sine, &cosine);
        if (Backward) sine = -sine;
        const float a = to_float(x.v[j]), b = to_float(x.v[j + 1]);
        x.v[j] = from_float<bf16>(a * cosine - b * sine);
        x.v[j + 1] = from_float<bf16>(b * cosine + a * sine);
      }
    }
    store(out + at, x);
  }
}

const bf16* in16(const void* p) { return static_cast<const bf16*>(p); }
bf16* out16(void* p) { return static_cast<bf16*>(p); }
dim3 by_rows(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>(rows), blocks_for(cols, 256 * kWidth)};
}

}  // namespace

void weighted_swiglu_forward(const void* in, const float* probability, void* out, std::int64_t rows, std::int64_t ffn,
                             Stream stream) {
  launch_swiglu(in16(in), out16(out), rows, ffn, ByRow{probability}, stream);
}

void weighted_swiglu_backward(const void* in, const void* dy, const float* probability, void* dx, float* dprobability,
                              std::int64_t rows, std::int64_t ffn, Stream stream) {
  launch_swiglu_gradient(in16(in), in16(dy), out16(dx), rows, ffn, ByRow{probability}, stream);
  // A vector a thread for narrow rows, as the generated reduction: whole warps, at most 512 threads.
  const std::int64_t threads = (ffn / kWidth + 31) / 32 * 32;
  probability_gradient_kernel<<<static_cast<unsigned>(rows), static_cast<unsigned>(threads < 512 ? threads : 512), 0,
                                stream>>>(in16(in), in16(dy), dprobability, ffn);
}

void balanced_routing(unsigned char* routing, std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                      Stream stream) {
  routing_kernel<<<blocks_for(tokens * experts, 256), 256, 0, stream>>>(routing, tokens * experts, experts, topk);
}

void row_id_maps(const unsigned char* routing, std::int32_t* ids, std::int32_t* counts, std::int64_t tokens,
                 std::int64_t experts, Stream stream) {
  const unsigned blocks = blocks_for(tokens, kBlock);
  const dim3 grid(static_cast<unsigned>(experts), blocks);
  const int t = static_cast<int>(tokens), e = static_cast<int>(experts), b = static_cast<int>(blocks);
  count_kernel<<<grid, kBlock, 0, stream>>>(routing, ids, counts, t, e, b);
  offset_kernel<<<grid, kBlock, 0, stream>>>(ids, counts, t, e, b);
  compact_kernel<<<static_cast<unsigned>(tokens), 32, 0, stream>>>(ids, e);
}

void permute(const void* in, const std::int32_t* ids, const float* probabilities, void* out, float* out_probabilities,
             std::int64_t tokens, std::int64_t hidden, std::int64_t experts, Stream stream) {
  permute_kernel<<<by_rows(tokens, hidden), 256, 0, stream>>>(in16(in), ids, probabilities, out16(out),
                                                              out_probabilities, hidden, static_cast<int>(experts));
}

void unpermute(const void* in, const std::int32_t* ids, void* out, std::int64_t tokens, std::int64_t hidden,
               std::int64_t experts, Stream stream) {
  unpermute_kernel<<<by_rows(tokens, hidden), 256, 0, stream>>>(in16(in), ids, out16(out), hidden,
                                                                static_cast<int>(experts));
}

void sort_map(std::int32_t* to, std::int64_t rows, std::int64_t chunks, Stream stream) {
  sort_map_kernel<<<static_cast<unsigned>(rows), 128, 0, stream>>>(to, static_cast<int>(rows),
                                                                   static_cast<int>(chunks));
}

void sort_chunks(const void* in, const std::int32_t* to, void* out, std::int64_t rows, std::int64_t cols,
                 Stream stream) {
  sort_chunks_kernel<<<by_rows(rows, cols), 256, 0, stream>>>(in16(in), to, out16(out), cols);
}

void rope_mla(bool backward, const void* in, const float* angles, void* out, std::int64_t tokens, std::int64_t heads,
              std::int64_t dim, std::int64_t stride, std::int64_t rotated, Stream stream) {
  const auto kernel = backward ? rope_mla_kernel<true> : rope_mla_kernel<false>;
  kernel<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(in16(in), angles, out16(out), static_cast<int>(heads),
                                                            static_cast<int>(dim), static_cast<int>(stride),
                                                            static_cast<int>(rotated));
}

}  // namespace pipewright::kernels
