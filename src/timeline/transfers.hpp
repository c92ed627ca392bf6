// What both engines know of transfers: which communicator carries one, on which wire.
#pragma once

#include "pipewright/scenario/derived.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// Which communicator carries a part (reference 1.7).
inline Lane p2p_lane(const scenario::Scenario& scenario, int ranks, int rank, const schedule::Part& part,
                     bool batched) {
  if (batched) return Lane::p2p;
  if (ranks == 2) return (sends(part.type) == (rank % 2 == 0)) ? Lane::p2p : Lane::p2p_second;
  if (scenario.software.process_group_device_id) return Lane::p2p;
  return to_next(part.type) ? Lane::p2p : Lane::p2p_second;
}

/// CUDA_DEVICE_MAX_CONNECTIONS=1: compute kernels and transfers are taken from one hardware queue.
inline bool one_hardware_queue(const scenario::Scenario& scenario) {
  return scenario::variable(scenario, "CUDA_DEVICE_MAX_CONNECTIONS") == "1";
}

/// What it takes to carry bytes from a pipeline rank to the next one, or back. `eager`: fits the channels' buffers.
struct Wire {
  std::int64_t ns = 0;
  bool eager = false, crosses = false;  ///< crosses: the network between nodes
};
Wire wire_after(const scenario::Scenario& scenario, const profile::Profiles& profiles, int rank, std::int64_t bytes);

}  // namespace pipewright::timeline
