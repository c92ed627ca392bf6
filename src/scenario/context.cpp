#include "pipewright/scenario/context.hpp"

#include <algorithm>

namespace pipewright::scenario {

std::optional<ContextSharing> context_sharing(const Scenario& s) {
  const auto& o = s.settings;
  const Int cp = o.context_parallel_size;
  if (cp <= 1) return ContextSharing{};
  if (o.cp_comm_type.empty()) return ContextSharing{1, cp, false};
  const auto& type = o.cp_comm_type.front();
  if (std::ranges::any_of(o.cp_comm_type, [&](const auto& each) { return each != type; })) return std::nullopt;
  if (type == "p2p") return ContextSharing{1, cp, false};
  if (type == "a2a") return ContextSharing{cp, 1, false};
  if (type == "all_gather") return ContextSharing{1, 1, true};
  const Ints& sizes = o.hierarchical_context_parallel_sizes;
  if (sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1 || cp % sizes[0] != 0 || cp / sizes[0] != sizes[1])
    return std::nullopt;
  return ContextSharing{sizes[0], sizes[1], false};
}

}  // namespace pipewright::scenario
