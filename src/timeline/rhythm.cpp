// See rhythm.hpp.
#include "rhythm.hpp"

#include <algorithm>
#include <cmath>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

namespace {

constexpr int group_without_interleaving = 4;  ///< microbatches: waits may alternate from one to the next

}  // namespace

Rhythm rhythm(const schedule::Config& config, const std::vector<Beats>& ranks, double same) {
  const int period = schedule::period(config);
  Rhythm result;
  result.apart = config.chunks ? period : group_without_interleaving;
  // First microbatches of the last whole group and of the one before it.
  const int last = config.chunks ? (config.microbatches / period - 1) * period : config.microbatches - 1;
  const int before = last - result.apart;
  if (before < 0) return result;
  const auto pace = [&](const std::vector<double>& beats) {
    return beats[static_cast<std::size_t>(last)] - beats[static_cast<std::size_t>(before)];
  };
  double slowest = INFINITY;
  for (const Beats& beats : ranks) {
    slowest = std::min(slowest, pace(beats.compute));
    result.growth = std::max(result.growth, pace(beats.compute));
    if (!beats.host.empty()) result.growth = std::max(result.growth, pace(beats.host));
  }
  result.settled = slowest >= result.growth * (1 - same);
  return result;
}

schedule::Config shortened(schedule::Config config) {
  if (config.varied) return config;
  const int p = config.stages, v = config.chunks.value_or(1), n = schedule::period(config), all = config.microbatches;
  // Warm-up of the first rank: 2 (p - 1) + (v - 1) N chunks; then four groups (1F1B: 12 microbatches).
  int settled = config.chunks ? (2 * (p - 1) + (v - 1) * n + v - 1) / v + 4 * n : 2 * p + 12;
  // Where weight gradients of the head stop to wait, the last rank takes another rhythm.
  if (config.deferred_head_wgrads < all) settled += config.deferred_head_wgrads;
  if (all > settled) config.microbatches = settled + (all - settled) % n;
  return config;
}

schedule::Config prolonged(schedule::Config few, int all) {
  const int n = schedule::period(few);
  // Twice as many, as many whole groups less than all.
  few.microbatches = all - (all - std::min(all, 2 * few.microbatches)) / n * n;
  return few;
}

Estimate extrapolate(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
                     const profile::Profiles& profiles) {
  auto few = shortened(config);
  for (;;) {
    const auto program = schedule::build(few);
    const auto run = simulate(scenario, stages, program, profiles);
    Estimate result{run.forward_backward, run.optimizer, static_cast<std::int64_t>(run.graph.size())};
    const int left = config.microbatches - few.microbatches;
    if (left == 0) return result;
    std::vector<Beats> ranks(program.ranks.size());
    for (auto& rank : ranks) rank.compute.assign(static_cast<std::size_t>(few.microbatches), INFINITY);
    for (std::size_t node = 0; node < run.graph.size(); ++node) {
      const Label& label = run.graph.labels[node];
      if (label.lane != Lane::compute || label.kind != NodeKind::kernel || label.instruction == Label::none) continue;
      const auto& i = program.ranks[label.rank].instructions[label.instruction];
      const bool forward = i.kind == schedule::Kind::forward ||
                           (i.kind == schedule::Kind::node && i.node.pass == schedule::Node::Pass::forward);
      if (!forward || i.chunk != 0) continue;
      auto& beat = ranks[label.rank].compute[static_cast<std::size_t>(i.microbatch)];
      beat = std::min(beat, static_cast<double>(run.times.start[node]));
    }
    if (const auto found = rhythm(few, ranks, same_beside); found.settled) {
      result.forward_backward += std::llround(found.growth * left / found.apart);
      return result;
    }
    few = prolonged(few, config.microbatches);
  }
}

}  // namespace pipewright::timeline
