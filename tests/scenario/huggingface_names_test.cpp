// One model under the names that its config.json may use: those of older files, of transformers 5, of models with a
// tower; and nonsense in place of any of its values.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../draws.hpp"
#include "../mutate.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace huggingface_names_test {

using namespace pipewright;
using namespace pipewright::scenario;
using Json = nlohmann::json;

namespace {

Json published(const std::string& file) { return Json::parse(read_file("data/" + file + ".json")); }

/// What comes of it, or what is said.
std::string read(const Json& json, Scenario& s, Strings* notes = nullptr) {
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_names_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << json.dump(1);
  std::string said;
  try {
    s = from_hf(path.string(), notes);
  } catch (const UsageError& error) {
    said = error.what();
  }
  std::filesystem::remove(path);
  return said;
}

}  // namespace

// attribute_map of transformers 5.24's classes, whose right side is what they write.
TEST_CASE("a key under another of its class's names is the same, and two that differ are refused by both names") {
  for (const auto& [file, key, other] :
       std::initializer_list<std::array<const char*, 3>>{{"mixtral-8x7b", "num_local_experts", "num_experts"},
                                                         {"qwen3-30b-a3b", "num_experts", "num_local_experts"},
                                                         {"gpt-oss-20b", "num_local_experts", "num_experts"},
                                                         {"minimax-m2", "num_local_experts", "num_experts"},
                                                         {"olmoe-1b-7b", "num_experts", "num_local_experts"},
                                                         {"hy3", "num_experts", "num_local_experts"},
                                                         {"deepseek-v2", "n_routed_experts", "num_experts"},
                                                         {"deepseek-v3", "n_routed_experts", "num_local_experts"},
                                                         {"deepseek-v3", "num_nextn_predict_layers", "num_mtp_layers"},
                                                         {"glm-4.5-air", "n_routed_experts", "num_local_experts"},
                                                         {"glm-4.7-flash", "n_routed_experts", "num_local_experts"},
                                                         {"dots.llm1", "n_routed_experts", "num_local_experts"},
                                                         {"solar-open-100b", "n_routed_experts", "num_local_experts"},
                                                         {"ernie-4.5-21b-a3b", "moe_num_experts", "num_experts"},
                                                         {"ernie-4.5-21b-a3b", "moe_k", "num_experts_per_tok"},
                                                         {"sarvam-30b", "num_experts", "n_routed_experts"},
                                                         {"sarvam-105b", "num_shared_experts", "n_shared_experts"},
                                                         {"nemotron-3-nano-30b-a3b", "layer_norm_epsilon", "norm_eps"},
                                                         {"nemotron-h-8b", "n_groups", "mamba_n_groups"},
                                                         {"exaone-3.0-7.8b", "num_layers", "num_hidden_layers"},
                                                         {"exaone-3.0-7.8b", "layer_norm_epsilon", "rms_norm_eps"},
                                                         {"exaone-3.0-7.8b", "activation_function", "hidden_act"},
                                                         {"internlm3-8b", "qkv_bias", "attention_bias"}}) {
    CAPTURE(std::string(file));
    CAPTURE(std::string(other));
    const Json as_is = published(file);
    REQUIRE(as_is.contains(key));
    Scenario plain, renamed, both;
    Strings notes, usual;
    CHECK(read(as_is, plain, &usual).empty());
    Json json = as_is;
    json[other] = json.at(key);
    CHECK(read(json, both, &notes).empty());
    CHECK(both.model == plain.model);
    CHECK(notes == usual);
    notes.clear();
    json.erase(key);
    CHECK(read(json, renamed, &notes).empty());
    CHECK(renamed.model == plain.model);
    CHECK(notes == usual);
    const auto& value = as_is.at(key);
    json[key] = value.is_number_integer() ? Json(value.get<Int>() + 1)
                : value.is_number()       ? Json(2 * value.get<double>())
                : value.is_boolean()      ? Json(!value.get<bool>())
                                          : Json("relu");
    const auto said = read(json, both);
    CHECK(said.find(key) != std::string::npos);
    CHECK(said.find(other) != std::string::npos);
    json.erase(key);
    json[other] = Json::array({1});  // what is wrong is told by the name that the file has
    CHECK(read(json, both).find(std::string(other) + ": expected") != std::string::npos);
  }
}

