// Aims: the allocator under 100 ns an event; walk and allocator replay of all ranks of a PP 16 x VPP 8 x 128 microbatch
// job with one layer a chunk (about two million allocations) under a second.
#include <benchmark/benchmark.h>

#include "../on_h200.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/scenario/io.hpp"

using namespace pipewright;

namespace {

scenario::Scenario large() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 128, hidden_size: 8192, ffn_hidden_size: 28672, num_attention_heads: 64, num_query_groups: 8,
  seq_length: 4096, vocab_size: 128256, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope}
settings: {tensor_model_parallel_size: 8, sequence_parallel: true, pipeline_model_parallel_size: 16,
  virtual_pipeline_model_parallel_size: 8, overlap_p2p_comm: true, batch_p2p_comm: false, micro_batch_size: 1,
  global_batch_size: 128, bf16: true, use_distributed_optimizer: true, gradient_accumulation_fusion: true,
  hidden_dropout: 0.0, apply_rope_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 128, gpus_per_node: 8}
)",
                         "large.yaml");
}

void walk_all_ranks(benchmark::State& state) {
  const auto scenario = large();
  const auto stages = test::build(scenario);
  const auto program = schedule::build(schedule::config_of(scenario));
  std::int64_t events = 0;
  for (auto _ : state) {
    for (int rank = 0; rank < 16; ++rank) events += memory::walk(stages, program, scenario, rank).events;
  }
  state.SetItemsProcessed(events);
}
BENCHMARK(walk_all_ranks)->Unit(benchmark::kMillisecond);

void allocator_events(benchmark::State& state) {
  const auto scenario = large();
  std::vector<memory::Event> events;
  memory::walk(test::build(scenario), schedule::build(schedule::config_of(scenario)), scenario, 0, {},
               [&](const memory::Event& event) { events.push_back(event); });
  std::uint32_t blocks = 0;
  for (const auto& event : events) blocks = std::max(blocks, event.block + 1);
  std::vector<std::uint32_t> handles(blocks);
  for (auto _ : state) {
    memory::Allocator allocator;
    for (const auto& event : events) {
      if (event.kind == memory::Event::Kind::allocate) handles[event.block] = *allocator.allocate(event.bytes.value);
      if (event.kind == memory::Event::Kind::free) allocator.free(handles[event.block]);
    }
    benchmark::DoNotOptimize(allocator.peak_reserved());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(events.size()));
}
BENCHMARK(allocator_events)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
