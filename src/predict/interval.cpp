// The 90 % interval of a step. Kernels of one family err together (same clock, same interpolation), families apart, and
// the machine differs from the profiled one as a whole:
//
//   sigma^2 = sum over families (share of the step x relative spread)^2 + (spread between machines and days)^2
//
// The share is the family's time on the rank that finishes last. Source of the spreads: the profile. On either side
// comes what the step is with a host that is faster or slower by its own spread.
//
// Hosts differ by more than that, and upwards: the slowest measured took host.slowest_factor times as long as the
// profile's (docs/hosts.md). Where nothing states the host (cluster.host_time_factor), the upper end also covers the
// step with that one.
#include "interval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "pipewright/effects.hpp"

namespace pipewright::predict {
namespace {

/// Collectives under another tuning of NCCL than the profile's: two builds' tables of one machine differed by 1 to 13 %
/// in time (nccl-tests of this profile and of NVIDIA's aiconfigurator, 4 MB and more).
constexpr double untold_tuning = 0.1;
/// Permutation is priced as TE's fused kernels; without moe_permute_fusion a sort, an index and a copy move the rows
/// once more (moe_utils.py permute, unpermute).
constexpr double unfused_permutation = 1.0;

struct FamilyTime {
  double ns = 0;
  double spread_ns = 0;  // sum of time x spread: errors inside a family do not cancel
  profile::Origin origin = profile::Origin::measured;
  std::string profile, note;
};

struct Kernels {
  std::map<std::string, FamilyTime> families;
  double by_origin[4] = {0, 0, 0, 0};  ///< as profile::Origin counts
};

Kernels kernels_of(const Run& run, const timeline::Prices& prices, int rank) {
  Kernels all;
  const auto& graph = run.timeline.graph;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const timeline::Label& label = graph.labels[i];
    if (label.rank != rank || label.kind != timeline::NodeKind::kernel) continue;
    const model::Kernel* kernel = timeline::kernel_of(run.stages, label);
    const timeline::Price* price = nullptr;
    if (label.piece() != timeline::Label::none) {
      price = &prices.pieces[label.piece()][label.kernel()];
    } else if (label.phase == 1) {
      price = &prices.finalize[rank][label.kernel()];
    } else if (label.phase == 2) {
      price = &prices.optimizer[rank][label.kernel()];
    }
    if (!kernel || !price) continue;  // gradient and parameter collectives beside the schedule: mostly hidden
    FamilyTime& family = all.families[kernel->key.family];
    const auto ns = static_cast<double>(graph.duration_ns[i]);
    family.ns += ns;
    family.spread_ns += ns * price->time.spread;
    all.by_origin[static_cast<std::size_t>(price->time.origin)] += ns;
    if (price->time.origin >= family.origin) {
      family.origin = price->time.origin;
      family.note = price->time.note;
    }
    family.profile = price->time.profile;
  }
  return all;
}

OriginShares shares_of(const Kernels& kernels) {
  const auto& [measured, interpolated, published, derived] = kernels.by_origin;
  const double all = measured + interpolated + published + derived;
  if (all <= 0) return {1, 0, 0, 0};
  return {measured / all, interpolated / all, published / all, derived / all};
}

bool communicates(const std::string& family) { return profile::family(family).load == profile::Load::network; }

bool permutes(const std::string& family) {
  return family.starts_with("moe.permute") || family.starts_with("moe.unpermute") || family.starts_with("moe.sort");
}

/// How the step depends on its host, by the chunk-level engine: one that hides behind the GPU may not when it is
/// slower.
struct HostEffect {
  double faster = 0, slower = 0;  ///< the step's relative change with a host of one standard deviation less, more
  double slowest = 0;             ///< with the slowest of the hosts that were measured
  std::optional<double> slowest_factor;  ///< its factor, where nothing says which host this is
};

HostEffect host_effect(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  // A host whose factor is stated or measured differs from run to run only. A derived profile's factor is a guess.
  const auto factor = profiles.find_scalar("host.time_factor");
  const bool stated = scenario.cluster.host_time_factor.has_value();
  const bool known = stated || (factor && profiles.scalar("host.time_factor").origin == profile::Origin::measured);
  const double strange = profiles.find_scalar("host.spread").value_or(0);
  const double spread = known ? profiles.find_scalar("host.run_spread").value_or(strange) : strange;
  const double own = timeline::host_time_factor(scenario, profiles);
  const auto step_ns = [&](double host) {
    scenario::Scenario other = scenario;
    other.cluster.host_time_factor = host;
    return static_cast<double>(estimate(other, profiles).step_ns);
  };
  HostEffect effect;
  const double reference = std::max(1.0, step_ns(own));
  if (spread > 0) {
    effect.slower = std::max(0.0, step_ns(own * (1 + spread)) / reference - 1);
    effect.faster = std::max(0.0, 1 - step_ns(own * std::max(0.0, 1 - spread)) / reference);
  }
  if (!stated && !factor) effect.slowest_factor = profiles.find_scalar("host.slowest_factor");
  if (effect.slowest_factor) effect.slowest = std::max(0.0, step_ns(*effect.slowest_factor) / reference - 1);
  return effect;
}

std::string whole_percent(double share) { return std::to_string(std::llround(100 * share)) + " %"; }

}  // namespace

