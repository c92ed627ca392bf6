// Latent projections of mixtures (moe_latent_size): what is sent and what experts hold at that width, what the
// projections add, by hand formulas (core_r0.19.0 moe/moe_layer.py, preprocess and postprocess).
#include <algorithm>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"
#include "support.hpp"

namespace latent_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;
using model::Step;

namespace {

constexpr std::int64_t S = 4096, h = 4096, latent = 1024, f = 2688, E = 16, k = 6, shared = 5376, layers = 4;

/// Four mixtures on four GPUs, the tokens of one sequence dealt to them.
scenario::Scenario mixture(std::initializer_list<const char*> settings = {}) {
  return with(scenario::parse(R"(scenario: 1
model: {num_layers: 4, hidden_size: 4096, ffn_hidden_size: 2688, num_attention_heads: 32, num_query_groups: 8,
  seq_length: 4096, vocab_size: 32000, num_moe_experts: 16, moe_router_topk: 6, moe_ffn_hidden_size: 2688,
  moe_shared_expert_intermediate_size: 5376, moe_latent_size: 1024, activation_func: squared_relu,
  normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {expert_model_parallel_size: 4, expert_tensor_parallel_size: 1, micro_batch_size: 1, global_batch_size: 32,
  bf16: true, use_distributed_optimizer: true, grad_reduce_in_fp32: true, gradient_accumulation_fusion: true,
  hidden_dropout: 0.0, attention_dropout: 0.0, apply_rope_fusion: true, moe_token_dispatcher_type: alltoall,
  moe_grouped_gemm: true, moe_permute_fusion: true, moe_router_dtype: fp32}
cluster: {profile: h200-sxm, num_gpus: 8, gpus_per_node: 8, link: nvlink}
)",
                              "latent.yaml"),
              settings);
}

Piece layer(const scenario::Scenario& s) {
  const auto stages = pipewright::test::build(s);
  return stages.pieces[stages.ranks[0].chunks[0].pieces[2]];
}

/// Bytes that a kind of exchange moves for expert parallelism, without the probabilities'.
std::int64_t moved(const Piece& piece) {
  std::int64_t bytes = 0;
  for (const auto& kernel : piece.kernels)
    if (kernel.purpose == model::Purpose::ep && kernel.name.find("moe ") == 0 &&
        kernel.name.find("probs") == std::string::npos && kernel.name.find("counts") == std::string::npos &&
        kernel.name.find("map") == std::string::npos)
      bytes += kernel.exchange && kernel.key.dims.empty() ? static_cast<std::int64_t>(kernel.exchange->bytes)
                                                          : kernel.key.dims.back();
  return bytes;
}

std::int64_t count(const Piece& piece, const std::string& name) {
  return std::ranges::count_if(piece.kernels, [&](const auto& kernel) { return kernel.name.starts_with(name); });
}

}  // namespace

TEST_CASE("latent projections are whole on every tensor-parallel rank, experts have their width") {
  for (const char* tensor : {"1", "2", "4"}) {
    CAPTURE(std::string(tensor));
    const auto parallel = [&](scenario::Scenario s) {
      scenario::set(s, std::string("tensor_model_parallel_size=") + tensor);
      if (tensor[0] != '1') scenario::set(s, "sequence_parallel=true");
      return parameters(pipewright::test::build(s));
    };
    const std::int64_t each = E / 4;
    CHECK(parallel(mixture()) - parallel(mixture({"moe_latent_size=none"})) ==
          layers * (2 * h * latent + each * 2 * f * (latent - h)));
  }
}

// 120B-A12B and 550B-A55B, sizes of Megatron-LM's examples/post_training/modelopt/conf/nvidia.
TEST_CASE("Nemotron 3 Super and Ultra have as many parameters as their names say") {
  const auto of = [](const std::string& pattern, std::initializer_list<const char*> sizes) {
    auto s = with(mixture({"position_embedding_type=none", "num_query_groups=2", "kv_channels=128", "vocab_size=131072",
                           "num_moe_experts=512", "moe_router_topk=22", "expert_model_parallel_size=1", "num_gpus=1"}),
                  sizes);
    scenario::set(s, "hybrid_layer_pattern=" + pattern);
    scenario::set(s, "num_layers=" + std::to_string(scenario::hybrid_layers(s).size()));
    return static_cast<double>(parameters(pipewright::test::build(s)));
  };
  CHECK(of("MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
           {"mamba_num_heads=128"}) == doctest::Approx(120e9).epsilon(0.01));
  CHECK(of("MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*"
           "EMEMEMEME",
           {"hidden_size=8192", "num_attention_heads=64", "mamba_num_heads=256", "moe_latent_size=2048",
            "moe_ffn_hidden_size=5120", "ffn_hidden_size=5120", "moe_shared_expert_intermediate_size=10240"}) ==
        doctest::Approx(550e9).epsilon(0.01));
}

TEST_CASE("rows are sent at the latent width: every dispatcher moves a quarter of what it moves without") {
  for (const char* dispatcher : {"alltoall", "allgather", "flex"}) {
    CAPTURE(std::string(dispatcher));
    auto s = mixture();
    scenario::set(s, std::string("moe_token_dispatcher_type=") + dispatcher);
    const auto narrow = moved(layer(s)), wide = moved(layer(with(s, {"moe_latent_size=none"})));
    CHECK(narrow > 0);
    CHECK(wide == h / latent * narrow);
  }
}

