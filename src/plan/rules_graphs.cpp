// CUDA graphs: TransformerConfig.__post_init__ and the checks of the argument parser.
#include <algorithm>

#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

bool captures(const Scenario& s, std::string_view module) {
  return graphs(s) && has(s.settings.cuda_graph_modules, module);
}
bool per_layer(const Scenario& s) {
  return s.settings.cuda_graph_impl == "local" || s.settings.cuda_graph_impl == "transformer_engine";
}
bool drop_and_pad(const Scenario& s) {
  return s.settings.moe_expert_capacity_factor.has_value() && s.settings.moe_pad_expert_input_to_capacity;
}
/// It asks moe_layer_freq alone, which a hybrid's pattern leaves at 1.
bool seems_all_moe(const Scenario& s) {
  if (!scenario::is_hybrid(s)) return !has_dense_layer(s);
  const auto& frequency = s.model.moe_layer_freq;
  return std::ranges::all_of(frequency, [](auto each) { return each == 1; });
}
bool graphs_with_fine_grained(const Scenario& s) { return graphs(s) && s.settings.fine_grained_activation_offloading; }

}  // namespace

std::vector<Rule> graph_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  return {
      {"graphs.local-experts",
       violation,
       arguments,
       {"cuda_graph_impl", "expert_model_parallel_size"},
       up_to(v0_17),
       [](const Scenario& s) {
         return s.settings.cuda_graph_impl == "local" && s.settings.expert_model_parallel_size > 1 &&
                !s.settings.other.contains("moe_pad_experts_for_cuda_graph_inference");
       },
       "--moe-pad-experts-for-cuda-graph-inference must be set when using CUDA graphs with expert parallelism",
       "use cuda_graph_impl: transformer_engine"},
      {"graphs.full-iteration-with-modules",
       violation,
       core,
       {"cuda_graph_impl", "cuda_graph_modules"},
       from(v0_18),
       [](const Scenario& s) {
         return s.settings.cuda_graph_impl == "full_iteration" && !s.settings.cuda_graph_modules.empty();
       },
       R"(cuda_graph_modules must be empty when cuda_graph_impl="full_iteration".)",
       "remove cuda_graph_modules"},
      {"graphs.full-iteration-scope",
       violation,
       core,
       {"cuda_graph_impl", "cuda_graph_modules"},
       everywhere,
       [](const Scenario& s) { return te_graphs(s) && captures(s, "full_iteration"); },
       "Invalid cuda graph scope with cuda_graph_impl transformer_engine: full_iteration",
       "set cuda_graph_impl: full_iteration, without cuda_graph_modules"},
      {"graphs.full-iteration-nan",
       violation,
       arguments,
       {"cuda_graph_impl", "check_for_nan_in_loss_and_grad"},
       everywhere,
       whole_iteration_checks_for_nan,
       "--no-check-for-nan-in-loss-and-grad should be set with --cuda-graph-impl=full_iteration for training.",
       "set check_for_nan_in_loss_and_grad: false"},
      {"graphs.with-cpu-offloading",
       violation,
       core,
       {"cuda_graph_impl", "cpu_offloading"},
       everywhere,
       [](const Scenario& s) {
         return graphs(s) && s.settings.cpu_offloading && s.settings.cuda_graph_impl != "full_iteration";
       },
       "CUDA graphs not supported with CPU offloading.",
       "set cuda_graph_impl: none, or cpu_offloading: false"},
      {"graphs.moe-and-router",
       violation,
       core,
       {"cuda_graph_modules"},
       everywhere,
       [](const Scenario& s) { return per_layer(s) && captures(s, "moe") && captures(s, "moe_router"); },
       "cuda_graph_modules must not contain both moe and moe_router.",
       "keep one of the two"},
      {"graphs.preprocess-needs-router",
       violation,
       core,
       {"cuda_graph_modules"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.cuda_graph_impl == "transformer_engine" && captures(s, "moe_preprocess") &&
                !captures(s, "moe_router");
       },
       "moe_preprocess cuda graph is only supported with moe_router cuda graph.",
       "add moe_router to cuda_graph_modules"},
      {"graphs.moe-needs-moe",
       violation,
       core,
       {"cuda_graph_modules", "num_moe_experts"},
       everywhere,
       [](const Scenario& s) {
         return per_layer(s) && s.model.num_moe_experts.value_or(0) <= 1 &&
                (captures(s, "moe") || captures(s, "moe_router"));
       },
       "moe cuda graph is only supported for MoE.",
       "take moe and moe_router out of cuda_graph_modules"},
      {"graphs.mlp-needs-dense",
       violation,
       core,
       {"cuda_graph_modules", "moe_layer_freq"},
       everywhere,
       [](const Scenario& s) { return per_layer(s) && captures(s, "mlp") && moe_model(s) && seems_all_moe(s); },
       "mlp cuda graph is only supported for dense layers, but not found in the model.",
       "take mlp out of cuda_graph_modules"},
      {"graphs.moe-needs-drop-and-pad",
       violation,
       core,
       {"cuda_graph_modules", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"},
       everywhere,
       [](const Scenario& s) { return per_layer(s) && moe_model(s) && !drop_and_pad(s) && captures(s, "moe"); },
       "moe cuda graph is only supported with drop-padding MoE.",
       "capture moe_router (and moe_preprocess) instead of moe"},
      {"graphs.preprocess-with-sync",
       violation,
       core,
       {"cuda_graph_modules", "moe_token_dispatcher_type", "moe_expert_capacity_factor"},
       everywhere,
       [](const Scenario& s) {
         return per_layer(s) && moe_model(s) && !drop_and_pad(s) && captures(s, "moe_preprocess") &&
                s.settings.moe_token_dispatcher_type == "alltoall" &&
                (s.settings.moe_expert_capacity_factor || s.settings.moe_router_padding_for_fp8);
       },
       "moe_preprocess cuda graph is not supported when there are DtoH copies and synchronizations in the preprocess "
       "step.",
       "take moe_preprocess out of cuda_graph_modules"},
      {"graphs.full-recompute",
       violation,
       core,
       {"cuda_graph_impl", "recompute_granularity"},
       everywhere,
       [](const Scenario& s) { return graphs(s) && full(s) && s.settings.cuda_graph_impl != "full_iteration"; },
       "full recompute is only supported with full iteration CUDA graph.",
       "use recompute_granularity: selective, cuda_graph_impl: full_iteration, or cuda_graph_impl: none"},
      {"graphs.moe-recompute-with-router",
       violation,
       core,
       {"cuda_graph_modules", "recompute_modules"},
       everywhere,
       [](const Scenario& s) {
         return te_graphs(s) && captures(s, "moe_router") && scenario::recomputes(s, Recompute::moe);
       },
       "moe recompute is not supported with moe_router CUDA graph with: --cuda-graph-impl transformer_engine.",
       "take moe out of recompute_modules, or moe_router out of cuda_graph_modules"},
      {"graphs.attention-dropout",
       violation,
       core,
       {"attention_dropout", "recompute_modules", "cuda_graph_modules"},
       everywhere,
       [](const Scenario& s) {
         return graphs(s) && s.settings.attention_dropout != 0 && scenario::recomputes(s, Recompute::core_attn) &&
                in_graph(s, "attn");
       },
       "attention dropout is not supported with graphed attention recomputation.",
       "set attention_dropout: 0, or take core_attn out of recompute_modules"},
      {"graphs.hidden-dropout",
       violation,
       core,
       {"hidden_dropout", "recompute_modules", "cuda_graph_modules"},
       everywhere,
       [](const Scenario& s) {
         return graphs(s) && s.settings.hidden_dropout != 0 &&
                ((scenario::recomputes(s, Recompute::mlp) && in_graph(s, "mlp")) ||
                 (scenario::recomputes(s, Recompute::moe) && in_graph(s, "moe")));
       },
       "hidden dropout is not supported with graphed MLP/MoE recomputation.",
       "set hidden_dropout: 0"},
      {"graphs.local-offload-modules",
       violation,
       core,
       {"cuda_graph_impl", "offload_modules"},
       from(v0_19),
       [](const Scenario& s) {
         return graphs_with_fine_grained(s) && s.settings.cuda_graph_impl == "local" &&
                !offloads_only(s, scenario::OffloadRow::Part::experts);
       },
       "fine-grained activation offloading with cuda_graph_impl='local' only supports offload_modules 'expert_fc1', "
       "'moe_act', and 'fused_group_mlp'.",
       "use cuda_graph_impl: transformer_engine"},
      {"graphs.local-offload-whole-layer",
       violation,
       core,
       {"cuda_graph_impl", "cuda_graph_modules"},
       from(v0_19),
       [](const Scenario& s) {
         return graphs_with_fine_grained(s) && s.settings.cuda_graph_impl == "local" &&
                s.settings.cuda_graph_modules.empty();
       },
       "fine-grained activation offloading with cuda_graph_impl='local' is not supported with whole-layer CUDA graph "
       "capture.",
       "name cuda_graph_modules"},
      {"graphs.offload-needs-te",
       violation,
       core,
       {"cuda_graph_impl", "fine_grained_activation_offloading"},
       pr_4268,
       [](const Scenario& s) {
         return graphs_with_fine_grained(s) && s.settings.cuda_graph_impl != "transformer_engine";
       },
       "fine_grained_activation_offloading must be used with TE impl of cuda_graph.",
       "use cuda_graph_impl: transformer_engine"},
      {"graphs.offload-not-local",
       violation,
       core,
       {"cuda_graph_impl", "fine_grained_activation_offloading"},
       v0_18,
       [](const Scenario& s) { return graphs_with_fine_grained(s) && s.settings.cuda_graph_impl == "local"; },
       "fine-grained activation offloading is only supported with transformer_engine CUDA graph implementation or "
       "local "
       "CUDA graph implementation with full_iteration scope.",
       "use cuda_graph_impl: transformer_engine"},
      {"graphs.offload-with-moe",
       violation,
       core,
       {"cuda_graph_modules", "fine_grained_activation_offloading"},
       from(pr_4268),
       [](const Scenario& s) { return graphs_with_fine_grained(s) && captures(s, "moe"); },
       "Token-drop MoE is temporarily not supported with activation offloading.",
       "take moe out of cuda_graph_modules"},
      {"graphs.offload-warmup",
       violation,
       core,
       {"cuda_graph_warmup_steps", "fine_grained_activation_offloading"},
       from(pr_4268),
       [](const Scenario& s) { return graphs_with_fine_grained(s) && s.settings.cuda_graph_warmup_steps <= 0; },
       "cuda_graph_warmup_steps must be greater than 0 when enabling fine-grained activation offloading.",
       "set cuda_graph_warmup_steps: 3"},
      {"graphs.offload-inflight",
       violation,
       core,
       {"cuda_graph_impl", "fine_grained_offloading_max_inflight_offloads"},
       from(v0_18).except(dev),
       [](const Scenario& s) {
         return graphs_with_fine_grained(s) && s.settings.cuda_graph_impl == "full_iteration" &&
                s.settings.fine_grained_offloading_max_inflight_offloads.value_or(-1) < 0;
       },
       "fine_grained_offloading_max_inflight_offloads must be a non-negative integer when using fine-grained "
       "activation offloading with full-iteration CUDA graphs",
       "set fine_grained_offloading_max_inflight_offloads"},
      {"graphs.expandable-segments",
       violation,
       arguments,
       {"cuda_graph_impl", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"},
       everywhere,
       [](const Scenario& s) {
         return te_graphs(s) &&
                scenario::variable(s, "PYTORCH_CUDA_ALLOC_CONF").find("expandable_segments:True") !=
                    std::string::npos &&
                scenario::variable(s, "NCCL_GRAPH_REGISTER") != "0";
       },
       "Setting NCCL_GRAPH_REGISTER=0 to avoid illegal memory access when using CUDA Graph with "
       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
       "set the environment variable NCCL_GRAPH_REGISTER=0",
       [](Scenario& s) { s.environment["NCCL_GRAPH_REGISTER"] = "0"; }},
      {"graphs.user-buffers-expandable",
       violation,
       core,
       {"nccl_ub", "PYTORCH_CUDA_ALLOC_CONF"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.nccl_ub &&
                scenario::variable(s, "PYTORCH_CUDA_ALLOC_CONF").find("expandable_segments:True") != std::string::npos;
       },
       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is currently not supported with nccl_ub due to compatibility "
       "issue with torch.cuda.MemPool API.",
       "unset PYTORCH_CUDA_ALLOC_CONF, or set nccl_ub: false"},
  };
}

}  // namespace pipewright::plan
