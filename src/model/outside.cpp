// Device memory that PyTorch's caching allocator does not own: the CUDA context with the loaded kernels (cuBLAS,
// cuDNN), and the buffers of NCCL communicators.
//
//   stock Megatron: communicators are made when they are used. A step uses world (barriers, logging), tensor, context
//     and data parallel groups of more than one rank, the model-parallel group (gradient norm), the embedding group
//     (tied weights), and for pipeline transfers one a neighbour pair (unbatched) or the group's (batched). Experts add
//     ep (all-to-all), tp-ep (token counts, allgather dispatcher), expert tp and expert dp, each where it has more than
//     one rank (token_dispatcher.py:77-86, parallel_state.py:1357-1470).
//   process group with a device_id: every group that parallel_state.initialize_model_parallel makes gets its
//     communicator at once (core_r0.19.0 megatron/core/parallel_state.py:938-1570), those of one rank too. What a
//     communicator takes: something from the start, more with its first collective (NCCL 2.22 and later connect then).
//
// Send and receive add buffers for each peer: as many channels as NVLink has lanes, at most 32, where all ranks are of
// one host; two where the communicator spans hosts (nccl src/graph/paths.cc, ncclTopoComputeP2pChannels: the least over
// all ranks). tp_comm_overlap adds Transformer Engine's userbuffers (module/base.py initialize_ub): ten of a gathered
// hidden state, for qkv, proj, fc1 and fc2 forward, dgrad and wgrad.
#include <algorithm>
#include <vector>

#include "dimensions.hpp"
#include "pipewright/model.hpp"

namespace pipewright::model {
namespace {

constexpr Int channels_in_node = 32, channels_between_nodes = 2;

struct Layout {
  explicit Layout(const scenario::Scenario& scenario)
      : s(scenario),
        world(scenario.cluster.num_gpus),
        t(scenario.settings.tensor_model_parallel_size),
        p(scenario.settings.pipeline_model_parallel_size),
        c(scenario.settings.context_parallel_size),
        d(scenario::data_parallel_size(scenario)),
        ep(scenario.settings.expert_model_parallel_size),
        etp(scenario::expert_tensor_parallel_size(scenario)),
        edp(scenario::expert_data_parallel_size(scenario)),
        tied(p > 1 && !scenario.model.untie_embeddings_and_output_weights),
        experts(scenario.model.num_moe_experts.has_value()),
        all_to_all(experts && scenario.settings.moe_token_dispatcher_type != "allgather") {}

  const scenario::Scenario& s;
  const Int world, t, p, c, d, ep, etp, edp;
  const bool tied, experts, all_to_all;
  bool ends(int rank) const { return rank == 0 || rank == p - 1; }
};

/// Sizes of the groups of which a pipeline rank is a member, in the order in which they are made.
std::vector<Int> groups(const Layout& l, int rank) {
  const Int model = l.t * l.p, experts = l.etp * l.ep * l.p;
  std::vector<Int> sizes = {l.world,         l.d * l.c,      l.d,       l.c,  model, l.t,          l.p,
                            l.t * l.d * l.c, l.t * l.d,      l.t * l.c, l.ep, l.etp, l.etp * l.ep, experts,
                            l.edp,           experts * l.edp};  // the last: optimizer instance
  const auto& version = l.s.software.megatron_core;
  if (scenario::at_least(l.s.software, "0.19.0") && version != "dev" && version != "pr-4268") {
    sizes.insert(sizes.end(), {1, 1, experts});  // generalized tensor parallelism, off: of weights, experts, both
  }
  if (l.ends(rank)) sizes.push_back(std::min<Int>(l.p, 2));  // embedding
  if (rank == 0) sizes.push_back(1);                         // position embedding
  return sizes;
}

/// Groups whose communicator runs collectives.
Int collectives(const Layout& l, int rank) {
  Int count = 2;  // world; gradient norm
  count += (l.t > 1) + (l.d * l.c > 1);
  // Without sequence parallelism all-reduce of activations: another algorithm with buffers of its own.
  if (l.t > 1 && !l.s.settings.sequence_parallel) ++count;
  if (l.experts) count += (l.etp * l.ep > 1) + (l.ep > 1 && l.edp > 1);
  if (l.tied && l.ends(rank)) ++count;
  return count;
}

/// Communicators of stock Megatron: made on use, each with a collective.
Int made_on_use(const Layout& l, int rank) {
  Int count = 1;
  for (const Int size : {l.t, l.c, l.d}) count += size > 1 ? 1 : 0;
  if (l.p > 1) count += !scenario::batch_p2p_comm(l.s) && l.p > 2 ? 2 : 1;
  if (l.experts) {
    for (const Int size : {l.all_to_all ? l.ep : 1, l.ep * l.etp, l.etp, l.ep > 1 ? l.edp : 1})
      count += size > 1 ? 1 : 0;
  }
  if (l.t * l.p > 1) ++count;
  if (l.tied && l.ends(rank)) ++count;
  return count;
}

/// Channels to all peers with which a rank exchanges by send and receive.
Int peer_channels(const Layout& l, int rank) {
  const auto to = [&](Int peers, Int span) {  // in a group whose ranks lie within `span` GPUs
    return peers * (span > l.s.cluster.gpus_per_node ? channels_between_nodes : channels_in_node);
  };
  const bool one_neighbour = l.p == 2 || (l.ends(rank) && scenario::num_chunks(l.s) == 1);
  Int channels = l.p > 1 ? to(one_neighbour ? 1 : 2, l.world) : 0;  // a pipeline's ranks are world / PP apart
  if (l.c > 1) channels += to(std::min<Int>(l.c - 1, 2), l.t * l.c);
  if (l.all_to_all && l.ep > 1) channels += to(l.ep - 1, l.etp * l.ep);
  return channels;
}

}  // namespace

Bytes outside_allocator(const scenario::Scenario& s, const profile::Profiles& profiles, int pp_rank) {
  const auto bytes = [&](const char* name) {
    return static_cast<Int>(profiles.scalar(std::string("memory.outside.") + name).value);
  };
  // Only profiles that measured runs have served know what makes a communicator; others take it as one in use.
  const auto knows = [&](const std::string& name) {
    return std::any_of(profiles.all().begin(), profiles.all().end(),
                       [&](const auto& p) { return p.scalars.contains("memory.outside." + name); });
  };
  const Layout l(s);
  const auto userbuffers = [&]() -> Int {
    if (!s.settings.tp_comm_overlap) return 0;
    const Dimensions d(s);
    return d.tp_overlap ? 10 * 2 * d.tokens * d.h : 0;
  };
  const Int peers = peer_channels(l, pp_rank) * bytes("nccl_peers_2_bytes") / channels_in_node;
  Int communicators = 0;
  if (s.software.process_group_device_id && !knows("nccl_group_bytes")) {
    communicators = static_cast<Int>(groups(l, pp_rank).size()) * bytes("nccl_communicator_4_bytes");
  } else if (s.software.process_group_device_id) {
    for (const Int size : groups(l, pp_rank))
      communicators += bytes(size > 1 ? "nccl_group_bytes" : "nccl_group_1_bytes");
    communicators += collectives(l, pp_rank) * bytes("nccl_collective_bytes");
  } else {
    communicators = made_on_use(l, pp_rank) * bytes("nccl_communicator_4_bytes");
  }
  return Bytes(bytes("context_bytes") + communicators + peers + userbuffers());
}

}  // namespace pipewright::model
