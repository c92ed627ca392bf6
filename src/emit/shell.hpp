// What a launch script would run: variables, arrays, conditions and loops of bash are followed as far as they can be
// without running anything. A variable that the script does not set stays in the words as ${NAME}.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::emit {

struct ShellWord {
  std::string text;
  int line = 0;  ///< where it is written, also when it came out of an array; 0: nowhere (a default of the reader's)
};
struct ShellCommand {
  std::vector<ShellWord> words;
  std::map<std::string, std::string> variables;  ///< NAME=value before the command, and what was exported by then
};

struct ShellRun {
  std::vector<ShellCommand> commands;  ///< in the order in which they would run
  std::vector<ShellWord> directives;   ///< words of #SBATCH lines
  std::vector<std::string> notes;      ///< conditions that depend on the machine, files that were not read
  std::optional<int> end;              ///< the line of the exit that ended it
};

/// `variables`: of the caller's environment; `arguments`: $1, $2, ..., where somebody says them. Files that the script
/// sources are read where they are there. Throws UsageError with file and line: a quote or bracket that is not closed;
/// more than 100,000 words, 10,000 commands or 1 MiB.
ShellRun run_shell(std::string_view script, const std::string& file, std::map<std::string, std::string> variables,
                   const std::optional<std::vector<std::string>>& arguments = {});

/// Is this word a variable that nothing sets ("${NAME}")?
bool is_unset_variable(std::string_view word);

}  // namespace pipewright::emit
