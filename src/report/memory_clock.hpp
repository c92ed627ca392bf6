// When a rank's memory changes on the GPU's clock: the walk knows the host's order only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipewright/histories.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::report {

/// When the kernels of each instruction run.
class MemoryClock {
 public:
  MemoryClock(const predict::Run& run, int rank)
      : spans_(run.program.ranks[static_cast<std::size_t>(rank)].instructions.size()) {
    const auto& graph = run.timeline.graph;
    const auto& times = run.timeline.times;
    for (std::uint32_t node = 0; node < graph.size(); ++node) {
      const auto& label = graph.labels[node];
      if (label.rank != rank || label.kind != timeline::NodeKind::kernel || label.lane != timeline::Lane::compute)
        continue;
      if (label.phase == 0 && label.instruction < spans_.size())
        spans_[label.instruction].add(times.start[node], times.end[node]);
      if (label.phase == 2) optimizer_.add(times.start[node], times.end[node]);
    }
  }

  /// Never goes back: an instruction without kernels is where the one before it ended.
  std::int64_t of(const memory::History::Sample& sample) {
    if (sample.instruction == memory::History::start) return now_ = 0;
    const Span* span = sample.instruction == memory::History::optimizer ? &optimizer_
                       : sample.instruction < spans_.size()             ? &spans_[sample.instruction]
                                                                        : nullptr;
    if (span == nullptr || span->end == 0) return now_;
    const auto at =
        span->start + static_cast<std::int64_t>(static_cast<double>(span->end - span->start) * sample.place);
    return now_ = std::max(now_, at);
  }

 private:
  struct Span {
    std::int64_t start = INT64_MAX, end = 0;
    void add(std::int64_t from, std::int64_t to) { start = std::min(start, from), end = std::max(end, to); }
  };
  std::vector<Span> spans_;
  Span optimizer_;
  std::int64_t now_ = 0;
};

}  // namespace pipewright::report
