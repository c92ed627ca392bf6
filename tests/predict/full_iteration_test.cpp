// What recipes for racks of 72 use: one CUDA graph for forward and backward, and token exchange in buffers of its own.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

namespace full_iteration_test {

using namespace pipewright;

namespace {

profile::Profiles gb200() {
  return profile::Profiles({profile::load(SOURCE_ROOT "/profiles/gb200-nvl72.json", {"test", 0})});
}

/// Small kernels: bound by launches.
scenario::Scenario small(std::initializer_list<const char*> settings) {
  auto s = scenario::parse(R"(scenario: 1
model: {num_layers: 16, hidden_size: 1024, ffn_hidden_size: 2816, num_attention_heads: 16, seq_length: 1024,
  vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope}
settings: {pipeline_model_parallel_size: 4, virtual_pipeline_model_parallel_size: 2, micro_batch_size: 1,
  global_batch_size: 16, bf16: true, use_distributed_optimizer: true, hidden_dropout: 0.0, attention_dropout: 0.0}
cluster: {profile: gb200-nvl72, num_gpus: 8, gpus_per_node: 8}
)",
                           "small.yaml");
  for (const auto* setting : settings) scenario::set(s, setting);
  return s;
}

std::int64_t waits_for_host(const predict::Prediction& p) {
  std::int64_t most = 0;
  for (const auto& rank : p.ranks) most = std::max(most, rank.account.host);
  return most;
}

}  // namespace

TEST_CASE("a graph of the whole iteration takes the host out of forward and backward, in both engines") {
  const auto profiles = gb200();
  const auto eager = predict::predict(small({}), profiles);
  const auto s = small({"cuda_graph_impl=full_iteration"});
  const auto graph = predict::predict(s, profiles);
  CHECK(waits_for_host(eager) > eager.step_ns / 10);
  CHECK(waits_for_host(graph) < waits_for_host(eager) / 5);  // the optimizer is launched all the same
  CHECK(graph.forward_backward_ns < eager.forward_backward_ns);
  const auto quick = predict::estimate(s, profiles);
  CHECK(static_cast<double>(quick.step_ns) == doctest::Approx(static_cast<double>(graph.step_ns)).epsilon(0.02));
  for (std::size_t r = 0; r < graph.ranks.size(); ++r)
    CHECK(graph.ranks[r].walk.peak_allocated == eager.ranks[r].walk.peak_allocated);
}

TEST_CASE("a graph of the iteration takes the host out of delta nets, hybrids and adapters, too") {
  const auto profiles = gb200();
  for (const auto& model : std::initializer_list<std::vector<const char*>>{
           {"experimental_attention_variant=gated_delta_net", "linear_attention_freq=[4]", "linear_num_key_heads=8",
            "linear_num_value_heads=16"},
           {"pipeline_model_parallel_size=1", "virtual_pipeline_model_parallel_size=null",
            "hybrid_layer_pattern=M-M*-M-M-M*-M-M-"},
           {"lora_target_modules=[linear_qkv, linear_proj]", "megatron_bridge=0.3.0"}}) {
    CAPTURE(std::string(model.front()));
    auto s = small({});
    for (const auto* setting : model) scenario::set(s, setting);
    const auto eager = predict::predict(s, profiles);
    scenario::set(s, "cuda_graph_impl=full_iteration");
    const auto graph = predict::predict(s, profiles);
    CHECK(waits_for_host(graph) < waits_for_host(eager) / 2);
    CHECK(graph.forward_backward_ns < eager.forward_backward_ns);
  }
}

TEST_CASE("HybridEP holds what all tokens of the group take, not NCCL's buffers for every peer") {
  const auto profiles = gb200();
  const auto with = [&](const char* dispatcher) {
    return small({"pipeline_model_parallel_size=1", "virtual_pipeline_model_parallel_size=null", "num_moe_experts=32",
                  "moe_router_topk=2", "moe_ffn_hidden_size=1024", "moe_grouped_gemm=true",
                  "expert_model_parallel_size=8", dispatcher});
  };
  auto hybridep = with("moe_token_dispatcher_type=flex"), none = with("moe_token_dispatcher_type=allgather");
  scenario::set(hybridep, "moe_flex_dispatcher_backend=hybridep");
  const std::int64_t tokens = 1024 * 8, h = 1024, probabilities = 4 * 32;
  const std::int64_t expected = tokens * (2 * (2 * h + probabilities) + 4 * (h / 128));
  const auto outside = [&](const scenario::Scenario& s) { return model::outside_allocator(s, profiles, 0).value; };
  CHECK(outside(hybridep) - outside(none) == expected);
}

