// The data of options.hpp handed to CLI11.
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <string_view>

#include "commands.hpp"
#include "pipewright/base.hpp"

namespace pipewright::cli {
namespace {

using Made = std::map<const Option*, CLI::Option*>;

void declare(CLI::App& app, Option& option, Made& made) {
  CLI::Option* o = std::visit(
      [&](auto* target) {
        if constexpr (std::is_same_v<decltype(target), bool*>) {
          return app.add_flag(option.name(), *target, option.help());
        } else {
          return app.add_option(option.name(), *target, option.help());
        }
      },
      option.target());
  made[&option] = o;
  o->required(option.is_required());
  if (option.is_repeatable()) o->allow_extra_args(false);
  if (option.count()) o->expected(option.count()->first, option.count()->second);
  if (!option.heading().empty()) o->group(option.heading());
  if (!option.values_allowed().empty()) o->check(CLI::IsMember(option.values_allowed()));
  if (option.needed() != nullptr) o->needs(made.at(option.needed()));
  if (option.excluded() != nullptr) o->excludes(made.at(option.excluded()));
}

/// "-" is standard input.
void from_standard_input(Option& option) {
  const auto name = [](std::string& word) {
    if (word == "-") word = "/dev/stdin";
  };
  if (auto* const* one = std::get_if<std::string*>(&option.target())) name(**one);
  if (auto* const* all = std::get_if<std::vector<std::string>*>(&option.target())) std::ranges::for_each(**all, name);
}

void declare(CLI::App& app, Command& command, Made& made) {
  app.footer(command.footer());
  for (Option& option : command.options()) declare(app, option, made);
  if (command.callback()) {
    app.callback([&command, &made] {
      for (Option& option : command.options()) {
        const CLI::Option* o = made.at(&option);
        if (o->count() == 0) continue;
        const bool text = std::holds_alternative<std::string*>(option.target());
        const bool words = option.positional() && std::holds_alternative<std::vector<std::string>*>(option.target());
        if ((text || words) && std::ranges::find(o->results(), "") != o->results().end())
          throw UsageError({"command line", 0}, option.name(), "is empty");  // a shell's variable that is not set
        if (option.is_read()) from_standard_input(option);
        option.give(o->results());
      }
      try {
        command.callback()();
      } catch (const Refused& refusal) {
        answer_with_error(command, "refused", refusal.what());
        throw;
      } catch (const UsageError& error) {
        answer_with_error(command, "input", error.what());
        throw;
      }
    });
  }
  for (Command& below : command.commands()) declare(*app.add_subcommand(below.name(), below.help()), below, made);
  if (!command.commands().empty()) app.require_subcommand(1);
}

/// Throws for a word that the option does not take: another kind of number, none of the allowed values.
void require_value(const Option& option, const std::string& word) {
  const auto refuse = [&](const std::string& expected) {
    throw UsageError({"command line", 0}, option.name(), fmt::format("expected {}, found \"{}\"", expected, word));
  };
  const auto reads = [&](auto number) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    return error == std::errc() && end == word.data() + word.size();
  };
  std::visit(
      [&](const auto* target) {
        using Value = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<Value, int> || std::is_same_v<Value, std::optional<int>>) {
          if (!reads(int{})) refuse("an integer, at most 2^31 - 1");
        } else if constexpr (std::is_same_v<Value, long long>) {
          if (!reads(0LL)) refuse("an integer, at most 2^63 - 1");
        } else if constexpr (std::is_same_v<Value, double> || std::is_same_v<Value, std::optional<double>>) {
          if (!reads(double{})) refuse("a number");
        }
      },
      option.target());
  const auto& allowed = option.values_allowed();
  if (!allowed.empty() && std::ranges::find(allowed, word) == allowed.end())
    throw UsageError({"command line", 0}, option.name(), fmt::format("unknown value \"{}\"", word), allowed,
                     nearest_name(word, allowed));
}

/// What CLI11 refused, said with the nearest name; its own text where no name is misspelled.
[[noreturn]] void refuse(const Command& program, int argc, char** argv, const CLI::ParseError& error) {
  const Command* command = &program;
  int words = 0;  // of the command, beside its options
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") break;
    if (argument.rfind("--", 0) == 0) {
      const std::string name = argument.substr(0, argument.find('='));
      std::vector<std::string> known{"--help"};
      if (command == &program) known.push_back("--version");
      const Option* found = nullptr;
      for (const Option& option : command->options()) {
        if (option.positional()) continue;
        known.push_back(option.name());
        if (option.name() == name) found = &option;
      }
      if (found != nullptr) {
        if (found->flag()) continue;
        const bool apart = name == argument;  // its value may begin with "--"
        if (apart && ++i == argc) throw UsageError({"command line", 0}, name, "a value is missing");
        require_value(*found, apart ? argv[i] : argument.substr(name.size() + 1));
        for (int more = found->count() ? found->count()->second - 1 : 0;
             more > 0 && i + 1 < argc && *argv[i + 1] != '-'; --more)
          ++i;
        continue;
      }
      if (name == "--help" || (command == &program && name == "--version")) continue;
      throw UsageError({"command line", 0}, name, "unknown option", known, nearest_name(name, known));
    }
    if (argument.rfind('-', 0) == 0) continue;
    if (command->commands().empty()) {
      for (const Option& option : command->options())
        if (option.positional() && !option.count() && std::holds_alternative<std::string*>(option.target())) {
          if (words++ == 0)
            require_value(option, argument);
          else
            throw UsageError({"command line", 0}, argument, "one word too many, after " + option.name());
        }
      continue;
    }
    std::vector<std::string> known;
    const Command* next = nullptr;
    for (const Command& below : command->commands()) {
      known.push_back(below.name());
      if (below.name() == argument) next = &below;
    }
    if (next == nullptr) {
      throw UsageError({"command line", 0}, argument, "unknown command", known, nearest_name(argument, known));
    }
    command = next;
  }
  if (!command->commands().empty()) {
    std::vector<std::string> known;
    for (const Command& below : command->commands()) known.push_back(below.name());
    throw UsageError({"command line", 0}, command->name(), "a command is missing", known);
  }
  throw UsageError({"command line", 0}, {}, error.what());
}

/// The option of the named command to which everything after "--" belongs, or null.
Option* taker_of_rest(Command& program, int argc, char** argv) {
  Command* command = &program;
  for (int i = 1; i < argc && !command->commands().empty(); ++i)
    for (Command& below : command->commands())
      if (below.name() == argv[i]) {
        command = &below;
        break;
      }
  for (Option& option : command->options())
    if (option.is_after_dashes()) return &option;
  return nullptr;
}

}  // namespace

Parsed parse(Command& program, const std::string& version, int argc, char** argv) {
  CLI::App app{program.help(), program.name()};
  app.set_version_flag("--version", version);
  Made made;
  declare(app, program, made);
  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return {false, 2};
  }
  const int dashes = static_cast<int>(
      std::find_if(argv + 1, argv + argc, [](const char* word) { return std::string_view(word) == "--"; }) - argv);
  if (Option* rest = dashes < argc ? taker_of_rest(program, dashes, argv) : nullptr) {
    auto& words = *std::get<std::vector<std::string>*>(rest->target());
    words.assign(argv + dashes + 1, argv + argc);
    rest->give(words);
    argc = dashes;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return {false, app.exit(success)};
  } catch (const CLI::ParseError& error) {
    refuse(program, argc, argv, error);
  }
  return {true, 0};
}

}  // namespace pipewright::cli
