// One key of a published config.json at a time: every family reads it, is not touched by it and says so, or refuses it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "pipewright/scenario/io.hpp"

namespace huggingface_keys_test {

using namespace pipewright;
using namespace pipewright::scenario;

namespace {

/// A config.json of ours with one key set to `value`, or without it where that is empty; what is said: the error, or
/// the notes. `model` keeps what it was where there is an error.
std::string with_key(const std::string& file, const std::string& key, const std::string& value, Model& model) {
  const std::string stem = "data/" + file + ".json";
  auto json = nlohmann::json::parse(read_file(stem));
  auto& inner = json.contains("text_config") ? json["text_config"] : json;
  if (value.empty())
    inner.erase(key);
  else
    inner[key] = nlohmann::json::parse(value);
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_key_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << json.dump(1);
  std::string said;
  try {
    Strings notes;
    model = from_hf(path.string(), &notes).model;
    for (const auto& note : notes) said += note + "\n";
  } catch (const UsageError& error) {
    said = error.what();
  }
  std::filesystem::remove(path);
  return said;
}

const Strings published = {"llama-3-70b",
                           "mistral-7b",
                           "mixtral-8x7b",
                           "qwen2.5-7b",
                           "qwen3-8b",
                           "qwen3-30b-a3b",
                           "deepseek-v3",
                           "kimi-k2",
                           "gpt-oss-20b",
                           "phi-3-mini",
                           "phi-4",
                           "gemma-2-9b",
                           "gemma-3-4b",
                           "llama-4-scout",
                           "qwen3-next-80b-a3b",
                           "nemotron-h-8b",
                           "nemotron-3-nano-30b-a3b",
                           "nemotron-3-super-120b-a12b",
                           "glm-4.5-air",
                           "glm-4-9b",
                           "deepseek-v2-lite",
                           "olmoe-1b-7b",
                           "starcoder2-3b",
                           "minitron-8b",
                           "mistral-small-3.1",
                           "kimi-k2.5",
                           "qwen1.5-moe-a2.7b",
                           "qwen3.5-27b",
                           "qwen3.5-35b-a3b"};

}  // namespace

TEST_CASE("no key of any family is taken without effect: it moves the model, or it is named") {
  struct Value {
    const char *key, *value;
    Strings dormant = {};  ///< files in which it decides nothing beside the others, as in transformers
  };
  const Strings qwen = {"qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b"};  // use_sliding_window is false
  const Strings nemotron = {"nemotron-h-8b", "nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b"};
  const Strings latent = {"deepseek-v3", "kimi-k2", "kimi-k2.5", "deepseek-v2-lite"};
  for (const auto& [key, value, dormant] : std::initializer_list<Value>{
           {"num_key_value_heads", "1", latent},
           {"head_dim", "48", latent},
           {"sliding_window", "768", qwen},
           {"use_bidirectional_attention", "true"},
           {"is_causal", "false"},
           {"attention_bias", "true", {"gpt-oss-20b", "qwen2.5-7b", "qwen1.5-moe-a2.7b", "glm-4.5-air", "glm-4-9b"}},
           {"mlp_bias", "true", {"gpt-oss-20b", "starcoder2-3b"}},
           {"hidden_act", "\"relu\"", nemotron},
           {"hidden_activation", "\"relu\""},
           {"partial_rotary_factor", "0.125"},
           {"n_shared_experts", "3", nemotron},
           {"shared_expert_intermediate_size", "3072"},
           {"moe_intermediate_size", "640", {"nemotron-h-8b"}},
           {"first_k_dense_replace", "2"},
           {"decoder_sparse_step", "2"},
           {"moe_layer_freq", "[0, 1]"},
           {"moe_layer_freq", "2"},
           {"mlp_only_layers", "[1]"},
           {"num_local_experts", "\"8\"", {"nemotron-h-8b"}},
           {"num_experts", "12", {"nemotron-h-8b"}},
           {"n_routed_experts", "12", {"nemotron-h-8b"}},
           {"num_experts_per_tok", "3", {"nemotron-h-8b"}},
           {"num_nextn_predict_layers", "2"},
           {"mtp_num_hidden_layers", "2"},
           {"kv_lora_rank", "64"},
           {"q_lora_rank", "64"},
           {"n_group", "4", {"nemotron-h-8b"}},
           {"topk_group", "2", {"nemotron-h-8b"}},
           {"layer_types",
            "[\"sliding_attention\"]",
            {"qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "llama-4-scout", "mixtral-8x7b", "phi-4", "mistral-small-3.1",
             "qwen1.5-moe-a2.7b"}},
           {"attention_chunk_size", "4096"},
           {"moe_layers", "[1]"},
           {"use_qk_norm", "false"},
           {"attn_logit_softcapping", "20.0"},
           {"final_logit_softcapping", "20.0"},
           {"swiglu_limit", "3.0"},
           {"attention_dropout", "\"0.1\""},
           {"hidden_dropout", "0.1"},
           {"alibi", "\"true\""},
           {"tie_word_embeddings", "\"yes\""},
           {"hybrid_override_pattern", "\"M*-\""},
           {"embedding_multiplier", "\"12\""},
           {"frobnicated", "1"}})
    for (const auto& file : published) {
      CAPTURE(file);
      CAPTURE(std::string(key));
      Model plain, changed;
      REQUIRE(with_key(file, "no such key", "", plain).find("missing") == std::string::npos);
      const auto said = with_key(file, key, value, changed);
      const bool silent = changed == plain && said.find(key) == std::string::npos;
      if (std::ranges::find(dormant, file) == dormant.end()) CHECK_FALSE((silent && std::string(value) != "false"));
    }
}

TEST_CASE(
    "every key of every published config.json, changed, moves the scenario or is named; those that do neither stand "
    "here") {
  const std::set<std::string> inert = {"architectures",
                                       "auto_map",
                                       "transformers_version",  // names
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "attn_implementation",
                                       "image_token_id",
                                       "video_token_id",
                                       "vision_token_id",
                                       "vision_start_token_id",
                                       "vision_end_token_id",
                                       "num_logits_to_keep",
                                       "use_cache",  // generation
                                       "initializer_range",
                                       "rescale_prenorm_residual",  // initial values
                                       "output_router_logits",      // what is returned
                                       "ep_size",
                                       "pretraining_tp",
                                       "use_mamba_kernels",
                                       "mamba_ssm_dtype",
                                       "expand",
                                       "rope_interleave",                   // an order of values
                                       "original_max_position_embeddings",  // a scale of positions
                                       "initial_context_length"};           // nobody's sizes
  // What another key decides, as in transformers.
  const std::map<std::string, Strings> dormant = {{"full_attention_interval", {"layer_types"}},
                                                  {"no_rope_layer_interval", {"no_rope_layers"}},
                                                  {"layer_types", {"no_rope_layers"}},
                                                  {"max_window_layers", {"use_sliding_window"}},
                                                  {"sliding_window", {"use_sliding_window"}},
                                                  {"use_sliding_window", {"max_window_layers"}},
                                                  {"moe_capacity", {"moe_k"}},
                                                  {"moe_shared_expert_intermediate_size", {"num_shared_experts"}},
                                                  {"num_key_value_heads", {"kv_lora_rank"}},
                                                  {"head_dim", {"kv_lora_rank"}},
                                                  {"n_shared_experts", {"moe_shared_expert_intermediate_size"}},
                                                  {"rms_norm_eps", {"layer_norm_epsilon"}}};
  const auto others = [](const nlohmann::json& value) -> std::vector<nlohmann::json> {
    if (value.is_boolean()) return {!value.get<bool>()};
    if (value.is_number_integer()) return {value.get<Int>() + 1, 2 * value.get<Int>() + 2};
    if (value.is_number()) return {value.get<double>() / 2 + 0.1};
    if (value.is_string()) return {value.get<std::string>() + "x"};
    return {};
  };
  int changes = 0;
  for (const auto& each : std::filesystem::directory_iterator("data")) {
    const auto file = each.path().stem().string();
    if (each.path().extension() != ".json" || file == "not-json") continue;
    Scenario plain;
    Strings usual;
    try {
      plain = from_hf(each.path().string(), &usual);
    } catch (const UsageError&) {
      continue;  // what is wrong with these is tested elsewhere
    }
    auto json = nlohmann::json::parse(read_file(each.path().string()));
    auto& inner = json.contains("text_config") ? json["text_config"] : json;
    const auto whole = inner;
    for (const auto& [key, value] : whole.items())
      for (const auto& other : others(value)) {
        if (inert.contains(key)) continue;
        if (const auto found = dormant.find(key);
            found != dormant.end() &&
            std::ranges::any_of(found->second, [&, &w = whole](const auto& by) { return w.contains(by); }))
          continue;
        inner[key] = other;
        const auto path =
            std::filesystem::temp_directory_path() / ("pipewright_every_" + std::to_string(getpid()) + ".json");
        std::ofstream(path) << json.dump(1);
        inner[key] = value;
        bool told = false;
        Scenario changed;
        try {
          Strings notes;
          changed = from_hf(path.string(), &notes);
          told =
              std::ranges::any_of(notes, [&, &k = key](const auto& note) { return note.find(k) != std::string::npos; });
        } catch (const UsageError&) {
          told = true;
        }
        std::filesystem::remove(path);
        CAPTURE(file);
        CAPTURE(key);
        CAPTURE(other.dump());
        CHECK((told || !(changed.model == plain.model) || !(changed.settings == plain.settings)));
        ++changes;
      }
  }
  CHECK(changes > 1000);
}

TEST_CASE("auxiliary losses are those that Megatron Bridge trains a family with, and another of config.json is said") {
  const auto of = [](const std::string& file, const std::string& key, const nlohmann::json& value, std::string& said) {
    auto json = nlohmann::json::parse(read_file("data/" + file + ".json"));
    json[key] = value;
    const auto path = std::filesystem::temp_directory_path() / ("pipewright_aux_" + std::to_string(getpid()) + ".json");
    std::ofstream(path) << json.dump(1);
    Strings notes;
    const Scenario s = from_hf(path.string(), &notes);
    std::filesystem::remove(path);
    said.clear();
    for (const auto& note : notes) said += note + "\n";
    const auto& types = s.settings.moe_router_load_balancing_type;
    return std::pair(types.empty() ? "none" : types.front(), s.settings.moe_aux_loss_coeff.front());
  };
  std::string said;
  CHECK(of("olmoe-1b-7b", "router_aux_loss_coef", 0.02, said) == std::pair(std::string("seq_aux_loss"), 0.02));
  CHECK(said.find("aux_loss") == std::string::npos);
  CHECK(of("qwen3-30b-a3b", "router_aux_loss_coef", 0.02, said) == std::pair(std::string("aux_loss"), 0.001));
  CHECK(said.find("router_aux_loss_coef: 0.02 is not taken") != std::string::npos);
  CHECK(of("deepseek-v3", "aux_loss_alpha", 0.003, said) == std::pair(std::string("seq_aux_loss"), 0.003));
  CHECK(of("gpt-oss-20b", "router_aux_loss_coef", 0.9, said).first == "none");
  CHECK(said.find("router_aux_loss_coef: 0.9 is not taken") != std::string::npos);
  CHECK(of("mixtral-8x7b", "router_aux_loss_coef", 0.02, said) == std::pair(std::string("aux_loss"), 0.0));
  CHECK(said.find("router_aux_loss_coef: 0.02 is not taken") != std::string::npos);
  of("llama-3-70b", "router_aux_loss_coef", 0.02, said);
  CHECK(said.find("router_aux_loss_coef") != std::string::npos);
  of("deepseek-v3", "frobnicated", 1, said);
  CHECK(said.find("auxiliary loss: Megatron Bridge trains this family with seq_aux_loss and 0.0001") !=
        std::string::npos);
  of("deepseek-v3", "norm_topk_prob", false, said);
  CHECK(said.find("norm_topk_prob") != std::string::npos);
}

TEST_CASE("parts that no family here has are refused by name, also under another family's name") {
  for (const auto& file : published)
    for (const auto& [key, value] : {std::pair("index_topk", "2048"),
                                     {"index_n_heads", "64"},
                                     {"lm_head_bias", "true"},
                                     {"block_configs", "[{\"attention\": {}}]"}}) {
      CAPTURE(file);
      Model changed;
      CHECK(with_key(file, key, value, changed).find(std::string(key) + ": is not modelled") != std::string::npos);
    }
}

TEST_CASE("Python's NaN and Infinity are no default: where a number is read they are refused by key and line") {
  for (const auto& file : published)
    for (const char* number : {"NaN", "Infinity", "-Infinity"}) {
      const auto json = nlohmann::json::parse(read_file("data/" + file + ".json"));
      const auto& inner = json.contains("text_config") ? json["text_config"] : json;
      for (const auto& [key, value] : inner.items()) {
        if (!value.is_number()) continue;
        CAPTURE(file);
        CAPTURE(key);
        Model plain, changed;
        const auto usual = with_key(file, "no such key", "", plain);
        const auto other = with_key(file, key, value.is_number_integer() ? "3" : "0.3", changed);
        if (changed == plain && other == usual) continue;  // nobody reads it
        const auto said = with_key(file, key, "\"" + std::string(number) + "\"", changed);
        CHECK(said.find(key) != std::string::npos);
      }
    }
  // As it stands in a file: within a string it is text.
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_nan_" + std::to_string(getpid()) + ".json");
  auto text = read_file("data/llama-3-70b.json");
  const std::string key = "\"hidden_size\": ";
  const auto at = text.find(key) + key.size();
  std::ofstream(path) << text.replace(at, text.find_first_of(",\n", at) - at, "Infinity");
  CHECK_THROWS_WITH_AS(from_hf(path.string()),
                       doctest::Contains("hidden_size: expected an integer, found \"Infinity\""), UsageError);
  std::filesystem::remove(path);
}

TEST_CASE("a scenario's hf_config keeps what config.json could not say") {
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_noted_" + std::to_string(getpid()) + ".json");
  auto json = nlohmann::json::parse(read_file("data/llama-3-70b.json"));
  json["frobnicated"] = 1;
  std::ofstream(path) << json.dump(1);
  const Scenario s = parse("scenario: 1\nmodel: {hf_config: " + path.string() +
                               ", seq_length: 2048}\nsettings: {micro_batch_size: 1, global_batch_size: 8}\n"
                               "cluster: {num_gpus: 8}\n",
                           "here.yaml");
  std::filesystem::remove(path);
  REQUIRE(s.notes.size() == 1);
  CHECK(s.notes.front().ends_with(": frobnicated"));
}

// configuration_*.py of transformers 4.57.
TEST_CASE("a missing key is what the class has, not what is convenient") {
  for (const auto& [file, key, value] :
       std::initializer_list<std::array<const char*, 3>>{{"mistral-7b", "num_key_value_heads", "8"},
                                                         {"mistral-7b", "sliding_window", "4096"},
                                                         {"mixtral-8x7b", "num_key_value_heads", "8"},
                                                         {"qwen2.5-7b", "num_key_value_heads", "32"},
                                                         {"qwen3-8b", "head_dim", "128"},
                                                         {"qwen3-30b-a3b", "num_key_value_heads", "4"},
                                                         {"qwen3-next-80b-a3b", "num_key_value_heads", "2"},
                                                         {"qwen3-next-80b-a3b", "head_dim", "256"},
                                                         {"qwen3-next-80b-a3b", "norm_topk_prob", "true"},
                                                         {"gpt-oss-20b", "num_key_value_heads", "8"},
                                                         {"gpt-oss-20b", "head_dim", "64"},
                                                         {"gpt-oss-20b", "sliding_window", "128"},
                                                         {"llama-4-scout", "attention_chunk_size", "8192"},
                                                         {"llama-4-scout", "num_key_value_heads", "8"},
                                                         {"deepseek-v3", "first_k_dense_replace", "3"},
                                                         {"deepseek-v3", "n_shared_experts", "1"},
                                                         {"deepseek-v3", "q_lora_rank", "1536"},
                                                         {"deepseek-v3", "n_group", "8"},
                                                         {"gemma-2-9b", "head_dim", "256"},
                                                         {"gemma-2-9b", "sliding_window", "4096"}}) {
    CAPTURE(std::string(file));
    CAPTURE(std::string(key));
    Model missing, stated;
    CHECK(with_key(file, key, "", missing) == with_key(file, key, value, stated));
    CHECK(missing == stated);
  }
}

TEST_CASE("what transformers 5 and models with a tower keep elsewhere") {
  Model old, now;
  with_key("llama-3-70b", "partial_rotary_factor", "0.25", old);
  with_key("llama-3-70b", "rope_parameters", R"({"rope_type": "default", "partial_rotary_factor": 0.25})", now);
  CHECK(now.rotary_percent == 0.25);
  CHECK(now.rotary_percent == old.rotary_percent);
  with_key("gemma-2-9b", "rope_parameters", R"({"full_attention": {"rope_type": "default", "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})",
           now);
  CHECK(now.rotary_base > 1e4 - 1);
  CHECK(from_hf("data/gemma-3-4b.json").settings.bf16);  // torch_dtype stands beside text_config
}

