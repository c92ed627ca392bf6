// check --baseline: recipes as they were and as they are.
#pragma once

#include <string>
#include <vector>

#include "input.hpp"
#include "pipewright/change.hpp"

namespace pipewright::cli {

/// Two files, or the recipes of the same name in two folders. `input`: overrides, profiles and machine for both sides.
std::vector<report::RecipeChange> recipe_changes(const Input& input, const std::string& before,
                                                 const std::string& after);

}  // namespace pipewright::cli
