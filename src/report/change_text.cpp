// `check --baseline`: everything is computed once, as JSON; text and Markdown read that.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format.hpp"
#include "pipewright/change.hpp"
#include "pipewright/diff.hpp"
#include "pipewright/plan.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

/// Time that a token takes a GPU: the step's, where GPUs and batch stay.
double per_token(const Json& prediction) { return 1 / prediction.at("tokens_per_s_per_gpu").get<double>(); }

std::optional<double> measured_per_token(const scenario::Scenario& s) {
  if (!s.measured) return {};
  if (s.measured->tokens_per_s_per_gpu) return 1 / *s.measured->tokens_per_s_per_gpu;
  if (!s.measured->step_ms) return {};
  return *s.measured->step_ms / 1e3 * static_cast<double>(s.cluster.num_gpus) /
         static_cast<double>(s.settings.global_batch_size * s.model.seq_length);
}

Json rules_of(const std::vector<plan::Finding>& findings) {
  Json out = Json::array();
  for (const auto& f : findings) out.push_back({{"rule", f.rule}, {"message", f.message}, {"fix", f.fix}});
  return out;
}

std::int64_t held(const Json& rank) {
  return rank.at("peak_reserved_bytes").get<std::int64_t>() + rank.at("outside_allocator_bytes").get<std::int64_t>();
}

/// The rank that takes most of its device, and how much that is.
std::pair<std::int64_t, std::int64_t> fullest(const Json& prediction) {
  std::pair<std::int64_t, std::int64_t> out{0, 0};
  for (const auto& rank : prediction.at("ranks"))
    if (held(rank) > out.second) out = {rank.at("pp_rank"), held(rank)};
  return out;
}

Json side_json(const RecipeSide& side) {
  if (!side.scenario) return nullptr;
  Json out = {{"configuration", configuration_json(*side.scenario)}, {"violations", rules_of(side.violations)}};
  if (!side.problem.empty()) out["problem"] = side.problem;
  if (side.prediction.empty()) return out;
  const Json p = Json::parse(side.prediction);
  const auto [rank, bytes] = fullest(p);
  for (const char* key : {"step_time_ms", "interval_ms", "tflops_per_gpu", "tokens_per_s_per_gpu"})
    out[key] = p.at(key);
  out["fullest"] = {{"pp_rank", rank}, {"bytes", bytes}};
  out["fits"] = p.at("fits");
  return out;
}

/// By how much each rank holds more than before; where their number changed, the fullest one (rank -1).
std::vector<std::pair<std::int64_t, std::int64_t>> growth(const Json& before, const Json& after) {
  const auto &a = before.at("ranks"), &b = after.at("ranks");
  if (a.size() != b.size()) return {{-1, fullest(after).second - fullest(before).second}};
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (std::size_t r = 0; r < a.size(); ++r) out.emplace_back(b.at(r).at("pp_rank"), held(b.at(r)) - held(a.at(r)));
  return out;
}

void judge(Json& out, const RecipeChange& recipe, const Budget& budget) {
  Json over = Json::array();
  std::string verdict = "same";
  const RecipeSide &a = recipe.before, &b = recipe.after;
  const auto settle = [&] {
    out["verdict"] = verdict;
    out["over"] = over;
  };
  if (recipe.identical) return verdict = "unchanged", settle();
  if (!b.scenario && b.problem.empty()) return verdict = "removed", settle();
  if (!b.violations.empty()) {
    verdict = "illegal";
    for (const auto& f : b.violations) over.push_back("breaks " + f.rule);
  } else if (b.prediction.empty()) {
    verdict = "unknown";
    over.push_back("cannot be predicted: " + b.problem);
  }
  if (b.prediction.empty()) return settle();
  const Json after = Json::parse(b.prediction);
  const bool fits = after.at("fits");
  if (!fits) over.push_back("does not fit");
  if (!a.scenario || a.prediction.empty()) {
    if (verdict == "same") verdict = !fits ? "does not fit" : a.scenario || !a.problem.empty() ? "fits" : "added";
    return settle();
  }
  const Json before = Json::parse(a.prediction);
  const double relative = per_token(after) / per_token(before) - 1;
  out["relative"] = rounded(relative, 6);
  constexpr double tie = 0.005;  // what repeats of one run differ by
  if (100 * relative > budget.step_percent)
    over.push_back(fmt::format("{} time a token (budget {} %)", percent(relative), budget.step_percent));
  if (budget.memory)
    for (const auto& [rank, bytes] : growth(before, after))
      if (bytes > budget.memory->value)
        over.push_back(fmt::format("{} holds {} more (budget {})",
                                   rank < 0 ? "the fullest rank" : fmt::format("rank {}", rank),
                                   format_bytes(Bytes(bytes)), format_bytes(*budget.memory)));
  if (verdict == "same")
    verdict = !fits                            ? "does not fit"
              : !before.at("fits").get<bool>() ? "fits"
              : std::abs(relative) <= tie      ? "same"
              : relative > 0                   ? "slower"
                                               : "faster";
  settle();
  const auto one = measured_per_token(*a.scenario), other = measured_per_token(*b.scenario);
  if (one && other) out["measured_relative"] = rounded(*other / *one - 1, 6);
}

}  // namespace

