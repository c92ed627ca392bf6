// How near each rank comes to running out of memory: does it fit, would expandable segments save it, how much device
// memory does it need at least, how likely is it that it fits, and what stands in the way.
//
// What a rank needs is reserved memory and what lies outside the allocator. Where that is more than the device has, the
// allocator gives cached segments back and tries again: then the least memory with which the step still runs is found
// by bisection over replays. The probability is that of a normal error, from two scalars of the profile:
// memory.error.reserved (relative to reserved memory) and memory.error.outside_bytes.
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>

#include "device.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::predict {
namespace {

constexpr Bytes resolution{16 << 20};  ///< of the bisection

class Examiner {
 public:
  Examiner(const Prediction& prediction, const scenario::Scenario& scenario, const profile::Profiles& profiles,
           const Run& run)
      : prediction_(prediction), scenario_(scenario), profiles_(profiles), run_(run), expandable_(scenario) {
    auto& conf = expandable_.environment["PYTORCH_CUDA_ALLOC_CONF"];
    conf += conf.empty() ? "expandable_segments:True" : ",expandable_segments:True";
  }

  Pressure examine(const RankPrediction& rank) const {
    const Bytes device = prediction_.memory_limit - rank.outside_allocator;
    const Bytes allowed = device - prediction_.memory_margin;
    Pressure result;
    auto both = memory::fragmentation(run_.stages, run_.program, scenario_, rank.pp_rank, device);
    result.as_configured = std::move(both.as_configured);
    result.expandable = std::move(both.expandable);
    const bool tight = rank.walk.retried || rank.walk.failure.has_value();
    result.needed = (tight ? std::max(least(rank, device), rank.walk.peak_allocated) : rank.walk.peak_reserved) +
                    rank.outside_allocator;
    result.verdict = Pressure::Verdict::fits;
    if (rank.walk.failure) {
      result.verdict =
          runs(expandable_, rank, allowed) ? Pressure::Verdict::fits_expandable : Pressure::Verdict::does_not_fit;
      // The margin is only kept free: the program itself runs out without it.
      result.failure = memory::walk(run_.stages, run_.program, scenario_, rank.pp_rank, device).failure;
      if (result.failure) {
        result.message = memory::out_of_memory_message(*result.failure, prediction_.memory_limit,
                                                       rank.outside_allocator, local_gpu(rank.pp_rank));
      }
    }
    result.probability =
        probability_to_fit(result.needed - rank.outside_allocator, prediction_.memory_limit - result.needed, profiles_);
    return result;
  }

 private:
  bool runs(const scenario::Scenario& scenario, const RankPrediction& rank, Bytes device) const {
    return memory::runs_within(run_.stages, run_.program, scenario, rank.pp_rank, device);
  }

  Bytes least(const RankPrediction& rank, Bytes device) const {
    const Bytes enough = rank.walk.failure ? rank.walk.peak_reserved : device;  // without a limit; retried
    return memory::least_to_run(run_.stages, run_.program, scenario_, rank.pp_rank, rank.walk.peak_allocated - Bytes(1),
                                enough, resolution);
  }

  /// The first GPU of a pipeline rank on its host.
  int local_gpu(int pp_rank) const {
    const auto gpus = scenario_.cluster.num_gpus;
    const auto first = pp_rank * (gpus / scenario_.settings.pipeline_model_parallel_size);
    return static_cast<int>(first % scenario_.cluster.gpus_per_node);
  }

  const Prediction& prediction_;
  const scenario::Scenario& scenario_;
  const profile::Profiles& profiles_;
  const Run& run_;
  scenario::Scenario expandable_;
};

}  // namespace

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

void find_pressure(Prediction& prediction, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                   const Run& run, std::optional<int> only_rank) {
  const auto device = with_device(scenario, profiles);
  const Examiner examiner(prediction, device, profiles, run);
  tbb::parallel_for(std::size_t{0}, prediction.ranks.size(), [&](std::size_t r) {
    auto& rank = prediction.ranks[r];
    if (!only_rank || rank.pp_rank == *only_rank) rank.pressure = examiner.examine(rank);
  });
}

}  // namespace pipewright::predict
