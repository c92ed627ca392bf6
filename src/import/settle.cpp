#include "settle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pipewright/timeline.hpp"

namespace pipewright::traces {
namespace {

bool computes(const std::string& family) {
  const auto load = profile::family(family).load;
  return load != profile::Load::network && load != profile::Load::none;
}

void scale_compute(Import& result, double factor) {
  for (auto& [family, samples] : result.profile.samples) {
    if (!computes(family)) continue;
    for (auto& sample : samples) sample.ns *= factor;
  }
  for (auto& key : result.keys)
    if (computes(key.key.family)) key.sample.ns *= factor;
}

}  // namespace

void settle(Import& result, const scenario::Scenario& scenario, const model::Stages& stages,
            const profile::Profiles& lone, double span_us) {
  const auto& measured = scenario.measured;
  double target_us = span_us;
  if (measured && measured->forward_backward_ms > 0 && measured->optimizer_ms)
    target_us = 1e3 * (measured->forward_backward_ms + *measured->optimizer_ms);
  if (!(target_us > 0)) return;
  constexpr int rounds = 4;
  constexpr double most = 0.1;  // more is no clock: the host decides, or the trace is of another machine
  const auto before = result;
  double whole = 1;
  try {
    const auto program = schedule::build(schedule::config_of(scenario, true));
    for (int round = 0; round < rounds; ++round) {
      std::vector<profile::Profile> all = {result.profile};
      all.insert(all.end(), lone.all().begin(), lone.all().end());
      const auto run = timeline::simulate(scenario, stages, program, profile::Profiles(std::move(all)));
      const double busy = ns_to_us(run.ranks.at(static_cast<std::size_t>(run.last_rank)).busy);
      const double factor = 1 + (target_us - ns_to_us(run.forward_backward + run.optimizer)) / std::max(busy, 1.0);
      whole *= factor;
      if (std::abs(whole - 1) > most) break;
      scale_compute(result, factor);
    }
  } catch (const UsageError& error) {
    result.notes.push_back(std::string("times are not settled by a simulation of the step: ") + error.what());
    return;
  }
  if (std::abs(whole - 1) > most) {
    result = before;
    result.notes.push_back(
        fmt::format("the step simulated with these times and the run's differ by more than kernels explain (x "
                    "{:.2f}): not settled",
                    whole));
    return;
  }
  result.notes.push_back(
      fmt::format("compute kernels x {:.3f}, so that the simulated step takes as long as the run's", whole));
}

}  // namespace pipewright::traces
