// The inner loop: longest path over the topological order.
#include <algorithm>

#include "clockwork.hpp"

namespace pipewright::timeline {

void run(const Graph& graph, Times& times) {
  times.start.resize(graph.size());
  times.end = graph.duration_ns;
  run_lasting(graph, times);
}

std::int64_t run_lasting(const Graph& graph, Times& times) {
  const auto nodes = static_cast<std::uint32_t>(graph.size());
  std::int64_t last = 0;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    std::int64_t start = 0;
    for (const Edge edge : graph.edges.of(node)) start = std::max(start, times.end[edge.from] + edge.lag_ns);
    times.start[node] = start;
    times.end[node] += start;
    last = std::max(last, times.end[node]);
  }
  return last;
}

}  // namespace pipewright::timeline
