// The library that `pipewright capture -- COMMAND` has loaded into every process of the command
// (libpipewright_attach.so): the driver calls InitializeInjection() at cuInit (CUDA_INJECTION64_PATH), NVTX calls
// InitializeInjectionNvtx2() at the first range (NVTX_INJECTION64_PATH). It needs CUPTI only.
//
//   CUPTI's buffers ─► Recorder ─► PIPEWRIGHT_ATTACH/PID.rec, written whole when the window of steps is over (or at
//   exit)
//
// A thread looks every 100 ms; recording stops with the window, so that the rest of the run costs nothing. Programs
// that leave through _exit() lose nothing that was complete.
#include <cupti.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "recorder.hpp"

namespace pipewright::capture {
namespace {

std::string variable(const char* name, const char* otherwise = "") {
  const char* text = std::getenv(name);
  return text != nullptr ? text : otherwise;
}

/// The rank that launchers give: torchrun, Open MPI, Slurm.
std::string rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const std::string text = variable(name); !text.empty()) return text;
  return "";
}

Window window_of_environment() {
  Window window;
  const std::string steps = variable("PIPEWRIGHT_ATTACH_STEPS");
  if (std::sscanf(steps.c_str(), "%d:%d", &window.first, &window.last) != 2) window = Window{};
  window.step_kernel = variable("PIPEWRIGHT_ATTACH_KERNEL");
  window.step_range = variable("PIPEWRIGHT_ATTACH_RANGE");
  return window;
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MARKER,
                                         CUPTI_ACTIVITY_KIND_DEVICE};
// Only calls that put work on a stream: every recorded call costs the host.
constexpr CUpti_CallbackId kRuntimeCalls[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,     CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,      CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,      CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000,     CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_ptsz_v10000};
constexpr CUpti_CallbackId kDriverCalls[] = {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
                                             CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
                                             CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch};

class Attached {
 public:
  Attached()
      : recorder_(window_of_environment()),
        folder_(variable("PIPEWRIGHT_ATTACH")),
        about_({{"pid", std::to_string(getpid())}, {"rank", rank()}}) {}

  bool start();
  void take(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t valid);
  /// At exit: what is there is written.
  void finish();

 private:
  void add(const CUpti_Activity* record);
  void add(const CUpti_ActivityMarker2& marker);
  void watch();
  void stop_recording();
  void write();

  Recorder recorder_;
  std::string folder_;
  pid_t pid_ = getpid();
  std::mutex mutex_;  // of the following two and recorder_
  std::map<std::string, std::string> about_;
  std::map<std::uint32_t, Recorder::Range> open_ranges_;
  std::atomic<bool> ending_{false}, done_{false};
  std::mutex sleep_;
  std::condition_variable woken_;
  std::thread watcher_;
};

Attached& attached() {
  static auto* one = new Attached;  // outlives every static of the program
  return *one;
}

void CUPTIAPI buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  constexpr std::size_t bytes = 4u << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, bytes));
  *size = *buffer != nullptr ? bytes : 0;
  *max_records = 0;
}

void CUPTIAPI buffer_completed(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                               std::size_t valid) {
  attached().take(context, stream, buffer, valid);
}

bool Attached::start() {
  if (folder_.empty()) return false;
  if (cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed) != CUPTI_SUCCESS) return false;
  for (const auto kind : kKinds)
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS) return false;
  // Kernels can be mapped without the launches of a driver that does not know these calls.
  for (const auto call : kRuntimeCalls) cuptiActivityEnableRuntimeApi(call, 1);
  for (const auto call : kDriverCalls) cuptiActivityEnableDriverApi(call, 1);
  watcher_ = std::thread([this] { watch(); });
  std::atexit([] { attached().finish(); });
  return true;
}

void Attached::take(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t valid) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (!done_ && valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) add(record);
    std::size_t dropped = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) recorder_.dropped(dropped);
  }
  std::free(buffer);
}

