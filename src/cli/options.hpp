// Commands and their options as data: declared once, read by the parser, by --help, and by whatever else lists them
// (man pages, completions). Only options.cpp knows the library that parses.
//
//   Command& simulate = program.add_subcommand("simulate", "Predict a training step");
//   simulate.add_option("--json", json, "write JSON to this file").required();
//   simulate.callback([&] { ... });
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pipewright::cli {

/// One option: a positional argument if its name has no dashes, a flag if it sets a bool.
class Option {
 public:
  using Target = std::variant<bool*, std::string*, std::vector<std::string>*, int*, long long*, double*,
                              std::optional<int>*, std::optional<double>*, std::optional<std::string>*>;

  Option(std::string name, Target target, std::string help)
      : name_(std::move(name)), help_(std::move(help)), target_(target) {}

  Option& required() { return required_ = true, *this; }
  /// One value each time it is named: what follows it is not swallowed.
  Option& repeatable() { return repeatable_ = true, *this; }
  Option& expected(int count) { return expected(count, count); }
  Option& expected(int least, int most) { return count_ = {{least, most}}, *this; }
  /// The heading of --help under which it stands.
  Option& group(std::string heading) { return group_ = std::move(heading), *this; }
  Option& allowed(std::vector<std::string> values) { return allowed_ = std::move(values), *this; }
  /// What shells offer where other values are allowed, too.
  Option& suggested(std::vector<std::string> values) { return suggested_ = std::move(values), *this; }
  Option& needs(const Option& other) { return needs_ = &other, *this; }
  Option& excludes(const Option& other) { return excludes_ = &other, *this; }
  /// A command line of its own: all that stands after "--", and nothing of it goes to another argument.
  Option& after_dashes() { return after_dashes_ = true, *this; }
  /// Files that are read, as those of a positional argument: "-" is standard input.
  Option& reads() { return reads_ = true, *this; }

  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const Target& target() const { return target_; }
  bool positional() const { return name_.front() != '-'; }
  bool flag() const { return std::holds_alternative<bool*>(target_); }
  bool is_required() const { return required_; }
  bool is_repeatable() const { return repeatable_; }
  bool is_after_dashes() const { return after_dashes_; }
  bool is_read() const { return reads_ || (positional() && !after_dashes_); }
  const std::optional<std::pair<int, int>>& count() const { return count_; }
  const std::string& heading() const { return group_; }
  const std::vector<std::string>& values_allowed() const { return allowed_; }
  const std::vector<std::string>& values_suggested() const { return suggested_.empty() ? allowed_ : suggested_; }
  const Option* needed() const { return needs_; }
  const Option* excluded() const { return excludes_; }
  /// What the command line gave, after parsing; empty for a flag that is not set or an option that is not named.
  const std::vector<std::string>& given() const { return given_; }
  void give(std::vector<std::string> words) { given_ = std::move(words); }

 private:
  std::string name_, help_, group_;
  Target target_;
  bool required_ = false, repeatable_ = false, after_dashes_ = false, reads_ = false;
  std::optional<std::pair<int, int>> count_;
  std::vector<std::string> allowed_, suggested_, given_;
  const Option* needs_ = nullptr;
  const Option* excludes_ = nullptr;
};

/// A command, or the program with its commands. Options and commands keep their addresses.
class Command {
 public:
  Command(std::string name, std::string help) : name_(std::move(name)), help_(std::move(help)) {}

  Command& add_subcommand(std::string name, std::string help) {
    return commands_.emplace_back(std::move(name), std::move(help));
  }
  Option& add_option(std::string name, Option::Target target, std::string help) {
    return options_.emplace_back(std::move(name), target, std::move(help));
  }
  Option& add_flag(std::string name, bool& target, std::string help) {
    return options_.emplace_back(std::move(name), &target, std::move(help));
  }
  template <class T>
  Option& add_option(std::string name, T& target, std::string help) {
    return add_option(std::move(name), Option::Target(&target), std::move(help));
  }
  void footer(std::string text) { footer_ = std::move(text); }
  void callback(std::function<void()> run) { run_ = std::move(run); }

  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const std::string& footer() const { return footer_; }
  const std::function<void()>& callback() const { return run_; }
  std::deque<Command>& commands() { return commands_; }
  std::deque<Option>& options() { return options_; }
  const std::deque<Command>& commands() const { return commands_; }
  const std::deque<Option>& options() const { return options_; }

 private:
  std::string name_, help_, footer_;
  std::function<void()> run_;
  std::deque<Command> commands_;
  std::deque<Option> options_;
};

/// What became of a command line.
struct Parsed {
  bool ran = false;  ///< the callback of the command that it names
  int status = 0;    ///< otherwise: of the help or version that was printed
};
/// Throws UsageError with the nearest name for what it does not know. `version`: what --version prints.
Parsed parse(Command& program, const std::string& version, int argc, char** argv);

}  // namespace pipewright::cli
