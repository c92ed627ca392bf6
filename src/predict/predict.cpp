// One way through the house: scenario, model, schedule, timeline, memory.
#include "pipewright/predict.hpp"

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/parallel_invoke.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "device.hpp"
#include "interval.hpp"
#include "kept_gathers.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/reading.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "pressure.hpp"
#include "quick_look.hpp"

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

std::optional<Bytes> memory_of_gpu(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  if (scenario.cluster.memory_bytes) return *scenario.cluster.memory_bytes;
  for (const auto& profile : profiles.all()) {
    if (profile.memory.value > 0) return profile.memory;  // a run's own profile may not know its part's
  }
  return {};
}

Bytes limit_of(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  if (scenario.search.memory_limit) return *scenario.search.memory_limit;
  if (const auto memory = memory_of_gpu(scenario, profiles)) return *memory;
  throw UsageError({profiles.first().name, 0}, "memory_bytes",
                   "no profile knows the part's memory: set cluster.memory_bytes");
}

void set_throughput(Prediction& result, const scenario::Scenario& scenario) {
  result.step_ns = result.forward_backward_ns + result.optimizer_ns;
  const double seconds = static_cast<double>(result.step_ns) / 1e9;
  const auto gpus = static_cast<double>(scenario.cluster.num_gpus);
  result.tflops_per_gpu = model::step_flop(scenario) / gpus / seconds / 1e12;
  const auto tokens = static_cast<double>(scenario.settings.global_batch_size * scenario.model.seq_length);
  result.tokens_per_s_per_gpu = tokens / gpus / seconds;
}

/// Dense bf16 TFLOP/s of a part, NVIDIA's data sheets (without sparsity); none: unknown.
std::optional<double> peak_tflops(const profile::Profiles& profiles) {
  for (const auto& profile : profiles.all())
    if (const auto* sheet = profile::find_data_sheet(profile.device.name)) return sheet->bf16_tflops.value;
  return {};
}

// A rank by a quick look: reserved memory is at least what is allocated. False: it certainly does not fit.
bool add_scouted(Prediction& result, int pp_rank, const memory::Scout& scouted, Bytes outside) {
  RankPrediction& rank = result.ranks.emplace_back();
  rank.pp_rank = pp_rank;
  rank.walk.static_bytes = scouted.static_bytes;
  rank.walk.peak_allocated = std::max(scouted.peak_allocated, scouted.state_bytes);
  rank.walk.graph_pool = scouted.graph_pool;
  rank.walk.peak_reserved = rank.walk.peak_allocated + rank.walk.graph_pool;
  rank.outside_allocator = outside;
  rank.fits = rank.walk.peak_reserved + outside + result.memory_margin <= result.memory_limit;
  return rank.fits;
}

// Peak, reserved and outside memory of every rank, and whether they fit.
void fill_memory(Prediction& result, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                 const model::Stages& stages, const schedule::Program& program, const Ranks& pressed = {}) {
  set_limits(result, scenario, profiles);
  tbb::parallel_for(std::size_t{0}, result.ranks.size(), [&](std::size_t r) {
    RankPrediction& rank = result.ranks[r];
    fill_memory(rank, result, scenario, profiles, stages, program, pressed && pressed(rank.pp_rank));
  });
  for (const RankPrediction& rank : result.ranks) {
    result.fits = result.fits && rank.fits;
    const std::string who = "rank " + std::to_string(rank.pp_rank);
    if (rank.walk.retried)
      result.notes.push_back(who +
                             " stays within the limit only because the allocator gives cached blocks back (retries)");
    if (rank.fits) continue;
    const bool whole = scenario.settings.use_megatron_fsdp && rank.walk.built > rank.walk.peak_reserved;
    result.notes.push_back(who + " runs out of memory at " + rank.walk.failure->at +
                           (whole ? "; with init_model_with_meta_device it is made in shards" : ""));
  }
}

