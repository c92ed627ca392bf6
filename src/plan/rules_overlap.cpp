// Expert-parallel overlap and delayed weight gradients: TransformerConfig.__post_init__ and the argument parser.
#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

bool overlap(const Scenario& s) { return s.settings.overlap_moe_expert_parallel_comm; }
bool delayed(const Scenario& s) { return s.settings.delay_wgrad_compute; }
bool shared_expert_in_router_graph(const Scenario& s) {
  return has(s.settings.cuda_graph_modules, "moe_router") && s.model.moe_shared_expert_intermediate_size &&
         !s.settings.moe_shared_expert_overlap;
}
bool wgrad_in_graph(const Scenario& s) {
  return graphs(s) && (has(s.settings.cuda_graph_modules, "attn") || shared_expert_in_router_graph(s));
}

}  // namespace

std::vector<Rule> overlap_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  return {
      {"overlap.needs-vpp",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return overlap(s) && s.settings.pipeline_model_parallel_size > 1 && !scenario::interleaved(s);
       },
       "If enabling EP A2A overlap, virtual_pipeline_model_parallel_size must be specified when "
       "pipeline_model_parallel_size > 1",
       "set virtual_pipeline_model_parallel_size"},
      {"overlap.needs-ep",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "expert_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return overlap(s) && s.settings.expert_model_parallel_size <= 1; },
       "overlap_moe_expert_parallel_comm is only supported with expert model parallelism",
       "set expert_model_parallel_size above 1, or overlap_moe_expert_parallel_comm: false"},
      {"overlap.dispatcher",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type"},
       everywhere,
       [](const Scenario& s) {
         return overlap(s) && s.settings.moe_token_dispatcher_type != "alltoall" &&
                s.settings.moe_token_dispatcher_type != "flex";
       },
       "overlap_moe_expert_parallel_comm is supported with alltoall/flex token dispatcher",
       "set moe_token_dispatcher_type: alltoall"},
      {"overlap.no-full-recompute",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "recompute_granularity"},
       everywhere.except(dev),
       [](const Scenario& s) { return overlap(s) && full(s); },
       "disable full recomputation when enabling overlap_moe_expert_parallel_comm",
       "use recompute_granularity: selective; version dev allows full"},
      {"overlap.no-recompute-method",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "recompute_method"},
       everywhere.except(dev),
       [](const Scenario& s) { return overlap(s) && s.settings.recompute_method.has_value(); },
       "disable recomputation method when enabling overlap_moe_expert_parallel_comm",
       "remove recompute_method"},
      {"overlap.no-recompute-layers",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "recompute_num_layers"},
       everywhere.except(dev),
       [](const Scenario& s) { return overlap(s) && s.settings.recompute_num_layers.has_value(); },
       "recompute_num_layers must be None when enabling overlap_moe_expert_parallel_comm",
       "remove recompute_num_layers"},
      {"overlap.no-moe-recompute",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "recompute_modules"},
       from(v0_17),
       // Checked whatever the granularity is.
       [](const Scenario& s) { return overlap(s) && lists(s.settings.recompute_modules, Recompute::moe); },
       "disable moe in recompute_modules when enabling overlap_moe_expert_parallel_comm",
       "take moe out of recompute_modules; moe_act and layernorm are allowed"},
      {"overlap.precision",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "bf16", "fp16"},
       everywhere,
       [](const Scenario& s) { return overlap(s) && !s.settings.bf16 && !s.settings.fp16; },
       "overlap_moe_expert_parallel_comm is only supported with bf16 or fp16 model",
       "set bf16: true"},
      {"overlap.no-shared-expert-overlap",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap"},
       everywhere,
       [](const Scenario& s) { return overlap(s) && s.settings.moe_shared_expert_overlap; },
       "disable moe_shared_expert_overlap when enabling overlap_moe_expert_parallel_comm",
       "set moe_shared_expert_overlap: false"},
      {"overlap.mtp",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "mtp_num_layers"},
       everywhere,
       [](const Scenario& s) { return overlap(s) && s.model.mtp_num_layers.value_or(0) > 1; },
       "MTP supports at most one layer when enabling overlap_moe_expert_parallel_comm.",
       "set mtp_num_layers: 1"},
      {"overlap.ncclep-offload",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "moe_flex_dispatcher_backend", "offload_modules"},
       from(v0_19),
       [](const Scenario& s) {
         return overlap(s) && s.settings.moe_token_dispatcher_type == "flex" &&
                s.settings.moe_flex_dispatcher_backend == "ncclep" && offloads(s, Offload::expert_fc1);
       },
       "overlap_moe_expert_parallel_comm with ncclep does not support offloading 'expert_fc1': it forces expert FC1 to "
       "save the raw bf16 input, which the overlap path eagerly frees.",
       "take expert_fc1 out of offload_modules"},
      {"overlap.graph-modules",
       violation,
       core,
       {"overlap_moe_expert_parallel_comm", "cuda_graph_modules"},
       everywhere,
       [](const Scenario& s) {
         return overlap(s) && te_graphs(s) && any_of(s.settings.cuda_graph_modules, {"moe", "mlp"});
       },
       "CUDA graph scope on moe and mlp is not supported with overlap_moe_expert_parallel_comm",
       "capture attn, moe_router and moe_preprocess only"},
      {"wgrad.needs-overlap",
       violation,
       core,
       {"delay_wgrad_compute", "overlap_moe_expert_parallel_comm"},
       everywhere,
       [](const Scenario& s) { return delayed(s) && !overlap(s); },
       "overlap_moe_expert_parallel_comm must be enabled when enabling delay_wgrad_compute",
       "delay_wgrad_compute cannot be used alone: set overlap_moe_expert_parallel_comm: true too, or remove it"},
      {"wgrad.graphs-need-te-2.10",
       violation,
       core,
       {"delay_wgrad_compute", "cuda_graph_impl"},
       everywhere,
       [](const Scenario& s) { return delayed(s) && te_graphs(s) && !te_at_least(s, 2, 10); },
       "TE version >= 2.10.0 is required for delay_wgrad_compute with partial cuda graph",
       "install Transformer Engine 2.10 or newer"},
      {"wgrad.needs-te",
       violation,
       arguments,
       {"delay_wgrad_compute", "transformer_impl"},
       everywhere,
       [](const Scenario& s) { return delayed(s) && !te_layers(s); },
       "Delaying wgrad compute is only supported with transformer_engine implementation",
       "set transformer_impl: transformer_engine"},
      {"wgrad.grad-reduce-needs-te-2.8",
       violation,
       arguments,
       {"delay_wgrad_compute", "overlap_grad_reduce"},
       everywhere,
       [](const Scenario& s) { return delayed(s) && s.settings.overlap_grad_reduce && !te_at_least(s, 2, 8); },
       "overlap_grad_reduce is only supported with TE >= 2.8.0 when enabling delay_wgrad_compute",
       "install Transformer Engine 2.8 or newer, or set overlap_grad_reduce: false"},
      {"wgrad.in-graph-needs-te-2.12",
       violation,
       arguments,
       {"delay_wgrad_compute", "cuda_graph_modules"},
       from(v0_17),
       [](const Scenario& s) {
         return delayed(s) && s.settings.overlap_grad_reduce && wgrad_in_graph(s) && !te_at_least(s, 2, 12);
       },
       "CUDA graph with delay_wgrad_compute requires TE version >= 2.12.0.",
       "install Transformer Engine 2.12 or newer"},
      {"wgrad.in-graph-needs-fusion",
       violation,
       arguments,
       {"delay_wgrad_compute", "cuda_graph_modules", "gradient_accumulation_fusion"},
       from(v0_17),
       [](const Scenario& s) {
         return delayed(s) && s.settings.overlap_grad_reduce && wgrad_in_graph(s) &&
                !s.settings.gradient_accumulation_fusion;
       },
       "CUDA graph with delay_wgrad_compute requires gradient_accumulation_fusion to be enabled. This is because the "
       "default gradient accumulation does not use static memory addresses, which breaks CUDA graph requirements.",
       "set gradient_accumulation_fusion: true"},
      {"wgrad.in-graph-bias",
       violation,
       arguments,
       {"delay_wgrad_compute", "add_bias_linear", "add_qkv_bias"},
       from(v0_17),
       [](const Scenario& s) {
         return delayed(s) && s.settings.overlap_grad_reduce && graphs(s) &&
                has(s.settings.cuda_graph_modules, "attn") && (s.model.add_bias_linear || s.model.add_qkv_bias);
       },
       "CUDA graph with delay_wgrad_compute doesn't support attn bias for now.",
       "take attn out of cuda_graph_modules"},
      {"wgrad.no-fusion-needs-te-2.7",
       violation,
       arguments,
       {"delay_wgrad_compute", "gradient_accumulation_fusion"},
       everywhere,
       [](const Scenario& s) {
         return delayed(s) && !s.settings.gradient_accumulation_fusion && !te_at_least(s, 2, 7);
       },
       "disabling gradient_accumulation_fusion is only supported with TE >= 2.7.0 when enabling delay_wgrad_compute",
       "set gradient_accumulation_fusion: true"},
      {"wgrad.dispatch-excludes-overlap",
       violation,
       core,
       {"overlap_dispatch_backward_with_experts_wgrad", "overlap_moe_expert_parallel_comm"},
       from(pr_4268),
       [](const Scenario& s) { return s.settings.overlap_dispatch_backward_with_experts_wgrad && overlap(s); },
       "overlap_moe_expert_parallel_comm must be disabled when enabling overlap_dispatch_backward_with_experts_wgrad.",
       "keep one of the two"},
      {"wgrad.dispatch-excludes-delay",
       violation,
       core,
       {"overlap_dispatch_backward_with_experts_wgrad", "delay_wgrad_compute"},
       from(pr_4268),
       [](const Scenario& s) { return s.settings.overlap_dispatch_backward_with_experts_wgrad && delayed(s); },
       "delay_wgrad_compute and overlap_dispatch_backward_with_experts_wgrad are mutually exclusive; use only one",
       "keep one of the two"},
      {"overlap.early-release-needs-overlap",
       violation,
       core,
       {"ep_overlap_early_attn_memory_release", "overlap_moe_expert_parallel_comm"},
       everywhere,
       [](const Scenario& s) { return s.settings.ep_overlap_early_attn_memory_release && !overlap(s); },
       "overlap_moe_expert_parallel_comm must be enabled when enabling ep_overlap_early_attn_memory_release",
       "remove ep_overlap_early_attn_memory_release"},
  };
}

}  // namespace pipewright::plan