std::string change_json(const std::vector<RecipeChange>& recipes, const Budget& budget) {
  Json list = Json::array();
  bool within = true;
  for (const auto& recipe : recipes) {
    Json out = {{"name", recipe.name}};
    judge(out, recipe, budget);
    within = within && out.at("over").empty();
    if (!recipe.identical) {
      out["before"] = side_json(recipe.before);
      out["after"] = side_json(recipe.after);
      if (!recipe.after.problem.empty()) out["problem"] = recipe.after.problem;
    }
    if (!recipe.before.prediction.empty() && !recipe.after.prediction.empty()) {
      out["difference_ms"] = rounded(
          out.at("after").at("step_time_ms").get<double>() - out.at("before").at("step_time_ms").get<double>(), 6);
      out["difference_90_ms"] = recipe.half_interval_ms ? Json(rounded(*recipe.half_interval_ms, 3)) : Json();
      out["diff"] = Json::parse(diff_json({"before", recipe.before.prediction, &*recipe.before.scenario, {}},
                                          {"after", recipe.after.prediction, &*recipe.after.scenario, {}}));
    }
    list.push_back(out);
  }
  const Stamp stamp;
  return dumped(
      {{"budget",
        {{"step_percent", budget.step_percent}, {"memory_bytes", budget.memory ? Json(budget.memory->value) : Json()}}},
       {"within_budget", within},
       {"recipes", list}},
      &stamp);
}

bool within_budget(const std::string& json) { return Json::parse(json).at("within_budget"); }

