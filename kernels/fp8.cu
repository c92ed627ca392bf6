// See fp8.hpp. Transposed outputs go through shared memory so that both sides of the copy are contiguous.
#include "common.cuh"
#include "fp8.hpp"

namespace pipewright::kernels {
namespace {

constexpr int kWidth = 8;
using fp8 = __nv_fp8_storage_t;

__device__ __forceinline__ fp8 quantize(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

__global__ void zero_kernel(float* amax) { amax[0] = 0; }

__global__ void __launch_bounds__(512) amax_kernel(const bf16* in, float* amax, std::int64_t vectors) {
  __shared__ float scratch[32];
  float most = 0;
  for (std::int64_t i = blockIdx.x * 512ll + threadIdx.x; i < vectors; i += gridDim.x * 512ll) {
    const auto x = load<bf16, kWidth>(in + i * kWidth);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most = fmaxf(most, fabsf(to_float(x.v[j])));
  }
  most = block_max(most, scratch);
  if (threadIdx.x == 0)
    atomicMax(reinterpret_cast<int*>(amax), __float_as_int(most));  // amax >= 0: ordered as integers
}

__global__ void scale_kernel(float* amax) {
  const float scale = 448.0f / amax[0];
  amax[1] = amax[0] > 0 && isfinite(scale) ? scale : 1.0f;
}

__global__ void __launch_bounds__(256) cast_kernel(const bf16* in, const float* scale, fp8* out, std::int64_t vectors) {
  const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= vectors) return;
  const float s = scale[1];
  const auto low = load<bf16, kWidth>(in + i * 16), high = load<bf16, kWidth>(in + i * 16 + kWidth);
  Vec<fp8, 16> y;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    y.v[j] = quantize(to_float(low.v[j]) * s);
    y.v[j + kWidth] = quantize(to_float(high.v[j]) * s);
  }
  store(out + i * 16, y);
}

// A block takes a 64 x 128 tile: 16-byte loads, 8-byte row-wise stores, transposed 16-byte stores from shared memory.
constexpr int kTileRows = 64, kTileCols = 128;
__global__ void __launch_bounds__(256) cast_transpose_kernel(const bf16* in, const float* scale, fp8* out,
                                                             fp8* transposed, std::int64_t rows, std::int64_t cols) {
  __shared__ fp8 tile[kTileCols][kTileRows + 4];
  const float s = scale[1];
  const std::int64_t row0 = blockIdx.y * static_cast<std::int64_t>(kTileRows),
                     col0 = blockIdx.x * static_cast<std::int64_t>(kTileCols);
  const int c = (threadIdx.x % 16) * kWidth;
  Vec<bf16, kWidth> x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = load<bf16, kWidth>(in + (row0 + threadIdx.x / 16 + i * 16) * cols + col0 + c);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = threadIdx.x / 16 + i * 16;
    Vec<fp8, kWidth> y;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) tile[c + j][r] = y.v[j] = quantize(to_float(x[i].v[j]) * s);
    store(out + (row0 + r) * cols + col0 + c, y);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int k = threadIdx.x + i * 256, column = k / 4, r = (k % 4) * 16;
    Vec<fp8, 16> y;
#pragma unroll
    for (int j = 0; j < 16; j += 4) store(y.v + j, load<fp8, 4>(&tile[column][r + j]));
    store(transposed + (col0 + column) * rows + row0 + r, y);
  }
}

__global__ void __launch_bounds__(256) transpose_kernel(const fp8* in, fp8* out, std::int64_t rows, std::int64_t cols) {
  __shared__ fp8 tile[kTileCols][kTileRows + 4];
  const std::int64_t row0 = blockIdx.y * static_cast<std::int64_t>(kTileRows),
                     col0 = blockIdx.x * static_cast<std::int64_t>(kTileCols);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int k = threadIdx.x + i * 256, r = k / 8, c = (k % 8) * 16;
    const auto x = load<fp8, 16>(in + (row0 + r) * cols + col0 + c);
#pragma unroll
    for (int j = 0; j < 16; ++j) tile[c + j][r] = x.v[j];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int k = threadIdx.x + i * 256, column = k / 4, r = (k % 4) * 16;
    Vec<fp8, 16> y;
#pragma unroll
    for (int j = 0; j < 16; j += 4) store(y.v + j, load<fp8, 4>(&tile[column][r + j]));
    store(out + (col0 + column) * rows + row0 + r, y);
  }
}

