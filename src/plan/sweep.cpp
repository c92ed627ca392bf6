// `sweep`: every combination of the axes, predicted where it is legal and listed with its rule where it is not.
#include "candidates.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

/// Values for `--over recompute_modules` without a list: every legal set, the empty one as no recompute.
std::vector<Assignments> legal_sets(const Scenario& scenario) {
  LeftOut ignored;
  std::vector<Assignments> values;
  for (const auto& set : recompute_sets(scenario, ignored))
    values.push_back({{"recompute_granularity", set.empty() ? "none" : "selective"},
                      {"recompute_modules", list_text(set)},
                      {"recompute_method", "none"},
                      {"recompute_num_layers", "none"}});
  return values;
}

std::vector<Assignments> values_of(const Axis& axis, const Scenario& scenario) {
  if (axis.values.empty()) {
    if (axis.name != "recompute_modules")
      throw UsageError({"--over", 0}, axis.name, "needs values (only recompute_modules has a shorthand)");
    return legal_sets(scenario);
  }
  std::vector<Assignments> values;
  for (const auto& value : axis.values) values.push_back({{axis.name, value}});
  return values;
}

/// Modules given by hand mean selective recompute, as `--recompute-modules` on a command line does for its reader.
void complete(Scenario& scenario, const Assignments& settings) {
  for (const auto& [name, value] : settings)
    if (name == "recompute_modules" && settings.size() == 1) {
      scenario.settings.recompute_granularity =
          scenario.settings.recompute_modules.empty() ? std::nullopt : std::optional<std::string>("selective");
      scenario.settings.recompute_method.reset();
      scenario.settings.recompute_num_layers.reset();
    }
}

}  // namespace

Sweep sweep(const scenario::Scenario& scenario, const std::vector<Axis>& axes, const Options& options) {
  Sweep result;
  try {
    result.baseline = options.predict(scenario);
  } catch (const UsageError&) {
    // Rows stand for themselves; `relative` stays 0.
  }
  std::vector<std::pair<Assignments, Scenario>> rows = {{{}, scenario}};
  for (const auto& axis : axes) {
    std::vector<std::pair<Assignments, Scenario>> longer;
    for (const auto& [settings, partial] : rows)
      for (const auto& value : values_of(axis, partial)) {
        auto extended = std::pair{settings, partial};
        for (const auto& [name, text] : value) {
          scenario::set(extended.second, name + "=" + text);
          extended.first.emplace_back(name, text);
        }
        complete(extended.second, value);
        longer.push_back(std::move(extended));
      }
    rows = std::move(longer);
  }
  const auto total = std::ssize(rows);
  for (auto& [settings, changed] : rows) {
    Row row;
    row.settings = settings;
    try {
      for (const auto& rule : all_rules())
        if (rule.severity == Severity::violation && row.legal && applies(rule, changed) && !applies(rule, scenario)) {
          row.legal = false;
          row.rule = rule.id;
          row.reason = finding(rule, changed).message;
        }
      if (row.legal) {
        scenario::check(changed);
        row.prediction = options.predict(changed);
        if (result.baseline && result.baseline->step_ns > 0)
          row.relative =
              static_cast<double>(row.prediction->step_ns) / static_cast<double>(result.baseline->step_ns) - 1;
      }
    } catch (const UsageError& error) {
      row.legal = false;
      row.rule = "scenario";
      row.reason = error.what();
    }
    result.rows.push_back(std::move(row));
    if (options.progress) options.progress(std::ssize(result.rows), total);
    if (options.stop.stop_requested()) break;
  }
  return result;
}

}  // namespace pipewright::plan