TEST_CASE("a config.json may have numbers as Python's json writes them") {
  for (const auto& file : published) {
    CAPTURE(file);
    Model plain, with;
    with_key(file, "torch_dtype", "\"bfloat16\"", plain);
    const auto path = std::filesystem::temp_directory_path() / ("pipewright_inf_" + std::to_string(getpid()) + ".json");
    auto text = read_file("data/" + file + ".json");
    text.insert(text.find('{') + 1,
                R"("time_step_limit": [0.0, Infinity], "time_step_max": NaN, "time_step_min": -Infinity,
        "_name_or_path": "a \"quoted\" Infinity", )");
    std::ofstream(path) << text;
    CHECK_NOTHROW(with = from_hf(path.string(), nullptr).model);
    CHECK(with == plain);
    std::filesystem::remove(path);
  }
}

TEST_CASE("a depth of multi-token prediction that only newer classes have by default is told") {
  Model model;
  for (const char* file : {"deepseek-v3", "glm-4.5-air"}) {
    CHECK(with_key(file, "num_nextn_predict_layers", "", model).find("is not stated") != std::string::npos);
    CHECK_FALSE(model.mtp_num_layers.has_value());
    CHECK(with_key(file, "num_nextn_predict_layers", "0", model).find("is not stated") == std::string::npos);
  }
}

