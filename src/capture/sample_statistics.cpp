#include "sample_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace pipewright::capture {
namespace {

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Summary summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  Summary result;
  result.count = static_cast<int>(samples.size());
  result.median = percentile(samples, 0.5);
  if (result.median > 0) {
    result.spread = (percentile(samples, 0.84) - percentile(samples, 0.16)) / 2 / result.median;
  }
  return result;
}

bool enough(const std::vector<double>& samples, int least, double noise) {
  const auto n = static_cast<double>(samples.size());
  if (samples.size() < 2 || samples.size() < static_cast<std::size_t>(least)) return false;
  double sum = 0;
  for (const double x : samples) sum += x;
  const double mean = sum / n;
  double squares = 0;
  for (const double x : samples) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / (n - 1) / n) <= noise * mean;
}

}  // namespace pipewright::capture
