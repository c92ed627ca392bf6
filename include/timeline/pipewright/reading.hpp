// A finished run read for people: why each compute stream stood still and when, and where the schedule's phases begin.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// Why a compute stream stands still; `compute`: for computation on another of its streams (booked as busy).
enum class Cause : std::uint8_t { bubble, idle, host, p2p, tp, cp, ep, dp, offload, compute };
constexpr std::size_t causes = static_cast<std::size_t>(Cause::compute) + 1;
const char* name(Cause cause);  ///< "bubble", "p2p", ...

/// What a kernel of that purpose is waited for as.
Cause cause_of(model::Purpose purpose);

/// A stretch in which the compute stream of `rank` stands still before `node` (none: nothing comes any more).
struct Gap {
  std::uint32_t node = Label::none;
  std::uint32_t by = Label::none;  ///< what it waits for in that stretch; none: nothing that has a node
  std::uint16_t rank = 0;
  Cause cause = Cause::idle;
  std::int64_t start = 0, end = 0;
};

/// All of them, rank by rank in order of time. With the kernels of the compute stream they are the step: what they add
/// up to by cause are the ranks' accounts.
std::vector<Gap> gaps(const Result& result, const model::Stages& stages, const schedule::Program& program);

/// By how much each node could end later without the step ending later; `tell` hears of the last node first.
void slack(const Graph& graph, const Times& times,
           const std::function<void(std::uint32_t node, std::int64_t ns)>& tell);

/// Where steady state and cool-down of a rank's program begin (indices of instructions).
struct PhaseBounds {
  std::uint32_t steady = 0, cooldown = 0;
};
PhaseBounds phase_bounds(const schedule::RankProgram& program);

}  // namespace pipewright::timeline
