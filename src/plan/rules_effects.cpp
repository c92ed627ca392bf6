// Settings that change nothing where they stand. Each remedy takes the idle setting out; the search uses it to see
// that two candidates are one.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

/// Taking the last module out of selective recompute means none: an empty list would stand for [core_attn].
void drop(Scenario& s, Recompute module) {
  std::erase(s.settings.recompute_modules, scenario::name(module));
  if (s.settings.recompute_modules.empty()) s.settings.recompute_granularity.reset();
}
void drop(Scenario& s, Offload module) {
  std::erase(s.settings.offload_modules, scenario::name(module));
  if (s.settings.offload_modules.empty()) s.settings.fine_grained_activation_offloading = false;
}
/// A default is nobody's wish.
bool stated_off(const Scenario& s, const char* setting, bool value) {
  return !value && s.positions.contains(std::string("settings.") + setting);
}
bool used(const Scenario& s, Recompute module) { return scenario::recomputes(s, module); }
bool used(const Scenario& s, Offload module) { return offloads(s, module); }

/// The no-effect rule of a module's row.
template <auto module>
void add_idle(std::vector<Rule>& rules) {
  using Module = decltype(module);
  const auto& row = scenario::row(module);
  if (row.idle.when == nullptr) return;
  constexpr bool recompute = std::is_same_v<Module, Recompute>;
  static const auto message =
      (recompute ? std::string(row.name) + " recompute" : "offload of " + std::string(row.name)) +
      " does nothing: " + std::string(row.idle.reason);
  std::vector<std::string_view> settings = {recompute ? "recompute_modules" : "offload_modules"};
  if (!row.idle.decided_by.empty()) settings.push_back(row.idle.decided_by);
  rules.push_back({row.idle.rule, Severity::no_effect, Speaker::core, std::move(settings), everywhere,
                   [](const Scenario& s) { return used(s, module) && scenario::row(module).idle.when(s); }, message,
                   row.idle.fix, [](Scenario& s) { drop(s, module); }});
}

template <typename Module, std::size_t... i>
void add_all_idle(std::vector<Rule>& rules, std::index_sequence<i...>) {
  (add_idle<static_cast<Module>(i)>(rules), ...);
}

}  // namespace

