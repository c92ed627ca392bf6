// `validate`: measured runs beside their predictions.
#include <fmt/format.h>

#include <cmath>

#include "format.hpp"
#include "json.hpp"
#include "pipewright/report.hpp"

namespace pipewright::report {

using namespace validate;

namespace {

std::string traces_text(const Validation& v) {
  Table table({"run", "rank", "kind", "busy ms", "predicted", "difference", "exposed ms", "predicted", "difference"});
  for (const auto& c : v.cases) {
    for (const auto& t : traced(c)) {
      const auto number = [](double value) { return fmt::format("{:.1f}", value); };
      const auto change = [](double value) { return fmt::format("{:+.1f}", value); };
      table.add({c.scenario.name, fmt::format("{}", t.rank), t.kind, number(t.measured_busy_ms),
                 number(t.predicted_busy_ms), change(t.predicted_busy_ms - t.measured_busy_ms),
                 t.kind == "comp" ? "" : number(t.measured_exposed_ms),
                 t.kind == "comp" ? "" : number(t.predicted_exposed_ms),
                 t.kind == "comp" ? "" : change(t.predicted_exposed_ms - t.measured_exposed_ms)});
    }
  }
  return "\nagainst traces (traced figures scaled by the untraced over the traced step)\n" + table.text();
}

}  // namespace

std::string validate_text(const Validation& v, bool traces) {
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
      "tau) {:.2f}; {:.0f} % inside their interval (median half width {:.1f} %)\n",
      100 * time.mean_abs, 100 * time.max_abs, 100 * time.bias, v.kendall_tau(), 100 * v.in_interval(),
      100 * v.half_width());
  out += fmt::format("memory: mean |error| {:.1f} %, largest {:.1f} %, bias {:+.1f} %\n", 100 * memory.mean_abs,
                     100 * memory.max_abs, 100 * memory.bias);
  for (const auto& choice : v.choices()) {
    out += fmt::format("choice: of {} comparable runs {} is predicted fastest, {} was: {:.1f} % lost\n", choice.of,
                       choice.chosen, choice.best, 100 * choice.regret);
  }
  if (traces) out += traces_text(v);
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
                       {"predicted_peak_bytes", rank.predicted->walk.peak_allocated.value},
                       {"error", rounded(rank.error(), 6)},
                       {"measured_reserved_bytes", rank.measured->peak_reserved_bytes.value},
                       {"predicted_reserved_bytes", rank.predicted->walk.peak_reserved.value}});
    }
    cases.push_back({{"name", c.scenario.name},
                     {"measured_ms", measured_ms(c)},
                     {"predicted_ms", predicted_ms(c)},
                     {"interval_ms", {low_ms(c), high_ms(c)}},
                     {"error", rounded(time_error(c), 6)},
                     {"ranks", ranks}});
    if (!c.calibrated_by.empty()) cases.back()["calibrated_by"] = c.calibrated_by;
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
