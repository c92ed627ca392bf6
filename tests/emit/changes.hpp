// Changes to small scenarios that reach what flags and overrides can say.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "pipewright/plan.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::test {

/// What may be changed together; whatever the rules refuse is left out.
inline const std::vector<const char*> changes = {
    "recompute_granularity=selective; recompute_modules=[core_attn]",
    "recompute_granularity=selective; recompute_modules=[mlp]",
    "recompute_granularity=selective; recompute_modules=[moe_act, layernorm]",
    "recompute_granularity=selective; recompute_modules=[mla_up_proj]",
    "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1; recompute_modules=[]",
    "recompute_granularity=full; recompute_method=block; recompute_num_layers=1; recompute_modules=[]",
    "fine_grained_activation_offloading=true; $NVTE_CPU_OFFLOAD_V1=1; offload_modules=[moe_act, expert_fc1]",
    "fine_grained_activation_offloading=true; $NVTE_CPU_OFFLOAD_V1=1; offload_modules=[core_attn, attn_proj]; "
    "min_offloaded_tensor_size=2097152; activation_offload_fraction=0.5; delta_offload_bytes_across_pp_ranks=1024",
    "cpu_offloading=true; cpu_offloading_num_layers=3",
    "optimizer_cpu_offload=true; optimizer_offload_fraction=0.5; use_precision_aware_optimizer=true",
    "fp8=hybrid; fp8_recipe=tensorwise",
    "fp8=hybrid; fp8_recipe=delayed",
    "fp8=e4m3; fp8_recipe=blockwise; first_last_layers_bf16=true",
    "fp8=hybrid; fp8_recipe=tensorwise; fp8_param=true; fp8_param_gather=true",
    "overlap_moe_expert_parallel_comm=true",
    "overlap_moe_expert_parallel_comm=true; delay_wgrad_compute=true",
    "overlap_moe_expert_parallel_comm=true; ep_overlap_early_attn_memory_release=true",
    "overlap_moe_expert_parallel_comm=true; delay_wgrad_compute=true; overlap_p2p_wgrad_delayed_layer_number=2; "
    "overlap_p2p_backward_on_comm_stream=true; overlap_p2p_with_transformer_layer_wgrad=true",
    "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep",
    "moe_shared_expert_intermediate_size=1024",
    "moe_shared_expert_intermediate_size=1024; moe_shared_expert_overlap=true",
    "moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1]",
    "moe_permute_fusion=true; moe_router_fusion=true; moe_router_dtype=fp32",
    "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]; use_te_rng_tracker=true",
    "cuda_graph_impl=transformer_engine; cuda_graph_modules=[moe_router, moe_preprocess]; use_te_rng_tracker=true",
    "overlap_grad_reduce=true; overlap_param_gather=true",
    "overlap_grad_reduce=true; align_grad_reduce=false; bucket_size=50000000",
    "microbatch_group_size_per_vp_stage=8",
    "overlap_p2p_comm_warmup_flush=true",
    "virtual_pipeline_model_parallel_size=none; overlap_p2p_comm=false",
    "account_for_embedding_in_pipeline_split=true; account_for_loss_in_pipeline_split=true; num_layers=6",
    "cross_entropy_loss_fusion=true",
    "grad_reduce_in_fp32=false",
    "main_grads_dtype=bf16; exp_avg_dtype=bf16; exp_avg_sq_dtype=bf16; use_precision_aware_optimizer=true",
    "micro_batch_size=2",
    "pipeline_model_parallel_layout=Et|(t|)*6,tL",
    "pipeline_model_parallel_layout=Et*3|tt|tt|tL",
    "qk_layernorm=true",
    "kv_channels=128",
    "hidden_dropout=0.1",
    "defer_embedding_wgrad_compute=true; wgrad_deferral_limit=4",
    "context_parallel_size=2",
    "mtp_num_layers=1",
    "$PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
};

inline constexpr const char* mla =
    "multi_latent_attention=true; q_lora_rank=512; kv_lora_rank=256; qk_head_dim=64; qk_pos_emb_head_dim=32; "
    "v_head_dim=64; num_query_groups=none";

/// What `now` has more and less than `base`: "\t+..." each, then "\t-..."; empty where nothing differs.
inline std::string difference(const std::set<std::string>& base, const std::set<std::string>& now) {
  std::string text;
  for (const auto& one : now)
    if (!base.contains(one)) text += "\t+" + one;
  for (const auto& one : base)
    if (!now.contains(one)) text += "\t-" + one;
  return text;
}

inline bool legal(const scenario::Scenario& s) {
  const auto findings = plan::check(s);
  if (std::ranges::any_of(findings, [](const auto& f) { return f.severity == plan::Severity::violation; }))
    return false;
  try {
    scenario::check(s);
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

}  // namespace pipewright::test