TEST_CASE("transformers 5 names the layers of hybrids and of mixtures one by one, older files count them") {
  const Json old = published("nemotron-h-8b");
  Json now = old;
  Json kinds = Json::array();
  for (const char letter : old.at("hybrid_override_pattern").get<std::string>())
    kinds.push_back(letter == 'M' ? "linear_attention" : letter == '*' ? "full_attention" : "mlp");
  now.erase("hybrid_override_pattern");
  now.erase("num_hidden_layers");
  now["layers_block_type"] = kinds;
  Scenario before, after;
  CHECK(read(old, before).empty());
  CHECK(read(now, after).empty());
  CHECK(after.model == before.model);
  for (const char* file : {"glm-4.7-flash", "hy3"}) {
    CAPTURE(std::string(file));
    Json one_by_one = published(file);
    CHECK(read(one_by_one, before).empty());
    Json layers = Json::array();
    for (Int layer = 0; layer < before.model.num_layers; ++layer)
      layers.push_back(is_moe_layer(before, layer) ? "sparse" : "dense");
    one_by_one.erase("first_k_dense_replace");
    one_by_one["mlp_layer_types"] = layers;
    CHECK(read(one_by_one, after).empty());
    CHECK(after.model == before.model);
    one_by_one["mlp_layer_types"][5] = "dense";  // moves the layer
    CHECK(read(one_by_one, after).empty());
    CHECK_FALSE(is_moe_layer(after, 5));
    one_by_one["mlp_layer_types"].push_back("sparse");
    CHECK(read(one_by_one, after).find("mlp_layer_types: ") != std::string::npos);
  }
}

TEST_CASE("a text model that does not name its family is the one of the model around it") {
  for (const char* file : {"gemma-3-4b", "mistral-small-3.1", "kimi-k2.5", "qwen3-vl-8b", "qwen3-vl-30b-a3b",
                           "qwen3.5-27b", "qwen3.5-35b-a3b"}) {
    CAPTURE(std::string(file));
    Json json = published(file);
    REQUIRE(json.contains("text_config"));
    Scenario plain, nameless;
    CHECK(read(json, plain).empty());
    json["text_config"].erase("model_type");
    CHECK(read(json, nameless).empty());
    CHECK(nameless.model == plain.model);
  }
  Scenario s;
  Json tied = published("qwen3-vl-30b-a3b");  // as transformers 5 writes it: its text model's class ties
  tied["text_config"]["tie_word_embeddings"] = true;
  Strings notes;
  CHECK(read(tied, s, &notes).empty());
  CHECK(s.model.untie_embeddings_and_output_weights);
  CHECK(std::ranges::any_of(notes, [](const auto& note) { return note.starts_with("tie_word_embeddings: true of"); }));
  const Json seen = {{"model_type", "minimax_m3_vl"}, {"text_config", {{"hidden_size", 6144}}}};
  CHECK(read(seen, s).find("\"minimax_m3_vl\" is not modelled; what is missing: ") != std::string::npos);
}

