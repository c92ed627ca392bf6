// What a rank's allocator misses because NCCL's watchdog has not looked yet.
#pragma once

#include "pipewright/model.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::predict {

/// The stages of a scenario with what coalesced gathers hold beyond their use: c10d keeps inputs and outputs of a
/// coalesced call until the watchdog thread has seen it end, which looks every 100 ms
/// (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, kWatchdogThreadSleepMillis). Held is what a rank gathers in so
/// long, in forward or in backward passes, whichever is more, and no more than in a step. A host that is ahead of its
/// GPU adds what it has launched already, which is not counted.
model::Stages stages_of(const scenario::Scenario& scenario, const profile::Profiles& profiles);

}  // namespace pipewright::predict
