#include "dimensions.hpp"

#include <algorithm>

namespace pipewright::model {
namespace {

using scenario::Scenario;

[[noreturn]] void refuse(const Scenario& s, const std::string& key, const std::string& message) {
  throw UsageError(scenario::position(s, key), key, message);
}

/// Groups of `size` consecutive-by-`stride` ranks stay inside a node when they span no more GPUs than a node has.
std::string link_of(const Scenario& s, Int stride, Int size) {
  return stride * size <= s.cluster.gpus_per_node ? s.cluster.link : s.cluster.inter_node_link;
}

Int divided(const Scenario& s, const std::string& key, Int value, Int by) {
  if (value % by) {
    refuse(s, key, std::to_string(value) + " is not a multiple of the tensor parallel size " + std::to_string(by));
  }
  return value / by;
}

std::string activation_family(const Scenario& s) {
  const std::string name = scenario::activation_func(s);
  if (s.model.gated_linear_unit) return "swiglu";  // the other gated ones move the same bytes
  if (name == "squared_relu") return "squared_relu";
  return "gelu";
}

Recipe recipe_of(const Scenario& s) {
  if (s.settings.fp4) refuse(s, "settings.fp4", "FP4 is not modelled");
  if (!s.settings.fp8) return Recipe::bf16;
  const std::string name = s.settings.fp8_recipe.value_or("delayed");
  if (name == "tensorwise") return Recipe::tensorwise;
  if (name == "delayed") return Recipe::delayed;
  if (name == "blockwise") return Recipe::blockwise;
  refuse(s, "settings.fp8_recipe",
         "\"" + name +
             "\" is not modelled (it needs a Blackwell part); allowed: "
             "tensorwise, delayed, blockwise");
}

void refuse_what_is_not_modelled(const Scenario& s) {
  const auto& m = s.model;
  const auto& o = s.settings;
  if (m.num_moe_experts) refuse(s, "model.num_moe_experts", "mixture-of-experts layers are not modelled yet");
  if (m.mtp_num_layers.value_or(0) > 0) refuse(s, "model.mtp_num_layers", "multi-token prediction is not modelled yet");
  if (o.transformer_impl != "transformer_engine") {
    refuse(s, "settings.transformer_impl", "only transformer_engine is modelled");
  }
  if (o.cpu_offloading) refuse(s, "settings.cpu_offloading", "whole-layer offload is not modelled yet");
  if (o.fine_grained_activation_offloading) {
    refuse(s, "settings.fine_grained_activation_offloading", "activation offload is not modelled yet");
  }
  if (o.use_megatron_fsdp) refuse(s, "settings.use_megatron_fsdp", "FSDP is not modelled");
}

}  // namespace

void Dimensions::set_latent(const Scenario& sc) {
  const auto& m = sc.model;
  if (sc.settings.apply_rope_fusion && m.rope_type != "yarn") {
    refuse(sc, "model.rope_type", "apply_rope_fusion for MLA only works with YARN RoPE");
  }
  mla = true;
  q_rank = m.q_lora_rank.value_or(0);
  kv_rank = m.kv_lora_rank;
  qk_nope = m.qk_head_dim;
  qk_rope = m.qk_pos_emb_head_dim;
  v_dim = m.v_head_dim;
  head_dim = qk_nope + qk_rope;
  groups = heads;
  fused_down = m.mla_down_proj_fusion && q_rank > 0;
  splits_down = t > 1 && fused_down;
  if (splits_down && (q_rank % t != 0 || (kv_rank + qk_rope) % t != 0)) {
    refuse(sc, "model.mla_down_proj_fusion",
           "q_lora_rank and kv_lora_rank + qk_pos_emb_head_dim must be divisible by tensor_model_parallel_size");
  }
}

Dimensions::Dimensions(const Scenario& sc) {
  refuse_what_is_not_modelled(sc);
  const auto& m = sc.model;
  const auto& o = sc.settings;
  t = o.tensor_model_parallel_size;
  cp = o.context_parallel_size;
  pp = o.pipeline_model_parallel_size;
  dp = scenario::data_parallel_size(sc);
  sp = o.sequence_parallel && t > 1;
  b = o.micro_batch_size;
  s = m.seq_length / cp;
  tokens = b * s;
  local = sp ? divided(sc, "model.seq_length", tokens, t) : tokens;
  h = m.hidden_size;
  f = divided(sc, "model.ffn_hidden_size", scenario::ffn_hidden_size(sc), t);
  heads = divided(sc, "model.num_attention_heads", m.num_attention_heads, t);
  if (m.multi_latent_attention) {
    set_latent(sc);
  } else {
    head_dim = scenario::kv_channels(sc);
    groups = std::max<Int>(1, scenario::num_query_groups(sc) / t);
  }
  q = heads * head_dim;
  kv = groups * head_dim;
  vocab = divided(sc, "model.vocab_size", scenario::padded_vocab_size(sc), t);
  gated = m.gated_linear_unit;
  rms_norm = m.normalization == "RMSNorm";
  bias = m.add_bias_linear;
  qkv_bias = m.add_bias_linear || m.add_qkv_bias;
  qk_norm = m.qk_layernorm;
  rope = m.position_embedding_type == "rope" || m.position_embedding_type == "yarn";
  fused_rope = o.apply_rope_fusion;
  fused_gradients = o.gradient_accumulation_fusion;
  gradient_bytes = o.grad_reduce_in_fp32 ? 4 : 2;
  hidden_dropout = o.hidden_dropout;
  attention_dropout = o.attention_dropout;
  activation = activation_family(sc);
  tp_link = link_of(sc, 1, t);
  cp_link = link_of(sc, t, cp);
  dp_link = link_of(sc, t * cp, dp);
  recipe = recipe_of(sc);
  fp8_parameters = recipe != Recipe::bf16 && (o.fp8_param || o.fp8_param_gather);
  fp8_cached_weights = !o.disable_parameter_transpose_cache;
  recompute_attention = scenario::recomputes(sc, "core_attn");
  recompute_mlp = scenario::recomputes(sc, "mlp");
  recompute_norms = scenario::recomputes(sc, "layernorm");
  recompute_up = scenario::recomputes(sc, "mla_up_proj");
  const auto& scopes = o.cuda_graph_modules;
  graphed_mlp =
      o.cuda_graph_impl == "transformer_engine" && std::find(scopes.begin(), scopes.end(), "mlp") != scopes.end();
  // Linear layers whose names userbuffers do not know switch tp_comm_overlap off for all that are made after them
  // (extensions/transformer_engine.py:922-932): MLA's down projections.
  tp_overlap = o.tp_comm_overlap && sp && !mla;
  deferred_head_wgrad = o.defer_embedding_wgrad_compute && pp > 1 && fused_gradients;
}

}  // namespace pipewright::model