// A step is host-bound where its critical path waits longer for hosts than for kernels, transfers and peers together.
void note_host(Prediction& result, const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  if (const double factor = timeline::host_time_factor(scenario, profiles); factor != 1)
    result.notes.push_back(
        fmt::format("hosts take {:.3g} times as long as the reference host (host_time_factor)", factor));
  std::int64_t host = 0, all = 0;
  for (const auto& step : result.critical_path) {
    all += step.ns;
    if (step.why == timeline::Why::host) host += step.ns;
  }
  const auto slowest = std::max_element(result.ranks.begin(), result.ranks.end(),
                                        [](const auto& a, const auto& b) { return a.account.host < b.account.host; });
  const auto percent = [&](std::int64_t ns) {
    return std::to_string(std::llround(100.0 * static_cast<double>(ns) / static_cast<double>(result.step_ns)));
  };
  if (2 * host > all)
    result.notes.push_back("host-bound: launches and synchronising calls are " + percent(host) +
                           " % of the critical path; rank " + std::to_string(slowest->pp_rank) +
                           " waits for its host " + percent(slowest->account.host) + " % of the step");
}

/// Every pass of a microbatch through a layer is simulated kernel by kernel and tensor by tensor, some 0.3 ms each; the
/// largest published runs have a tenth of this limit.
void require_affordable(const scenario::Scenario& scenario) {
  constexpr std::int64_t most = 200'000;
  const std::int64_t layers = scenario.model.num_layers + scenario.model.mtp_num_layers.value_or(0);
  const std::int64_t microbatches = scenario::num_microbatches(scenario);
  if (microbatches <= most / layers) return;
  throw UsageError(scenario::position(scenario, "settings.global_batch_size"), "settings.global_batch_size",
                   "too large to simulate: " + std::to_string(microbatches) + " microbatches of " +
                       std::to_string(layers) + " layers, the limit is " + std::to_string(most) +
                       " passes through a layer; simulate fewer microbatches, every further one adds the same time");
}

// A node's GPUs hold consecutive ranks: those of one pipeline stage before those of the next.
void note_pinned(Prediction& result, const scenario::Scenario& scenario) {
  Bytes most, pageable;
  for (const auto& rank : result.ranks) {
    most = std::max(most, rank.walk.pinned);
    pageable = std::max(pageable, rank.walk.pageable);
  }
  if (most.value == 0) return;
  const auto gpus = std::min(scenario.cluster.gpus_per_node, scenario.cluster.num_gpus);
  const auto of_stage = std::max<std::int64_t>(
      1, scenario.cluster.num_gpus / std::max<std::int64_t>(1, scenario.settings.pipeline_model_parallel_size));
  Bytes node, fullest;
  for (std::int64_t gpu = 0; gpu < scenario.cluster.num_gpus; ++gpu) {
    if (gpu % gpus == 0) node = Bytes();
    node += result
                .ranks[static_cast<std::size_t>(
                    std::min<std::int64_t>(gpu / of_stage, static_cast<std::int64_t>(result.ranks.size()) - 1))]
                .walk.pinned;
    fullest = std::max(fullest, node);
  }
  result.notes.push_back("offload needs " + format_bytes(fullest) + " of pinned host memory on a node of " +
                         std::to_string(gpus) + " GPUs (" + format_bytes(most) + " for the busiest GPU)");
  if (pageable.value == 0) return;
  result.notes.push_back("the optimizer on the host holds " + format_bytes(pageable) +
                         " of pageable memory for the busiest GPU, its gradients in pinned memory beside; " +
                         scenario::variable(scenario, "OMP_NUM_THREADS", "1") +
                         " threads a process (OMP_NUM_THREADS; torchrun's own is 1)");
}

}  // namespace

namespace {

template <class Of>
Bytes most(const Prediction& prediction, const Of& of) {
  Bytes most;
  for (const auto& rank : prediction.ranks) most = std::max(most, of(rank));
  return most;
}

}  // namespace

