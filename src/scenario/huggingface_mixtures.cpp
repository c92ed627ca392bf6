// Mixtures of experts, latent attention, delta nets and hybrids: what their config.json becomes, as Megatron Bridge's
// models/*/*_bridge.py have it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "huggingface_config.hpp"

namespace pipewright::scenario {
namespace {

/// Experts in the last of every `step` layers; nothing for every layer.
void experts_every(Int step, Model& m) {
  if (step <= 1) return;
  m.moe_layer_freq.clear();
  for (Int layer = 0; layer < m.num_layers; ++layer) m.moe_layer_freq.push_back((layer + 1) % step == 0 ? 1 : 0);
}

// Transformers' configuration_llama4.py. Sequences of one attention chunk see what causal attention sees.
void llama4(const HfConfig& config, Scenario& scenario, Model& m) {
  m.moe_ffn_hidden_size = m.ffn_hidden_size;
  m.moe_shared_expert_intermediate_size = m.ffn_hidden_size;
  m.ffn_hidden_size = config.integer("intermediate_size_mlp");
  m.num_moe_experts = config.integer("num_local_experts");
  m.moe_router_topk = config.integer("num_experts_per_tok");
  m.moe_router_score_function = "sigmoid";
  scenario.settings.moe_apply_probs_on_input = true;
  m.qk_l2_norm = config.boolean("use_qk_norm", true);
  m.attention_chunk_size = config.optional_integer("attention_chunk_size");
  experts_every(config.optional_integer("interleave_moe_layer_step").value_or(1), m);
  config.knows({"layer_types"});  // chunked or full: the same within a chunk
  if (const auto* list = config.list("moe_layers")) {
    m.moe_layer_freq.assign(static_cast<std::size_t>(m.num_layers), 0);
    for (const auto& layer : *list) {
      if (!layer.is_number_integer() || layer.get<Int>() < 0 || layer.get<Int>() >= m.num_layers)
        throw config.error("moe_layers", "expected layers, found " + layer.dump().substr(0, 60),
                           {fmt::format("0 to {}", m.num_layers - 1)});
      m.moe_layer_freq[static_cast<std::size_t>(layer.get<Int>())] = 1;
    }
    if (std::ranges::find(m.moe_layer_freq, 0) == m.moe_layer_freq.end()) m.moe_layer_freq = {1};
  }
  layers_without_rotation(config, m);
}

void mixtral(const HfConfig& config, Model& m) {
  m.num_moe_experts = config.integer("num_local_experts");
  m.moe_router_topk = config.integer("num_experts_per_tok");
}

// Megatron Bridge's models/gpt_oss/gpt_oss_bridge.py: what config.json does not say is fixed there too.
void gpt_oss(const HfConfig& config, Model& m) {
  mixtral(config, m);
  m.moe_ffn_hidden_size = m.ffn_hidden_size;
  config.knows({"experts_per_token"});
  activation_is(config, {"silu"});
  if (!config.boolean("attention_bias", true))
    throw config.error("attention_bias", "GPT-OSS without biases of attention is not modelled", {"true"});
  m.add_bias_linear = m.add_qkv_bias = true;
  m.activation_func = "quick_gelu";
  m.activation_func_clamp_value = config.number("swiglu_limit", 7);
  m.glu_linear_offset = 1;
  m.softmax_type = "learnable";
  m.position_embedding_type = "yarn";
}

void qwen_moe(const HfConfig& config, Model& m, const std::string& family) {
  if (family == "qwen3_5_moe_text") config.knows({"intermediate_size", "norm_topk_prob"});  // always renormalised
  if (family == "qwen2_moe") m.add_qkv_bias = config.boolean("qkv_bias", true);
  m.num_moe_experts = config.integer("num_experts");
  m.moe_router_topk = config.integer("num_experts_per_tok");
  m.moe_ffn_hidden_size = config.integer("moe_intermediate_size");
  m.moe_router_pre_softmax = !config.boolean("norm_topk_prob", false);  // renormalised: as softmax over the chosen
  experts_every(config.optional_integer("decoder_sparse_step").value_or(1), m);
  if (family != "qwen2_moe") return;
  m.moe_shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size");
  m.moe_shared_expert_gate = true;
}

// Megatron Bridge's models/qwen/qwen3_next_bridge.py and qwen35_bridge.py.
void delta_nets(const HfConfig& config, Model& m, const std::string& family) {
  if (m.num_moe_experts) {
    m.moe_shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size");
    m.moe_shared_expert_gate = true;
  }
  if (family.starts_with("qwen3_5")) {
    if (!config.boolean("attn_output_gate", true))
      throw config.error("attn_output_gate", "Qwen3.5 without the gate on attention is not modelled", {"true"});
    if (const Int mtp = config.optional_integer("mtp_num_hidden_layers", 0).value_or(0); mtp > 0)
      m.mtp_num_layers = mtp;
  }
  m.layernorm_zero_centered_gamma = true;
  m.qk_layernorm = true;
  m.attention_output_gate = true;
  m.experimental_attention_variant = "gated_delta_net";
  m.linear_conv_kernel_dim = config.integer("linear_conv_kernel_dim");
  m.linear_key_head_dim = config.integer("linear_key_head_dim");
  m.linear_value_head_dim = config.integer("linear_value_head_dim");
  m.linear_num_key_heads = config.integer("linear_num_key_heads");
  m.linear_num_value_heads = config.integer("linear_num_value_heads");
  const Strings kinds = config.strings("layer_types", {"linear_attention", "full_attention"});
  if (kinds.empty()) {
    m.linear_attention_freq = {config.optional_integer("full_attention_interval").value_or(4)};
    return;
  }
  if (static_cast<Int>(kinds.size()) != m.num_layers)
    throw config.error("layer_types", fmt::format("{} entries for {} layers", kinds.size(), m.num_layers));
  std::vector<bool> linear;
  for (const auto& kind : kinds) linear.push_back(kind == "linear_attention");
  m.linear_attention_freq = skip_pattern(linear);
  if (m.linear_attention_freq.empty()) m.linear_attention_freq = Ints(kinds.size(), 1);
}

// DeepSeek-V3's names for routed experts and predicted tokens, which hybrids took over.
void routed_experts(const HfConfig& config, Model& m, const char* experts = "n_routed_experts") {
  m.num_moe_experts = config.integer(experts);
  m.moe_router_topk = config.integer("num_experts_per_tok");
  m.moe_ffn_hidden_size = config.integer("moe_intermediate_size");
  m.moe_router_num_groups = config.optional_integer("n_group");
  m.moe_router_group_topk = config.optional_integer("topk_group");
  if (config.has("routed_scaling_factor")) m.moe_router_topk_scaling_factor = config.number("routed_scaling_factor", 1);
}

void leading_dense_layers(const HfConfig& config, Model& m) {
  const Int dense_layers = config.optional_integer("first_k_dense_replace", 0).value_or(0);
  if (dense_layers == 0) return;
  m.moe_layer_freq.clear();
  for (Int layer = 0; layer < m.num_layers; ++layer) m.moe_layer_freq.push_back(layer < dense_layers ? 0 : 1);
}

void shared_experts(const HfConfig& config, Model& m, const char* number = "n_shared_experts") {
  if (const OptInt shared = config.optional_integer(number, 0); shared && *shared > 0)
    m.moe_shared_expert_intermediate_size = *shared * *m.moe_ffn_hidden_size;
}

void predicted_tokens(const HfConfig& config, Model& m) {
  if (const Int mtp = config.optional_integer("num_nextn_predict_layers", 0).value_or(0); mtp > 0)
    m.mtp_num_layers = mtp;
}

void deepseek(const HfConfig& config, Model& m, const std::string& family) {
  const bool second = family == "deepseek_v2";
  config.knows({"num_key_value_heads", "head_dim", "qk_head_dim", "norm_topk_prob"});
  if (config.boolean("attention_bias", false))
    throw config.error("attention_bias", "biases of latent attention are not modelled", {"false"});
  m.multi_latent_attention = true;
  m.qk_layernorm = true;
  m.num_query_groups.reset();
  m.kv_channels.reset();
  m.q_lora_rank = config.optional_integer("q_lora_rank");
  m.kv_lora_rank = config.integer("kv_lora_rank");
  m.qk_head_dim = config.integer("qk_nope_head_dim");
  m.qk_pos_emb_head_dim = config.integer("qk_rope_head_dim", 0);
  m.v_head_dim = config.integer("v_head_dim");
  routed_experts(config, m);
  shared_experts(config, m);
  leading_dense_layers(config, m);
  m.moe_router_score_function =
      config.string("scoring_func", second ? "softmax" : "sigmoid") == "softmax" ? "softmax" : "sigmoid";
  m.moe_router_pre_softmax = m.moe_router_score_function == "softmax";
  m.moe_router_enable_expert_bias = config.string("topk_method", second ? "greedy" : "noaux_tc") == "noaux_tc";
  predicted_tokens(config, m);
}

// Megatron Bridge's models/glm/glm45_bridge.py: GLM-4.5 to 4.7.
void glm4_moe(const HfConfig& config, Model& m) {
  routed_experts(config, m);
  shared_experts(config, m);
  leading_dense_layers(config, m);
  predicted_tokens(config, m);
  config.knows({"norm_topk_prob"});  // sigmoid's scores are
  m.qk_layernorm = config.boolean("use_qk_norm", false);
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = true;
}

// Megatron Bridge's models/bailing/bailing_moe2_bridge.py: Ling and Ring 2.
void bailing(const HfConfig& config, Model& m) {
  routed_experts(config, m, "num_experts");
  shared_experts(config, m, "num_shared_experts");
  leading_dense_layers(config, m);
  predicted_tokens(config, m);
  config.knows({"norm_topk_prob", "max_window_layers", "moe_shared_expert_intermediate_size", "router_dtype",
                "moe_router_enable_shared_expert", "use_rmsnorm", "rotary_dim", "mtp_loss_scaling_factor",
                "embedding_dropout", "output_dropout"});
  for (const auto& [key, only] : {std::pair("use_bias", false), std::pair("use_rmsnorm", true)})
    if (config.boolean(key, only) != only) throw config.error(key, "is not modelled", {only ? "true" : "false"});
  for (const char* key : {"embedding_dropout", "output_dropout"})
    if (config.number(key, 0) != 0) throw config.error(key, "dropout is not modelled here (state hidden_dropout)");
  if (const auto score = config.string("score_function", "sigmoid"); score != "sigmoid")
    throw config.error("score_function", "\"" + score + "\" is not modelled", {"sigmoid"});
  m.add_qkv_bias = config.boolean("use_qkv_bias", false);
  m.qk_layernorm = config.boolean("use_qk_norm", true);
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = config.boolean("moe_router_enable_expert_bias", true);
}

// Megatron Bridge's models/ernie/ernie_45_bridge.py, whose router's scores are sigmoids.
void ernie_moe(const HfConfig& config, Model& m) {
  m.num_moe_experts = config.integer("moe_num_experts");
  m.moe_router_topk = config.integer("moe_k");
  m.moe_ffn_hidden_size = config.integer("moe_intermediate_size");
  shared_experts(config, m, "moe_num_shared_experts");
  config.knows({"moe_capacity", "moe_gate", "moe_use_aux_free", "moe_norm_min", "mlp_layer_types"});
  config.knows({"num_nextn_predict_layers"});  // Bridge builds no such layers
  if (const Int step = config.optional_integer("moe_layer_interval").value_or(1); step != 1)
    throw config.error("moe_layer_interval", "experts in every n-th layer (state moe_layer_freq in a scenario)", {"1"});
  if (config.has("moe_layer_end_index") && config.json().at("moe_layer_end_index") != -1 &&
      config.json().at("moe_layer_end_index") != m.num_layers - 1)
    throw config.error("moe_layer_end_index", "dense layers behind those with experts are not modelled");
  const Int first = config.optional_integer("moe_layer_start_index", 0).value_or(1);
  m.moe_layer_freq.clear();
  for (Int layer = 0; layer < m.num_layers; ++layer) m.moe_layer_freq.push_back(layer < first ? 0 : 1);
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = true;
}

// Megatron Bridge's models/olmoe: norms over the whole width of queries and of keys.
void olmoe(const HfConfig& config, Model& m) {
  m.num_moe_experts = config.integer("num_experts");
  m.moe_router_topk = config.integer("num_experts_per_tok");
  m.moe_ffn_hidden_size = m.ffn_hidden_size;
  m.moe_router_pre_softmax = !config.boolean("norm_topk_prob", false);
  m.qk_layernorm = m.qk_layernorm_whole = true;
}

/// A hybrid's layers as Megatron writes them; transformers names them one by one (layers_block_type).
std::string hybrid_pattern(const HfConfig& config, const char* letter_by_letter, const char* one_by_one) {
  if (config.has(letter_by_letter)) return config.string(letter_by_letter, "");
  const std::map<std::string, char> letters = {{"mamba", 'M'}, {"attention", '*'}, {"mlp", '-'}, {"moe", 'E'}};
  std::string pattern;
  for (const auto& kind : config.strings(one_by_one, hybrid_kinds)) pattern += letters.at(kind);
  if (pattern.empty()) config.lacks(letter_by_letter);
  return pattern;
}

/// Depths of multi-token prediction, of layers of their own; their weights are shared unless config.json says no.
void hybrid_depths(const HfConfig& config, Model& m) {
  config.knows({"mtp_hybrid_override_pattern", "mtp_layers_block_type", "mtp_use_repeated_layer"});
  if (m.mtp_num_layers.value_or(0) == 0) return;
  const std::string layers = hybrid_pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type");
  for (Int depth = 0; depth < *m.mtp_num_layers; ++depth) *m.hybrid_layer_pattern += "/" + layers;
  m.mtp_use_repeated_layer = config.boolean("mtp_use_repeated_layer", true);
}

// Megatron Bridge's models/nemotronh/nemotron_h_bridge.py.
void nemotron_h(const HfConfig& config, Model& m) {
  m.hybrid_layer_pattern = hybrid_pattern(config, "hybrid_override_pattern", "layers_block_type");
  m.kv_channels =
      config.has("head_dim") ? config.optional_integer("head_dim") : config.optional_integer("attention_head_dim");
  m.position_embedding_type = "none";
  m.layernorm_epsilon = config.number("layer_norm_epsilon", m.layernorm_epsilon);
  m.gated_linear_unit = false;
  m.activation_func = "squared_relu";
  if (const auto name = config.string("mlp_hidden_act", "relu2"); name != "relu2")
    throw config.error("mlp_hidden_act", "\"" + name + "\" is not modelled", {"relu2"});
  m.add_bias_linear = config.boolean("use_bias", false) || config.boolean("mamba_proj_bias", false) ||
                      config.boolean("mlp_bias", false);
  if (!config.boolean("use_conv_bias", true))
    throw config.error("use_conv_bias", "Megatron's convolution has a bias", {"true"});
  if (const Int width = config.optional_integer("conv_kernel").value_or(4); width != 4)
    throw config.error("conv_kernel", fmt::format("{}: Megatron's convolution is 4 wide", width), {"4"});
  m.mamba_num_heads = config.integer("mamba_num_heads");
  m.mamba_head_dim = config.integer("mamba_head_dim");
  m.mamba_num_groups = config.integer("n_groups");
  m.mamba_state_dim = config.integer("ssm_state_size");
  if (const Int chunk = config.optional_integer("chunk_size").value_or(128); chunk != 128)
    m.other["mamba_chunk_size"] = std::to_string(chunk);
  predicted_tokens(config, m);
  hybrid_depths(config, m);
  // Sizes of parts that the pattern may lack.
  config.knows({"n_shared_experts", "norm_topk_prob", "n_routed_experts", "num_experts_per_tok", "attention_head_dim",
                "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size", "n_group",
                "topk_group", "routed_scaling_factor", "layers_block_type", "hidden_act", "rms_norm_eps"});
  if (m.hybrid_layer_pattern->find('E') == std::string::npos) return;
  routed_experts(config, m);
  m.moe_shared_expert_intermediate_size = config.optional_integer("moe_shared_expert_intermediate_size");
  m.moe_latent_size = config.optional_integer("moe_latent_size");
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = true;
}

}  // namespace

void layers_without_rotation(const HfConfig& config, Model& m) {
  m.no_rope_freq = config.integers("no_rope_layers", m.num_layers);
  for (Int& rotates : m.no_rope_freq) rotates = rotates == 0 ? 1 : 0;  // Megatron's 1: no rotation
  const Int interval = config.optional_integer("no_rope_layer_interval", 0).value_or(4);
  if (m.no_rope_freq.empty()) m.no_rope_freq = {interval};
}

void mixture_of(const HfConfig& config, const std::string& family, Scenario& scenario, Model& m) {
  if (family == "mixtral") mixtral(config, m);
  if (family == "qwen2_moe" || family == "qwen3_moe" || family == "qwen3_next" || family == "qwen3_5_moe_text")
    qwen_moe(config, m, family);
  if (family == "qwen3_next" || family.starts_with("qwen3_5")) delta_nets(config, m, family);
  if (family == "olmoe") olmoe(config, m);
  if (family == "glm4_moe") glm4_moe(config, m);
  if (family == "bailing_moe_v2") bailing(config, m);
  if (family == "ernie4_5_moe") ernie_moe(config, m);
  if (family == "nemotron_h") nemotron_h(config, m);
  if (family == "gpt_oss") gpt_oss(config, m);
  if (family == "llama4_text") llama4(config, scenario, m);
  if (family.starts_with("deepseek") || family == "kimi_k2" || family == "glm4_moe_lite") deepseek(config, m, family);
}

}  // namespace pipewright::scenario
