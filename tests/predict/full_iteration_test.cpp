// What recipes for racks of 72 use: one CUDA graph for forward and backward, and token exchange in buffers of its own.
#include <doctest/doctest.h>

#include <algorithm>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

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
