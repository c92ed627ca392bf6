// Device memory that PyTorch's caching allocator does not own: what a process takes once (CUDA context with the kernels
// of cuBLAS, cuDNN and the framework; NCCL's own kernels with its first communicator) and the NCCL communicators.
//
//   a communicator of several ranks   its channels' records, and with its first collective a connection each way on
//                                     every channel; the first send and the first receive with a peer add buffers
//   a communicator of one rank        more channels, so more records (nothing is ever sent)
//
//   stock Megatron: communicators are made when they are used, those of one rank too, by every collective that Megatron
//     calls without looking at the group's size. Seen in runs of pretrain_gpt.py on two GPUs:
//       world (barrier); tensor parallel (the batch is broadcast; on stages that read one); data and context parallel
//       (gradients, parameters); the model-parallel group (whether the update succeeded); the group of the gradient
//       norm; for pipeline transfers one a neighbour pair and group (unbatched) or the group's (batched); the embedding
//       group (weights tied, or used again by multi-token prediction). Experts add tp-ep (token counts), ep
//       (all-to-all), expert tp where they have more than one rank, expert data parallel, the pipeline group (losses of
//       the router are logged), tensor-context (auxiliary losses), and tensor-data (expert bias, z-loss, global
//       auxiliary loss).
//   NCCL's library: where no communicator has a second rank less of it is loaded.
//   process group with a device_id: every group that parallel_state.initialize_model_parallel makes gets its
//     communicator at once (core_r0.19.0 megatron/core/parallel_state.py:938-1570), those of one rank too. What a
//     communicator takes: something from the start, more with its first collective (NCCL 2.22 and later connect then).
//
// Send and receive: as many channels for each peer as NVLink has lanes, at most 32, where all ranks are of one host;
// two where the communicator spans hosts (nccl src/graph/paths.cc, ncclTopoComputeP2pChannels: the least over all
// ranks). HybridEP exchanges through buffers of its own instead. tp_comm_overlap adds Transformer Engine's userbuffers
// (module/base.py initialize_ub): eight of a gathered hidden state in the precision of the GEMMs and four in bf16 for
// reduce-scatters, and a communicator to set them up.
#include <algorithm>
#include <vector>

#include "dimensions.hpp"
#include "pipewright/model.hpp"
#include "pipewright/scenario/derived.hpp"

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
        shares_embedding(p > 1 &&
                         (!scenario.model.untie_embeddings_and_output_weights || scenario.model.mtp_num_layers > 0)),
        experts(scenario.model.num_moe_experts.has_value()),
        hybridep(experts && scenario.settings.moe_token_dispatcher_type == "flex" &&
                 scenario.settings.moe_flex_dispatcher_backend == "hybridep"),
        all_to_all(experts && scenario.settings.moe_token_dispatcher_type != "allgather" && !hybridep),
        counts_tokens(ep * etp > 1 && !(all_to_all && scenario.settings.moe_pad_expert_input_to_capacity)),
        rings([&] {
          const auto shared = scenario::context_sharing(scenario);
          return (!shared || (shared->ring == c && !shared->gathers)) && !scenario::has_mamba_layer(scenario);
        }()) {}

  const scenario::Scenario& s;
  const Int world, t, p, c, d, ep, etp, edp;
  const bool shares_embedding, experts, hybridep, all_to_all;
  /// Over all experts' ranks; equal ones are not (core_r0.19.0 megatron/core/transformer/moe/token_dispatcher.py:511).
  const bool counts_tokens;
  const bool rings;  ///< context parallelism by p2p alone
  bool ends(int rank) const { return rank == 0 || rank == p - 1; }
};

/// Sizes of the groups of which a pipeline rank is a member, in the order in which they are made.
std::vector<Int> groups(const Layout& l, int rank) {
  const Int model = l.t * l.p, experts = l.etp * l.ep * l.p;
  std::vector<Int> sizes = {l.world,         l.d * l.c,      l.d,       l.c,  model, l.t,          l.p,
                            l.t * l.d * l.c, l.t * l.d,      l.t * l.c, l.ep, l.etp, l.etp * l.ep, experts,
                            l.edp,           experts * l.edp};  // the last: optimizer instance
  using scenario::Version;
  if (scenario::from(Version::v0_19).except(Version::dev).has(scenario::core_version(l.s.software))) {
    sizes.insert(sizes.end(), {1, 1, experts});  // generalized tensor parallelism, off: of weights, experts, both
  }
  if (l.ends(rank)) sizes.push_back(std::min<Int>(l.p, 2));  // embedding
  if (rank == 0) sizes.push_back(1);                         // position embedding
  return sizes;
}

