// Dropless experts: how uneven the routing may be until a rank runs out of memory.
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "device.hpp"
#include "kept_gathers.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::predict {
namespace {

constexpr double imbalance_step = 0.1;  ///< of the answer
constexpr double certain = 0.9999;      ///< what replays foretell no better: so likely by the error of reserved memory

double answer(double imbalance) { return std::floor(imbalance / imbalance_step) * imbalance_step; }

/// Ranks, those that come nearest to their limit first: one of them decides.
std::vector<std::size_t> tightest_first(const Prediction& prediction) {
  std::vector<std::size_t> order(prediction.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t r) {
    return prediction.ranks[r].walk.peak_reserved + prediction.ranks[r].outside_allocator;
  });
  return order;
}

/// A mixture's memory under one imbalance; which rank does what when is the same under all.
class Uneven {
 public:
  Uneven(const Prediction& same, const Run& run, scenario::Scenario scenario, const profile::Profiles& profiles,
         const schedule::Program& few, double imbalance)
      : same_(same), run_(run), scenario_(std::move(scenario)), profiles_(profiles), few_(few) {
    scenario_.settings.moe_load_imbalance = imbalance;
    stages_ = stages_of(scenario_, profiles_);
  }
  bool fits(std::size_t rank) const {
    const int pp_rank = same_.ranks[rank].pp_rank;
    const Bytes allowed =
        same_.memory_limit - same_.memory_margin - model::outside_allocator(scenario_, profiles_, pp_rank);
    // What is allocated tells most of what does not fit, and of what does.
    const auto scouted = memory::scout(stages_, few_, scenario_, pp_rank);
    const Bytes least = scouted.peak_allocated + scouted.graph_pool;
    if (least > allowed) return false;
    if (likely(same_.ranks[rank].walk, least, allowed) > certain) return true;
    return memory::runs_within(stages_, run_.program, with_device(scenario_, profiles_), pp_rank, allowed);
  }

 private:
  /// That a rank fits, if it reserves as much beyond what it allocates as it does when the routing is as stated.
  double likely(const memory::Walk& stated, Bytes allocated, Bytes allowed) const {
    if (stated.retried) return 0;
    const double share =
        static_cast<double>(stated.most_reserved().value) / static_cast<double>(stated.peak_allocated.value);
    const Bytes reserved(static_cast<std::int64_t>(static_cast<double>(allocated.value) * share));
    return probability_to_fit(reserved, allowed - reserved, profiles_).value_or(0);
  }

  const Prediction& same_;
  const Run& run_;
  scenario::Scenario scenario_;
  const profile::Profiles& profiles_;
  const schedule::Program& few_;
  model::Stages stages_;
};

}  // namespace

std::optional<Imbalance> find_imbalance(const Prediction& prediction, const scenario::Scenario& scenario,
                                        const profile::Profiles& profiles, const Run& run) {
  const auto& settings = scenario.settings;
  if (!scenario.model.num_moe_experts || settings.expert_model_parallel_size == 1 || !prediction.fits) return {};
  if (settings.moe_expert_capacity_factor.value_or(-1) >= 0 || settings.moe_expert_rank_capacity_factor) return {};
  // The busiest rank cannot get more than all that its group sends.
  const auto most = static_cast<double>(settings.expert_model_parallel_size);
  const double stated = settings.moe_load_imbalance;
  if (most <= stated) return {};
  const auto few = schedule::build(timeline::shortened(run.program.config));
  const auto at = [&](double imbalance) { return Uneven(prediction, run, scenario, profiles, few, imbalance); };
  double largest = most;
  const auto narrow = [&](std::size_t rank) {
    double works = stated;
    while (largest - works > imbalance_step) {
      const double middle = (works + largest) / 2;
      if (answer(middle) == answer(stated)) break;  // whether it fits or not: of the step below nothing else is left
      (at(middle).fits(rank) ? works : largest) = middle;
    }
    largest = works;
  };
  const auto order = tightest_first(prediction);
  auto rank = order.begin();
  // The first of those that are left which does not fit.
  const auto next = [&] {
    const Uneven uneven = at(largest);
    std::vector<char> fits(static_cast<std::size_t>(order.end() - rank));
    tbb::parallel_for(std::size_t{0}, fits.size(),
                      [&](std::size_t i) { fits[i] = uneven.fits(*(rank + static_cast<std::ptrdiff_t>(i))); });
    return rank + (std::ranges::find(fits, 0) - fits.begin());
  };
  // Each rank in turn narrows what those before it left; mostly the tightest alone does.
  const auto open = [&] { return largest == most || answer(largest) > answer(stated); };  // what is stated fits
  if (!at(largest).fits(*rank)) narrow(*rank);
  for (++rank; open() && (rank = next()) != order.end(); ++rank) narrow(*rank);
  if (largest == most) return Imbalance{most, true};
  return Imbalance{answer(largest), false};
}

}  // namespace pipewright::predict