TEST_CASE("OLMo 2 and 3 have norms on outputs alone, over whole queries and keys; OLMo 3 windows in three of four") {
  Scenario two, three;
  Strings notes;
  CHECK(read(published("olmo-2-1b"), two, &notes).empty());
  CHECK(read(published("olmo-3-7b"), three).empty());
  for (const Scenario* s : {&two, &three}) {
    const Model& m = s->model;
    CHECK((!m.pre_layernorm && m.post_layernorm && m.qk_layernorm && m.qk_layernorm_whole && !m.add_qkv_bias));
  }
  CHECK(two.model.window_size.empty());
  three.model.seq_length = 8192;
  for (Int layer = 0; layer < 32; ++layer) CHECK(attention_window(three, layer) == ((layer + 1) % 4 == 0 ? 0 : 4096));
  CHECK(std::ranges::any_of(notes, [](const auto& note) { return note.find("pre_layernorm") != std::string::npos; }));
  Json missing = published("olmo-3-7b");  // what its class has
  for (const char* key : {"layer_types", "sliding_window"}) missing.erase(key);
  Scenario by_class;
  CHECK(read(missing, by_class).empty());
  by_class.model.seq_length = 8192;
  CHECK(by_class.model == three.model);
}

// ministral3_bridge.py: the text model of a Mistral 3, which says itself whether its embedding is tied.
TEST_CASE("Ministral 3 scales queries by their position, beside a tower and alone") {
  Scenario s;
  Strings notes;
  const Json published_one = published("ministral-3-8b");
  CHECK(read(published_one, s, &notes).empty());
  const Model& m = s.model;
  CHECK((m.scale_queries_by_position && m.position_embedding_type == "yarn" && m.window_size.empty()));
  CHECK((m.num_layers == 34 && m.num_query_groups == 8 && m.kv_channels == 128 && m.rotary_base == 1e6));
  CHECK(m.untie_embeddings_and_output_weights);
  CHECK(std::ranges::any_of(notes, [](const auto& note) { return note.find("vision tower") != std::string::npos; }));
  for (const bool tied : {true, false}) {
    Json other = published_one;
    other["tie_word_embeddings"] = !tied;
    other["text_config"]["tie_word_embeddings"] = tied;
    Scenario with_tower, alone;
    CHECK(read(other, with_tower).empty());
    CHECK(with_tower.model.untie_embeddings_and_output_weights == !tied);
    CHECK(read(other["text_config"], alone).empty());
    CHECK(alone.model == with_tower.model);
  }
}

TEST_CASE("GLM-4 of 0414 has norms before and after attention and MLP, biases of queries, half of a head rotating") {
  Scenario s;
  CHECK(read(published("glm-4-9b-0414"), s).empty());
  const Model& m = s.model;
  CHECK((m.pre_layernorm && m.post_layernorm && !m.qk_layernorm && !m.apply_embedding_scaling && m.add_qkv_bias));
  CHECK((m.rotary_interleaved && m.rotary_percent == 0.5 && m.num_query_groups == 2 && m.kv_channels == 128));
}

TEST_CASE("DeepSeek-MoE: attention of Llama, softmax before the choice, one dense layer, two shared experts") {
  Scenario s;
  CHECK(read(published("deepseek-moe-16b"), s).empty());
  const Model& m = s.model;
  CHECK((!m.multi_latent_attention && m.moe_router_pre_softmax && m.moe_router_score_function == "softmax"));
  CHECK((m.num_moe_experts == 64 && m.moe_router_topk == 6 && m.moe_shared_expert_intermediate_size == 2816));
  CHECK((!is_moe_layer(s, 0) && is_moe_layer(s, 1)));
}

TEST_CASE("the base of rotation may stand in rope_scaling, as in rope_parameters") {
  Scenario s;
  Json json = published("llama-3-70b");
  json.erase("rope_theta");
  for (const char* where : {"rope_scaling", "rope_parameters"}) {
    Json moved = json;
    moved.erase("rope_scaling");
    moved[where] = {{"rope_type", "default"}, {"rope_theta", 123456.0}, {"partial_rotary_factor", 0.5}};
    CHECK(read(moved, s).empty());
    CHECK((s.model.rotary_base == 123456.0 && s.model.rotary_percent == 0.5));
  }
}

