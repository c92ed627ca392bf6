// y = (x - mean) * rsigma * gamma, mean = 0 for RMSNorm. A block holds its row in registers (one pass over memory).
#include <type_traits>

#include "common.cuh"
#include "norm_kernels.hpp"

namespace pipewright::kernels {
namespace {

constexpr int kWidth = 8;  // bf16 in 16 bytes

template <bool Layer, int Threads, int Vecs>
__global__ void __launch_bounds__(Threads)
    forward(const bf16* x, const bf16* gamma, bf16* y, float* statistics, std::int64_t rows, int cols) {
  __shared__ float scratch[32];
  const std::int64_t row = blockIdx.x;
  float values[Vecs][kWidth];
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < Vecs; ++i) {
    const int c = (i * Threads + threadIdx.x) * kWidth;
    if (c >= cols) break;
    const auto in = load<bf16, kWidth>(x + row * cols + c);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[i][j] = to_float(in.v[j]);
      sum += values[i][j];
      squares += values[i][j] * values[i][j];
    }
  }
  float mean = 0;
  if (Layer) mean = block_sum(sum, scratch) / cols;
  const float variance = block_sum(squares, scratch) / cols - mean * mean;
  const float rsigma = rsqrtf(variance + 1e-5f);
  if (threadIdx.x == 0) {
    statistics[row] = rsigma;
    if (Layer) statistics[rows + row] = mean;
  }
#pragma unroll
  for (int i = 0; i < Vecs; ++i) {
    const int c = (i * Threads + threadIdx.x) * kWidth;
    if (c >= cols) break;
    const auto g = load<bf16, kWidth>(gamma + c);
    Vec<bf16, kWidth> out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) out.v[j] = from_float<bf16>((values[i][j] - mean) * rsigma * to_float(g.v[j]));
    store(y + row * cols + c, out);
  }
}

// Every block walks over rows; where registers allow (Ahead), it loads the next one before it finishes the current one.
template <bool Layer, bool Ahead, int Threads, int Vecs>
__global__ void __launch_bounds__(Threads, !Ahead || Vecs > 1 || Threads > 512 ? 1 : 1024 / Threads)
    backward(const bf16* __restrict__ x, const bf16* __restrict__ dy, const bf16* __restrict__ gamma,
             const float* __restrict__ statistics, bf16* __restrict__ dx, float* __restrict__ partials,
             std::int64_t rows, int cols) {
  using Part = Vec<bf16, kWidth>;
  constexpr int next = Ahead ? Vecs : 1;
  __shared__ float scratch[32];
  float dgamma[Vecs][kWidth] = {}, dbeta[Layer ? Vecs : 1][kWidth] = {};
  Part xs[Vecs], ds[Vecs], next_xs[next], next_ds[next];
  const auto load_row = [&](std::int64_t row, Part* to_x, Part* to_d) {
#pragma unroll
    for (int i = 0; i < Vecs; ++i) {
      const int c = (i * Threads + threadIdx.x) * kWidth;
      if (c >= cols || row >= rows) break;
      to_x[i] = load<bf16, kWidth>(x + row * cols + c);
      to_d[i] = load<bf16, kWidth>(dy + row * cols + c);
    }
  };
  if (Ahead) load_row(blockIdx.x, xs, ds);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (Ahead)
      load_row(row + gridDim.x, next_xs, next_ds);
    else
      load_row(row, xs, ds);
    const float rsigma = statistics[row], mean = Layer ? statistics[rows + row] : 0.0f;
    float dot = 0, total = 0;
#pragma unroll
    for (int i = 0; i < Vecs; ++i) {
      const int c = (i * Threads + threadIdx.x) * kWidth;
      if (c >= cols) break;
      const auto g = load<bf16, kWidth>(gamma + c);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float normal = (to_float(xs[i].v[j]) - mean) * rsigma, d = to_float(ds[i].v[j]);
        dgamma[i][j] += d * normal;
        if (Layer) dbeta[Layer ? i : 0][j] += d;
        dot += d * to_float(g.v[j]) * normal;
        if (Layer) total += d * to_float(g.v[j]);
      }
    }
    dot = block_sum(dot, scratch) / cols;
    if (Layer) total = block_sum(total, scratch) / cols;
