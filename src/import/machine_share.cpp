// A run's kernels differ from lone ones by its chips' speed, by what the clock law leaves, by kernels that only this
// run had (torch.compile's for any shape, other algorithms), by chance; its step moreover by its hosts, links and
// copies. Of all this the chips' speed is what the machine's next run will meet again:
//
//   kernels   products of the trace, brought to a cool part, over lone ones     chips + clock law
//   step      ... times what makes the simulated step as long as the run's      chips + hosts, links, offload
//
// A chip's speed shows in both. So the smaller deviation of the two counts where they have one sign, and of it the
// share that chips have in the scatter of such steps (the conditional mean of Gaussians, as in validate/speed.cpp).
#include "machine_share.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pipewright/timeline.hpp"
#include "robust_statistics.hpp"

namespace pipewright::traces {
namespace {

bool computes(const std::string& family) {
  const auto load = profile::family(family).load;
  return load != profile::Load::network && load != profile::Load::none;
}

/// By which all computing kernels of the run grow, so that its step, simulated with its own times, takes as long as it
/// did: untraced where the scenario holds its measured times, else as traced.
std::optional<double> step_over_simulated(Import& result, const scenario::Scenario& scenario,
                                          const model::Stages& stages, const profile::Profiles& lone, double span_us) {
  const auto& measured = scenario.measured;
  double target_us = span_us;
  if (measured && measured->forward_backward_ms > 0 && measured->optimizer_ms)
    target_us = 1e3 * (measured->forward_backward_ms + *measured->optimizer_ms);
  if (!(target_us > 0)) return std::nullopt;
  constexpr int rounds = 4;
  constexpr double most = 2;  // more is no kernel's: the host decides
  double whole = 1;
  auto own = result.profile;
  own.scalars["machine.slowdown"] = {1, 0, profile::Origin::derived, "these are the run's own times"};
  try {
    const auto program = schedule::build(schedule::config_of(scenario, true));
    for (int round = 0; round < rounds; ++round) {
      std::vector<profile::Profile> all = {own};
      all.insert(all.end(), lone.all().begin(), lone.all().end());
      const auto run = timeline::simulate(scenario, stages, program, profile::Profiles(std::move(all)));
      const double busy = ns_to_us(run.ranks.at(static_cast<std::size_t>(run.last_rank)).busy);
      const double factor = 1 + (target_us - ns_to_us(run.forward_backward + run.optimizer)) / std::max(busy, 1.0);
      whole *= factor;
      if (!(whole > 1 / most && whole < most)) break;
      for (auto& [family, samples] : own.samples)
        for (auto& sample : samples)
          if (computes(family)) sample.ns *= factor;
    }
  } catch (const UsageError& error) {
    result.notes.push_back(std::string("the step cannot be simulated, so nothing is known of the machine's speed: ") +
                           error.what());
    return std::nullopt;
  }
  return whole;
}

/// Products of the trace over lone ones: the median, each by its time. nullopt: the profiles have measured none of
/// them.
std::optional<double> products_over_lone(const Import& result, const profile::Profiles& lone) {
  constexpr int fewest = 4;  // of fewer, chance decides
  std::vector<std::pair<double, double>> ratios;
  for (const auto& k : result.keys) {
    if (profile::family(k.key.family).load != profile::Load::matrix || k.sample.count < fewest) continue;
    const auto alone = lone_time(k.key, lone);
    if (!alone || alone->origin != profile::Origin::measured) continue;
    ratios.emplace_back(k.sample.ns / alone->ns, k.total_us);
  }
  return weighted_median(std::move(ratios));
}

double scalar(const profile::Profiles& lone, const char* name) { return lone.find_scalar(name).value_or(0); }

/// By which steps of this kind scatter beside their prediction, relative: machines, days, and what the clock law
/// leaves.
double scatter_of(const profile::Profiles& lone, const Traced& traced) {
  const double machine = std::max(scalar(lone, "machine.spread"), scalar(lone, "clocks.chips"));
  return std::hypot(machine, scalar(lone, "clocks.law_spread") * (traced.full_load - 1));
}

/// machine.slowdown of the machine that ran this; 1: nothing that its chips explain.
double chips_slowdown(Import& result, const scenario::Scenario& scenario, const model::Stages& stages,
                      const profile::Profiles& lone, const Traced& traced) {
  const auto kernels = products_over_lone(result, lone);
  const auto rest = step_over_simulated(result, scenario, stages, lone, traced.span_us);
  if (!kernels || !rest) return 1;
  const double step = *kernels * *rest;
  const bool agree = (*kernels - 1) * (step - 1) > 0;
  const double both = !agree ? 1 : std::abs(*kernels - 1) < std::abs(step - 1) ? *kernels : step;
  const double chips = scalar(lone, "clocks.chips"), scatter = scatter_of(lone, traced);
  constexpr double sigmas = 3;
  const auto found =
      fmt::format("matrix products took {:.3f} times their lone times, the step {:.3f} times what such kernels explain",
                  *kernels, step);
  // Of the machine's chips those that were traced tell of themselves.
  const double traced_chips = static_cast<double>(result.ranks.size()) / static_cast<double>(scenario.cluster.num_gpus);
  const double share = scatter > 0 ? traced_chips * chips * chips / (scatter * scatter) : 0;
  const double slowdown = 1 + share * (both - 1);
  if (std::abs(both - 1) > sigmas * chips || std::abs(slowdown - 1) < 0.0005) {
    result.notes.push_back(found + ": of this run, not of its chips; no speed of the machine is exported");
    return 1;
  }
  result.notes.push_back(
      fmt::format("{}: machine.slowdown {:.4f}, the share of chips in what steps scatter by", found, slowdown));
  result.profile.scalars["machine.slowdown"] = {slowdown, chips * std::sqrt(1 - share), profile::Origin::measured,
                                                found};
  return slowdown;
}

/// Whether the profiles of lone kernels know an operation better than this step does. A step tells a time to `scatter`
/// at best, and none that is further from what they expect than they can be wrong: other kernels ran, or others' work
/// was taken for it.
bool known(const KeyTime& time, const profile::Timing& lone, double scatter) {
  using profile::Origin;
  if (lone.origin == Origin::measured) return true;
  constexpr double sigmas = 3, untested = 0.3;  // of what is derived: its spread may not have met a test
  constexpr int fewest = 4;                     // of fewer, chance decides
  const bool derived = lone.origin == Origin::derived;
  if (time.sample.count < fewest) return true;
  if (!derived && std::hypot(scatter, time.sample.spread) > lone.spread) return true;
  return std::abs(std::log(time.sample.ns / lone.ns)) > sigmas * std::max(lone.spread, derived ? untested : 0);
}

}  // namespace

std::optional<profile::Timing> lone_time(const profile::Key& key, const profile::Profiles& lone) {
  try {
    return lone.time(key);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

void keep_machine_share(Import& result, const scenario::Scenario& scenario, const model::Stages& stages,
                        const profile::Profiles& lone, const Traced& traced) {
  const double slowdown = chips_slowdown(result, scenario, stages, lone, traced);
  const double scatter = scatter_of(lone, traced);
  constexpr double odd = 1.3;        // more than clocks and contention leave
  constexpr double visible = 0.001;  // of the kernel time
  auto& samples = result.profile.samples;
  for (auto& [family, of_family] : samples)
    if (computes(family))
      for (auto& sample : of_family) sample.ns /= slowdown;
  for (const auto& k : result.keys) {
    const auto alone = lone_time(k.key, lone);
    const auto family = samples.find(k.key.family);
    if (!alone || family == samples.end() || !known(k, *alone, scatter)) continue;
    const auto same = [&](const profile::Sample& s) { return s.dims == k.key.dims; };
    if (std::erase_if(family->second, same) == 0) continue;
    if (family->second.empty()) samples.erase(family);
    const double ratio = k.sample.ns / alone->ns;
    if ((ratio > odd || ratio < 1 / odd) && k.total_us > visible * result.kernel_us)
      result.notes.push_back(fmt::format("kept the lone time of {}: {:.2f} times in this run", shape(k.key), ratio));
  }
}

}  // namespace pipewright::traces
