#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace pipewright::capture {
namespace {

constexpr double kBurstNs = 5e6;      // the power controller of a Hopper part reacts over some tens of milliseconds
constexpr double kFullClock = 0.985;  // of the cool clock: one step of 15 MHz, and the probe's own resolution
constexpr std::int64_t kGateLimitNs = 50'000'000;

void sleep_ns(double ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<std::int64_t>(ns))); }

// Launches `count` times behind the gate; spans by launch. Empty if the gate timed out (the host was too slow to
// queue).
std::vector<Span> burst(Lab& lab, const Op& op, int first_slot, int count) {
  volatile int* open = lab.gate_open;
  *open = 0;
  *lab.gate_timed_out = 0;
  kernels::gate(open, lab.gate_timed_out, kGateLimitNs, lab.stream);
  struct Opener {
    volatile int* open;
    ~Opener() { *open = 1; }
  } opener{open};  // a launch that throws must not leave the GPU spinning
  for (int i = 0; i < count; ++i) {
    if (op.before) op.before(first_slot + i);
    lab.activities->push(static_cast<std::uint64_t>(i) + 1);
    op.launch(first_slot + i);
    lab.activities->pop();
  }
  *open = 1;
  check(cudaGetLastError(), "launch");
  check(cudaStreamSynchronize(lab.stream), "burst");
  std::vector<Span> result;
  for (const auto& [id, span] : spans(lab.activities->take())) result.push_back(span);
  if (*lab.gate_timed_out != 0) result.clear();
  return result;
}

}  // namespace

Measurement measure(Lab& lab, const Op& op, const Effort& effort) {
  Measurement result;
  // The first launch loads the kernels (lazily, which must not happen behind a closed gate).
  if (op.before) op.before(0);
  for (int i = 0; i < op.variants; ++i) op.launch(i);
  check(cudaStreamSynchronize(lab.stream), "warm-up");
  lab.activities->take();

  std::vector<double> samples;
  int slot = 1, retries = 0;
  double one = 0;
  while (static_cast<int>(samples.size()) < effort.most && !enough(samples, effort.least, effort.noise)) {
    const int wanted = one == 0 ? 2 : std::clamp(static_cast<int>(kBurstNs / one), 1, effort.least);
    const auto measured = burst(lab, op, slot, wanted + 1);  // one more, which is warm-up for clocks and TLB
    slot += wanted + 1;
    if (measured.empty()) {
      if (++retries > 3) throw std::runtime_error("the host is too slow to queue a burst of launches");
      continue;
    }
    double total = 0;
    for (const Span& span : measured) total += static_cast<double>(span.end_ns - span.start_ns);
    one = std::max(1.0, total / static_cast<double>(measured.size()));
    result.mhz = lab.probe_mhz();
    result.cool = result.mhz >= kFullClock * lab.max_mhz;
    const bool again = !result.cool && retries < 2;
    if (again)
      ++retries;
    else
      for (std::size_t i = 1; i < measured.size(); ++i) {
        samples.push_back(static_cast<double>(measured[i].end_ns - measured[i].start_ns));
      }
    sleep_ns(std::min(total * op.pause * (again ? 8 : 1), 4e8));
  }
  lab.activities->take();
  result.ns = summarize(samples);
  return result;
}

}  // namespace pipewright::capture
