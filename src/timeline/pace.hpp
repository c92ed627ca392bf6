// What slows a kernel in a run, as the profile knows it: the gap behind a launch, the clock under load, an NCCL kernel
// beside. The exact engine (clockwork.cpp) and the chunk-level one (collapse.cpp) apply the same.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// What runs beside what follows from the times, and these from that: both engines go round after round, each this far
/// towards what the one before says; at 1 waiting jumps to and fro between ranks, as who waits slows who does not.
inline constexpr double towards_next_round = 0.6;
/// As many in both engines, so that what still moves then moves alike (a step by 0.1 % a round at most, where a long
/// pipeline waits much and matrix products lose much beside a waiting transfer).
inline constexpr int most_rounds = 8;
/// `share`: of the step.
inline bool settled(double before, double step, double share) { return std::abs(step - before) < share * step; }

/// What slows as the clock falls, in the order of tables of factors: kinds of kernels that compute, which slow beside
/// others, too; then NCCL's over NVLink.
inline constexpr std::array slowing_loads{profile::Load::matrix, profile::Load::attention, profile::Load::memory,
                                          profile::Load::ring, profile::Load::peers};
inline constexpr std::size_t computing_kinds = 3;  ///< of them
/// Place in them; none for those that do not slow (the network, fixed times).
inline std::optional<std::size_t> place_of(profile::Load load) {
  const auto* const found = std::find(slowing_loads.begin(), slowing_loads.end(), load);
  if (found == slowing_loads.end()) return std::nullopt;
  return static_cast<std::size_t>(found - slowing_loads.begin());
}
/// The same of kernels that compute alone.
inline std::optional<std::size_t> kind_of(profile::Load load) {
  const auto place = place_of(load);
  return place && *place < computing_kinds ? place : std::nullopt;
}
inline bool is_on_wire(profile::Load load) { return load == profile::Load::ring || load == profile::Load::peers; }

struct Pace {
  Pace(const scenario::Scenario& scenario, const profile::Profiles& profiles);
  /// Relative time of a kernel beside an NCCL kernel all the while, as capture measured it.
  double contention(profile::Load load) const;

  std::int64_t gap_ns, window_ns = 0;            ///< launch gap; time over which the power limit averages
  std::optional<profile::ClockLaw> clocks;       ///< of GPUs in lockstep; none: the profile has no clocks
  double matrix = 1, attention = 1, memory = 1;  ///< contention() of each kind
  /// The same of a product that leaves multiprocessors free, over its time on those that it takes: 1 where they are as
  /// many as what runs beside holds, and beside userbuffers, which hold their own.
  double leaving = 1;
  /// What a flex dispatcher's multiprocessors count beside NCCL's, which capture measured over NVLink; what those of a
  /// transfer over the network count.
  double dispatcher = 1, across = 1;
  std::vector<bool> crosses;  ///< by pipeline rank: between it and the next one the network lies
  /// Under expert-parallel overlap, the other way round: relative time of an experts' exchange beside a kernel of each
  /// kind (matrix, attention, memory) all the while; what they share is memory above all.
  bool slows_exchanges = false;
  std::array<double, 3> beside{1, 1, 1};
};

}  // namespace pipewright::timeline
