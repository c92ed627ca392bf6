// What another way of packing would change.
#include <algorithm>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"

namespace pipewright::predict {

std::optional<PackingGain> find_packing(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  const auto packed = scenario::packing(scenario);
  if (!packed) return {};
  const auto step = [&](const scenario::Scenario& s) {
    return static_cast<double>(std::max<std::int64_t>(1, estimate(s, profiles).step_ns));
  };
  const double given = step(scenario);
  PackingGain gain;
  scenario::Scenario other = scenario;
  other.settings.pack_order = "balanced";
  if (scenario::data_parallel_size(scenario) > 1) gain.balanced = step(other) / given - 1;
  other.settings.packing_algorithm = "none";
  const auto padded = scenario::packing(other);
  gain.padded = static_cast<double>(padded->rows) / static_cast<double>(packed->rows) * step(other) / given;
  return gain;
}

}  // namespace pipewright::predict
