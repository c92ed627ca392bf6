// See router.hpp. Order of the kernels: a traced layer of Megatron Core 0.19 (moe/router.py, moe_utils.py) with an
// auxiliary loss: top-k, softmax over the chosen, scatter into probabilities and map; the loss's own softmax, top-k and
// scatter; tokens an expert; the loss; tokens an expert of every rank for the dispatcher.
#include "common.cuh"
#include "elementwise.hpp"
#include "router_kernels.hpp"

namespace pipewright::kernels {
namespace {

// One warp a row: the k-th largest by its bits, two a step, as PyTorch's radix selection; then the chosen are gathered.
__global__ void __launch_bounds__(32)
    select_kernel(const float* in, float* values, std::int64_t* indices, int experts, int topk) {
  const float* row = in + static_cast<std::int64_t>(blockIdx.x) * experts;
  const auto key = [&](int e) {  // order of floats as order of unsigned integers
    const unsigned bits = __float_as_uint(row[e]);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  };
  __shared__ int total[4];
  unsigned desired = 0, mask = 0;
  int wanted = topk;
  for (int shift = 30; shift >= 0; shift -= 2) {  // counts through shared memory, as countRadixUsingMask
    __syncthreads();
    if (threadIdx.x < 4) total[threadIdx.x] = 0;
    __syncthreads();
    int counts[4] = {};
    for (int e = threadIdx.x; e - static_cast<int>(threadIdx.x) < experts; e += 32) {
      const unsigned k = e < experts ? key(e) : 0u;
      const bool in_play = e < experts && (k & mask) == desired;
#pragma unroll
      for (unsigned digit = 0; digit < 4; ++digit)
        counts[digit] += __popc(__ballot_sync(0xffffffffu, in_play && (k >> shift & 3u) == digit));
    }
    if (threadIdx.x == 0)
      for (int digit = 0; digit < 4; ++digit) atomicAdd(&total[digit], counts[digit]);
    __syncthreads();
    for (int digit = 3; digit >= 0; --digit) {
      const int count = total[digit];
      if (count >= wanted) {
        desired |= static_cast<unsigned>(digit) << shift;
        mask |= 3u << shift;
        break;
      }
      wanted -= count;
    }
  }
  int kept = 0;
  for (int e = threadIdx.x; e - static_cast<int>(threadIdx.x) < experts; e += 32) {
    const bool chosen = e < experts && key(e) >= desired;
    const unsigned ballot = __ballot_sync(0xffffffffu, chosen);
    const int at = kept + __popc(ballot & ((1u << threadIdx.x) - 1));
    if (chosen && at < topk) {
      values[static_cast<std::int64_t>(blockIdx.x) * topk + at] = row[e];
      indices[static_cast<std::int64_t>(blockIdx.x) * topk + at] = e;
    }
    kept += __popc(ballot);
  }
}

// The chosen in descending order: bitonic in shared memory, 16 rows a block, 16 threads a row.
__global__ void __launch_bounds__(256) sort_kernel(float* values, std::int64_t* indices, int rows, int topk) {
  __shared__ float v[16][32];
  __shared__ std::int64_t n[16][32];
  const int y = threadIdx.y, row = blockIdx.x * 16 + y;
  for (int i = threadIdx.x; i < 32; i += 16) {
    const bool inside = row < rows && i < topk;
    v[y][i] = inside ? values[static_cast<std::int64_t>(row) * topk + i] : -3.4e38f;
    n[y][i] = inside ? indices[static_cast<std::int64_t>(row) * topk + i] : 0;
  }
  for (int size = 2; size <= 32; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      const int a = 2 * threadIdx.x - (threadIdx.x & (stride - 1)), b = a + stride;
      if ((v[y][a] < v[y][b]) == ((a & size) == 0 || size == 32)) {
        const float value = v[y][a];
        const std::int64_t index = n[y][a];
        v[y][a] = v[y][b], n[y][a] = n[y][b];
        v[y][b] = value, n[y][b] = index;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < topk && row < rows; i += 16) {
    values[static_cast<std::int64_t>(row) * topk + i] = v[y][i];
    indices[static_cast<std::int64_t>(row) * topk + i] = n[y][i];
  }
}

__global__ void __launch_bounds__(128) softmax_kernel(const float* in, float* out, int rows, int cols) {
  const int row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (row >= rows) return;
  float most = -3.4e38f, sum = 0;
  for (int c = lane; c < cols; c += 32) most = fmaxf(most, in[static_cast<std::int64_t>(row) * cols + c]);
  most = warp_max(most);
  for (int c = lane; c < cols; c += 32) sum += __expf(in[static_cast<std::int64_t>(row) * cols + c] - most);
  sum = warp_sum(sum);
  for (int c = lane; c < cols; c += 32) {
    const std::int64_t at = static_cast<std::int64_t>(row) * cols + c;
    out[at] = __expf(in[at] - most) / sum;
  }
}

// to[row, indices] = values, or values = to[row, indices]: 8 elements a thread one after the other, so few blocks that
// latency binds them, with divisions of 64 bits, as _scatter_gather_elementwise_kernel<128, 8>.
constexpr int kScatterEach = 8;
template <bool Gather>
__global__ void __launch_bounds__(128) scatter_kernel(float* values, const std::int64_t* indices, float* to,
                                                      std::int64_t n, std::int64_t topk, std::int64_t experts) {
#pragma unroll 1
  for (int u = 0; u < kScatterEach; ++u) {
    const std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(kScatterEach) + u) * 128 + threadIdx.x;
    if (i >= n) return;
    float& there = to[i / topk * experts + indices[i]];
    if (Gather)
      values[i] = there;
    else
      there = values[i];
  }
}

// One element a thread between types, as unrolled_elementwise_kernel casts.
template <class To, class From>
__global__ void __launch_bounds__(128) cast_kernel(const From* in, To* out, int n) {
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const int i = (blockIdx.x * 4 + u) * 128 + threadIdx.x;
    if (i < n) out[i] = static_cast<To>(in[i]);
  }
}

__global__ void __launch_bounds__(128) multiply_kernel(const float* a, float* b, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) b[i] *= a[i];
}

