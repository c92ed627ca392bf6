// What a search costs. One configuration of Llama 3.1 405B at PP 16 x VPP 8: its floor (time and memory, no schedule),
// its estimate by the chunk-level engine with clocks and contention in three rounds. And a whole search from a model
// alone, with candidates decided a second.
#include <benchmark/benchmark.h>

#include "../on_h200.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/io.hpp"

namespace {

using namespace pipewright;

scenario::Scenario large() {
  auto s = scenario::read(SOURCE_ROOT "/scenarios/llama31-405b-pretrain-1024xh100.yaml");
  for (const char* change : {"pipeline_model_parallel_size=16", "context_parallel_size=1"}) scenario::set(s, change);
  return s;
}

profile::Profiles profiles_for(const scenario::Scenario& s) {
  return predict::profiles_of(s, {SOURCE_ROOT "/profiles/h100-sxm.json"});
}

void floor_of_one(benchmark::State& state) {
  const auto s = large();
  const auto profiles = profiles_for(s);
  for (auto _ : state) benchmark::DoNotOptimize(predict::floor(s, profiles));
}

void whole_estimate(benchmark::State& state) {
  const auto s = large();
  const auto profiles = profiles_for(s);
  for (auto _ : state) benchmark::DoNotOptimize(predict::estimate(s, profiles));
}

void step_only(benchmark::State& state) {
  const auto s = large();
  const auto profiles = profiles_for(s);
  const auto stages = test::build(s);
  const auto config = schedule::config_of(s);
  const auto prices = timeline::price(s, stages, profiles);
  std::int64_t operations = 0;
  for (auto _ : state) operations = timeline::estimate(s, stages, config, profiles, prices)->operations;
  state.counters["operations"] = static_cast<double>(operations);
}

/// Parallelism, layout, interleaving, microbatch, recompute and allocator of a recipe left open.
void search(benchmark::State& state, const char* file) {
  auto s = scenario::read(std::string(SOURCE_ROOT "/scenarios/") + file);
  for (const char* key : {"parallelism", "layout", "pipeline", "microbatch", "recompute", "allocator", "wgrad_delay"})
    scenario::set(s, std::string("search.") + key + "=auto");
  const auto profiles = profiles_for(s);
  plan::Options o;
  o.predict = [&](const scenario::Scenario& one) { return predict::predict(one, profiles); };
  o.floor = [&](const scenario::Scenario& one) { return predict::floor(one, profiles); };
  o.estimate = [&](const scenario::Scenario& one) { return predict::estimate(one, profiles); };
  o.scout = [&](const scenario::Scenario& one, predict::Depth depth, predict::Prediction& into) {
    predict::scout_memory(one, profiles, depth, into);
  };
  o.repredict_reserved = [&](const scenario::Scenario& one, const predict::Prediction& same) {
    return predict::predict_memory(one, profiles, same);
  };
  plan::Searched searched;
  for (auto _ : state) searched = plan::search(s, o).searched;
  state.counters["candidates"] = static_cast<double>(searched.candidates);
  state.counters["simulated"] = static_cast<double>(searched.simulated);
  state.counters["decided"] =
      benchmark::Counter(static_cast<double>(searched.candidates), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

BENCHMARK(floor_of_one)->Unit(benchmark::kMicrosecond);
BENCHMARK(whole_estimate)->Unit(benchmark::kMicrosecond);
BENCHMARK(step_only)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(search, llama3_8b, "llama3-8b-pretrain-8xh100.yaml")->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK_CAPTURE(search, llama31_405b, "llama31-405b-pretrain-1024xh100.yaml")
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

BENCHMARK_MAIN();
