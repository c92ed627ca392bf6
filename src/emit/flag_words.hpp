// Words of a command line cut into flags and their values, as argparse does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "said_flags.hpp"
#include "shell.hpp"

namespace pipewright::emit {

/// Flags in their order; of one that stands twice the last. What a script leaves open is told in `notes`. Throws
/// UsageError with file and line: a word that belongs to no flag, a flag with one dash or with underscores.
std::vector<Given> flags_in(const std::vector<ShellWord>& words, const std::string& file,
                            std::vector<std::string>& notes);
/// Does the flag take any? True of one that nobody knows.
bool takes_values(const std::string& name);
/// The options that say what nobody does: " --env N=VALUE" of "${N}", " --arguments ..." of "${4}".
std::string to_say(const std::vector<std::string>& unset);
/// All flags that no version has, at once: what is a slip, and what another program's. `odd`: the first of those that
/// one has, without the value.
[[noreturn]] void refuse_foreign(const std::vector<Given>& foreign, const std::optional<UsageError>& odd);

}  // namespace pipewright::emit
