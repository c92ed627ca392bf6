// Building the largest schedule that the design names: 131072 chunk operations, forward and backward.
#include <benchmark/benchmark.h>

#include "pipewright/schedule.hpp"

namespace {

using namespace pipewright::schedule;

Config interleaved(int stages, int chunks, int microbatches) {
  Config config;
  config.stages = stages;
  config.chunks = chunks;
  config.microbatches = microbatches;
  config.overlap_p2p = true;
  config.batched = false;
  return config;
}

void build_program(benchmark::State& state, Config config) {
  std::size_t instructions = 0;
  for (auto _ : state) {
    const Program program = build(config);
    instructions = 0;
    for (const RankProgram& rank : program.ranks) instructions += rank.instructions.size();
    benchmark::DoNotOptimize(instructions);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(instructions));
  state.counters["instructions"] = static_cast<double>(instructions);
}

Config detailed() {
  Config config = interleaved(16, 8, 64);
  config.ep_overlap = true;
  config.layers.assign(16, std::vector<std::vector<Layer>>(8, std::vector<Layer>(2)));
  return config;
}

}  // namespace

BENCHMARK_CAPTURE(build_program, p16_v8_m512, interleaved(16, 8, 512))->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build_program, p4_v2_m8, interleaved(4, 2, 8))->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(build_program, p16_v8_m64_nodes, detailed())->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
