// Multi-latent attention against hand-computed sizes of DeepSeek-V3's layers (reference 5.3).
#include <algorithm>
#include <map>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace mla_test {

using namespace pipewright;
using namespace pipewright::model::test;

namespace {

constexpr std::int64_t s = 4096, t = 2, row = s / t, h = 7168, heads = 128 / t, q_rank = 1536, kv_rank = 512,
                       nope = 128, rope = 64, v = 128, f = 18432 / t;

/// Dense layers of DeepSeek-V3's shape.
scenario::Scenario latent() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 8, hidden_size: 7168, ffn_hidden_size: 18432, num_attention_heads: 128, kv_channels: 128,
  seq_length: 4096, vocab_size: 129280, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope, multi_latent_attention: true,
  q_lora_rank: 1536, kv_lora_rank: 512, qk_head_dim: 128, qk_pos_emb_head_dim: 64, v_head_dim: 128,
  qk_layernorm: true, rope_type: yarn}
settings: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 4, sequence_parallel: true,
  micro_batch_size: 1, global_batch_size: 16, bf16: true, use_distributed_optimizer: true, grad_reduce_in_fp32: true,
  gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0, apply_rope_fusion: true,
  bias_activation_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 8, gpus_per_node: 8}
)",
                         "latent.yaml");
}

std::int64_t saved_with(std::initializer_list<const char*> settings) {
  return saved(inner_layer(test::build(with(latent(), settings))));
}

constexpr std::int64_t heads_bytes = s * heads * (2 * 2 * (nope + rope) + 2 * 2 * v + 4);  // q, k, v, output, lse
constexpr std::int64_t norms = 3 * 4;                                                      // rsigma of each row
constexpr std::int64_t mlp = row * (2 * 2 * h + 4) + s * 6 * f;                            // input, norm output, F, G

}  // namespace

TEST_CASE("a layer saves compressed queries and keys with their norms' outputs beside q, k, v") {
  const std::int64_t compressed = row * (2 * 2 * q_rank + 2 * 2 * kv_rank);
  CHECK(saved_with({}) == row * (2 * 2 * h + norms) + compressed + heads_bytes + 16 + mlp);
  // Without norms on them the linear layers keep the compressed tensors alone.
  CHECK(saved_with({"qk_layernorm=false"}) == row * (2 * 2 * h + 4) + compressed / 2 + heads_bytes + 16 + mlp);
  // Queries straight from the norm's output; from 0.19 on through a norm of their own, which keeps its output.
  const std::int64_t straight = row * (2 * 2 * h + 2 * 4 + 2 * 2 * kv_rank) + heads_bytes + 16 + mlp;
  CHECK(saved_with({"q_lora_rank=none", "megatron_core=0.18.0"}) == straight);
  CHECK(saved_with({"q_lora_rank=none"}) == straight + row * (2 * h + 4));
  CHECK(saved_with({"q_lora_rank=none", "qk_layernorm=false"}) ==
        saved_with({"q_lora_rank=none", "qk_layernorm=false", "megatron_core=0.18.0"}));
}

// multi_latent_attention.py from 0.18 on, _prepare_mla_core_attention_value.
TEST_CASE("packed rows keep values padded to the queries' heads, the output as wide and a trimmed copy") {
  const auto packed = [](std::initializer_list<const char*> more) {
    auto all = with(latent(), {"sft=true", "sequence_lengths=[2048+1000+1048*64]"});
    for (const char* setting : more) scenario::set(all, setting);
    return all;
  };
  const auto stages = test::build(packed({}));
  check_all(stages);
  const std::int64_t wide = s * heads * 2 * (nope + rope), narrow = s * heads * 2 * v;
  CHECK(saved(inner_layer(stages)) == saved_with({}) + wide - narrow + wide);
  // Recomputed, both stay with the checkpoint, which saved q, k and v as they were.
  const auto recomputed = packed({"recompute_granularity=selective", "recompute_modules=[core_attn]"});
  check_all(test::build(recomputed));
  CHECK(saved(inner_layer(test::build(recomputed))) ==
        saved_with({"recompute_granularity=selective", "recompute_modules=[core_attn]"}));
  check_all(test::build(packed({"apply_rope_fusion=false"})));
  check_all(test::build(packed({"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"})));
  for (const char* change : {"megatron_core=0.17.0", "context_parallel_size=2", "cluster.profile=b200-sxm",
                             "qk_head_dim=64", "attention_backend=unfused", "recompute_modules=[mla_up_proj]"}) {
    CAPTURE(change);
    auto other = packed({"recompute_granularity=selective"});
    scenario::set(other, change);
    if (std::string_view(change).starts_with("cluster")) other.cluster.compute_capability = 100;
    CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(other), doctest::Contains("latent attention"), UsageError);
  }
}