#pragma unroll
    for (int i = 0; i < Vecs; ++i) {
      const int c = (i * Threads + threadIdx.x) * kWidth;
      if (c >= cols) break;
      const auto g = load<bf16, kWidth>(gamma + c);
      Part out;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float normal = (to_float(xs[i].v[j]) - mean) * rsigma;
        out.v[j] = from_float<bf16>(rsigma * (to_float(ds[i].v[j]) * to_float(g.v[j]) - total - normal * dot));
      }
      store(dx + row * cols + c, out);
      if (!Ahead) continue;
      xs[i] = next_xs[i % next];
      ds[i] = next_ds[i % next];
    }
  }
  const auto store_sums = [&](float* to, const float(&sums)[kWidth]) {
    Vec<float, 4> low, high;
#pragma unroll
    for (int j = 0; j < 4; ++j) low.v[j] = sums[j], high.v[j] = sums[j + 4];
    store(to, low);
    store(to + 4, high);
  };
#pragma unroll
  for (int i = 0; i < Vecs; ++i) {
    const int c = (i * Threads + threadIdx.x) * kWidth;
    if (c >= cols) break;
    store_sums(partials + static_cast<std::int64_t>(blockIdx.x) * cols + c, dgamma[i]);
    if (Layer)
      store_sums(partials + static_cast<std::int64_t>(gridDim.x + blockIdx.x) * cols + c, dbeta[Layer ? i : 0]);
  }
}

// Rows of at most 256 elements (norms of a head's query and key): half a warp a row, as TE's general kernels.
constexpr int kNarrow = 256, kNarrowVecs = 2, kNarrowRows = 8, kNarrowResident = 11;

__device__ __forceinline__ float half_warp_sum(float x) {
  for (int o = 8; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}

template <bool Layer>
__global__ void __launch_bounds__(128)
    narrow_forward(const bf16* x, const bf16* gamma, bf16* y, float* statistics, std::int64_t rows, int cols) {
  const std::int64_t row = blockIdx.x * static_cast<std::int64_t>(kNarrowRows) + threadIdx.x / 16;
  float values[kNarrowVecs][kWidth] = {}, sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kNarrowVecs; ++i) {
    const int c = (i * 16 + threadIdx.x % 16) * kWidth;
    if (c >= cols || row >= rows) continue;
    const auto in = load<bf16, kWidth>(x + row * cols + c);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[i][j] = to_float(in.v[j]);
      sum += values[i][j];
      squares += values[i][j] * values[i][j];
    }
  }
  const float mean = Layer ? half_warp_sum(sum) / cols : 0.0f;
  const float rsigma = rsqrtf(half_warp_sum(squares) / cols - mean * mean + 1e-5f);
  if (row >= rows) return;
  if (threadIdx.x % 16 == 0) {
    statistics[row] = rsigma;
    if (Layer) statistics[rows + row] = mean;
  }
#pragma unroll
  for (int i = 0; i < kNarrowVecs; ++i) {
    const int c = (i * 16 + threadIdx.x % 16) * kWidth;
    if (c >= cols) continue;
    const auto g = load<bf16, kWidth>(gamma + c);
    Vec<bf16, kWidth> out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) out.v[j] = from_float<bf16>((values[i][j] - mean) * rsigma * to_float(g.v[j]));
    store(y + row * cols + c, out);
  }
}

template <bool Layer>
__global__ void __launch_bounds__(128)
    narrow_backward(const bf16* x, const bf16* dy, const bf16* gamma, const float* statistics, bf16* dx,
                    float* partials, std::int64_t rows, int cols) {
  float dgamma[kNarrowVecs][kWidth] = {};
  const std::int64_t step = gridDim.x * static_cast<std::int64_t>(kNarrowRows);
  for (std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kNarrowRows); first < rows; first += step) {
    const std::int64_t row = first + threadIdx.x / 16;
    const float rsigma = row < rows ? statistics[row] : 0.0f,
                mean = Layer && row < rows ? statistics[rows + row] : 0.0f;
    float normals[kNarrowVecs][kWidth] = {}, weighted[kNarrowVecs][kWidth] = {}, dot = 0, total = 0;
#pragma unroll
    for (int i = 0; i < kNarrowVecs; ++i) {
      const int c = (i * 16 + threadIdx.x % 16) * kWidth;
      if (c >= cols || row >= rows) continue;
      const auto in = load<bf16, kWidth>(x + row * cols + c), d = load<bf16, kWidth>(dy + row * cols + c),
                 g = load<bf16, kWidth>(gamma + c);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        normals[i][j] = (to_float(in.v[j]) - mean) * rsigma;
        weighted[i][j] = to_float(d.v[j]) * to_float(g.v[j]);
        dgamma[i][j] += to_float(d.v[j]) * normals[i][j];
        dot += weighted[i][j] * normals[i][j];
        if (Layer) total += weighted[i][j];
      }
    }
    dot = half_warp_sum(dot) / cols;
    total = half_warp_sum(total) / cols;
    if (row >= rows) continue;
