// Names on the left are transformers' (configuration_llama.py, configuration_qwen2.py, ...), those on the right
// Megatron Core's. What a family fixes without stating it (Qwen2's qkv bias, Qwen3's q and k norms) is added.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "huggingface_config.hpp"
#include "yaml_value.hpp"

namespace pipewright::scenario {
namespace {

/// rope_scaling says how positions beyond those of pretraining are reached: no time or memory hangs on it, but the
/// flags that come out must train the same model. Fields of Megatron's providers and of MLATransformerConfig.
void rope_scaling(const HfConfig& config, Model& m, Strings& notes) {
  const auto* found = config.object("rope_scaling");
  if (found == nullptr) found = config.object("rope_parameters");
  if (found == nullptr) return;
  const HfConfig rope = config.within(*found);
  const std::string type = rope.string("rope_type", rope.string("type", "default"));
  const auto number = [&](const char* key, const char* field) {
    if (rope.has(key)) m.other[field] = yaml_number(rope.number(key, 1));
  };
  if (type == "llama3") {  // Megatron's --use-rope-scaling is Llama 3.1's, with its three other constants
    m.other["rope_scaling"] = "true";
    number("factor", "rope_scaling_factor");
  } else if (type == "yarn" && m.multi_latent_attention) {
    number("factor", "rotary_scaling_factor");
    for (const char* name : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) number(name, name);
    if (const auto length = rope.optional_integer("original_max_position_embeddings"))
      m.other["original_max_position_embeddings"] = std::to_string(*length);
  } else if (type == "linear") {
    number("factor", "seq_len_interpolation_factor");
  } else if (type != "default") {
    notes.push_back(fmt::format(
        "rope_scaling of type {} is not in the flags that come out: no time or memory hangs on it, add it yourself",
        type));
  }
}

std::string activation(const HfConfig& config) {
  const std::map<std::string, std::string> names = {{"silu", "silu"},
                                                    {"swish", "silu"},
                                                    {"gelu", "gelu"},
                                                    {"relu", "relu"},
                                                    {"gelu_new", "fast_gelu"},
                                                    {"relu2", "squared_relu"},
                                                    {"gelu_pytorch_tanh", "fast_gelu"}};
  const std::string other = config.string("hidden_activation", "silu"), name = config.string("hidden_act", other);
  if (name != other && config.has("hidden_activation"))
    throw config.error("hidden_activation", fmt::format("\"{}\" beside hidden_act \"{}\"", other, name));
  const auto found = names.find(name);
  if (found != names.end()) return found->second;
  Strings known;
  for (const auto& [hf, megatron] : names) known.push_back(hf);
  throw config.error("hidden_act", fmt::format("unknown activation \"{}\"", name), known);
}

/// The shortest pattern that says which layers see the whole sequence: none, every n-th, or one number a layer.
Ints skip_pattern(const std::vector<bool>& windowed) {
  const auto full = std::ranges::find(windowed, false);
  if (full == windowed.end()) return {};
  const auto n = static_cast<std::size_t>(full - windowed.begin()) + 1;
  bool regular = true;
  for (std::size_t layer = 0; layer < windowed.size(); ++layer)
    regular = regular && windowed[layer] == ((layer + 1) % n != 0);
  if (regular) return {static_cast<Int>(n)};
  return {windowed.begin(), windowed.end()};
}

/// Transformers' window counts the query itself, Megatron's stands beside it.
void sliding_window(const HfConfig& config, Model& m, const std::string& family) {
  const bool switched = family.starts_with("qwen") && family != "qwen3_next";
  if (switched) config.knows({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"});
  const bool always = family == "mistral" || family == "mixtral" || family == "gpt_oss" || family == "phi3" ||
                      family.starts_with("gemma");
  if (!always && !(switched && config.boolean("use_sliding_window", false))) return;
  if (always) config.knows({"layer_types"});
  const OptInt width = config.optional_integer("sliding_window");
  if (!width) return;
  m.window_size = {*width - 1, 0};
  const Strings kinds = config.strings("layer_types", {"sliding_attention", "full_attention"});
  std::vector<bool> windowed;
  if (!kinds.empty()) {
    if (static_cast<Int>(kinds.size()) != m.num_layers)
      throw config.error("layer_types", fmt::format("{} entries for {} layers", kinds.size(), m.num_layers));
    for (const auto& kind : kinds) windowed.push_back(kind == "sliding_attention");
  } else if (family != "qwen3_moe" && switched) {  // configuration_qwen2.py: layers from max_window_layers on
    const Int first = config.optional_integer("max_window_layers", 0).value_or(28);
    for (Int layer = 0; layer < m.num_layers; ++layer) windowed.push_back(layer >= first);
  } else if (family == "gpt_oss" || family == "gemma2") {  // every other layer
    for (Int layer = 0; layer < m.num_layers; ++layer) windowed.push_back(layer % 2 == 0);
  } else if (family == "gemma3_text") {  // all but every sixth
    const OptInt stated = config.optional_integer("sliding_window_pattern");
    const Int pattern = stated ? *stated : config.optional_integer("_sliding_window_pattern").value_or(6);
    for (Int layer = 0; layer < m.num_layers; ++layer) windowed.push_back((layer + 1) % pattern != 0);
  }
  if (std::ranges::find(windowed, true) == windowed.end() && !windowed.empty())
    m.window_size.clear();
  else
    m.window_attn_skip_freq = skip_pattern(windowed);
}

void dense(const HfConfig& config, Model& m, const std::string& family) {
  m.num_layers = config.integer("num_hidden_layers", 1, 1'000'000);
  m.hidden_size = config.integer("hidden_size");
  m.ffn_hidden_size = config.integer("intermediate_size");
  m.num_attention_heads = config.integer("num_attention_heads");
  m.num_query_groups = config.optional_integer("num_key_value_heads");
  m.kv_channels = config.optional_integer("head_dim");
  m.vocab_size = config.integer("vocab_size");
  m.max_position_embeddings = config.optional_integer("max_position_embeddings");
  m.untie_embeddings_and_output_weights = !config.boolean("tie_word_embeddings", false);
  m.position_embedding_type = "rope";
  m.rotary_base = config.number("rope_theta", family == "mixtral" ? 1e6 : 1e4);
  m.normalization = "RMSNorm";
  m.layernorm_epsilon = config.number("rms_norm_eps", 1e-6);
  m.gated_linear_unit = true;
  if (!family.starts_with("gemma") && family != "nemotron_h") m.activation_func = activation(config);
  m.add_bias_linear = config.boolean("mlp_bias", false);
  m.add_qkv_bias = config.boolean("attention_bias", false) || family == "qwen2" || family == "qwen2_moe";
  m.qk_layernorm = family == "qwen3" || family == "qwen3_moe";
  m.rotary_percent = config.number("partial_rotary_factor", 1);
  sliding_window(config, m, family);
}

/// Of a family whose activation Megatron's provider fixes.
void activation_is(const HfConfig& config, const Strings& names) {
  for (const char* key : {"hidden_act", "hidden_activation"})
    if (const auto name = config.string(key, names.front()); std::ranges::find(names, name) == names.end())
      throw config.error(key, "\"" + name + "\" is not modelled", names);
}

// Megatron Bridge's models/gemma: tanh GELU, embeddings times sqrt(hidden_size); from Gemma 2 on norms on the outputs
// of attention and MLP.
void gemma(const HfConfig& config, Model& m, const std::string& family) {
  activation_is(config, {"gelu_pytorch_tanh", "gelu"});  // Gemma 1 says "gelu" and means tanh's
  m.activation_func = "fast_gelu";
  m.apply_embedding_scaling = true;
  m.layernorm_zero_centered_gamma = true;
  if (family == "gemma") return;
  m.post_layernorm = true;
  m.softmax_scale = 1 / std::sqrt(config.number("query_pre_attn_scalar", 256));
  m.qk_layernorm = family == "gemma3_text";
  for (const auto& [key, field] : {std::pair("attn_logit_softcapping", &m.attn_logit_softcapping),
                                   std::pair("final_logit_softcapping", &m.final_logit_softcapping)})
    if (config.has(key)) *field = config.number(key, 0);
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
  m.no_rope_freq = config.integers("no_rope_layers", m.num_layers);
  for (Int& rotates : m.no_rope_freq) rotates = rotates == 0 ? 1 : 0;  // Megatron's 1: no rotation
  if (m.no_rope_freq.empty()) m.no_rope_freq = {config.optional_integer("no_rope_layer_interval", 0).value_or(4)};
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

// Megatron Bridge's models/qwen/qwen3_next_bridge.py.
void qwen3_next(const HfConfig& config, Model& m) {
  m.moe_shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size");
  m.moe_shared_expert_gate = true;
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
void routed_experts(const HfConfig& config, Model& m) {
  m.num_moe_experts = config.integer("n_routed_experts");
  m.moe_router_topk = config.integer("num_experts_per_tok");
  m.moe_ffn_hidden_size = config.integer("moe_intermediate_size");
  m.moe_router_num_groups = config.optional_integer("n_group");
  m.moe_router_group_topk = config.optional_integer("topk_group");
  if (config.has("routed_scaling_factor")) m.moe_router_topk_scaling_factor = config.number("routed_scaling_factor", 1);
}

void predicted_tokens(const HfConfig& config, Model& m) {
  if (const Int mtp = config.optional_integer("num_nextn_predict_layers", 0).value_or(0); mtp > 0)
    m.mtp_num_layers = mtp;
}

void deepseek(const HfConfig& config, Model& m) {
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
  if (const OptInt shared = config.optional_integer("n_shared_experts", 0); shared && *shared > 0) {
    m.moe_shared_expert_intermediate_size = *shared * *m.moe_ffn_hidden_size;
  }
  const Int dense_layers = config.optional_integer("first_k_dense_replace", 0).value_or(0);
  if (dense_layers > 0) {
    m.moe_layer_freq.clear();
    for (Int layer = 0; layer < m.num_layers; ++layer) m.moe_layer_freq.push_back(layer < dense_layers ? 0 : 1);
  }
  m.moe_router_score_function = config.string("scoring_func", "sigmoid") == "softmax" ? "softmax" : "sigmoid";
  m.moe_router_pre_softmax = m.moe_router_score_function == "softmax";
  m.moe_router_enable_expert_bias = config.string("topk_method", "noaux_tc") == "noaux_tc";
  predicted_tokens(config, m);
}

/// A hybrid's layers as Megatron writes them; transformers names them one by one (layers_block_type).
std::string hybrid_pattern(const HfConfig& config) {
  if (config.has("hybrid_override_pattern")) return config.string("hybrid_override_pattern", "");
  const std::map<std::string, char> letters = {{"mamba", 'M'}, {"attention", '*'}, {"mlp", '-'}, {"moe", 'E'}};
  std::string pattern;
  for (const auto& kind : config.strings("layers_block_type", {"mamba", "attention", "mlp", "moe"}))
    pattern += letters.at(kind);
  if (pattern.empty()) config.lacks("hybrid_override_pattern");
  return pattern;
}

// Megatron Bridge's models/nemotronh/nemotron_h_bridge.py.
void nemotron_h(const HfConfig& config, Model& m) {
  m.hybrid_layer_pattern = hybrid_pattern(config);
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

Model model_of(const HfConfig& config, const std::string& family, Scenario& scenario, Strings& notes) {
  Model m;
  dense(config, m, family);
  if (family == "mixtral") mixtral(config, m);
  if (family == "qwen2_moe" || family == "qwen3_moe" || family == "qwen3_next") qwen_moe(config, m, family);
  if (family == "qwen3_next") qwen3_next(config, m);
  if (family == "nemotron_h") nemotron_h(config, m);
  if (family == "gpt_oss") gpt_oss(config, m);
  if (family.starts_with("gemma")) gemma(config, m, family);
  if (family == "llama4_text") llama4(config, scenario, m);
  if (family == "deepseek_v3" || family == "kimi_k2") deepseek(config, m);
  config.require();
  rope_scaling(config, m, notes);
  return m;
}

}  // namespace pipewright::scenario
