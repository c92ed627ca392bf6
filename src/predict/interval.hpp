// How far a prediction can be off, and how weak its weakest number is.
#pragma once

#include "pipewright/predict.hpp"

namespace pipewright::predict {

/// Fills interval, origin and time_sources from the kernels that the busiest rank's time is made of.
void judge(Prediction& prediction, const scenario::Scenario& scenario, const Run& run,
           const profile::Profiles& profiles);

}  // namespace pipewright::predict