/// Groups whose communicator runs collectives, of those that a device_id makes.
Int collectives(const Layout& l, int rank) {
  Int count = 2;  // world; gradient norm
  count += (l.t > 1) + (l.d * l.c > 1);
  // Without sequence parallelism all-reduce of activations: another algorithm with buffers of its own.
  if (l.t > 1 && !l.s.settings.sequence_parallel) ++count;
  if (l.experts) count += l.counts_tokens + (scenario::experts_have_own_group(l.s) && l.edp > 1);
  if (l.shares_embedding && l.ends(rank)) ++count;
  return count;
}

/// Sizes of the groups that stock Megatron uses for collectives, each with a communicator of its own.
std::vector<Int> used_groups(const Layout& l, int rank) {
  const auto& o = l.s.settings;
  std::vector<Int> sizes = {l.world, l.d * l.c, l.t * l.p};
  const bool reads_batch = l.ends(rank) || l.s.model.mtp_num_layers.value_or(0) > 0;
  if (reads_batch || l.t > 1) sizes.push_back(l.t);
  // Of the gradient norm (core_r0.19.0 megatron/core/optimizer/__init__.py:678-685, grad_stats_parallel_group): the
  // world again, by another name; without the distributed optimizer the model-parallel groups, of which the dense one
  // is there already; dist_muon takes the world's own (layer_wise_optimizer.py:812).
  if (o.clip_grad > 0 && o.use_distributed_optimizer) sizes.push_back(l.world);
  if (o.clip_grad > 0 && !o.use_distributed_optimizer && o.optimizer != "dist_muon" && l.experts)
    sizes.push_back(l.etp * l.ep * l.p);
  // Without sequence parallelism all-reduce of activations: another algorithm with buffers of its own.
  if (l.t > 1 && !o.sequence_parallel) sizes.push_back(l.t);
  if (l.c > 1 && !l.rings) sizes.push_back(l.c);
  if (l.shares_embedding && l.ends(rank)) sizes.push_back(2);
  // Of every rank that has other tokens. Maxima of delayed scaling (parallel_state.py:1877), where there are several.
  bool all_tokens =
      o.fp8 && o.fp8_recipe.value_or("delayed") == "delayed" && !o.tp_only_amax_red && l.t * l.d * l.c > 1;
  if (l.experts) {
    if (l.counts_tokens) sizes.push_back(l.ep * l.etp);
    if (l.etp > 1) sizes.push_back(l.etp);
    if (scenario::experts_have_own_group(l.s)) sizes.push_back(l.edp);
    sizes.push_back(l.p);
    // Losses are logged per step (transformer/moe/moe_logging.py:240-290), those that a group adds up by it, too.
    const auto has_loss = [&](const char* type) {
      const auto& types = o.moe_router_load_balancing_type;
      const auto at = std::ranges::find(types, type) - types.begin();
      return at < std::ssize(types) && at < std::ssize(o.moe_aux_loss_coeff) && o.moe_aux_loss_coeff[at] > 0;
    };
    if (has_loss("aux_loss") || has_loss("seq_aux_loss")) sizes.push_back(l.t * l.c);
    all_tokens = all_tokens || l.s.model.moe_router_enable_expert_bias || has_loss("global_aux_loss") ||
                 o.moe_z_loss_coeff.has_value();
  }
  if (all_tokens) sizes.push_back(l.t * l.d * l.c);
  return sizes;
}

/// Communicators that carry only sends and receives.
Int made_for_transfers(const Layout& l, int rank) {
  Int count = (l.all_to_all && l.ep > 1) + (l.c > 1 && l.rings);
  if (l.p == 1) return count;
  if (scenario::batch_p2p_comm(l.s)) return count + 1;
  if (l.p == 2) return count + 2;  // the way back goes through the world group (p2p_communication.py:70-80)
  const bool one_neighbour = l.ends(rank) && scenario::num_chunks(l.s) == 1;
  return count + (one_neighbour ? 1 : 2);
}

/// Threads that call torch.matmul, and so have a cuBLAS handle of their own (ATen/cuda/CublasHandlePool.cpp): the
/// forward thread and autograd's where there is an output layer or unfused attention; Muon's products are the former's.
/// All other products are Transformer Engine's, by cuBLASLt.
Int cublas_threads(const Layout& l, int rank) {
  const auto& o = l.s.settings;
  if (rank == l.p - 1 || o.transformer_impl == "local" || o.attention_backend == "unfused") return 2;
  return o.optimizer == "muon" || o.optimizer == "dist_muon" ? 1 : 0;
}

