// The exact engine on a large step: 16 stages x 8 chunks x 512 microbatches, about 10 million operations. `ns_per_op`
// is the time of building the graph and running it once, over the number of its nodes; `peak_rss_mib` the process's.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "../timeline/fixture.hpp"

using namespace pipewright;
using namespace pipewright::timeline;

namespace {

struct Large {
  timeline::test::Napkin napkin;
  model::Stages stages;
  scenario::Scenario scenario;
  profile::Profiles profiles{{}};
  schedule::Program program;
  Prices prices;

  explicit Large(int microbatches) {
    constexpr int kernels = 72;  // of a chunk's forward, as many backward
    napkin.stages = 16;
    napkin.chunks = 8;
    napkin.microbatches = microbatches;
    napkin.overlap = true;
    napkin.forward_us = napkin.backward_us = 100;
    napkin.transfer_us = 120;
    napkin.host_us = 5;
    napkin.connections = "8";
    stages = napkin.model();
    model::Piece& piece = stages.pieces[0];
    piece.forward.assign(kernels, piece.forward[0]);
    piece.backward.assign(kernels, piece.backward[0]);
    scenario = napkin.scenario();
    profiles = napkin.profiles();
    program = napkin.program();
    prices = price(scenario, stages, profiles);
  }
};

void report(benchmark::State& state, std::size_t nodes) {
  const auto ops = static_cast<double>(nodes) * static_cast<double>(state.iterations());
  state.counters["operations"] = static_cast<double>(nodes);
  state.counters["ns_per_op"] =
      benchmark::Counter(ops / 1e9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_rss_mib"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

void run_only(benchmark::State& state) {
  const Large large(static_cast<int>(state.range(0)));
  const Graph graph = build(large.scenario, large.stages, large.program, large.profiles, large.prices);
  Times times;
  for (auto _ : state) {
    run(graph, times);
    benchmark::DoNotOptimize(times.end.data());
  }
  report(state, graph.size());
}

void build_and_run(benchmark::State& state) {
  const Large large(static_cast<int>(state.range(0)));
  std::size_t nodes = 0;
  for (auto _ : state) {
    const Graph graph = build(large.scenario, large.stages, large.program, large.profiles, large.prices);
    Times times;
    run(graph, times);
    nodes = graph.size();
    benchmark::DoNotOptimize(times.end.data());
  }
  report(state, nodes);
}

/// With clocks and contention settled, and every nanosecond accounted for.
void simulate_all(benchmark::State& state) {
  const Large large(static_cast<int>(state.range(0)));
  std::size_t nodes = 0;
  for (auto _ : state) {
    const Result result = simulate(large.scenario, large.stages, large.program, large.profiles);
    nodes = result.graph.size();
    benchmark::DoNotOptimize(result.forward_backward);
  }
  report(state, nodes);
}

BENCHMARK(run_only)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK(build_and_run)->Arg(64)->Arg(512)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(simulate_all)->Arg(64)->Arg(512)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
