#include "refused_when.hpp"

#include <algorithm>
#include <array>

#include "pipewright/scenario/context.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"
#include "pipewright/scenario/quant_recipe.hpp"

namespace pipewright::scenario::refused {

bool has_experts(const Scenario& s) { return s.model.num_moe_experts.has_value(); }

bool uses_graphs(const Scenario& s) { return s.settings.cuda_graph_impl != "none"; }

bool graphs_modules(const Scenario& s) { return uses_graphs(s) && s.settings.cuda_graph_impl != "full_iteration"; }

bool uses_flex(const Scenario& s) { return has_experts(s) && s.settings.moe_token_dispatcher_type == "flex"; }

bool uses_context(const Scenario& s) { return s.settings.context_parallel_size > 1; }

bool local_norms(const Scenario& s) { return s.settings.transformer_impl == "local"; }

bool has_several_ways(const Scenario& s) {
  const Strings& types = s.settings.cp_comm_type;
  return std::ranges::any_of(types, [&](const auto& type) { return type != types.front(); });
}

bool only_ring(const Scenario& s) {
  const auto sharing = context_sharing(s);
  return sharing && sharing->heads == 1 && !sharing->gathers;
}

bool exchanges_rows(const Scenario& s) {
  const auto sharing = context_sharing(s);
  const auto version = te_version(s.software);
  return sharing && sharing->ring == 1 && !sharing->gathers &&
         std::pair(version.major, version.minor) >= std::pair(2, 18);
}

bool keeps_nvfp4(const Scenario& s) {
  const auto& o = s.settings;
  if (!o.fp4) return true;  // Megatron says so itself
  const bool main_apart = !o.use_precision_aware_optimizer ||
                          (o.main_params_dtype == "fp32" && o.fp8_recipe.value_or("delayed") != "delayed");
  return o.fp4_param && o.fp4_param_gather && o.use_distributed_optimizer && main_apart && !o.optimizer_cpu_offload &&
         !o.use_megatron_fsdp && o.lora_target_modules.empty() && te_version(s.software).at_least(2, 14) &&
         core_version(s.software) >= Version::v0_17;
}

std::string experts_by_module(const Scenario& s) {
  const std::string own = s.settings.fp4 ? "nvfp4" : s.settings.fp8_recipe.value_or("delayed");
  for (const bool mtp : {false, true}) {
    std::string of[2] = {own, own};
    for (const auto& entry : module_recipes(s))
      if (entry.mtp == mtp && entry.module.starts_with("mlp.experts."))
        of[entry.module.ends_with("fc2")] = entry.recipe;
    if (of[0] != of[1]) return "the two linear layers of experts in " + of[0] + " and " + of[1];
    if (of[0] != own && of[0] != "bf16") return "experts in " + of[0] + ", the model in " + own;
  }
  return "";
}

std::string unmodelled_by_module(const Scenario& s) {
  const auto& o = s.settings;
  if (o.quant_recipe.empty() || !quantizes(s)) return "";
  if (o.fp8_param || o.fp8_param_gather || o.fp4_param || o.fp4_param_gather) return "parameters kept in FP8 or FP4";
  if (o.tp_comm_overlap && o.tensor_model_parallel_size > 1) return "userbuffers";
  if (o.use_megatron_fsdp) return "Megatron-FSDP";
  if (!o.lora_target_modules.empty()) return "adapters";
  if (o.use_transformer_engine_op_fuser) return "TE's operator sequences";
  if (tells_layers_apart(s)) return "patterns that tell layers apart";
  return has_experts(s) ? experts_by_module(s) : "";
}

bool plain_kernel(const Scenario& s) { return grouped_fused_attention(s) && !uses_context(s); }

bool packs_depths_otherwise(const Scenario& s) {
  return s.model.mtp_num_layers.value_or(0) > 0 && (uses_context(s) || core_version(s.software) == Version::dev);
}

bool packs_latent(const Scenario& s) {
  const auto& m = s.model;
  const auto& o = s.settings;
  return m.multi_latent_attention && te_layers(s) && o.attention_backend != "unfused" && !uses_context(s) &&
         core_version(s.software) >= Version::v0_18 && s.cluster.compute_capability.value_or(90) < 100 &&
         m.qk_head_dim + m.qk_pos_emb_head_dim == 192 && m.v_head_dim < 192 && !recomputes(s, Recompute::mla_up_proj) &&
         !o.cpu_offloading && !o.fine_grained_activation_offloading;
}

// Transformer Engine's dot_product_attention/utils.py (get_attention_backend): fused from 2.12 on by cuDNN 9.18;
// from 2.18 on cuDNN is asked, whose backward of sinks in packed rows is fit from 9.26 on. Before 2.12 nothing serves.
bool packs_sinks(const Scenario& s) {
  if (s.model.softmax_type == "vanilla") return true;
  const auto cudnn = cudnn_version(s.software);
  const auto te = te_version(s.software);
  const auto least = te.at_least(2, 18) ? CudnnVersion{9, 26} : CudnnVersion{9, 18};
  return has_sinks(s) && !uses_context(s) && te.at_least(2, 12) && cudnn && *cudnn >= least;
}

bool packs_soft_caps(const Scenario& s) {
  return s.model.attn_logit_softcapping.value_or(0) != 0 && !s.software.megatron_bridge;
}

bool packs_as_modelled(const Scenario& s) {
  const auto& o = s.settings;
  const bool plain = (grouped_fused_attention(s) || packs_latent(s)) && packs_sinks(s) && !packs_soft_caps(s) &&
                     o.attention_dropout == 0 && (window_of(s) == 0 || !uses_context(s) || exchanges_rows(s));
  return o.micro_batch_size == 1 && plain && !packs_depths_otherwise(s) && (only_ring(s) || exchanges_rows(s)) &&
         (!uses_graphs(s) || o.cuda_graph_modules == Strings{"mlp"});
}

bool deals_for_want_of_layout(const Scenario& s) {
  return core_version(s.software) == Version::v0_19 && !s.software.megatron_bridge && data_parallel_size(s) > 1;
}

std::string those(const char* of, std::initializer_list<std::pair<bool, const char*>> parts) {
  std::string text;
  for (const auto& [holds, name] : parts)
    if (holds) text += (text.empty() ? of : ", ") + std::string(name);
  return text;
}

std::string lacking_of_optimizer(const Scenario& s) {
  const auto& o = s.settings;
  if (o.optimizer == "adam") return "";
  const bool dealt = o.optimizer == "dist_muon";
  if (!dealt && o.optimizer != "muon") return "the kernels of this optimizer";
  const bool in_fp8 = o.fp8_param || o.fp8_param_gather, by_tensor = o.fp8 && o.fp8_recipe == "tensorwise";
  const bool layer_wise = core_version(s.software) >= Version::v0_18, shares = !dealt && o.use_distributed_optimizer;
  return those(
      "Muon with ",
      {{o.fp16, "fp16"},
       {in_fp8 && !dealt, "FP8 parameters"},
       {in_fp8 && dealt && !by_tensor, "FP8 parameters that are not scaled by tensor"},
       {o.fp4_param || o.fp4_param_gather, "FP4 parameters"},
       {!o.lora_target_modules.empty(), "adapters"},
       {o.use_precision_aware_optimizer, "precision-aware states"},
       {o.overlap_param_gather_with_optimizer_step, "the gather in the optimizer step"},
       {dealt && o.use_distributed_optimizer,
        "the distributed optimizer's buffers beside dist_muon (use_distributed_optimizer=false)"},
       {dealt && o.overlap_param_gather, "overlapped gathers of dist_muon (overlap_param_gather=false)"},
       {shares && !layer_wise, "the distributed optimizer before 0.18"},
       {!dealt && !layer_wise && o.overlap_grad_reduce, "overlapped reduction before 0.18"},
       {shares && deals_for_want_of_layout(s),
        "the distributed optimizer in pretrain_gpt.py of 0.19, which deals parameters to the data-parallel ranks "
        "(use_distributed_optimizer=false and overlap_param_gather=false; optimizer=dist_muon shares the states)"},
       {shares && s.model.num_moe_experts && s.model.add_bias_linear,
        "the distributed optimizer beside experts with biases"}});
}

std::string lacking_of_own_graphs(const Scenario& s) {
  const auto& o = s.settings;
  if (o.cuda_graph_impl != "local") return "";
  return those("Megatron's own graphs ", {{has_experts(s), "of layers with experts"},
                                          {s.model.mtp_num_layers.value_or(0) > 0, "with multi-token prediction"},
                                          {moves_activations(s), "with activation offload"},
                                          {!o.lora_target_modules.empty(), "with adapters"},
                                          {packing(s) || o.sft, "with packed sequences"},
                                          {o.delay_wgrad_compute, "with delayed weight gradients"}});
}

bool graphs_module(const Scenario& s, const char* module) {
  const auto& modules = s.settings.cuda_graph_modules;
  return modules.empty() || std::ranges::find(modules, module) != modules.end();
}

bool varies_in_graph(const Scenario& s) {
  const auto& o = s.settings;
  return has_experts(s) && graphs_module(s, "moe") &&
         !(o.moe_pad_expert_input_to_capacity && o.moe_expert_capacity_factor);
}

bool returns_delayed(const Scenario& s) {
  return s.settings.delay_wgrad_compute && !s.settings.gradient_accumulation_fusion;
}

bool overlaps_graphed_mlp(const Scenario& s) {
  return s.settings.overlap_moe_expert_parallel_comm && (graphs_module(s, "mlp") || graphs_module(s, "moe"));
}

bool projects_latent(const Scenario& s) { return has_experts(s) && s.model.moe_latent_size; }

bool lacks_depths(const Scenario& s) { return s.model.mtp_num_layers.value_or(0) > 0 && hybrid_mtp_part(s).empty(); }

bool repeats_depths(const Scenario& s) {
  return s.model.mtp_use_repeated_layer && s.model.mtp_num_layers.value_or(0) > 1 && !is_hybrid(s);
}

bool moves_activations(const Scenario& s) {
  return s.settings.cpu_offloading || s.settings.fine_grained_activation_offloading;
}

bool several_axes(const Scenario& s) { return s.model.position_embedding_type == "mrope"; }

bool rotates_at_once(const Scenario& s) {
  const auto& m = s.model;
  const bool rotates = m.position_embedding_type == "rope" || m.position_embedding_type == "yarn";
  return rotates && grouped_fused_attention(s) && m.no_rope_freq.empty() && !m.qk_layernorm && !m.qk_l2_norm &&
         !m.attention_output_gate && m.attn_logit_softcapping.value_or(0) == 0 && !has_linear_attention(s) &&
         !packing(s) && !moves_activations(s) && !recomputes(s, Recompute::core_attn) &&
         num_query_groups(s) >= s.settings.tensor_model_parallel_size;
}

std::string unmodelled_adapters(const Scenario& s) {
  const auto& o = s.settings;
  const auto& targets = o.lora_target_modules;
  if (targets.empty()) return {};
  const auto has = [&](const char* name) { return std::ranges::find(targets, name) != targets.end(); };
  const bool mlps = has("linear_fc1") || has("linear_fc2"), full = o.recompute_granularity.value_or("") == "full";
  const OptInt first = first_adapted_layer(s);
  const bool begins_in_mlp = first && !adapted_linears(s, *first).mixer();
  const bool checkpointed =
      recomputes(s, Recompute::mlp) || recomputes(s, Recompute::moe) || recomputes(s, Recompute::shared_experts);
  const bool at_once = first && adapted_linears(s, 0).mixer(), latent = adapts_latent(s);
  const bool from_the_start =
      has("linear_kv_down_proj") && has(s.model.q_lora_rank ? "linear_q_down_proj" : "linear_q_proj");
  return those(
      "adapters with ",
      {{!te_layers(s), "local layers"},
       {o.use_transformer_engine_op_fuser, "the op fuser"},
       {moves_activations(s), "activation offload"},
       {graphs_modules(s) && (o.cuda_graph_modules != Strings{"mlp"} || mlps || has_experts(s) || !at_once),
        "CUDA graphs of modules, other than of MLPs without adapters"},
       {o.delay_wgrad_compute, "delayed weight gradients"},
       {o.overlap_moe_expert_parallel_comm, "expert overlap"},
       {has_experts(s) && expert_tensor_parallel_size(s) > 1, "experts split over TP"},
       {mlps && o.tensor_model_parallel_size > 1 && s.model.moe_shared_expert_intermediate_size &&
            o.moe_shared_expert_overlap && o.sequence_parallel,
        "overlapped shared experts split over TP"},
       {latent && !from_the_start,
        "some of latent attention's projections of a layer's input alone (linear_kv_down_proj and linear_q_proj or "
        "linear_q_down_proj go together)"},
       {latent && (o.tensor_model_parallel_size > 1 || quantizes(s) || !s.model.qk_layernorm ||
                   s.model.mla_down_proj_fusion || recomputes(s, Recompute::mla_up_proj) ||
                   recomputes(s, Recompute::layernorm)),
        "latent attention's projections split over TP, quantized, fused, without norms or recomputed"},
       {!first, "none on the stage that embeds, whose output then has no gradient"},
       {begins_in_mlp && is_moe_layer(s, *first) && !has("linear_fc1"),
        "the model's first one beside a mixture's linear_fc2"},
       {begins_in_mlp && checkpointed, "the model's first one in an MLP or a mixture that is recomputed"},
       {is_hybrid(s) && full, "full recompute of a hybrid, whose first checkpoint has no input with a gradient"}});
}

bool moves_norms_in_pairs(const Scenario& s) {
  return s.settings.overlap_moe_expert_parallel_comm &&
         (offloads(s, Offload::attn_norm) || offloads(s, Offload::mlp_norm));
}

bool moves_of_full_recompute(const Scenario& s) {
  return s.settings.fine_grained_activation_offloading && s.settings.recompute_granularity.value_or("") == "full";
}

}  // namespace pipewright::scenario::refused
