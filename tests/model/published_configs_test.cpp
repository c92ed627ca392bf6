// Every family that is read: the parameters that come of its published config.json, without depths of multi-token
// prediction, against those of its published weights.
#include <array>
#include <fstream>
#include <map>
#include <ranges>
#include <sstream>
#include <string>

#include "../draws.hpp"
#include "../mutate.hpp"
#include "pipewright/parameter_count.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace published_configs_test {

using namespace pipewright;
using namespace pipewright::model::test;

namespace {

scenario::Scenario published_model(const std::string& file) {
  scenario::Scenario s = scenario::from_hf("data/" + file + ".json");
  for (const char* setting : {"seq_length=2048", "num_gpus=1", "global_batch_size=1", "make_vocab_size_divisible_by=1",
                              "moe_grouped_gemm=true", "moe_token_dispatcher_type=alltoall", "profile=h200-sxm"})
    scenario::set(s, setting);
  s.model.mtp_num_layers.reset();
  return s;
}

std::int64_t counted(const std::string& file) {
  auto s = published_model(file);
  const auto built = parameters(test::build(s));
  CHECK(model::parameter_count(s).all == built);
  // However the model is split.
  for (const char* setting :
       {"num_gpus=8", "global_batch_size=8", "tensor_model_parallel_size=2", "make_vocab_size_divisible_by=128"})
    scenario::set(s, setting);
  if (s.model.num_layers % 2 == 0) scenario::set(s, "pipeline_model_parallel_size=2");
  CHECK(model::parameter_count(s).all == built);
  // Whatever it computes in, also what Hopper's tensor cores lack.
  for (const char* setting : {"fp8=hybrid", "fp8_recipe=mxfp8", "fp4=e2m1"}) {
    scenario::set(s, setting);
    CHECK(model::parameter_count(s).all == built);
  }
  return built;
}

struct Published {
  const char* file;
  double parameters;
  const char* source;
};

// The hub's count of the weights (model.safetensors.index.json) where no paper counts them; of models with a tower the
// text model's share of it.
const Published published[] = {
    {"llama-3-70b", 70553706496, "hub: meta-llama/Meta-Llama-3-70B"},
    {"mistral-7b", 7241732096, "hub: mistralai/Mistral-7B-v0.1"},
    {"mistral-small-3", 23572403200, "hub: mistralai/Mistral-Small-24B-Base-2501"},
    {"mistral-small-3.1", 23572403200, "the language model of Mistral Small 3"},
    {"mixtral-8x7b", 46702792704, "hub: mistralai/Mixtral-8x7B-v0.1"},
    {"qwen2.5-7b", 7615616512, "hub: Qwen/Qwen2.5-7B"},
    {"qwen3-8b", 8190735360, "hub: Qwen/Qwen3-8B"},
    {"qwen3-30b-a3b", 30532122624, "hub: Qwen/Qwen3-30B-A3B"},
    {"qwen1.5-moe-a2.7b", 14315784192, "hub: Qwen/Qwen1.5-MoE-A2.7B"},
    {"qwen2-57b-a14b", 57409011712, "hub: Qwen/Qwen2-57B-A14B"},
    {"deepseek-moe-16b", 16375728128, "hub: deepseek-ai/deepseek-moe-16b-base"},
    {"deepseek-v2-lite", 15706484224, "hub: deepseek-ai/DeepSeek-V2-Lite"},
    {"deepseek-v2", 235741434880, "hub: deepseek-ai/DeepSeek-V2"},
    {"deepseek-v3", 671026419200, "hub: deepseek-ai/DeepSeek-V3, without layer 61"},
    {"kimi-k2", 1026408232448, "hub: moonshotai/Kimi-K2-Base"},
    {"kimi-k2.5", 1026408232448, "the language model of Kimi K2"},
    {"gpt-oss-20b", 20914757184, "hub: openai/gpt-oss-20b, unpacked"},
    {"phi-3-mini", 3821079552, "hub: microsoft/Phi-3-mini-4k-instruct"},
    {"phi-4", 14659507200, "hub: microsoft/phi-4"},
    {"gemma-2-9b", 9241705984, "hub: google/gemma-2-9b"},
    {"glm-4-9b", 9399951360, "hub: zai-org/glm-4-9b-chat-hf"},
    {"glm-4.5", 358337791296 - 5539962112.0, "hub: zai-org/GLM-4.5, without layer 92 and its embedding and head"},
    {"glm-4.5-air", 110468824832 - 3616573584.0, "hub: zai-org/GLM-4.5-Air, without layer 46, its embedding and head"},
    {"glm-4.7-flash", 29943390976, "transformers' Glm4MoeLiteForCausalLM of it"},
    {"ling-mini-2.0", 16255643392, "hub: inclusionAI/Ling-mini-2.0"},
    {"hy3", 597572280832 / 2.0 - 3752612096.0, "hub: tencent/Hy3, without layer 80 (multi-token prediction)"},
    {"qwen2.5-vl-7b", 7615616512, "the language model of Qwen2.5"},
    {"ernie-4.5-0.3b", 360748032, "hub: baidu/ERNIE-4.5-0.3B-PT"},
    {"ernie-4.5-21b-a3b", 21825437888, "transformers' Ernie4_5_MoeForCausalLM of it"},
    {"seed-oss-36b", 36151104512, "hub: ByteDance-Seed/Seed-OSS-36B-Instruct"},
    {"smollm3-3b", 3075098624, "hub: HuggingFaceTB/SmolLM3-3B"},
    {"qwen3-vl-8b", 8190735360, "the language model of Qwen3"},
    {"qwen3-vl-30b-a3b", 30532122624, "the language model of Qwen3"},
    {"minimax-m2", 228689748992, "transformers' MiniMaxM2ForCausalLM of it"},
    {"olmoe-1b-7b", 6919161856, "hub: allenai/OLMoE-1B-7B-0924"},
    {"starcoder2-3b", 3030371328, "hub: bigcode/starcoder2-3b"},
    {"starcoder2-7b", 7173923840, "hub: bigcode/starcoder2-7b"},
    {"starcoder2-15b", 15957889024, "hub: bigcode/starcoder2-15b"},
    {"minitron-4b", 4.19e9, "hub: nvidia/Minitron-4B-Base"},
    {"minitron-8b", 8.27e9, "hub: nvidia/Minitron-8B-Base"},
    {"nemotron-4-340b", 331.6e9 + 9.4e9, "arXiv 2406.11704, section 2.1"},
};

}  // namespace