// A block takes a 128 x 128 tile; half a warp owns a row of it, then eight threads a column.
__global__ void __launch_bounds__(256)
    blockwise_kernel(const bf16* in, fp8* out, float* scales, fp8* transposed, float* transposed_scales,
                     std::int64_t rows, std::int64_t cols) {
  __shared__ bf16 tile[128][128 + 8];
  const std::int64_t row0 = blockIdx.y * 128ll, col0 = blockIdx.x * 128ll;
  for (int i = 0; i < 8; ++i) {
    const int r = threadIdx.x / 16 + i * 16, c = (threadIdx.x % 16) * kWidth;
    const auto x = load<bf16, kWidth>(in + (row0 + r) * cols + col0 + c);
    store(&tile[r][c], x);
    float most = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) most = fmaxf(most, fabsf(to_float(x.v[j])));
    for (int o = 8; o > 0; o >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
    const float scale = 448.0f / fmaxf(most, 1e-12f);
    Vec<fp8, kWidth> y;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y.v[j] = quantize(to_float(x.v[j]) * scale);
    store(out + (row0 + r) * cols + col0 + c, y);
    if (threadIdx.x % 16 == 0) scales[blockIdx.x * rows + row0 + r] = 1.0f / scale;
  }
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    const int column = threadIdx.x % 32 + i * 32, part = threadIdx.x / 32;  // 16 rows each
    __shared__ float most[8][128];
    float m = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j) m = fmaxf(m, fabsf(to_float(tile[part * 16 + j][column])));
    most[part][column] = m;
    __syncthreads();
    for (int p = 0; p < 8; ++p) m = fmaxf(m, most[p][column]);
    const float scale = 448.0f / fmaxf(m, 1e-12f);
    Vec<fp8, 16> y;
#pragma unroll
    for (int j = 0; j < 16; ++j) y.v[j] = quantize(to_float(tile[part * 16 + j][column]) * scale);
    store(transposed + (col0 + column) * rows + row0 + part * 16, y);
    if (part == 0) transposed_scales[blockIdx.y * cols + col0 + column] = 1.0f / scale;
  }
}

// For tensors that do not fill their tiles: 128 threads take 128 rows x 64 columns, in subtiles of 4 x 2 a thread, and
// ask of every element whether it exists (the geometry of TE's cast_transpose_general_kernel). A tensor of one row
// keeps a 128th of each tile busy.
constexpr int kAnyRows = 128, kAnyCols = 64, kSubRows = 4, kSubCols = 2, kWarp = 32, kWarps = 4;