#pragma unroll
    for (int i = 0; i < kNarrowVecs; ++i) {
      const int c = (i * 16 + threadIdx.x % 16) * kWidth;
      if (c >= cols) continue;
      Vec<bf16, kWidth> out;
#pragma unroll
      for (int j = 0; j < kWidth; ++j)
        out.v[j] = from_float<bf16>(rsigma * (weighted[i][j] - total - normals[i][j] * dot));
      store(dx + row * cols + c, out);
    }
  }
  // One row of partial sums a block: the rows of a block in shared memory.
  __shared__ float tile[kNarrowRows][kNarrow];
#pragma unroll
  for (int i = 0; i < kNarrowVecs; ++i) {
    const int c = (i * 16 + threadIdx.x % 16) * kWidth;
    for (int j = 0; j < kWidth && c < cols; ++j) tile[threadIdx.x / 16][c + j] = dgamma[i][j];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < cols; c += 128) {
    float sum = 0;
    for (int r = 0; r < kNarrowRows; ++r) sum += tile[r][c];
    partials[static_cast<std::int64_t>(blockIdx.x) * cols + c] = sum;
  }
}

// TE's general finalize kernel: one block for all columns of a narrow row, a dependent load an iteration.
__global__ void __launch_bounds__(128) narrow_finalize(const float* partials, bf16* out, int blocks, int cols) {
  __shared__ float tile[4][kNarrow];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int c = lane * 4; c < cols; c += 128) {
    Vec<float, 4> sum{};
#pragma unroll 1
    for (int r = warp; r < blocks; r += 4) {
      const auto x = load<float, 4>(partials + static_cast<std::int64_t>(r) * cols + c);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.v[j] += x.v[j];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[warp][c + j] = sum.v[j];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < cols; c += 128)
    out[c] = from_float<bf16>(tile[0][c] + tile[1][c] + tile[2][c] + tile[3][c]);
}

// Column sums of the partials; blockIdx.y selects dgamma or dbeta. 32 columns a block, 32 row groups.
__global__ void __launch_bounds__(1024) finalize(const float* partials, bf16* out, int blocks, int cols) {
  __shared__ float tile[32][33];
  const int c = blockIdx.x * 32 + threadIdx.x;
  const float* in = partials + static_cast<std::int64_t>(blockIdx.y) * blocks * cols;
  float sum = 0;
  if (c < cols)
#pragma unroll 9
    for (int r = threadIdx.y; r < blocks; r += 32) sum += in[static_cast<std::int64_t>(r) * cols + c];
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const float total = warp_sum(tile[threadIdx.x][threadIdx.y]);
  const int column = blockIdx.x * 32 + threadIdx.y;
  if (threadIdx.x == 0 && column < cols)
    out[static_cast<std::int64_t>(blockIdx.y) * cols + column] = from_float<bf16>(total);
}

template <int N>
using Int = std::integral_constant<int, N>;

// Threads x vectors that hold a row of `cols` in registers.
template <class Launch>
void for_width(std::int64_t cols, Launch launch) {
  const std::int64_t vectors = (cols + kWidth - 1) / kWidth;
  if (vectors <= 128)
    launch(Int<128>{}, Int<1>{});
  else if (vectors <= 256)
    launch(Int<128>{}, Int<2>{});
  else if (vectors <= 512)
    launch(Int<256>{}, Int<2>{});
  else if (vectors <= 768)
    launch(Int<256>{}, Int<3>{});
  else if (vectors <= 1024)
    launch(Int<512>{}, Int<2>{});
  else if (vectors <= 2048)
    launch(Int<512>{}, Int<4>{});
  else
    launch(Int<1024>{}, Int<4>{});
}

