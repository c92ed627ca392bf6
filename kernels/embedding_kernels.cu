// See embedding.hpp; the algorithm is PyTorch's embedding_dense_backward for many indices (EmbeddingBackwardKernel.cu):
// 64-bit radix sort of (token, position), segments of equal tokens cut into parts, fp32 partial sums, scatter.
#include <cub/cub.cuh>

#include "common.cuh"
#include "elementwise.hpp"
#include "embedding_kernels.hpp"

namespace pipewright::kernels {
namespace {

constexpr int kPartRows = 10;  // NROWS_PER_THREAD in PyTorch

__global__ void random_tokens_kernel(std::int64_t* tokens, std::int64_t count, std::int64_t vocab) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= count) return;
  std::uint64_t h = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  tokens[i] = static_cast<std::int64_t>((h ^ (h >> 31)) % static_cast<std::uint64_t>(vocab));
}

__global__ void __launch_bounds__(256)
    gather_kernel(const std::int64_t* tokens, const bf16* table, bf16* out, std::int64_t hidden) {
  const bf16* row = table + tokens[blockIdx.x] * hidden;
  for (std::int64_t c = threadIdx.x * 8ll; c < hidden; c += 256 * 8)
    store(out + blockIdx.x * hidden + c, load<bf16, 8>(row + c));
}

__global__ void iota_kernel(std::int64_t* out, std::int64_t count) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i < count) out[i] = i;
}

// Parts of each run of equal tokens: runs[r] is where run r starts in the sorted order.
__global__ void count_parts_kernel(const std::int64_t* runs, const std::int64_t* run_count, std::int64_t* parts,
                                   std::int64_t count) {
  const std::int64_t r = blockIdx.x * 256ll + threadIdx.x;
  if (r > count) return;  // one entry past the end, so that the sum of all follows the last run
  const std::int64_t n = *run_count;
  parts[r] = r < n ? ((r + 1 < n ? runs[r + 1] : count) - runs[r] + kPartRows - 1) / kPartRows : 0;
}

__global__ void part_starts_kernel(const std::int64_t* runs, const std::int64_t* run_count,
                                   const std::int64_t* first_part, std::int64_t* starts, std::int64_t count) {
  const std::int64_t r = blockIdx.x * 256ll + threadIdx.x, n = *run_count;
  if (r >= n) return;
  const std::int64_t end = r + 1 < n ? runs[r + 1] : count;
  std::int64_t p = first_part[r];
  for (std::int64_t at = runs[r]; at < end; at += kPartRows) starts[p++] = at;
}

// A thread sums one feature over the rows of one part.
__global__ void __launch_bounds__(512)
    part_sums_kernel(const std::int64_t* positions, const std::int64_t* starts, const std::int64_t* part_count,
                     const bf16* gradient, float* sums, std::int64_t hidden, std::int64_t count) {
  const std::int64_t id = blockIdx.x * 512ll + threadIdx.x, part = id / hidden, c = id % hidden;
  if (part >= *part_count) return;
  const std::int64_t begin = starts[part], limit = part + 1 < *part_count ? starts[part + 1] : count;
  float sum = 0;
  for (std::int64_t i = begin; i < limit; ++i) sum += to_float(gradient[positions[i] * hidden + c]);
  sums[part * hidden + c] = sum;
}

__global__ void __launch_bounds__(512)
    scatter_kernel(const std::int64_t* keys, const std::int64_t* runs, const std::int64_t* run_count,
                   const std::int64_t* first_part, const std::int64_t* part_count, const float* sums,
                   bf16* table_gradient, std::int64_t hidden) {
  const std::int64_t id = blockIdx.x * 512ll + threadIdx.x, run = id / hidden, c = id % hidden;
  if (run >= *run_count) return;
  const std::int64_t end = run + 1 < *run_count ? first_part[run + 1] : *part_count;
  float sum = 0;
  for (std::int64_t p = first_part[run]; p < end; ++p) sum += sums[p * hidden + c];
  table_gradient[keys[runs[run]] * hidden + c] = from_float<bf16>(sum);
}