Bytes Prediction::most_allocated() const {
  return most(*this, [](const auto& rank) { return rank.walk.peak_allocated; });
}

Bytes Prediction::most_reserved() const {
  return most(*this, [](const auto& rank) { return rank.walk.peak_reserved; });
}

Bytes Prediction::most_needed() const {
  return most(*this, [](const auto& rank) { return rank.walk.peak_reserved + rank.outside_allocator; });
}

void set_limits(Prediction& result, const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  result.memory_limit = limit_of(scenario, profiles);
  result.memory_margin = margin_of(scenario, result.memory_limit);
  result.fits = true;
}

profile::Profiles profiles_of(const scenario::Scenario& scenario, const std::vector<std::string>& overrides) {
  std::vector<profile::Profile> list;
  for (const std::string& name : overrides) list.push_back(profile::load(name, {"--profile", 0}));
  if (list.empty()) {
    list.push_back(profile::load(scenario.cluster.profile, scenario.origin));
    for (const std::string& name : scenario.cluster.more_profiles) list.push_back(profile::load(name, scenario.origin));
  }
  for (const auto& [name, value] : scenario.cluster.overrides) {
    std::vector<std::string> known;
    for (const auto& one : list)
      for (const auto& [scalar, unused] : one.scalars) known.push_back(scalar);
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(scenario::position(scenario, "cluster.overrides"), "cluster.overrides." + name,
                       "the profile has no such number (`pipewright profile show` lists them)", {},
                       nearest_name(name, known));
    if (!(value >= 0))
      throw UsageError(scenario::position(scenario, "cluster.overrides"), "cluster.overrides." + name,
                       "must be at least 0");
    list.front().scalars[name] = {value, 0, profile::Origin::derived, "cluster.overrides of the scenario"};
  }
  return profile::Profiles(std::move(list));
}

void name_gpu(scenario::Scenario& scenario, const profile::Device& gpu) {
  if (gpu.known()) scenario.cluster.compute_capability = gpu.compute_capability;
}

Prediction predict(const scenario::Scenario& scenario, const profile::Profiles& profiles, Run* run_out,
                   const Ranks& pressed) {
  scenario::check(scenario);
  require_affordable(scenario);
  scenario::refuse_unmodelled(scenario);
  Run run;
  run.stages = stages_of(scenario, profiles);
  run.program = schedule::build(schedule::config_of(scenario, true));

  // Times and bytes know nothing of each other. Of two errors the first is the one that is told.
  Prediction result, memory;
  for (std::size_t rank = 0; rank < run.program.ranks.size(); ++rank)
    memory.ranks.emplace_back().pp_rank = static_cast<int>(rank);
  std::exception_ptr of_time, of_memory;
  // What fails or is stopped beside this prediction must not leave it half done.
  tbb::task_group_context whole(tbb::task_group_context::isolated);
  tbb::parallel_invoke(
      [&] {
        try {
          run.timeline = timeline::simulate(scenario, run.stages, run.program, profiles);
        } catch (...) {
          of_time = std::current_exception();
        }
      },
      [&] {
        try {
          fill_memory(memory, with_device(scenario, profiles), profiles, run.stages, run.program, pressed);
        } catch (...) {
          of_memory = std::current_exception();
        }
      },
      whole);
  for (const auto& error : {of_time, of_memory})
    if (error) std::rethrow_exception(error);
  result.scenario = scenario.name;
  result.profile = profiles.first().name;
  result.megatron_core = scenario.software.megatron_core;
  result.forward_backward_ns = run.timeline.forward_backward;
  result.optimizer_ns = run.timeline.optimizer;
  set_throughput(result, scenario);
  if (const auto peak = peak_tflops(profiles)) result.mfu = result.tflops_per_gpu / *peak;
  result.last_rank = run.timeline.last_rank;
  result.boundaries = run.timeline.boundaries;
  result.critical_path = run.timeline.critical_path;

  result.ranks = std::move(memory.ranks);
  result.fits = memory.fits;
  result.memory_limit = memory.memory_limit;
  result.memory_margin = memory.memory_margin;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) result.ranks[rank].account = run.timeline.ranks[rank];
  result.notes = run.stages.notes;
  if (!profiles.knows_device())
    result.notes.push_back(
        "no profile says what its GPU is (key `gpu`): multiprocessors, workspaces and FP8 layouts are "
        "taken as those of " +
        profiles.device().name);
  if (const auto has = memory_of_gpu(scenario, profiles); has && result.memory_limit > *has)
    result.notes.push_back("the GPU has " + format_bytes(*has) + ", search.memory_limit is " +
                           format_bytes(result.memory_limit) + ": what fits, fits a GPU that has so much");
  note_host(result, scenario, profiles);
  std::ranges::move(memory.notes, std::back_inserter(result.notes));
  const bool copies =
      std::ranges::any_of(result.ranks, [](const RankPrediction& rank) { return !rank.walk.offloaded.empty(); });
  if (copies && scenario.cluster.num_gpus > 1 && timeline::copy_contention(profiles).empty())
    result.notes.push_back(
        "copies of activation offload run at the speed of one GPU alone: the profile lacks contention.gpus_N.copy_d2h "
        "(capture --links), and GPUs of a host slow each other");
  note_pinned(result, scenario);
  std::ranges::move(scenario::notes_of_values(scenario), std::back_inserter(result.notes));
  judge(result, scenario, run, profiles);
  if (run_out) *run_out = std::move(run);
  return result;
}