TEST_CASE("parameters of published config.json files, within 0.1 %") {
  for (const auto& [file, parameters, source] : published) {
    CAPTURE(std::string(file));
    CAPTURE(std::string(source));
    const auto found = counted(file);
    CAPTURE(found);
    CHECK(std::abs(static_cast<double>(found) / parameters - 1) < 1e-3);
  }
}

TEST_CASE("parameters of config.json files are those of transformers' own models, each one") {
  std::ifstream table("data/transformers_parameters.txt");
  std::string line;
  int models = 0;
  while (std::getline(table, line)) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string file;
    std::int64_t parameters = 0, more = 0;
    REQUIRE((words >> file >> parameters >> more));
    CAPTURE(file);
    CHECK(model::parameter_count(published_model(file)).all == parameters + more);
    ++models;
  }
  CHECK(models == 59);
}

/// Of GPT-OSS the model card leaves the embedding out (0.58 billion).
TEST_CASE("parameters that a token meets, as the models' names and cards say") {
  for (const auto& [file, billions] : {std::pair("qwen3-30b-a3b", 3.3),
                                       {"mixtral-8x7b", 12.9},
                                       {"deepseek-v3", 37.5},
                                       {"gpt-oss-20b", 3.61 + 0.58},
                                       {"llama-3-70b", 70.6}}) {
    CAPTURE(std::string(file));
    const auto count = model::parameter_count(published_model(file));
    CHECK(static_cast<double>(count.of_a_token) == doctest::Approx(billions * 1e9).epsilon(0.02));
    CHECK(count.of_a_token <= count.all);
  }
}

