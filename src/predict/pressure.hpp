// A rank's memory under the limit, and how near it comes to running out.
#pragma once

#include "pipewright/predict.hpp"

namespace pipewright::predict {

/// Fills walk, outside memory and `fits`; `pressed`: the pressure, too. `limits` tells limit and margin, the scenario
/// knows its device (with_device).
void fill_memory(RankPrediction& rank, const Prediction& limits, const scenario::Scenario& scenario,
                 const profile::Profiles& profiles, const model::Stages& stages, const schedule::Program& program,
                 bool pressed = false);

}  // namespace pipewright::predict
