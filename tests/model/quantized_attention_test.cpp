// Attention in FP8: what Transformer Engine keeps, and which part of the time in 16 bits it takes. Deterministic
// attention: which part of the usual kernel's time it takes.
#include <algorithm>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace quantized_attention_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Kernel;

namespace {

constexpr std::int64_t tokens = 8192, q = 8192, kv = 1024, t = 4;

model::Stages on(const char* gpu, const scenario::Scenario& s) {
  return model::build(s, profile::data_sheet(gpu).device);
}
scenario::Scenario quantized(const char* recipe) {
  const std::string setting = std::string("fp8_recipe=") + recipe;
  return with(llama70b(), {"fp8=e4m3", setting.c_str(), "transformer_engine=2.16"});
}
scenario::Scenario attending(const char* recipe) { return with(quantized(recipe), {"fp8_dot_product_attention=true"}); }

const Kernel& attention(const model::Piece& piece, const char* name) {
  for (const auto& kernel : piece.kernels)
    if (kernel.name == name) return kernel;
  FAIL(name);
  return piece.kernels[0];
}

}  // namespace

TEST_CASE("attention in FP8 keeps its quantized inputs, of MXFP8 both copies with a scale for 32") {
  const std::int64_t inputs = tokens * (q + 2 * kv) / t;
  const auto kept = [](const char* gpu, const scenario::Scenario& s) { return saved(inner_layer(on(gpu, s))); };
  CHECK(kept("b200-sxm", attending("mxfp8")) - kept("b200-sxm", quantized("mxfp8")) == 2 * inputs / 32);
  for (const char* gpu : {"h200-sxm", "b200-sxm"})
    CHECK(kept(gpu, quantized("tensorwise")) - kept(gpu, attending("tensorwise")) == inputs);
}

TEST_CASE("the time of attention in FP8 is cuDNN's share of that in 16 bits") {
  const auto share = [](const char* gpu, const scenario::Scenario& s, const char* pass) {
    const auto stages = on(gpu, s);
    const Kernel& kernel = attention(inner_layer(stages), pass);
    CHECK(kernel.timed_as == Kernel::TimedAs::attention_in_16_bits);
    return kernel.share;
  };
  // 8192 tokens: results of the benchmark, microseconds
  CHECK(share("b200-sxm", attending("mxfp8"), "attention.core forward") == doctest::Approx(1156.0 / 1397));
  CHECK(share("b200-sxm", attending("mxfp8"), "attention.core backward") == doctest::Approx(4272.0 / 4127));
  CHECK(share("h200-sxm", attending("tensorwise"), "attention.core forward") == doctest::Approx(1141.0 / 1708));
  CHECK(share("h200-sxm", attending("tensorwise"), "attention.core backward") == doctest::Approx(6392.0 / 5083));
  // Between two lengths the shares' mean by doublings.
  const double between =
      share("b200-sxm", with(attending("mxfp8"), {"seq_length=11648", "max_position_embeddings=11648"}),
            "attention.core forward");
  CHECK(between < 4400.0 / 5150 + 1e-9);
  CHECK(between > 1156.0 / 1397);
  // Layers outside FP8 attend in 16 bits.
  const auto stages =
      on("b200-sxm", with(attending("tensorwise"), {"first_last_layers_bf16=true", "num_layers_at_start_in_bf16=40",
                                                    "num_layers_at_end_in_bf16=40"}));
  for (const auto& piece : stages.pieces)
    for (const auto& kernel : piece.kernels) CHECK(kernel.timed_as == Kernel::TimedAs::itself);
}

TEST_CASE("attention in FP8 is refused where its kernels have no figures") {
  const auto refused = [](const scenario::Scenario& s) {
    for (const auto& finding : scenario::unmodelled(s))
      if (finding.key == "settings.fp8_dot_product_attention") return true;
    return false;
  };
  CHECK(!refused(attending("mxfp8")));
  CHECK(!refused(with(attending("delayed"), {"fp8_dot_product_attention=false"})));
  CHECK(refused(attending("delayed")));
  CHECK(refused(attending("blockwise")));
  for (const char* change :
       {"window_size=[127, 0]", "softmax_type=learnable", "attention_dropout=0.1", "context_parallel_size=2",
        "seq_length=8160", "kv_channels=64", "transformer_engine=2.14", "cpu_offloading=true"}) {
    CAPTURE(change);
    CHECK(refused(with(attending("mxfp8"), {change})));
  }
}

TEST_CASE("the backward of deterministic attention takes cuDNN's share of the usual one's time") {
  auto s = llama70b();
  s.environment["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0";
  s.cluster.compute_capability = 100;
  const auto stages = on("b200-sxm", s);
  CHECK(attention(inner_layer(stages), "attention.core forward").timed_as == Kernel::TimedAs::itself);
  const Kernel& backward = attention(inner_layer(stages), "attention.core backward");
  CHECK(backward.timed_as == Kernel::TimedAs::usual_attention);
  CHECK(backward.share == doctest::Approx(4754.0 / 4127));  // 8192 tokens: results of the benchmark, microseconds
  // Blackwell's FP8 kernel is the deterministic one already.
  auto quantized = attending("mxfp8");
  const double share = attention(inner_layer(on("b200-sxm", quantized)), "attention.core backward").share;
  quantized.environment = s.environment;
  quantized.cluster.compute_capability = 100;
  CHECK(attention(inner_layer(on("b200-sxm", quantized)), "attention.core backward").share == share);
}

TEST_CASE("deterministic attention is refused where its kernels have no figures") {
  const auto refused = [](int capability, std::initializer_list<const char*> settings) {
    auto s = with(llama70b(), settings);
    s.environment["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0";
    s.cluster.compute_capability = capability;
    const auto all = scenario::unmodelled(s);
    return std::ranges::any_of(all, [](const auto& one) { return one.name == "NVTE_ALLOW_NONDETERMINISTIC_ALGO"; });
  };
  CHECK(!refused(100, {}));
  CHECK(!refused(103, {"cudnn=9.18.1"}));
  CHECK(refused(103, {"cudnn=9.17.0"}));  // Transformer Engine then turns to other kernels
  CHECK(!refused(90, {}));
  CHECK(!refused(90, {"attention_backend=unfused"}));  // which it does not touch
  for (const char* change : {"window_size=[127, 0]", "softmax_type=learnable", "attention_dropout=0.1",
                             "context_parallel_size=2", "kv_channels=64"}) {
    CAPTURE(change);
    CHECK(refused(100, {change}));
    CHECK(refused(90, {change}));
  }
}

}  // namespace quantized_attention_test
