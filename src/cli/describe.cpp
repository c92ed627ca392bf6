// Commands and options as data, for `list commands` and whoever reads it.
#include "describe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace pipewright::cli {
namespace {

/// What the value of an option is that its type does not tell; an option means the same in every command.
const std::map<std::string, std::string, std::less<>> value_words = {
    {"--set", "NAME=VALUE"},
    {"--set-a", "NAME=VALUE"},
    {"--set-b", "NAME=VALUE"},
    {"--env", "NAME=VALUE"},
    {"--over", "NAME=V1,V2"},
    {"--ignore", "NAME"},
    {"--json", "FILE"},
    {"--report", "FILE"},
    {"--trace", "FILE"},
    {"--csv", "FILE"},
    {"--markdown", "FILE"},
    {"--out", "FILE"},
    {"--bridge", "FILE"},
    {"--hf", "FILE"},
    {"--scenario", "FILE"},
    {"--raw", "FOLDER"},
    {"--simumax", "FILE"},
    {"--aiconfigurator", "FOLDER"},
    {"--baseline", "FILE"},
    {"--profile", "PROFILE"},
    {"--lacking", "PROFILE"},
    {"--again", "PROFILE"},
    {"--megatron", "FLAGS"},
    {"--part", "K/N"},
    {"--megatron-core", "VERSION"},
    {"--ops", "REGEX"},
    {"--step-kernel", "REGEX"},
    {"--tokens", "TOKENS"},
    {"--step-budget", "PERCENT"},
    {"--memory-budget", "BYTES"},
    {"--time-limit", "SECONDS"},
    {"--limit", "SECONDS"},
    {"--tolerance", "PERCENT"},
};

void gather(const Command& command, const std::string& name, std::vector<Leaf>& out) {
  if (command.commands().empty()) out.push_back({name, &command});
  for (const Command& below : command.commands())
    gather(below, name.empty() ? below.name() : name + " " + below.name(), out);
}

}  // namespace

std::vector<Leaf> leaves(const Command& program) {
  std::vector<Leaf> out;
  gather(program, "", out);
  return out;
}

std::string value_word(const Option& option) {
  if (option.positional()) return option.name();
  if (option.flag()) return "";
  if (!option.values_allowed().empty()) return fmt::format("{}", fmt::join(option.values_allowed(), "|"));
  if (const auto found = value_words.find(option.name()); found != value_words.end()) return found->second;
  const bool text = std::holds_alternative<std::string*>(option.target()) ||
                    std::holds_alternative<std::vector<std::string>*>(option.target()) ||
                    std::holds_alternative<std::optional<std::string>*>(option.target());
  return text ? "TEXT" : "N";
}

bool names_file(const Option& option) {
  static constexpr std::array positional = {"SCENARIO", "SIDES", "PATHS", "RECORDING", "RUNS", "TRACE", "FILES"};
  const std::string word = value_word(option);
  return word == "FILE" || word == "FOLDER" || word.starts_with("PROFILE") ||
         (option.positional() && std::ranges::find(positional, word) != positional.end());
}

nlohmann::ordered_json commands_json(const Command& program) {
  using Json = nlohmann::ordered_json;
  Json out = Json::array();
  for (const auto& [name, command] : leaves(program)) {
    Json options = Json::array();
    for (const Option& option : command->options())
      options.push_back({{"name", option.name()},
                         {"value", value_word(option)},
                         {"flag", option.flag()},
                         {"required", option.is_required()},
                         {"repeatable", option.is_repeatable()},
                         {"allowed", option.values_allowed()},
                         {"help", option.help()}});
    out.push_back({{"name", name}, {"help", command->help()}, {"options", options}});
  }
  return out;
}

std::string commands_text(const Command& program) {
  std::string out;
  for (const auto& [name, command] : leaves(program)) {
    out += fmt::format("{}: {}\n", name, command->help());
    for (const Option& option : command->options()) {
      const std::string word = option.positional() ? "" : value_word(option);
      out += fmt::format("  {}{}{}\n      {}\n", option.name(), word.empty() ? "" : " ", word, option.help());
    }
  }
  return out;
}

}  // namespace pipewright::cli