__global__ void __launch_bounds__(kWarp* kWarps)
    cast_transpose_any_kernel(const bf16* __restrict__ in, const float* amax_and_scale, fp8* __restrict__ out,
                              fp8* __restrict__ transposed, std::size_t rows, std::size_t cols) {
  struct Column {
    fp8 v[kSubRows];
  };
  __shared__ Column shared[kWarp][kWarp + 1];
  const std::size_t tiles_down = (rows + kAnyRows - 1) / kAnyRows;
  const std::size_t row0 = blockIdx.x % tiles_down * kAnyRows, col0 = blockIdx.x / tiles_down * kAnyCols;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const float scale = amax_and_scale[1];
  Column mine[kSubCols][kWarp / kWarps];
#pragma unroll
  for (int i = 0; i < kWarp / kWarps; ++i) {
#pragma unroll
    for (int r = 0; r < kSubRows; ++r) {
      const std::size_t row = row0 + (warp + i * kWarps) * kSubRows + r, col = col0 + lane * kSubCols;
      if (row >= rows) continue;
#pragma unroll
      for (int c = 0; c < kSubCols; ++c) {
        if (col + c >= cols) continue;
        const fp8 y = quantize(to_float(in[row * cols + col + c]) * scale);
        out[row * cols + col + c] = y;
        mine[c][i].v[r] = y;
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kSubCols; ++c) {
#pragma unroll
    for (int i = 0; i < kWarp / kWarps; ++i) shared[lane][warp + i * kWarps] = mine[c][i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarp / kWarps; ++i) {
      const std::size_t row = row0 + lane * kSubRows, col = col0 + (warp + i * kWarps) * kSubCols + c;
      if (col >= cols) continue;
#pragma unroll
      for (int r = 0; r < kSubRows; ++r)
        if (row + r < rows) transposed[col * rows + row + r] = shared[warp + i * kWarps][lane].v[r];
    }
    __syncthreads();
  }
}

}  // namespace

void amax_only(const void* in, float* amax_and_scale, std::int64_t elements, Stream stream) {
  const unsigned wanted = blocks_for(elements / kWidth, 512 * 2), blocks = wanted < 1056 ? wanted : 1056;
  amax_kernel<<<blocks, 512, 0, stream>>>(static_cast<const bf16*>(in), amax_and_scale, elements / kWidth);
}

void amax(const void* in, float* amax_and_scale, std::int64_t elements, Stream stream) {
  zero_kernel<<<1, 1, 0, stream>>>(amax_and_scale);
  amax_only(in, amax_and_scale, elements, stream);
  scale_kernel<<<1, 1, 0, stream>>>(amax_and_scale);
}

void cast_fp8(const void* in, const float* amax_and_scale, void* out, std::int64_t elements, Stream stream) {
  cast_kernel<<<blocks_for(elements / 16, 256), 256, 0, stream>>>(static_cast<const bf16*>(in), amax_and_scale,
                                                                  static_cast<fp8*>(out), elements / 16);
}

void cast_transpose_fp8(const void* in, const float* amax_and_scale, void* out, void* transposed, std::int64_t rows,
                        std::int64_t cols, Stream stream) {
  const dim3 grid(static_cast<unsigned>(cols / kTileCols), static_cast<unsigned>(rows / kTileRows));
  cast_transpose_kernel<<<grid, 256, 0, stream>>>(static_cast<const bf16*>(in), amax_and_scale, static_cast<fp8*>(out),
                                                  static_cast<fp8*>(transposed), rows, cols);
}

void cast_transpose_any_fp8(const void* in, const float* amax_and_scale, void* out, void* transposed, std::int64_t rows,
                            std::int64_t cols, Stream stream) {
  const auto blocks = (rows + kAnyRows - 1) / kAnyRows * ((cols + kAnyCols - 1) / kAnyCols);
  cast_transpose_any_kernel<<<static_cast<unsigned>(blocks), kWarp * kWarps, 0, stream>>>(
      static_cast<const bf16*>(in), amax_and_scale, static_cast<fp8*>(out), static_cast<fp8*>(transposed),
      static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
}

void transpose_fp8(const void* in, void* out, std::int64_t rows, std::int64_t cols, Stream stream) {
  const dim3 grid(static_cast<unsigned>(cols / kTileCols), static_cast<unsigned>(rows / kTileRows));
  transpose_kernel<<<grid, 256, 0, stream>>>(static_cast<const fp8*>(in), static_cast<fp8*>(out), rows, cols);
}

void quantize_blockwise_fp8(const void* in, void* out, float* scales, void* transposed, float* transposed_scales,
                            std::int64_t rows, std::int64_t cols, Stream stream) {
  const dim3 grid(static_cast<unsigned>(cols / 128), static_cast<unsigned>(rows / 128));
  blockwise_kernel<<<grid, 256, 0, stream>>>(static_cast<const bf16*>(in), static_cast<fp8*>(out), scales,
                                             static_cast<fp8*>(transposed), transposed_scales, rows, cols);
}

}  // namespace pipewright::kernels
