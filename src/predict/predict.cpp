// One way through the house: scenario, model, schedule, timeline, memory.
#include "pipewright/predict.hpp"

#include <algorithm>
#include <cmath>

#include "interval.hpp"

namespace pipewright::predict {
namespace {

// Allocated bytes of one configuration differ by up to 0.2 % between runs (repeated runs on H200, PyTorch 2.11), and a
// run that touches the limit pays for retries; 1 % of the device is kept free unless the scenario says otherwise.
constexpr double default_margin_percent = 1.0;

Bytes margin_of(const scenario::Scenario& scenario, Bytes limit) {
  const auto percent = [&](double value) {
    return Bytes(static_cast<std::int64_t>(static_cast<double>(limit.value) * value / 100.0));
  };
  if (!scenario.search.memory_margin) return percent(default_margin_percent);
  return scenario.search.memory_margin->bytes + percent(scenario.search.memory_margin->percent);
}

Bytes limit_of(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  if (scenario.search.memory_limit) return *scenario.search.memory_limit;
  return scenario.cluster.memory_bytes.value_or(profiles.first().memory);
}

RankPrediction rank_prediction(const scenario::Scenario& scenario, const profile::Profiles& profiles, const Run& run,
                               int rank) {
  RankPrediction result;
  result.pp_rank = rank;
  result.account = run.timeline.ranks[rank];
  const memory::Walk walk = memory::walk(run.stages, run.program, scenario, rank);
  result.static_bytes = walk.static_bytes;
  result.peak_allocated = walk.peak_allocated;
  result.peak_reserved = walk.peak_reserved;
  result.outside_allocator = model::outside_allocator(scenario, profiles);
  result.peak_at = walk.peak_at;
  for (const auto& owner : walk.peak_owners) result.peak_owners.push_back({owner.owner, owner.bytes});
  return result;
}

}  // namespace

profile::Profiles profiles_of(const scenario::Scenario& scenario, const std::vector<std::string>& overrides) {
  std::vector<profile::Profile> list;
  for (const std::string& name : overrides) list.push_back(profile::load(name, {"--profile", 0}));
  if (list.empty()) list.push_back(profile::load(scenario.cluster.profile, scenario.origin));
  for (const auto& [name, value] : scenario.cluster.overrides)
    list.front().scalars[name] = {value, 0, profile::Origin::derived, "cluster.overrides of the scenario"};
  return profile::Profiles(std::move(list));
}

Prediction predict(const scenario::Scenario& scenario, const profile::Profiles& profiles, Run* run_out) {
  scenario::check(scenario);
  Run run;
  run.stages = model::build(scenario);
  run.program = schedule::build(schedule::config_of(scenario));
  run.timeline = timeline::simulate(scenario, run.stages, run.program, profiles);

  Prediction result;
  result.scenario = scenario.name;
  result.profile = profiles.first().name;
  result.megatron_core = scenario.software.megatron_core;
  result.forward_backward_ns = run.timeline.forward_backward;
  result.optimizer_ns = run.timeline.optimizer;
  result.step_ns = result.forward_backward_ns + result.optimizer_ns;
  result.last_rank = run.timeline.last_rank;
  result.boundaries = run.timeline.boundaries;
  result.critical_path = run.timeline.critical_path;
  const double seconds = static_cast<double>(result.step_ns) / 1e9;
  const auto gpus = static_cast<double>(scenario.cluster.num_gpus);
  result.tflops_per_gpu = model::step_flop(scenario) / gpus / seconds / 1e12;
  const auto tokens = static_cast<double>(scenario.settings.global_batch_size * scenario.model.seq_length);
  result.tokens_per_s_per_gpu = tokens / gpus / seconds;

  result.memory_limit = limit_of(scenario, profiles);
  result.memory_margin = margin_of(scenario, result.memory_limit);
  for (int rank = 0; rank < run.timeline.graph.ranks; ++rank) {
    RankPrediction one = rank_prediction(scenario, profiles, run, rank);
    one.fits = one.peak_reserved + one.outside_allocator + result.memory_margin <= result.memory_limit;
    result.fits = result.fits && one.fits;
    result.ranks.push_back(std::move(one));
  }
  result.notes = run.stages.notes;
  judge(result, run, profiles);
  if (run_out) *run_out = std::move(run);
  return result;
}

}  // namespace pipewright::predict
