// Imported times held against the step that they came from.
#pragma once

#include "pipewright/import.hpp"
#include "pipewright/model.hpp"

namespace pipewright::traces {

/// The step simulated with the imported times must take as long as the run's did: untraced where the scenario holds
/// its measured times, else as traced. What is left of clocks, contention and the profiler's own cost, after every
/// kernel was brought to a cool part by its own moment's law, goes into one factor on all compute kernels.
/// `span_us`: of the traced step, 0 where no rank's trace is a whole one.
void settle(Import& result, const scenario::Scenario& scenario, const model::Stages& stages,
            const profile::Profiles& lone, double span_us);

}  // namespace pipewright::traces
