// Nodes of one rank at a time: hosts are followed for long stretches while the graph is made, so a rank's nodes are few
// ranges of numbers.
#pragma once

#include <utility>
#include <vector>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

class ByRank {
 public:
  explicit ByRank(const Graph& graph) : stretches_(static_cast<std::size_t>(graph.ranks)) {
    for (std::uint32_t node = 0; node < graph.size(); ++node) {
      auto& own = stretches_[graph.labels[node].rank];
      if (!own.empty() && own.back().second == node)
        ++own.back().second;
      else
        own.emplace_back(node, node + 1);
    }
  }
  std::size_t ranks() const { return stretches_.size(); }
  /// How many nodes the rank has.
  std::size_t size(std::size_t rank) const {
    std::size_t nodes = 0;
    for (const auto& [first, end] : stretches_[rank]) nodes += end - first;
    return nodes;
  }
  /// Calls visit(node) for the rank's nodes, in order.
  template <class Visit>
  void each(std::size_t rank, const Visit& visit) const {
    for (const auto& [first, end] : stretches_[rank])
      for (std::uint32_t node = first; node < end; ++node) visit(node);
  }

 private:
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> stretches_;  ///< first, behind the last
};

}  // namespace pipewright::timeline
