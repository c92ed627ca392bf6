// y = (x - mean) * rsigma * gamma, mean = 0 for RMSNorm. A block holds its row in registers (one pass over memory).
#include <type_traits>

#include "common.cuh"
#include "norm.hpp"

namespace pipewright::kernels {
namespace {

constexpr int kWidth = 8;  // bf16 in 16 bytes
constexpr int kSms = 132;  // of a Hopper part

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

constexpr int resident(int threads, int vecs) {
  return vecs > 1 || threads > 512 ? 1 : 1024 / threads;
}  // blocks an SM

// Every block walks over rows and loads the next one before it finishes the current one.
template <bool Layer, int Threads, int Vecs>
__global__ void __launch_bounds__(Threads, resident(Threads, Vecs))
    backward(const bf16* x, const bf16* dy, const bf16* gamma, const float* statistics, bf16* dx, float* partials,
             std::int64_t rows, int cols) {
  using Part = Vec<bf16, kWidth>;
  __shared__ float scratch[32];
  float dgamma[Vecs][kWidth] = {}, dbeta[Layer ? Vecs : 1][kWidth] = {};
  Part xs[Vecs], ds[Vecs], next_xs[Vecs], next_ds[Vecs];
  const auto load_row = [&](std::int64_t row, Part(&to_x)[Vecs], Part(&to_d)[Vecs]) {
#pragma unroll
    for (int i = 0; i < Vecs; ++i) {
      const int c = (i * Threads + threadIdx.x) * kWidth;
      if (c >= cols || row >= rows) break;
      to_x[i] = load<bf16, kWidth>(x + row * cols + c);
      to_d[i] = load<bf16, kWidth>(dy + row * cols + c);
    }
  };
  load_row(blockIdx.x, xs, ds);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    load_row(row + gridDim.x, next_xs, next_ds);
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
      xs[i] = next_xs[i];
      ds[i] = next_ds[i];
    }
  }
#pragma unroll
  for (int i = 0; i < Vecs; ++i) {
    const int c = (i * Threads + threadIdx.x) * kWidth;
    if (c >= cols) break;
    for (int j = 0; j < kWidth; ++j) {
      partials[static_cast<std::int64_t>(blockIdx.x) * cols + c + j] = dgamma[i][j];
      if (Layer) partials[static_cast<std::int64_t>(gridDim.x + blockIdx.x) * cols + c + j] = dbeta[Layer ? i : 0][j];
    }
  }
}

// Column sums of the partials; blockIdx.y selects dgamma or dbeta. 32 columns a block, 32 row groups.
__global__ void __launch_bounds__(1024) finalize(const float* partials, bf16* out, int blocks, int cols) {
  __shared__ float tile[32][33];
  const int c = blockIdx.x * 32 + threadIdx.x;
  const float* in = partials + static_cast<std::int64_t>(blockIdx.y) * blocks * cols;
  float sum = 0;
  if (c < cols)
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
    launch(Int<128>{}, Int<1>{});
  else if (vectors <= 256)
    launch(Int<256>{}, Int<1>{});
  else if (vectors <= 512)
    launch(Int<512>{}, Int<1>{});
  else if (vectors <= 640)
    launch(Int<640>{}, Int<1>{});
  else if (vectors <= 1024)
    launch(Int<512>{}, Int<2>{});
  else if (vectors <= 2048)
    launch(Int<1024>{}, Int<2>{});
  else
    launch(Int<1024>{}, Int<4>{});
}

}  // namespace

std::int64_t norm_partial_rows() { return 2 * kSms * resident(128, 1); }

void norm_forward(bool layer, const void* x, const void* gamma, void* y, float* statistics, std::int64_t rows,
                  std::int64_t cols, Stream stream) {
  for_width(cols, [&](auto threads, auto vecs) {
    const auto kernel = layer ? forward<true, threads.value, vecs.value> : forward<false, threads.value, vecs.value>;
    kernel<<<static_cast<unsigned>(rows), threads.value, 0, stream>>>(
        static_cast<const bf16*>(x), static_cast<const bf16*>(gamma), static_cast<bf16*>(y), statistics, rows,
        static_cast<int>(cols));
  });
}

void norm_backward(bool layer, const void* x, const void* dy, const void* gamma, const float* statistics, void* dx,
                   float* partials, void* dgamma, std::int64_t rows, std::int64_t cols, Stream stream) {
  unsigned blocks = 0;
  for_width_backward(cols, [&](auto threads, auto vecs) {
    const std::int64_t most = kSms * resident(threads.value, vecs.value);
    blocks = static_cast<unsigned>(rows < most ? rows : most);
    const auto kernel = layer ? backward<true, threads.value, vecs.value> : backward<false, threads.value, vecs.value>;
    kernel<<<blocks, threads.value, 0, stream>>>(static_cast<const bf16*>(x), static_cast<const bf16*>(dy),
                                                 static_cast<const bf16*>(gamma), statistics, static_cast<bf16*>(dx),
                                                 partials, rows, static_cast<int>(cols));
  });
  finalize<<<dim3(blocks_for(cols, 32), layer ? 2 : 1), dim3(32, 32), 0, stream>>>(
      partials, static_cast<bf16*>(dgamma), static_cast<int>(blocks), static_cast<int>(cols));
}

}  // namespace pipewright::kernels
