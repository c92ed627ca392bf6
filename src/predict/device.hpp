// The device that a scenario runs on, where the scenario leaves that to the profile.
#pragma once

#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::predict {

/// With cluster.memory_bytes: shares of the device (per_process_memory_fraction) need it.
inline scenario::Scenario with_device(scenario::Scenario scenario, const profile::Profiles& profiles) {
  for (const auto& profile : profiles.all()) {
    if (!scenario.cluster.memory_bytes && profile.memory.value > 0) scenario.cluster.memory_bytes = profile.memory;
  }
  return scenario;
}

}  // namespace pipewright::predict
