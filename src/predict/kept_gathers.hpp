// What a rank's allocator misses, or gets back late, because NCCL's watchdog has not looked or its GPU not come there.
#pragma once

#include "pipewright/model.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::predict {

/// The stages of a scenario with what coalesced gathers hold beyond their use: c10d keeps inputs and outputs of a
/// coalesced call until the watchdog thread has seen it end, which looks every 100 ms
/// (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, kWatchdogThreadSleepMillis). Held is the most that a rank's host
/// has launched and that ended on its GPU less than so long ago, or has not yet: a host that nothing makes wait runs
/// ahead by as many launches as the driver queues. So late come back, too, tensors that another stream uses.
/// Microbatches follow each other without waiting for other stages.
model::Stages stages_of(const scenario::Scenario& scenario, const profile::Profiles& profiles);

}  // namespace pipewright::predict
