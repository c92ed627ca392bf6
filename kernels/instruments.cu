// See instruments.hpp.
#include "common.cuh"
#include "instruments.hpp"

namespace pipewright::kernels {
namespace {

__device__ __forceinline__ std::int64_t nanoseconds() {
  std::int64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ std::uint64_t hash(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Box-Muller from one 64-bit hash an element.
__device__ __forceinline__ float normal(std::uint64_t i, std::uint64_t seed) {
  const std::uint64_t h = hash(i * 0x9e3779b97f4a7c15ull + seed);
  const float u = (static_cast<std::uint32_t>(h >> 40) + 1) * 0x1p-24f,
              v = static_cast<std::uint32_t>(h & 0xffffff) * 0x1p-24f;
  return sqrtf(-2.0f * __logf(u)) * __cosf(6.2831853f * v);
}

template <class T>
__global__ void normal_kernel(T* out, std::int64_t n, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)
    out[i] = from_float<T>(normal(i, seed));
}

__global__ void normal_fp8_kernel(__nv_fp8_storage_t* out, std::int64_t n, std::uint64_t seed,
                                  __nv_fp8_interpretation_t kind, float deviation) {
  for (std::int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)
    out[i] = __nv_cvt_float_to_fp8(normal(i, seed) * deviation, __NV_SATFINITE, kind);
}

__global__ void gate_kernel(const volatile int* open, int* timed_out, std::int64_t limit_ns) {
  const std::int64_t start = nanoseconds();
  while (!*open)
    if (nanoseconds() - start > limit_ns) {
      *timed_out = 1;
      return;
    }
}

__global__ void clock_kernel(std::int64_t* out, std::int64_t ns) {
  const std::int64_t t0 = nanoseconds(), c0 = clock64();
  std::int64_t t1, c1;
  do {
    t1 = nanoseconds();
    c1 = clock64();
  } while (t1 - t0 < ns);
  out[0] = c1 - c0;
  out[1] = t1 - t0;
  out[2] = t0;
}

__global__ void empty_kernel() {}

}  // namespace

void fill_normal(Format format, void* out, std::int64_t elements, std::uint64_t seed, Stream stream) {
  switch (format) {
    case Format::bf16:
      normal_kernel<<<1056, 256, 0, stream>>>(static_cast<bf16*>(out), elements, seed);
      break;
    case Format::f32:
      normal_kernel<<<1056, 256, 0, stream>>>(static_cast<float*>(out), elements, seed);
      break;
    case Format::e4m3:
      normal_fp8_kernel<<<1056, 256, 0, stream>>>(static_cast<__nv_fp8_storage_t*>(out), elements, seed, __NV_E4M3,
                                                  112);
      break;
    case Format::e5m2:
      normal_fp8_kernel<<<1056, 256, 0, stream>>>(static_cast<__nv_fp8_storage_t*>(out), elements, seed, __NV_E5M2,
                                                  14336);
      break;
  }
}

void gate(const volatile int* open, int* timed_out, std::int64_t limit_ns, Stream stream) {
  gate_kernel<<<1, 1, 0, stream>>>(open, timed_out, limit_ns);
}

void clock_probe(std::int64_t* out, std::int64_t ns, Stream stream) { clock_kernel<<<1, 1, 0, stream>>>(out, ns); }

void empty(Stream stream) { empty_kernel<<<1, 1, 0, stream>>>(); }

}  // namespace pipewright::kernels
