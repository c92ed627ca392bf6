// The speed of a machine from measured runs. A run's slowdown y is the sum of what its machine, the kernels of its
// model and chance did:
//
//   y = 1 + m + k + e      m ~ (0, machine.spread)     one for all runs
//                          k ~ (0, least own spread)   one for all runs of a model: their kernels are the same
//                          e ~ (0, what is left)       offload, hosts, settings; and steps do not repeat exactly
//
// The best linear estimate of m + k of the next run is the conditional mean of Gaussians, c' C^-1 (y - 1), with C the
// covariances of the observed runs and c those with the next one. Where the runs scatter more than these spreads say,
// the result's spread grows with them (Birge ratio, as the Particle Data Group averages).
#include <algorithm>
#include <cmath>
#include <map>

#include "pipewright/validate.hpp"

namespace pipewright::validate {
namespace {

// Runs of one model on one machine in other settings: what is left of the 17 of family a, each predicted from the
// others (tests/measured). More than half of it is that steps do not repeat: 558.0, 558.7, 564.1 ms for
// a_*_full_block2.
constexpr double repeats = 0.01;

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

/// x of a x = b for a positive definite a: Gaussian elimination needs no pivots.
Vector solve(Matrix a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t row = i + 1; row < n; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (std::size_t column = i; column < n; ++column) a[row][column] -= factor * a[i][column];
      b[row] -= factor * b[i];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t column = i + 1; column < n; ++column) b[i] -= a[i][column] * b[column];
    b[i] /= a[i][i];
  }
  return b;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double square(double x) { return x * x; }

}  // namespace

Speed expected_speed(const std::vector<Observation>& observed, int model, double spread, double machine_spread) {
  std::map<int, double> kernels;  // by model: what its best known run is off by
  const auto seen = [&](int of, double own) {
    const auto [at, is_new] = kernels.emplace(of, own);
    if (!is_new) at->second = std::min(at->second, own);
  };
  for (const auto& run : observed) seen(run.model, run.spread);
  seen(model, spread);
  const double machine = square(machine_spread);
  const auto shared = [&](int a, int b) { return machine + (a == b ? square(kernels.at(a)) : 0); };
  const std::size_t n = observed.size();
  Matrix covariances(n, Vector(n));
  Vector with_next(n), deviations(n);
  for (std::size_t i = 0; i < n; ++i) {
    const Observation& run = observed[i];
    deviations[i] = run.slowdown - 1;
    with_next[i] = shared(run.model, model);
    for (std::size_t j = 0; j < n; ++j) covariances[i][j] = shared(run.model, observed[j].model);
    covariances[i][i] += square(run.spread) - square(kernels.at(run.model)) + square(repeats);
  }
  const Vector weights = solve(covariances, with_next);
  // The kernels' own part of the next run stays in its prediction's interval.
  const double left =
      std::max(0.0, shared(model, model) - dot(weights, with_next) - square(kernels.at(model))) + square(repeats);
  const double scatter = n > 0 ? dot(deviations, solve(covariances, deviations)) / static_cast<double>(n) : 1;
  return {1 + dot(weights, deviations), std::sqrt(left * std::max(1.0, scatter))};
}

}  // namespace pipewright::validate
