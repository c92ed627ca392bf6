// Statistics over measured runs.
#include <algorithm>
#include <cmath>

#include "pipewright/validate.hpp"

namespace pipewright::validate {
namespace {

Errors summary(const std::vector<double>& errors) {
  Errors out;
  for (const double e : errors) {
    out.mean_abs += std::abs(e);
    out.max_abs = std::max(out.max_abs, std::abs(e));
    out.bias += e;
  }
  if (!errors.empty()) {
    out.mean_abs /= static_cast<double>(errors.size());
    out.bias /= static_cast<double>(errors.size());
  }
  return out;
}

std::optional<double> relative(Bytes predicted, std::optional<Bytes> measured) {
  if (!measured || measured->value == 0) return std::nullopt;
  return static_cast<double>(predicted.value) / static_cast<double>(measured->value) - 1;
}

template <class Error>
std::optional<Errors> errors_of_ranks(const std::vector<Case>& cases, const Error& error) {
  std::vector<double> errors;
  for (const auto& c : cases)
    for (const auto& rank : rank_errors(c))
      if (const auto each = error(rank)) errors.push_back(*each);
  return errors.empty() ? std::nullopt : std::optional(summary(errors));
}

/// What stands between the step's interval and that of the compared time.
double optimizer_ms(const Case& c) {
  return c.scenario.measured->step_alone() ? 0 : ns_to_ms(c.prediction.optimizer_ns);
}

bool same_configuration(const Case& a, const Case& b) {
  return a.scenario.model == b.scenario.model && a.scenario.settings == b.scenario.settings &&
         a.scenario.cluster == b.scenario.cluster;
}

template <class Belongs>
Group group_of(const std::vector<Case>& cases, const Belongs& belongs) {
  Group group;
  std::vector<double> errors, widths;
  std::vector<const Case*> configurations;
  double inside = 0;
  for (const auto& c : cases) {
    if (!belongs(c)) continue;
    errors.push_back(time_error(c));
    if (c.prediction.ignored.empty()) {  // else no interval holds
      widths.push_back((high_ms(c) - low_ms(c)) / 2 / predicted_ms(c));
      if (low_ms(c) <= measured_ms(c) && measured_ms(c) <= high_ms(c)) ++inside;
    }
    const bool first = std::none_of(configurations.begin(), configurations.end(),
                                    [&](const Case* other) { return same_configuration(*other, c); });
    if (measured_tflops(c) && first) configurations.push_back(&c);
  }
  group.runs = static_cast<int>(errors.size());
  if (errors.empty()) return group;
  group.time = summary(errors);
  if (!widths.empty()) {
    group.in_interval = inside / static_cast<double>(widths.size());
    const auto middle = widths.begin() + static_cast<std::ptrdiff_t>(widths.size() / 2);
    std::nth_element(widths.begin(), middle, widths.end());
    group.half_width = *middle;
  }
  int concordant = 0, discordant = 0;
  for (std::size_t i = 0; i < configurations.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Case &a = *configurations[i], &b = *configurations[j];
      const double order =
          (a.prediction.tflops_per_gpu - b.prediction.tflops_per_gpu) * (*measured_tflops(a) - *measured_tflops(b));
      concordant += order > 0 ? 1 : 0;
      discordant += order < 0 ? 1 : 0;
    }
  }
  const int pairs = concordant + discordant;
  if (pairs > 0) group.tau_of_tflops = static_cast<double>(concordant - discordant) / pairs;
  return group;
}

/// Runs whose order a planner would have to get right: same model, same machine, same tokens a step.
bool comparable(const Case& a, const Case& b) {
  return a.scenario.model == b.scenario.model && a.scenario.cluster == b.scenario.cluster &&
         a.scenario.settings.global_batch_size == b.scenario.settings.global_batch_size;
}

}  // namespace

double predicted_ms(const scenario::Scenario& run, const predict::Prediction& prediction) {
  return ns_to_ms(run.measured->step_alone() ? prediction.step_ns : prediction.forward_backward_ns);
}
double measured_ms(const scenario::Scenario& run) {
  return run.measured->step_alone() ? *run.measured->step_ms : run.measured->forward_backward_ms;
}
double predicted_ms(const Case& c) { return predicted_ms(c.scenario, c.prediction); }
double measured_ms(const Case& c) { return measured_ms(c.scenario); }
double time_error(const Case& c) { return predicted_ms(c) / measured_ms(c) - 1; }
double low_ms(const Case& c) { return ns_to_ms(c.prediction.interval_low_ns) - optimizer_ms(c); }
double high_ms(const Case& c) { return ns_to_ms(c.prediction.interval_high_ns) - optimizer_ms(c); }

std::optional<double> measured_tflops(const Case& c) {
  const auto& step = c.scenario.measured->step_ms;
  if (!step) return std::nullopt;
  return c.prediction.tflops_per_gpu * ns_to_ms(c.prediction.step_ns) / *step;
}

bool is_mixture(const Case& c) { return c.scenario.model.num_moe_experts.has_value(); }

double RankError::error() const {
  return static_cast<double>(predicted_peak.value) / static_cast<double>(measured_peak.value) - 1;
}

