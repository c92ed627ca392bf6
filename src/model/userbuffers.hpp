// What userbuffers (tp_comm_overlap) take from the matrix products beside them.
#pragma once

#include <cstdint>

#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::model {

/// Multiprocessors of the collective that runs beside each product of a layer, all the while (bulk: the all-gather
/// beside dgrad and the reduce-scatter beside wgrad of a column-parallel layer; forward: a row-parallel layer's
/// scatter). By default Transformer Engine's (pytorch/module/base.py:375-395).
struct OverlapMultiprocessors {
  std::int64_t qkv_dgrad = 16, qkv_wgrad = 16, fc1_dgrad = 16, fc1_wgrad = 16, proj_forward = 16, fc2_forward = 16;
};
OverlapMultiprocessors overlap_multiprocessors(const scenario::Scenario& scenario, const profile::Device& gpu);

}  // namespace pipewright::model
