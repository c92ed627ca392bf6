// A small part of bash's grammar, run over the text itself so that a loop's body can be run again:
//
//   list    := command ((";" | newline | "&&" | "||" | "|" | "&") command)*
//   command := if | for | while | case | "{" list "}" | "(" list ")" | NAME "()" "{" list "}" | simple
//   simple  := (NAME=word | NAME=(word*))* word* redirection*
//
// A condition that depends on the machine (a file, a program's answer) is taken as false, with a note; a program before
// && that is not asked anything is taken to succeed.
#include "shell.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "sbatch.hpp"
#include "shell_run.hpp"

namespace pipewright::emit {

namespace {

/// Every name of an arithmetic expression.
void names_in(std::string_view expression, std::set<std::string>& names) {
  for (std::size_t i = 0; i < expression.size();) {
    const auto begin = i;
    while (i < expression.size() && name_char(expression[i])) ++i;
    if (i > begin && std::isdigit(static_cast<unsigned char>(expression[begin])) == 0)
      names.emplace(expression.substr(begin, i - begin));
    i += i == begin;
  }
}

}  // namespace

ShellRun Shell::run() {
  result_.directives = sbatch_directives(in_->text());
  set_as_sbatch(result_.directives, state_);
  state_.scalars["0"] = {in_->file(), 0};
  state_.arrays["BASH_SOURCE"] = {{in_->file(), 0}};
  whole();
  return std::move(result_);
}

Truth Shell::whole() {
  const Truth truth = list({}, true);
  if (!in_->at_end()) throw in_->error("a \")\", \"}\", fi, done or esac without its beginning");
  return truth;
}

Truth Shell::list(const Words& ends, bool active) {
  Truth truth = Truth::yes;
  std::string_view before;  // the operator before a command
  bool guess = false;       // of those that && and || join
  for (;;) {
    in_->skip_separators();
    const auto word = in_->peek_word();
    if (in_->at_end() || std::ranges::find(ends, word) != ends.end()) {
      if (in_->at_end() && !ends.empty())
        throw in_->error("the script ends before \"" + std::string(ends.front()) + "\"");
      return truth;
    }
    if (word == ")" || word == "}" || word == "fi" || word == "done" || word == "esac") return truth;
    const bool done = truth == Truth::yes || truth == Truth::likely;
    const bool runs = active && going() && (before != "&&" || done) && (before != "||" || truth == Truth::no);
    if (active && going() && before == "&&" && truth == Truth::unknown && assignment(word) != std::string::npos)
      note(in_->line(), "what stands before && depends on the machine: not set: " + std::string(word));
    const auto begin = in_->place().at;
    // Both sides of a pipe run in a shell of their own; of a simple command's left side nothing stays in any case.
    const bool apart = runs && (before == "|" || (compound(word) && before_a_pipe()));
    const Truth here = guessed(runs && guess && before != "|", [&] {
      open_ = false;
      return apart ? in_subshell([&] { return command(true); }) : command(runs);
    });
    if (runs) truth = here;
    if (runs) guess = guess || open_ || truth == Truth::unknown || truth == Truth::likely;
    before = in_->take_operator();
    open_ = guess;
    if (before != "&&" && before != "||") guess = false;
    if (in_->place().at == begin) throw in_->error("not understood: " + std::string(in_->peek_word()));
  }
}

Truth Shell::command(bool active) {
  const auto word = in_->peek_word();
  if (word == "!") {
    in_->take_word();
    return !command(active);
  }
  if (word == "if") return condition(active);
  if (word == "for" || word == "select") return loop(active);
  if (word == "while" || word == "until") return conditional_loop(active);
  if (word == "case") return choice(active);
  if (word == "{" || word == "(") {
    in_->take_word();
    const bool apart = word == "(";
    const auto read = [&] {
      const Truth truth = list({apart ? ")" : "}"}, active);
      finish(apart ? ")" : "}");
      return truth;
    };
    const Truth truth = apart && active ? in_subshell(read) : read();
    in_->skip_redirections();
    return truth;
  }
  if (word == "function" || in_->at_function()) return function(active);
  if (word == "((") {
    const std::string expression = in_->take_arithmetic();
    if (!active) {
      if (set_unseen_) names_in(expression, *set_unseen_);
      return Truth::unknown;
    }
    return truth_of(value_of(expression));
  }
  return simple(active);
}

Truth Shell::truth_of(std::optional<std::int64_t> value) {
  return !value ? Truth::unknown : *value != 0 ? Truth::yes : Truth::no;
}

std::optional<std::int64_t> Shell::value_of(const std::string& expression) {
  return arithmetic(joined(Raw{expression, in_->line()}, state_, *in_.reader).text, state_);
}

bool Shell::before_a_pipe() {
  const auto here = in_->place();
  command(false);
  const bool pipe = in_->take_operator() == "|";
  in_->go_to(here);
  return pipe;
}

bool Shell::compound(std::string_view word) {
  constexpr std::array words = {"if", "for", "select", "while", "until", "case", "{"};
  return std::ranges::find(words, word) != words.end();
}

void Shell::finish(std::string_view word) {
  if (in_->peek_word() != word) throw in_->error("\"" + std::string(word) + "\" is missing");
  in_->take_word();
}

void Shell::end(int line) {
  if (guesses_ > 0) {
    note(line, "what ends the script here depends on what nobody says: taken not to");
    leaving_ = Leaving::guess;
    return;
  }
  stopped_ = true;
  result_.end = line;
}

void Shell::note(int line, const std::string& text) {
  if (result_.notes.size() < 20) result_.notes.push_back(fmt::format("{}:{}: {}", text_.file(), line, text));
}

ShellRun run_shell(std::string_view script, const std::string& file, std::map<std::string, std::string> variables,
                   const std::optional<std::vector<std::string>>& arguments) {
  return Shell(script, file, std::move(variables), arguments).run();
}

bool is_unset_variable(std::string_view word) {
  return word.starts_with("${") && word.find('}') == word.size() - 1 && word.size() > 3;
}

}  // namespace pipewright::emit