TEST_CASE("EXAONE 3, InternLM 2 and 3, IQuest-Coder and Phi-4 mini are Llamas of their own names") {
  Scenario s;
  for (const char* file : {"exaone-3.0-7.8b", "internlm2-7b", "internlm3-8b", "iquest-coder-40b", "phi-4-mini"}) {
    CAPTURE(std::string(file));
    CHECK(read(published(file), s).empty());
    CHECK((s.model.gated_linear_unit && s.model.normalization == "RMSNorm" && s.model.layernorm_epsilon == 1e-5));
    CHECK((!s.model.add_bias_linear && !s.model.add_qkv_bias && !s.model.qk_layernorm && s.model.pre_layernorm));
  }
  CHECK((s.model.rotary_percent == 0.75 && !s.model.untie_embeddings_and_output_weights));
}

TEST_CASE("what a key of another meaning would change is refused, what says the same is not mentioned") {
  for (const auto& [file, key, same, other] : std::initializer_list<std::tuple<const char*, const char*, Json, Json>>{
           {"qwen3-30b-a3b", "use_qk_norm", true, false},
           {"qwen3.5-35b-a3b", "mtp_use_dedicated_embeddings", false, true},
           {"gpt-oss-20b", "swiglu_alpha", 1.702, 1.5}}) {
    CAPTURE(std::string(file));
    Json json = published(file);
    Json& inner = json.contains("text_config") ? json["text_config"] : json;
    Scenario s;
    Strings usual, notes;
    CHECK(read(json, s, &usual).empty());
    inner[key] = same;
    CHECK(read(json, s, &notes).empty());
    CHECK(notes == usual);
    inner[key] = other;
    CHECK(read(json, s).find(std::string(key) + ": ") != std::string::npos);
  }
}

TEST_CASE("nonsense in a config.json is read or refused by file and key, whatever it is") {
  std::vector<std::string> files;
  for (const auto& each : std::filesystem::directory_iterator("data"))
    if (each.path().extension() == ".json" && each.path().stem() != "not-json") files.push_back(each.path().stem());
  std::ranges::sort(files);
  const std::vector<Json> values = {0,
                                    1,
                                    2,
                                    3,
                                    7,
                                    17,
                                    4097,
                                    -1,
                                    1 << 30,
                                    1e18,
                                    -0.5,
                                    0.5,
                                    true,
                                    false,
                                    Json(),
                                    "x",
                                    "",
                                    Json::array(),
                                    {1, 2, 3},
                                    Json::object(),
                                    Json::array({"full_attention"}),
                                    "18446744073709551616"};
  int read_on = 0, refused = 0;
  for (unsigned round = 0; round < test::draws(3000); ++round) {
    test::Mutator random(round);
    const auto& file = files[random.below(files.size())];
    Json json = published(file);
    Json& inner = json.contains("text_config") ? json["text_config"] : json;
    std::vector<std::string> keys;
    for (const auto& [key, value] : inner.items()) keys.push_back(key);
    std::string changed;
    for (std::size_t n = 1 + random.below(3); n > 0; --n) {
      const auto& key = keys[random.below(keys.size())];
      inner[key] = values[random.below(values.size())];
      changed += key + " = " + inner[key].dump() + "; ";
    }
    CAPTURE(file);
    CAPTURE(changed);
    Scenario s;
    std::string said;
    try {
      said = read(json, s);
      if (said.empty()) {
        for (const char* setting : {"seq_length=2048", "num_gpus=8", "global_batch_size=8", "profile=h200-sxm"})
          set(s, setting);
        check(s);
      }
    } catch (const UsageError& error) {
      said = error.what();
    } catch (const std::exception& error) {
      FAIL(error.what());
    }
    ++(said.empty() ? read_on : refused);
    CHECK((said.empty() || said.find(':') != std::string::npos));
  }
  const auto some = static_cast<int>(test::draws(3000) / 30);
  CHECK(read_on > some);
  CHECK(refused > some);
}

}  // namespace huggingface_names_test