// The same for the backward pass, which holds two rows of two tensors and the partial sums: few elements a thread.
template <class Launch>
void for_width_backward(std::int64_t cols, Launch launch) {
  const std::int64_t vectors = (cols + kWidth - 1) / kWidth;
  if (vectors <= 128)
    launch(std::true_type{}, Int<128>{}, Int<1>{});
  else if (vectors <= 256)
    launch(std::true_type{}, Int<256>{}, Int<1>{});
  else if (vectors <= 512)
    launch(std::true_type{}, Int<512>{}, Int<1>{});
  else if (vectors <= 640)
    launch(std::true_type{}, Int<640>{}, Int<1>{});
  else if (vectors <= 1024)
    launch(std::true_type{}, Int<512>{}, Int<2>{});
  else if (vectors <= 2048)
    launch(std::false_type{}, Int<512>{}, Int<4>{});
  else
    launch(std::false_type{}, Int<1024>{}, Int<4>{});
}

constexpr int kMostResident = 8;  // blocks an SM of the backward pass

}  // namespace

std::int64_t norm_partial_rows(int multiprocessors) { return 2ll * multiprocessors * kMostResident; }

void norm_forward(bool layer, const void* x, const void* gamma, void* y, float* statistics, std::int64_t rows,
                  std::int64_t cols, Stream stream) {
  if (cols <= kNarrow) {
    const auto kernel = layer ? narrow_forward<true> : narrow_forward<false>;
    kernel<<<blocks_for(rows, kNarrowRows), 128, 0, stream>>>(static_cast<const bf16*>(x),
                                                              static_cast<const bf16*>(gamma), static_cast<bf16*>(y),
                                                              statistics, rows, static_cast<int>(cols));
    return;
  }
  for_width(cols, [&](auto threads, auto vecs) {
    const auto kernel = layer ? forward<true, threads.value, vecs.value> : forward<false, threads.value, vecs.value>;
    kernel<<<static_cast<unsigned>(rows), threads.value, 0, stream>>>(
        static_cast<const bf16*>(x), static_cast<const bf16*>(gamma), static_cast<bf16*>(y), statistics, rows,
        static_cast<int>(cols));
  });
}

void norm_backward(bool layer, const void* x, const void* dy, const void* gamma, const float* statistics, void* dx,
                   float* partials, void* dgamma, std::int64_t rows, std::int64_t cols, int multiprocessors,
                   Stream stream) {
  unsigned blocks = 0;
  if (cols <= kNarrow) {
    const std::int64_t needed = (rows + kNarrowRows - 1) / kNarrowRows;
    const std::int64_t most = std::int64_t{kNarrowResident} * multiprocessors;
    blocks = static_cast<unsigned>(needed < most ? needed : most);
    const auto kernel = layer ? narrow_backward<true> : narrow_backward<false>;
    kernel<<<blocks, 128, 0, stream>>>(static_cast<const bf16*>(x), static_cast<const bf16*>(dy),
                                       static_cast<const bf16*>(gamma), statistics, static_cast<bf16*>(dx), partials,
                                       rows, static_cast<int>(cols));
    narrow_finalize<<<1, 128, 0, stream>>>(partials, static_cast<bf16*>(dgamma), static_cast<int>(blocks),
                                           static_cast<int>(cols));
    return;
  }
  for_width_backward(cols, [&](auto ahead, auto threads, auto vecs) {
    const auto kernel = layer ? backward<true, ahead.value, threads.value, vecs.value>
                              : backward<false, ahead.value, threads.value, vecs.value>;
    int resident = 1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads.value, 0);
    const std::int64_t most = std::int64_t{multiprocessors} * (resident < kMostResident ? resident : kMostResident);
    blocks = static_cast<unsigned>(rows < most ? rows : most);
    kernel<<<blocks, threads.value, 0, stream>>>(static_cast<const bf16*>(x), static_cast<const bf16*>(dy),
                                                 static_cast<const bf16*>(gamma), statistics, static_cast<bf16*>(dx),
                                                 partials, rows, static_cast<int>(cols));
  });
  finalize<<<dim3(blocks_for(cols, 32), layer ? 2 : 1), dim3(32, 32), 0, stream>>>(
      partials, static_cast<bf16*>(dgamma), static_cast<int>(blocks), static_cast<int>(cols));
}

}  // namespace pipewright::kernels
