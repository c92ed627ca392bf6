// Recipes of Megatron Bridge's MixedPrecisionConfig (mixed_precision.py), and Megatron's of single modules.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

using Assignment = std::pair<std::string, std::string>;

/// The class's own values, which setup() writes over the model's as it does a recipe's.
const std::vector<Assignment>& precision_defaults();

/// By name: what a recipe sets beyond the class's defaults.
const std::map<std::string, std::vector<Assignment>>& precision_recipes();

/// RecipeConfig(matchers=[GlobMatcher(pattern, config_key)...], config_dict={key: {...}}) as settings.quant_recipe;
/// none: it says more than which recipe a module trains in (matchers or configurations of another kind, parameters kept
/// quantized, other overrides than the defaults).
std::optional<scenario::Strings> module_recipes_of(const Python& recipe);

/// The same as Python writes it. Precondition: settings.quant_recipe is not empty.
std::string module_recipes_python(const scenario::Scenario& scenario);

}  // namespace pipewright::emit
