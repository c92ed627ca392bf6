// What waiting for each other costs ranks at least: the longest way through their passes in the order of the schedule,
// with the least that each pass takes and every transfer on a free wire (time_floor.cpp). A rank whose chunks are
// uneven makes the others wait in every round, which no sum over one rank's work knows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// A pass, or a combined call of two: its end, and when its output and its gradient may leave, after its begin.
struct LeastPass {
  double end = 0, output = 0, gradient = 0;
};

/// When the last rank is done. `of(rank, forward, backward)`: of these chunks, -1: none; `wires`: ns from a rank to the
/// next one, or back.
template <class Of>
double longest_schedule(const schedule::Order& order, const std::vector<double>& wires, const Of& of) {
  const auto ranks = static_cast<int>(order.forwards.size()), total = static_cast<int>(order.turns.size());
  const int last = ranks * order.chunks - 1, microbatches = total / order.chunks;
  constexpr double not_yet = -1;
  const auto at = [&](int stage, int microbatch) {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches) +
           static_cast<std::size_t>(microbatch);
  };
  // When what a pass needs of another rank is there, by stage (chunk after chunk over the ranks).
  std::vector<double> inputs(at(last + 1, 0), not_yet), gradients(inputs.size(), not_yet);
  std::fill_n(inputs.begin(), microbatches, 0);
  std::fill_n(gradients.begin() + static_cast<std::ptrdiff_t>(at(last, 0)), microbatches, 0);
  std::vector<double> now(static_cast<std::size_t>(ranks), 0);
  std::vector<int> done(static_cast<std::size_t>(ranks), 0);
  // One step of a rank: turns of its forward and its backward, -1: none.
  const auto step = [&](int rank, int n, int& forward, int& backward) {
    const int first = order.forwards[static_cast<std::size_t>(rank)];
    forward = backward = -1;
    if (order.combined) {
      if (n < total) forward = n;
      if (n >= first) backward = n - first;
      return n < total + first;
    }
    const int both = n - first, rest = both - 2 * (total - first);
    if (both < 0)
      forward = n;
    else if (rest >= 0)
      backward = total - first + rest;
    else
      (both % 2 == 0 ? forward : backward) = both % 2 == 0 ? first + both / 2 : both / 2;
    return n < 2 * total;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank), before = static_cast<std::size_t>((rank + ranks - 1) % ranks);
      int f = -1, b = -1;
      for (; step(rank, done[r], f, b); ++done[r], moved = true) {
        double begin = now[r];
        schedule::Turn forward{-1, -1}, backward{-1, -1};
        int stage_f = 0, stage_b = 0;
        if (f >= 0) {
          forward = order.turns[static_cast<std::size_t>(f)];
          stage_f = forward.chunk * ranks + rank;
          const double there = inputs[at(stage_f, forward.microbatch)];
          if (there == not_yet) break;
          begin = std::max(begin, there);
        }
        if (b >= 0) {
          backward = order.turns[static_cast<std::size_t>(b)];
          backward.chunk = order.chunks - 1 - backward.chunk;
          stage_b = backward.chunk * ranks + rank;
          const double there = gradients[at(stage_b, backward.microbatch)];
          if (there == not_yet) break;
          begin = std::max(begin, there);
        }
        const LeastPass& pass = of(rank, forward.chunk, backward.chunk);
        if (f >= 0 && stage_f < last) inputs[at(stage_f + 1, forward.microbatch)] = begin + pass.output + wires[r];
        if (b >= 0 && stage_b > 0)
          gradients[at(stage_b - 1, backward.microbatch)] = begin + pass.gradient + wires[before];
        now[r] = begin + pass.end;
      }
    }
  }
  return *std::ranges::max_element(now);
}

}  // namespace pipewright::timeline
