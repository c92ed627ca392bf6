// What slows a kernel in a run, as the profile knows it: the gap behind a launch, the clock under load, an NCCL kernel
// beside. The exact engine (clockwork.cpp) and the chunk-level one (collapse.cpp) apply the same.
#pragma once

#include <optional>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

struct Pace {
  Pace(const scenario::Scenario& scenario, const profile::Profiles& profiles);
  /// Relative time of a kernel beside an NCCL kernel all the while, as capture measured it.
  double contention(profile::Load load) const;

  std::int64_t gap_ns, window_ns = 0;            ///< launch gap; time over which the power limit averages
  std::optional<profile::ClockLaw> clocks;       ///< of GPUs in lockstep; none: the profile has no clocks
  double matrix = 1, attention = 1, memory = 1;  ///< contention() of each kind
};

}  // namespace pipewright::timeline
