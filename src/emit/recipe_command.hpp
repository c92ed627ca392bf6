// Command lines that train a recipe of Megatron Bridge: scripts/training/run_recipe.py,
// scripts/performance/run_script.py and what submits them (train.sh, setup_experiment.py), at 067f987df.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "launch.hpp"
#include "pipewright/emit.hpp"

namespace pipewright::emit {

/// Is this one of those programs?
bool runs_recipe(std::string_view program);

/// SECTION.FIELD=VALUE, and where it was said.
using Override = std::pair<std::string, Position>;

/// What machine.recipe holds (a run_config.yaml, a log that prints one, overrides), with the command's own options and
/// overrides over it. Throws UsageError for an option that none of the programs has, for one that is not read, for an
/// override that is none, and where machine.recipe is empty.
Import from_recipe_command(const Launch& launch, const Machine& machine);

/// Throws UsageError where one of the overrides is none.
void judge_overrides(const std::string& file, const Machine& machine, const std::vector<Override>& overrides);

/// Overrides or a configuration as from_bridge_text reads them, then those `beside` it.
Import read_overrides(std::string_view text, const std::string& file, const Machine& machine,
                      const std::vector<Override>& beside);

}  // namespace pipewright::emit
