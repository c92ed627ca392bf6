// Dropless experts: how uneven the routing may be until a rank runs out of memory.
#include <algorithm>
#include <cmath>

#include "pipewright/predict.hpp"

namespace pipewright::predict {
namespace {

constexpr double imbalance_step = 0.1;  ///< of the answer

bool fits_with_imbalance(const Prediction& same, scenario::Scenario scenario, const profile::Profiles& profiles,
                         double imbalance) {
  scenario.settings.moe_load_imbalance = imbalance;
  return predict_memory(scenario, profiles, same).fits;
}

}  // namespace

std::optional<Imbalance> find_imbalance(const Prediction& prediction, const scenario::Scenario& scenario,
                                        const profile::Profiles& profiles) {
  const auto& settings = scenario.settings;
  if (!scenario.model.num_moe_experts || settings.expert_model_parallel_size == 1 || !prediction.fits) return {};
  if (settings.moe_expert_capacity_factor.value_or(-1) >= 0) return {};
  // The busiest rank cannot get more than all that its group sends.
  const auto most = static_cast<double>(settings.expert_model_parallel_size);
  const double stated = settings.moe_load_imbalance;
  if (most <= stated) return {};
  if (fits_with_imbalance(prediction, scenario, profiles, most)) return Imbalance{most, true};
  double works = stated, fails = most;
  while (fails - works > imbalance_step) {
    const double middle = (works + fails) / 2;
    (fits_with_imbalance(prediction, scenario, profiles, middle) ? works : fails) = middle;
  }
  return Imbalance{std::floor(works / imbalance_step) * imbalance_step, false};
}

}  // namespace pipewright::predict
