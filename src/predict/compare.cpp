// How sure the order of two candidates is. With the chunk-level engine T(scale of every family) is cheap, so
//
//   d T / d error(f) = (T(f slower by 1 %) - T) / 1 %
//   difference D = T2 - T1;  sigma_D^2 = sum over families ((dT2/df - dT1/df) x spread(f))^2
//   error(f) that turns the order: D / (dT1/df - dT2/df)
//
// Spread between machines and days moves both alike and plays no part.
#include <map>
#include <set>

#include "pipewright/predict.hpp"

namespace pipewright::predict {
namespace {

/// A scenario whose kernel times can be scaled by family.
class Scaled {
 public:
  Scaled(const scenario::Scenario& scenario, const profile::Profiles& profiles)
      : scenario_(scenario),
        profiles_(profiles),
        stages_(model::build(scenario, profiles.device())),
        config_(schedule::config_of(scenario)),
        prices_(timeline::price(scenario, stages_, profiles)) {
    each(prices_, [&](const model::Kernel& kernel, timeline::Price& price) {
      if (!kernel.key.family.empty())
        spreads_[kernel.key.family] = std::max(spreads_[kernel.key.family], price.time.spread);
    });
  }

  const std::map<std::string, double>& spreads() const { return spreads_; }

  std::optional<double> step(const std::string& family = {}, double factor = 1) const {
    timeline::Prices prices = prices_;
    if (!family.empty())
      each(prices, [&](const model::Kernel& kernel, timeline::Price& price) {
        if (kernel.key.family == family) price.time.ns *= factor;
      });
    const auto estimate = timeline::estimate(scenario_, stages_, config_, profiles_, prices);
    if (!estimate) return std::nullopt;
    return static_cast<double>(estimate->forward_backward + estimate->optimizer);
  }

 private:
  template <typename Function>
  void each(timeline::Prices& prices, const Function& function) const {
    const auto list = [&](const std::vector<model::Kernel>& kernels, timeline::Prices::List& of) {
      for (std::size_t k = 0; k < kernels.size(); ++k) function(kernels[k], of[k]);
    };
    for (std::size_t i = 0; i < stages_.pieces.size(); ++i) list(stages_.pieces[i].kernels, prices.pieces[i]);
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      const auto& rank = stages_.ranks[r];
      for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
        list(rank.chunks[c].gradient_sync, prices.gradient_sync[r][c]);
        list(rank.chunks[c].parameter_gather, prices.parameter_gather[r][c]);
      }
      list(rank.finalize, prices.finalize[r]);
      list(rank.optimizer, prices.optimizer[r]);
    }
  }

  const scenario::Scenario& scenario_;
  const profile::Profiles& profiles_;
  model::Stages stages_;
  schedule::Config config_;
  timeline::Prices prices_;
  std::map<std::string, double> spreads_;
};

}  // namespace

Comparison compare(const scenario::Scenario& first, const scenario::Scenario& second,
                   const profile::Profiles& profiles) {
  const Scaled a(first, profiles), b(second, profiles);
  const auto step_a = a.step(), step_b = b.step();
  Comparison result;
  if (!step_a || !step_b) return result;
  result.difference_ns = *step_b - *step_a;
  std::map<std::string, double> spreads = a.spreads();
  for (const auto& [family, spread] : b.spreads()) spreads[family] = std::max(spreads[family], spread);
  constexpr double little = 0.01;
  double variance = 0, least = INFINITY;
  for (const auto& [family, spread] : spreads) {
    const double of_a = (*a.step(family, 1 + little) - *step_a) / little;
    const double of_b = (*b.step(family, 1 + little) - *step_b) / little;
    variance += (of_b - of_a) * (of_b - of_a) * spread * spread;
    if (of_a == of_b) continue;
    const double turn = result.difference_ns / (of_a - of_b);
    // Times cannot be off by all of themselves; a family of no weight would have to be.
    if (std::abs(turn) < std::min(least, 1.0)) {
      least = std::abs(turn);
      result.family = family;
      result.error_to_turn = turn;
      result.family_spread = spread;
    }
  }
  result.spread_ns = std::sqrt(variance);
  return result;
}

}  // namespace pipewright::predict
