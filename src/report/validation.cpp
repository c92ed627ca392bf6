// `validate`: measured runs beside their predictions. Errors are predicted / measured - 1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format.hpp"
#include "json.hpp"
#include "pipewright/report.hpp"

namespace pipewright::report {
namespace {

double predicted_ms(const Case& c) { return to_ms(c.prediction.forward_backward_ns); }
double measured_ms(const Case& c) { return c.scenario.measured->forward_backward_ms; }
double time_error(const Case& c) { return predicted_ms(c) / measured_ms(c) - 1; }

/// The interval of the step, moved to forward-backward: the optimizer's own uncertainty stays with the step.
double low_ms(const Case& c) { return to_ms(c.prediction.interval_low_ns - c.prediction.optimizer_ns); }
double high_ms(const Case& c) { return to_ms(c.prediction.interval_high_ns - c.prediction.optimizer_ns); }

struct RankError {
  const scenario::MeasuredRank* measured;
  const predict::RankPrediction* predicted;
  double error() const {
    return static_cast<double>(predicted->peak_allocated.value) /
               static_cast<double>(measured->peak_allocated_bytes.value) -
           1;
  }
};

std::vector<RankError> rank_errors(const Case& c) {
  std::vector<RankError> out;
  for (const auto& measured : c.scenario.measured->ranks) {
    out.push_back({&measured, &c.prediction.ranks.at(static_cast<std::size_t>(measured.pp_rank))});
  }
  return out;
}

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
  int concordant = 0, discordant = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!comparable(cases[i], cases[j])) continue;
      const double measured = measured_ms(cases[i]) - measured_ms(cases[j]);
      const double predicted = predicted_ms(cases[i]) - predicted_ms(cases[j]);
      if (measured * predicted > 0) ++concordant;
      if (measured * predicted < 0) ++discordant;
    }
  }
  const int pairs = concordant + discordant;
  return pairs == 0 ? 0 : static_cast<double>(concordant - discordant) / pairs;
}

double Validation::in_interval() const {
  if (cases.empty()) return 0;
  const auto inside = std::count_if(cases.begin(), cases.end(), [](const Case& c) {
    return low_ms(c) <= measured_ms(c) && measured_ms(c) <= high_ms(c);
  });
  return static_cast<double>(inside) / static_cast<double>(cases.size());
}

double Validation::largest_error() const { return std::max(time().max_abs, memory().max_abs); }

std::string validate_text(const Validation& v) {
  Table table({"run", "measured ms", "predicted ms", "90 % interval", "error", "peak error, by rank"});
  for (const auto& c : v.cases) {
    std::string peaks;
    for (const auto& rank : rank_errors(c)) {
      if (!peaks.empty()) peaks += " ";
      peaks += fmt::format("{:+.1f}", 100 * rank.error());
    }
    table.add({c.scenario.name, fmt::format("{:.2f}", measured_ms(c)), fmt::format("{:.2f}", predicted_ms(c)),
               fmt::format("{:.1f} to {:.1f}", low_ms(c), high_ms(c)), percent(time_error(c)), peaks + " %"});
  }
  const Errors time = v.time(), memory = v.memory();
  std::string out =
      fmt::format("{} prediction of forward-backward time and peak allocated memory\n{}", v.mode, table.text());
  out += fmt::format(
      "time: mean |error| {:.1f} %, largest {:.1f} %, bias {:+.1f} %; order of comparable runs (Kendall's "
      "tau) {:.2f}; {:.0f} % inside their interval\n",
      100 * time.mean_abs, 100 * time.max_abs, 100 * time.bias, v.kendall_tau(), 100 * v.in_interval());
  out += fmt::format("memory: mean |error| {:.1f} %, largest {:.1f} %, bias {:+.1f} %\n", 100 * memory.mean_abs,
                     100 * memory.max_abs, 100 * memory.bias);
  if (!v.refused.empty()) {
    out += "\nRefused\n";
    for (const auto& [name, reason] : v.refused) out += wrapped(fmt::format("- {}: {}", name, reason)) + "\n";
  }
  return out;
}

std::string validate_json(const Validation& v) {
  Json cases = Json::array(), refused = Json::array();
  for (const auto& c : v.cases) {
    Json ranks = Json::array();
    for (const auto& rank : rank_errors(c)) {
      ranks.push_back({{"rank", rank.measured->rank},
                       {"pp_rank", rank.measured->pp_rank},
                       {"measured_peak_bytes", rank.measured->peak_allocated_bytes.value},
                       {"predicted_peak_bytes", rank.predicted->peak_allocated.value},
                       {"error", rounded(rank.error(), 6)},
                       {"measured_reserved_bytes", rank.measured->peak_reserved_bytes.value},
                       {"predicted_reserved_bytes", rank.predicted->peak_reserved.value}});
    }
    cases.push_back({{"name", c.scenario.name},
                     {"measured_ms", measured_ms(c)},
                     {"predicted_ms", predicted_ms(c)},
                     {"interval_ms", {low_ms(c), high_ms(c)}},
                     {"error", rounded(time_error(c), 6)},
                     {"ranks", ranks}});
  }
  for (const auto& [name, reason] : v.refused) refused.push_back({{"name", name}, {"reason", reason}});
  const Errors time = v.time(), memory = v.memory();
  return dumped({{"mode", v.mode},
                 {"cases", cases},
                 {"refused", refused},
                 {"time",
                  {{"mean_abs_error", rounded(time.mean_abs, 6)},
                   {"max_abs_error", rounded(time.max_abs, 6)},
                   {"bias", rounded(time.bias, 6)},
                   {"kendall_tau", rounded(v.kendall_tau(), 6)},
                   {"in_interval", rounded(v.in_interval(), 6)}}},
                 {"memory",
                  {{"mean_abs_error", rounded(memory.mean_abs, 6)},
                   {"max_abs_error", rounded(memory.max_abs, 6)},
                   {"bias", rounded(memory.bias, 6)}}}});
}

}  // namespace pipewright::report