std::vector<RankError> rank_errors(const Case& c) {
  std::vector<RankError> out;
  const auto add = [&](std::int64_t rank, std::int64_t pp_rank, Bytes peak, std::optional<Bytes> reserved,
                       std::optional<Bytes> outside) {
    const auto& predicted = c.prediction.ranks.at(static_cast<std::size_t>(pp_rank));
    out.push_back({rank, pp_rank, peak, predicted.walk.peak_allocated, predicted.walk.peak_reserved,
                   predicted.outside_allocator, reserved, outside});
  };
  const auto of = [](const std::map<std::int64_t, Bytes>& by_rank, std::int64_t pp_rank) {
    const auto found = by_rank.find(pp_rank);
    return found == by_rank.end() ? std::nullopt : std::optional(found->second);
  };
  const auto& measured = *c.scenario.measured;
  for (const auto& rank : measured.ranks)
    add(rank.rank, rank.pp_rank, rank.peak_allocated_bytes, rank.peak_reserved_bytes, rank.outside_allocator_bytes);
  const auto gpus = c.scenario.cluster.num_gpus / c.scenario.settings.pipeline_model_parallel_size;
  for (const auto& [pp_rank, peak] : measured.peak_allocated_bytes_by_rank)
    add(pp_rank * gpus, pp_rank, peak, of(measured.peak_reserved_bytes_by_rank, pp_rank),
        of(measured.outside_allocator_bytes_by_rank, pp_rank));
  return out;
}

std::vector<Traced> traced(const Case& c) {
  std::vector<Traced> out;
  const double untraced_ms = measured_ms(c) + c.scenario.measured->optimizer_ms.value_or(0);
  for (const auto& rank : c.scenario.measured->ranks) {
    if (!rank.trace_summary) continue;
    const auto& summary = *rank.trace_summary;
    const auto& account = c.prediction.ranks.at(static_cast<std::size_t>(rank.pp_rank)).account;
    const double scale = untraced_ms / summary.span_us;  // of a traced microsecond in ms without the profiler
    const auto measured = [&](const auto& by_kind, const std::string& kind) {
      const auto found = by_kind.find(kind);
      return found == by_kind.end() ? 0 : found->second * scale;
    };
    const auto predicted = [](const auto& by_kind, const std::string& kind) {
      const auto found = by_kind.find(kind);
      return found == by_kind.end() ? 0 : ns_to_ms(found->second);
    };
    for (const char* kind : {"comp", "p2p", "ep", "coll", "d2h", "h2d"}) {
      Traced row{static_cast<int>(rank.rank),        kind,
                 measured(summary.busy_us, kind),    predicted(account.traced_busy, kind),
                 measured(summary.exposed_us, kind), predicted(account.traced_exposed, kind)};
      if (row.measured_busy_ms > 0 || row.predicted_busy_ms > 0) out.push_back(std::move(row));
    }
  }
  return out;
}

Errors Validation::time() const {
  std::vector<double> errors;
  for (const auto& c : cases) errors.push_back(time_error(c));
  return summary(errors);
}

std::optional<Errors> Validation::memory() const {
  return errors_of_ranks(cases, [](const RankError& r) { return std::optional(r.error()); });
}
std::optional<Errors> Validation::reserved() const {
  return errors_of_ranks(cases, [](const RankError& r) { return relative(r.predicted_reserved, r.measured_reserved); });
}
std::optional<Errors> Validation::outside() const {
  return errors_of_ranks(cases, [](const RankError& r) { return relative(r.predicted_outside, r.measured_outside); });
}

std::optional<double> Validation::kendall_tau() const {
  const auto repeated = [](const Case& a, const Case& b) {  // the same configuration: their order is chance
    return a.scenario.settings == b.scenario.settings && a.scenario.environment == b.scenario.environment;
  };
  int concordant = 0, discordant = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!comparable(cases[i], cases[j]) || repeated(cases[i], cases[j])) continue;
      const double measured = measured_ms(cases[i]) - measured_ms(cases[j]);
      const double predicted = predicted_ms(cases[i]) - predicted_ms(cases[j]);
      if (measured * predicted > 0) ++concordant;
      if (measured * predicted < 0) ++discordant;
    }
  }
  const int pairs = concordant + discordant;
  if (pairs == 0) return std::nullopt;
  return static_cast<double>(concordant - discordant) / pairs;
}

std::vector<Choice> Validation::choices() const {
  std::vector<Choice> out;
  std::vector<bool> done(cases.size(), false);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (done[i]) continue;
    const Case *chosen = &cases[i], *best = &cases[i];
    Choice choice;
    for (std::size_t j = i; j < cases.size(); ++j) {
      if (done[j] || !comparable(cases[i], cases[j])) continue;
      done[j] = true;
      ++choice.of;
      if (predicted_ms(cases[j]) < predicted_ms(*chosen)) chosen = &cases[j];
      if (measured_ms(cases[j]) < measured_ms(*best)) best = &cases[j];
    }
    choice.chosen = chosen->scenario.name;
    choice.best = best->scenario.name;
    choice.regret = measured_ms(*chosen) / measured_ms(*best) - 1;
    if (choice.of > 1) out.push_back(std::move(choice));
  }
  return out;
}

Group Validation::all() const {
  return group_of(cases, [](const Case&) { return true; });
}
Group Validation::dense() const {
  return group_of(cases, [](const Case& c) { return !is_mixture(c); });
}
Group Validation::mixtures() const { return group_of(cases, is_mixture); }

std::map<std::string, Group> Validation::by_profile(bool mixtures) const {
  std::map<std::string, Group> groups;
  for (const auto& c : cases)
    if (is_mixture(c) == mixtures) groups.try_emplace(c.scenario.cluster.profile);
  for (auto& [profile, group] : groups)
    group = group_of(cases,
                     [&](const Case& c) { return is_mixture(c) == mixtures && c.scenario.cluster.profile == profile; });
  return groups;
}

double Validation::largest_error() const { return std::max(time().max_abs, memory().value_or(Errors()).max_abs); }

}  // namespace pipewright::validate
