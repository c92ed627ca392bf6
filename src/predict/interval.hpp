// How far a prediction can be off, and where its times come from.
#pragma once

#include "pipewright/predict.hpp"

namespace pipewright::predict {

/// Fills interval, origins and time_sources from the kernels that the busiest rank's time is made of, and says in the
/// notes where the step hangs on what was not measured.
void judge(Prediction& prediction, const scenario::Scenario& scenario, const Run& run,
           const profile::Profiles& profiles);

}  // namespace pipewright::predict
