// Settings that change nothing where they stand. Each remedy takes the idle setting out; the search uses it to see
// that two candidates are one.
#include <algorithm>

#include "rules.hpp"

namespace pipewright::plan {

namespace {

void drop(scenario::Strings& list, std::string_view word) { std::erase(list, word); }

/// Taking the last module out of selective recompute means none: an empty list would stand for [core_attn].
void drop_recompute(Scenario& s, std::string_view word) {
  drop(s.settings.recompute_modules, word);
  if (s.settings.recompute_modules.empty()) s.settings.recompute_granularity.reset();
}
void drop_offload(Scenario& s, std::string_view word) {
  drop(s.settings.offload_modules, word);
  if (s.settings.offload_modules.empty()) s.settings.fine_grained_activation_offloading = false;
}
bool offloads(const Scenario& s, std::string_view module) {
  return s.settings.fine_grained_activation_offloading && has(s.settings.offload_modules, module);
}

}  // namespace

std::vector<Rule> effect_rules() {
  using enum Severity;
  using enum Speaker;
  return {
      {"no-effect.layernorm",
       no_effect,
       core,
       {"recompute_modules"},
       source::transformer_layer,
       {384, 410, 440, 451, 475, 476, 427},
       [](const Scenario& s) { return scenario::recomputes(s, "layernorm") && norms_fused(s) && !has_moe_layer(s); },
       "layernorm recompute does nothing: with the Transformer Engine layer of a dense GQA model both norms live in "
       "the linears that follow them (TELayerNormColumnParallelLinear), and there is no separate norm to recompute",
       "take layernorm out; it acts on the pre-MLP norm of MoE layers and the input norm of MLA",
       [](Scenario& s) { drop_recompute(s, "layernorm"); }},
      {"no-effect.layernorm-in-graph",
       no_effect,
       core,
       {"recompute_modules", "cuda_graph_modules"},
       source::transformer_layer,
       {389, 415, 445, 456, 480, 481, 432},
       [](const Scenario& s) {
         return scenario::recomputes(s, "layernorm") && norms_fused(s) && has_moe_layer(s) && te_graphs(s) &&
                has(s.settings.cuda_graph_modules, "moe_router") &&
                !has(s.settings.cuda_graph_modules, "moe_preprocess");
       },
       "layernorm recompute does nothing: the pre-MLP norm's recompute is turned off when the moe_router graph "
       "captures it without moe_preprocess",
       "add moe_preprocess to cuda_graph_modules (alltoall dispatcher), or take layernorm out",
       [](Scenario& s) { drop_recompute(s, "layernorm"); }},
      {"no-effect.core-attn",
       no_effect,
       core,
       {"recompute_modules", "attention_backend"},
       source::transformer_config,
       {1228, 1408, 1618, 1808, 2254, 1987, 1554},
       [](const Scenario& s) {
         return scenario::recomputes(s, "core_attn") && te_layers(s) && s.settings.attention_backend != "unfused" &&
                s.settings.attention_backend != "local";
       },
       "core_attn recompute with fused attention frees only the softmax statistics, and the checkpoint keeps the whole "
       "qkv projection alive beside them: the step gets slower and the peak is no lower",
       "take core_attn out; it pays only with attention_backend unfused or local"},
      {"no-effect.mlp",
       no_effect,
       core,
       {"recompute_modules"},
       source::transformer_layer,
       {445, 471, 501, 512, 536, 537, 488},
       [](const Scenario& s) { return scenario::recomputes(s, "mlp") && !has_dense_layer(s); },
       "mlp recompute does nothing: it acts on dense layers, and every layer of this model is MoE",
       "use moe_act, shared_experts or moe",
       [](Scenario& s) { drop_recompute(s, "mlp"); }},
      {"no-effect.moe",
       no_effect,
       core,
       {"recompute_modules"},
       source::moe_layer,
       {155, 227, 248, 248, 252, 249, 227},
       [](const Scenario& s) { return scenario::recomputes(s, "moe") && !has_moe_layer(s); },
       "moe recompute does nothing: the model has no MoE layer",
       "take moe out",
       [](Scenario& s) { drop_recompute(s, "moe"); }},
      {"no-effect.shared-experts",
       no_effect,
       core,
       {"recompute_modules", "moe_shared_expert_intermediate_size"},
       source::moe_layer,
       {160, 232, 253, 253, 257, 254, 232},
       [](const Scenario& s) {
         return scenario::recomputes(s, "shared_experts") &&
                (!has_moe_layer(s) || !s.model.moe_shared_expert_intermediate_size);
       },
       "shared_experts recompute does nothing: the model has no shared experts",
       "take shared_experts out",
       [](Scenario& s) { drop_recompute(s, "shared_experts"); }},
      {"no-effect.moe-act",
       no_effect,
       core,
       {"recompute_modules", "num_moe_experts"},
       source::experts,
       {104, 232, 255, 270, 261, 271, 125},
       [](const Scenario& s) {
         return scenario::recomputes(s, "moe_act") && s.settings.moe_grouped_gemm && !has_moe_layer(s);
       },
       "moe_act recompute does nothing: the model has no MoE layer",
       "take moe_act out",
       [](Scenario& s) { drop_recompute(s, "moe_act"); }},
      {"no-effect.recompute-modules",
       no_effect,
       core,
       {"recompute_modules", "recompute_granularity"},
       source::transformer_config,
       {1196, 1376, 1586, 1766, 2195, 1943, 1521},
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
       source::transformer_config,
       {1154, 1334, 1544, 1724, 2153, 1901, 1479},
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
       source::transformer_block,
       {326, 323, 321, 322, 341, 334, 327},
       [](const Scenario& s) {
         const auto most = layers_per_chunk(s);
         return full(s) && most > 0 && s.settings.recompute_num_layers.value_or(0) > most;
       },
       "recompute_num_layers {recompute_num_layers} is beyond the {$layers_per_chunk} layers of a model chunk: it "
       "means all of them",
       "set recompute_num_layers to at most {$layers_per_chunk}",
       [](Scenario& s) { s.settings.recompute_num_layers = layers_per_chunk(s); }},
      {"no-effect.offload-norm",
       no_effect,
       core,
       {"offload_modules"},
       source::transformer_layer,
       {448, 474, 504, 1430, 1798, 1547, 1347},
       [](const Scenario& s) { return offloads(s, "attn_norm") && norms_fused(s); },
       "offload of attn_norm does nothing: the norm is fused into the qkv projection (IdentityOp in its place)",
       "take attn_norm out, or offload qkv_linear, whose region holds the norm's tensors",
       [](Scenario& s) { drop_offload(s, "attn_norm"); }},
      {"no-effect.offload-mlp-norm",
       no_effect,
       core,
       {"offload_modules"},
       source::transformer_layer,
       {453, 479, 509, 1436, 1804, 1553, 1353},
       [](const Scenario& s) { return offloads(s, "mlp_norm") && norms_fused(s) && !has_moe_layer(s); },
       "offload of mlp_norm does nothing: the norm is fused into the MLP's first linear (IdentityOp in its place)",
       "take mlp_norm out; the dense MLP has no offload module",
       [](Scenario& s) { drop_offload(s, "mlp_norm"); }},
      {"no-effect.offload-recomputed-attention",
       no_effect,
       core,
       {"offload_modules", "recompute_modules"},
       source::attention,
       {340, 340, 385, 404, 403, 404, 341},
       [](const Scenario& s) { return offloads(s, "core_attn") && scenario::recomputes(s, "core_attn"); },
       "offload of core_attn does nothing: its recompute takes precedence",
       "take core_attn out of recompute_modules"},
      {"no-effect.offload-experts",
       no_effect,
       core,
       {"offload_modules", "num_moe_experts"},
       source::experts,
       {580, 222, 245, 255, 246, 256, 704},
       [](const Scenario& s) {
         return !has_moe_layer(s) && s.settings.fine_grained_activation_offloading &&
                any_of(s.settings.offload_modules, {"expert_fc1", "moe_act", "fused_group_mlp"});
       },
       "offload of expert_fc1, moe_act or fused_group_mlp does nothing: the model has no MoE layer",
       "take them out",
       [](Scenario& s) {
         for (const auto* module : {"expert_fc1", "moe_act", "fused_group_mlp"}) drop_offload(s, module);
       }},
      {"no-effect.offload-modules",
       no_effect,
       core,
       {"offload_modules", "fine_grained_activation_offloading"},
       source::transformer_config,
       {1268, 1448, 1658, 1848, 2403, 2045, 1672},
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
       source::model_parallel_config,
       {386, 378, 387, 474, 469, 474, 425},
       [](const Scenario& s) { return s.settings.cpu_offloading && s.settings.cpu_offloading_weights; },
       "cpu_offloading_weights does nothing: Transformer Engine ignores it",
       "remove it",
       [](Scenario& s) { s.settings.cpu_offloading_weights = false; }},
      {"no-effect.te-op-offload",
       no_effect,
       core,
       {"te_op_offload"},
       source::experts,
       {1, 1, 1, 1, 1, 1, 1},
       [](const Scenario& s) {
         const auto& marks = s.settings.te_op_offload;
         return (marks.fc1_op || marks.activation_op) && s.software.transformer_engine != "pr-3128";
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
       source::chunk_plan,
       {0, 0, 0, 0, 0, 0, 1},
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
       source::chunk_plan,
       {0, 0, 0, 0, 0, 0, 1},
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
       source::schedules,
       {996, 1027, 1069, 1134, 1255, 1161, 1157},
       [](const Scenario& s) { return s.settings.microbatch_group_size_per_vp_stage && !scenario::interleaved(s); },
       "microbatch_group_size_per_vp_stage does nothing without a virtual pipeline",
       "remove it",
       [](Scenario& s) { s.settings.microbatch_group_size_per_vp_stage.reset(); }},
      {"no-effect.align-param-gather",
       no_effect,
       arguments,
       {"align_param_gather", "overlap_param_gather"},
       source::arguments,
       {586, 845, 992, 979, 1058, 1013, 952},
       [](const Scenario& s) {
         return s.settings.align_param_gather && (!s.settings.overlap_param_gather || !scenario::interleaved(s));
       },
       "align_param_gather does nothing: it needs overlap_param_gather and a virtual pipeline",
       "remove it",
       [](Scenario& s) { s.settings.align_param_gather = false; }},
      {"no-effect.wgrad-deferral-limit",
       no_effect,
       core,
       {"wgrad_deferral_limit", "defer_embedding_wgrad_compute"},
       source::model_parallel_config,
       {435, 432, 450, 555, 588, 555, 507},
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
       source::transformer_config,
       {1716, 1958, 2241, 2465, 3194, 2798, 2216},
       [](const Scenario& s) { return !graphs(s) && !s.settings.cuda_graph_modules.empty(); },
       "cuda_graph_modules does nothing: cuda_graph_impl is none",
       "set cuda_graph_impl, or remove it",
       [](Scenario& s) { s.settings.cuda_graph_modules.clear(); }},
      {"no-effect.first-last-bf16",
       no_effect,
       core,
       {"first_last_layers_bf16", "fp8"},
       source::transformer_config,
       {990, 1122, 1260, 1402, 1831, 1529, 1228},
       [](const Scenario& s) { return s.settings.first_last_layers_bf16 && !s.settings.fp8 && !s.settings.fp4; },
       "first_last_layers_bf16 does nothing without fp8 or fp4",
       "remove it",
       [](Scenario& s) { s.settings.first_last_layers_bf16 = false; }},
      {"no-effect.loss-impl",
       no_effect,
       core,
       {"cross_entropy_fusion_impl", "cross_entropy_loss_fusion"},
       source::model_parallel_config,
       {246, 238, 238, 325, 315, 325, 256},
       [](const Scenario& s) {
         return !s.settings.cross_entropy_loss_fusion && s.settings.cross_entropy_fusion_impl != "native";
       },
       "cross_entropy_fusion_impl does nothing without cross_entropy_loss_fusion",
       "set cross_entropy_loss_fusion: true, or remove it",
       [](Scenario& s) { s.settings.cross_entropy_fusion_impl = "native"; }},
      {"no-effect.shared-overlap",
       no_effect,
       core,
       {"moe_shared_expert_overlap", "moe_shared_expert_intermediate_size"},
       source::moe_layer,
       {106, 174, 190, 190, 194, 191, 174},
       [](const Scenario& s) {
         return s.settings.moe_shared_expert_overlap && !s.model.moe_shared_expert_intermediate_size;
       },
       "moe_shared_expert_overlap does nothing: the model has no shared experts",
       "remove it"},
      {"no-effect.optimizer-fraction",
       no_effect,
       core,
       {"optimizer_cpu_offload", "optimizer_offload_fraction"},
       source::optimizer_config,
       {307, 323, 347, 347, 351, 350, 364},
       [](const Scenario& s) {
         return s.settings.optimizer_cpu_offload && s.settings.optimizer_offload_fraction == 0.0;
       },
       "optimizer_cpu_offload offloads nothing: optimizer_offload_fraction is 0 (the config class's default; the "
       "command line's is 1)",
       "set optimizer_offload_fraction"},
  };
}

}  // namespace pipewright::plan
