// What calls of the CUDA runtime cost the host (without CUPTI, which would slow them), and how long the GPU idles
// between two kernels of one stream (with CUPTI, from the kernels' own times).
#include <chrono>
#include <vector>

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

}  // namespace

void measure_host(Lab& lab, Session& session) {
  const auto put = [&](const char* name, const Summary& s, const char* source) {
    if (session.wants(name)) {
      session.result.profile.scalars[name] = {s.median, s.spread, profile::Origin::measured, source};
    }
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
