// Slow-down of work beside other work on one GPU: kernels beside copies and NCCL, copies and NCCL beside kernels.
//
//   what is timed  ──[op][op][op]──      kernels as always (bench.hpp), copies by events
//   another stream ──[beside][beside]──  again and again, until the timing is over
#include "contention.hpp"

#include <thread>

namespace pipewright::capture {
namespace {

using profile::Key;

constexpr std::int64_t kCopyBytes = 64 << 20;  // a layer's activations of 4096 tokens

const std::vector<std::pair<std::string, std::vector<Key>>>& kinds() {
  static const std::vector<std::pair<std::string, std::vector<Key>>> list = {
      {"matrix",
       {{"gemm.bf16.tn", {28672, 4096, 4096}},
        {"gemm.bf16.tn", {6144, 4096, 4096}},
        {"gemm.bf16.tn", {4096, 4096, 4096}},
        {"gemm.bf16.tn", {4096, 4096, 14336}},
        {"gemm.bf16.nn", {4096, 4096, 28672}},
        {"gemm.bf16.nt.acc_f32", {4096, 28672, 4096}}}},
      {"attention",
       {{"attention.forward.bf16", {1, 4096, 4096, 32, 8, 128}},
        {"attention.backward.bf16", {1, 4096, 4096, 32, 8, 128}}}},
      {"memory", {{"add", {16 << 20}}, {"swiglu.forward", {4096, 14336}}, {"rmsnorm.forward", {4096, 4096}}}}};
  return list;
}

void put(Session& session, const std::string& name, double value, const std::string& source) {
  session.result.profile.scalars[name] = {value, 0, profile::Origin::measured, source};
}

/// Pinned memory and a stream, for copies one way.
class Copies {
 public:
  Copies(const Lab& lab, cudaMemcpyKind kind) : kind_(kind), device_index_(lab.device) {
    check(cudaMallocHost(&host_, kCopyBytes), "pinned memory");
    check(cudaMalloc(&device_, kCopyBytes), "copy");
    check(cudaMemset(device_, 1, kCopyBytes), "copy");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (auto* event : {&begin_, &end_}) check(cudaEventCreate(event), "event");
  }
  ~Copies() {
    for (const auto event : {begin_, end_}) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
    cudaFree(device_);
    cudaFreeHost(host_);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  /// Milliseconds of a few copies.
  float operator()() const {
    check(cudaSetDevice(device_index_), "selecting the device");
    void *to = host_, *from = device_;
    if (kind_ == cudaMemcpyHostToDevice) std::swap(to, from);
    check(cudaEventRecord(begin_, stream_), "event");
    for (int i = 0; i < 4; ++i) check(cudaMemcpyAsync(to, from, kCopyBytes, kind_, stream_), "copy");
    check(cudaEventRecord(end_, stream_), "event");
    check(cudaStreamSynchronize(stream_), "copy");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return ms;
  }
  double median() const {
    std::vector<double> samples;
    for (int i = 0; i < 9; ++i) samples.push_back((*this)());
    return summarize(std::move(samples)).median;
  }

 private:
  cudaMemcpyKind kind_;
  int device_index_;
  void *host_ = nullptr, *device_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Way {
  const char *name, *what;
  cudaMemcpyKind kind;
};
constexpr Way kWays[] = {{"copy_d2h", "to pinned host memory", cudaMemcpyDeviceToHost},
                         {"copy_h2d", "from pinned host memory", cudaMemcpyHostToDevice}};

}  // namespace

KernelLoop::KernelLoop(Lab& lab, Attention& attention, const std::string& kind) : lab_(lab) {
  lab.reset();
  for (const auto& [name, keys] : kinds()) {
    if (name != kind) continue;
    for (const Key& key : keys)
      if (auto op = make_op(lab, attention, key)) ops_.push_back(std::move(*op));
  }
  (*this)();
}

void KernelLoop::operator()() const {
  check(cudaSetDevice(lab_.device), "selecting the device");
  for (const Op& op : ops_) op.launch(0);
  check(cudaStreamSynchronize(lab_.stream), "kernels");
}

void measure_contention(Lab& lab, Attention& attention, Session& session, const std::string& prefix,
                        const std::function<void()>& begin, const std::function<void()>& end,
                        const std::string& beside) {
  for (const auto& [kind, keys] : kinds()) {
    const std::string name = prefix + "." + kind;
    if (!session.wants(name)) continue;
    double alone = 0, together = 0;
    for (const Key& key : keys) {
      if (session.stop) return;
      lab.reset();
      const auto op = make_op(lab, attention, key);
      if (!op) continue;
      alone += measure(lab, *op, {}).ns.median;
      begin();
      together += measure(lab, *op, {}).ns.median;
      end();
    }
    if (alone > 0) put(session, name, together / alone, "time while " + beside + ", over time alone");
  }
}

void measure_beside(Lab& lab, Attention& attention, Session& session, const std::string& what,
                    const std::function<double()>& time) {
  double alone = 0;
  for (const auto& [kind, keys] : kinds()) {
    const std::string name = "contention.beside_" + kind + "." + what;
    if (session.stop || !session.wants(name)) continue;
    if (alone == 0) alone = time();
    const KernelLoop kernels(lab, attention, kind);
    const Background running([&] { kernels(); });
    put(session, name, time() / alone, "time while kernels of this kind run, over time alone");
  }
  lab.activities->take();
}

void measure_copies(Lab& lab, Attention& attention, Session& session) {
  const Copies out(lab, kWays[0].kind), in(lab, kWays[1].kind);
  for (const Way& way : kWays) {
    const Copies &copies = &way == kWays ? out : in, &others = &way == kWays ? in : out;
    std::optional<Background> running;
    measure_contention(
        lab, attention, session, std::string("contention.") + way.name, [&] { running.emplace([&] { copies(); }); },
        [&] { running.reset(); }, std::string("copies ") + way.what + " run");
    measure_beside(lab, attention, session, way.name, [&] { return copies.median(); });
    const std::string both = std::string("contention.two_way.") + way.name;
    if (session.stop || !session.wants(both)) continue;
    const double alone = copies.median();
    const Background back([&] { others(); });
    put(session, both, copies.median() / alone, "time while copies of 64 MiB run the other way, over time alone");
  }
}

}  // namespace pipewright::capture