void Attached::add(const CUpti_Activity* record) {
  using Engine = Recorder::Engine;
  const auto ns = [](std::uint64_t t) { return static_cast<std::int64_t>(t); };
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& k = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      recorder_.add(Recorder::Activity{recorder_.intern(k.name != nullptr ? k.name : "?"), Engine::kernel, k.deviceId,
                                       k.streamId, k.correlationId, ns(k.start), ns(k.end)});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& m = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      const bool out = m.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH,
                 in = m.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
      const char* name = out ? "Memcpy DtoH" : in ? "Memcpy HtoD" : "Memcpy DtoD";
      recorder_.add(Recorder::Activity{recorder_.intern(name),
                                       out  ? Engine::d2h
                                       : in ? Engine::h2d
                                            : Engine::d2d,
                                       m.deviceId, m.streamId, m.correlationId, ns(m.start), ns(m.end)});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& m = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      recorder_.add(Recorder::Activity{recorder_.intern("Memset (Device)"), Engine::memset, m.deviceId, m.streamId,
                                       m.correlationId, ns(m.start), ns(m.end)});
      break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& c = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
      recorder_.add(Recorder::Call{c.correlationId, c.threadId, ns(c.start), ns(c.end)});
      break;
    }
    case CUPTI_ACTIVITY_KIND_DEVICE: {
      const auto& d = *reinterpret_cast<const CUpti_ActivityDevice5*>(record);
      about_.emplace("device", d.name);  // of a host's GPUs the first: they are of one kind
      about_.emplace("memory", std::to_string(d.globalMemorySize));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MARKER:
      add(*reinterpret_cast<const CUpti_ActivityMarker2*>(record));
      break;
    default:
      break;
  }
}

void Attached::add(const CUpti_ActivityMarker2& marker) {
  if ((marker.flags & CUPTI_ACTIVITY_FLAG_MARKER_START) != 0) {
    const auto name = recorder_.intern(marker.name != nullptr ? marker.name : "?");
    open_ranges_[marker.id] = {name, static_cast<std::int64_t>(marker.timestamp), 0};
  } else if ((marker.flags & CUPTI_ACTIVITY_FLAG_MARKER_END) != 0) {
    const auto range = open_ranges_.find(marker.id);
    if (range == open_ranges_.end()) return;
    range->second.end = static_cast<std::int64_t>(marker.timestamp);
    recorder_.add(range->second);
    open_ranges_.erase(range);
  }
}

void Attached::watch() {
  while (!ending_) {
    {
      std::unique_lock<std::mutex> lock(sleep_);
      woken_.wait_for(lock, std::chrono::milliseconds(100), [this] { return ending_.load(); });
    }
    if (ending_) return;
    cuptiActivityFlushAll(0);
    bool complete = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const int before = recorder_.steps();
      complete = recorder_.update(false);
      if (recorder_.steps() > std::max(before, 0)) write();
    }
    if (!complete) continue;
    stop_recording();
    return;
  }
}

void Attached::stop_recording() {
  done_ = true;
  for (const auto kind : kKinds) cuptiActivityDisable(kind);
  for (const auto call : kRuntimeCalls) cuptiActivityEnableRuntimeApi(call, 0);
  for (const auto call : kDriverCalls) cuptiActivityEnableDriverApi(call, 0);
}

void Attached::finish() {
  if (getpid() != pid_) return;  // a forked worker has neither the thread nor records of its own
  ending_ = true;
  woken_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (done_) return;
  cuptiActivityFlushAll(1);
  const std::lock_guard<std::mutex> lock(mutex_);
  recorder_.update(true);
  write();
  done_ = true;
}

/// Under another name first: whoever reads the file finds all of it.
void Attached::write() {
  const std::string path = folder_ + "/" + std::to_string(getpid()) + ".rec", part = path + ".part";
  const std::string text = recorder_.text(about_);
  FILE* file = std::fopen(part.c_str(), "wb");
  if (file == nullptr) return;
  const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) == 0 && whole) std::rename(part.c_str(), path.c_str());
}

}  // namespace
}  // namespace pipewright::capture

extern "C" int InitializeInjection() {
  try {
    return pipewright::capture::attached().start() ? 1 : 0;
  } catch (const std::exception& error) {  // the program must run all the same
    std::fprintf(stderr, "pipewright: not attached: %s\n", error.what());
    return 0;
  }
}

/// NVTX asks this library because it is named in the environment; CUPTI's own entry has the same name.
extern "C" int InitializeInjectionNvtx2(void* get_export_table) {
  Dl_info cupti{};
  if (dladdr(reinterpret_cast<void*>(&cuptiActivityEnable), &cupti) == 0) return 0;
  void* library = dlopen(cupti.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  const auto entry = reinterpret_cast<int (*)(void*)>(dlsym(library, "InitializeInjectionNvtx2"));
  return entry != nullptr ? entry(get_export_table) : 0;
}
