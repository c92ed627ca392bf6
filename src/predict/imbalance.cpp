// Dropless experts: how uneven the routing may be until a rank runs out of memory.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "rank_fits.hpp"

namespace pipewright::predict {
namespace {

constexpr double imbalance_step = 0.1;  ///< of the answer

/// Ranks, those that come nearest to their limit first: one of them decides.
std::vector<std::size_t> tightest_first(const Prediction& prediction) {
  std::vector<std::size_t> order(prediction.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t r) {
    return prediction.ranks[r].walk.peak_reserved + prediction.ranks[r].outside_allocator;
  });
  return order;
}

}  // namespace

std::optional<Imbalance> find_imbalance(const Prediction& prediction, const scenario::Scenario& scenario,
                                        const profile::Profiles& profiles) {
  const auto& settings = scenario.settings;
  if (!scenario.model.num_moe_experts || settings.expert_model_parallel_size == 1 || !prediction.fits) return {};
  if (settings.moe_expert_capacity_factor.value_or(-1) >= 0 || settings.moe_expert_rank_capacity_factor) return {};
  // The busiest rank cannot get more than all that its group sends.
  const auto most = static_cast<double>(settings.expert_model_parallel_size);
  const double stated = settings.moe_load_imbalance;
  if (most <= stated) return {};
  const auto fits = [&](std::size_t rank, double imbalance) {
    auto uneven = scenario;
    uneven.settings.moe_load_imbalance = imbalance;
    return rank_fits(prediction, rank, uneven, profiles);
  };
  // Each rank in turn narrows what those before it left.
  double largest = most;
  for (const auto rank : tightest_first(prediction)) {
    if (fits(rank, largest)) continue;
    double works = stated, fails = largest;
    while (fails - works > imbalance_step) {
      const double middle = (works + fails) / 2;
      (fits(rank, middle) ? works : fails) = middle;
    }
    largest = works;
  }
  if (largest == most) return Imbalance{most, true};
  return Imbalance{std::floor(largest / imbalance_step) * imbalance_step, false};
}

}  // namespace pipewright::predict