TEST_CASE("what each recompute drops") {
  const std::int64_t none = saved_with({});
  const auto saving = [&](const char* module) {
    return none - saved_with({"recompute_granularity=selective", module});
  };
  // q, k, v, both up projections' norms; the checkpoint keeps [ckv | kr] instead of a copy of ckv, and kr gathered.
  CHECK(saving("recompute_modules=[mla_up_proj]") == s * heads * (2 * 2 * (nope + rope) + 2 * v) +
                                                         row * (2 * q_rank + 4 + 2 * kv_rank + 4 + 2 * kv_rank) -
                                                         row * 2 * (kv_rank + rope) - s * 2 * rope);
  CHECK(saving("recompute_modules=[layernorm]") == row * (2 * h + 4));
  CHECK(saving("recompute_modules=[core_attn]") == s * heads * 4 + 16);
}

TEST_CASE("FP8 keeps each linear layer's input in one byte, both down projections their own copy") {
  const std::int64_t fp8 = saved_with({"fp8=hybrid", "fp8_recipe=tensorwise"});
  // Down projections see local tokens only, so they keep transposes; up projections gather, so they keep rows. F and
  // the rest of the MLP as in a dense layer.
  const std::int64_t attention = row * (2 * h + 2 * h + norms + 2 * q_rank + q_rank + 2 * kv_rank + kv_rank);
  CHECK(fp8 == attention + heads_bytes + 16 + row * (2 * h + h + 4) + s * 5 * f);
  // Replayed norms give their bf16 output anew, from which the inputs are quantized again.
  CHECK(fp8 - saved_with({"fp8=hybrid", "fp8_recipe=tensorwise", "recompute_granularity=selective",
                          "recompute_modules=[layernorm]"}) ==
        row * (2 * h + 4));
}

TEST_CASE("parameters of an attention are those of the published model") {
  // 187,107,328: q_a, q_b, kv_a, kv_b, o and the two norms of DeepSeek-V3's config.json.
  constexpr std::int64_t attention =
      7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168;
  static_assert(attention == 187107328);
  auto whole = with(latent(), {"tensor_model_parallel_size=1", "sequence_parallel=false", "num_layers=4"});
  const auto one = parameters(test::build(whole));
  const auto two = parameters(test::build(with(whole, {"num_layers=8"})));
  CHECK((two - one) / 4 == attention + 2 * h + 3 * h * 18432);
  CHECK(parameters(test::build(with(whole, {"mla_down_proj_fusion=true"}))) == one);
}

TEST_CASE("gradients of what every tensor-parallel rank has whole are summed") {
  const auto stages = test::build(latent());
  const auto& finalize = stages.ranks[1].finalize;
  const auto found = std::find_if(finalize.begin(), finalize.end(),
                                  [](const auto& kernel) { return kernel.key.family == "all_reduce.nvlink"; });
  REQUIRE(found != finalize.end());
  CHECK(found->key.dims ==
        std::vector<std::int64_t>{t, 2 * 4 * (2 * h + q_rank + kv_rank + h * (q_rank + kv_rank + rope))});
}