/// Channels to all peers with which a rank exchanges by send and receive.
Int peer_channels(const Layout& l, int rank) {
  const auto to = [&](Int peers, Int span) {  // in a group whose ranks lie within `span` GPUs
    return peers * (span > scenario::nvlink_domain(l.s) ? channels_between_nodes : channels_in_node);
  };
  const bool one_neighbour = l.p == 2 || (l.ends(rank) && scenario::num_chunks(l.s) == 1);
  Int channels = l.p > 1 ? to(one_neighbour ? 1 : 2, l.world) : 0;  // a pipeline's ranks are world / PP apart
  // A ring has two neighbours; Mamba-2 mixers exchange with all.
  if (l.c > 1) channels += to(scenario::has_mamba_layer(l.s) ? l.c - 1 : std::min<Int>(l.c - 1, 2), l.t * l.c);
  if (l.all_to_all && l.ep > 1) channels += to(l.ep - 1, l.etp * l.ep);
  return channels;
}

Int userbuffers(const Layout& l, const profile::Device& gpu) {
  if (!l.s.settings.tp_comm_overlap) return 0;
  const Dimensions d(l.s, gpu);
  if (!d.tp_overlap) return 0;
  constexpr Int gathered = 8, scattered = 4;
  return (gathered * (d.precision.quantized() ? 1 : 2) + scattered * 2) * d.tokens * d.h;
}

/// HybridEP's own buffers, for the case that every token of the group comes to one rank (DeepEP, branch hybrid-ep,
/// csrc/hybrid_ep/hybrid_ep.cu, allocate_buffer): what a dispatch writes (bf16; scales of FP8 all the same), what a
/// combine reads, each with a probability for every expert of the NVLink domain; and what crosses to other domains.
Int hybridep_buffers(const Layout& l, const profile::Device& gpu) {
  if (!l.hybridep || l.ep == 1) return 0;
  const Dimensions d(l.s, gpu);
  const Int ranks = l.ep * l.etp, here = std::min(ranks, scenario::nvlink_domain(l.s)),
            domains = (ranks + here - 1) / here;
  const Int probabilities = 4 * d.moe.local * here, row = 2 * d.moe.width + probabilities,
            scales = 4 * (d.moe.width / 128);
  const Int whole = d.local * ranks, remote = d.local * (domains - 1);
  return whole * (row + scales) + remote * (row + scales) + whole * row + 2 * remote * row;
}

}  // namespace

Bytes outside_allocator(const scenario::Scenario& s, const profile::Profiles& profiles, int pp_rank) {
  // What was not measured apart counts as a communicator in use.
  const auto bytes = [&](const char* name, const char* instead) {
    const std::string prefix = "memory.outside.";
    const auto found = profiles.find_scalar(prefix + name);
    return static_cast<Int>(found ? *found : instead == nullptr ? 0 : profiles.scalar(prefix + instead).value);
  };
  constexpr const char* in_use = "nccl_communicator_4_bytes";
  const bool apart = profiles.find_scalar("memory.outside.nccl_group_bytes").has_value();
  const Int one = bytes("nccl_group_1_bytes", in_use), several = bytes("nccl_group_bytes", in_use),
            connected = apart ? bytes("nccl_collective_bytes", nullptr) : 0;
  const Layout l(s);
  Int communicators = 0;
  if (s.software.process_group_device_id) {
    for (const Int size : groups(l, pp_rank)) communicators += size > 1 ? several : one;
    communicators += collectives(l, pp_rank) * connected;
  } else {
    for (const Int size : used_groups(l, pp_rank)) communicators += size > 1 ? several + connected : one;
    communicators += made_for_transfers(l, pp_rank) * several;
  }
  const Int buffers = userbuffers(l, profiles.device());
  if (buffers > 0) communicators += several + connected;
  const Int channels = peer_channels(l, pp_rank);
  const Int peers = channels * bytes("nccl_peers_2_bytes", in_use) / channels_in_node;
  const bool alone = l.world == 1 && profiles.find_scalar("memory.outside.nccl_library_1_bytes");
  const Int once = bytes("context_bytes", "context_bytes") + bytes("framework_bytes", nullptr) +
                   cublas_threads(l, pp_rank) * bytes("cublas_handle_bytes", nullptr) +
                   bytes(alone ? "nccl_library_1_bytes" : "nccl_library_bytes", nullptr) +
                   (channels > 0 ? bytes("nccl_transfer_library_bytes", nullptr) : 0);
  return Bytes(once + communicators + peers + buffers + hybridep_buffers(l, profiles.device()));
}

}  // namespace pipewright::model
