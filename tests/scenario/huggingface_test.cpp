// Architectures from Hugging Face's config.json.
#include <doctest/doctest.h>

#include "pipewright/scenario.hpp"

using namespace pipewright;
using namespace pipewright::scenario;

TEST_CASE("Llama 3 70B is the architecture of the shipped scenario") {
  Scenario s = from_hf("data/llama-3-70b.json");
  CHECK(s.settings.bf16);
  const Scenario shipped = read("../../scenarios/llama3-70b-sft-32xh100.yaml");
  s.model.seq_length = shipped.model.seq_length;
  CHECK(s.model == shipped.model);
}

TEST_CASE("Qwen 2.5 has a qkv bias and no window") {
  const Model m = from_hf("data/qwen2.5-7b.json").model;
  CHECK(m.num_layers == 28);
  CHECK(m.hidden_size == 3584);
  CHECK(m.ffn_hidden_size == 18944);
  CHECK(m.num_query_groups == 4);
  CHECK(m.vocab_size == 152064);
  CHECK(m.rotary_base == 1e6);
  CHECK(m.layernorm_epsilon == 1e-6);
  CHECK(m.add_qkv_bias);
  CHECK_FALSE(m.add_bias_linear);
  CHECK_FALSE(m.qk_layernorm);
  CHECK(m.window_size.empty());
  CHECK(m.untie_embeddings_and_output_weights);
}

TEST_CASE("Qwen 3 normalises queries and keys") {
  const Model m = from_hf("data/qwen3-8b.json").model;
  CHECK(m.qk_layernorm);
  CHECK_FALSE(m.add_qkv_bias);
  CHECK(m.kv_channels == 128);
  CHECK(m.rotary_base == 1e6);
  const Model moe = from_hf("data/qwen3-30b-a3b.json").model;
  CHECK(moe.num_moe_experts == 128);
  CHECK(moe.moe_router_topk == 8);
  CHECK(moe.moe_ffn_hidden_size == 768);
  CHECK(moe.moe_layer_freq == Ints{1});
  CHECK_FALSE(moe.moe_router_pre_softmax);
  CHECK(moe.qk_layernorm);
}

TEST_CASE("Mistral and Mixtral") {
  const Model m = from_hf("data/mistral-7b.json").model;
  CHECK(m.window_size == Ints{4095, 0});
  CHECK(m.num_query_groups == 8);
  CHECK(m.activation_func == "silu");
  const Model moe = from_hf("data/mixtral-8x7b.json").model;
  CHECK(moe.num_moe_experts == 8);
  CHECK(moe.moe_router_topk == 2);
  CHECK_FALSE(moe.moe_ffn_hidden_size);
  CHECK(moe.window_size.empty());
}

TEST_CASE("DeepSeek V3: latent attention, three dense layers, groups of experts, MTP") {
  Scenario s = from_hf("data/deepseek-v3.json");
  const Model& m = s.model;
  CHECK(m.multi_latent_attention);
  CHECK(m.q_lora_rank == 1536);
  CHECK(m.kv_lora_rank == 512);
  CHECK(m.qk_head_dim == 128);
  CHECK(m.qk_pos_emb_head_dim == 64);
  CHECK(m.moe_shared_expert_intermediate_size == 2048);
  CHECK(m.moe_router_num_groups == 8);
  CHECK(m.moe_router_group_topk == 4);
  CHECK(m.moe_router_score_function == "sigmoid");
  CHECK(m.moe_router_enable_expert_bias);
  CHECK(m.mtp_num_layers == 1);
  CHECK_FALSE(is_moe_layer(s, 2));
  CHECK(is_moe_layer(s, 3));
  CHECK(is_moe_layer(s, 60));
  s.model.seq_length = 4096;
  s.cluster.num_gpus = 8;
  CHECK(parse(write(s), "written") == s);
}

TEST_CASE("hf_config in a scenario: fields beside it override, the path is relative to the file") {
  const std::string rest =
      "settings: {micro_batch_size: 1, global_batch_size: 8}\ncluster: {num_gpus: 8}\nscenario: 1\n";
  const Scenario s = parse(rest + "model: {num_layers: 4, hf_config: data/qwen3-8b.json, seq_length: 2048}\n",
                           "../scenario/here.yaml");
  CHECK(s.model.num_layers == 4);
  CHECK(s.model.hidden_size == 4096);
  CHECK(s.model.seq_length == 2048);
  CHECK_FALSE(s.settings.bf16);  // what trains is the scenario's business
  CHECK_NOTHROW(check(s));
  CHECK_THROWS_WITH_AS(parse(rest + "model: {hf_config: data/qwen3-8b.json}\n", "here.yaml"),
                       "here.yaml:4: model.seq_length: missing", UsageError);
}

TEST_CASE("what is missing or wrong is named with its file") {
  CHECK_THROWS_WITH_AS(from_hf("data/no-heads.json"), "data/no-heads.json: num_attention_heads: missing", UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/text-width.json"),
                       "data/text-width.json: hidden_size: expected an integer, found \"4096\"", UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/unknown-family.json"), doctest::Contains("did you mean \"qwen2\"?"), UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/not-json.json"), doctest::Contains("not JSON"), UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/none.json"), doctest::Contains("no such file"), UsageError);
  CHECK_THROWS_WITH_AS(check(from_hf("data/qwen3-8b.json")), doctest::Contains("model.seq_length: missing"),
                       UsageError);
}
