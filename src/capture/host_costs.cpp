// What calls of the CUDA runtime cost the host (without CUPTI, which would slow them), and how long the GPU idles
// between two kernels of one stream (with CUPTI, from the kernels' own times).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "host_speed.hpp"
#include "parts.hpp"

namespace pipewright::capture {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Median over rounds of the mean cost of `calls` calls; the stream is idle before each round.
template <class Call>
Summary cost_us(Lab& lab, int calls, Call call) {
  std::vector<double> rounds;
  for (int round = 0; round < 12; ++round) {
    check(cudaStreamSynchronize(lab.stream), "synchronize");
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    if (round > 1) rounds.push_back(microseconds_since(start) / calls);
  }
  check(cudaStreamSynchronize(lab.stream), "synchronize");
  return summarize(std::move(rounds));
}

constexpr const char* costs[] = {"host.cuda_launch_us",
                                 "host.event_us",
                                 "host.event_wait_us",
                                 "host.cuda_synchronize_us",
                                 "host.launch_and_synchronize_us",
                                 "host.event_synchronize_us",
                                 "host.stream_synchronize_us",
                                 "host.pinned_allocation_us_per_mib"};

/// Sets the scalars of the hosts' speed that are wanted; their factor, 1 where nothing is stated for the reference
/// host.
double measure_speed(Session& session, int devices) {
  const auto wanted = [&](const char* name) { return session.wants(name); };
  if (std::ranges::none_of(host_speeds, wanted) && std::ranges::none_of(costs, wanted)) return 1;
  constexpr std::chrono::milliseconds quickly{500}, usually{3000};
  constexpr double proportional = 0.1;  // PyTorch's host code need not follow this program's exactly
  const HostSpeed speed = measure_host_speed(2 * devices, session.options.quick ? quickly : usually);
  const double factor = host_time_factor(speed);
  auto& scalars = session.result.profile.scalars;
  const auto set = [&](const char* name, double value, double spread, const std::string& source) {
    if (session.wants(name)) scalars[name] = {value, spread, profile::Origin::measured, source};
  };
  const std::string how = fmt::format(
      "an interpreter in C++ on {} threads, windows of 10 ms: calm {:.1f} us (reference host {:.1f}), {:.0f} % of {} "
      "windows {:.2f} times as long, in stretches of {:.0f} ms",
      2 * devices, speed.calm_us, reference_host_us(), 100 * speed.slow_share, speed.windows, speed.slow_factor,
      speed.slow_ms);
  set("host.time_factor", factor, proportional, how);
  set("host.slow_share", speed.slow_share, 0, how);
  set("host.slow_factor", pytorch_slow_factor, 0.12, "PyTorch's host code where this program is slow (host_speed.hpp)");
  if (devices > 1) set("host.rank_spread", speed.spread, 0, "standard deviation of the threads' means: " + how);
  return factor;
}

}  // namespace

void measure_host(Lab& lab, Session& session, int devices) {
  const double factor = measure_speed(session, devices);
  const auto put = [&](const std::string& name, const Summary& s, const char* source) {
    if (!session.wants(name)) return;
    const bool gpu = name == "host.kernel_gap_us";  // the GPU's own
    session.result.profile.scalars[name] = {
        gpu ? s.median : s.median / factor, s.spread, profile::Origin::measured,
        gpu || factor == 1 ? std::string(source)
                           : fmt::format("{}; divided by {:.3f}, host.time_factor", source, factor)};
  };
  lab.activities->enable(false);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  put("host.cuda_launch_us", cost_us(lab, 400, [&] { kernels::empty(lab.stream); }),
      "cudaLaunchKernel of an empty kernel, queue not full");
  put("host.event_us", cost_us(lab, 400, [&] { check(cudaEventRecord(event, lab.stream), "record"); }),
      "cudaEventRecord");
  put("host.event_wait_us", cost_us(lab, 400, [&] { check(cudaStreamWaitEvent(lab.stream, event, 0), "wait"); }),
      "cudaStreamWaitEvent");
  put("host.cuda_synchronize_us", cost_us(lab, 100, [] { check(cudaDeviceSynchronize(), "synchronize"); }),
      "cudaDeviceSynchronize of an idle device");
  put("host.launch_and_synchronize_us",
      cost_us(lab, 50,
              [&] {
                kernels::empty(lab.stream);
                check(cudaStreamSynchronize(lab.stream), "synchronize");
              }),
      "empty kernel launched on an idle device until cudaStreamSynchronize returns");
  put("host.event_synchronize_us", cost_us(lab, 100, [&] { check(cudaEventSynchronize(event), "synchronize"); }),
      "cudaEventSynchronize of an event that has passed");
  put("host.stream_synchronize_us", cost_us(lab, 100, [&] { check(cudaStreamSynchronize(lab.stream), "synchronize"); }),
      "cudaStreamSynchronize of an idle stream");
  cudaEventDestroy(event);
  if (session.wants("host.pinned_allocation_us_per_mib")) {
    std::vector<double> per_mib;
    for (int i = 0; i < 5; ++i) {
      constexpr int mib = 64;
      void* host = nullptr;
      const auto start = Clock::now();
      check(cudaHostAlloc(&host, std::size_t{mib} << 20, cudaHostAllocDefault), "pinned memory");
      per_mib.push_back(microseconds_since(start) / mib);
      check(cudaFreeHost(host), "pinned memory");
    }
    put("host.pinned_allocation_us_per_mib", summarize(std::move(per_mib)), "cudaHostAlloc of 64 MiB");
  }
  lab.activities->enable(true);

  // Dependent kernels of 20 us each, all queued before the first starts.
  lab.reset();
  const auto op = memory_op(lab, {"add", {16 << 20}});
  if (!op) return;
  op->launch(0);
  check(cudaStreamSynchronize(lab.stream), "warm-up");
  lab.activities->take();
  *lab.gate_open = 0;
  *lab.gate_timed_out = 0;
  kernels::gate(lab.gate_open, lab.gate_timed_out, 50'000'000, lab.stream);
  constexpr int launches = 200;
  for (int i = 0; i < launches; ++i) {
    lab.activities->push(static_cast<std::uint64_t>(i) + 1);
    op->launch(i);
    lab.activities->pop();
  }
  *static_cast<volatile int*>(lab.gate_open) = 1;
  check(cudaStreamSynchronize(lab.stream), "gaps");
  std::vector<double> gaps;
  std::int64_t last = 0;
  for (const auto& [id, span] : spans(lab.activities->take())) {
    if (id > 2) gaps.push_back(1e-3 * static_cast<double>(span.start_ns - last));
    last = span.end_ns;
  }
  put("host.kernel_gap_us", summarize(std::move(gaps)),
      "idle time between two kernels queued on one stream, from CUPTI records");
}

}  // namespace pipewright::capture
