// How sure the order of two candidates is. With the chunk-level engine T(scale of every family) is cheap, so
//
//   d T / d error(f) = (T(f slower by 1 %) - T) / 1 %
//   difference D = T2 - T1;  sigma_D^2 = sum over families ((dT2/df - dT1/df) x spread(f))^2
//   error(f) that turns the order: D / (dT1/df - dT2/df)
//
// Spread between machines and days moves both alike and plays no part.
#include <tbb/parallel_for.h>

#include <map>

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
        config_(schedule::config_of(scenario, true)),
        prices_(timeline::price(scenario, stages_, profiles)) {
    each(prices_, [&](const model::Kernel& kernel, timeline::Price& price) {
      if (!kernel.key.family.empty())
        spreads_[kernel.key.family] = std::max(spreads_[kernel.key.family], price.time.spread);
    });
  }

  const std::map<std::string, double>& spreads() const { return spreads_; }

  /// Time of every family on the rank that has most of it: no step grows by more with it.
  std::map<std::string, double> most() const {
    std::map<std::string, double> result;
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      std::map<std::string, double> here;
      const auto add = [&](const std::vector<model::Kernel>& kernels, const timeline::Prices::List& of, int times) {
        for (std::size_t k = 0; k < kernels.size(); ++k)
          if (!kernels[k].key.family.empty())
            here[kernels[k].key.family] += times * of[k].time.ns / kernels[k].sm_share;
      };
      const auto& rank = stages_.ranks[r];
      for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
        for (const auto piece : rank.chunks[c].pieces)
          add(stages_.pieces[piece].kernels, prices_.pieces[piece], config_.microbatches);
        add(rank.chunks[c].gradient_sync, prices_.gradient_sync[r][c], 1);
        add(rank.chunks[c].parameter_gather, prices_.parameter_gather[r][c], 1);
      }
      add(rank.finalize, prices_.finalize[r], 1);
      add(rank.optimizer, prices_.optimizer[r], 1);
      for (const auto& [family, ns] : here) result[family] = std::max(result[family], ns);
    }
    return result;
  }

  std::optional<double> step(const std::string& family = {}, double factor = 1) const {
    timeline::Prices prices = prices_;
    if (!family.empty())
      each(prices, [&](const model::Kernel& kernel, timeline::Price& price) {
        if (kernel.key.family == family) price.time.ns *= factor;
      });
    // A glance: further rounds still move a little, which is more than a small change of times does.
    const auto estimate = timeline::estimate(scenario_, stages_, config_, profiles_, prices, {}, true);
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

namespace {

/// A step and by how much it grows with each family's times.
struct Slopes {
  std::optional<double> step;
  std::map<std::string, double> spreads, of;

  double slope(const std::string& family) const {
    const auto found = of.find(family);
    return found == of.end() ? 0 : found->second;
  }
};

Slopes slopes(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  const Scaled scaled(scenario, profiles);
  Slopes result{scaled.step(), scaled.spreads(), {}};
  if (!result.step) return result;
  constexpr double little = 0.01;
  constexpr double negligible = 0.001;  // of the step: what is less moves neither order nor spread
  std::vector<std::pair<std::string, double>> families;
  for (const auto& [family, ns] : scaled.most())
    if (ns > negligible * *result.step) families.emplace_back(family, 0);
  tbb::parallel_for(std::size_t{0}, families.size(), [&](std::size_t n) {
    auto& [family, slope] = families[n];
    slope = (*scaled.step(family, 1 + little) - *result.step) / little;
  });
  result.of.insert(families.begin(), families.end());
  return result;
}

Comparison compare(const Slopes& a, const Slopes& b) {
  Comparison result;
  if (!a.step || !b.step) return result;
  result.difference_ns = *b.step - *a.step;
  std::map<std::string, double> spreads = a.spreads;
  for (const auto& [family, spread] : b.spreads) spreads[family] = std::max(spreads[family], spread);
  double variance = 0, least = INFINITY;
  for (const auto& [family, spread] : spreads) {
    const double of_a = a.slope(family), of_b = b.slope(family);
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

}  // namespace

std::vector<Comparison> compare(const scenario::Scenario& first, const std::vector<const scenario::Scenario*>& others,
                                const profile::Profiles& profiles) {
  const Slopes of_first = slopes(first, profiles);
  std::vector<Comparison> results;
  for (const auto* other : others) results.push_back(compare(of_first, slopes(*other, profiles)));
  return results;
}

}  // namespace pipewright::predict
