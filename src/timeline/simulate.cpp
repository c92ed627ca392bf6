// Two things slow a kernel in a run that are not in its lone time, and both depend on when it runs: run, read, run
// again.
// - The clock follows the load: the share of the time before a kernel, over the window in which the power limiter
//   averages, in which its rank computed, each kind of kernel by its power. A step follows a step, so time before the
//   step is the step's own end.
// - An NCCL kernel beside it, waiting or moving data, holds some of the multiprocessors; a matrix product whose tiles
//   filled the part exactly then needs another wave.
#include <algorithm>
#include <cmath>

#include "account.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {
namespace {

struct Interval {
  std::int64_t start, end;
  double weight = 1;
};

// Time covered by intervals of one rank, each by its weight, up to any moment of the repeated step.
class Coverage {
 public:
  Coverage(std::vector<Interval> intervals, std::int64_t period) : period_(period) {
    std::sort(intervals.begin(), intervals.end(), [](auto a, auto b) { return a.start < b.start; });
    for (const Interval& next : intervals) {
      // What overlaps an earlier interval counts from the end of that one on.
      const std::int64_t start = intervals_.empty() ? next.start : std::max(next.start, intervals_.back().end);
      if (next.end > start) intervals_.push_back({start, next.end, next.weight});
    }
    before_.push_back(0);
    for (const Interval& one : intervals_) before_.push_back(before_.back() + covered(one, one.end));
  }

  double until(std::int64_t t) const {
    if (t < 0) return until(t + period_) - before_.back();
    const auto after = std::upper_bound(intervals_.begin(), intervals_.end(), t,
                                        [](std::int64_t time, const Interval& one) { return time < one.start; });
    const auto index = static_cast<std::size_t>(after - intervals_.begin());
    if (index == 0) return 0;
    const Interval& last = intervals_[index - 1];
    return before_[index - 1] + covered(last, std::min(t, last.end));
  }

  double share(std::int64_t from, std::int64_t to) const {
    return to > from ? (until(to) - until(from)) / static_cast<double>(to - from) : 0.0;
  }
  double share_before(std::int64_t t, std::int64_t window) const { return share(t - std::min(window, period_), t); }

 private:
  static double covered(const Interval& one, std::int64_t to) {
    return one.weight * static_cast<double>(to - one.start);
  }

  std::vector<Interval> intervals_;
  std::vector<double> before_;
  std::int64_t period_;
};

bool computes(const Label& label) {
  return (label.lane == Lane::compute || label.lane == Lane::expert) && label.kind == NodeKind::kernel &&
         label.purpose == model::Purpose::compute;
}

// NCCL kernels beside the compute stream: a transfer from the moment it begins to spin, collectives of other streams.
bool occupies(const Label& label) {
  if (label.kind == NodeKind::transfer) return true;
  return label.kind == NodeKind::kernel &&
         (label.lane == Lane::communication || label.lane == Lane::gradient || label.lane == Lane::parameter ||
          label.lane == Lane::expert) &&
         label.purpose != model::Purpose::compute;
}

struct RankUse {
  Coverage compute, network;
};

std::vector<RankUse> use_of(const Graph& graph, const Times& times, const std::optional<profile::ClockLaw>& law) {
  std::int64_t step = 1;
  for (const auto end : times.end) step = std::max(step, end);
  std::vector<std::vector<Interval>> compute(graph.ranks), network(graph.ranks);
  for (std::uint32_t node = 0; node < graph.size(); ++node) {
    const Label& label = graph.labels[node];
    if (computes(label))
      compute[label.rank].push_back({times.start[node], times.end[node], law ? law->weight(graph.loads[node]) : 1});
    if (!occupies(label)) continue;
    std::int64_t start = times.start[node];
    if (label.kind == NodeKind::transfer) start = times.end[own_start(graph, node)];
    network[label.rank].push_back({start, times.end[node]});
  }
  std::vector<RankUse> result;
  for (int r = 0; r < graph.ranks; ++r)
    result.push_back({{std::move(compute[r]), step}, {std::move(network[r]), step}});
  return result;
}

// Relative time of a kernel while an NCCL kernel runs beside it, as capture measured it.
struct Contention {
  double matrix = 1, attention = 1, memory = 1;

  explicit Contention(const profile::Profiles& profiles)
      : matrix(profiles.scalar("contention.matrix").value),
        attention(profiles.scalar("contention.attention").value),
        memory(profiles.scalar("contention.memory").value) {}

  double of(profile::Load load) const {
    switch (load) {
      case profile::Load::matrix:
        return matrix;
      case profile::Load::attention:
        return attention;
      case profile::Load::memory:
        return memory;
      default:
        return 1;
    }
  }
};

}  // namespace

Result simulate(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
                const profile::Profiles& profiles) {
  Result result;
  result.graph = build(scenario, stages, program, profiles, price(stages, profiles));
  Graph& graph = result.graph;
  const std::vector<std::int64_t> cool = graph.duration_ns;
  const auto gap = static_cast<std::int64_t>(profiles.scalar("host.kernel_gap_us").value * 1e3 + 0.5);
  const auto clocks = profiles.clock_law(scenario.settings.fp8 ? "fp8" : "bf16");
  const auto window = static_cast<std::int64_t>(clocks ? profiles.scalar("clocks.window_ms").value * 1e6 : 0);
  const Contention contention(profiles);

  run(graph, result.times);
  constexpr int most_rounds = 12;
  std::int64_t before = 0;
  for (int round = 0; round < most_rounds; ++round) {
    const auto use = use_of(graph, result.times, clocks);
    for (std::uint32_t node = 0; node < graph.size(); ++node) {
      if (!computes(graph.labels[node])) continue;
      const RankUse& rank = use[graph.labels[node].rank];
      const std::int64_t start = result.times.start[node];
      const profile::Load load = graph.loads[node];
      double factor = 1;
      if (!graph.labels[node].partitioned)
        factor += (contention.of(load) - 1) * rank.network.share(start, result.times.end[node]);
      if (clocks) factor *= clocks->slowdown(load, rank.compute.share_before(start, window));
      graph.duration_ns[node] = gap + std::llround(static_cast<double>(cool[node] - gap) * factor);
    }
    run(graph, result.times);
    const std::int64_t step = *std::max_element(result.times.end.begin(), result.times.end.end());
    if (std::abs(step - before) * 10000 < step) break;  // 0.01 %
    before = step;
  }

  std::vector<std::int64_t> now(graph.ranks, 0), then(graph.ranks, 0);
  const std::int64_t step = *std::max_element(result.times.end.begin(), result.times.end.end());
  for (std::uint32_t node = 0; node < graph.size(); ++node) {
    if (!computes(graph.labels[node])) continue;
    now[graph.labels[node].rank] += graph.duration_ns[node];
    then[graph.labels[node].rank] += cool[node];
  }
  for (int r = 0; r < graph.ranks; ++r) {
    result.duty.push_back(static_cast<double>(now[r]) / static_cast<double>(std::max<std::int64_t>(step, 1)));
    result.slowdown.push_back(then[r] ? static_cast<double>(now[r]) / static_cast<double>(then[r]) : 1.0);
  }
  account(result, stages, program, gap);
  return result;
}

}  // namespace pipewright::timeline
