// Names on the left are transformers' (configuration_llama.py, configuration_qwen2.py, ...), those on the right
// Megatron Core's. What a family fixes without stating it (Qwen2's qkv bias, Qwen3's q and k norms) is added.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "huggingface_config.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/yaml_value.hpp"

namespace pipewright::scenario {
namespace {

/// rope_scaling says how positions beyond those of pretraining are reached: no time or memory hangs on it, but the
/// flags that come out must train the same model. Fields of Megatron's providers and of MLATransformerConfig.
void rope_scaling(const HfConfig& config, Model& m, Strings& notes) {
  const std::string where = config.object("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  // MLATransformerConfig's own is YaRN by 40; by 1 it is plain rotation, which Megatron fuses as YaRN alone.
  if (m.multi_latent_attention) m.other["rotary_scaling_factor"] = "1.0";
  if (config.object(where) == nullptr) return;
  const HfConfig rope = config.within(where);
  std::string type = rope.string("rope_type", rope.string("type", "default"));
  if (type == "deepseek_yarn") type = "yarn";  // DeepSeek's and Sarvam's older name
  if (type == "mrope") type = "default";       // three positions of a token, all alike without images
  rope.knows({"rope_theta",
              "partial_rotary_factor",
              "factor",
              "original_max_position_embeddings",
              "attention_factor",
              "beta_fast",
              "beta_slow",
              "mscale",
              "mscale_all_dim",
              "short_factor",
              "long_factor",
              "low_freq_factor",
              "high_freq_factor",
              "truncate",
              "finetuned",
              "mrope_section",
              "mrope_interleaved",
              "llama_4_scaling_beta",
              "max_position_embeddings",
              "full_attention",
              "sliding_attention"});
  Strings unknown;
  for (const auto& [key, value] : rope.json().items())
    if (!rope.read().contains(key)) unknown.push_back(where + "." + key);
  if (!unknown.empty())
    notes.push_back(fmt::format("keys that are not known, and taken to change neither time nor memory: {}",
                                fmt::join(unknown, " ")));
  // transformers refuses these types without it, and Megatron would take a factor of its own.
  if ((type == "llama3" || type == "yarn" || type == "linear") && !rope.has("factor"))
    throw rope.error("factor", fmt::format("missing beside rope_type \"{}\"", type), {},
                     unknown.empty() ? "" : nearest_name(where + ".factor", unknown));
  const auto number = [&](const char* key, const char* field) {
    if (rope.has(key)) m.other[field] = yaml_number(rope.number(key, 1));
  };
  if (type == "llama3") {
    m.other["rope_scaling"] = "true";
    number("factor", "rope_scaling_factor");
    // Megatron's --use-rope-scaling has Llama 3.1's other constants (rotary_pos_embedding.py:92-99, core_r0.19.0).
    for (const auto& [key, constant] : std::initializer_list<std::pair<const char*, double>>{
             {"low_freq_factor", 1}, {"high_freq_factor", 4}, {"original_max_position_embeddings", 8192}})
      if (const double said = rope.number(key, constant); said != constant)
        notes.push_back(
            fmt::format("{}.{}: {:g} is not in the flags that come out, whose --use-rope-scaling has {:g}: "
                        "no time or memory hangs on it",
                        where, key, said, constant));
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

/// Transformers' window counts the query itself, Megatron's stands beside it.
void sliding_window(const HfConfig& config, Model& m, const std::string& family) {
  const bool qwen = family.starts_with("qwen") && family != "qwen3_next" && !family.starts_with("qwen3_5");
  const bool switched = qwen || family == "mimo", late = (switched && family != "qwen3_moe") || family == "dots1";
  if (switched) config.knows({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"});
  const bool always = family == "mistral" || family == "mixtral" || family == "gpt_oss" || family == "phi3" ||
                      family == "starcoder2" || family.starts_with("ministral") || family == "cwm" ||
                      family == "dots1" || family == "olmo3" || family.starts_with("gemma");
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
  } else if (late) {  // configuration_qwen2.py, configuration_dots1.py: layers from max_window_layers on
    const Int first = config.optional_integer("max_window_layers", 0).value_or(28);
    for (Int layer = 0; layer < m.num_layers; ++layer) windowed.push_back(layer >= first);
  } else if (family == "gpt_oss" || family == "gemma2") {  // every other layer
    for (Int layer = 0; layer < m.num_layers; ++layer) windowed.push_back(layer % 2 == 0);
  } else if (family == "cwm") {  // all but every fourth, of which the first is one
    for (Int layer = 0; layer < m.num_layers; ++layer) windowed.push_back(layer % 4 != 0);
  } else if (family == "olmo3") {  // all but every fourth
    for (Int layer = 0; layer < m.num_layers; ++layer) windowed.push_back((layer + 1) % 4 != 0);
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
  if (family == "nemotron_h" && !config.has("num_hidden_layers") && config.has("layers_block_type"))
    m.num_layers = static_cast<Int>(config.strings("layers_block_type", hybrid_kinds).size());  // Nemotron 3 Ultra
  else
    m.num_layers = config.integer("num_hidden_layers", 1, 1'000'000);
  m.hidden_size = config.integer("hidden_size");
  const bool all_experts = family == "qwen3_5_moe_text" || family == "solar_open";
  m.ffn_hidden_size = config.integer(all_experts ? "moe_intermediate_size" : "intermediate_size");
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
  m.gated_linear_unit = family != "arcee";
  if (!family.starts_with("gemma") && family != "nemotron_h") m.activation_func = activation(config);
  m.add_bias_linear = config.boolean("mlp_bias", false);
  m.add_qkv_bias =
      config.boolean("attention_bias", false) || family == "qwen2" || family == "qwen2_moe" || family == "mimo";
  m.qk_layernorm = family == "qwen3" || family == "qwen3_moe" || family == "dots1";
  m.rotary_percent = config.number("partial_rotary_factor", 1);
  sliding_window(config, m, family);
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

/// Of a family whose config.json states them: nobody else assumes others then.
void dropouts(const HfConfig& config, Scenario& scenario) {
  for (const auto& [key, field] :
       {std::pair("residual_dropout", "hidden_dropout"), {"attention_dropout", "attention_dropout"}}) {
    set(scenario, fmt::format("settings.{}={}", field, config.number(key, 0)));
    scenario.positions[std::string("settings.") + field] = config.position_of(key);
  }
}

// Transformers' configuration_starcoder2.py: GPT's block with rotary embedding and grouped queries.
void starcoder2(const HfConfig& config, Scenario& scenario, Model& m) {
  m.normalization = "LayerNorm";
  m.layernorm_epsilon = config.number("norm_epsilon", 1e-5);
  m.gated_linear_unit = false;
  m.add_bias_linear = config.boolean("use_bias", true);
  for (const auto& [key, only] : {std::pair("norm_type", "layer_norm"), std::pair("mlp_type", "default")})
    if (const auto said = config.string(key, only); said != only)
      throw config.error(key, "\"" + said + "\" is not modelled", {only});
  // Embeddings and residuals are dropped alike, as Megatron's hidden_dropout does.
  const double residual = config.number("residual_dropout", 0), embedding = config.number("embedding_dropout", 0);
  if (residual != embedding)
    throw config.error("embedding_dropout", "another dropout of embeddings than of residuals is not modelled");
  dropouts(config, scenario);
}

// Transformers' configuration_ernie4_5.py and modeling_ernie4_5.py, rotate_half; use_bias is of every linear layer.
void ernie(const HfConfig& config, Model& m) {
  m.rotary_interleaved = true;
  m.add_bias_linear = m.add_qkv_bias = config.boolean("use_bias", false);
}

// Transformers' modeling_seed_oss.py drops residuals; Megatron's hidden_dropout embeddings, too.
void seed_oss(const HfConfig& config, Scenario& scenario, Strings& notes) {
  dropouts(config, scenario);
  if (scenario.settings.hidden_dropout > 0)
    notes.emplace_back("residual_dropout: Megatron's hidden_dropout drops the embedding's output as well");
}

// Megatron Bridge's models/nemotron/nemotron_bridge.py: Nemotron 3 and 4, Minitron.
void nemotron(const HfConfig& config, Model& m) {
  m.normalization = "LayerNorm";
  m.layernorm_zero_centered_gamma = true;
  m.layernorm_epsilon = config.number("norm_eps", 1e-5);
  m.gated_linear_unit = false;
}

// Transformers' modular_jais2.py: GPT's block with rotary embedding, biases everywhere.
void jais2(const HfConfig& config, Model& m) {
  m.normalization = "LayerNorm";
  m.layernorm_epsilon = config.number("layer_norm_eps", 1e-5);
  m.gated_linear_unit = false;
  if (m.add_qkv_bias != m.add_bias_linear)
    throw config.error("attention_bias", "biases of attention or of the MLP alone are not modelled",
                       {m.add_bias_linear ? "true" : "false"});
}

// Transformers' modeling_olmo2.py and modular_olmo3.py; modeling_glm4.py, which norms before as well.
void output_norms(Model& m, const std::string& family, Strings& notes) {
  const bool olmo = family != "glm4";
  m.pre_layernorm = !olmo;
  m.post_layernorm = true;
  m.qk_layernorm = m.qk_layernorm_whole = olmo;
  notes.push_back(fmt::format(
      "norms on the outputs of attention and MLP{}: no flag of Megatron and no provider of Megatron Bridge "
      "says them for this family; predicted is a layer specification of Transformer Engine's modules ({}{})",
      olmo ? " alone" : "", olmo ? "pre_layernorm: false" : "post_layernorm: true",
      olmo ? "; with tensor parallelism norms of queries and keys as minimax_m2_layer_spec has them" : ""));
}

}  // namespace

void activation_is(const HfConfig& config, const Strings& names) {
  for (const char* key : {"hidden_act", "hidden_activation"})
    if (const auto name = config.string(key, names.front()); std::ranges::find(names, name) == names.end())
      throw config.error(key, "\"" + name + "\" is not modelled", names);
}

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

Model model_of(const HfConfig& config, const std::string& family, Scenario& scenario, Strings& notes) {
  Model m;
  dense(config, m, family);
  if (family.starts_with("gemma")) gemma(config, m, family);
  if (family == "starcoder2") starcoder2(config, scenario, m);
  if (family == "nemotron") nemotron(config, m);
  if (family == "jais2") jais2(config, m);
  if (family == "olmo2" || family == "olmo3" || family == "glm4") output_norms(m, family, notes);
  if (family == "ministral3") {  // ministral3_provider.py
    m.scale_queries_by_position = true;
    m.position_embedding_type = "yarn";
  }
  if (family.starts_with("ernie")) ernie(config, m);
  if (family == "seed_oss") seed_oss(config, scenario, notes);
  if (family == "smollm3") layers_without_rotation(config, m);
  if (family == "glm" || family == "glm4" || family == "helium")
    m.rotary_interleaved = true;  // their modeling files, rotate_half
  mixture_of(config, family, scenario, m, notes);
  config.require();
  rope_scaling(config, m, notes);
  return m;
}

}  // namespace pipewright::scenario
