// When a field's values are in use that are not modelled (effects_refused.cpp): conditions, each of one scenario.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario::refused {

bool has_experts(const Scenario& s);
bool uses_graphs(const Scenario& s);
bool graphs_modules(const Scenario& s);
bool uses_flex(const Scenario& s);
bool uses_context(const Scenario& s);
bool local_norms(const Scenario& s);
bool has_several_ways(const Scenario& s);
/// Keys and values go around all ranks, or there is one.
bool only_ring(const Scenario& s);
/// Every rank has whole sequences of some heads. Rows of several sequences are put in order by one kernel from
/// Transformer Engine 2.18 on, before by indices that Python makes (context_parallel.py,
/// thd_cp_rank_order_to_sequence_order).
bool exchanges_rows(const Scenario& s);
inline constexpr const char* nvfp4_parameters =
    "parameters kept in NVFP4 but by fp4_param and fp4_param_gather with the distributed optimizer, fp32 main "
    "parameters "
    "apart from Adam's (use_precision_aware_optimizer with another fp8_recipe than delayed only), without adapters, "
    "from "
    "Transformer Engine 2.14 and Megatron Core 0.17 on";
bool keeps_nvfp4(const Scenario& s);
inline constexpr const char* by_module_beside =
    "parameters kept in FP8 or FP4, userbuffers, Megatron-FSDP, adapters, TE's operator sequences, patterns that tell "
    "layers apart";
/// Experts' rows are padded by the model's recipe (moe_utils.py, get_align_size_for_quantization): another would find
/// them so.
std::string experts_by_module(const Scenario& s);
std::string unmodelled_by_module(const Scenario& s);
bool plain_kernel(const Scenario& s);
/// multi_token_prediction.py, _roll_tensor_packed_seq: with context parallelism sequences exchange their ends one after
/// the other; dev rolls all at once.
bool packs_depths_otherwise(const Scenario& s);
/// From core 0.18 on values are padded to the queries' heads (multi_latent_attention.py); measured for 192. On
/// Blackwell Transformer Engine has 192 with 128 only, no 192 with 192 (fused_attn.cpp, nvte_get_fused_attn_backend).
bool packs_latent(const Scenario& s);
bool packs_sinks(const Scenario& s);
/// Megatron Bridge's attention with soft caps refuses packed sequences itself (rule bridge.packed-soft-caps).
bool packs_soft_caps(const Scenario& s);
/// Rows of packed sequences: TE's kernels of variable lengths (thd), which Megatron calls with fused attention only.
bool packs_as_modelled(const Scenario& s);
/// pretrain_gpt.py of 0.19 builds its model by training/models/dist_utils.py (_ddp_wrap), which lays out no buffers for
/// Muon: several data-parallel ranks deal the parameters, as dist_muon does, gathers overlapped or not.
bool deals_for_want_of_layout(const Scenario& s);
/// What is in use that is not modelled of another optimizer than Adam; nothing: "". Muon as modelled:
/// emerging_optimizers.py and layer_wise_optimizer.py of core_r0.19.0.
std::string lacking_of_optimizer(const Scenario& s);
/// Those that hold: "with MTP, activation offload".
std::string those(const char* of, std::initializer_list<std::pair<bool, const char*>> parts);
/// What is in use that is not modelled of Megatron's own graphs (cuda_graph_impl local); nothing: "".
std::string lacking_of_own_graphs(const Scenario& s);
bool graphs_module(const Scenario& s, const char* module);
bool varies_in_graph(const Scenario& s);
/// A module's hook adds them then, outside the graph that makes them.
bool returns_delayed(const Scenario& s);
/// transformer_layer.py, _te_cuda_graph_replay_impl: "EP overlap must be disabled when CUDA graph captures the whole
/// MLP/MoE part".
bool overlaps_graphed_mlp(const Scenario& s);
bool projects_latent(const Scenario& s);
/// Depths that the pattern does not build: Megatron warns and has none.
bool lacks_depths(const Scenario& s);
/// Its graph would be replayed over what the depth before has put out. A hybrid's depths are not captured.
bool repeats_depths(const Scenario& s);
bool moves_activations(const Scenario& s);
bool several_axes(const Scenario& s);
/// fused_single_qkv_rope as modelled: every layer rotates whole heads that nothing else reads.
bool rotates_at_once(const Scenario& s);
/// Adapters otherwise than modelled, by name.
std::string unmodelled_adapters(const Scenario& s);
bool moves_norms_in_pairs(const Scenario& s);
bool moves_of_full_recompute(const Scenario& s);

}  // namespace pipewright::scenario::refused
