// What a rank holds from start to end, and the kernels outside the pieces: gradient synchronisation and optimizer step.
#pragma once

#include "builder.hpp"
#include "parameters.hpp"

namespace pipewright::model {

/// Fills everything of `rank` but its chunks' pieces.
void add_state(const scenario::Scenario& scenario, const Dimensions& dimensions, Int pp_rank,
               const std::vector<ChunkShape>& shapes, Owners& owners, Rank& rank);

}  // namespace pipewright::model
