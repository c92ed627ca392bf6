#include "lab.hpp"

#include <cudnn.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "cupti.hpp"

namespace pipewright::capture {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
  }
}

// NVML's ABI (nvml.h is not part of the CUDA toolkit's wheels): 0 is success, a device is an opaque pointer.
struct Nvml::Library {
  void* handle = nullptr;
  void* device = nullptr;
  template <class F>
  F* find(const char* name) const {
    return handle != nullptr ? reinterpret_cast<F*>(dlsym(handle, name)) : nullptr;
  }
  std::optional<double> read(const char* name, double factor) const {
    const auto f = find<int(void*, unsigned*)>(name);
    unsigned value = 0;
    if (f == nullptr || device == nullptr || f(device, &value) != 0) return std::nullopt;
    return value * factor;
  }
};

Nvml::Nvml(int cuda_device) : library_(std::make_unique<Library>()) {
  library_->handle = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  const auto init = library_->find<int()>("nvmlInit_v2");
  const auto by_bus = library_->find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  std::array<char, 32> bus{};
  if (init == nullptr || by_bus == nullptr || init() != 0) return;
  check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), cuda_device), "PCI bus id");
  if (by_bus(bus.data(), &library_->device) != 0) library_->device = nullptr;
}

Nvml::~Nvml() {
  if (const auto shutdown = library_->find<int()>("nvmlShutdown"); shutdown != nullptr) shutdown();
  if (library_->handle != nullptr) dlclose(library_->handle);
}

std::optional<double> Nvml::watts() const { return library_->read("nvmlDeviceGetPowerUsage", 1e-3); }
std::optional<double> Nvml::limit_watts() const { return library_->read("nvmlDeviceGetEnforcedPowerLimit", 1e-3); }
std::optional<double> Nvml::joules() const {
  const auto f = library_->find<int(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
  unsigned long long millijoules = 0;
  if (f == nullptr || library_->device == nullptr || f(library_->device, &millijoules) != 0) return std::nullopt;
  return 1e-3 * static_cast<double>(millijoules);
}

std::string Nvml::driver() const {
  const auto f = library_->find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  std::array<char, 96> text{};
  return f != nullptr && f(text.data(), static_cast<unsigned>(text.size())) == 0 ? text.data() : "";
}

namespace {

struct Plan {
  Content content;
  double share;  // of the memory that the regions take together
};
// The largest ops set the shares: logits of 8192 tokens x 152064 in fp32 with their exponentials, GEMM outputs.
constexpr std::array<Plan, 5> kPlan = {{{Content::bf16, 0.24},
                                        {Content::f32, 0.28},
                                        {Content::e4m3, 0.10},
                                        {Content::e5m2, 0.08},
                                        {Content::scratch, 0.30}}};
constexpr double kWantedBytes = 56e9;

std::int64_t element_bytes(Content content) {
  switch (content) {
    case Content::bf16:
      return 2;
    case Content::f32:
      return 4;
    default:
      return 1;
  }
}

}  // namespace

Lab::Lab(int device_index, double share) : device(device_index) {
  check(cudaSetDevice(device), "selecting the device");
  std::size_t free_bytes = 0, total = 0;
  check(cudaFree(nullptr), "creating a context");
  check(cudaMemGetInfo(&free_bytes, &total), "memory info");
  total_bytes = static_cast<std::int64_t>(total);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "properties");
  gpu = profile::device(properties.name, properties.multiProcessorCount, properties.maxThreadsPerMultiProcessor,
                        10 * properties.major + properties.minor, Bytes(properties.l2CacheSize));
  workspace_bytes = static_cast<std::size_t>(gpu.te_workspace.value) & ~std::size_t{0xfffff};  // without its scales
  activities = cupti_source();
  nvml = std::make_unique<Nvml>(device);
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check(cublasLtCreate(&cublas), "handle");
  check(cudaMalloc(&workspace, workspace_bytes), "workspace");
  check(cudaMallocHost(reinterpret_cast<void**>(&gate_open), sizeof(int)), "pinned memory");
  check(cudaMallocHost(reinterpret_cast<void**>(&gate_timed_out), sizeof(int)), "pinned memory");
  check(cudaMallocHost(reinterpret_cast<void**>(&probe_), 3 * sizeof(std::int64_t)), "pinned memory");
  check(cudaMemGetInfo(&free_bytes, &total), "memory info");
  const double bytes = std::min(kWantedBytes, share * static_cast<double>(free_bytes));
  for (const Plan& plan : kPlan) {
    Region region;
    region.bytes = static_cast<std::int64_t>(bytes * plan.share) & ~std::int64_t{0xfff};
    check(cudaMalloc(reinterpret_cast<void**>(&region.base), static_cast<std::size_t>(region.bytes)), "random data");
    fill(plan.content, region, region.bytes);
    regions_[plan.content] = region;
  }
  check(cudaStreamSynchronize(stream), "random data");
  for (int i = 0; i < 3; ++i) max_mhz = std::max(max_mhz, probe_mhz());
  activities->take();
}