TEST_CASE("what runs in FP8 multiplies no weight whose dimensions Transformer Engine refuses") {
  int refused = 0, products = 0;
  for (const auto& model : published)
    for (const char* split : {"1", "2", "4", "8"})
      for (const char* recipe : {"tensorwise", "blockwise"}) {
        auto s = published_model(model.file);
        const std::string tensor = std::string("tensor_model_parallel_size=") + split;
        for (const auto& setting : {std::string("num_gpus=8"), std::string("global_batch_size=8"), tensor,
                                    std::string("fp8=hybrid"), std::string("fp8_recipe=") + recipe})
          scenario::set(s, setting);
        CAPTURE(model.file);
        CAPTURE(tensor);
        try {
          scenario::check(s);
        } catch (const UsageError& error) {
          refused += error.message().find("divisible by 16") != std::string::npos ? 1 : 0;
          continue;
        }
        try {
          const auto stages = test::build(s);
          for (const auto& piece : stages.pieces)
            for (const auto& kernel : piece.kernels) {
              if (!kernel.key.family.starts_with("gemm.") || kernel.key.family.find("fp8") == std::string::npos)
                continue;
              ++products;
              CAPTURE(kernel.key.family);
              for (const auto d : kernel.key.dims | std::views::drop(kernel.key.dims.size() - 2)) {
                CAPTURE(d);
                CHECK(d % 16 == 0);
              }
              CHECK((kernel.key.dims.size() == 4 || kernel.key.dims.front() % 16 == 0));
            }
        } catch (const UsageError&) {  // not modelled in FP8
        }
      }
  CHECK(refused > 0);
  CHECK(products > 1000);
}

TEST_CASE("widths that nothing divides are refused, or no product has a side of none") {
  const std::vector<std::string> names = {"hidden_size",
                                          "ffn_hidden_size",
                                          "num_attention_heads",
                                          "num_query_groups",
                                          "kv_channels",
                                          "vocab_size",
                                          "moe_ffn_hidden_size",
                                          "q_lora_rank",
                                          "kv_lora_rank",
                                          "qk_head_dim",
                                          "qk_pos_emb_head_dim",
                                          "v_head_dim",
                                          "moe_shared_expert_intermediate_size",
                                          "moe_latent_size",
                                          "mamba_num_heads",
                                          "mamba_num_groups",
                                          "linear_num_key_heads",
                                          "linear_num_value_heads"};
  constexpr std::array values = {1, 2, 3, 5, 7, 12, 33, 64, 100, 1000};
  int built = 0, refused = 0;
  for (unsigned round = 0; round < pipewright::test::draws(300); ++round) {
    pipewright::test::Mutator random(round);
    const auto& model = published[random.below(std::size(published))];
    auto s = published_model(model.file);
    std::vector<std::string> settings = {"num_gpus=8", "global_batch_size=8",
                                         "tensor_model_parallel_size=" + std::to_string(1U << random.below(4))};
    if (random.below(3) == 0) settings.emplace_back("mtp_num_layers=1");
    if (random.below(4) == 0)
      for (const char* one : {"lora_target_modules=[linear_qkv, linear_proj, linear_fc1, linear_fc2]", "lora_dim=8"})
        settings.emplace_back(one);
    for (std::size_t n = 1 + random.below(2); n > 0; --n)
      settings.push_back(names[random.below(names.size())] + "=" + std::to_string(values[random.below(values.size())]));
    std::string changes;
    for (const auto& setting : settings) changes += setting + "; ";
    CAPTURE(std::string(model.file));
    CAPTURE(changes);
    try {
      for (const auto& setting : settings) scenario::set(s, setting);
      scenario::check(s);
      const auto stages = test::build(s);
      for (const auto& piece : stages.pieces)
        for (const auto& kernel : piece.kernels)
          for (const auto d : kernel.key.dims) CHECK_MESSAGE(d > 0, kernel.key.family);
      ++built;
    } catch (const UsageError&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL(error.what());
    }
  }
  const auto some = static_cast<int>(pipewright::test::draws(300) / 10);
  CHECK(built > some);
  CHECK(refused > some);
}

}  // namespace published_configs_test
