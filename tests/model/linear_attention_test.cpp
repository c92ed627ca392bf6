// Gated delta nets beside gated attention: which layers have which, their parameters, and that every tensor is freed.
#include <random>
#include <set>

#include "pipewright/effects.hpp"
#include "support.hpp"

namespace linear_attention_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;
using model::Step;

namespace {

/// Qwen3-Next's layer with a dense MLP, 8 of them.
scenario::Scenario qwen3_next() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 8, hidden_size: 2048, ffn_hidden_size: 5120, num_attention_heads: 16, num_query_groups: 2,
  kv_channels: 256, seq_length: 8192, vocab_size: 151936, gated_linear_unit: true, normalization: RMSNorm,
  add_bias_linear: false, untie_embeddings_and_output_weights: true, position_embedding_type: rope,
  qk_layernorm: true, attention_output_gate: true, experimental_attention_variant: gated_delta_net,
  linear_attention_freq: [4], make_vocab_size_divisible_by: 128}
settings: {micro_batch_size: 1, global_batch_size: 8, bf16: true, use_distributed_optimizer: true,
  gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0, apply_rope_fusion: true,
  bias_activation_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 1, gpus_per_node: 1}
)",
                         "qwen3_next.yaml");
}

int launches(const std::vector<Step>& steps, const Piece& piece, const std::string& family) {
  int count = 0;
  for (const auto& step : steps)
    if (step.kind == Step::Kind::launch) count += piece.kernels[step.index].key.family == family ? 1 : 0;
  return count;
}

/// By layer: is it a gated delta net; checkpoints of several count one by one.
std::vector<bool> linear_layers(const model::Stages& stages) {
  std::vector<bool> result;
  for (const auto& rank : stages.ranks)
    for (const auto& chunk : rank.chunks)
      for (std::size_t i = 0; i < chunk.pieces.size(); ++i) {
        const Piece& piece = stages.pieces[chunk.pieces[i]];
        const int delta = launches(piece.forward, piece, "gated_delta.conv.forward"),
                  softmax = launches(piece.forward, piece, "attention.forward.bf16");
        if (chunk.layers[i] < 0) continue;
        REQUIRE(delta + softmax == 1);
        result.push_back(delta == 1);
      }
  return result;
}

}  // namespace

