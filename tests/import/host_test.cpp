// What a trace says of its host: costs of launches, its speed beside the reference, and where it says nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>

#include "../../src/import/match.hpp"
#include "../on_h200.hpp"
#include "dense.hpp"
#include "pipewright/import.hpp"
#include "pipewright/scenario/io.hpp"

namespace host_test {

using namespace pipewright;
using namespace pipewright::test;

TEST_CASE("launch records give the host's costs, part of a step gives a note") {
  const auto scenario = dense();
  const auto trace = traces::read("data/dense.chrome.json.gz");
  CHECK(trace.rank == 1);
  CHECK(trace.device == "NVIDIA H200");
  const auto result = traces::import_traces(scenario, {trace}, {"part", 1.25, ""}, nullptr);
  CHECK(result.attributed_us / result.kernel_us > 0.98);
  REQUIRE(result.notes.size() >= 1);
  CHECK(result.notes[0].find("part of a step") != std::string::npos);
  const auto us = [&](const std::string& name) { return result.profile.scalars.at("host." + name + "_us").value; };
  // The whole step's: 216, 129, 107, 126 us (attention, SwiGLU, forward and backward; of 230 and 138, 161 and 190
  // traced, what the profiler's records of operators cost in that direction taken off); 65 us a transfer's call.
  CHECK(us("forward.attention.forward") == doctest::Approx(216).epsilon(0.2));
  CHECK(us("forward.swiglu.forward") == doctest::Approx(129).epsilon(0.2));
  CHECK(us("backward.attention.backward") == doctest::Approx(107).epsilon(0.2));
  CHECK(us("backward.swiglu.backward") == doctest::Approx(126).epsilon(0.2));
  CHECK(us("p2p_call") == doctest::Approx(65).epsilon(0.2));
  CHECK(us("kernel_gap") == doctest::Approx(1.6).epsilon(0.5));
  // The overhead divides.
  const auto untouched = traces::import_traces(scenario, {trace}, {"part", 1.0, ""}, nullptr);
  CHECK(untouched.profile.scalars.at("host.p2p_call_us").value == doctest::Approx(1.25 * us("p2p_call")).epsilon(1e-6));
}

TEST_CASE("records of the host's operators cost backward passes more, CUDA's records alone both directions alike") {
  auto trace = traces::read("data/dense.chrome.json.gz");
  REQUIRE(trace.operators);
  const auto costs = [&](std::optional<double> stated) {
    return traces::import_traces(dense(), {trace}, {"part", stated, ""}, nullptr).profile.scalars;
  };
  const auto with = costs(std::nullopt);
  trace.operators = false;
  const auto without = costs(std::nullopt), stated = costs(1.25);
  int forward = 0, backward = 0;
  for (const auto& [name, scalar] : with) {
    if (!name.ends_with("_us") || name == "host.kernel_gap_us" || scalar.value == 0) continue;
    CAPTURE(name);
    // 1.25 of a whole step, 1.42 times as much of it in backward passes as in forward passes.
    const double cost = stated.at(name).value * 1.25 / scalar.value;
    const bool once = name.find("_begin") == std::string::npos && name.find("_end") == std::string::npos;
    if (once && name.starts_with("host.forward.")) {
      CHECK(cost == doctest::Approx(1.065).epsilon(0.001));
      ++forward;
    }
    if (once && name.starts_with("host.backward.")) {
      CHECK(cost == doctest::Approx(1.5125).epsilon(0.001));
      ++backward;
    }
    CHECK(without.at(name).value * 1.1 == doctest::Approx(stated.at(name).value * 1.25).epsilon(0.001));
  }
  CHECK(forward > 5);
  CHECK(backward > 5);
}

TEST_CASE("a host's speed is told against the profile's reference: its own trace is 1, and what slows it divides") {
  const auto scenario = dense();
  const auto trace = traces::read("data/dense.chrome.json.gz");
  const profile::Profiles h200({profile::load("../../profiles/h200-sxm.json", {"test", 0})});
  const auto told = [&](double overhead) {
    const auto result = traces::import_traces(scenario, {trace}, {"part", overhead, ""}, &h200);
    for (const auto& note : result.notes) {
      double times = 0;
      if (std::sscanf(note.c_str(), "hosts take %lf times", &times) == 1) return times;
    }
    return 0.0;
  };
  CHECK(told(1.25) == doctest::Approx(1).epsilon(0.1));
  CHECK(told(0.625) == doctest::Approx(2 * told(1.25)).epsilon(0.01));
}

TEST_CASE("an operation that stands in other Python than the reference host's does not decide a host's speed") {
  const auto scenario = dense();
  const auto measured = traces::read("data/dense.chrome.json.gz");
  const profile::Profiles h200({profile::load("../../profiles/h200-sxm.json", {"test", 0})});
  const auto told = [&](const traces::Trace& trace) {
    const auto result = traces::import_traces(scenario, {trace}, {"part", 1.25, ""}, &h200);
    for (const auto& note : result.notes) {
      double times = 0;
      if (std::sscanf(note.c_str(), "hosts take %lf times", &times) == 1) return times;
    }
    return 0.0;
  };
  for (const char* name : {"CUDAFunctor_add<c10::BFloat16>", "direct_copy_kernel", "rmsnorm_fwd"}) {
    auto trace = measured;
    std::vector<traces::Activity*> launched;
    for (auto& a : trace.activities)
      if (a.launch.known()) launched.push_back(&a);
    std::sort(launched.begin(), launched.end(),
              [](const auto* a, const auto* b) { return a->launch.start < b->launch.start; });
    // Their interval shrinks to a fifth: all later launches come earlier.
    std::int64_t earlier = 0, before = launched.front()->launch.start;
    int changed = 0;
    for (auto* a : launched) {
      const auto start = a->launch.start;
      if (trace.names[a->name].find(name) != std::string::npos) earlier += (start - before) * 4 / 5, ++changed;
      a->launch.start -= earlier;
      before = start;
    }
    CAPTURE(std::string(name));
    CHECK(changed >= 8);
    CHECK(told(trace) == doctest::Approx(told(measured)).epsilon(0.06));
  }
}

TEST_CASE("a host that is slow for a part of the step has its mean pace, not its median's") {
  const auto scenario = dense();
  auto trace = traces::read("data/dense.chrome.json.gz");
  const profile::Profiles h200({profile::load("../../profiles/h200-sxm.json", {"test", 0})});
  const auto told = [&] {
    const auto result = traces::import_traces(scenario, {trace}, {"part", 1.25, ""}, &h200);
    for (const auto& note : result.notes) {
      double times = 0;
      if (std::sscanf(note.c_str(), "hosts take %lf times", &times) == 1) return times;
    }
    return 0.0;
  };
  const double calm = told();
  // Every host's clock runs at a third of its speed for one second in four.
  std::int64_t first = INT64_MAX, last = 0;
  for (const auto& a : trace.activities) {
    if (!a.launch.known()) continue;
    first = std::min(first, a.launch.start);
    last = std::max(last, a.launch.start);
  }
  const double period = static_cast<double>(last - first) / 16, share = 0.25, longer = 3;
  const auto stretched = [&](std::int64_t at) {
    const double t = static_cast<double>(at - first);
    const double whole = std::floor(t / period), part = t / period - whole;
    return first + std::llround(period * (whole * (1 - share + share * longer) + std::min(part, 1 - share) +
                                          longer * std::max(0.0, part - (1 - share))));
  };
  for (auto& a : trace.activities) {
    if (!a.launch.known()) continue;
    const std::int64_t end = stretched(a.launch.start + a.launch.duration);
    a.launch.start = stretched(a.launch.start);
    a.launch.duration = end - a.launch.start;
  }
  CHECK(told() == doctest::Approx(calm * (1 - share + share * longer)).epsilon(0.1));
}

}  // namespace host_test
