// Adam on the host for a share of the optimizer's shards: Megatron's HybridDeviceOptimizer (core_r0.19.0
// optimizer/cpu_offloading/hybrid_optimizer.py, optimizer/__init__.py:502-544). A step of a rank, one host thread:
//
//   GPU    norm, clip | to fp32 | copies to host -- -- | Adam of what stays |          ... | to bf16
//   host              waits for the first (all) of them| Adam | parameters back | Adam | parameters back | ...
//
// overlap_cpu_optimizer_d2h_h2d: an optimizer for each shard, so that the host waits for its own gradient only. The
// fp32 parameters on the host are pageable before `main` (.float() of the pinned copy makes another one), and a copy
// from pageable memory holds the host until the driver has staged it (cudaMemcpyAsync): it adds to Adam in any case.
#pragma once

#include <vector>

#include "dimensions.hpp"
#include "pipewright/model.hpp"

namespace pipewright::model {

/// A rank's shards (elements), in the optimizer's order: those whose state and update are the host's come first.
struct HostShare {
  std::vector<Int> host, gpu;
};
/// Whole shards until `fraction` of all elements is reached (_get_sub_optimizer_param_groups).
HostShare host_share(const std::vector<Int>& shards, double fraction);

/// What the host holds of them for good: gradients in pinned blocks of powers of two (CachingHostAllocator.h), fp32
/// parameters and two moments, pinned with `main`.
struct HostBytes {
  Bytes pinned, pageable;
};
HostBytes host_bytes(const scenario::Scenario& scenario, const HostShare& share);

/// One optimizer's update in the order of the compute stream, after norm and clipping. `gradient`: bytes of an element.
std::vector<Kernel> host_optimizer_step(const scenario::Scenario& scenario, const HostShare& share, Int gradient);

}  // namespace pipewright::model
