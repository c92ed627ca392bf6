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

/// Runs whose order a planner would have to get right: same model, same machine, same tokens a step.
bool comparable(const Case& a, const Case& b) {
  return a.scenario.model == b.scenario.model && a.scenario.cluster == b.scenario.cluster &&
         a.scenario.settings.global_batch_size == b.scenario.settings.global_batch_size;
}

}  // namespace

double predicted_ms(const Case& c) { return ns_to_ms(c.prediction.forward_backward_ns); }
double measured_ms(const Case& c) { return c.scenario.measured->forward_backward_ms; }
double time_error(const Case& c) { return predicted_ms(c) / measured_ms(c) - 1; }
double low_ms(const Case& c) { return ns_to_ms(c.prediction.interval_low_ns - c.prediction.optimizer_ns); }
double high_ms(const Case& c) { return ns_to_ms(c.prediction.interval_high_ns - c.prediction.optimizer_ns); }

double RankError::error() const {
  return static_cast<double>(predicted->walk.peak_allocated.value) /
             static_cast<double>(measured->peak_allocated_bytes.value) -
         1;
}

std::vector<RankError> rank_errors(const Case& c) {
  std::vector<RankError> out;
  for (const auto& measured : c.scenario.measured->ranks) {
    out.push_back({&measured, &c.prediction.ranks.at(static_cast<std::size_t>(measured.pp_rank))});
  }
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

Errors Validation::memory() const {
  std::vector<double> errors;
  for (const auto& c : cases) {
    for (const auto& rank : rank_errors(c)) errors.push_back(rank.error());
  }
  return summary(errors);
}

double Validation::kendall_tau() const {
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
  return pairs == 0 ? 0 : static_cast<double>(concordant - discordant) / pairs;
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

double Validation::in_interval() const {
  if (cases.empty()) return 0;
  const auto inside = std::count_if(cases.begin(), cases.end(), [](const Case& c) {
    return low_ms(c) <= measured_ms(c) && measured_ms(c) <= high_ms(c);
  });
  return static_cast<double>(inside) / static_cast<double>(cases.size());
}

double Validation::half_width() const {
  std::vector<double> widths;
  for (const auto& c : cases) widths.push_back((high_ms(c) - low_ms(c)) / 2 / predicted_ms(c));
  if (widths.empty()) return 0;
  const auto middle = widths.begin() + static_cast<std::ptrdiff_t>(widths.size() / 2);
  std::nth_element(widths.begin(), middle, widths.end());
  return *middle;
}

double Validation::largest_error() const { return std::max(time().max_abs, memory().max_abs); }

}  // namespace pipewright::validate