Lab::~Lab() {
  for (const auto& [content, region] : regions_) cudaFree(region.base);
  cudaFree(workspace);
  cudaFreeHost(gate_open);
  cudaFreeHost(gate_timed_out);
  cudaFreeHost(probe_);
  if (cublas != nullptr) cublasLtDestroy(cublas);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

std::int64_t Lab::context_bytes() const {
  std::size_t free_bytes = 0, total = 0;
  check(cudaMemGetInfo(&free_bytes, &total), "memory info");
  auto own = static_cast<std::int64_t>(workspace_bytes);
  for (const auto& [content, region] : regions_) own += region.bytes;
  return static_cast<std::int64_t>(total - free_bytes) - own;
}

void Lab::fill(Content content, Region& region, std::int64_t bytes) {
  const auto format = content == Content::f32    ? kernels::Format::f32
                      : content == Content::e4m3 ? kernels::Format::e4m3
                      : content == Content::e5m2 ? kernels::Format::e5m2
                                                 : kernels::Format::bf16;
  const std::int64_t width = content == Content::scratch ? 2 : element_bytes(content);
  kernels::fill_normal(format, region.base, bytes / width, seed_++, stream);
}

void Lab::reset() {
  for (auto& [content, region] : regions_) {
    if (region.written > 0) fill(content, region, region.written);
    region.used = region.written = 0;
  }
}

std::optional<Operand> Lab::take(Content content, std::int64_t elements, bool written) {
  const std::int64_t cold_bytes = std::max<std::int64_t>(160ll << 20, 5 * gpu.l2.value / 2);  // more than the L2 holds
  constexpr int most_slots = 64;
  Region& region = regions_.at(content);
  Operand result;
  result.step = (elements * element_bytes(content) + 511) / 512 * 512;
  const std::int64_t fitting = (region.bytes - region.used) / std::max<std::int64_t>(result.step, 1);
  if (fitting < 1) return std::nullopt;
  const std::int64_t wanted = (cold_bytes + result.step - 1) / std::max<std::int64_t>(result.step, 1);
  result.slots = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, std::min<std::int64_t>(most_slots, fitting)));
  result.base = region.base + region.used;
  region.used += result.step * result.slots;
  if (written && content != Content::scratch) region.written = region.used;
  return result;
}

double Lab::probe_mhz() {
  kernels::clock_probe(probe_, 20'000, stream);
  check(cudaStreamSynchronize(stream), "clock probe");
  return 1e3 * static_cast<double>(probe_[0]) / static_cast<double>(probe_[1]);
}

std::map<std::string, std::string> library_versions(const Lab& lab) {
  const auto dotted = [](long long major, long long minor, long long patch) {
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  };
  int runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "runtime version");
  const auto blas = static_cast<long long>(cublasLtGetVersion()), dnn = static_cast<long long>(cudnnGetVersion());
  return {{"driver", lab.nvml->driver()},
          {"cuda", std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10)},
          {"cublaslt", dotted(blas / 10000, blas / 100 % 100, blas % 100)},
          {"cudnn", dotted(dnn / 10000, dnn / 100 % 100, dnn % 100)}};
}

}  // namespace pipewright::capture
