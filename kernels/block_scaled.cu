// See block_scaled.hpp. A block of threads takes a tile through shared memory and writes it twice.
#include <cuda_fp4.h>

#include "block_scaled.hpp"
#include "common.cuh"

namespace pipewright::kernels {
namespace {

constexpr int kWidth = 8;
constexpr float kMostE4m3 = 448, kMostE2m1 = 6;

// MXFP8: 32 rows x 128 columns, 128 threads; each casts 32 elements of a row, then 32 of a column.
constexpr int kMxRows = 32, kMxCols = 128, kMxBlock = 32;

__device__ __forceinline__ float inverse_of_e8m0(std::uint8_t scale) {
  return __int_as_float((254 - static_cast<int>(scale)) << 23);  // 2^(127 - scale)
}

__global__ void __launch_bounds__(128)
    mxfp8_kernel(const bf16* in, std::uint8_t* rowwise, std::uint8_t* row_scales, std::uint8_t* columnwise,
                 std::uint8_t* column_scales, std::int64_t rows, std::int64_t cols) {
  __shared__ bf16 tile[kMxRows][kMxCols + kWidth];
  const std::int64_t row0 = blockIdx.y * static_cast<std::int64_t>(kMxRows),
                     col0 = blockIdx.x * static_cast<std::int64_t>(kMxCols);
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = t / 16 + i * 8, c = t % 16 * kWidth;
    store(&tile[r][c], load<bf16, kWidth>(in + (row0 + r) * cols + col0 + c));
  }
  __syncthreads();
  const auto scale_of = [](float most) {
    return __nv_cvt_float_to_e8m0(most / kMostE4m3, __NV_SATFINITE, cudaRoundPosInf);
  };
  {
    const int r = t / 4, c = t % 4 * kMxBlock;
    float most = 0;
#pragma unroll
    for (int j = 0; j < kMxBlock; ++j) most = fmaxf(most, fabsf(to_float(tile[r][c + j])));
    const std::uint8_t scale = scale_of(most);
    const float factor = inverse_of_e8m0(scale);
    row_scales[(row0 + r) * (cols / kMxBlock) + (col0 + c) / kMxBlock] = scale;
#pragma unroll
    for (int j = 0; j < kMxBlock; j += 16) {
      Vec<std::uint8_t, 16> y;
#pragma unroll
      for (int i = 0; i < 16; ++i)
        y.v[i] = __nv_cvt_float_to_fp8(to_float(tile[r][c + j + i]) * factor, __NV_SATFINITE, __NV_E4M3);
      store(rowwise + (row0 + r) * cols + col0 + c + j, y);
    }
  }
  float most = 0;
#pragma unroll
  for (int r = 0; r < kMxRows; ++r) most = fmaxf(most, fabsf(to_float(tile[r][t])));
  const std::uint8_t scale = scale_of(most);
  const float factor = inverse_of_e8m0(scale);
  column_scales[row0 / kMxBlock * cols + col0 + t] = scale;
#pragma unroll
  for (int r = 0; r < kMxRows; ++r)
    columnwise[(row0 + r) * cols + col0 + t] =
        __nv_cvt_float_to_fp8(to_float(tile[r][t]) * factor, __NV_SATFINITE, __NV_E4M3);
}

// NVFP4: 64 x 64, 256 threads; each casts 16 elements of a row, then 16 of a column.
constexpr int kFp4Tile = 64, kFp4Block = 16;

__device__ __forceinline__ std::uint8_t scale_and_cast(const float (&x)[kFp4Block], float whole,
                                                       Vec<std::uint8_t, 8>& out) {
  float most = 0;
#pragma unroll
  for (float v : x) most = fmaxf(most, fabsf(v));
  const std::uint8_t scale = __nv_cvt_float_to_fp8(most / kMostE2m1 * whole, __NV_SATFINITE, __NV_E4M3);
  const __half_raw wide = __nv_cvt_fp8_to_halfraw(scale, __NV_E4M3);
  const float used = __half2float(__half(wide));
  const float factor = used > 0 ? whole / used : 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    out.v[j] =
        __nv_cvt_float2_to_fp4x2(make_float2(x[2 * j] * factor, x[2 * j + 1] * factor), __NV_E2M1, cudaRoundNearest);
  return scale;
}

__global__ void __launch_bounds__(256)
    nvfp4_kernel(const bf16* in, const float* amax, std::uint8_t* rowwise, std::uint8_t* row_scales,
                 std::uint8_t* transposed, std::uint8_t* column_scales, std::int64_t rows, std::int64_t cols) {
  __shared__ bf16 tile[kFp4Tile][kFp4Tile + kWidth];
  const std::int64_t row0 = blockIdx.y * static_cast<std::int64_t>(kFp4Tile),
                     col0 = blockIdx.x * static_cast<std::int64_t>(kFp4Tile);
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = t / 8 + i * 32, c = t % 8 * kWidth;
    store(&tile[r][c], load<bf16, kWidth>(in + (row0 + r) * cols + col0 + c));
  }
  __syncthreads();
  const float whole = amax[0] > 0 ? kMostE4m3 * kMostE2m1 / amax[0] : 1;
  const int line = t / 4, first = t % 4 * kFp4Block;
  float x[kFp4Block];
  Vec<std::uint8_t, 8> y;
#pragma unroll
  for (int j = 0; j < kFp4Block; ++j) x[j] = to_float(tile[line][first + j]);
  row_scales[(row0 + line) * (cols / kFp4Block) + (col0 + first) / kFp4Block] = scale_and_cast(x, whole, y);
  store(rowwise + ((row0 + line) * cols + col0 + first) / 2, y);
#pragma unroll
  for (int j = 0; j < kFp4Block; ++j) x[j] = to_float(tile[first + j][line]);
  column_scales[(col0 + line) * (rows / kFp4Block) + (row0 + first) / kFp4Block] = scale_and_cast(x, whole, y);
  store(transposed + ((col0 + line) * rows + row0 + first) / 2, y);
}

dim3 tiles(std::int64_t rows, std::int64_t cols, int tile_rows, int tile_cols) {
  return {static_cast<unsigned>(cols / tile_cols), static_cast<unsigned>(rows / tile_rows)};
}

}  // namespace

void quantize_mxfp8(const void* in, void* rowwise, void* row_scales, void* columnwise, void* column_scales,
                    std::int64_t rows, std::int64_t cols, Stream stream) {
  mxfp8_kernel<<<tiles(rows, cols, kMxRows, kMxCols), 128, 0, stream>>>(
      static_cast<const bf16*>(in), static_cast<std::uint8_t*>(rowwise), static_cast<std::uint8_t*>(row_scales),
      static_cast<std::uint8_t*>(columnwise), static_cast<std::uint8_t*>(column_scales), rows, cols);
}

void quantize_nvfp4(const void* in, const float* amax_and_scale, void* rowwise, void* row_scales, void* transposed,
                    void* column_scales, std::int64_t rows, std::int64_t cols, Stream stream) {
  nvfp4_kernel<<<tiles(rows, cols, kFp4Tile, kFp4Tile), 256, 0, stream>>>(
      static_cast<const bf16*>(in), amax_and_scale, static_cast<std::uint8_t*>(rowwise),
      static_cast<std::uint8_t*>(row_scales), static_cast<std::uint8_t*>(transposed),
      static_cast<std::uint8_t*>(column_scales), rows, cols);
}

}  // namespace pipewright::kernels
