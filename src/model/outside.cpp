// Device memory that PyTorch's caching allocator does not own: the CUDA context with the loaded kernels (cuBLAS,
// cuDNN), and the buffers of NCCL communicators, which NCCL 2.22 and later allocates when a communicator is first used.
//
//   stock Megatron: communicators are made when they are used. A step uses world (barriers, logging), tensor, context
//     and data parallel groups of more than one rank, the model-parallel group (gradient norm), the embedding group
//     (tied weights), and for pipeline transfers one a neighbour pair (unbatched) or the group's (batched). Experts add
//     ep (all-to-all), tp-ep (token counts, allgather dispatcher), expert tp and expert dp, each where it has more than
//     one rank (token_dispatcher.py:77-86, parallel_state.py:1357-1470).
//   process group with a device_id: every group that parallel_state.initialize_model_parallel makes gets its
//     communicator at once (core_r0.19.0 megatron/core/parallel_state.py:938-1570): world, dp-cp, dp, cp, tp-pp, tp,
//     pp, tp-dp-cp, tp-dp, tp-cp, ep, expert tp, tp-ep, tp-ep-pp, expert dp and optimizer instance on every rank,
//     embedding on the first and last stage, position embedding on the first.
//
// A pipeline communicator also has buffers for each neighbour. tp_comm_overlap adds Transformer Engine's userbuffers
// (module/base.py initialize_ub): ten of a gathered hidden state, for qkv, proj, fc1 and fc2 forward, dgrad and wgrad.
#include <algorithm>

#include "dimensions.hpp"
#include "pipewright/model.hpp"

namespace pipewright::model {
namespace {

constexpr Int groups_of_every_rank = 16, groups_of_the_first_stage = 18;

Int communicators(const scenario::Scenario& s) {
  const auto& o = s.settings;
  const Int t = o.tensor_model_parallel_size, p = o.pipeline_model_parallel_size;
  if (s.software.process_group_device_id) return p > 1 ? groups_of_the_first_stage : groups_of_every_rank;
  Int count = 1;
  for (const Int size : {t, o.context_parallel_size, scenario::data_parallel_size(s)}) count += size > 1 ? 1 : 0;
  if (p > 1) count += !scenario::batch_p2p_comm(s) && p > 2 ? 2 : 1;
  if (s.model.num_moe_experts) {
    const Int ep = o.expert_model_parallel_size, etp = scenario::expert_tensor_parallel_size(s);
    const bool all_to_all = o.moe_token_dispatcher_type != "allgather";
    for (const Int size : {all_to_all ? ep : 1, ep * etp, etp, ep > 1 ? scenario::expert_data_parallel_size(s) : 1})
      count += size > 1 ? 1 : 0;
  }
  if (t * p > 1) ++count;
  if (p > 1 && !s.model.untie_embeddings_and_output_weights) ++count;
  return count;
}

}  // namespace

Bytes outside_allocator(const scenario::Scenario& s, const profile::Profiles& profiles) {
  const auto bytes = [&](const char* name) {
    return static_cast<Int>(profiles.scalar(std::string("memory.outside.") + name).value);
  };
  const Int neighbours = std::min<Int>(s.settings.pipeline_model_parallel_size - 1, 2);
  const Dimensions d(s);
  const Int userbuffers = d.tp_overlap ? 10 * 2 * d.tokens * d.h : 0;
  return Bytes(bytes("context_bytes") + communicators(s) * bytes("nccl_communicator_4_bytes") +
               neighbours * bytes("nccl_peers_2_bytes") + userbuffers);
}

}  // namespace pipewright::model