void find_levers(Prediction& prediction, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                 const Run& run) {
  std::vector<bool> seen(prediction.ranks.size(), false);
  timeline::slack(run.timeline.graph, run.timeline.times, [&](std::uint32_t node, std::int64_t ns) {
    const timeline::Label& label = run.timeline.graph.labels[node];
    if (label.lane != timeline::Lane::compute || label.kind != timeline::NodeKind::kernel || label.phase != 0) return;
    std::int64_t& least = prediction.ranks[label.rank].slack_ns;
    least = seen[label.rank] ? std::min(least, ns) : ns;
    seen[label.rank] = true;
  });
  prediction.levers = timeline::levers(run.timeline, scenario, run.stages, run.program, profiles);
}

Prediction quick_look(const scenario::Scenario& scenario, const profile::Profiles& profiles,
                      const timeline::Estimate& times) {
  Prediction result;
  result.scenario = scenario.name;
  result.profile = profiles.first().name;
  result.megatron_core = scenario.software.megatron_core;
  result.forward_backward_ns = times.forward_backward;
  result.optimizer_ns = times.optimizer;
  set_throughput(result, scenario);
  return result;
}

Prediction estimate(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  scenario::check(scenario);
  const model::Stages stages = model::build(scenario, profiles.device());
  const auto config = schedule::config_of(scenario, true);
  const auto quick =
      timeline::estimate(scenario, stages, config, profiles, timeline::price(scenario, stages, profiles));
  return quick_look(scenario, profiles, quick ? *quick : timeline::extrapolate(scenario, stages, config, profiles));
}

Prediction glance(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  scenario::check(scenario);
  const model::Stages stages = model::build(scenario, profiles.device());
  const auto quick = timeline::estimate(scenario, stages, schedule::config_of(scenario, true), profiles,
                                        timeline::price(scenario, stages, profiles), {}, true);
  return quick ? quick_look(scenario, profiles, *quick) : Prediction{};
}

