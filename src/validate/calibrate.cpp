// Predictions of measured runs, and the speed of a machine from them.
#include <algorithm>
#include <cmath>

#include "pipewright/validate.hpp"

namespace pipewright::validate {
namespace {

const char* const slowdown_name = "machine.slowdown";
const char* const spread_name = "machine.spread";

/// What is left to the interval once the factor is a mean of n: its own error and that of the next run.
double spread_of(const std::vector<double>& factors, double mean) {
  double sum = 0;
  for (const double f : factors) sum += (f / mean - 1) * (f / mean - 1);
  const auto n = static_cast<double>(factors.size());
  return std::sqrt(sum / (n - 1) * (1 + 1 / n));
}

profile::Profiles with_scalars(const profile::Profiles& profiles, const std::map<std::string, profile::Scalar>& set) {
  auto list = profiles.all();
  for (const auto& [name, scalar] : set) list.front().scalars[name] = scalar;
  return profile::Profiles(std::move(list));
}

bool same_part(const Case& a, const Case& b) { return a.scenario.cluster.profile == b.scenario.cluster.profile; }

}  // namespace

double slowdown_of(const scenario::Scenario& measured, const profile::Profiles& profiles) {
  const double target = measured.measured->forward_backward_ms;
  const auto at = [&](double factor) {
    const auto set =
        with_scalars(profiles, {{slowdown_name, {factor, 0, profile::Origin::derived, "trial of the calibration"}}});
    return static_cast<double>(predict::predict(measured, set).forward_backward_ns) / 1e6;
  };
  // The step grows almost linearly with the factor: two secant steps leave less than 0.1 %.
  constexpr double least = 0.5, most = 2;
  double before = 1, time_before = at(before);
  double factor = std::clamp(target / time_before, least, most);
  for (int step = 0; step < 2 && factor != before; ++step) {
    const double time = at(factor);
    if (time == time_before) break;
    const double next = factor + (target - time) * (factor - before) / (time - time_before);
    before = factor, time_before = time;
    factor = std::clamp(next, least, most);
  }
  return factor;
}

bool explains_speed(double slowdown, const profile::Profiles& profiles) {
  constexpr double spreads = 5;
  return std::abs(slowdown - 1) <= spreads * profiles.scalar(spread_name).value;
}

profile::Profiles with_slowdown(const profile::Profiles& profiles, const std::vector<double>& factors,
                                const std::string& source) {
  double mean = 0;
  for (const double f : factors) mean += f / static_cast<double>(factors.size());
  constexpr std::size_t enough_for_a_spread = 4;
  std::map<std::string, profile::Scalar> set;
  double spread = profiles.scalar(spread_name).value;
  if (factors.size() >= enough_for_a_spread) {
    spread = spread_of(factors, mean);
    set[spread_name] = {spread, 0, profile::Origin::measured, "between " + source};
  }
  set[slowdown_name] = {mean, spread, profile::Origin::measured, "forward-backward times of " + source};
  return with_scalars(profiles, set);
}

void calibrate_without_itself(Validation& validation, const std::vector<profile::Profiles>& profiles_of_cases) {
  validation.mode = "calibrated";
  auto& cases = validation.cases;
  std::vector<double> factors;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    factors.push_back(slowdown_of(cases[i].scenario, profiles_of_cases[i]));
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto others = [&](auto&& related) {
      std::vector<double> chosen;
      cases[i].calibrated_by.clear();
      for (std::size_t j = 0; j < cases.size(); ++j) {
        if (j == i || !same_part(cases[i], cases[j]) || !related(cases[j])) continue;
        if (!explains_speed(factors[j], profiles_of_cases[j])) continue;
        chosen.push_back(factors[j]);
        cases[i].calibrated_by.push_back(cases[j].scenario.name);
      }
      return chosen;
    };
    auto from = others([&](const Case& c) { return c.scenario.model == cases[i].scenario.model; });
    if (from.empty()) from = others([](const Case&) { return true; });
    if (from.empty()) continue;
    const std::string source = std::to_string(from.size()) + " other measured runs";
    cases[i].prediction = predict::predict(cases[i].scenario, with_slowdown(profiles_of_cases[i], from, source));
  }
}

bool add(Validation& validation, const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  const auto refuse = [&](const std::string& reason) {
    validation.refused.push_back({scenario.name, reason});
    return false;
  };
  if (!scenario.measured) return refuse("has no section `measured`");
  try {
    auto prediction = predict::predict(scenario, profiles);
    for (const auto& rank : scenario.measured->ranks) {
      if (rank.pp_rank < 0 || rank.pp_rank >= static_cast<scenario::Int>(prediction.ranks.size())) {
        return refuse("measured rank " + std::to_string(rank.rank) + " has no pipeline rank " +
                      std::to_string(rank.pp_rank));
      }
    }
    validation.cases.push_back({scenario, std::move(prediction), {}});
  } catch (const UsageError& error) {
    return refuse(error.what());
  }
  return true;
}

}  // namespace pipewright::validate
