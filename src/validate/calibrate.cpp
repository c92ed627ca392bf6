// Predictions of measured runs, and the speed of a machine from them.
#include <algorithm>
#include <cmath>

#include "pipewright/timeline.hpp"
#include "pipewright/validate.hpp"

namespace pipewright::validate {
namespace {

const char* const slowdown_name = "machine.slowdown";
const char* const spread_name = "machine.spread";

profile::Profiles with_scalars(const profile::Profiles& profiles, const std::map<std::string, profile::Scalar>& set) {
  auto list = profiles.all();
  for (const auto& [name, scalar] : set) list.front().scalars[name] = scalar;
  return profile::Profiles(std::move(list));
}

bool same_part(const Case& a, const Case& b) { return a.scenario.cluster.profile == b.scenario.cluster.profile; }

}  // namespace

double slowdown_of(const scenario::Scenario& measured, const profile::Profiles& profiles,
                   const predict::Prediction& cold) {
  const auto at = [&](double factor) {
    const auto set =
        with_scalars(profiles, {{slowdown_name, {factor, 0, profile::Origin::derived, "trial of the calibration"}}});
    return predicted_ms(measured, predict::estimate(measured, set));
  };
  // The quick engine tells how the step depends on its kernels, the exact one where it stands. It grows almost linearly
  // with the factor: two secant steps leave less than 0.1 %.
  constexpr double least = least_slowdown, most = most_slowdown;
  double before = profiles.find_scalar(slowdown_name).value_or(1), time_before = at(before);
  const double target = measured_ms(measured) * time_before / predicted_ms(measured, cold);
  double factor = std::clamp(before * target / time_before, least, most);
  for (int trial = 0; trial < 2 && factor != before; ++trial) {
    const double time = at(factor);
    if (time == time_before) break;
    const double next = factor + (target - time) * (factor - before) / (time - time_before);
    before = factor, time_before = time;
    factor = std::clamp(next, least, most);
  }
  return factor;
}

std::optional<double> host_factor_of(const scenario::Scenario& measured, const profile::Profiles& profiles,
                                     const predict::Prediction& cold) {
  const auto at = [&](double factor) {
    scenario::Scenario other = measured;
    other.cluster.host_time_factor = factor;
    return predicted_ms(measured, predict::estimate(other, profiles));
  };
  constexpr double least = 0.25, most = 4;  // hosts beyond have other troubles
  const double own = timeline::host_time_factor(measured, profiles);
  const double goal = measured_ms(measured) * at(own) / predicted_ms(measured, cold);  // as in slowdown_of
  if (at(least) > goal || at(most) < goal) return std::nullopt;
  double low = least, high = most;
  for (int i = 0; i < 20; ++i) {
    const double middle = std::sqrt(low * high);
    (at(middle) < goal ? low : high) = middle;
  }
  const double factor = std::sqrt(low * high);
  // A step that a host of 10 % more hardly changes says nothing of its host.
  constexpr double more = 1.1, least_dependence = 0.4;
  const double dependence = std::log(at(factor * more) / at(factor / more)) / (2 * std::log(more));
  return dependence < least_dependence ? std::nullopt : std::optional(factor);
}

profile::Scalar host_factor(const std::vector<double>& factors, const profile::Profiles& profiles,
                            const std::string& source) {
  double logs = 0, squares = 0;
  const auto count = static_cast<double>(factors.size());
  for (const double factor : factors) logs += std::log(factor) / count;
  for (const double factor : factors) squares += std::pow(std::log(factor) - logs, 2) / count;
  const double run = profiles.find_scalar("host.run_spread").value_or(0);
  return {std::exp(logs), std::max(std::sqrt(squares), run), profile::Origin::measured, "step times of " + source};
}

bool explains_speed(double slowdown, const profile::Profiles& profiles) {
  constexpr double spreads = 5;
  return std::abs(slowdown - 1) <= spreads * profiles.scalar(spread_name).value;
}

profile::Profiles with_speed(const profile::Profiles& profiles, const Speed& speed, const std::string& source) {
  const auto from = profile::Origin::measured;
  return with_scalars(
      profiles, {{slowdown_name, {speed.slowdown, speed.spread, from, "forward-backward times of " + source}},
                 {spread_name, {speed.spread, 0, from, "what is left once the machine is known from " + source}}});
}

double own_spread(const predict::Prediction& prediction, const profile::Profiles& profiles) {
  const auto step = static_cast<double>(prediction.step_ns);
  const double whole =
      static_cast<double>(prediction.interval_high_ns - prediction.step_ns) / sigmas_of_90_percent / step;
  const double machine = profiles.scalar(spread_name).value;
  constexpr double least = 0.001;  // no kernel is known better
  return std::sqrt(std::max(whole * whole - machine * machine, least * least));
}

void calibrate_without_itself(Validation& validation, const std::vector<profile::Profiles>& profiles_of_cases) {
  auto& cases = validation.cases;
  std::vector<Observation> observations;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::size_t model = 0;
    while (!(cases[model].scenario.model == cases[i].scenario.model)) ++model;
    observations.push_back({slowdown_of(cases[i].scenario, profiles_of_cases[i], cases[i].prediction),
                            own_spread(cases[i].prediction, profiles_of_cases[i]), static_cast<int>(model)});
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::vector<Observation> others;
    for (std::size_t j = 0; j < cases.size(); ++j) {
      if (j == i || !same_part(cases[i], cases[j])) continue;
      if (!explains_speed(observations[j].slowdown, profiles_of_cases[j])) continue;
      others.push_back(observations[j]);
      cases[i].calibrated_by.push_back(cases[j].scenario.name);
    }
    cases[i].cold = others.empty();
    if (others.empty()) continue;
    validation.mode = "calibrated";
    const auto speed = expected_speed(others, observations[i].model, observations[i].spread,
                                      profiles_of_cases[i].scalar(spread_name).value);
    const std::string source = std::to_string(others.size()) + " other measured runs";
    cases[i].prediction = predict::predict(cases[i].scenario, with_speed(profiles_of_cases[i], speed, source));
  }
}

bool add(Validation& validation, const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  const auto refuse = [&](const std::string& reason) {
    validation.refused.push_back({scenario.name, reason});
    return false;
  };
  if (!scenario.measured) return refuse("has no section `measured`");
  const auto& m = *scenario.measured;
  for (const auto& [key, by_rank] : {std::pair("peak_allocated_bytes_by_rank", &m.peak_allocated_bytes_by_rank),
                                     {"peak_reserved_bytes_by_rank", &m.peak_reserved_bytes_by_rank},
                                     {"outside_allocator_bytes_by_rank", &m.outside_allocator_bytes_by_rank}})
    for (const auto& [pp_rank, bytes] : *by_rank)
      if (pp_rank >= scenario.settings.pipeline_model_parallel_size)
        return refuse(std::string("measured.") + key + " has no pipeline rank " + std::to_string(pp_rank));
  try {
    auto prediction = predict::predict(scenario, profiles);
    for (const auto& rank : scenario.measured->ranks) {
      if (rank.pp_rank < 0 || rank.pp_rank >= static_cast<scenario::Int>(prediction.ranks.size())) {
        return refuse("measured rank " + std::to_string(rank.rank) + " has no pipeline rank " +
                      std::to_string(rank.pp_rank));
      }
    }
    validation.cases.push_back({scenario, std::move(prediction)});
  } catch (const UsageError& error) {
    return refuse(error.what());
  }
  return true;
}

}  // namespace pipewright::validate
