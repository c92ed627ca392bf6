// The inner loop: longest path over the topological order.
#include <algorithm>

#include "clockwork.hpp"

namespace pipewright::timeline {

void run(const Graph& graph, Times& times) {
  times.start.resize(graph.size());
  times.end = graph.duration_ns;
  run_lasting(graph, times);
}

void run_lasting(const Graph& graph, Times& times) {
  const std::size_t nodes = graph.size();
  const Graph::Edge* edges = graph.edges.data();
  for (std::size_t node = 0; node < nodes; ++node) {
    std::int64_t start = 0;
    for (std::uint32_t e = graph.first_edge[node]; e < graph.first_edge[node + 1]; ++e)
      start = std::max(start, times.end[edges[e].from] + edges[e].lag_ns);
    times.start[node] = start;
    times.end[node] += start;
  }
}

}  // namespace pipewright::timeline
