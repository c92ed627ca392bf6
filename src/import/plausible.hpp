// Traces that cannot be of the scenario, the GPU or each other, though their kernels look alike.
#pragma once

#include "match.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::traces {

/// A whole step turns from forward to backward as often as its schedule does; `steps` of them.
void refuse_another_schedule(const Trace& trace, const Mapping& mapping, const schedule::Program& program, int pp_rank,
                             std::size_t steps);

/// What traces carry of their run: the same GPU, versions, world, marked steps and time of day for all ranks, and
/// process groups of the scenario's sizes.
void refuse_mixed_runs(const std::vector<Trace>& traces);
void refuse_other_groups(const Trace& trace, const scenario::Scenario& scenario);

/// Ranks of one run take the same step. `spans_us`: of whole steps, by file.
void refuse_other_runs(const std::vector<std::pair<std::string, double>>& spans_us);

/// Matrix products run below the peak of their GPU, near the time that profiles of lone kernels tell (nullptr: none).
/// Single ones that do not are left out.
void refuse_impossible_products(Import& result, const profile::Profiles* lone);

}  // namespace pipewright::traces
