// `sweep`: every combination of the axes, predicted where it is legal and listed with its rule where it is not.
#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <mutex>

#include "candidates.hpp"
#include "pipewright/scenario/io.hpp"
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
  for (const auto& value : axis.values)
    if (Assignments one = {{axis.name, value}}; std::ranges::find(values, one) == values.end())
      values.push_back(std::move(one));  // whoever writes it twice gets one row
  return values;
}

/// What a value by hand switches on, as a command line does for its reader: modules mean selective recompute, a method
/// full recompute, offloaded modules or layers their kind of offload (arguments.py:1950).
Assignments switched_on(const Scenario& scenario, const Assignments& settings) {
  if (settings.size() != 1) return {};
  const auto& [name, value] = settings.front();
  const auto& s = scenario.settings;
  if (name == "recompute_modules")
    return {{"recompute_granularity", s.recompute_modules.empty() ? "none" : "selective"},
            {"recompute_method", "none"},
            {"recompute_num_layers", "none"}};
  if (name == "recompute_method" && s.recompute_method) return {{"recompute_granularity", "full"}};
  if (name == "recompute_num_layers" && s.recompute_num_layers && s.recompute_method)
    return {{"recompute_granularity", "full"}};
  if (name == "offload_modules")
    return {{"fine_grained_activation_offloading", s.offload_modules.empty() ? "false" : "true"}};
  if (name == "cpu_offloading_num_layers")
    return {{"cpu_offloading", s.cpu_offloading_num_layers > 0 ? "true" : "false"}};
  return {};
}

/// Says once what was switched on beside the swept values.
void note(std::vector<std::string>& notes, const std::string& name, const Assignments& more) {
  std::string text;
  for (const auto& [field, value] : more) text += (text.empty() ? name + " also sets " : ", ") + field;
  if (!text.empty() && std::ranges::find(notes, text) == notes.end()) notes.push_back(text);
}

}  // namespace

namespace {

using Combination = std::pair<Assignments, Scenario>;

/// The product of the axes.
std::vector<Combination> combinations(const Scenario& scenario, const std::vector<Axis>& axes,
                                      std::vector<std::string>& notes) {
  constexpr std::size_t most = 20'000;  // some 100 kB each, and a millisecond or more
  std::vector<Combination> rows = {{{}, scenario}};
  for (const auto& axis : axes) {
    std::vector<Combination> longer;
    if (axis.values.size() > most / rows.size())
      throw UsageError({"--over", 0}, axis.name,
                       "more than " + std::to_string(most) + " combinations: sweep fewer values, or a part at a time");
    for (const auto& [settings, partial] : rows)
      for (const auto& value : values_of(axis, partial)) {
        auto extended = Combination{settings, partial};
        for (const auto& [name, text] : value) {
          scenario::set(extended.second, name + "=" + text, "--over");
          extended.first.emplace_back(name, text);
        }
        auto more = switched_on(extended.second, value);
        for (const auto& [field, text] : more) scenario::set(extended.second, field + "=" + text);
        extended.second = with_required_environment(std::move(extended.second));
        for (const auto& [name, text] : extended.second.environment)
          if (const auto before = partial.environment.find(name);
              before == partial.environment.end() || before->second != text)
            more.emplace_back(name, text);
        note(notes, axis.name, more);
        longer.push_back(std::move(extended));
      }
    rows = std::move(longer);
  }
  return rows;
}

/// The first rule that the scenario breaks.
const Rule* broken_rule(const Scenario& scenario) {
  for (const auto& rule : all_rules())
    if (rule.severity == Severity::violation && applies(rule, scenario)) return &rule;
  return nullptr;
}

Row row_of(const Combination& combination, const Sweep& sweep, const Options& options) {
  const auto& [settings, changed] = combination;
  Row row;
  row.settings = settings;
  try {
    if (const Rule* rule = broken_rule(changed)) {
      row.legal = false;
      row.rule = rule->id;
      row.reason = finding(*rule, changed).message;
      return row;
    }
    scenario::check(changed);
  } catch (const UsageError& error) {
    row.legal = false;
    row.rule = "scenario";
    row.reason = error.what();
    return row;
  }
  try {
    row.prediction = options.predict(changed);
    if (sweep.baseline && sweep.baseline->step_ns > 0)
      row.relative = static_cast<double>(row.prediction->step_ns) / static_cast<double>(sweep.baseline->step_ns) - 1;
  } catch (const UsageError& error) {
    row.rule = "model";
    row.reason = error.what();
  }
  return row;
}

}  // namespace

Sweep sweep(const scenario::Scenario& scenario, const std::vector<Axis>& axes, const Options& options, Part part) {
  Sweep result;
  auto rows = combinations(scenario, axes, result.notes);
  result.combinations = std::ssize(rows);
  if (part.of > 1) {
    std::vector<Combination> some;
    for (std::int64_t i = part.first; i < result.combinations; i += part.of)
      some.push_back(std::move(rows[static_cast<std::size_t>(i)]));
    rows = std::move(some);
  }
  try {
    scenario::check(scenario);
    if (broken_rule(scenario) == nullptr) result.baseline = options.predict(scenario);
  } catch (const UsageError&) {
    // Rows stand for themselves; `relative` stays 0.
  }
  std::vector<std::optional<Row>> done(rows.size());
  std::mutex mutex;
  std::int64_t count = 0;
  tbb::task_arena arena(options.threads > 0 ? options.threads : tbb::task_arena::automatic);
  arena.execute([&] {
    tbb::parallel_for(std::size_t{0}, rows.size(), [&](std::size_t i) {
      if (options.stop.stop_requested()) return;
      done[i] = row_of(rows[i], result, options);
      const std::scoped_lock lock(mutex);
      ++count;
      if (options.progress) options.progress({"", count, std::ssize(rows)});
    });
  });
  for (auto& row : done)
    if (row) result.rows.push_back(std::move(*row));
  result.missing = std::ssize(rows) - std::ssize(result.rows);
  if (result.missing > 0)
    result.notes.push_back(
        fmt::format("interrupted, {} row{} missing", result.missing, result.missing == 1 ? " is" : "s are"));
  return result;
}

}  // namespace pipewright::plan
