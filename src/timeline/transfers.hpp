// Which two calls make one transfer, and which communicator carries it; shared by both engines.
#pragma once

#include <array>

#include "pipewright/scenario.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

inline bool sends(schedule::Part::Type type) {
  return type == schedule::Part::Type::send_next || type == schedule::Part::Type::send_prev;
}

/// The other end of a part: its rank, and what it calls the same tensor (chunks shift where the pipeline wraps around).
struct OtherEnd {
  int rank = 0;
  schedule::Part part;
};
inline OtherEnd other_end(int ranks, int rank, const schedule::Part& part) {
  using Type = schedule::Part::Type;
  const bool to_next = part.type == Type::send_next || part.type == Type::recv_next;
  int chunk = part.chunk;
  if (to_next && rank == ranks - 1) ++chunk;
  if (!to_next && rank == 0) --chunk;
  constexpr std::array mirror{Type::recv_prev, Type::send_next, Type::recv_next, Type::send_prev};
  return {(rank + (to_next ? 1 : ranks - 1)) % ranks,
          {mirror[static_cast<std::size_t>(part.type)], part.microbatch, chunk}};
}

/// Which communicator carries a part (reference 1.7).
inline Lane p2p_lane(const scenario::Scenario& scenario, int ranks, int rank, const schedule::Part& part,
                     bool batched) {
  using Type = schedule::Part::Type;
  if (batched) return Lane::p2p;
  if (ranks == 2) return (sends(part.type) == (rank % 2 == 0)) ? Lane::p2p : Lane::p2p_second;
  if (scenario.software.process_group_device_id) return Lane::p2p;
  const bool next = part.type == Type::send_next || part.type == Type::recv_next;
  return next ? Lane::p2p : Lane::p2p_second;
}

}  // namespace pipewright::timeline
