// What coalesced gathers hold until NCCL's watchdog looks: in which runs, and how much by hand.
#include "../../src/predict/kept_gathers.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

namespace kept_gathers_test {

using namespace pipewright;

namespace {

constexpr std::int64_t hidden = 4096;

scenario::Scenario run(int layers, int sequence, int microbatches) {
  auto s = scenario::parse(R"(scenario: 1
model: {hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8, vocab_size: 32000,
  gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope, num_layers: 2, seq_length: 4096}
settings: {tensor_model_parallel_size: 2, sequence_parallel: true, micro_batch_size: 1, global_batch_size: 1, bf16: true,
  use_distributed_optimizer: true, gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0,
  fp8: hybrid, fp8_recipe: blockwise}
cluster: {profile: h100-sxm, num_gpus: 2, gpus_per_node: 2}
)",
                           "kept.yaml");
  s.model.num_layers = layers;
  s.model.seq_length = sequence;
  s.settings.global_batch_size = microbatches;
  return s;
}

std::int64_t held(const scenario::Scenario& s, std::size_t rank = 0) {
  static const auto profiles = predict::profiles_of(s);
  const auto with = predict::stages_of(s, profiles), without = model::build(s, profiles.device());
  std::int64_t bytes = 0;
  for (const auto& tensor : with.ranks.at(rank).since_first_step) bytes += tensor.bytes.value;
  for (const auto& tensor : without.ranks.at(rank).since_first_step) bytes -= tensor.bytes.value;
  return bytes;
}

/// Of a microbatch: the inputs of two column-parallel layers in both directions, the gradients of two row-parallel
/// ones, each a byte an element and a scale of four bytes for 128.
double gathered(int layers, std::int64_t tokens) { return 6.0 * layers * static_cast<double>(tokens * hidden); }

}  // namespace

TEST_CASE("a short step holds all that it gathered, a long one what a watchdog's sleep takes in") {
  CHECK(static_cast<double>(held(run(1, 1024, 1))) == doctest::Approx(gathered(1, 1024)).epsilon(0.02));
  CHECK(static_cast<double>(held(run(2, 1024, 2))) == doctest::Approx(2 * gathered(2, 1024)).epsilon(0.02));
  auto behind = run(16, 8192, 16), longer = run(16, 8192, 64);
  behind.cluster.host_time_factor = longer.cluster.host_time_factor = 4;  // hardly ahead of its GPU
  const auto sixteen = held(behind);
  CHECK(sixteen == held(longer));
  CHECK(static_cast<double>(sixteen) < gathered(16, 8192));
  // A host that reads every loss is ahead by a microbatch at most, to which comes what ended in the sleep before.
  CHECK(static_cast<double>(held(run(16, 8192, 16))) < gathered(16, 8192) + static_cast<double>(sixteen));
  CHECK(sixteen > std::int64_t{1} << 30);
}

TEST_CASE("a host that is ahead of its GPU holds more: the faster it is, and most where nothing makes it wait") {
  auto slow = run(16, 8192, 16), fast = slow;
  slow.cluster.host_time_factor = 4;
  fast.cluster.host_time_factor = 1;
  CHECK(held(slow) < held(fast));

  auto pipeline = run(16, 8192, 16);
  for (const char* one : {"num_gpus=4", "gpus_per_node=4", "pp=2", "vpp=2", "overlap_p2p_comm=true"})
    scenario::set(pipeline, one);
  const auto reads_nothing = held(pipeline, 0), reads_every_loss = held(pipeline, 1);
  CHECK(reads_nothing > reads_every_loss);
  scenario::set(pipeline, "overlap_p2p_comm=false");  // transfers then synchronise the device
  CHECK(held(pipeline, 0) < reads_nothing);
}

TEST_CASE("what goes round a ring comes back as late as the host is ahead: cached meanwhile, not allocated") {
  auto ring = run(8, 16384, 8);
  for (const char* one : {"fp8=none", "fp8_recipe=delayed", "tensor_model_parallel_size=1", "sequence_parallel=false",
                          "context_parallel_size=2", "max_position_embeddings=16384"})
    scenario::set(ring, one);
  const auto profiles = predict::profiles_of(ring);
  const auto peaks = [&](double factor) {
    ring.cluster.host_time_factor = factor;
    return predict::predict(ring, profiles).ranks.at(0);
  };
  const auto ahead = peaks(1), behind = peaks(8);
  CHECK(ahead.walk.peak_allocated == behind.walk.peak_allocated);
  // Of every layer the backward pass holds two buffers of keys, values and their gradients (8192 tokens of 2 x 1024).
  const std::int64_t of_layer = 2 * 2 * 2 * 8192 * 2 * 1024;
  CHECK(ahead.walk.peak_reserved.value - behind.walk.peak_reserved.value > of_layer);
  CHECK(ahead.walk.peak_reserved.value - behind.walk.peak_reserved.value < 2 * 8 * of_layer);
}

TEST_CASE("beside expert-parallel overlap a host is ahead by what it launches between two counts of tokens") {
  auto overlapped = run(8, 4096, 8);
  for (const char* one : {"fp8=none", "fp8_recipe=delayed", "tensor_model_parallel_size=1", "sequence_parallel=false",
                          "num_moe_experts=8", "moe_router_topk=2", "moe_token_dispatcher_type=alltoall",
                          "expert_model_parallel_size=2", "overlap_moe_expert_parallel_comm=true"})
    scenario::set(overlapped, one);
  const auto profiles = predict::profiles_of(overlapped);
  const auto ahead = [&](double factor) {
    overlapped.cluster.host_time_factor = factor;
    return predict::stages_of(overlapped, profiles).ranks.at(0).launches_ahead;
  };
  CHECK(ahead(1) > ahead(4));
  CHECK(ahead(4) > 1);
  CHECK(ahead(1) < model::launch_queue_depth / 2);
  // So it is of stages that read no loss.
  for (const char* one : {"num_gpus=4", "gpus_per_node=4", "pp=2", "vpp=2", "overlap_p2p_comm=true"})
    scenario::set(overlapped, one);
  CHECK(ahead(1) > ahead(4));
}

TEST_CASE("only data that comes with scales of its own is gathered by one coalesced call") {
  for (const char* other :
       {"fp8_recipe=tensorwise", "fp8_recipe=delayed", "fp8=none", "sequence_parallel=false", "tp_comm_overlap=true"}) {
    CAPTURE(other);
    auto s = run(4, 4096, 4);
    scenario::set(s, other);
    if (std::string(other) == "fp8=none") scenario::set(s, "fp8_recipe=delayed");
    CHECK(held(s) == 0);
  }
  auto alone = run(4, 4096, 4);
  for (const char* one : {"tensor_model_parallel_size=1", "sequence_parallel=false", "num_gpus=1"})
    scenario::set(alone, one);
  CHECK(held(alone) == 0);
  CHECK(held(run(4, 4096, 4)) > 0);
}

}  // namespace kept_gathers_test
