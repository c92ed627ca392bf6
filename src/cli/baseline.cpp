#include "baseline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "commands.hpp"
#include "embedded.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

namespace fs = std::filesystem;

/// Scenario files and launch scripts by name.
std::map<std::string, std::string> recipes_in(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto extension = entry.path().extension();
    if (extension != ".yaml" && extension != ".yml" && extension != ".sh") continue;
    const auto [place, first] = out.emplace(entry.path().stem().string(), entry.path().string());
    if (first) continue;
    const auto [one, other] =
        std::minmax({fs::path(place->second).filename().string(), entry.path().filename().string()});
    throw UsageError({folder, 0}, place->first, fmt::format("two recipes have this name: {} and {}", one, other));
  }
  if (out.empty()) throw UsageError({folder, 0}, {}, "no recipes (*.yaml, *.sh) in this folder");
  return out;
}

void predict_side(report::RecipeSide& side, const Input& input) {
  Loaded loaded = input.load();
  side.scenario = loaded.scenario;
  auto findings = loaded.findings;
  const auto more = plan::check(loaded.scenario);
  findings.insert(findings.end(), more.begin(), more.end());
  for (const auto& finding : findings)
    if (finding.severity == plan::Severity::violation) side.violations.push_back(finding);
  if (!side.violations.empty()) return;  // a prediction would be of what cannot run
  scenario::check(loaded.scenario);
  const auto profiles = input.profiles(loaded.scenario);
  side.prediction = report::simulate_json(predict::predict(loaded.scenario, profiles, nullptr, predict::every_rank));
}

/// In a folder one recipe's fault must not hide the others: it is told in its row.
void read_side(report::RecipeSide& side, Input input, const std::string& file, bool alone) {
  if (file.empty()) return;
  input.path = file;
  stop_if_asked();
  try {
    predict_side(side, input);
  } catch (const UsageError& error) {
    if (alone) throw;
    side.problem = error.what();
  }
}

std::optional<double> half_interval_ms(const Input& input, const report::RecipeChange& change) {
  if (change.before.prediction.empty() || change.after.prediction.empty()) return {};
  const auto &a = *change.before.scenario, &b = *change.after.scenario;
  if (a.cluster.profile != b.cluster.profile) return {};
  if (!scenario::let_through(a).empty() || !scenario::let_through(b).empty()) return {};  // no interval holds
  const auto comparison = predict::compare(a, {&b}, input.profiles(b)).front();
  if (comparison.spread_ns == 0 && comparison.difference_ns == 0) return {};
  return comparison.half_interval_ns() / 1e6;
}

}  // namespace

std::vector<report::RecipeChange> recipe_changes(const Input& input, const std::string& before,
                                                 const std::string& after) {
  if (before.empty() || after.empty())
    throw UsageError({"command line", 0}, "--baseline", "compares two files or two folders: --baseline BEFORE AFTER");
  for (const auto& path : {before, after})
    if (!fs::exists(path)) throw UsageError({path, 0}, {}, "cannot read: no such file");
  const bool folders = fs::is_directory(before);
  if (folders != fs::is_directory(after))
    throw UsageError({"command line", 0}, "--baseline", "a file and a folder: give two of a kind");
  std::map<std::string, std::pair<std::string, std::string>> pairs;
  if (folders) {
    for (const auto& [name, file] : recipes_in(before)) pairs[name].first = file;
    for (const auto& [name, file] : recipes_in(after)) pairs[name].second = file;
  } else {
    pairs[fs::path(after).stem().string()] = {before, after};
  }
  std::vector<report::RecipeChange> out;
  Progress progress("check");
  for (const auto& [name, files] : pairs) {
    auto& change = out.emplace_back();
    change.name = name;
    const auto& [one, other] = files;
    change.identical = folders && !one.empty() && !other.empty() && content_of(one) == content_of(other);
    if (!change.identical) {
      read_side(change.before, input, one, !folders);
      read_side(change.after, input, other, !folders);
      change.half_interval_ms = half_interval_ms(input, change);
    }
    progress(static_cast<std::int64_t>(out.size()), static_cast<std::int64_t>(pairs.size()));
  }
  return out;
}

}  // namespace pipewright::cli
