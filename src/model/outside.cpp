// Device memory that PyTorch's caching allocator does not own: the CUDA context with the loaded kernels (cuBLAS,
// cuDNN), and the buffers of NCCL communicators. Communicators counted are those that the step uses; NCCL 2.22 and
// later allocates a communicator's channel buffers when they are first used:
//   world (barriers, logging)                               1
//   tensor, context, data parallel groups (> 1 rank)        1 each
//   pipeline group: process group created with a device_id  1 (2 for p = 2: one direction goes through the world group)
//                   stock Megatron (reference 1.7): unbatched, one for each neighbour pair; batched, the group's
//   model-parallel group (gradient norm)                    1
//   embedding group (tied weights; first and last stage)    1
//
// tp_comm_overlap adds Transformer Engine's userbuffers (module/base.py initialize_ub): ten of a gathered hidden state,
// for qkv, proj, fc1 and fc2 forward, dgrad and wgrad.
#include "dimensions.hpp"
#include "pipewright/model.hpp"

namespace pipewright::model {

Bytes outside_allocator(const scenario::Scenario& s, const profile::Profiles& profiles) {
  const auto& o = s.settings;
  const scenario::Int t = o.tensor_model_parallel_size, p = o.pipeline_model_parallel_size;
  scenario::Int communicators = 1;
  for (const scenario::Int size : {t, o.context_parallel_size, scenario::data_parallel_size(s)}) {
    communicators += size > 1 ? 1 : 0;
  }
  if (p > 1) {
    const bool pairs = !s.software.process_group_device_id && !scenario::batch_p2p_comm(s) && p > 2;
    communicators += pairs ? 2 : 1;
  }
  if (t * p > 1) ++communicators;
  if (p > 1 && !s.model.untie_embeddings_and_output_weights) ++communicators;
  const double context = profiles.scalar("memory.outside.context_bytes").value;
  const double communicator = profiles.scalar("memory.outside.nccl_communicator_bytes").value;
  const Dimensions d(s);
  const Int userbuffers = d.tp_overlap ? 10 * 2 * d.tokens * d.h : 0;
  return Bytes(static_cast<std::int64_t>(context + communicator * static_cast<double>(communicators)) + userbuffers);
}

}  // namespace pipewright::model