namespace {

/// Experts over the four GPUs of a tray in a fixed budget of rows, fused and in MXFP8, one graph for the iteration.
scenario::Scenario fused(std::initializer_list<const char*> settings) {
  auto s = small({"num_moe_experts=16",
                  "moe_router_topk=4",
                  "moe_ffn_hidden_size=1024",
                  "moe_grouped_gemm=true",
                  "expert_model_parallel_size=2",
                  "expert_tensor_parallel_size=1",
                  "seq_length=4096",
                  "global_batch_size=32",
                  "moe_token_dispatcher_type=flex",
                  "moe_flex_dispatcher_backend=hybridep",
                  "fp8=e4m3",
                  "fp8_recipe=mxfp8",
                  "fp8_param=true",
                  "fp8_param_gather=true",
                  "reuse_grad_buf_for_mxfp8_param_ag=true",
                  "use_transformer_engine_op_fuser=true",
                  "moe_mlp_glu_interleave_size=32",
                  "moe_expert_rank_capacity_factor=2",
                  "overlap_p2p_comm=true",
                  "batch_p2p_comm=false",
                  "cuda_graph_impl=full_iteration",
                  "gradient_accumulation_fusion=true"});
  scenario::set_env(s, "NVTE_CUTEDSL_FUSED_GROUPED_MLP=1");
  scenario::set_env(s, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,graph_capture_record_stream_reuse:True");
  for (const auto* setting : settings) scenario::set(s, setting);
  return s;
}

}  // namespace

TEST_CASE("a capture keeps what other streams used until it ends, unless the allocator reuses it") {
  const auto profiles = gb200();
  auto s = fused({});
  const auto reused = predict::predict(s, profiles);
  scenario::set_env(s, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  const auto kept = predict::predict(s, profiles);
  CHECK(kept.step_ns == reused.step_ns);
  for (std::size_t r = 0; r < kept.ranks.size(); ++r) {
    CAPTURE(r);
    // Each of 16 microbatches' transfers of 8 MiB, by chunk and direction, where a few live at once otherwise.
    CHECK(kept.ranks[r].walk.graph_pool > reused.ranks[r].walk.graph_pool + Bytes(16 * (8 << 20)));
  }
}

TEST_CASE("the paged stash holds expected rows where a budget holds its padding, in a graph and without") {
  const auto profiles = gb200();
  for (const char* graphs : {"cuda_graph_impl=none", "cuda_graph_impl=full_iteration"})
    for (const char* overlap : {"overlap_moe_expert_parallel_comm=false", "overlap_moe_expert_parallel_comm=true"}) {
      CAPTURE(std::string(graphs));
      CAPTURE(std::string(overlap));
      const auto padded = predict::predict(fused({graphs, overlap}), profiles);
      const auto paged = predict::predict(fused({graphs, overlap, "moe_paged_stash=true"}), profiles);
      for (std::size_t r = 0; r < paged.ranks.size(); ++r) {
        CAPTURE(r);
        const auto& walk = paged.ranks[r].walk;
        CHECK(walk.peak_allocated < padded.ranks[r].walk.peak_allocated);
        const auto pages = std::ranges::find(walk.peak_owners, std::string("experts.stash_pages"),
                                             [](const auto& one) { return one.owner; });
        REQUIRE(pages != walk.peak_owners.end());
        // A layer keeps h (1 + 1/32) + 4 f + f (1 + 1/32) bytes a row, h = f = 1024; 4 x 4096 rows are expected, 1.1
        // of them have room. The last rank's first layers of each microbatch live at least.
        const std::int64_t layer = 4 * 4096 * (1024 + 32 + 4096 + 1024 + 32) / 10 * 11;
        const double layers = static_cast<double>(pages->bytes.value) / static_cast<double>(layer);
        CAPTURE(layers);
        CHECK(layers > 1.95);
        CHECK(std::abs(layers - std::round(layers)) < 0.01);
      }
      CHECK(static_cast<double>(paged.step_ns) == doctest::Approx(static_cast<double>(padded.step_ns)).epsilon(0.1));
      CHECK(paged.step_ns >= padded.step_ns);
    }
}

}  // namespace full_iteration_test
