// Multiprocessors that matrix products do without: what userbuffers (tp_comm_overlap) take beside them, and what
// products leave free of themselves.
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
/// Left free for whatever runs beside. Transformer Engine's products by NVTE_EXT_MARGIN_SM (TE d0067d0da
/// pytorch/csrc/extensions/gemm.cpp:283, pytorch/cpp_extensions/gemm.py:520), with userbuffers beside what those hold
/// (common/comm_gemm_overlap/comm_gemm_overlap.cpp:144). cuDNN's of fused experts, but weight gradients, by
/// CUDNNFE_CLUSTER_OVERLAP_MARGIN: clusters of two (cudnn-frontend
/// python/cudnn/grouped_gemm/grouped_gemm_glu/api.py:224 and :629; grouped_gemm_wgrad reads it not).
struct LeftFree {
  std::int64_t products = 0, fused_experts = 0;
};
LeftFree left_free(const scenario::Scenario& scenario);
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