// Sums over tokens, one block 32 experts: few blocks, so bound by latency.
template <class T>
__global__ void __launch_bounds__(1024) column_sum_kernel(const T* in, T* out, int rows, int cols) {
  __shared__ T tile[32][33];
  const int c = blockIdx.x * 32 + threadIdx.x;
  T sum = 0;
  if (c < cols)
#pragma unroll 8
    for (int r = threadIdx.y; r < rows; r += 32) sum += in[static_cast<std::int64_t>(r) * cols + c];
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  for (int r = 1; r < 32; ++r) sum += tile[r][threadIdx.x];
  out[c] = sum;
}

struct Launcher {
  const RouterBuffers& b;
  int tokens, experts, topk;
  Stream stream;
  int all() const { return tokens * experts; }
  int chosen() const { return tokens * topk; }

  void zero(void* p, std::int64_t bytes) const { fill(p, bytes, stream); }
  void copy(void* to, const void* from, std::int64_t bytes) const {
    cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream);
  }
  void select(const float* from) const {
    select_kernel<<<tokens, 32, 0, stream>>>(from, b.work, b.indices, experts, topk);
    sort_kernel<<<blocks_for(tokens, 16), dim3(16, 16), 0, stream>>>(b.work, b.indices, tokens, topk);
  }
  void softmax(const float* in, float* out, int cols) const {
    softmax_kernel<<<blocks_for(tokens, 4), 128, 0, stream>>>(in, out, tokens, cols);
  }
  void scatter() const {
    scatter_kernel<false>
        <<<blocks_for(chosen(), 128), 128, 0, stream>>>(b.work, b.indices, b.scores, chosen(), topk, experts);
  }
  void gather() const {
    scatter_kernel<true>
        <<<blocks_for(chosen(), 128), 128, 0, stream>>>(b.work, b.indices, b.scores, chosen(), topk, experts);
  }
  /// The map of chosen experts: zeros, ones at the indices, casts to and from bool (here: to integers of 8 bytes).
  void make_map() const {
    zero(b.scores, all() * 4ll);
    cast_kernel<<<blocks_for(all(), 512), 128, 0, stream>>>(b.scores, b.map, all());
    copy(b.sums, b.scores, 4ll * experts);
    scatter();
    cast_kernel<<<blocks_for(all(), 512), 128, 0, stream>>>(b.scores, b.map, all());
  }
  void count() const {
    cast_kernel<<<blocks_for(all(), 512), 128, 0, stream>>>(b.scores, b.map, all());
    column_sum_kernel<<<blocks_for(experts, 32), dim3(32, 32), 0, stream>>>(
        b.map, reinterpret_cast<std::int64_t*>(b.sums), tokens, experts);
  }
  void few(int launches) const {
    for (int i = 0; i < launches; ++i) multiply_kernel<<<1, 128, 0, stream>>>(b.sums, b.sums + experts, experts);
  }
};

}  // namespace

void router_topk_forward(const RouterBuffers& b, std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                         Stream stream) {
  const Launcher l{b, static_cast<int>(tokens), static_cast<int>(experts), static_cast<int>(topk), stream};
  l.select(b.logits);
  l.softmax(b.work, b.work, l.topk);
  l.zero(b.scores, l.all() * 4ll);
  l.copy(b.sums, b.work, 4ll * experts);
  l.scatter();
  l.make_map();
  l.softmax(b.logits, b.scores, l.experts);  // the auxiliary loss: scores over all experts
  l.select(b.logits);
  l.make_map();
  l.count();
  column_sum_kernel<<<blocks_for(experts, 32), dim3(32, 32), 0, stream>>>(b.scores, b.sums, l.tokens, l.experts);
  l.few(5);
  l.count();  // for the dispatcher
  l.few(5);
}

void router_topk_backward(const RouterBuffers& b, std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                          Stream stream) {
  const Launcher l{b, static_cast<int>(tokens), static_cast<int>(experts), static_cast<int>(topk), stream};
  const auto multiply = [&](int n) { multiply_kernel<<<blocks_for(n, 128), 128, 0, stream>>>(b.logits, b.scores, n); };
  l.few(5);
  multiply(l.all());
  l.softmax(b.scores, b.scores, l.experts);
  l.gather();
  multiply(l.chosen());
  l.softmax(b.work, b.work, l.topk);
  l.zero(b.scores, l.all() * 4ll);
  l.scatter();
  multiply(l.all());
  l.copy(b.sums, b.work, 4ll * experts);
}

}  // namespace pipewright::kernels
