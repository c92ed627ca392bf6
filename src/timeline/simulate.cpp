// Build, run under the clocks that the load implies, and read.
#include <utility>

#include "account.hpp"
#include "clockwork.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {
namespace {

// How busy each rank is and how much slower its kernels run than on a cool part; from here on durations are as they
// run.
void read_clocks(Result& result, std::int64_t step) {
  Graph& graph = result.graph;
  std::vector<std::int64_t> now(static_cast<std::size_t>(graph.ranks), 0), then = now;
  for (std::uint32_t node = 0; node < graph.size(); ++node) {
    const Label& label = graph.labels[node];
    const std::int64_t cool = std::exchange(graph.duration_ns[node], result.times.end[node] - result.times.start[node]);
    if (!Clockwork::computes(label)) continue;
    now[label.rank] += graph.duration_ns[node];
    then[label.rank] += cool;
  }
  for (std::size_t r = 0; r < now.size(); ++r) {
    result.duty.push_back(static_cast<double>(now[r]) / static_cast<double>(step));
    result.slowdown.push_back(then[r] ? static_cast<double>(now[r]) / static_cast<double>(then[r]) : 1.0);
  }
}

}  // namespace

Result simulate(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
                const profile::Profiles& profiles) {
  Result result;
  result.prices = price(scenario, stages, profiles);
  result.graph = build(scenario, stages, program, profiles, result.prices);
  const Clockwork clockwork(scenario, profiles);
  const std::int64_t step = clockwork.settle(result.graph, result.times);
  read_clocks(result, step);
  account(result, stages, program, model::topology(scenario), clockwork.gap());
  return result;
}

}  // namespace pipewright::timeline