std::vector<Rule> effect_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  std::vector<Rule> rules = {
      {"no-effect.layernorm-in-graph",
       no_effect,
       core,
       {"recompute_modules", "cuda_graph_modules"},
       everywhere,
       [](const Scenario& s) {
         return scenario::recomputes(s, Recompute::layernorm) && norms_fused(s) && has_moe_layer(s) && te_graphs(s) &&
                has(s.settings.cuda_graph_modules, "moe_router") &&
                (!has(s.settings.cuda_graph_modules, "moe_preprocess") ||
                 s.settings.moe_token_dispatcher_type != "alltoall" ||
                 (s.settings.moe_shared_expert_overlap && s.model.moe_shared_expert_intermediate_size));
       },
       "layernorm recompute does nothing: the pre-MLP norm's recompute is turned off when the moe_router graph "
       "returns its output: without moe_preprocess, with another dispatcher than alltoall, with shared expert overlap",
       "add moe_preprocess to cuda_graph_modules (alltoall dispatcher), or take layernorm out",
       [](Scenario& s) { drop(s, Recompute::layernorm); }},
      {"no-effect.core-attn",
       no_effect,
       core,
       {"recompute_modules", "attention_backend"},
       everywhere,
       [](const Scenario& s) {
         return scenario::recomputes(s, Recompute::core_attn) && te_layers(s) &&
                s.settings.attention_backend != "unfused" && s.settings.attention_backend != "local";
       },
       "core_attn recompute with fused attention frees only the softmax statistics, and the checkpoint keeps the whole "
       "qkv projection alive beside them: the step gets slower and the peak is no lower",
       "take core_attn out; it pays only with attention_backend unfused or local"},
      {"no-effect.moe-beside-overlap",
       no_effect,
       core,
       {"recompute_modules", "overlap_moe_expert_parallel_comm"},
       up_to(v0_16),  // later versions refuse it (overlap.no-moe-recompute)
       [](const Scenario& s) {
         return scenario::recomputes(s, Recompute::moe) && s.settings.overlap_moe_expert_parallel_comm;
       },
       "moe recompute does nothing beside overlap_moe_expert_parallel_comm: the checkpoint stands in MoELayer.forward, "
       "and the combined schedule calls router, dispatch, experts and combine one by one without it",
       "take moe out (Megatron Core 0.17 and later refuse it); moe_act and layernorm are recomputed beside the overlap",
       [](Scenario& s) { drop(s, Recompute::moe); }},
      {"no-effect.recompute-modules",
       no_effect,
       core,
       {"recompute_modules", "recompute_granularity"},
       everywhere,
       [](const Scenario& s) {
         // With expert-parallel overlap the list is read whatever the granularity is (overlap.no-moe-recompute).
         return !selective(s) && !s.settings.recompute_modules.empty() && !s.settings.overlap_moe_expert_parallel_comm;
       },
       "recompute_modules does nothing: recompute_granularity is {recompute_granularity}, the list is read with "
       "selective only",
       "set recompute_granularity: selective, or remove recompute_modules",
       [](Scenario& s) { s.settings.recompute_modules.clear(); }},
      {"no-effect.recompute-method",
       no_effect,
       core,
       {"recompute_method", "recompute_num_layers", "recompute_granularity"},
       everywhere,
       [](const Scenario& s) {
         return !s.settings.recompute_granularity && !s.settings.overlap_moe_expert_parallel_comm &&
                (s.settings.recompute_method || s.settings.recompute_num_layers);
       },
       "recompute_method and recompute_num_layers do nothing without recompute_granularity",
       "set recompute_granularity: full, or remove them",
       [](Scenario& s) { s.settings.recompute_method.reset(), s.settings.recompute_num_layers.reset(); }},
      {"no-effect.recompute-layers-beyond",
       no_effect,
       core,
       {"recompute_num_layers"},
       everywhere,
       [](const Scenario& s) {
         if (!full(s) || s.settings.recompute_num_layers.value_or(0) <= 0) return false;
         const auto most = layers_per_chunk(s);
         return most > 0 && *s.settings.recompute_num_layers > most;
       },
       "recompute_num_layers {recompute_num_layers} is beyond the {$layers_per_chunk} layers of a model chunk: it "
       "means all of them",
       "set recompute_num_layers to at most {$layers_per_chunk}",
       [](Scenario& s) { s.settings.recompute_num_layers = layers_per_chunk(s); }},
      {"no-effect.offload-recomputed-attention",
       no_effect,
       core,
       {"offload_modules", "recompute_modules"},
       everywhere,
       [](const Scenario& s) {
         return offloads(s, Offload::core_attn) && scenario::recomputes(s, Recompute::core_attn);
       },
       "offload of core_attn does nothing: its recompute takes precedence",
       "take core_attn out of recompute_modules"},
      {"no-effect.offload-experts",
       no_effect,
       core,
       {"offload_modules", "num_moe_experts"},
       everywhere,
       [](const Scenario& s) {
         return !has_moe_layer(s) && s.settings.fine_grained_activation_offloading &&
                offloads_any(s, scenario::OffloadRow::Part::experts);
       },
       "offload of expert_fc1, moe_act or fused_group_mlp does nothing: the model has no MoE layer",
       "take them out",
       [](Scenario& s) {
         for (const auto& row : scenario::offload_catalogue())
           if (row.part == scenario::OffloadRow::Part::experts) drop(s, row.module);
       }},
      {"no-effect.offload-modules",
       no_effect,
       core,
       {"offload_modules", "fine_grained_activation_offloading"},
       everywhere,
       [](const Scenario& s) {
         return !s.settings.fine_grained_activation_offloading && !s.settings.offload_modules.empty() &&
                !s.settings.moe_paged_stash;
       },
       "offload_modules does nothing without fine_grained_activation_offloading",
       "set fine_grained_activation_offloading: true",
       [](Scenario& s) { s.settings.offload_modules.clear(); }},
      {"no-effect.offload-weights",
       no_effect,
       core,
       {"cpu_offloading_weights"},
       everywhere,
       [](const Scenario& s) { return s.settings.cpu_offloading && s.settings.cpu_offloading_weights; },
       "cpu_offloading_weights does nothing: Transformer Engine ignores it",
       "remove it",
       [](Scenario& s) { s.settings.cpu_offloading_weights = false; }},
      {"no-effect.sequence-lengths",
       no_effect,
       core,
       {"sequence_lengths", "sft"},
       everywhere,
       [](const Scenario& s) { return !s.settings.sft && !s.settings.sequence_lengths.empty(); },
       "sequence_lengths does nothing where sequences are not packed",
       "set sft: true (--sft; cfg.dataset.enable_offline_packing), or remove sequence_lengths",
       [](Scenario& s) { s.settings.sequence_lengths.clear(); }},
      {"no-effect.pad-cu-seqlens",
       no_effect,
       core,
       {"pad_cu_seqlens", "sft"},
       everywhere,
       [](const Scenario& s) { return s.settings.pad_cu_seqlens && (!s.settings.sft || !s.software.megatron_bridge); },
       "pad_cu_seqlens does nothing where Megatron Bridge packs no sequences",
       "set sft: true and software.megatron_bridge, or remove pad_cu_seqlens",
       [](Scenario& s) { s.settings.pad_cu_seqlens = false; }},
      {"no-effect.te-op-offload",
       no_effect,
       core,
       {"te_op_offload"},
       everywhere,
       [](const Scenario& s) {
         const auto& marks = s.settings.te_op_offload;
         return (marks.fc1_op || marks.activation_op) && !scenario::te_version(s.software).per_op_offload;
       },
       "te_op_offload does nothing: no released Transformer Engine reads the mark; with fused_group_mlp the fused "
       "grouped MLP moves all three tensors (fc1 input, activation input, fc2 input)",
       "build Transformer Engine pull request 3128 and set the attribute fine_grained_activation_offloading on the "
       "ops, "
       "or remove te_op_offload",
       [](Scenario& s) { s.settings.te_op_offload = {}; }},
      {"no-effect.p2p-wgrad-number",
       no_effect,
       core,
       {"overlap_p2p_wgrad_delayed_layer_number", "overlap_p2p_with_transformer_layer_wgrad", "delay_wgrad_compute"},
       pr_4268,
       [](const Scenario& s) {
         return !s.settings.delay_wgrad_compute && (s.settings.overlap_p2p_with_transformer_layer_wgrad ||
                                                    s.settings.overlap_p2p_wgrad_delayed_layer_number != 1);
       },
       "overlap_p2p_wgrad_delayed_layer_number and overlap_p2p_with_transformer_layer_wgrad do nothing without "
       "delay_wgrad_compute: no weight gradient is left to move behind the transfer",
       "set delay_wgrad_compute: true (it needs overlap_moe_expert_parallel_comm)",
       [](Scenario& s) {
         s.settings.overlap_p2p_wgrad_delayed_layer_number = 1;
         s.settings.overlap_p2p_with_transformer_layer_wgrad = false;
       }},
      {"no-effect.p2p-comm-stream",
       no_effect,
       core,
       {"overlap_p2p_backward_on_comm_stream", "overlap_moe_expert_parallel_comm"},
       pr_4268,
       [](const Scenario& s) {
         return s.settings.overlap_p2p_backward_on_comm_stream && !s.settings.overlap_moe_expert_parallel_comm;
       },
       "overlap_p2p_backward_on_comm_stream does nothing without overlap_moe_expert_parallel_comm: only the combined "
       "schedule has a communication stream",
       "set overlap_moe_expert_parallel_comm: true",
       [](Scenario& s) { s.settings.overlap_p2p_backward_on_comm_stream = false; }},
      {"no-effect.group-size",
       no_effect,
       core,
       {"microbatch_group_size_per_vp_stage", "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return s.settings.microbatch_group_size_per_vp_stage && !scenario::interleaved(s); },
       "microbatch_group_size_per_vp_stage does nothing without a virtual pipeline",
       "remove it",
       [](Scenario& s) { s.settings.microbatch_group_size_per_vp_stage.reset(); }},
      {"no-effect.align-param-gather",
       no_effect,
       arguments,
       {"align_param_gather", "overlap_param_gather"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.align_param_gather &&
                (!s.settings.overlap_param_gather || (!scenario::interleaved(s) && scenario::parsed_by_megatron(s)));
       },
       "align_param_gather does nothing: it needs overlap_param_gather and a virtual pipeline",
       "remove it",
       [](Scenario& s) { s.settings.align_param_gather = false; }},
      {"no-effect.fsdp-overlap",
       no_effect,
       core,
       {"overlap_param_gather", "overlap_grad_reduce", "use_megatron_fsdp"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.use_megatron_fsdp && s.settings.data_parallel_sharding_strategy == "optim_grads_params" &&
                (stated_off(s, "overlap_param_gather", s.settings.overlap_param_gather) ||
                 stated_off(s, "overlap_grad_reduce", s.settings.overlap_grad_reduce));
       },
       "overlap_param_gather: false and overlap_grad_reduce: false do nothing with Megatron-FSDP, which overlaps both "
       "whatever is asked for where it shards parameters",
       "remove them, or set them to true",
       [](Scenario& s) { s.settings.overlap_param_gather = s.settings.overlap_grad_reduce = true; }},
      {"no-effect.wgrad-deferral-limit",
       no_effect,
       core,
       {"wgrad_deferral_limit", "defer_embedding_wgrad_compute"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.wgrad_deferral_limit > 0 && !s.settings.defer_embedding_wgrad_compute;
       },
       "wgrad_deferral_limit does nothing without defer_embedding_wgrad_compute",
       "set defer_embedding_wgrad_compute: true, or remove it",
       [](Scenario& s) { s.settings.wgrad_deferral_limit = 0; }},
      {"no-effect.graph-modules",
       no_effect,
       core,
       {"cuda_graph_modules", "cuda_graph_impl"},
       everywhere,
       [](const Scenario& s) {
         const bool keeps_norm = has(s.settings.cuda_graph_modules, "moe_router") && used(s, Recompute::layernorm);
         return !graphs(s) && !s.settings.cuda_graph_modules.empty() && !keeps_norm;
       },
       "cuda_graph_modules does nothing: cuda_graph_impl is none",
       "set cuda_graph_impl, or remove it",
       [](Scenario& s) { s.settings.cuda_graph_modules.clear(); }},
      {"no-effect.first-last-bf16",
       no_effect,
       core,
       {"first_last_layers_bf16", "fp8"},
       everywhere,
       [](const Scenario& s) { return s.settings.first_last_layers_bf16 && !s.settings.fp8 && !s.settings.fp4; },
       "first_last_layers_bf16 does nothing without fp8 or fp4",
       "remove it",
       [](Scenario& s) { s.settings.first_last_layers_bf16 = false; }},
      {"no-effect.loss-impl",
       no_effect,
       core,
       {"cross_entropy_fusion_impl", "cross_entropy_loss_fusion"},
       everywhere,
       [](const Scenario& s) {
         return !s.settings.cross_entropy_loss_fusion && s.settings.cross_entropy_fusion_impl != "native";
       },
       "cross_entropy_fusion_impl does nothing without cross_entropy_loss_fusion",
       "set cross_entropy_loss_fusion: true, or remove it",
       [](Scenario& s) { s.settings.cross_entropy_fusion_impl = "native"; }},
      {"no-effect.rope-fusion",
       no_effect,
       core,
       {"apply_rope_fusion", "position_embedding_type"},
       everywhere,
       [](const Scenario& s) {
         const auto& position = s.model.position_embedding_type;
         return s.settings.apply_rope_fusion && (position == "yarn" || position == "mrope") &&
                !s.model.multi_latent_attention;
       },
       "apply_rope_fusion does nothing: Megatron-LM and Megatron Bridge turn it off for {position_embedding_type} "
       "positions",
       "remove it",
       [](Scenario& s) { s.settings.apply_rope_fusion = false; }},
      {"no-effect.shared-overlap",
       no_effect,
       core,
       {"moe_shared_expert_overlap", "moe_shared_expert_intermediate_size"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.moe_shared_expert_overlap && !s.model.moe_shared_expert_intermediate_size;
       },
       "moe_shared_expert_overlap does nothing: the model has no shared experts",
       "remove it"},
      {"no-effect.optimizer-fraction",
       no_effect,
       core,
       {"optimizer_cpu_offload", "optimizer_offload_fraction"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.optimizer_cpu_offload && s.settings.optimizer_offload_fraction == 0.0;
       },
       "optimizer_cpu_offload offloads nothing: optimizer_offload_fraction is 0 (the config class's default; the "
       "command line's is 1)",
       "set optimizer_offload_fraction"},
  };
  add_all_idle<Recompute>(rules, std::make_index_sequence<scenario::recompute_modules_known>());
  add_all_idle<Offload>(rules, std::make_index_sequence<scenario::offload_modules_known>());
  return rules;
}

}  // namespace pipewright::plan
