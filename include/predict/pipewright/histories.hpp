// Every rank's memory over its step, for pages and traces.
#pragma once

#include <vector>

#include "pipewright/history.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::predict {

struct RankHistory : memory::History {
  bool eager = false;  ///< of the steps before CUDA graphs are captured: they peak higher
};

/// Of the steps in which each rank of the prediction peaks; walks every rank twice more.
std::vector<RankHistory> histories(const Prediction& prediction, const scenario::Scenario& scenario,
                                   const profile::Profiles& profiles, const Run& run);

}  // namespace pipewright::predict
