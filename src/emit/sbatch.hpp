// #SBATCH lines of a script.
#pragma once

#include <string_view>
#include <vector>

#include "shell_words.hpp"

namespace pipewright::emit {

/// Their words, with the lines that they stand in.
std::vector<ShellWord> sbatch_directives(std::string_view script);
/// Sets what sbatch sets for the script, as they say (sbatch(1), "Output environment variables"), but for what is
/// exported already.
void set_as_sbatch(const std::vector<ShellWord>& directives, ShellState& state);

}  // namespace pipewright::emit