Prediction floor(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  scenario::check(scenario);
  const model::Stages stages = model::build(scenario, profiles.device());
  const auto config = schedule::config_of(scenario);
  schedule::check(config);
  if (offload::loses_track(scenario, stages, config)) throw UsageError(offload::chunk_mismatch);
  auto result =
      quick_look(scenario, profiles,
                 timeline::floor(scenario, stages, config, profiles, timeline::price(scenario, stages, profiles)));
  set_limits(result, scenario, profiles);
  const Outside outside(scenario, profiles);
  for (int r = 0; r < static_cast<int>(stages.ranks.size()); ++r) {
    auto least = memory::floor(stages, config, r);
    least.static_bytes = least.state_bytes;
    result.fits = add_scouted(result, r, least, outside.of(r)) && result.fits;
  }
  return result;
}

std::vector<Bytes> state_of(const Prediction& floor) {
  std::vector<Bytes> state;
  for (const auto& rank : floor.ranks) state.push_back(rank.walk.static_bytes);
  return state;
}

bool fits_by_floor(const scenario::Scenario& scenario, const profile::Profiles& profiles,
                   const std::vector<Bytes>& state) {
  scenario::check(scenario);
  const model::Stages pieces = model::build_pieces(scenario, profiles.device());
  const auto config = schedule::config_of(scenario);
  schedule::check(config);
  Prediction result;
  set_limits(result, scenario, profiles);
  const Outside outside(scenario, profiles);
  for (int r = 0; r < static_cast<int>(state.size()); ++r) {
    memory::Scout least = memory::floor(pieces, config, r);
    least.state_bytes = state[static_cast<std::size_t>(r)];
    least.peak_allocated += least.state_bytes;
    if (!add_scouted(result, r, least, outside.of(r))) return false;
  }
  return true;
}

void add_mean_rank(Prediction& result, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                   const model::Stages& stages, const schedule::Config& config) {
  set_limits(result, scenario, profiles);
  const Outside outside(scenario, profiles);
  const auto ranks = static_cast<int>(stages.ranks.size());
  memory::Scout mean;
  Bytes least_outside = outside.of(0);
  for (int r = 0; r < ranks; ++r) {
    mean.state_bytes += memory::floor(stages, config, r).state_bytes;
    least_outside = std::min(least_outside, outside.of(r));
  }
  mean.static_bytes = mean.state_bytes = Bytes(mean.state_bytes.value / ranks);
  result.fits = add_scouted(result, 0, mean, least_outside);
}

Prediction floor_of_any_split(const scenario::Scenario& scenario, const profile::Profiles& profiles, bool any_size) {
  scenario::check(scenario);
  const model::Stages stages = model::build(scenario, profiles.device());
  const auto config = schedule::config_of(scenario);
  auto result = quick_look(scenario, profiles,
                           timeline::floor_of_any_split(scenario, stages, config, profiles,
                                                        timeline::price(scenario, stages, profiles), any_size));
  if (any_size) return result;
  add_mean_rank(result, scenario, profiles, stages, config);
  return result;
}

void scout_memory(const scenario::Scenario& scenario, const profile::Profiles& profiles, Depth depth,
                  Prediction& estimate) {
  const model::Stages stages = stages_of(scenario, profiles);
  const auto program = schedule::build(timeline::shortened(schedule::config_of(scenario, true)));
  set_limits(estimate, scenario, profiles);
  estimate.ranks.clear();
  const Outside outside(scenario, profiles);
  const int last = static_cast<int>(stages.ranks.size()) - 1;
  for (int r = 0; r <= last && estimate.fits; ++r) {
    const bool walks = depth == Depth::ranks || r <= 1 || r == last;
    estimate.fits = add_scouted(estimate, r, memory::scout(stages, program, scenario, r, walks), outside.of(r));
  }
}

Prediction predict_memory(const scenario::Scenario& scenario, const profile::Profiles& profiles, Prediction same) {
  scenario::check(scenario);
  same.scenario = scenario.name;
  const model::Stages stages = stages_of(scenario, profiles);
  same.notes = stages.notes;
  fill_memory(same, with_device(scenario, profiles), profiles, stages,
              schedule::build(schedule::config_of(scenario, true)));
  return same;
}

}  // namespace pipewright::predict
