// Reading a finished run: where each rank's time went, which transfers were exposed, what the critical path is.
#pragma once

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// Fills ranks, boundaries, critical_path, forward_backward, optimizer and last_rank from graph and times.
/// `topology`: whose levels exchanges cross. `gap_ns`: launch gap that every kernel's duration contains.
void account(Result& result, const model::Stages& stages, const schedule::Program& program,
             const profile::Topology& topology, std::int64_t gap_ns);

/// The predecessor that decided when a node could start; none at the start of the step.
std::uint32_t binding(const Graph& graph, const Times& times, std::uint32_t node);
/// The node that ends last.
std::uint32_t last_node(const Times& times);

/// The node at which this rank's side of a transfer began to spin.
std::uint32_t own_start(const Graph& graph, std::uint32_t transfer);

}  // namespace pipewright::timeline
