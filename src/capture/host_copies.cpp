// Copies between the GPUs of a host and its memory, all at once: they share memory channels and PCIe switches.
//
//   GPU 0       [c][c]|c c c c c c c c|[c][c]     timed by events on GPU 0, in the middle
//   GPU 1..N-1  [c][c][c][c][c][c][c][c][c][c]    the same way, or both ways on two streams
#include <array>
#include <barrier>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "host_adam.hpp"
#include "parts.hpp"

namespace pipewright::capture {
namespace {

constexpr std::size_t kCopyBytes = 64 << 20;
constexpr int kLead = 8, kTimed = 16;

/// Copies one way on a stream of its own.
class CopyStream {
 public:
  CopyStream(int device, cudaMemcpyKind kind) : device_(device), kind_(kind) {
    select();
    check(cudaMallocHost(&host_, kCopyBytes), "pinned memory");
    check(cudaMalloc(&memory_, kCopyBytes), "copy");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (auto* event : {&begin_, &end_}) check(cudaEventCreate(event), "event");
  }
  ~CopyStream() {
    cudaSetDevice(device_);
    for (const auto event : {begin_, end_}) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
    cudaFree(memory_);
    cudaFreeHost(host_);
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  void copy(int times) const {
    select();
    const bool out = kind_ == cudaMemcpyDeviceToHost;
    for (int i = 0; i < times; ++i)
      check(cudaMemcpyAsync(out ? host_ : memory_, out ? memory_ : host_, kCopyBytes, kind_, stream_), "copy");
  }
  void timed() const {
    copy(kLead);
    check(cudaEventRecord(begin_, stream_), "event");
    copy(kTimed);
    check(cudaEventRecord(end_, stream_), "event");
  }
  double milliseconds() const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return ms;
  }
  void finish() const { check(cudaStreamSynchronize(stream_), "copies"); }

 private:
  void select() const { check(cudaSetDevice(device_), "selecting the device"); }

  const int device_;
  const cudaMemcpyKind kind_;
  void *host_ = nullptr, *memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Gpu {
  explicit Gpu(int device) : out(device, cudaMemcpyDeviceToHost), in(device, cudaMemcpyHostToDevice) {}
  CopyStream out, in;
  const CopyStream& way(bool outwards) const { return outwards ? out : in; }
};
using Gpus = std::vector<std::unique_ptr<Gpu>>;

/// Time of GPU 0's copies while the first `count` GPUs copy that way, and the other way too.
double together(const Gpus& gpus, int count, bool outwards, bool both) {
  std::vector<double> samples;
  for (int round = 0; round < 9; ++round) {
    for (int g = count; g-- > 0;) {
      const Gpu& gpu = *gpus[static_cast<std::size_t>(g)];
      if (both) gpu.way(!outwards).copy(4 * kTimed);
      if (g > 0) gpu.way(outwards).copy(4 * kTimed);
    }
    gpus[0]->way(outwards).timed();
    for (const auto& gpu : gpus) gpu->out.finish(), gpu->in.finish();
    samples.push_back(gpus[0]->way(outwards).milliseconds());
  }
  return summarize(std::move(samples)).median;
}

}  // namespace

void measure_host_copies(Session& session, int devices) {
  if (!session.wants("contention.gpus.copy")) return;
  Gpus gpus;
  for (int d = 0; d < devices; ++d) gpus.push_back(std::make_unique<Gpu>(d));
  const auto put = [&](const std::string& name, double value, const std::string& what) {
    session.result.profile.scalars[name] = {value, 0, profile::Origin::measured, what};
  };
  for (const bool outwards : {true, false}) {
    const std::string copy = outwards ? "copy_d2h" : "copy_h2d";
    const double alone = together(gpus, 1, outwards, false);
    for (int count = 2; count <= devices; count *= 2) {
      if (session.stop) return;
      const std::string n = "contention.gpus_" + std::to_string(count);
      put(n + "." + copy, together(gpus, count, outwards, false) / alone,
          "time of 64 MiB while this many GPUs of the host copy that way, over time alone");
      put(n + "_two_way." + copy, together(gpus, count, outwards, true) / alone,
          "time of 64 MiB while this many GPUs of the host copy both ways, over time alone");
    }
  }
}

namespace {

/// Until the host may go on, by a process for each of the first `count` GPUs at once: one figure a round, their mean.
std::vector<double> pageable_copies(int count, std::size_t bytes, int rounds) {
  std::vector<double> sums(static_cast<std::size_t>(rounds), 0);
  std::mutex mutex;
  std::barrier together(count);
  std::vector<std::thread> processes;
  for (int device = 0; device < count; ++device) {
    processes.emplace_back([&, device] {
      check(cudaSetDevice(device), "selecting the device");
      std::vector<char> host(bytes, 1);
      void* memory = nullptr;
      check(cudaMalloc(&memory, bytes), "copy");
      for (int round = -1; round < rounds; ++round) {  // the first one is not counted
        check(cudaDeviceSynchronize(), "copies");
        together.arrive_and_wait();
        const auto start = std::chrono::steady_clock::now();
        check(cudaMemcpyAsync(memory, host.data(), bytes, cudaMemcpyHostToDevice, cudaStreamPerThread), "copy");
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        const std::scoped_lock lock(mutex);
        if (round >= 0) sums[static_cast<std::size_t>(round)] += took.count() / count;
      }
      check(cudaDeviceSynchronize(), "copies");
      cudaFree(memory);
    });
  }
  for (auto& process : processes) process.join();
  return sums;
}

}  // namespace

void measure_host_optimizer(Session& session, int devices) {
  constexpr std::size_t elements = 64 << 20;  // 1 GiB of arrays: beyond any cache of a host
  constexpr int rounds = 7;
  auto& samples = session.result.profile.samples;
  for (const int processes : devices > 1 ? std::vector{1, devices} : std::vector{1}) {
    for (const int threads : {1, 4, 8, 16}) {
      if (!session.wants("adam.host") || session.stop) break;
      if (processes * threads > static_cast<int>(std::thread::hardware_concurrency())) break;
      samples["adam.host"].push_back(sample_of({processes * threads, processes * static_cast<std::int64_t>(elements)},
                                               summarize(measure_host_adam(processes, threads, elements, rounds))));
    }
    if (!session.wants("copy.h2d.pageable") || session.stop) continue;
    for (const std::size_t bytes : {std::size_t{1} << 24, std::size_t{1} << 28})
      samples["copy.h2d.pageable"].push_back(sample_of({processes, static_cast<std::int64_t>(bytes)},
                                                       summarize(pageable_copies(processes, bytes, rounds))));
  }
}

}  // namespace pipewright::capture
