#include "sustained.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <stdexcept>
#include <thread>

#include "power.hpp"

namespace pipewright::capture {
namespace {

using Clock = std::chrono::steady_clock;
using profile::Key;
using profile::Load;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr std::size_t kMostProbes = 1 << 16;
constexpr std::uint64_t kIdStep = 1024;  // more than a sequence has kernels

constexpr std::int64_t kTokens = 4096, kHidden = 4096, kFfn = 14336, kQkv = 6144;

void linear_forward(std::vector<Key>& list, std::int64_t in, std::int64_t out, bool fp8, bool norm_before) {
  if (fp8) {
    if (!norm_before) list.push_back({"amax", {kTokens * in}});
    list.push_back({"cast_transpose.fp8", {kTokens, in}});
  }
  list.push_back({fp8 ? "gemm.fp8.tn" : "gemm.bf16.tn", {out, kTokens, in}});
}

void linear_backward(std::vector<Key>& list, std::int64_t in, std::int64_t out, bool fp8) {
  if (fp8) {
    list.push_back({"amax", {kTokens * out}});
    list.push_back({"cast_transpose.fp8", {kTokens, out}});
  }
  list.push_back({fp8 ? "gemm.fp8.tn.split" : "gemm.bf16.nn", {in, kTokens, out}});
  list.push_back({fp8 ? "gemm.fp8.tn.acc_f32" : "gemm.bf16.nt.acc_f32", {in, out, kTokens}});
}

/// Kernels that a part's memory bounds: rows of a layer, of the loss over 32000 words, of the optimizer.
Bursts memory_kernels() {
  Bursts bursts(2);
  for (int repeat = 0; repeat < 4; ++repeat) {
    for (const char* f : {"rmsnorm.forward", "rmsnorm.backward"}) bursts[0].push_back({f, {kTokens, kHidden}});
    for (const char* f : {"swiglu.forward", "swiglu.backward"}) bursts[0].push_back({f, {kTokens, kFfn}});
    bursts[0].push_back({"add", {kTokens * kHidden}});
  }
  for (const char* f : {"unfused.forward", "unfused.backward"})
    bursts[1].push_back({std::string("cross_entropy.") + f, {kTokens, 32000}});
  bursts[1].push_back({"adam", {1 << 26}});
  bursts[1].push_back({"adam", {1 << 26}});
  return bursts;
}

}  // namespace

Bursts layer_kernels(bool fp8) {
  constexpr std::int64_t s = kTokens, h = kHidden, f = kFfn, qkv = kQkv;
  std::vector<Key> forward, backward;
  forward.push_back({"rmsnorm.forward", {s, h}});
  linear_forward(forward, h, qkv, fp8, true);
  forward.push_back({"copy.strided", {s * 8, 512}});
  forward.push_back({"rope.forward", {s, 32, 128}});
  forward.push_back({"rope.forward", {s, 8, 128}});
  forward.push_back({"copy.strided", {s * 8, 128}});
  forward.push_back({"attention.forward.bf16", {1, s, s, 32, 8, 128}});
  linear_forward(forward, h, h, fp8, false);
  forward.push_back({"add", {s * h}});
  forward.push_back({"rmsnorm.forward", {s, h}});
  linear_forward(forward, h, 2 * f, fp8, true);
  forward.push_back({"swiglu.forward", {s, f}});
  linear_forward(forward, f, h, fp8, false);
  forward.push_back({"add", {s * h}});

  linear_backward(backward, f, h, fp8);
  backward.push_back({"swiglu.backward", {s, f}});
  linear_backward(backward, h, 2 * f, fp8);
  backward.push_back({"rmsnorm.backward", {s, h}});
  backward.push_back({"add", {s * h}});
  linear_backward(backward, h, h, fp8);
  backward.push_back({"attention.backward.bf16", {1, s, s, 32, 8, 128}});
  backward.push_back({"rope.backward", {s, 8, 128}});
  backward.push_back({"rope.backward", {s, 32, 128}});
  backward.push_back({"cat", {s, qkv}});
  linear_backward(backward, h, qkv, fp8);
  backward.push_back({"rmsnorm.backward", {s, h}});
  backward.push_back({"add", {s * h}});
  return {forward, backward};
}

Bursts kernels_of(const std::string& kind, bool fp8) {
  if (kind == "memory") return memory_kernels();
  if (kind == "matrix+memory") {
    const Bursts matrix = kernels_of("matrix", fp8), memory = memory_kernels();
    return {matrix[0], memory[0], matrix[1], memory[1]};
  }
  const Load load = kind == "matrix" ? Load::matrix : Load::attention;
  Bursts bursts = layer_kernels(fp8);
  for (auto& burst : bursts) {
    std::erase_if(burst, [&](const Key& key) { return profile::family(key.family).load != load; });
    const std::vector<Key> once = burst;  // attention runs for 0.5 ms: several times in a burst
    for (int i = 1; i < (load == Load::attention ? 8 : 1); ++i) burst.insert(burst.end(), once.begin(), once.end());
  }
  return bursts;
}

Sequence::Sequence(Lab& lab, Attention& attention, const Bursts& bursts) : lab_(lab) {
  std::map<Key, Op> made;
  lab.reset();
  for (const auto& keys : bursts) {
    bursts_.emplace_back();
    for (const Key& key : keys) {
      auto known = made.find(key);
      if (known == made.end()) {
        lab.reset();
        auto op = make_op(lab, attention, key);
        if (!op) throw std::runtime_error("no kernel for " + key.family);
        op->before = nullptr;  // its predecessor runs for real here
        known = made.emplace(key, std::move(*op)).first;
      }
      bursts_.back().push_back({known->second, profile::family(key.family).load});
      op_count_++;
    }
  }
  for (const auto& burst : bursts_)
    for (const auto& step : burst) step.op.launch(0);
  check(cudaStreamSynchronize(lab.stream), "warm-up");
  check(cudaMallocHost(reinterpret_cast<void**>(&probes_), kMostProbes * 3 * sizeof(std::int64_t)), "pinned memory");
  lab.activities->take();
}

Sequence::~Sequence() { cudaFreeHost(probes_); }

std::vector<Load> Sequence::loads() const {
  std::vector<Load> result;
  for (const auto& burst : bursts_)
    for (const auto& step : burst) result.push_back(step.load);
  return result;
}

SustainedRow Sequence::run(double duty, double seconds, double settle, const std::atomic<bool>& stop) {
  SustainedRow row;
  probe_count_ = 0;
  probe_iteration_.clear();
  const auto begin = Clock::now();
  std::uint64_t settled_at = 0, iteration = 0;
  std::deque<cudaEvent_t> queued;
  std::optional<PowerMeter> power;
  for (std::size_t b = 0; seconds_since(begin) < seconds && probe_count_ + 64 < kMostProbes && !stop;
       b = (b + 1) % bursts_.size()) {
    if (settled_at == 0 && seconds_since(begin) >= settle) {
      settled_at = iteration + 1;
      power.emplace(*lab_.nvml);
    }
    const auto start = Clock::now();
    launch(b, iteration);
    if (duty >= 1) {  // never idle: at most two bursts ahead
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
      check(cudaEventRecord(event, lab_.stream), "event");
      queued.push_back(event);
      if (queued.size() > 2) {
        check(cudaEventSynchronize(queued.front()), "event");
        cudaEventDestroy(queued.front());
        queued.pop_front();
      }
    } else {
      check(cudaStreamSynchronize(lab_.stream), "burst");
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds_since(start) * (1 - duty) / duty));
    }
    ++iteration;
  }
  check(cudaStreamSynchronize(lab_.stream), "bursts");
  for (const auto event : queued) cudaEventDestroy(event);
  if (power) row.watts = power->watts();
  collect(row, settled_at);
  return row;
}