std::string OriginShares::text() const {
  std::string text;
  for (const auto& [share, name] : {std::pair(measured, "measured"), std::pair(interpolated, "interpolated"),
                                    std::pair(published, "public"), std::pair(derived, "derived")}) {
    if (std::llround(100 * share) > 0) text += (text.empty() ? "" : ", ") + whole_percent(share) + " " + name;
  }
  return text;
}

std::string_view OriginShares::weakest() const {
  constexpr double counts = 1e-3;
  return profile::name(derived > counts        ? profile::Origin::derived
                       : published > counts    ? profile::Origin::published
                       : interpolated > counts ? profile::Origin::interpolated
                                               : profile::Origin::measured);
}

void judge(Prediction& prediction, const scenario::Scenario& scenario, const Run& run,
           const profile::Profiles& profiles) {
  const Kernels kernels = kernels_of(run, run.timeline.prices, run.timeline.last_rank);
  const auto step = static_cast<double>(std::max<std::int64_t>(prediction.step_ns, 1));
  const double machine = profiles.scalar("machine.spread").value;
  double variance = machine * machine;
  const auto tuned = scenario::tunings(scenario);
  std::vector<std::pair<double, std::string>> order;
  double tuned_ns = 0, unfused_ns = 0;
  for (const auto& [name, family] : kernels.families) {
    variance += (family.spread_ns / step) * (family.spread_ns / step);
    if (communicates(name)) tuned_ns += family.ns;
    if (permutes(name)) unfused_ns += family.ns;
    order.push_back({-family.ns, name});
  }
  if (!tuned.empty()) variance += std::pow(untold_tuning * std::min(tuned_ns, step) / step, 2);
  if (scenario.model.num_moe_experts && !scenario.settings.moe_permute_fusion)
    variance += std::pow(unfused_permutation * std::min(unfused_ns, step) / step, 2);
  std::sort(order.begin(), order.end());
  for (const auto& [ns, name] : order) {
    const FamilyTime& family = kernels.families.at(name);
    std::string text = family.profile + ", " + std::string(profile::name(family.origin));
    if (!family.note.empty()) text += ": " + family.note;
    prediction.time_sources.push_back({name, text});
  }
  const HostEffect host = host_effect(scenario, profiles);
  const auto half = [&](double by_host) {
    return sigmas_of_90_percent * std::sqrt(variance + by_host * by_host) * step;
  };
  prediction.interval_low_ns = std::llround(step - half(host.faster));
  prediction.interval_high_ns = std::llround(step + std::hypot(half(host.slower), host.slowest * step));
  prediction.origins = shares_of(kernels);
  prediction.ignored = scenario::let_through(scenario);

  if (prediction.origins.derived > 0.5)
    prediction.notes.push_back(whole_percent(prediction.origins.derived) +
                               " of the kernels' time is derived, not measured on this part: capture it before "
                               "deciding by a few percent");
  if (host.slowest * step > half(host.slower))
    prediction.notes.push_back(fmt::format(
        "hosts decide: on one {:.1f} times as slow as the profile's the step takes {} longer; cluster.host_time_factor "
        "states yours",
        *host.slowest_factor, whole_percent(host.slowest)));
  std::string names;
  for (const auto& name : prediction.ignored) names += (names.empty() ? "" : ", ") + name;
  if (!names.empty()) prediction.notes.push_back("no interval holds: not modelled, and ignored as asked: " + names);
}

}  // namespace pipewright::predict
