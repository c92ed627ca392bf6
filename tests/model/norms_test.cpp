// Which kernel of Transformer Engine a norm takes: one tuned for its width, a general one, or cuDNN's.
#include <random>
#include <set>

#include "pipewright/profile.hpp"
#include "support.hpp"

namespace norms_test {

using namespace pipewright;
using namespace pipewright::model::test;

namespace {

scenario::Scenario wide(std::int64_t width, bool rms) {
  auto s = scenario::parse(R"(scenario: 1
model: {num_layers: 2, hidden_size: 1024, ffn_hidden_size: 2048, num_attention_heads: 8, kv_channels: 128,
  seq_length: 1024, vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope, qk_layernorm: true}
settings: {micro_batch_size: 1, global_batch_size: 8, bf16: true, use_distributed_optimizer: true,
  gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0, apply_rope_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 1, gpus_per_node: 1}
)",
                           "norms.yaml");
  s.model.hidden_size = width;
  s.model.normalization = rms ? "RMSNorm" : "LayerNorm";
  return s;
}

/// Families of the norms that are `cols` wide, with the name of the norm taken off.
std::set<std::string> norms(const model::Stages& stages, std::int64_t cols) {
  std::set<std::string> result;
  for (const auto& piece : stages.pieces)
    for (const auto& kernel : piece.kernels) {
      const auto& key = kernel.key;
      const auto dot = key.family.find("norm.");
      if (dot != std::string::npos && !key.family.starts_with("l2") && key.dims.at(1) == cols)
        result.insert(key.family.substr(dot + 5));
    }
  return result;
}

}  // namespace

TEST_CASE("a norm takes the kernel that Transformer Engine has for its width") {
  // REGISTER_NORM_LAUNCHER in common/normalization/{rmsnorm,layernorm} of Transformer Engine 2.5 to 2.20.
  const std::set<std::int64_t> tuned_rms = {512, 768, 1024, 2048, 4096, 8192},
                               tuned_layer = {1536, 2304, 3072, 3840, 5120, 6144, 10240, 12288, 16384, 18432};
  std::mt19937 random(2020);
  for (int round = 0; round < 60; ++round) {
    const bool rms = random() % 2 == 0, cudnn_forward = random() % 4 == 0, cudnn_backward = random() % 4 == 0;
    const std::int64_t widths[] = {1024, 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 7168, 8192, 12288, 16384};
    const auto width = widths[random() % std::size(widths)];
    auto s = wide(width, rms);
    if (cudnn_forward) s.environment["NVTE_NORM_FWD_USE_CUDNN"] = "1";
    if (cudnn_backward) s.environment["NVTE_NORM_BWD_USE_CUDNN"] = random() % 2 == 0 ? "1" : "0";
    const bool backward_by_cudnn = cudnn_backward && s.environment["NVTE_NORM_BWD_USE_CUDNN"] == "1";
    CAPTURE(width);
    CAPTURE(rms);
    const auto suffix = [&](std::int64_t cols, bool cudnn) -> std::string {
      if (cudnn) return rms ? ".cudnn" : "";
      const bool tuned = tuned_rms.contains(cols) ? rms || cols != 512 : !rms && tuned_layer.contains(cols);
      return tuned ? "" : ".general";
    };
    const auto built = pipewright::test::build(s);
    for (const std::int64_t cols : {width, std::int64_t{128}}) {
      const std::set<std::string> expected = {"forward" + suffix(cols, cudnn_forward),
                                              "backward" + suffix(cols, backward_by_cudnn)};
      CHECK(norms(built, cols) == expected);
    }
  }
}

TEST_CASE("a norm before a product in FP8 takes the maximum, or writes FP8 where the scale is known before") {
  for (const auto& [recipe, suffix] :
       {std::pair("tensorwise", ".amax"), std::pair("delayed", ".fp8"), std::pair("blockwise", "")})
    for (const std::int64_t width : {4096, 5120}) {
      CAPTURE(recipe);
      auto s = wide(width, true);
      scenario::set(s, "fp8=hybrid");
      scenario::set(s, std::string("fp8_recipe=") + recipe);
      const std::string plain = width == 4096 ? "forward" : "forward.general";
      const auto found = norms(pipewright::test::build(s), width);
      CHECK(found.contains(plain + suffix));
      CHECK(found.contains(plain));  // the final norm stands alone
    }
}

TEST_CASE(
    "a profile without Transformer Engine's general norms takes its tuned ones, and says how little that is worth") {
  profile::Profile p;
  p.name = "own";
  for (const std::int64_t rows : {1024, 4096, 16384})
    p.samples["rmsnorm.forward"].push_back(
        {{rows, 4096}, static_cast<double>(rows) * 5, 0.01, 10, profile::Origin::measured, ""});
  p.prepare();
  const auto tuned = p.time({"rmsnorm.forward", {4096, 4096}}),
             general = p.time({"rmsnorm.forward.general", {4096, 4096}});
  REQUIRE(general);
  CHECK(general->ns == tuned->ns);
  CHECK(general->origin == profile::Origin::derived);
  CHECK(general->spread >= 1);
  CHECK_FALSE(p.time({"layernorm.forward.general", {4096, 4096}}));
}

}  // namespace norms_test
