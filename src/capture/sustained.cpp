// The clock law: a part at its power limit lowers its clock, and kernels slow down by what binds them.
//
//   ▇▇▇▇▇▇▇▇▇___▇▇▇▇▇▇▇▇▇___   bursts of a layer's kernels with pauses: duty = busy / (busy + pause)
//
// Each kernel's time at a duty is compared with its own time in the same sequence at a duty low enough for full clock.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "parts.hpp"

namespace pipewright::capture {
namespace {

using Clock = std::chrono::steady_clock;
using profile::Key;
using profile::Load;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Kernels of a Llama 8B layer (hidden 4096, FFN 14336, 32 heads, 8 groups, 4096 tokens), forward then backward.
std::vector<std::vector<Key>> layer(bool fp8) {
  constexpr std::int64_t s = 4096, h = 4096, f = 14336, qkv = 6144;
  const auto linear_forward = [&](std::vector<Key>& list, std::int64_t in, std::int64_t out, bool norm_before) {
    if (fp8) {
      if (!norm_before) list.push_back({"amax", {s * in}});
      list.push_back({"cast_transpose.fp8", {s, in}});
    }
    list.push_back({fp8 ? "gemm.fp8.tn" : "gemm.bf16.tn", {out, s, in}});
  };
  const auto linear_backward = [&](std::vector<Key>& list, std::int64_t in, std::int64_t out) {
    if (fp8) {
      list.push_back({"amax", {s * out}});
      list.push_back({"cast_transpose.fp8", {s, out}});
    }
    list.push_back({fp8 ? "gemm.fp8.tn.split" : "gemm.bf16.nn", {in, s, out}});
    list.push_back({fp8 ? "gemm.fp8.tn.acc_f32" : "gemm.bf16.nt.acc_f32", {in, out, s}});
  };
  std::vector<Key> forward, backward;
  forward.push_back({"rmsnorm.forward", {s, h}});
  linear_forward(forward, h, qkv, true);
  forward.push_back({"copy.strided", {s * 8, 512}});
  forward.push_back({"rope.forward", {s, 32, 128}});
  forward.push_back({"rope.forward", {s, 8, 128}});
  forward.push_back({"copy.strided", {s * 8, 128}});
  forward.push_back({"attention.forward.bf16", {1, s, s, 32, 8, 128}});
  linear_forward(forward, h, h, false);
  forward.push_back({"add", {s * h}});
  forward.push_back({"rmsnorm.forward", {s, h}});
  linear_forward(forward, h, 2 * f, true);
  forward.push_back({"swiglu.forward", {s, f}});
  linear_forward(forward, f, h, false);
  forward.push_back({"add", {s * h}});

  linear_backward(backward, f, h);
  backward.push_back({"swiglu.backward", {s, f}});
  linear_backward(backward, h, 2 * f);
  backward.push_back({"rmsnorm.backward", {s, h}});
  backward.push_back({"add", {s * h}});
  linear_backward(backward, h, h);
  backward.push_back({"attention.backward.bf16", {1, s, s, 32, 8, 128}});
  backward.push_back({"rope.backward", {s, 8, 128}});
  backward.push_back({"rope.backward", {s, 32, 128}});
  backward.push_back({"cat", {s, qkv}});
  linear_backward(backward, h, qkv);
  backward.push_back({"rmsnorm.backward", {s, h}});
  backward.push_back({"add", {s * h}});
  return {forward, backward};
}

struct Step {
  Op op;
  Load load;
};

/// Reads the board's power in a thread of its own: a reading takes about a millisecond.
class PowerMeter {
 public:
  explicit PowerMeter(const Nvml& nvml)
      : thread_([this, &nvml] {
          while (!done_) {
            if (const auto watts = nvml.watts()) readings_.push_back(*watts);
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
        }) {}
  ~PowerMeter() {
    if (thread_.joinable()) stop();
  }
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;
  /// Mean of the later half (NVML averages over the last second); 0 if there are no readings.
  double stop() {
    done_ = true;
    thread_.join();
    const std::size_t half = readings_.size() / 2;
    if (readings_.empty()) return 0;
    return std::accumulate(readings_.begin() + static_cast<std::ptrdiff_t>(half), readings_.end(), 0.0) /
           static_cast<double>(readings_.size() - half);
  }

 private:
  std::atomic<bool> done_{false};
  std::vector<double> readings_;
  std::thread thread_;
};

struct Row {
  double duty = 0, mhz = 0, watts = 0;
  std::vector<double> ns;                         ///< mean time of each kernel, once settled
  std::vector<double> mhz_by_burst, ms_by_burst;  ///< SM clock at the end of each burst, and when
};

class Sequence {
 public:
  Sequence(Lab& lab, Attention& attention, bool fp8) : lab_(lab) {
    for (const auto& keys : layer(fp8)) {
      bursts_.emplace_back();
      for (const Key& key : keys) {
        lab.reset();
        auto op = make_op(lab, attention, key);
        if (!op) throw std::runtime_error("no kernel for " + key.family);
        op->before = nullptr;  // its predecessor runs for real here
        bursts_.back().push_back({std::move(*op), profile::family(key.family).load});
        op_count_++;
      }
    }
    for (const auto& burst : bursts_)
      for (const auto& step : burst) step.op.launch(0);
    check(cudaStreamSynchronize(lab.stream), "warm-up");
    check(cudaMallocHost(reinterpret_cast<void**>(&probes_), probe_count * 2 * sizeof(std::int64_t)), "pinned memory");
    lab.activities->take();
  }
  ~Sequence() { cudaFreeHost(probes_); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  std::vector<Load> loads() const {
    std::vector<Load> result;
    for (const auto& burst : bursts_)
      for (const auto& step : burst) result.push_back(step.load);
    return result;
  }

  /// Runs for `seconds`; times are of the part after `settle` seconds.
  Row run(double duty, double seconds, double settle, const std::atomic<bool>& stop) {
    Row row;
    PowerMeter power(*lab_.nvml);
    const auto begin = Clock::now();
    std::uint64_t settled_at = 0, iteration = 0;
    std::deque<cudaEvent_t> queued;
    for (std::size_t b = 0; seconds_since(begin) < seconds && iteration < probe_count && !stop;
         b = (b + 1) % bursts_.size()) {
      if (settled_at == 0 && seconds_since(begin) >= settle) settled_at = iteration + 1;
      const auto start = Clock::now();
      row.ms_by_burst.push_back(1e3 * seconds_since(begin));
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
    row.watts = power.stop();
    collect(row, settled_at, iteration);
    return row;
  }

 private:
  static constexpr std::size_t probe_count = 8192;
  static constexpr std::uint64_t id_step = 1024;

  void launch(std::size_t b, std::uint64_t iteration) {
    std::uint64_t id = iteration * id_step + 1;
    for (std::size_t i = 0; i < b; ++i) id += bursts_[i].size();
    for (const auto& step : bursts_[b]) {
      lab_.activities->push(id++);
      step.op.launch(static_cast<int>(iteration % 64));
      lab_.activities->pop();
    }
    kernels::clock_probe(probes_ + 2 * iteration, 10'000, lab_.stream);
  }

  void collect(Row& row, std::uint64_t settled_at, std::uint64_t iterations) {
    std::vector<double> sums(op_count_, 0), counts(op_count_, 0);
    std::int64_t busy = 0, first = 0, last = 0;
    for (const auto& [id, span] : spans(lab_.activities->take())) {
      if (id / id_step + 1 < settled_at) continue;
      const std::size_t op = id % id_step - 1;
      sums[op] += static_cast<double>(span.end_ns - span.start_ns);
      counts[op] += 1;
      busy += span.end_ns - span.start_ns;
      if (first == 0) first = span.start_ns;
      last = span.end_ns;
    }
    for (std::size_t i = 0; i < op_count_; ++i) row.ns.push_back(counts[i] > 0 ? sums[i] / counts[i] : 0);
    row.duty = last > first ? std::min(1.0, static_cast<double>(busy) / static_cast<double>(last - first)) : 0;
    double clock = 0;
    for (std::uint64_t i = 0; i < iterations; ++i) {
      const double mhz = 1e3 * static_cast<double>(probes_[2 * i]) / static_cast<double>(probes_[2 * i + 1]);
      row.mhz_by_burst.push_back(mhz);
      if (i + 1 >= settled_at) clock += mhz;
    }
    if (iterations + 1 > settled_at) row.mhz = clock / static_cast<double>(iterations + 1 - settled_at);
  }

  Lab& lab_;
  std::vector<std::vector<Step>> bursts_;
  std::size_t op_count_ = 0;
  std::int64_t* probes_ = nullptr;
};

/// Slow-down of the kernels of one kind, weighted by their cool time.
double ratio(const Row& hot, const Row& cool, const std::vector<Load>& loads, Load load) {
  double a = 0, b = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    if (loads[i] != load || hot.ns[i] <= 0 || cool.ns[i] <= 0) continue;
    a += hot.ns[i];
    b += cool.ns[i];
  }
  return b > 0 ? a / b : 1;
}

/// Time until the clock has fallen by 1 - 1/e of the way from its start to where it settles: over about this long a
/// part's load decides its clock. 0: it did not fall.
double response_ms(const Row& row) {
  const std::size_t n = row.mhz_by_burst.size();
  if (n < 12) return 0;
  const double settled =
      std::accumulate(row.mhz_by_burst.end() - static_cast<std::ptrdiff_t>(n / 3), row.mhz_by_burst.end(), 0.0) /
      static_cast<double>(n / 3);
  const double start = row.mhz_by_burst.front();
  if (start < 1.02 * settled) return 0;
  const double level = settled + (start - settled) * std::exp(-1.0);
  for (std::size_t i = 0; i < n; ++i)
    if (row.mhz_by_burst[i] <= level) return row.ms_by_burst[i] - row.ms_by_burst.front();
  return 0;
}

}  // namespace

void measure_clocks(Lab& lab, Attention& attention, const std::string& precision, Session& session) {
  Sequence sequence(lab, attention, precision == "fp8");
  const auto loads = sequence.loads();
  const double seconds = session.options.quick ? 1.0 : 3.0;
  constexpr double cool_duty = 0.1;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Row cool = sequence.run(cool_duty, session.options.quick ? 1.0 : 1.5, 0.3, session.stop);
  profile::Clocks clocks;
  clocks.precision = precision;
  clocks.cool_mhz = lab.max_mhz;
  clocks.limit_watts = lab.nvml->limit_watts().value_or(0);
  clocks.rows.push_back({cool.duty, cool.mhz, cool.watts, 1, 1, 1});
  if (cool.mhz < 0.97 * lab.max_mhz) {
    session.result.warnings.push_back("clocks " + precision + ": the part was not at full clock even at a duty of " +
                                      std::to_string(cool.duty));
  }
  double response = 0;
  for (const double duty : {0.4, 0.6, 0.75, 0.9, 1.0}) {
    if (session.stop) return;
    session.report({"clocks." + precision + " duty " + std::to_string(duty).substr(0, 4), 0, 0, 0, 0});
    if (duty >= 1) std::this_thread::sleep_for(std::chrono::seconds(1));  // from a cool start: how fast the clock falls
    const Row row = sequence.run(duty, seconds, seconds / 3, session.stop);
    if (session.stop) return;
    clocks.rows.push_back({row.duty, row.mhz, row.watts, ratio(row, cool, loads, Load::matrix),
                           ratio(row, cool, loads, Load::attention), ratio(row, cool, loads, Load::memory)});
    if (duty >= 1) response = response_ms(row);
  }
  if (response > 0 && precision == "bf16") {
    session.result.profile.scalars["clocks.window_ms"] = {
        response, 0, profile::Origin::measured, "SM clock from a cool start to 1/e of its fall under full bf16 load"};
  }
  std::sort(clocks.rows.begin(), clocks.rows.end(), [](const auto& a, const auto& b) { return a.duty < b.duty; });
  session.result.profile.clocks.push_back(std::move(clocks));
}

void load_layer_kernels(Lab& lab, Attention& attention) {
  for (const bool fp8 : {false, true}) Sequence(lab, attention, fp8);
}

void measure_contention(Lab& lab, Attention& attention, Session& session, const std::function<void()>& begin,
                        const std::function<void()>& end, const std::string& beside) {
  const std::vector<std::pair<const char*, std::vector<Key>>> kinds = {
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
  for (const auto& [kind, keys] : kinds) {
    const std::string name = std::string("contention.") + kind;
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
    if (alone > 0) {
      session.result.profile.scalars[name] = {together / alone, 0, profile::Origin::measured,
                                              "time while " + beside + ", over time alone"};
    }
  }
}

}  // namespace pipewright::capture
