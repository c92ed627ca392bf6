// A model's folder or its config.json as an architecture: which families are read, and what their classes default to.
#include "huggingface.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "huggingface_config.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::scenario {
namespace {

using Json = nlohmann::json;

const Strings families = {"llama",
                          "mistral",
                          "mixtral",
                          "qwen2",
                          "qwen2_moe",
                          "qwen3",
                          "qwen3_moe",
                          "qwen3_next",
                          "qwen3_5_text",
                          "qwen3_5_moe_text",
                          "deepseek_v2",
                          "deepseek_v3",
                          "kimi_k2",
                          "glm",
                          "glm4_moe",
                          "glm4_moe_lite",
                          "bailing_moe_v2",
                          "ernie4_5",
                          "ernie4_5_moe",
                          "seed_oss",
                          "smollm3",
                          "olmoe",
                          "gpt_oss",
                          "phi3",
                          "gemma",
                          "gemma2",
                          "gemma3_text",
                          "llama4_text",
                          "starcoder2",
                          "nemotron",
                          "nemotron_h",
                          "hy_v3",
                          "sarvam_moe",
                          "sarvam_mla",
                          "mimo",
                          "arcee",
                          "cwm",
                          "dots1",
                          "helium",
                          "jais2",
                          "ministral",
                          "ministral3",
                          "solar_open",
                          "youtu",
                          "minimax_m2",
                          "olmo2",
                          "olmo3",
                          "exaone",
                          "internlm3",
                          "iquestcoder",
                          "internlm2",
                          "deepseek",
                          "glm4"};

/// Published with a vision tower, trained without: the model beside which the text model stands, and whose family that
/// is where it does not say (its class' sub_configs).
const std::map<std::string, const char*, std::less<>> with_tower = {
    {"gemma3", "gemma3_text"},       {"llama4", "llama4_text"},
    {"mistral3", "mistral"},         {"kimi_k25", "kimi_k2"},
    {"kimi_vl", "deepseek_v3"},      {"qwen3_5", "qwen3_5_text"},
    {"qwen3_vl", "qwen3_vl_text"},   {"qwen3_vl_moe", "qwen3_vl_moe_text"},
    {"qwen2_vl", "qwen2_vl_text"},   {"qwen2_5_vl", "qwen2_5_vl_text"},
    {"glm4v_moe", "glm4v_moe_text"}, {"qwen3_5_moe", "qwen3_5_moe_text"}};

/// Names of a family beside its own: Qwen-VL without images is Qwen (three positions of a token, all alike).
const std::map<std::string, const char*, std::less<>> other_names = {{"Yi", "llama"},
                                                                     {"qwen3_vl_text", "qwen3"},
                                                                     {"qwen3_vl_moe_text", "qwen3_moe"},
                                                                     {"qwen2_vl", "qwen2"},
                                                                     {"qwen2_5_vl", "qwen2"},
                                                                     {"glm4v_moe_text", "glm4_moe"},
                                                                     {"qwen2_vl_text", "qwen2"},
                                                                     {"qwen2_5_vl_text", "qwen2"}};

/// What a config.json may leave to the defaults of its class (transformers 4.57, configuration_*.py) where those are
/// not what a reader would take: heads that share keys, widths of heads, windows, expert groups.
const char* defaults_of(const std::string& family) {
  if (family == "mistral") return R"({"num_key_value_heads": 8, "sliding_window": 4096})";
  if (family == "mixtral") return R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6})";
  if (family == "qwen2") return R"({"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28})";
  if (family == "qwen2_moe") return R"({"num_key_value_heads": 16, "sliding_window": 4096, "max_window_layers": 28})";
  if (family == "qwen3")
    return R"({"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28})";
  if (family == "qwen3_moe") return R"({"num_key_value_heads": 4, "sliding_window": 4096})";
  if (family == "qwen3_next")
    return R"({"num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25, "norm_topk_prob": true})";
  if (family == "gpt_oss")
    return R"({"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "rms_norm_eps": 1e-5,
      "rope_theta": 150000.0})";
  if (family == "phi3") return R"({"rms_norm_eps": 1e-5})";
  if (family == "llama4_text")
    return R"({"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192, "rms_norm_eps": 1e-5,
      "rope_theta": 500000.0})";
  if (family == "deepseek_v3" || family == "kimi_k2")
    return R"({"q_lora_rank": 1536, "n_group": 8, "topk_group": 4, "n_shared_experts": 1, "first_k_dense_replace": 3,
      "routed_scaling_factor": 2.5})";
  if (family == "deepseek") return R"({"n_shared_experts": 2, "first_k_dense_replace": 1})";
  if (family == "deepseek_v2") return R"({"q_lora_rank": 1536, "n_shared_experts": 2, "routed_scaling_factor": 1.0})";
  if (family == "glm")
    return R"({"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5, "attention_bias": true,
      "rms_norm_eps": 1.5625e-7})";
  if (family == "glm4")
    return R"({"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5, "attention_bias": true,
      "rms_norm_eps": 1.5625e-7})";
  if (family == "glm4_moe")
    return R"({"num_key_value_heads": 8, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "n_shared_experts": 1,
      "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0})";
  if (family == "glm4_moe_lite")
    return R"({"q_lora_rank": 768, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
      "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5})";
  if (family == "bailing_moe_v2")
    return R"({"num_key_value_heads": 4, "head_dim": 128, "n_group": 8, "topk_group": 4, "num_shared_experts": 1,
      "first_k_dense_replace": 1, "use_qk_norm": true, "rope_theta": 600000.0, "routed_scaling_factor": 1.0})";
  if (family == "ernie4_5")
    return R"({"num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": true, "rms_norm_eps": 1e-5,
      "rope_theta": 500000.0})";
  if (family == "ernie4_5_moe")
    return R"({"num_key_value_heads": 4, "tie_word_embeddings": true, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
      "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2})";
  if (family == "hy_v3")
    return R"({"num_key_value_heads": 8, "head_dim": 128, "num_shared_experts": 1, "first_k_dense_replace": 1,
      "router_scaling_factor": 2.826, "rms_norm_eps": 1e-5, "rope_theta": 11158840.0})";
  if (family == "sarvam_moe")
    return R"({"num_key_value_heads": 4, "head_dim": 256, "first_k_dense_replace": 1, "num_shared_experts": 1,
      "use_qk_norm": true})";
  if (family == "sarvam_mla") return R"({"first_k_dense_replace": 1, "num_shared_experts": 1})";
  if (family == "seed_oss")
    return R"({"num_key_value_heads": 8, "head_dim": 128, "attention_bias": true, "attention_dropout": 0.1,
      "residual_dropout": 0.1})";
  if (family == "smollm3") return R"({"num_key_value_heads": 4, "tie_word_embeddings": true, "rope_theta": 2e6})";
  if (family == "olmoe") return R"({"rms_norm_eps": 1e-5})";
  if (family == "minimax_m2") return R"({"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6})";
  if (family == "starcoder2")
    return R"({"num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": true})";
  if (family == "nemotron_h")
    return R"({"num_key_value_heads": 8, "layer_norm_epsilon": 1e-5, "n_group": 1, "topk_group": 1,
      "routed_scaling_factor": 1.0, "moe_shared_expert_intermediate_size": 7688})";
  if (family == "qwen2_5_vl" || family == "qwen2_5_vl_text") return R"({"rope_theta": 1000000.0})";
  if (family == "qwen3_vl_text") return R"({"rope_theta": 500000.0})";
  if (family == "qwen3_vl_moe_text")
    return R"({"num_key_value_heads": 16, "norm_topk_prob": true, "rope_theta": 500000.0})";
  if (family == "nemotron") return R"({"hidden_act": "relu2", "partial_rotary_factor": 0.5})";
  if (family == "qwen3_5_text" || family == "qwen3_5_moe_text")
    return R"({"num_key_value_heads": 4, "head_dim": 256, "partial_rotary_factor": 0.25, "norm_topk_prob": true})";
  if (family == "mimo") return R"({"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28})";
  if (family == "arcee") return R"({"hidden_act": "relu2", "rms_norm_eps": 1e-5})";
  if (family == "cwm")
    return R"({"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 8192, "rms_norm_eps": 1e-5,
      "rope_theta": 1000000.0})";
  if (family == "dots1") return R"({"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 62})";
  if (family == "helium")
    return R"({"num_key_value_heads": 20, "head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 100000.0})";
  if (family == "jais2") return R"({"hidden_act": "relu2", "attention_bias": true, "mlp_bias": true})";
  if (family == "ministral3") return R"({"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5})";
  if (family == "ministral") return R"({"num_key_value_heads": 8, "sliding_window": 4096})";
  if (family == "solar_open")
    return R"({"num_key_value_heads": 8, "head_dim": 128, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0})";
  if (family == "youtu")
    return R"({"tie_word_embeddings": true, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "qk_nope_head_dim": 128})";
  if (family == "olmo2" || family == "olmo3")
    return R"({"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096})";
  if (family == "exaone") return R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0})";
  if (family == "internlm3") return R"({"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5})";
  if (family == "iquestcoder") return R"({"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5})";
  if (family == "gemma")
    return R"({"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
      "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192,
      "tie_word_embeddings": true, "rope_theta": 10000.0})";
  if (family == "gemma2")
    return R"({"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
      "tie_word_embeddings": true, "rope_theta": 10000.0, "sliding_window": 4096, "query_pre_attn_scalar": 256,
      "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})";
  if (family == "gemma3_text")
    return R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
      "tie_word_embeddings": true, "rope_theta": 1000000.0, "sliding_window": 4096, "query_pre_attn_scalar": 256})";
  return "{}";
}

