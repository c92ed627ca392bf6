// Recipes of Megatron Bridge's MixedPrecisionConfig (mixed_precision.py).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pipewright::emit {

using Assignment = std::pair<std::string, std::string>;

/// The class's own values, which setup() writes over the model's as it does a recipe's.
const std::vector<Assignment>& precision_defaults();

/// By name: what a recipe sets beyond the class's defaults.
const std::map<std::string, std::vector<Assignment>>& precision_recipes();

}  // namespace pipewright::emit
