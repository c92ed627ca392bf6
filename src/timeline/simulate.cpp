// The clock that a rank settles at depends on its load, and its load on the clock: run, read the load, run again.
// Load of a kernel: the share of the time before it, over the window in which the power limiter averages, in which its
// rank computed. A step follows a step, so time before the step is the step's own end.
#include <algorithm>
#include <cmath>

#include "account.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {
namespace {

struct Busy {
  std::int64_t start, end;
  std::uint32_t node;
};

// Busy time of one rank up to any moment of the repeated step.
class Load {
 public:
  Load(std::vector<Busy> intervals, std::int64_t period) : intervals_(std::move(intervals)), period_(period) {
    before_.reserve(intervals_.size() + 1);
    std::int64_t total = 0;
    for (const Busy& busy : intervals_) {
      before_.push_back(total);
      total += busy.end - busy.start;
    }
    before_.push_back(total);
  }

  std::int64_t until(std::int64_t t) const {
    if (t < 0) return until(t + period_) - before_.back();
    const auto at = std::upper_bound(intervals_.begin(), intervals_.end(), t,
                                     [](std::int64_t time, const Busy& busy) { return time < busy.start; });
    const auto index = static_cast<std::size_t>(at - intervals_.begin());
    if (index == 0) return 0;
    const Busy& last = intervals_[index - 1];
    return before_[index - 1] + std::min(t, last.end) - last.start;
  }

  double share(std::int64_t t, std::int64_t window) const {
    window = std::min(window, period_);
    return static_cast<double>(until(t) - until(t - window)) / static_cast<double>(window);
  }
  double overall() const { return static_cast<double>(before_.back()) / static_cast<double>(period_); }
  const std::vector<Busy>& intervals() const { return intervals_; }

 private:
  std::vector<Busy> intervals_;
  std::vector<std::int64_t> before_;
  std::int64_t period_;
};

std::vector<Load> loads_of(const Graph& graph, const Times& times) {
  std::int64_t step = 1;
  for (const auto end : times.end) step = std::max(step, end);
  std::vector<std::vector<Busy>> busy(graph.ranks);
  for (std::uint32_t node = 0; node < graph.size(); ++node) {
    const Label& label = graph.labels[node];
    if (label.lane == Lane::compute && label.kind == NodeKind::kernel && label.purpose == model::Purpose::compute)
      busy[label.rank].push_back({times.start[node], times.end[node], node});
  }
  std::vector<Load> loads;
  for (auto& intervals : busy) loads.emplace_back(std::move(intervals), step);
  return loads;
}

}  // namespace

Result simulate(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
                const profile::Profiles& profiles) {
  Result result;
  result.graph = build(scenario, stages, program, profiles, price(stages, profiles));
  Graph& graph = result.graph;
  const std::vector<std::int64_t> cool = graph.duration_ns;
  const auto gap = static_cast<std::int64_t>(profiles.scalar("host.kernel_gap_us").value * 1e3 + 0.5);
  const profile::Clocks* clocks = profiles.clocks_for(scenario.settings.fp8 ? "fp8" : "bf16");
  run(graph, result.times);

  if (clocks) {
    const auto window = static_cast<std::int64_t>(profiles.scalar("clocks.window_ms").value * 1e6);
    constexpr int most_rounds = 12;  // the map contracts: hotter is slower is busier, but slow-down grows less than load
    std::int64_t before = 0;
    for (int round = 0; round < most_rounds; ++round) {
      const auto loads = loads_of(graph, result.times);
      for (const Load& load : loads)
        for (const Busy& busy : load.intervals()) {
          const double factor = clocks->slowdown(graph.loads[busy.node], load.share(busy.start, window));
          const auto own = static_cast<double>(cool[busy.node] - gap);
          graph.duration_ns[busy.node] = gap + static_cast<std::int64_t>(std::llround(own * factor));
        }
      run(graph, result.times);
      const std::int64_t step = *std::max_element(result.times.end.begin(), result.times.end.end());
      if (std::abs(step - before) * 10000 < step) break;  // 0.01 %
      before = step;
    }
  }

  const auto loads = loads_of(graph, result.times);
  for (const Load& load : loads) {
    result.duty.push_back(load.overall());
    std::int64_t now = 0, then = 0;
    for (const Busy& busy : load.intervals()) {
      now += graph.duration_ns[busy.node];
      then += cool[busy.node];
    }
    result.slowdown.push_back(then ? static_cast<double>(now) / static_cast<double>(then) : 1.0);
  }
  account(result, stages, program, gap);
  return result;
}

}  // namespace pipewright::timeline
