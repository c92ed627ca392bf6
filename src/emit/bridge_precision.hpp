// Recipes of Megatron Bridge's MixedPrecisionConfig (mixed_precision.py).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pipewright::emit {

using Assignment = std::pair<std::string, std::string>;

/// By name: what a recipe sets beyond the class's defaults.
const std::map<std::string, std::vector<Assignment>>& precision_recipes();

}  // namespace pipewright::emit
