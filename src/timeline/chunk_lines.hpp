// A model's pieces and kernels beside the schedule, collapsed once for all rounds of the chunk-level engine.
#pragma once

#include <array>
#include <vector>

#include "collapse.hpp"
#include "lines.hpp"

namespace pipewright::timeline {

/// A piece's passages for each stretch of microbatches that run the same steps.
struct PieceLines {
  struct Stretch {
    int from = 0;  ///< its first microbatch
    std::vector<Passage> forward, backward;
    std::vector<std::array<std::vector<Passage>, 3>> nodes;  ///< of expert-parallel overlap, by pass
  };
  std::vector<Stretch> stretches;

  const Stretch& of(int microbatch) const {
    std::size_t at = stretches.size() - 1;
    while (stretches[at].from > microbatch) --at;
    return stretches[at];
  }
};

/// Kernels of a rank cut where all pipeline ranks meet.
struct Joined {
  std::vector<Line> between;  ///< one more than joints
  std::vector<Line> joints;   ///< the collectives over the pipeline
  std::vector<double> calls;  ///< the host's time before each
};
struct RankLines {
  std::vector<std::vector<Line>> buckets;           ///< by chunk
  std::vector<std::vector<Line>> parameter_gather;  ///< by chunk
  Joined finalize, optimizer;
};

/// Everything that the ranks run.
struct ChunkLines {
  std::vector<PieceLines> pieces;
  std::vector<RankLines> ranks;
};
ChunkLines collapse(const model::Stages& stages, const Prices& prices, const Collapser& collapser, int microbatches);

}  // namespace pipewright::timeline
