// What a change of recipes does: step, memory of every rank, verdict, against a budget (check --baseline).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::report {

/// What a change may cost before the answer is no.
struct Budget {
  double step_percent = 0.5;    ///< more time for a token; half a percent is what repeats of one run differ by
  std::optional<Bytes> memory;  ///< more reserved memory on a rank; none: as long as it fits
};

/// A recipe before or after.
struct RecipeSide {
  std::optional<scenario::Scenario> scenario;  ///< none: it is not there
  std::vector<plan::Finding> violations;
  std::string prediction;  ///< what `simulate --json` writes; empty: see problem
  std::string problem;     ///< why it cannot be predicted
};

struct RecipeChange {
  std::string name;
  bool identical = false;  ///< the same bytes: not predicted
  RecipeSide before, after;
  std::optional<double> half_interval_ms;  ///< 90 % of the step's difference, what both share cancelled
};

/// Everything that the others show. A recipe's `verdict` is one of unchanged, same, faster, slower, added, removed,
/// fits, does not fit, illegal, unknown; `over` says what exceeds the budget; `relative` is time a token on a GPU.
std::string change_json(const std::vector<RecipeChange>& recipes, const Budget& budget);
bool within_budget(const std::string& change_json);
std::string change_text(const std::string& change_json);
/// For a comment on a pull request: one table, and a folded part a recipe.
std::string change_markdown(const std::string& change_json);

}  // namespace pipewright::report
