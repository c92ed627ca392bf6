// What slows a kernel in a run, as the profile knows it: the gap behind a launch, the clock under load, an NCCL kernel
// beside. The exact engine (clockwork.cpp) and the chunk-level one (collapse.cpp) apply the same.
#pragma once

#include <array>
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
  /// What a flex dispatcher's multiprocessors count beside NCCL's, which capture measured.
  double dispatcher = 1;
  /// Under expert-parallel overlap, the other way round: relative time of an experts' exchange beside a kernel of each
  /// kind (matrix, attention, memory) all the while; what they share is memory above all.
  bool slows_exchanges = false;
  std::array<double, 3> beside{1, 1, 1};
};

}  // namespace pipewright::timeline
