// The measuring bench: one GPU, its stream and libraries, memory full of random data, clocks and power.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "activity.hpp"
#include "kernels/instruments.hpp"
#include "pipewright/profile.hpp"

namespace pipewright::capture {

void check(cudaError_t status, const char* what);
void check(cublasStatus_t status, const char* what);

/// NVML, loaded when it is there: power and its limit. Every reading may be missing.
class Nvml {
 public:
  explicit Nvml(int cuda_device);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  std::optional<double> watts() const;
  std::optional<double> limit_watts() const;
  std::optional<double> joules() const;  ///< since the driver was loaded
  std::string driver() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

/// An operand: `slots` equal pieces of a region, so that repeated launches find cold data as a training step does.
struct Operand {
  char* base = nullptr;
  std::int64_t step = 0;
  int slots = 1;
  template <class T = void>
  T* at(int slot) const {
    return reinterpret_cast<T*>(base + step * (slot % slots));
  }
};

/// Large pieces of device memory, each of one kind of content. Operands of one op are taken one behind the other.
enum class Content { bf16, f32, e4m3, e5m2, scratch };

class Lab {
 public:
  /// `share`: of the free device memory that the regions may take.
  Lab(int device, double share);
  ~Lab();
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;

  /// Gives back all operands and makes random again what was written to; call before setting up an op.
  void reset();
  /// nullopt: the region is too small on this part. `written`: the op writes to it (always so in scratch).
  std::optional<Operand> take(Content content, std::int64_t elements, bool written = false);

  /// SM clock now, from cycles over time of a short kernel (works where NVML does not).
  double probe_mhz();

  int device = 0;
  profile::Device gpu;
  double max_mhz = 0;  ///< SM clock right after start, idle and cool
  cudaStream_t stream = nullptr;
  cublasLtHandle_t cublas = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;  ///< of cuBLAS, as Transformer Engine's on this GPU
  /// Device memory in use that the lab did not allocate: the context and the kernels loaded so far.
  std::int64_t context_bytes() const;
  std::int64_t total_bytes = 0;
  std::unique_ptr<ActivitySource> activities;
  std::unique_ptr<Nvml> nvml;
  int* gate_open = nullptr;       ///< pinned
  int* gate_timed_out = nullptr;  ///< pinned

 private:
  struct Region {
    char* base = nullptr;
    std::int64_t bytes = 0, used = 0;
    std::int64_t written = 0;  ///< up to here
  };
  void fill(Content content, Region& region, std::int64_t bytes);
  std::map<Content, Region> regions_;
  std::uint64_t seed_ = 1;
  std::int64_t* probe_ = nullptr;  // pinned: cycles, nanoseconds, time
};

/// Loaded versions of driver, CUDA, cuBLASLt, cuDNN.
std::map<std::string, std::string> library_versions(const Lab& lab);

}  // namespace pipewright::capture