TEST_CASE("what is born dies, whatever latent attention is made of") {
  const std::vector<std::vector<const char*>> kinds = {{},
                                                       {"sequence_parallel=false"},
                                                       {"tensor_model_parallel_size=1", "sequence_parallel=false"},
                                                       {"q_lora_rank=none"},
                                                       {"qk_layernorm=false"},
                                                       {"mla_down_proj_fusion=true"},
                                                       {"apply_rope_fusion=false"},
                                                       {"apply_rope_fusion=false", "rope_type=rope"},
                                                       {"fp8=hybrid", "fp8_recipe=tensorwise"},
                                                       {"attention_backend=unfused"},
                                                       {"fp8=e4m3", "fp8_recipe=blockwise", "qk_layernorm=false"}};
  const std::vector<std::vector<const char*>> recomputes = {
      {},
      {"recompute_granularity=selective", "recompute_modules=[mla_up_proj]"},
      {"recompute_granularity=selective", "recompute_modules=[layernorm, mlp]"},
      {"recompute_granularity=selective", "recompute_modules=[core_attn, mla_up_proj, layernorm]"},
      {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"}};
  for (const auto& kind : kinds) {
    for (const auto& recompute : recomputes) {
      auto scenario = latent();
      std::string all;
      for (const auto* list : {&kind, &recompute}) {
        for (const auto* setting : *list) scenario::set(scenario, setting), all += std::string(setting) + " ";
      }
      CAPTURE(all);
      check_all(test::build(scenario));
    }
  }
}

TEST_CASE("offload of the attention's core moves all that its autograd nodes save, recomputed up projections or not") {
  const auto moved = [](std::vector<const char*> more) {
    auto scenario = latent();
    for (const auto* setting : {"fine_grained_activation_offloading=true", "offload_modules=[core_attn]"})
      scenario::set(scenario, setting);
    for (const auto* setting : more) scenario::set(scenario, setting);
    std::map<std::string, int> owners;
    const auto stages = test::build(scenario);
    const auto& layer = inner_layer(stages);
    for (const auto& group : layer.groups)
      for (const auto& move : group.moves) ++owners[stages.owners[layer.tensors[move.tensor].owner]];
    return owners;
  };
  const char *selective = "recompute_granularity=selective", *up = "recompute_modules=[mla_up_proj]";
  const auto fused = moved({});
  CHECK(fused.at("attention.q") == 1);
  CHECK(moved({selective, up}) == fused);
  // The softmax and the product with the values each save the probabilities: two copies, two that come back.
  auto unfused = moved({"attention_backend=unfused"});
  CHECK(unfused.at("attention.probabilities") == 2);
  CHECK(moved({"attention_backend=unfused", selective, up}) == unfused);
  // A dropped copy and a mask stand between them: each is saved once.
  CHECK(moved({"attention_backend=unfused", "attention_dropout=0.1"}).at("attention.dropped_probabilities") == 1);
}

TEST_CASE("what Megatron cannot run is refused") {
  CHECK_THROWS_WITH_AS(test::build(with(latent(), {"rope_type=rope"})), doctest::Contains("YARN"), UsageError);
}

TEST_CASE("deterministic, attention's backward on Hopper holds dS of all scores in place of dQ in fp32") {
  const auto workspace = [](const char* gpu, const char* algorithms) {
    auto scenario = latent();
    scenario.environment["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = algorithms;
    const auto device = profile::data_sheet(gpu).device;
    scenario.cluster.compute_capability = device.compute_capability;
    const auto stages = model::build(scenario, device);
    std::int64_t most = 0;
    const auto& piece = inner_layer(stages);
    for (const auto& tensor : piece.tensors)
      if (stages.owners[tensor.owner] == "workspace") most = std::max(most, tensor.bytes.value);
    return most;
  };
  const std::int64_t sums = 4 * s * heads;
  CHECK(workspace("h200-sxm", "1") == 4 * s * heads * (nope + rope) + sums + 256);
  CHECK(workspace("h200-sxm", "0") == 2 * heads * s * s + sums + 256);
  CHECK(workspace("b200-sxm", "0") == workspace("b200-sxm", "1"));
}

}  // namespace mla_test