struct UnmodelledFamily {
  const char* name;
  std::vector<const char*> missing;
};
const std::vector<UnmodelledFamily>& unmodelled_families() {
  static const std::vector<UnmodelledFamily> list = {
#include "families.inc"
  };
  return list;
}

/// Python's json writes numbers that JSON lacks (Nemotron-H: "time_step_limit": [0.0, Infinity]); none of them is a
/// size, and what reads one as a number says so.
std::string with_pythons_numbers_as_words(std::string text) {
  bool inside = false;  // of a string
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') inside = !inside;
    if (text[at] == '\\' && inside) ++at;
    for (const std::string_view number : {"-Infinity", "Infinity", "NaN"})
      if (!inside && text.compare(at, number.size(), number) == 0) {
        text.replace(at, number.size(), fmt::format("\"{}\"", number));
        at += number.size() + 1;
        break;
      }
  }
  return text;
}

}  // namespace

std::string apply_hf_config(const std::string& given, Scenario& scenario, Strings* notes) {
  // A model's folder as it was downloaded: what describes it is config.json.
  std::error_code error;
  const std::filesystem::path folder(given);
  const std::string path = is_directory(folder, error) ? (folder / "config.json").string() : given;
  constexpr std::size_t largest = std::size_t{4} << 20U;  // bytes; a config.json has some thousand
  const std::string text = with_pythons_numbers_as_words(read_file(path, largest));
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& found) {
    const auto before = std::string_view(text).substr(0, std::min(text.size(), found.byte - (found.byte > 0 ? 1 : 0)));
    throw UsageError({path, 1 + static_cast<int>(std::ranges::count(before, '\n'))}, {},
                     "is not JSON, which has neither comments nor commas before a closing bracket");
  } catch (const Json::exception&) {
    throw UsageError({path, 0}, {}, "is not JSON: a number is more than a number can be");
  }
  if (!json.is_object()) throw UsageError({path, 0}, {}, "not a Hugging Face configuration: expected an object");
  const std::string outer =
      json.contains("model_type") && json.at("model_type").is_string() ? json.at("model_type").get<std::string>() : "";
  const bool sees = json.contains("vision_config");
  Strings all;
  if (json.contains("text_config") && json.at("text_config").is_object()) {
    Json inner = json.at("text_config");
    for (const char* shared : {"torch_dtype", "dtype"})  // the whole model's
      if (json.contains(shared) && !inner.contains(shared)) inner[shared] = json.at(shared);
    // Who builds the output layer: the whole model, but of Ministral 3 (ministral3_bridge.py) its text model.
    const bool of_text = inner.value("model_type", Json()) == "ministral3" && inner.contains("tie_word_embeddings");
    if (const char* tied = "tie_word_embeddings"; json.contains(tied) && !of_text) {
      if (inner.contains(tied) && inner.at(tied) != json.at(tied))
        all.push_back(fmt::format("{}: {} of text_config is not taken: {} of the whole model counts", tied,
                                  inner.at(tied).dump().substr(0, 60), json.at(tied).dump().substr(0, 60)));
      inner[tied] = json.at(tied);
    }
    const auto text_of = with_tower.find(outer);
    if (!inner.contains("model_type")) inner["model_type"] = text_of == with_tower.end() ? outer : text_of->second;
    json = std::move(inner);
  }
  for (const char* where : {"rope_parameters", "rope_scaling"}) {
    if (!json.contains(where) || !json.at(where).is_object()) continue;
    Json rope = json.at(where);  // where transformers 5 keeps them, also by kind of layer
    if (rope.contains("full_attention") && rope.at("full_attention").is_object())
      rope = Json(rope.at("full_attention"));
    for (const char* key : {"rope_theta", "partial_rotary_factor"})
      if (rope.contains(key) && !json.contains(key)) json[key] = rope.at(key);
    json[where] = std::move(rope);
  }
  HfNames written;
  if (json.contains("model_type") && json.at("model_type").is_string()) {
    const auto said = json.at("model_type").get<std::string>();
    const auto other = other_names.find(said);
    const std::string family = other == other_names.end() ? said : other->second;
    written = take_other_names(json, family, [&](const std::string& key, const std::string& why) {
      return HfConfig(path, text, json).error(key, why);
    });
    for (const auto& each : {said, family}) {
      const Json defaults = Json::parse(defaults_of(each));
      for (const auto& [key, value] : defaults.items())
        if (!json.contains(key)) json[key] = value;
    }
    json["model_type"] = family;
  }
  const HfConfig config(path, text, json, written);
  const std::string family = config.string("model_type", "");
  if (family.empty()) throw config.error("model_type", "missing", families);
  for (const auto& other : unmodelled_families())
    if (family == other.name)
      throw config.error("model_type", fmt::format("\"{}\" is not modelled; what is missing: {}", family,
                                                   fmt::join(other.missing, "; ")));
  if (family == outer && with_tower.contains(outer))
    throw config.error("text_config", "missing: the sizes of the language model stand in it");
  if (std::find(families.begin(), families.end(), family) == families.end()) {
    throw config.error("model_type", fmt::format("unknown family \"{}\"", family), families,
                       nearest_name(family, families));
  }
  Model m = model_of(config, family, scenario, all);
  // transformers' attention_bias is of the output projection, too, but in GLM's classes; add_qkv_bias is not.
  const char* output_bias = family == "seed_oss" ? "attention_out_bias" : "attention_bias";
  const bool of_output = !family.starts_with("glm") && config.boolean(output_bias, false);
  if (!m.add_bias_linear && of_output)
    all.push_back(
        fmt::format("{}: the biases of o_proj are left out: Megatron has them with add_bias_linear alone, which gives "
                    "every linear layer one",
                    output_bias));
  const auto otherwise = other_in_bridge(config, family, m);
  all.insert(all.end(), otherwise.begin(), otherwise.end());
  auto read = config.read();
  for (const auto& [key, other] : written) read.insert(other);
  const bool tower = sees && (family == "gemma3_text" || family == "llama4_text" || with_tower.contains(outer));
  if (tower) read.insert("vision_config");
  const auto said = judge_keys(text, family, read,
                               [&](const std::string& key, const std::string& why) { return config.error(key, why); });
  all.insert(all.end(), said.begin(), said.end());
  if (tower) all.emplace_back("the language model alone: the vision tower is left out");
  if (notes != nullptr) *notes = std::move(all);
  scenario.model = std::move(m);
  for (const char* name : {"num_layers", "hidden_size", "num_attention_heads", "vocab_size"}) {
    scenario.positions[std::string("model.") + name] = {path, 0};
  }
  return config.string("torch_dtype", config.string("dtype", ""));
}

bool is_hf(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '{' &&
         (text.find("\"model_type\"") != std::string_view::npos ||
          text.find("\"architectures\"") != std::string_view::npos);
}

Scenario from_hf(const std::string& path, Strings* notes) {
  Scenario scenario;
  std::filesystem::path file(path);
  if (std::error_code error; std::filesystem::is_directory(file, error)) file /= "config.json";
  scenario.origin = {file.string(), 0};
  scenario.name = file.has_parent_path() ? file.parent_path().filename().string() : file.stem().string();
  // All but StarCoder2 and Seed-OSS have no hidden dropout at all and attention_dropout 0.0 in their published
  // config.json.
  scenario.settings.hidden_dropout = scenario.settings.attention_dropout = 0.0;
  scenario.settings.create_attention_mask_in_dataloader = false;  // as recipes have it: no fused attention reads one
  scenario.settings.bf16 = apply_hf_config(path, scenario, notes) == "bfloat16";
  return scenario;
}

}  // namespace pipewright::scenario
