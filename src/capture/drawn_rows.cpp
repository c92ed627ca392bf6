#include "drawn_rows.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace pipewright::capture {

std::vector<std::vector<std::int64_t>> drawn_rows(std::int64_t experts, std::int64_t tokens, std::int64_t align,
                                                  int draws) {
  const double mean = static_cast<double>(tokens) / static_cast<double>(experts);
  // Half of `align` is what pads an expert in the mean (model/dimensions.cpp).
  const double chosen = std::max(mean - static_cast<double>(align - 1) / 2, mean / 2);
  std::mt19937_64 random(static_cast<std::uint64_t>(experts * 1'000'003 + tokens));
  std::normal_distribution<double> normal;
  const auto padded = [&](double rows) {
    const auto whole = std::max<std::int64_t>(std::llround(rows), 0);
    return (whole + align - 1) / align * align;
  };
  std::vector<std::vector<std::int64_t>> result(static_cast<std::size_t>(draws));
  std::vector<double> off(static_cast<std::size_t>(experts));
  for (std::size_t draw = 0; draw < result.size(); ++draw) {
    for (double& of_expert : off) of_expert = draw % 2 == 0 ? std::sqrt(chosen) * normal(random) : -of_expert;
    for (const double of_expert : off) result[draw].push_back(padded(chosen + of_expert));
  }
  return result;
}

}  // namespace pipewright::capture