struct Workspace {
  std::int64_t *positions, *sorted_keys, *sorted_positions, *runs, *unique, *parts, *first_part, *starts, *counts;
  float* sums;
  void* cub;
  std::size_t cub_bytes, bytes;
};

Workspace layout(char* base, std::int64_t count, std::int64_t hidden) {
  Workspace w{};
  std::size_t at = 0;
  const auto take = [&](std::size_t bytes) {
    char* p = base + at;
    at += (bytes + 255) / 256 * 256;
    return p;
  };
  for (std::int64_t** p : {&w.positions, &w.sorted_keys, &w.sorted_positions, &w.runs, &w.unique, &w.parts,
                           &w.first_part, &w.starts, &w.counts})
    *p = reinterpret_cast<std::int64_t*>(take((count + 2) * sizeof(std::int64_t)));
  w.sums = reinterpret_cast<float*>(take(count * hidden * sizeof(float)));
  std::size_t sort = 0, select = 0, scan = 0;
  std::int64_t* none = nullptr;
  cub::DeviceRadixSort::SortPairs(nullptr, sort, none, none, none, none, count);
  cub::DeviceSelect::UniqueByKey(nullptr, select, none, none, none, none, none, count);
  cub::DeviceScan::ExclusiveSum(nullptr, scan, none, none, count + 1);
  w.cub_bytes = sort > select ? (sort > scan ? sort : scan) : (select > scan ? select : scan);
  w.cub = take(w.cub_bytes);
  w.bytes = at;
  return w;
}

}  // namespace

void random_tokens(std::int64_t* tokens, std::int64_t count, std::int64_t vocab, Stream stream) {
  random_tokens_kernel<<<blocks_for(count, 256), 256, 0, stream>>>(tokens, count, vocab);
}

void embedding_forward(const std::int64_t* tokens, const void* table, void* out, std::int64_t count,
                       std::int64_t hidden, Stream stream) {
  gather_kernel<<<static_cast<unsigned>(count), 256, 0, stream>>>(tokens, static_cast<const bf16*>(table),
                                                                  static_cast<bf16*>(out), hidden);
}

std::size_t embedding_backward_workspace(std::int64_t count, std::int64_t hidden) {
  return layout(nullptr, count, hidden).bytes;
}

void embedding_backward(const std::int64_t* tokens, const void* gradient, void* table_gradient, void* workspace,
                        std::int64_t count, std::int64_t hidden, std::int64_t vocab, Stream stream) {
  Workspace w = layout(static_cast<char*>(workspace), count, hidden);
  const unsigned small = blocks_for(count + 1, 256), large = blocks_for(count * hidden, 512);
  iota_kernel<<<small, 256, 0, stream>>>(w.positions, count);
  cub::DeviceRadixSort::SortPairs(w.cub, w.cub_bytes, tokens, w.sorted_keys, w.positions, w.sorted_positions, count, 0,
                                  64, stream);
  fill(table_gradient, vocab * hidden * 2, stream);
  iota_kernel<<<small, 256, 0, stream>>>(w.positions, count);
  cub::DeviceSelect::UniqueByKey(w.cub, w.cub_bytes, w.sorted_keys, w.positions, w.unique, w.runs, w.counts, count,
                                 stream);
  count_parts_kernel<<<small, 256, 0, stream>>>(w.runs, w.counts, w.parts, count);
  cub::DeviceScan::ExclusiveSum(w.cub, w.cub_bytes, w.parts, w.first_part, count + 1, stream);
  part_starts_kernel<<<small, 256, 0, stream>>>(w.runs, w.counts, w.first_part, w.starts, count);
  part_sums_kernel<<<large, 512, 0, stream>>>(w.sorted_positions, w.starts, w.first_part + count,
                                              static_cast<const bf16*>(gradient), w.sums, hidden, count);
  scatter_kernel<<<large, 512, 0, stream>>>(w.sorted_keys, w.runs, w.counts, w.first_part, w.first_part + count, w.sums,
                                            static_cast<bf16*>(table_gradient), hidden);
}

}  // namespace pipewright::kernels
