// How context-parallel ranks share attention (cp_comm_type, hierarchical_context_parallel_sizes).
#pragma once

#include <optional>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

/// heads x ring = context_parallel_size, unless keys are gathered: then both are 1. Ranks of `heads` are neighbours, of
/// `ring` heads x TP apart (megatron/core/parallel_state.py, create_hierarchical_groups).
struct ContextSharing {
  Int heads = 1;         ///< ranks that exchange heads by all-to-all
  Int ring = 1;          ///< ranks around which keys and values go
  bool gathers = false;  ///< keys and values of all ranks are gathered (all_gather)
};

/// Nothing: layers that differ in it, or two levels whose sizes are missing, not two or of another product.
/// As in TE, a level of one rank is none: a2a+p2p of [1, n] is p2p, of [n, 1] a2a.
std::optional<ContextSharing> context_sharing(const Scenario&);

}  // namespace pipewright::scenario