void Sequence::launch(std::size_t b, std::uint64_t iteration) {
  constexpr std::size_t kernels_between_probes = 4;  // about a millisecond
  std::uint64_t id = iteration * kIdStep + 1;
  for (std::size_t i = 0; i < b; ++i) id += bursts_[i].size();
  for (std::size_t i = 0; i < bursts_[b].size(); ++i) {
    lab_.activities->push(id++);
    bursts_[b][i].op.launch(static_cast<int>(iteration % 64));
    lab_.activities->pop();
    if ((i + 1) % kernels_between_probes != 0 && i + 1 < bursts_[b].size()) continue;
    kernels::clock_probe(probes_ + 3 * probe_count_++, 10'000, lab_.stream);
    probe_iteration_.push_back(iteration);
  }
}

namespace {

/// How much faster or slower than in the mean all kernels of a window of 10 ms are: windows differ because the clock is
/// moved at the controller's ticks.
double fluctuation(const std::vector<std::pair<std::size_t, Span>>& spans, const std::vector<double>& mean_ns) {
  constexpr std::int64_t window_ns = 10'000'000;
  struct Window {
    double ns = 0, expected_ns = 0;
  };
  std::map<std::int64_t, Window> windows;
  for (const auto& [op, span] : spans) {
    Window& window = windows[span.start_ns / window_ns];
    window.ns += static_cast<double>(span.end_ns - span.start_ns);
    window.expected_ns += mean_ns[op];
  }
  double n = 0, sum = 0, squares = 0;
  for (const auto& [start, window] : windows) {
    if (2 * window.expected_ns < window_ns) continue;  // the first and the last, hardly filled
    const double ratio = window.ns / window.expected_ns;
    n += 1, sum += ratio, squares += ratio * ratio;
  }
  return n > 1 ? std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1))) : 0;
}

}  // namespace

void Sequence::collect(SustainedRow& row, std::uint64_t settled_at) {
  std::vector<double> sums(op_count_, 0), counts(op_count_, 0);
  std::int64_t busy = 0, first = 0, last = 0;
  std::vector<std::pair<std::size_t, Span>> settled_spans;
  for (const auto& [id, span] : spans(lab_.activities->take())) {
    if (id / kIdStep + 1 < settled_at) continue;
    settled_spans.emplace_back(id % kIdStep - 1, span);
    const std::size_t op = id % kIdStep - 1;
    sums[op] += static_cast<double>(span.end_ns - span.start_ns);
    counts[op] += 1;
    busy += span.end_ns - span.start_ns;
    if (first == 0) first = span.start_ns;
    last = span.end_ns;
  }
  for (std::size_t i = 0; i < op_count_; ++i) row.ns.push_back(counts[i] > 0 ? sums[i] / counts[i] : 0);
  row.duty = last > first ? std::min(1.0, static_cast<double>(busy) / static_cast<double>(last - first)) : 0;
  row.fluctuation = fluctuation(settled_spans, row.ns);
  double clock = 0, settled = 0;
  for (std::size_t i = 0; i < probe_count_; ++i) {
    const std::int64_t* probe = probes_ + 3 * i;
    row.clock.push_back({1e-6 * static_cast<double>(probe[2] - probes_[2]),
                         1e3 * static_cast<double>(probe[0]) / static_cast<double>(probe[1])});
    if (probe_iteration_[i] + 1 < settled_at) continue;
    clock += row.clock.back().mhz;
    settled += 1;
  }
  if (settled > 0) row.mhz = clock / settled;
}

}  // namespace pipewright::capture
