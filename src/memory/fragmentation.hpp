// Follows what a replayer reserves through a walk, to tell afterwards why that grew (memory::Fragmentation).
#pragma once

#include <array>

#include "rewind.hpp"

namespace pipewright::memory {

class Growth {
 public:
  /// Before the walk begins.
  Growth(const Replayer& replayer, Walker& walker);

  /// Around each event that the replayer gets.
  void before(const Event& event) { rewind_.record(event, replayer_); }
  void after();

  /// Once the walk is over.
  Fragmentation found(const Stages& stages, Bytes device) const;

 private:
  const Replayer& replayer_;
  Rewind rewind_;  ///< marked where reserved memory last grew by more than a small segment
  Walker& walker_;
  std::array<Walker::Moment*, 2> moments_;  ///< of it; in the steps before CUDA graphs were captured
  std::int64_t peak_ = 0;
  bool eager_ = false;  ///< it was in those
};

}  // namespace pipewright::memory
