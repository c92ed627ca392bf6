// How far predict::estimate() may be from predict::predict(), signed: what the search excludes and tests/predict hunts.
//
//   exact * (1 - under)  <=  estimate  <=  exact * (1 + over)        so  estimate / (1 + over) <= exact: a lower bound
//
// Read it as predict::estimate_bounds(scenario). predict::floor() never exceeds predict(). The figures cover the
// largest differences over 3000 scenarios of either kind drawn by tests/predict/contract_test.cpp
// (PIPEWRIGHT_CONTRACT=3000; dense -0.23 to +0.62 %, mixtures of experts -0.13 to +0.56 %, expert overlap -0.02 to
// +0.21 %, activation offload -0.31 to +0.92 %, beside expert overlap -0.02 to +0.11 %; a glance up to +1.65 %) and
// over the scenarios that come with the program (-0.02 to +1.69 %: 405B on GB200, whose waiting and slowing have not
// settled when the rounds of src/timeline/pace.hpp end; mixtures -0.02 to +1.59 %).
#pragma once

#include "pipewright/scenario/types.hpp"

namespace pipewright::predict {

/// Shares of the exact step time.
struct Bounds {
  double under = 0, over = 0;
  /// No exact step behind this estimate is faster.
  double least(double estimate) const { return estimate / (1 + over); }
  /// ... or slower.
  double most(double estimate) const { return estimate / (1 - under); }
};

/// The chunk-level engine takes one slowdown for up to 128 kernels; communication between kernels, of which mixtures of
/// experts have most, changes the load within a piece.
inline constexpr Bounds dense_bounds{0.005, 0.02};
inline constexpr Bounds moe_bounds{0.005, 0.02};
/// Both streams, node by node.
inline constexpr Bounds overlap_bounds{0.005, 0.015};

inline Bounds estimate_bounds(const scenario::Scenario& s) {
  if (s.settings.overlap_moe_expert_parallel_comm) return overlap_bounds;
  return s.model.num_moe_experts ? moe_bounds : dense_bounds;
}

}  // namespace pipewright::predict
