// Loads the module that needs CUDA, only when something is to be measured.
#include <dlfcn.h>

#include "beside.hpp"
#include "pipewright/capture.hpp"

namespace pipewright::capture {
namespace {

constexpr const char* kModule = "libpipewright_capture.so";
using Entry = void(const Options&, const std::function<void(const Progress&)>&, const std::atomic<bool>&, Result&);

struct Loaded {
  Entry* entry = nullptr;
  std::string problem;
};

Loaded load_module() {
  const auto path = beside_program(kModule);
  if (path.empty()) {
    return {nullptr,
            "this build cannot measure: it was configured without CUDA; install the CUDA toolkit with CUPTI, cuBLASLt, "
            "cuDNN and NCCL and configure with -Dcapture=enabled"};
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {nullptr, std::string("capture cannot load the CUDA libraries: ") + dlerror()};
  auto* entry = reinterpret_cast<Entry*>(dlsym(handle, "pipewright_capture_run"));
  if (entry == nullptr) return {nullptr, std::string(kModule) + " is of another version"};
  return {entry, {}};
}

const Loaded& module() {
  static const Loaded loaded = load_module();
  return loaded;
}

}  // namespace

Result run(const Options& options, const std::function<void(const Progress&)>& report, const std::atomic<bool>& stop) {
  if (!module().problem.empty()) throw UsageError(module().problem);
  Result result;
  module().entry(options, report, stop, result);
  return result;
}

}  // namespace pipewright::capture