TEST_CASE("what Megatron Bridge builds whatever config.json says is told where that differs, and nowhere else") {
  const auto told = [](const std::string& said) { return said.find("whatever it says") != std::string::npos; };
  Model model;
  for (const auto& file : published) {
    CAPTURE(file);
    CHECK_FALSE(told(with_key(file, "no such key", "", model)));
  }
  for (const auto& [file, key, value] :
       std::initializer_list<std::array<const char*, 3>>{{"deepseek-v3", "tie_word_embeddings", "true"},
                                                         {"gpt-oss-20b", "tie_word_embeddings", "true"},
                                                         {"gpt-oss-20b", "swiglu_limit", "3.0"},
                                                         {"gemma-2-9b", "tie_word_embeddings", "false"},
                                                         {"gemma-3-4b", "sliding_window_pattern", "4"},
                                                         {"qwen3-8b", "attention_bias", "true"},
                                                         {"qwen3-30b-a3b", "decoder_sparse_step", "2"},
                                                         {"glm-4.5-air", "n_shared_experts", "2"},
                                                         {"olmoe-1b-7b", "norm_topk_prob", "true"},
                                                         {"nemotron-h-8b", "chunk_size", "256"}}) {
    CAPTURE(std::string(file));
    const auto said = with_key(file, key, value, model);
    CAPTURE(said);
    CHECK(told(said));
    CHECK(said.find(key) != std::string::npos);
  }
}

}  // namespace huggingface_keys_test
