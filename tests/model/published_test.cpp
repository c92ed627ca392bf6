// Parameter counts of published models, from their config.json, against what their model cards count; and properties
// that hold for every choice of recompute.
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace published_test {

using namespace pipewright;
using namespace pipewright::model::test;

namespace {

std::int64_t counted(const std::string& architecture) {
  return parameters(test::build(scenario::parse("scenario: 1\nmodel: {" + architecture + R"(,
  gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {bf16: true, micro_batch_size: 1, global_batch_size: 1, moe_grouped_gemm: true, bias_activation_fusion: true,
  moe_token_dispatcher_type: alltoall, apply_rope_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0}
cluster: {profile: h200-sxm, num_gpus: 1}
)",
                                                "published.yaml")));
}

const std::string deepseek_v3 =
    "num_layers: 61, hidden_size: 7168, ffn_hidden_size: 18432, num_attention_heads: 128, kv_channels: 128, "
    "seq_length: 4096, vocab_size: 129280, multi_latent_attention: true, q_lora_rank: 1536, kv_lora_rank: 512, "
    "qk_head_dim: 128, qk_pos_emb_head_dim: 64, v_head_dim: 128, qk_layernorm: true, num_moe_experts: 256, "
    "moe_router_topk: 8, moe_ffn_hidden_size: 2048, moe_shared_expert_intermediate_size: 2048, moe_layer_freq: [0, 0, "
    "0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, "
    "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]";

}  // namespace

TEST_CASE("parameters of published models") {
  CHECK(counted("num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, "
                "num_query_groups: 8, seq_length: 8192, vocab_size: 128256") == 8030261248);  // Llama 3 8B
  CHECK(counted("num_layers: 126, hidden_size: 16384, ffn_hidden_size: 53248, num_attention_heads: 128, "
                "num_query_groups: 8, seq_length: 8192, vocab_size: 128256") == 405853388800);  // Llama 3.1 405B
  CHECK(counted("num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, "
                "num_query_groups: 8, seq_length: 4096, vocab_size: 32000, num_moe_experts: 8, moe_router_topk: 2") ==
        46702792704);  // Mixtral 8x7B
  CHECK(counted("num_layers: 48, hidden_size: 2048, ffn_hidden_size: 6144, num_attention_heads: 32, "
                "num_query_groups: 4, kv_channels: 128, qk_layernorm: true, seq_length: 4096, vocab_size: 151936, "
                "num_moe_experts: 128, moe_router_topk: 8, moe_ffn_hidden_size: 768") == 30532122624);  // Qwen3-30B-A3B
}

TEST_CASE("DeepSeek-V3: 671 billion, and 14 with the layer of multi-token prediction, embedding and head apart") {
  const std::int64_t main = counted(deepseek_v3);
  // Layer by layer from config.json; the correction bias of the router is no parameter in Megatron Core.
  constexpr std::int64_t h = 7168, attention = 187107328, expert = 3 * h * 2048;
  constexpr std::int64_t moe = attention + 2 * h + 256 * h + 257 * expert, dense = attention + 2 * h + 3 * h * 18432;
  CHECK(main == 2 * 129280 * h + h + 3 * dense + 58 * moe);
  CHECK(static_cast<double>(main) == doctest::Approx(671.0e9).epsilon(0.0005));
  const std::int64_t depth = counted(deepseek_v3 + ", mtp_num_layers: 1") - main;
  CHECK(depth == moe + 2 * h * h + 3 * h);
  CHECK(static_cast<double>(depth + 2 * 129280 * h) == doctest::Approx(14e9).epsilon(0.05));
}

TEST_CASE("recompute keeps no more, but for core attention whose checkpoint sees v as a view") {
  const std::vector<std::vector<const char*>> models = {
      {},
      {"sequence_parallel=false"},
      {"fp8=hybrid", "fp8_recipe=tensorwise"},
      {"transformer_impl=local"},
      {"num_query_groups=64"},
      {"qk_layernorm=true"},
      {"multi_latent_attention=true", "qk_layernorm=true"},
      {"multi_latent_attention=true", "mla_down_proj_fusion=true"},
      {"num_moe_experts=8", "moe_grouped_gemm=true", "moe_shared_expert_intermediate_size=4096"}};
  for (const auto& kind : models) {
    auto plain = with(llama70b(), {"seq_length=2048"});
    std::string all;
    for (const auto* setting : kind) scenario::set(plain, setting), all += std::string(setting) + " ";
    CAPTURE(all);
    const auto none = saved(inner_layer(test::build(plain)));
    for (const std::string module :
         {"layernorm", "mlp", "mla_up_proj", "moe_act", "moe", "shared_experts", "core_attn"}) {
      CAPTURE(module);
      const auto replayed = saved(inner_layer(test::build(
          with(plain, {"recompute_granularity=selective", ("recompute_modules=[" + module + "]").c_str()}))));
      const bool view =
          module == "core_attn" && !plain.model.multi_latent_attention && plain.settings.transformer_impl != "local";
      if (!view) CHECK(replayed <= none);
    }
    const auto full = saved(inner_layer(test::build(
        with(plain, {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"}))));
    CHECK(full < none / 4);
  }
}

}  // namespace published_test