namespace {

std::string step_text(const Json& side) {
  return side.is_object() && side.contains("step_time_ms")
             ? fmt::format("{:.1f}", side.at("step_time_ms").get<double>())
             : "-";
}
std::string memory_text(const Json& side) {
  if (!side.is_object() || !side.contains("fullest")) return "-";
  const Bytes bytes(side.at("fullest").at("bytes").get<std::int64_t>());
  return gibibytes(bytes) + (side.at("fits").get<bool>() ? "" : "!");
}
std::string relative_text(const Json& recipe, const char* key) {
  return recipe.contains(key) ? percent(recipe.at(key)) : "-";
}
/// "slower", and why the answer is no.
std::string verdict_text(const Json& recipe) {
  const auto verdict = recipe.at("verdict").get<std::string>();
  std::string why;
  for (const auto& over : recipe.at("over"))
    if (const auto one = over.get<std::string>(); one != verdict) why += (why.empty() ? ": " : "; ") + one;
  return verdict + why;
}

struct Rows {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::size_t unchanged = 0;
};

Rows rows_of(const Json& change) {
  const auto& recipes = change.at("recipes");
  const bool measured = std::ranges::any_of(recipes, [](const auto& r) { return r.contains("measured_relative"); });
  Rows out{{"recipe", "step ms before", "after", "time a token"}, {}, 0};
  if (measured) out.header.emplace_back("measured");
  out.header.insert(out.header.end(), {"GiB of the fullest rank", "after", "verdict"});
  for (const auto& recipe : recipes) {
    if (recipe.at("verdict") == "unchanged") {
      ++out.unchanged;
      continue;
    }
    const Json before = recipe.value("before", Json()), after = recipe.value("after", Json());
    std::vector<std::string> row = {recipe.at("name"), step_text(before), step_text(after),
                                    relative_text(recipe, "relative")};
    if (measured) row.push_back(relative_text(recipe, "measured_relative"));
    row.insert(row.end(), {memory_text(before), memory_text(after), verdict_text(recipe)});
    out.rows.push_back(std::move(row));
  }
  return out;
}

std::string closing(const Json& change, const Rows& rows) {
  std::string out = rows.unchanged == 0 ? "" : counted(rows.unchanged, "recipe") + " did not change. ";
  return out + (change.at("within_budget").get<bool>() ? "Within the budget.\n" : "Beyond the budget.\n");
}

std::string value_text(const Json& value) { return value.is_null() ? "unset" : value.get<std::string>(); }

/// What is behind a recipe's row.
std::string details(const Json& recipe) {
  std::string out;
  const Json after = recipe.value("after", Json());
  for (const auto& broken : after.is_object() ? after.at("violations") : Json::array())
    out += fmt::format("- breaks {}: {}\n", broken.at("rule").get<std::string>(),
                       plan::with_fix(broken.at("message").get<std::string>(), broken.at("fix").get<std::string>()));
  if (!recipe.contains("diff")) return out;
  const auto& diff = recipe.at("diff");
  if (!diff.at("settings").empty()) {
    out += "\n| setting | before | after |\n|---|---|---|\n";
    for (const auto& one : diff.at("settings"))
      out += fmt::format("| `{}` | {} | {} |\n", one.at("name").get<std::string>(), value_text(one.at("a")),
                         value_text(one.at("b")));
  }
  out += "\n| ms of the rank that finishes last | before | after | change |\n|---|---|---|---|\n";
  for (const auto& one : diff.at("time")) {
    const double a = one.at("a_ms"), b = one.at("b_ms");
    if (a != 0 || b != 0)
      out += fmt::format("| {} | {:.1f} | {:.1f} | {:+.1f} |\n", one.at("cause").get<std::string>(), a, b, b - a);
  }
  out += "\n| rank | GiB reserved and outside, before | after | change |\n|---|---|---|---|\n";
  for (const auto& rank : diff.at("ranks")) {
    const auto of = [&](const char* side) {
      return Bytes(rank.at("peak_reserved_bytes").at(side).get<std::int64_t>() +
                   rank.at("outside_allocator_bytes").at(side).get<std::int64_t>());
    };
    out += fmt::format("| {} | {} | {} | {:+.2f} |\n", rank.at("pp_rank").get<int>(), gibibytes(of("a")),
                       gibibytes(of("b")), gib(of("b")) - gib(of("a")));
  }
  return out;
}

}  // namespace

std::string change_text(const std::string& text) {
  const Json change = Json::parse(text);
  const Rows rows = rows_of(change);
  Table table(rows.header);
  for (const auto& row : rows.rows) table.add(row);
  std::string out = rows.rows.empty() ? "" : table.text() + "(time a token: on one GPU; !: does not fit)\n";
  for (const auto& recipe : change.at("recipes")) {
    if (recipe.at("verdict") == "unchanged" || !recipe.contains("diff")) continue;
    out += "\n" + recipe.at("name").get<std::string>() + "\n";
    const std::string whole = diff_text(recipe.at("diff").dump());
    out += whole.substr(whole.find("step "));
    if (!recipe.at("difference_90_ms").is_null())
      out += fmt::format("difference {:+.1f} ms +- {:.1f} (90 %, what both share cancelled)\n",
                         recipe.at("difference_ms").get<double>(), recipe.at("difference_90_ms").get<double>());
  }
  return out + (out.empty() ? "" : "\n") + closing(change, rows);
}

std::string change_markdown(const std::string& text) {
  const Json change = Json::parse(text);
  const Rows rows = rows_of(change);
  std::string out;
  if (!rows.rows.empty()) {
    out = fmt::format("| {} |\n|{}\n", fmt::join(rows.header, " | "), [&] {
      std::string rule;
      for (std::size_t i = 0; i < rows.header.size(); ++i) rule += "---|";
      return rule;
    }());
    for (const auto& row : rows.rows) out += fmt::format("| {} |\n", fmt::join(row, " | "));
    out += "\n";
  }
  out += closing(change, rows);
  for (const auto& recipe : change.at("recipes")) {
    const std::string more = recipe.at("verdict") == "unchanged" ? "" : details(recipe);
    if (more.empty()) continue;
    out +=
        fmt::format("\n<details><summary>{}</summary>\n\n{}\n</details>\n", recipe.at("name").get<std::string>(), more);
  }
  return out;
}

}  // namespace pipewright::report
