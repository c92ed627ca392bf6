// Mixtures of experts, latent attention, delta nets and hybrids: what their config.json becomes, as Megatron Bridge's
// models/*/*_bridge.py have it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "huggingface_config.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/yaml_value.hpp"

namespace pipewright::scenario {
namespace {

/// A word; refused unless it is among `allowed`.
std::string one_of(const HfConfig& config, const std::string& key, const std::string& otherwise,
                   const Strings& allowed) {
  const auto word = config.string(key, otherwise);
  if (std::ranges::find(allowed, word) == allowed.end())
    throw config.error(key, "\"" + word + "\" is not modelled", allowed, nearest_name(word, allowed));
  return word;
}

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
  if (const Int other = config.optional_integer("experts_per_token").value_or(m.moe_router_topk);
      other != m.moe_router_topk)
    throw config.error("experts_per_token", fmt::format("{} beside num_experts_per_tok {}", other, m.moe_router_topk));
  activation_is(config, {"silu"});
  constexpr double alpha = 1.702;  // fused_bias_geglu.py, quick_gelu
  if (config.number("swiglu_alpha", alpha) != alpha)
    throw config.error("swiglu_alpha", "is not Megatron's", {fmt::format("{}", alpha)});
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
  if (family == "qwen3_moe" && !config.boolean("use_qk_norm", true))  // its class always norms them
    throw config.error("use_qk_norm", "Qwen 3 without norms of queries and keys is not modelled", {"true"});
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
  if (config.boolean("mtp_use_dedicated_embeddings", false))
    throw config.error("mtp_use_dedicated_embeddings", "embeddings of multi-token prediction alone are not modelled",
                       {"false"});
  const Strings kinds = config.strings("layer_types", {"linear_attention", "full_attention"});
  config.knows({"full_attention_interval"});
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

/// transformers 5 names each layer's; before, so many dense ones lead.
void leading_dense_layers(const HfConfig& config, Model& m) {
  if (const Strings kinds = config.strings("mlp_layer_types", {"dense", "sparse"}); !kinds.empty()) {
    if (static_cast<Int>(kinds.size()) != m.num_layers)
      throw config.error("mlp_layer_types", fmt::format("{} entries for {} layers", kinds.size(), m.num_layers));
    config.knows({"first_k_dense_replace"});
    m.moe_layer_freq.clear();
    for (const auto& kind : kinds) m.moe_layer_freq.push_back(kind == "sparse" ? 1 : 0);
    return;
  }
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

void latent_attention(const HfConfig& config, Model& m) {
  config.knows({"num_key_value_heads", "head_dim"});
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
  if (const Int both = m.qk_head_dim + m.qk_pos_emb_head_dim;
      config.optional_integer("qk_head_dim").value_or(both) != both)
    throw config.error("qk_head_dim", "is not qk_nope_head_dim and qk_rope_head_dim together", {std::to_string(both)});
  // Nobody reads it; without it Megatron's parser divides the width by the heads (GLM-4.7 Flash: 2048 by 20).
  if (m.hidden_size % m.num_attention_heads != 0) m.kv_channels = m.qk_pos_emb_head_dim;
}

void deepseek(const HfConfig& config, Model& m, const std::string& family) {
  const bool second = family == "deepseek_v2";
  latent_attention(config, m);
  config.knows({"norm_topk_prob"});
  const bool sarvam = family == "sarvam_mla";
  routed_experts(config, m, sarvam ? "num_experts" : "n_routed_experts");
  shared_experts(config, m, sarvam ? "num_shared_experts" : "n_shared_experts");
  leading_dense_layers(config, m);
  m.moe_router_score_function = one_of(config, "scoring_func", second ? "softmax" : "sigmoid", {"softmax", "sigmoid"});
  m.moe_router_pre_softmax = m.moe_router_score_function == "softmax";
  m.moe_router_enable_expert_bias = one_of(config, "topk_method", second ? "greedy" : "noaux_tc",
                                           {"greedy", "group_limited_greedy", "noaux_tc"}) == "noaux_tc";
  predicted_tokens(config, m);
}

// The published modeling_deepseek.py of DeepSeek-MoE: softmax before the choice.
void deepseek_moe(const HfConfig& config, Model& m) {
  routed_experts(config, m);
  shared_experts(config, m);
  leading_dense_layers(config, m);
  one_of(config, "scoring_func", "softmax", {"softmax"});
  m.moe_router_pre_softmax = !config.boolean("norm_topk_prob", false);
  if (const Int step = config.optional_integer("moe_layer_freq").value_or(1); step != 1)
    throw config.error("moe_layer_freq", "experts in every n-th layer (state moe_layer_freq in a scenario)", {"1"});
}

// Megatron Bridge's models/mimo/mimo_bridge.py: Qwen 2 and a depth of multi-token prediction.
void mimo(const HfConfig& config, Model& m) {
  if (!config.boolean("attention_bias", true))
    throw config.error("attention_bias", "is not what Megatron Bridge builds", {"true"});
  predicted_tokens(config, m);
}

// DeepSeek-V3's router and experts in layers of another attention.
void biased_sigmoids(const HfConfig& config, Model& m) {
  routed_experts(config, m);
  shared_experts(config, m);
  config.knows({"norm_topk_prob"});  // sigmoid's scores are
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = true;
}

// Megatron Bridge's models/glm/glm45_bridge.py: GLM-4.5 to 4.7. Transformers' modular_dots1.py: dots.llm1.
void glm4_moe(const HfConfig& config, Model& m, const std::string& family) {
  biased_sigmoids(config, m);
  leading_dense_layers(config, m);
  if (family == "dots1") return;
  predicted_tokens(config, m);
  m.qk_layernorm = config.boolean("use_qk_norm", false);
}

// Megatron Bridge's models/bailing/bailing_moe2_bridge.py: Ling and Ring 2.
void bailing(const HfConfig& config, Scenario& scenario, Model& m) {
  if (config.has("router_dtype")) {
    set(scenario, "settings.moe_router_dtype=" + one_of(config, "router_dtype", "fp32", {"fp32", "fp64"}));
    scenario.positions["settings.moe_router_dtype"] = config.position_of("router_dtype");
  }
  routed_experts(config, m, "num_experts");
  shared_experts(config, m, "num_shared_experts");
  leading_dense_layers(config, m);
  predicted_tokens(config, m);
  config.knows({"norm_topk_prob", "max_window_layers", "moe_shared_expert_intermediate_size",
                "moe_router_enable_shared_expert", "use_rmsnorm", "rotary_dim", "mtp_loss_scaling_factor",
                "embedding_dropout", "output_dropout"});
  for (const auto& [key, only] : {std::pair("use_bias", false), std::pair("use_rmsnorm", true)})
    if (config.boolean(key, only) != only) throw config.error(key, "is not modelled", {only ? "true" : "false"});
  for (const char* key : {"embedding_dropout", "output_dropout"})
    if (config.number(key, 0) != 0) throw config.error(key, "dropout is not modelled here (state hidden_dropout)");
  one_of(config, "score_function", "sigmoid", {"sigmoid"});
  m.add_qkv_bias = config.boolean("use_qkv_bias", false);
  m.qk_layernorm = config.boolean("use_qk_norm", true);
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = config.boolean("moe_router_enable_expert_bias", true);
}

// Megatron Bridge's models/hy_v3/hy_v3_bridge.py: Hy3.
void hy_v3(const HfConfig& config, Model& m) {
  routed_experts(config, m, "num_experts");
  shared_experts(config, m, "num_shared_experts");
  leading_dense_layers(config, m);
  predicted_tokens(config, m);
  if (const Int other = config.optional_integer("expert_hidden_dim").value_or(*m.moe_ffn_hidden_size);
      other != *m.moe_ffn_hidden_size)
    throw config.error("expert_hidden_dim",
                       fmt::format("{} beside moe_intermediate_size {}", other, *m.moe_ffn_hidden_size));
  for (const char* key : {"qk_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias", "route_norm"})
    if (!config.boolean(key, true)) throw config.error(key, "is not what Megatron Bridge builds", {"true"});
  // Transformers' own sum of both kinds of experts.
  config.knows({"enable_moe_fp32_combine"});
  m.moe_router_topk_scaling_factor = config.number("router_scaling_factor", 1);
  m.qk_layernorm = true;
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = true;
}

// Megatron Bridge's models/sarvam: 30B has Ling's keys; 105B DeepSeek's attention without a low rank of queries.
void sarvam(const HfConfig& config, const std::string& family, Scenario& scenario, Model& m, Strings& notes) {
  if (family == "sarvam_moe") bailing(config, scenario, m);
  m.moe_router_topk_scaling_factor = 2.5;
  if (m.moe_router_num_groups.value_or(1) > 1)
    notes.push_back(
        fmt::format("n_group: {} is not taken: Megatron Bridge builds this family without groups of experts",
                    *m.moe_router_num_groups));
  m.moe_router_num_groups = m.moe_router_group_topk = std::nullopt;
}

// Megatron Bridge's models/ernie/ernie_45_bridge.py, whose router's scores are sigmoids.
void ernie_moe(const HfConfig& config, Model& m) {
  m.num_moe_experts = config.integer("moe_num_experts");
  m.moe_router_topk = config.integer("moe_k");
  m.moe_ffn_hidden_size = config.integer("moe_intermediate_size");
  shared_experts(config, m, "moe_num_shared_experts");
  config.knows({"moe_capacity", "moe_norm_min", "mlp_layer_types"});
  one_of(config, "moe_gate", "topk", {"topk"});
  if (!config.boolean("moe_use_aux_free", true))
    throw config.error("moe_use_aux_free", "a router without bias is not what Megatron Bridge builds", {"true"});
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
void olmoe(const HfConfig& config, Model& m, Strings& notes) {
  m.num_moe_experts = config.integer("num_experts");
  m.moe_router_topk = config.integer("num_experts_per_tok");
  m.moe_ffn_hidden_size = m.ffn_hidden_size;
  m.moe_router_pre_softmax = !config.boolean("norm_topk_prob", false);
  m.qk_layernorm = m.qk_layernorm_whole = true;
  notes.emplace_back(
      "norms of whole queries and keys: with tensor parallelism predicted as Megatron Bridge's minimax_m2_layer_spec "
      "has them; its OLMoE provider's fail there");
}

// Megatron Bridge's models/minimax_m2: norms over the whole width of queries and of keys, experts in every layer, no
// multi-token prediction whatever config.json has of it.
void minimax_m2(const HfConfig& config, Model& m, Strings& notes) {
  m.num_moe_experts = config.integer("num_local_experts");
  m.moe_router_topk = config.integer("num_experts_per_tok");
  m.moe_ffn_hidden_size = m.ffn_hidden_size;
  if (const auto turned = config.optional_integer("rotary_dim"))
    m.rotary_percent = static_cast<double>(*turned) / static_cast<double>(m.kv_channels.value_or(128));
  m.qk_layernorm = m.qk_layernorm_whole = true;
  m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = true;
  for (const char* key : {"use_qk_norm", "use_routing_bias"})
    if (!config.boolean(key, true)) throw config.error(key, "is not what Megatron Bridge builds", {"true"});
  one_of(config, "scoring_func", "sigmoid", {"sigmoid"});
  one_of(config, "qk_norm_type", "per_layer", {"per_layer"});
  for (const Int kind : config.integers("attn_type_list", m.num_layers))
    if (kind != 1) throw config.error("attn_type_list", "layers of lightning attention are not modelled", {"1"});
  if (config.optional_integer("shared_intermediate_size", 0).value_or(0) > 0)
    throw config.error("shared_intermediate_size", "shared experts are not what Megatron Bridge builds", {"0"});
  if (config.has("use_mtp") || config.has("num_mtp_modules"))
    notes.emplace_back(
        "use_mtp, num_mtp_modules and mtp_transformer_layers are not taken: Megatron Bridge builds this family without "
        "multi-token prediction");
  config.knows({"use_mtp", "num_mtp_modules", "mtp_transformer_layers"});
}

/// A hybrid's layers as Megatron writes them; transformers names them one by one (layers_block_type).
std::string hybrid_pattern(const HfConfig& config, const char* letter_by_letter, const char* one_by_one) {
  const std::map<std::string, char> letters = {{"mamba", 'M'}, {"attention", '*'},        {"mlp", '-'},
                                               {"moe", 'E'},   {"linear_attention", 'M'}, {"full_attention", '*'}};
  std::string pattern;
  for (const auto& kind : config.strings(one_by_one, hybrid_kinds)) pattern += letters.at(kind);
  if (config.has(letter_by_letter)) {
    const std::string said = config.string(letter_by_letter, "");
    if (!pattern.empty() && pattern != said)
      throw config.error(one_by_one, fmt::format("{} beside {} {}", pattern, letter_by_letter, said));
    return said;
  }
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
  if (!m.kv_channels) m.kv_channels = 128;  // configuration_nemotron_h.py
  m.position_embedding_type = "none";
  m.layernorm_epsilon = config.number("layer_norm_epsilon", m.layernorm_epsilon);
  m.gated_linear_unit = false;
  m.activation_func = "squared_relu";
  one_of(config, "mlp_hidden_act", "relu2", {"relu2"});
  one_of(config, "mamba_hidden_act", "silu", {"silu"});  // mamba_mixer.py's
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

/// How Megatron Bridge's models/*/*_bridge.py balance a family's experts.
struct Balance {
  const char *family, *type;
  double coefficient;    ///< of a config.json that says none
  const char* key = "";  ///< of config.json that Bridge takes it from
};
constexpr Balance balances[] = {{"qwen3_moe", "aux_loss", 1e-3},
                                {"qwen3_next", "global_aux_loss", 1e-3},
                                {"qwen3_5_moe_text", "global_aux_loss", 1e-3, "router_aux_loss_coef"},
                                {"deepseek_v2", "seq_aux_loss", 1e-3, "aux_loss_alpha"},
                                {"deepseek_v3", "seq_aux_loss", 1e-4, "aux_loss_alpha"},
                                {"kimi_k2", "seq_aux_loss", 1e-3},
                                {"glm4_moe", "seq_aux_loss", 1e-3},
                                {"glm4_moe_lite", "seq_aux_loss", 1e-3},
                                {"ernie4_5_moe", "aux_loss", 1e-3, "router_aux_loss_coef"},
                                {"olmoe", "seq_aux_loss", 1e-2, "router_aux_loss_coef"},
                                {"minimax_m2", "aux_loss", 1e-3, "router_aux_loss_coef"},
                                {"nemotron_h", "seq_aux_loss", 1e-4},
                                {"bailing_moe_v2", "none", 0},
                                {"hy_v3", "none", 0},
                                {"sarvam_moe", "aux_loss", 0},
                                {"sarvam_mla", "aux_loss", 0},
                                {"gpt_oss", "none", 0}};

/// What config.json says of a mixture's training that Megatron's router has otherwise.
void router_differs(const HfConfig& config, const std::string& family, const Model& m, Strings& notes) {
  // moe_utils.py:868, core_r0.19.0: sigmoids of several experts are divided by their sum, whatever config.json says.
  const bool sums_to_one = m.moe_router_score_function == "sigmoid" ? m.moe_router_topk > 1 : !m.moe_router_pre_softmax;
  if (family != "qwen3_5_moe_text" && config.boolean("norm_topk_prob", sums_to_one) != sums_to_one)
    notes.push_back(fmt::format("norm_topk_prob: {} is not taken: Megatron's router {} the chosen experts' weights",
                                !sums_to_one, sums_to_one ? "normalises" : "does not normalise"));
  if (!config.boolean("seq_aux", true))
    notes.emplace_back("seq_aux: false is not taken: the auxiliary loss is that of moe_router_load_balancing_type");
  if (config.number("router_jitter_noise", 0) != 0)
    notes.emplace_back("router_jitter_noise is not taken: Megatron Bridge takes none (moe_input_jitter_eps)");
}

void auxiliary_loss(const HfConfig& config, const std::string& family, Scenario& scenario, Strings& notes) {
  const auto* row = std::ranges::find_if(balances, [&](const Balance& each) { return family == each.family; });
  const bool known = row != std::end(balances);
  const double taken = !known ? 0 : *row->key != 0 ? config.number(row->key, row->coefficient) : row->coefficient;
  const std::string by = !known ? "Megatron Bridge has no such family, and Megatron's own default is none"
                         : taken > 0
                             ? fmt::format("Megatron Bridge trains this family with {} and {:g}", row->type, taken)
                             : "Megatron Bridge trains this family without";
  if (known)
    for (const auto& [field, value] : {std::pair("moe_router_load_balancing_type", std::string(row->type)),
                                       {"moe_aux_loss_coeff", yaml_number(taken)}}) {
      set(scenario, fmt::format("settings.{}={}", field, value));
      scenario.positions[std::string("settings.") + field] = config.position_of(row->key);
    }
  bool said = false;
  for (const char* key : {"router_aux_loss_coef", "aux_loss_alpha"}) {
    said = said || config.has(key);
    if (const double other = config.number(key, taken); other != taken)
      notes.push_back(fmt::format("{}: {:g} is not taken: {} (moe_router_load_balancing_type, moe_aux_loss_coeff)", key,
                                  other, by));
  }
  if (taken > 0 && !said)
    notes.push_back(fmt::format("auxiliary loss: {} (moe_router_load_balancing_type, moe_aux_loss_coeff)", by));
}

}  // namespace

void layers_without_rotation(const HfConfig& config, Model& m) {
  m.no_rope_freq = config.integers("no_rope_layers", m.num_layers);
  for (Int& rotates : m.no_rope_freq) rotates = rotates == 0 ? 1 : 0;  // Megatron's 1: no rotation
  const Int interval = config.optional_integer("no_rope_layer_interval", 0).value_or(4);
  if (m.no_rope_freq.empty()) m.no_rope_freq = {interval};
}

void mixture_of(const HfConfig& config, const std::string& family, Scenario& scenario, Model& m, Strings& notes) {
  if (family == "mixtral") mixtral(config, m);
  if (family == "qwen2_moe" || family == "qwen3_moe" || family == "qwen3_next" || family == "qwen3_5_moe_text")
    qwen_moe(config, m, family);
  if (family == "qwen3_next" || family.starts_with("qwen3_5")) delta_nets(config, m, family);
  if (family == "olmoe") olmoe(config, m, notes);
  if (family == "minimax_m2") minimax_m2(config, m, notes);
  if (family == "glm4_moe" || family == "dots1") glm4_moe(config, m, family);
  if (family == "solar_open") {  // transformers' modular_solar_open.py: experts in every layer
    biased_sigmoids(config, m);
    config.knows({"intermediate_size", "use_qk_norm"});
  }
  if (family == "mimo") mimo(config, m);
  if (family == "youtu") latent_attention(config, m);  // transformers' modular_youtu.py
  if (family == "bailing_moe_v2") bailing(config, scenario, m);
  if (family == "ernie4_5_moe") ernie_moe(config, m);
  if (family == "hy_v3") hy_v3(config, m);
  if (family == "nemotron_h") nemotron_h(config, m);
  if (family == "gpt_oss") gpt_oss(config, m);
  if (family == "llama4_text") llama4(config, scenario, m);
  if (family == "deepseek") deepseek_moe(config, m);
  if (family.starts_with("deepseek_v") || family == "kimi_k2" || family == "glm4_moe_lite" || family == "sarvam_mla")
    deepseek(config, m, family);
  if (family.starts_with("sarvam")) sarvam(config, family, scenario, m, notes);
  if ((family == "deepseek_v3" || family == "glm4_moe") && !config.has("num_nextn_predict_layers"))
    notes.emplace_back(
        "num_nextn_predict_layers is not stated and taken as none, as transformers before 5 does; from 5 on its class, "
        "and Megatron Bridge with it, has one depth of multi-token prediction");
  if (!m.num_moe_experts) return;
  auxiliary_loss(config, family, scenario, notes);
  router_differs(config, family, m, notes);
}

}  // namespace pipewright::scenario