TEST_CASE("every layer has the attention that linear_attention_freq names, and frees what it allocates") {
  std::mt19937 random(20);
  const auto one_of = [&](const std::vector<std::string>& from) { return from[random() % from.size()]; };
  for (int round = 0; round < 60; ++round) {
    auto s = qwen3_next();
    const int layers = 8;
    std::vector<bool> expected;
    std::string frequency;
    if (round % 2 == 0) {
      const int every = 1 + static_cast<int>(random() % 9);
      frequency = std::to_string(every);
      for (int i = 0; i < layers; ++i) expected.push_back((i + 1) % every != 0);
    } else {
      for (int i = 0; i < layers; ++i) {
        expected.push_back(random() % 2 == 0);
        frequency += (i > 0 ? ", " : "") + std::string(expected.back() ? "1" : "0");
      }
    }
    std::vector<std::string> changes = {
        "linear_attention_freq=[" + frequency + "]",
        one_of({"micro_batch_size=1", "micro_batch_size=2"}),
        one_of({"linear_num_value_heads=16", "linear_num_value_heads=32", "linear_num_value_heads=64"}),
        one_of({"seq_length=4096", "seq_length=8192", "seq_length=6144"}),
        one_of({"num_query_groups=2", "num_query_groups=4", "num_query_groups=16"}),
        one_of({"qk_layernorm=true", "qk_layernorm=false"}),
        one_of({"window_size=[]", "window_size=[1023, 0]"})};
    for (const auto& more : std::vector<std::vector<std::string>>{
             {"clip_grad=1.0"},
             {"recompute_granularity=selective", "recompute_modules=[gdn_norm_out]"},
             {"recompute_granularity=selective", "recompute_modules=[core_attn, gdn_norm_out, mlp]"},
             {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"},
             {"fp8=hybrid", "fp8_recipe=tensorwise"},
             {"fp8=hybrid", "fp8_recipe=delayed", "recompute_granularity=selective",
              "recompute_modules=[core_attn, gdn_norm_out]"},
             {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=2"},
             {"pipeline_model_parallel_size=2", "num_gpus=2"},
             {"num_moe_experts=8", "moe_grouped_gemm=true", "moe_permute_fusion=true", "moe_router_dtype=fp32"}}) {
      auto all = changes;
      all.insert(all.end(), more.begin(), more.end());
      auto changed = s;
      for (const auto& setting : all) scenario::set(changed, setting);
      CAPTURE(frequency);
      CAPTURE(more.back());
      const auto stages = pipewright::test::build(changed);
      if (changed.model.window_size.empty()) CHECK(linear_layers(stages) == expected);
      for (const auto& piece : stages.pieces) check_balance(piece);
    }
  }
}

TEST_CASE("parameters of a gated delta net: projections, convolution, two numbers and a norm a head") {
  const auto count = [](const scenario::Scenario& s) {
    std::int64_t all = 0;
    for (const auto& rank : pipewright::test::build(s).ranks)
      for (const auto& chunk : rank.chunks) all += chunk.parameters;
    return all;
  };
  const std::int64_t h = 2048, k = 16 * 128, v = 32 * 128;
  const std::int64_t delta = h * (2 * k + 2 * v + 2 * 32) + 4 * (2 * k + v) + 2 * 32 + 128 + v * h;
  const std::int64_t q = 16 * 256, kv = 2 * 256;
  const std::int64_t gated = h * (2 * q + 2 * kv) + q * h + 2 * 256;
  const std::int64_t rest = 8 * (2 * h + 3 * h * 5120) + 2 * 151936 * h + h;
  CHECK(count(qwen3_next()) == 6 * delta + 2 * gated + rest);
  CHECK(count(with(qwen3_next(), {"linear_attention_freq=[1]"})) == 8 * gated + rest);
  CHECK(count(with(qwen3_next(), {"attention_output_gate=false"})) == 6 * delta + 2 * (gated - h * q) + rest);
  // Qwen3-Next's own: 80 billion, 79 without embeddings (its model card).
  const auto whole = with(qwen3_next(), {"num_layers=48", "num_moe_experts=512", "moe_ffn_hidden_size=512",
                                         "moe_router_topk=10", "moe_shared_expert_intermediate_size=512",
                                         "moe_shared_expert_gate=true", "moe_grouped_gemm=true"});
  CHECK(std::abs(static_cast<double>(count(whole)) / 1e9 - 79.67) < 0.01);
}

// gpt_builders.py: a depth's layer has the spec of the last decoder layer.
TEST_CASE("multi-token prediction beside delta nets has the attention of the last layer") {
  for (const auto& [frequency, linear] : {std::pair("linear_attention_freq=[4]", false),
                                          std::pair("linear_attention_freq=[1, 0, 1, 0, 1, 0, 1, 1]", true)}) {
    CAPTURE(std::string(frequency));
    const auto without = with(qwen3_next(), {frequency}), depth = with(without, {"mtp_num_layers=1"});
    CHECK_NOTHROW(scenario::refuse_unmodelled(depth));
    const auto stages = test::build(depth);
    int delta = 0, softmax = 0;
    for (const auto& piece : stages.pieces) {
      check_balance(piece);
      if (launches(piece.forward, piece, "cat") == 0 || launches(piece.forward, piece, "small") == 0) continue;
      delta += launches(piece.forward, piece, "gated_delta.conv.forward");
      softmax += launches(piece.forward, piece, "attention.forward.bf16");
    }
    CHECK((delta == (linear ? 1 : 0) && softmax == (linear ? 0 : 1)));
    // A depth has its layer's parameters, a projection of both halves and three norms.
    const auto shorter = with(without, {linear ? "linear_attention_freq=[1, 0, 1, 0, 1, 0, 1]"
                                               : "linear_attention_freq=[1, 1, 1, 0, 1, 1, 1]",
                                        "num_layers=7"});
    const auto layer = parameters(test::build(without)) - parameters(test::build(shorter));
    CHECK(parameters(stages) - parameters(test::build(without)) == layer + 2 * 2048 * 2048 + 3 * 2048);
  }
}

TEST_CASE("what was not measured is refused by name") {
  using scenario::refuse_unmodelled;
  CHECK_NOTHROW(refuse_unmodelled(qwen3_next()));
  CHECK_NOTHROW(refuse_unmodelled(with(qwen3_next(), {"cuda_graph_impl=full_iteration"})));
  for (const char* more :
       {"experimental_attention_variant=gdn2", "experimental_attention_variant=dsa", "linear_key_head_dim=64",
        "linear_value_head_dim=256", "linear_conv_kernel_dim=3", "optimizer=muon", "add_bias_linear=true",
        "megatron_core=0.17.0", "transformer_impl=local", "attention_backend=unfused"}) {
    CAPTURE(std::string(more));
    CHECK_THROWS_AS(refuse_unmodelled(with(qwen3_next(), {more})), UsageError);
  }
  CHECK_THROWS_AS(refuse_unmodelled(with(qwen3_next(), {"num_gpus=2", "context_parallel_size=2"})), UsageError);
}

TEST_CASE("graphs of attention hold gated delta nets and gated attention alike") {
  const auto graphed = with(
      qwen3_next(), {"cuda_graph_impl=transformer_engine", "cuda_graph_modules=[attn]", "use_te_rng_tracker=true"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(graphed));
  const auto eager = test::build(qwen3_next()), stages = test::build(graphed);
  check_all(stages);
  const auto names = [](const model::Stages& from) {
    std::multiset<std::string> all;
    for (const auto& piece : from.pieces)
      for (const auto& kernel : piece.kernels)
        if (kernel.name.find("CUDA graph") == std::string::npos) all.insert(kernel.name);
    return all;
  };
  CHECK(names(stages) == names(eager));
  int within = 0;
  for (const auto& piece : stages.pieces)
    for (const auto& kernel : piece.kernels) {
      CAPTURE(kernel.name);
      within += kernel.key.family.starts_with("gated_delta.");
      if (kernel.key.family.starts_with("gated_delta.") || kernel.name == "attention.core forward")
        CHECK(kernel.graphed);
    }
  CHECK(within > 0);
}

}  // namespace linear_attention_test
