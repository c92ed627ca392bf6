// Order statistics of a handful of samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pipewright::traces {

/// The value below which `share` of the samples lie, linear between neighbours. 0 for no samples.
inline double quantile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const double at = share * static_cast<double>(samples.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const std::size_t high = std::min(low + 1, samples.size() - 1);
  return samples[low] + (at - static_cast<double>(low)) * (samples[high] - samples[low]);
}

inline double median(std::vector<double> samples) { return quantile(std::move(samples), 0.5); }

/// Of values with weights; nullopt: none.
inline std::optional<double> weighted_median(std::vector<std::pair<double, double>> values) {
  double total = 0, below = 0;
  for (const auto& [value, weight] : values) total += weight;
  std::sort(values.begin(), values.end());
  for (const auto& [value, weight] : values)
    if ((below += weight) >= total / 2) return value;
  return std::nullopt;
}

/// Half the distance between the 16th and the 84th percentile (src/profile/FORMAT.md: one standard deviation).
inline double deviation(const std::vector<double>& samples) {
  return (quantile(samples, 0.84) - quantile(samples, 0.16)) / 2;
}

}  // namespace pipewright::traces
