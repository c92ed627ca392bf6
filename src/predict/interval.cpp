// The 90 % interval of a step. Kernels of one family err together (same clock, same interpolation), families apart, and
// the machine differs from the profiled one as a whole:
//
//   sigma^2 = sum over families (share of the step x relative spread)^2 + (spread between machines and days)^2
//             + (share in which GPUs wait for their hosts x spread between hosts)^2
//
// The share is the family's time on the rank that finishes last; the hosts' that of the rank that waits most. Source of
// the spreads: the profile.
#include "interval.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace pipewright::predict {
namespace {

struct FamilyTime {
  double ns = 0;
  double spread_ns = 0;  // sum of time x spread: errors inside a family do not cancel
  profile::Origin origin = profile::Origin::measured;
  std::string profile, note;
};

std::map<std::string, FamilyTime> families_of(const Run& run, const timeline::Prices& prices, int rank) {
  std::map<std::string, FamilyTime> families;
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
    FamilyTime& family = families[kernel->key.family];
    const auto ns = static_cast<double>(graph.duration_ns[i]);
    family.ns += ns;
    family.spread_ns += ns * price->time.spread;
    if (price->time.origin >= family.origin) {
      family.origin = price->time.origin;
      family.note = price->time.note;
    }
    family.profile = price->time.profile;
  }
  return families;
}

}  // namespace

void judge(Prediction& prediction, const scenario::Scenario& scenario, const Run& run,
           const profile::Profiles& profiles) {
  const auto families = families_of(run, run.timeline.prices, run.timeline.last_rank);
  const auto step = static_cast<double>(std::max<std::int64_t>(prediction.step_ns, 1));
  const double machine = profiles.scalar("machine.spread").value;
  double variance = machine * machine;
  std::int64_t waits_for_host = 0;
  for (const auto& account : run.timeline.ranks) waits_for_host = std::max(waits_for_host, account.host);
  // A host whose speed is known differs from run to run only.
  const double strange = profiles.find_scalar("host.spread").value_or(0);
  const bool known = scenario.cluster.host_time_factor || profiles.find_scalar("host.time_factor");
  const double spread = known ? profiles.find_scalar("host.run_spread").value_or(strange) : strange;
  const double host = static_cast<double>(waits_for_host) / step * spread;
  variance += host * host;
  // A number that carries less than a thousandth of the step does not decide what the whole result may be called.
  constexpr double counts = 1e-3;
  profile::Origin weakest = profiles.first().origin;
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, family] : families) {
    variance += (family.spread_ns / step) * (family.spread_ns / step);
    if (family.ns / step > counts) weakest = std::max(weakest, family.origin);
    order.push_back({-family.ns, name});
  }
  std::sort(order.begin(), order.end());
  for (const auto& [ns, name] : order) {
    const FamilyTime& family = families.at(name);
    std::string text = family.profile + ", " + std::string(profile::name(family.origin));
    if (!family.note.empty()) text += ": " + family.note;
    prediction.time_sources.push_back({name, text});
  }
  const double half = sigmas_of_90_percent * std::sqrt(variance) * step;
  prediction.interval_low_ns = std::llround(step - half);
  prediction.interval_high_ns = std::llround(step + half);
  prediction.origin = profile::name(weakest);
}

}  // namespace pipewright::predict
