// What userbuffers (tp_comm_overlap) take from the matrix products beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::model {

/// Multiprocessors of the collective that runs beside each product of a layer, all the while (bulk: the all-gather
/// beside dgrad and the reduce-scatter beside wgrad of a column-parallel layer; forward: a row-parallel layer's
/// scatter). By default Transformer Engine's (pytorch/module/base.py:375-395).
struct OverlapMultiprocessors {
  std::int64_t qkv_dgrad = 16, qkv_wgrad = 16, fc1_dgrad = 16, fc1_wgrad = 16, proj_forward = 16, fc2_forward = 16;
  friend bool operator==(const OverlapMultiprocessors&, const OverlapMultiprocessors&) = default;
};
OverlapMultiprocessors overlap_multiprocessors(const scenario::Scenario& scenario, const profile::Device& gpu);
/// What Bridge calls that table, for the GPU that the scenario's cluster names; nullptr: it names none.
const char* overlap_table(const scenario::Scenario& scenario);
/// What that is on one GPU or another; Transformer Engine's, without a name, where a recipe names none or the scenario
/// says so (tp_comm_overlap_cfg: none).
struct OverlapTable {
  const char* name = nullptr;
  OverlapMultiprocessors multiprocessors;
};
std::vector<OverlapTable> possible_overlaps(const scenario::Scenario& scenario);

}  // namespace pipewright::model
