// Megatron Core's own modules (transformer_impl local) and unfused attention: scores and probabilities are tensors.
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace local_test {

using namespace pipewright;
using namespace pipewright::model::test;

namespace {

constexpr std::int64_t s = 2048, t = 4, row = s / t, h = 8192, q = 8192 / t, kv = 1024 / t, f = 28672 / t,
                       heads = 64 / t, scores = heads * s * s;

scenario::Scenario local(std::initializer_list<const char*> settings = {}) {
  return with(with(llama70b(), {"transformer_impl=local", "seq_length=2048", "masked_softmax_fusion=true"}), settings);
}

std::int64_t saved_with(std::initializer_list<const char*> settings) {
  return saved(inner_layer(test::build(local(settings))));
}

/// Norms and MLP as with Transformer Engine; rotated q, repeated k and v, output.
constexpr std::int64_t dense = row * (8 * h + 8) + s * 6 * f;
constexpr std::int64_t attention = s * (2 * q + 2 * 2 * q + 2 * q);

}  // namespace

TEST_CASE("unfused attention saves probabilities, and keys and values of every query head") {
  CHECK(saved_with({}) == dense + attention + 2 * scores);
  // Softmax in fp32 and its result in bf16.
  CHECK(saved_with({"masked_softmax_fusion=false"}) == dense + attention + (4 + 2) * scores);
  // The same without a cast: one tensor of 16 bits serves softmax and product.
  CHECK(saved_with({"masked_softmax_fusion=false", "attention_softmax_in_fp32=false"}) ==
        dense + attention + 2 * scores);
  // PyTorch's rotation saves cos and sin of q and of k.
  CHECK(saved_with({"apply_rope_fusion=false"}) - saved_with({"apply_rope_fusion=true"}) == 2 * 2 * 2 * s * 128);
  // Softmax, what dropout left of it, and a mask of a byte.
  CHECK(saved_with({"attention_dropout=0.1"}) == dense + attention + (2 + 2 + 1) * scores);
}

TEST_CASE("recompute works on modules of their own") {
  const auto none = saved_with({});
  const auto saving = [&](const char* module) {
    return none - saved_with({"recompute_granularity=selective", module});
  };
  CHECK(saving("recompute_modules=[layernorm]") == 2 * row * (2 * h + 4));
  CHECK(saving("recompute_modules=[mlp]") == s * 6 * f);  // the norm before it stays
  // The checkpoint keeps k, and its view of v the fused projection's output instead.
  CHECK(saving("recompute_modules=[core_attn]") == 2 * scores + s * 2 * 2 * q - s * 2 * kv - s * 2 * (q + 2 * kv));
}

TEST_CASE("gathered inputs and scores share the global memory buffer") {
  const auto buffer = [](const scenario::Scenario& scenario) {
    const auto stages = test::build(scenario);
    std::int64_t bytes = 0;
    for (const auto& tensor : stages.ranks[1].since_first_step) {
      if (stages.owners[tensor.owner] == "global memory buffer") bytes += tensor.bytes.value;
    }
    return bytes;
  };
  CHECK(buffer(local()) == 2 * scores);
  CHECK(buffer(local({"seq_length=256"})) == 2 * 256 * h);
  CHECK(buffer(llama70b()) == 0);
}

TEST_CASE("Transformer Engine's unfused attention keeps no more than its kernels need") {
  const auto te = [](std::initializer_list<const char*> settings) {
    return saved(inner_layer(test::build(with(local({"transformer_impl=transformer_engine"}), settings))));
  };
  const std::int64_t fused = te({});
  CHECK(te({"attention_backend=flash"}) == fused);
  CHECK(te({"attention_backend=unfused"}) - fused == 2 * scores + s * (2 * 2 * q - 2 * 2 * kv) - s * 4 * heads - 16);
}

TEST_CASE("what is born dies in the local spec") {
  const std::vector<std::vector<const char*>> kinds = {
      {},
      {"sequence_parallel=false"},
      {"masked_softmax_fusion=false", "attention_dropout=0.1", "hidden_dropout=0.1"},
      {"num_query_groups=64"},
      {"qk_layernorm=true"},
      {"apply_rope_fusion=false"},
      {"position_embedding_type=learned_absolute", "normalization=LayerNorm", "num_query_groups=64",
       "add_bias_linear=true", "gated_linear_unit=false"},
      {"recompute_granularity=selective", "recompute_modules=[core_attn, mlp, layernorm]"},
      {"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=1"},
      {"multi_latent_attention=true", "qk_layernorm=true"},
      {"transformer_impl=transformer_engine", "attention_backend=unfused"},
      {"transformer_impl=transformer_engine", "attention_backend=unfused", "num_query_groups=64"}};
  for (const auto& kind : kinds) {
    auto scenario = local();
    std::string all;
    for (const auto* setting : kind) scenario::set(scenario, setting), all += std::string(setting) + " ";
    CAPTURE(all);
    check_all(test::build(scenario));
  }
}

TEST_CASE("what the local spec cannot do is refused") {
  CHECK_THROWS_WITH_AS(test::build(local({"fp8=hybrid"})), doctest::Contains("transformer_engine"), UsageError);
  CHECK_THROWS_WITH_AS(test::build(local({"context_parallel_size=2"})), doctest::Contains("TEDotProductAttention"),
                       UsageError);
  CHECK_THROWS_WITH_AS(test::build(with(llama70b(), {"attention_backend=local"})),
                       doctest::Contains("attention_backend"), UsageError);
}

}  // namespace local_test
