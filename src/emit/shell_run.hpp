// A script while it is followed: what it has set, where it is, what it calls.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shell_condition.hpp"
#include "shell_words.hpp"

namespace pipewright::emit {

/// What goes on behind here no more: a loop's pass, a loop, a function, what runs for a guess alone.
enum class Leaving : unsigned char { none, pass, loop, function, guess };

/// The text that is read now: the script, or what an eval made.
struct Reading {
  ShellReader* reader;
  ShellReader* operator->() const { return reader; }
};

/// One script from its first to its last command; the scripts within it have each their own.
class Shell {
 public:
  Shell(std::string_view text, const std::string& file, std::map<std::string, std::string> variables,
        const std::optional<std::vector<std::string>>& arguments = {})
      : text_(text, file), in_{&text_} {
    for (auto& [name, value] : variables) {
      state_.scalars[name] = {value, 0};
      state_.exported.insert(name);
      said_[name] = value;
    }
    state_.output = [this](std::string_view command, int line) { return printed(command, line); };
    if (!arguments) return;
    state_.arguments.emplace();
    for (const auto& one : *arguments) state_.arguments->push_back({one, 0});
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;
  ShellRun run();

 private:
  using Words = std::vector<std::string_view>;

  // Grammar (shell.cpp).
  Truth whole();
  bool going() const { return !stopped_ && leaving_ == Leaving::none; }
  /// Runs what is reached by a condition that depends on what nobody says: a script that ends there is another run's,
  /// and goes on here.
  template <class Part>
  auto guessed(bool guess, const Part& part) {
    if (!guess) return part();
    ++guesses_;
    const auto result = part();
    --guesses_;
    if (leaving_ == Leaving::guess) leaving_ = Leaving::none;
    return result;
  }
  void end(int line);
  /// Commands up to one of `ends` (which stays to be read); returns the truth of the last.
  Truth list(const Words& ends, bool active);
  Truth command(bool active);
  static Truth truth_of(std::optional<std::int64_t> value);
  std::optional<std::int64_t> value_of(const std::string& expression);
  /// Does a pipe follow the command that begins here? It is passed over and stays to be read.
  bool before_a_pipe();
  /// What is set, left or ended in `part` is so within it only; it leaves no loop around it.
  template <class Part>
  Truth in_subshell(const Part& part) {
    ShellState before = state_;
    const auto leaving = leaving_;
    const int loops = std::exchange(loops_, 0);
    const Truth truth = part();
    before.words = state_.words;
    state_ = std::move(before);
    leaving_ = leaving;
    loops_ = loops;
    stopped_ = false;  // it was going when this began
    return truth;
  }
  static bool compound(std::string_view word);
  void finish(std::string_view word);
  void note(int line, const std::string& text);

  // Conditions, loops, functions (shell_flow.cpp).
  Truth condition(bool active);
  /// A pass of a loop is over; true: so is the loop.
  bool left();
  /// Does what was read since `place` ask for the script's own arguments, which count as none?
  bool asks_arguments(const ShellReader::Place& place);
  /// Runs condition and body over and over, as far as the condition is known; the body is passed over in the end.
  /// What a loop sets that is not followed is not known behind it.
  Truth passes(bool active, int line, const std::function<Truth(bool)>& condition, const ShellReader::Place& top);
  Truth conditional_loop(bool active);
  /// for (( begin; condition; step ))
  Truth counting_loop(bool active);
  Truth loop(bool active);
  Truth choice(bool active);
  Truth function(bool active);

  // Simple commands and their assignments (shell_simple.cpp).
  Truth simple(bool active);
  /// Of NAME=$(command) that nobody can run, NAME=${#NODES[@]}: what the caller says of NAME, else ${NAME}.
  void settle(const std::string& name, ShellWord& value) const;
  void restore(const std::map<std::string, std::optional<ShellWord>>& values);
  /// Before `declare -A NAME` and so on: what kind NAME is; a function's own come back as they were when it ends.
  /// Returns the name that this one begins to hide.
  std::string declare(const std::vector<Raw>& words, const std::string& text);
  using Named = std::pair<std::string, ShellWord>;
  /// NAME=word or NAME+=word is returned; NAME=( words ) and NAME[KEY]=word are done, without a name. nullopt: the word
  /// is no assignment. `declared`: what this command has set so far.
  std::optional<Named> assign(const Raw& raw, bool active, const std::map<std::string, ShellWord>& declared);
  void add(ShellCommand command);
  /// [KEY]=word of NAME: an element of a list unless NAME was declared with -A or KEY is no number.
  void enter(const std::string& name, const std::string& entry, int line);

  // What a shell does itself (shell_builtins.cpp).
  /// echo WORDS, expr NUMBERS, a function of the script that only echoes; of anything else nothing is known.
  std::optional<std::string> printed(std::string_view text, int line);
  static std::optional<std::string> echoed(const std::vector<ShellWord>& words);
  /// read NAME << END: the text, its lines apart from each other; read NAMES <<< word: its parts.
  void read(const ShellCommand& command);
  /// sbatch << END, bash << END, cat << END of a text that begins with #!: the here-document is a script, too.
  void inner_script(const std::string& name);
  Truth built_in(ShellCommand command, const std::vector<Raw>& raws, int line);
  void deeper();
  Truth call(const ShellCommand& command, int);
  /// The words once more, as a script.
  Truth eval(const ShellCommand& command, int line);
  /// A file's commands, as if they stood here; a note where it is not there, or no shell's.
  Truth source(const ShellCommand& command, int line);
  /// dirname, basename, realpath, readlink -f of a path, and `cd FOLDER && pwd`.
  static std::optional<std::string> path_printed(const std::vector<ShellWord>& words);

  /// What a function's `local` hides.
  struct Variable {
    std::optional<ShellWord> scalar;
    std::optional<std::vector<ShellWord>> array;
    std::optional<std::map<std::string, ShellWord>> table;
  };

  ShellReader text_;
  Reading in_;
  std::deque<std::string> texts_;    ///< of evals and sources: functions may have been written in them
  std::deque<ShellReader> readers_;  ///< theirs
  ShellState state_;
  std::map<std::string, std::string> said_;  ///< by the caller
  ShellRun result_;
  std::map<std::string, std::pair<ShellReader*, ShellReader::Place>> functions_;
  std::vector<std::map<std::string, Variable>> frames_;  ///< of the functions that run
  Leaving leaving_ = Leaving::none;
  int levels_ = 0;  ///< loops that break and continue mean
  int loops_ = 0;   ///< around here, in this function
  int passes_ = 0;  ///< of all loops so far
  int depth_ = 0;
  int sources_ = 0;                                  ///< files that are read now
  int guesses_ = 0;                                  ///< conditions around here that depend on what nobody says
  bool open_ = false;                                ///< so did the last command's truth
  std::optional<std::set<std::string>> set_unseen_;  ///< of a loop that is passed over: what it would set
  std::size_t outputs_ = 0;                          ///< of $( ) so far
  int scripts_ = 0;                                  ///< here-documents that are scripts, those within them included
  bool stopped_ = false;
};

}  // namespace pipewright::emit
