// How near each rank comes to running out of memory: does it fit, would expandable segments save it, how much device
// memory does it need at least, how likely is it that it fits, and what stands in the way.
//
// What a rank needs is reserved memory and what lies outside the allocator. Where that is more than the device has, the
// allocator gives cached segments back and tries again: then the least memory with which the step still runs is found
// by bisection over replays. The probability is that of a normal error, from two scalars of the profile:
// memory.error.reserved (relative to reserved memory) and memory.error.outside_bytes.
#include "pressure.hpp"

#include <algorithm>
#include <cmath>

namespace pipewright::predict {
namespace {

constexpr Bytes resolution{16 << 20};  ///< of the bisection

class Examiner {
 public:
  Examiner(const Prediction& limits, const scenario::Scenario& scenario, const profile::Profiles& profiles,
           const model::Stages& stages, const schedule::Program& program)
      : limits_(limits), scenario_(scenario), profiles_(profiles), stages_(stages), program_(program) {}

  /// Of a rank that was walked under limit and margin, and why it reserves what it does.
  Pressure examine(const RankPrediction& rank, memory::Fragmentations why) const {
    const Bytes device = limits_.memory_limit - rank.outside_allocator;
    Pressure result;
    result.as_configured = std::move(why.as_configured);
    result.expandable = std::move(why.expandable);
    const bool tight = rank.walk.retried || rank.walk.failure.has_value();
    result.needed = (tight ? std::max(least(rank, device), rank.walk.peak_allocated) : rank.walk.peak_reserved) +
                    rank.outside_allocator;
    result.verdict = Pressure::Verdict::fits;
    if (rank.walk.failure) {
      result.verdict = runs_expandable(rank, device - limits_.memory_margin) ? Pressure::Verdict::fits_expandable
                                                                             : Pressure::Verdict::does_not_fit;
      // The margin is only kept free: the program itself runs out without it.
      result.failure = memory::walk(stages_, program_, scenario_, rank.pp_rank, device).failure;
      if (result.failure) {
        result.message = memory::out_of_memory_message(*result.failure, limits_.memory_limit, rank.outside_allocator,
                                                       local_gpu(rank.pp_rank));
      }
    }
    result.probability =
        probability_to_fit(result.needed - rank.outside_allocator, limits_.memory_limit - result.needed, profiles_);
    return result;
  }

 private:
  bool runs_expandable(const RankPrediction& rank, Bytes device) const {
    scenario::Scenario expandable = scenario_;
    auto& conf = expandable.environment["PYTORCH_CUDA_ALLOC_CONF"];
    conf += conf.empty() ? "expandable_segments:True" : ",expandable_segments:True";
    return memory::runs_within(stages_, program_, expandable, rank.pp_rank, device);
  }

  Bytes least(const RankPrediction& rank, Bytes device) const {
    const Bytes enough = rank.walk.failure ? rank.walk.most_reserved() : device;  // without a limit; retried
    return memory::least_to_run(stages_, program_, scenario_, rank.pp_rank, rank.walk.peak_allocated - Bytes(1), enough,
                                resolution);
  }

  /// The first GPU of a pipeline rank on its host.
  int local_gpu(int pp_rank) const {
    const auto gpus = scenario_.cluster.num_gpus;
    const auto first = pp_rank * (gpus / scenario_.settings.pipeline_model_parallel_size);
    return static_cast<int>(first % scenario_.cluster.gpus_per_node);
  }

  const Prediction& limits_;
  const scenario::Scenario& scenario_;
  const profile::Profiles& profiles_;
  const model::Stages& stages_;
  const schedule::Program& program_;
};

}  // namespace

void fill_memory(RankPrediction& rank, const Prediction& limits, const scenario::Scenario& scenario,
                 const profile::Profiles& profiles, const model::Stages& stages, const schedule::Program& program,
                 bool pressed) {
  rank.outside_allocator = model::outside_allocator(scenario, profiles, rank.pp_rank);
  const Bytes device = limits.memory_limit - rank.outside_allocator, allowed = device - limits.memory_margin;
  if (!pressed) {
    rank.walk = memory::walk(stages, program, scenario, rank.pp_rank, allowed);
  } else {
    auto explained = memory::explain(stages, program, scenario, rank.pp_rank, allowed, device);
    rank.walk = std::move(explained.walk);
    rank.pressure = Examiner(limits, scenario, profiles, stages, program).examine(rank, std::move(explained.why));
  }
  rank.fits = !rank.walk.failure;
}

std::optional<double> probability_to_fit(Bytes reserved, Bytes spare, const profile::Profiles& profiles) {
  const auto relative = profiles.find_scalar("memory.error.reserved");
  const auto outside = profiles.find_scalar("memory.error.outside_bytes");
  if (!relative || !outside) return std::nullopt;
  const double sigma = std::hypot(*relative * static_cast<double>(reserved.value), *outside);
  return 0.5 * std::erfc(-static_cast<double>(spare.value) / sigma / std::sqrt(2.0));
}

std::optional<double> probability_to_fit(const Prediction& prediction, const profile::Profiles& profiles) {
  std::optional<double> least;
  for (const auto& rank : prediction.ranks) {
    const auto spare = prediction.memory_limit - rank.walk.peak_reserved - rank.outside_allocator;
    const auto likely = probability_to_fit(rank.walk.peak_reserved, spare, profiles);
    if (likely) least = std::min(least.value_or(1), *likely);
  }
  return least;
}

}  // namespace pipewright::predict