TEST_CASE("a latent width that is the hidden one adds the two projections and nothing else") {
  const auto without = layer(mixture({"moe_latent_size=none"})), with_both = layer(mixture({"moe_latent_size=4096"}));
  CHECK(with_both.kernels.size() == without.kernels.size() + 2 * 3);
  CHECK(count(with_both, "moe.fc1_latent_proj") == 3);  // forward, dgrad, wgrad
  CHECK(count(with_both, "moe.fc2_latent_proj") == 3);
  CHECK(saved(with_both) == saved(without) + 2 * S * h);  // fc2_latent_proj's input; fc1's is the router's
  // Replayed with the layer, it is not kept.
  CHECK(saved(layer(mixture({"recompute_granularity=selective", "recompute_modules=[moe]"}))) ==
        saved(layer(mixture({"recompute_granularity=selective", "recompute_modules=[moe]", "moe_latent_size=none"}))));
}

TEST_CASE("model FLOPs of latent mixtures are Megatron's") {
  auto s = mixture();
  const double routed = 1.0 * f * k * 2 * latent + 2.0 * h * latent, own = 2.0 * h * shared;
  const auto without = with(s, {"moe_latent_size=none"});
  CHECK(model::step_flop(s) - model::step_flop(without) ==
        doctest::Approx(6.0 * 32 * S * layers * (routed + own - (1.0 * f * k * 2 * h + own))).epsilon(1e-12));
}

TEST_CASE("a fused squared ReLU keeps fc1's output and its own, and no more") {
  const std::int64_t rows = S * k, unfused = saved(layer(mixture())),
                     fused = saved(layer(mixture({"use_fused_weighted_squared_relu=true"})));
  CHECK(unfused - fused == 2 * rows * f);  // the square before the weights
  CHECK(layer(mixture({"use_fused_weighted_squared_relu=true"})).kernels.size() < layer(mixture()).kernels.size());
  // Of gated experts it says nothing.
  const auto gated = mixture({"gated_linear_unit=true", "activation_func=silu", "bias_activation_fusion=true"});
  CHECK(saved(layer(gated)) == saved(layer(with(gated, {"use_fused_weighted_squared_relu=true"}))));
}

TEST_CASE("latent mixtures free what they allocate, whatever runs beside them") {
  check_variants(mixture(),
                 {{"moe_token_dispatcher_type=allgather"},
                  {"moe_token_dispatcher_type=flex"},
                  {"moe_token_dispatcher_type=flex", "moe_flex_dispatcher_backend=hybridep"},
                  {"expert_model_parallel_size=1"},
                  {"expert_model_parallel_size=1", "moe_token_dispatcher_type=flex"},
                  {"expert_model_parallel_size=1", "moe_token_dispatcher_type=allgather"},
                  {"tensor_model_parallel_size=2", "sequence_parallel=true"},
                  {"tensor_model_parallel_size=2", "sequence_parallel=true", "expert_tensor_parallel_size=2"},
                  {"recompute_granularity=selective", "recompute_modules=[moe]"},
                  {"recompute_granularity=selective", "recompute_modules=[moe_act, layernorm, shared_experts]"},
                  {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"},
                  {"fp8=e4m3", "fp8_recipe=tensorwise"},
                  {"fp8=e4m3", "fp8_recipe=blockwise", "tensor_model_parallel_size=2", "sequence_parallel=true"},
                  {"fp8=e4m3", "fp8_recipe=delayed", "recompute_granularity=selective", "recompute_modules=[moe]"},
                  {"fine_grained_activation_offloading=true", "offload_modules=[expert_fc1, moe_act]"},
                  {"moe_shared_expert_intermediate_size=none"},
                  {"overlap_moe_expert_parallel_comm=true"},
                  {"mtp_num_layers=1"},
                  {"optimizer=muon", "megatron_core=0.19.0"}});
}

TEST_CASE("what of latent mixtures is not modelled is refused by name") {
  using scenario::refuse_unmodelled;
  CHECK_NOTHROW(refuse_unmodelled(mixture()));
  CHECK_NOTHROW(refuse_unmodelled(mixture({"cuda_graph_impl=transformer_engine", "cuda_graph_modules=[attn]"})));
  for (const auto& more : std::initializer_list<std::vector<const char*>>{
           {"delay_wgrad_compute=true", "overlap_moe_expert_parallel_comm=true"}, {"add_bias_linear=true"}}) {
    auto s = mixture();
    for (const char* setting : more) scenario::set(s, setting);
    CHECK_THROWS_WITH_AS(refuse_unmodelled(s), doctest::Contains("latent projections"), UsageError);
  }
}

// moe_layer.py, preprocess: fc1_latent_proj stands before the dispatcher's preprocess, so that it is captured with
// that.
TEST_CASE("a graph of the router holds the projection down with moe_preprocess, not without") {
  for (const char* dispatcher : {"alltoall", "allgather", "flex"})
    for (const bool preprocess : {false, true}) {
      CAPTURE(dispatcher);
      CAPTURE(preprocess);
      auto graphed = mixture({"cuda_graph_impl=transformer_engine", "use_te_rng_tracker=true",
                              preprocess ? "cuda_graph_modules=[attn, moe_router, moe_preprocess]"
                                         : "cuda_graph_modules=[attn, moe_router]"});
      scenario::set(graphed, std::string("moe_token_dispatcher_type=") + dispatcher);
      if (std::string(dispatcher) == "flex") scenario::set(graphed, "moe_flex_dispatcher_backend=hybridep");
      const auto stages = pipewright::test::build(graphed);
      check_all(stages);
      int inside = 0, outside = 0;
      for (const auto& piece : stages.pieces)
        for (const auto& kernel : piece.kernels)
          if (kernel.name.find("fc1_latent_proj") != std::string::npos) ++(kernel.graphed ? inside : outside);
      CHECK((preprocess ? inside : outside) == 3 * (inside + outside) / 3);
      CHECK(inside + outside > 0);
    }
}

}  // namespace latent_test
