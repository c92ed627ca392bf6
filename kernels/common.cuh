// 16-byte accesses, conversions and reductions shared by the kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace pipewright::kernels {

using bf16 = __nv_bfloat16;

/// N elements that move as one access (16 bytes at most).
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
};

template <class T, int N>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}

template <class T, int N>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(float x) { return x; }
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}

/// Sum over the block, known to all threads. `scratch` holds 32 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}
__device__ __forceinline__ float block_max(float x, float* scratch) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return warp_max(lane < warps ? scratch[lane] : -3.4e38f);
}

/// Division by a constant divisor as multiply-high and shift (n < 2^31), the way strided tensor kernels index.
struct FastDivide {
  std::uint32_t divisor = 1, magic = 0, shift = 0;
  FastDivide() = default;
  explicit FastDivide(std::uint32_t d) : divisor(d) {
    while (shift < 32 && (1ull << shift) < d) ++shift;
    magic = static_cast<std::uint32_t>((((1ull << shift) - d) << 32) / d + 1);
  }
  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

/// Offsets of a point of up to four dimensions into three operands, dimension by dimension, as PyTorch's
/// OffsetCalculator finds them for tensors that are not contiguous.
struct Offsets {
  int dims = 0;
  FastDivide sizes[4];               // fastest first
  std::uint32_t strides[4][3] = {};  // of each operand, in elements
  __device__ __forceinline__ void find(std::uint32_t i, std::uint32_t (&out)[3]) const {
    out[0] = out[1] = out[2] = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      if (d == dims) break;
      const std::uint32_t quotient = sizes[d].quotient(i), at = i - quotient * sizes[d].divisor;
      i = quotient;
#pragma unroll
      for (int k = 0; k < 3; ++k) out[k] += at * strides[d][k];
    }
  }
};

/// One element whose type is known at run time only, as in PyTorch's kernels for mixed types (LoadWithCast): a branch
/// an element, so that loads do not overlap.
enum class Type : int { u8, i8, i16, i32, i64, f16, f32, f64, bf16 };
__device__ __forceinline__ float fetch(Type type, const void* p) {
  switch (type) {
    case Type::u8:
      return *static_cast<const std::uint8_t*>(p);
    case Type::i8:
      return *static_cast<const std::int8_t*>(p);
    case Type::i16:
      return *static_cast<const std::int16_t*>(p);
    case Type::i32:
      return static_cast<float>(*static_cast<const std::int32_t*>(p));
    case Type::i64:
      return static_cast<float>(*static_cast<const std::int64_t*>(p));
    case Type::f16:
      return __half2float(*static_cast<const __half*>(p));
    case Type::f32:
      return *static_cast<const float*>(p);
    case Type::f64:
      return static_cast<float>(*static_cast<const double*>(p));
    case Type::bf16:
      return __bfloat162float(*static_cast<const bf16*>(p));
  }
  return 0;
}
__device__ __forceinline__ void put(Type type, void* p, float x) {
  switch (type) {
    case Type::u8:
      *static_cast<std::uint8_t*>(p) = static_cast<std::uint8_t>(x);
      break;
    case Type::i8:
      *static_cast<std::int8_t*>(p) = static_cast<std::int8_t>(x);
      break;
    case Type::i16:
      *static_cast<std::int16_t*>(p) = static_cast<std::int16_t>(x);
      break;
    case Type::i32:
      *static_cast<std::int32_t*>(p) = static_cast<std::int32_t>(x);
      break;
    case Type::i64:
      *static_cast<std::int64_t*>(p) = static_cast<std::int64_t>(x);
      break;
    case Type::f16:
      *static_cast<__half*>(p) = __float2half(x);
      break;
    case Type::f32:
      *static_cast<float*>(p) = x;
      break;
    case Type::f64:
      *static_cast<double*>(p) = x;
      break;
    case Type::bf16:
      *static_cast<bf16*>(p) = __float2bfloat16_rn(x);
      break;
  }
}

inline unsigned blocks_for(std::int64_t n, std::int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

}  // namespace pipewright::kernels
