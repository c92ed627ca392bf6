// One configuration of Llama 3.1 405B at PP 16 x VPP 8 by the chunk-level engine: model, prices and schedule once, then
// the step with clocks and contention in three rounds. A configuration is a full scenario, every rank and chunk of it.
#include <benchmark/benchmark.h>

#include "pipewright/predict.hpp"

namespace {

using namespace pipewright;

scenario::Scenario large() {
  auto s = scenario::read(SOURCE_ROOT "/scenarios/llama31-405b-pretrain-1024xh100.yaml");
  for (const char* change : {"pipeline_model_parallel_size=16", "context_parallel_size=1"}) scenario::set(s, change);
  return s;
}

void whole_estimate(benchmark::State& state) {
  const auto s = large();
  const auto profiles = predict::profiles_of(s, {SOURCE_ROOT "/profiles/h100-sxm.json"});
  for (auto _ : state) benchmark::DoNotOptimize(predict::estimate(s, profiles));
}

void step_only(benchmark::State& state) {
  const auto s = large();
  const auto profiles = predict::profiles_of(s, {SOURCE_ROOT "/profiles/h100-sxm.json"});
  const auto stages = model::build(s);
  const auto config = schedule::config_of(s);
  const auto prices = timeline::price(stages, profiles);
  std::int64_t operations = 0;
  for (auto _ : state) operations = timeline::estimate(s, stages, config, profiles, prices)->operations;
  state.counters["operations"] = static_cast<double>(operations);
}

}  // namespace

BENCHMARK(whole_estimate)->Unit(benchmark::kMicrosecond);
BENCHMARK(step_only)->Unit(benchmark::kMicrosecond);

BENCHMARK_MAIN();
