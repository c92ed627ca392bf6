// How a schedule goes on once its pipeline is full, read from a run of few microbatches.
//
//   rank 0   F F F F|F F F F|F F F F|..      every group of microbatches (N with interleaving, some without) takes as
//   rank 3        F|FBFBFBFB|FBFBFBFB|..      long as the one before it, on every rank, or the run is still settling
//
// A step is a (max, +) recursion: the slowest circuit of waits decides in the end, yet while buffers between ranks
// fill, others may run at their own pace. So what a further group adds may be read only where all ranks keep one pace,
// and no host falls behind.
#pragma once

#include <vector>

#include "pipewright/schedule.hpp"

namespace pipewright::timeline {

/// When a rank begins forwards of its first chunk, by microbatch, ns: on its compute stream, and its host.
struct Beats {
  std::vector<double> compute, host;
};

struct Rhythm {
  double growth = 0;     ///< of the step with each further group of `apart` microbatches, ns
  int apart = 1;         ///< microbatches
  bool settled = false;  ///< every rank keeps that pace
};
/// Paces that differ by less than `same`, a share, are one.
Rhythm rhythm(const schedule::Config& config, const std::vector<Beats>& ranks, double same);
/// Where nothing slows what runs beside it, clocks still move a little from group to group; else who waits slows
/// itself.
inline constexpr double same_alone = 5e-4, same_beside = 5e-3;

/// The next larger run to read from: some groups more, `all` at most.
schedule::Config prolonged(schedule::Config few, int all);
}  // namespace pipewright::timeline
