// The commands and options of options.hpp told to others: as JSON, as manual pages, as completions of shells.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "options.hpp"

namespace pipewright::cli {

/// A command that can be run, by its whole name ("profile show").
struct Leaf {
  std::string name;
  const Command* command;
};
std::vector<Leaf> leaves(const Command& program);

/// Word for an option's value: "FILE", "PROFILE", "NAME=VALUE", "N", "TEXT"; a positional argument's own name. What
/// a shell offers for it depends on this word.
std::string value_word(const Option& option);
/// Is it the name of a file or folder?
bool names_file(const Option& option);

nlohmann::ordered_json commands_json(const Command& program);
std::string commands_text(const Command& program);

/// roff of man(7): of one command ("plan"), or of the program ("").
std::string manual_page(const Command& program, const std::string& command);

std::string bash_completion(const Command& program);
std::string zsh_completion(const Command& program);
std::string fish_completion(const Command& program);

}  // namespace pipewright::cli
