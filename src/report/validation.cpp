// `validate`: measured runs beside their predictions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format.hpp"
#include "pipewright/report.hpp"
#include "to_json.hpp"

namespace pipewright::report {

using namespace validate;

namespace {

/// "98.1 to 104.2", or that there is none.
std::string interval_cell(const Case& c, int digits) {
  if (!c.prediction.ignored.empty()) return "none";
  return fmt::format("{:.{}f} to {:.{}f}", low_ms(c), digits, high_ms(c), digits);
}

/// "mean |error| 4.0 %, largest 10.0 %, bias -2.7 %".
std::string errors_text(const Errors& errors) {
  return fmt::format("mean |error| {:.1f} %, largest {:.1f} %, bias {:+.1f} %", 100 * errors.mean_abs,
                     100 * errors.max_abs, 100 * errors.bias);
}
/// "; 67 % inside their interval (...)"; nothing where no prediction has one.
std::string interval_text(const Group& group) {
  return group.in_interval ? fmt::format("; {:.0f} % inside their interval (median half width {:.1f} %)",
                                         100 * *group.in_interval, 100 * *group.half_width)
                           : "";
}

Json rounded(const std::optional<double>& value) { return value ? Json(report::rounded(*value, 6)) : Json(); }
Json errors_json(const Errors& errors) {
  return {{"mean_abs_error", rounded(errors.mean_abs)},
          {"max_abs_error", rounded(errors.max_abs)},
          {"bias", rounded(errors.bias)}};
}
Json errors_json(const std::optional<Errors>& errors) { return errors ? errors_json(*errors) : Json(); }

std::string traces_text(const Validation& v) {
  Table table({"run", "rank", "kind", "busy ms", "predicted", "difference", "exposed ms", "predicted", "difference"});
  bool any = false;
  for (const auto& c : v.cases) {
    for (const auto& t : traced(c)) {
      any = true;
      const auto number = [](double value) { return fmt::format("{:.1f}", value); };
      const auto change = [](double value) { return fmt::format("{:+.1f}", value); };
      table.add({c.scenario.name, fmt::format("{}", t.rank), t.kind, number(t.measured_busy_ms),
                 number(t.predicted_busy_ms), change(t.predicted_busy_ms - t.measured_busy_ms),
                 t.kind == "comp" ? "" : number(t.measured_exposed_ms),
                 t.kind == "comp" ? "" : number(t.predicted_exposed_ms),
                 t.kind == "comp" ? "" : change(t.predicted_exposed_ms - t.measured_exposed_ms)});
    }
  }
  if (!any) return "\nno run has a trace_summary: there is nothing to compare with traces\n";
  return "\nagainst traces (traced figures scaled by the untraced over the traced step)\n" + table.text();
}

std::string group_text(const char* name, const Group& group) {
  if (group.runs == 0) return "";
  std::string out =
      fmt::format("{}: {}, {}{}", name, counted(group.runs, "run"), errors_text(group.time), interval_text(group));
  if (group.tau_of_tflops)
    out += fmt::format("; order of TFLOP/s over configurations (Kendall's tau) {:.2f}", *group.tau_of_tflops);
  return out + "\n";
}

/// One line for each profile, where there are several.
std::string by_profile_text(const Validation& v, bool mixtures) {
  const auto groups = v.by_profile(mixtures);
  if (groups.size() < 2) return "";
  std::string out;
  for (const auto& [profile, group] : groups)
    out += fmt::format("- {}: {}, {}{}\n", profile, counted(group.runs, "run"), errors_text(group.time),
                       interval_text(group));
  return out;
}

Json group_json(const Group& group) {
  Json out = {{"runs", group.runs}};
  const Json errors = errors_json(group.time);
  for (const auto& [key, value] : errors.items()) out[key] = group.runs > 0 ? value : Json();
  out["in_interval"] = rounded(group.in_interval);
  out["median_half_width"] = rounded(group.half_width);
  out["tau_of_tflops"] = rounded(group.tau_of_tflops);
  return out;
}

Json kind_json(const Validation& v, bool mixtures) {
  Json out = group_json(mixtures ? v.mixtures() : v.dense());
  out["by_profile"] = Json::object();
  for (const auto& [profile, group] : v.by_profile(mixtures)) out["by_profile"][profile] = group_json(group);
  return out;
}

}  // namespace

std::string validate_text(const Validation& v, bool traces) {
  // Where whole steps were measured the use of the GPUs can be compared, too.
  const bool published =
      std::any_of(v.cases.begin(), v.cases.end(), [](const Case& c) { return !!measured_tflops(c); });
  std::vector<std::string> header{"run", "measured ms", "predicted ms", "90 % interval", "error"};
  if (published) header.insert(header.end(), {"TFLOP/s", "predicted", "fits"});
  header.emplace_back("peak error, by rank");
  Table table(header);
  for (const auto& c : v.cases) {
    std::string peaks;
    for (const auto& rank : rank_errors(c)) {
      if (!peaks.empty()) peaks += " ";
      peaks += fmt::format("{:+.1f}", 100 * rank.error());
    }
    std::vector<std::string> row{c.scenario.name, fmt::format("{:.2f}", measured_ms(c)),
                                 fmt::format("{:.2f}", predicted_ms(c)), interval_cell(c, 1), percent(time_error(c))};
    if (published) {
      const auto tflops = measured_tflops(c);
      row.push_back(tflops ? fmt::format("{:.0f}", *tflops) : "");
      row.push_back(fmt::format("{:.0f}", c.prediction.tflops_per_gpu));
      row.emplace_back(c.prediction.fits ? "yes" : "no");
    }
    row.push_back(peaks.empty() ? "" : peaks + " %");
    table.add(row);
  }
  const Group all = v.all();
  std::string out =
      fmt::format("{} prediction of forward-backward time and peak allocated memory\n{}", v.mode, table.text());
  if (published) out += "Where no forward-backward time was measured the whole step is compared.\n";
  std::string cold;
  for (const auto& c : v.cases)
    if (c.cold) cold += (cold.empty() ? "" : ", ") + c.scenario.name;
  if (!cold.empty()) out += wrapped("cold, as no other run tells the speed of their machine: " + cold) + "\n";
  if (all.runs > 0) out += "time: " + errors_text(all.time);
  if (const auto tau = v.kendall_tau()) out += fmt::format("; order of comparable runs (Kendall's tau) {:.2f}", *tau);
  if (all.runs > 0) out += interval_text(all) + "\n";
  if (published)
    out += group_text("dense models", v.dense()) + by_profile_text(v, false) +
           group_text("mixtures of experts", v.mixtures()) + by_profile_text(v, true);
  for (const auto& [what, errors] :
       {std::pair("memory", v.memory()), {"reserved memory", v.reserved()}, {"outside the allocator", v.outside()}})
    if (errors) out += fmt::format("{}: {}\n", what, errors_text(*errors));
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

std::string validate_markdown(const Validation& v) {
  std::string out;
  const auto table = [&](const char* title, const Group& group, bool mixtures) {
    if (group.runs == 0) return;
    out += fmt::format("**{}**\n\n", title);
    out += "| run | GPUs | measured ms | predicted ms | error | 90 % interval | TFLOP/s | predicted | fits |\n";
    out += "|---|---|---|---|---|---|---|---|---|\n";
    for (const auto& c : v.cases) {
      if (is_mixture(c) != mixtures) continue;
      const auto tflops = measured_tflops(c);
      out += fmt::format("| `{}` | {} | {:.0f} | {:.0f} | {} | {} | {} | {:.0f} | {} |\n", c.scenario.name,
                         c.scenario.cluster.num_gpus, measured_ms(c), predicted_ms(c), percent(time_error(c)),
                         interval_cell(c, 0), tflops ? fmt::format("{:.0f}", *tflops) : "", c.prediction.tflops_per_gpu,
                         c.prediction.fits ? "yes" : "no");
    }
    const std::string parts = by_profile_text(v, mixtures);
    out += "\n" + group_text(title, group) + (parts.empty() ? "" : "\n" + parts) + "\n";
  };
  table("Dense models", v.dense(), false);
  table("Mixtures of experts", v.mixtures(), true);
  for (const auto& [name, reason] : v.refused) out += fmt::format("- refused `{}`: {}\n", name, reason);
  return out;
}

std::string validate_json(const Validation& v, const Stamp* stamp) {
  Json cases = Json::array(), refused = Json::array();
  for (const auto& c : v.cases) {
    Json ranks = Json::array();
    for (const auto& rank : rank_errors(c)) {
      ranks.push_back({{"rank", rank.rank},
                       {"pp_rank", rank.pp_rank},
                       {"measured_peak_bytes", rank.measured_peak.value},
                       {"predicted_peak_bytes", rank.predicted_peak.value},
                       {"error", rounded(rank.error(), 6)}});
      auto& row = ranks.back();
      row["measured_reserved_bytes"] = rank.measured_reserved ? Json(rank.measured_reserved->value) : Json(nullptr);
      row["predicted_reserved_bytes"] = rank.predicted_reserved.value;
      row["measured_outside_bytes"] = rank.measured_outside ? Json(rank.measured_outside->value) : Json(nullptr);
      row["predicted_outside_bytes"] = rank.predicted_outside.value;
    }
    cases.push_back({{"name", c.scenario.name},
                     {"measured_ms", measured_ms(c)},
                     {"predicted_ms", predicted_ms(c)},
                     {"interval_ms", c.prediction.ignored.empty() ? Json{low_ms(c), high_ms(c)} : Json(nullptr)},
                     {"error", rounded(time_error(c), 6)},
                     {"ranks", ranks}});
    if (c.scenario.measured->step_alone()) cases.back()["compared"] = "step";
    if (const auto tflops = measured_tflops(c)) {
      cases.back()["measured_tflops_per_gpu"] = rounded(*tflops, 3);
      cases.back()["predicted_tflops_per_gpu"] = rounded(c.prediction.tflops_per_gpu, 3);
      cases.back()["fits"] = c.prediction.fits;
      cases.back()["source"] = c.scenario.measured->source;
    }
    if (c.cold || !c.calibrated_by.empty()) cases.back()["calibrated_by"] = c.calibrated_by;
  }
  for (const auto& [name, reason] : v.refused) refused.push_back({{"name", name}, {"reason", reason}});
  const Group all = v.all();
  Json time;
  if (all.runs > 0) {
    time = errors_json(all.time);
    time["kendall_tau"] = rounded(v.kendall_tau());
    time["in_interval"] = rounded(all.in_interval);
  }
  return dumped({{"mode", v.mode},
                 {"cases", cases},
                 {"refused", refused},
                 {"time", time},
                 {"dense", kind_json(v, false)},
                 {"mixtures", kind_json(v, true)},
                 {"memory", errors_json(v.memory())},
                 {"reserved", errors_json(v.reserved())},
                 {"outside", errors_json(v.outside())}},
                stamp);
}

}  // namespace pipewright::report
