// Conditions, loops, choices and functions of a script.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shell_run.hpp"

namespace pipewright::emit {

Truth Shell::condition(bool active) {
  bool done = false, guess = false;
  for (auto word = in_->peek_word(); word == "if" || word == "elif"; word = in_->peek_word()) {
    in_->take_word();
    const int line = in_->line();
    open_ = false;
    const Truth truth = list({"then"}, active && !done);
    guess = guess || (!done && (open_ || truth == Truth::unknown || truth == Truth::likely));
    finish("then");
    if (active && !done && truth == Truth::unknown) note(line, "this condition depends on the machine: taken as false");
    const bool taken = active && !done && truth == Truth::yes;
    guessed(taken && guess, [&] { return list({"elif", "else", "fi"}, taken); });
    done = done || taken;
  }
  if (in_->peek_word() == "else") {
    in_->take_word();
    guessed(active && !done && guess, [&] { return list({"fi"}, active && !done); });
  }
  finish("fi");
  in_->skip_redirections();
  open_ = false;
  return Truth::yes;
}

bool Shell::left() {
  if (++passes_ > 100'000) throw in_->error("loops of more than 100,000 passes");
  if (leaving_ == Leaving::function || leaving_ == Leaving::guess || stopped_) return true;
  if (leaving_ == Leaving::none) return false;
  if (--levels_ > 0) return true;  // an outer loop is meant
  return std::exchange(leaving_, Leaving::none) == Leaving::loop;
}

bool Shell::asks_arguments(const ShellReader::Place& place) {
  const auto text = in_->text().substr(place.at, in_->place().at - place.at);
  return std::ranges::any_of(std::array{"$#", "$1", "$@", "${1", "getopts"},
                             [&](std::string_view one) { return text.find(one) != std::string_view::npos; });
}

Truth Shell::passes(bool active, int line, const std::function<Truth(bool)>& condition, const ShellReader::Place& top) {
  constexpr int most = 1000;
  for (int n = 0;; ++n) {
    in_->go_to(top);
    const Truth truth = condition(active);
    in_->skip_separators();
    finish("do");
    if (active && (truth == Truth::unknown || truth == Truth::likely || n >= most))
      note(line, n == 0 ? "a loop of unknown length is not followed" : "a loop of unknown length is not followed on");
    const bool runs = active && truth == Truth::yes && n < most;
    const bool unknown = active && !runs && truth != Truth::no && !asks_arguments(top);
    ++loops_;
    if (unknown) set_unseen_.emplace();
    list({"done"}, runs);
    --loops_;
    const auto set = std::exchange(set_unseen_, unknown ? std::nullopt : set_unseen_);
    for (const auto& name : unknown ? *set : std::set<std::string>()) {
      forget(state_, name);
      state_.scalars[name] = {"${" + name + "}", line};
    }
    if (!runs) break;
    if (left()) active = false;
  }
  finish("done");
  in_->skip_redirections();
  return active ? Truth::yes : Truth::unknown;
}

Truth Shell::conditional_loop(bool active) {
  const bool until = in_->take_word() == "until";
  const int line = in_->line();
  in_->skip_separators();
  const auto word = in_->peek_word();
  const bool endless = word == "true" || word == ":";  // until something succeeds: once
  int pass = 0;
  return passes(
      active, line,
      [&](bool runs) {
        const Truth truth = list({"do"}, runs);
        return endless && pass++ > 0 ? Truth::no : until ? !truth : truth;
      },
      in_->place());
}

Truth Shell::counting_loop(bool active) {
  const int line = in_->line();
  std::array<std::string, 3> parts;
  std::size_t part = 0;
  for (const char c : in_->take_arithmetic()) {
    if (c == ';')
      part = std::min<std::size_t>(part + 1, 2);
    else
      parts[part] += c;
  }
  if (active && !parts[0].empty()) value_of(parts[0]);
  bool first = true;
  return passes(
      active, line,
      [&](bool runs) {
        if (!runs) return Truth::unknown;
        if (!std::exchange(first, false)) value_of(parts[2]);
        return parts[1].find_first_not_of(' ') == std::string::npos ? Truth::yes : truth_of(value_of(parts[1]));
      },
      in_->place());
}

Truth Shell::loop(bool active) {
  in_->take_word();
  if (in_->peek_word() == "((") return counting_loop(active);
  const std::string name(in_->take_word());
  const int line = in_->line();
  std::vector<ShellWord> values;
  in_->skip_separators();
  if (in_->peek_word() == "in") {
    in_->take_word();
    for (auto raw = in_->next_raw(); raw; raw = in_->next_raw())
      if (active) expand(*raw, state_, *in_.reader, values);
  } else if (active) {
    values = state_.arguments.value_or(std::vector<ShellWord>());
  }
  if (active && std::ranges::any_of(values, [](const ShellWord& value) { return is_unset_variable(value.text); }))
    note(line, "what this loop runs over depends on the machine: taken as one word");
  in_->skip_separators();
  finish("do");
  const auto body = in_->place();
  ++loops_;
  if (values.empty() || !active) list({"done"}, false);
  for (const auto& value : values) {
    in_->go_to(body);
    state_.scalars[name] = value;
    list({"done"}, true);
    if (left()) break;
  }
  --loops_;
  finish("done");
  in_->skip_redirections();
  return Truth::yes;
}

Truth Shell::choice(bool active) {
  in_->take_word();
  const int line = in_->line();
  std::vector<ShellWord> subject;
  if (const auto raw = in_->next_raw()) expand(*raw, state_, *in_.reader, subject);
  in_->skip_separators();
  finish("in");
  if (active && !subject.empty() && is_open(subject.front().text))
    note(line, "this choice depends on the machine: taken as of nothing");
  bool done = false;
  const bool guess = !subject.empty() && is_open(subject.front().text);
  const std::string text = subject.empty() || is_unset_variable(subject.front().text) ? "" : subject.front().text;
  for (in_->skip_separators(); in_->peek_word() != "esac"; in_->skip_separators()) {
    if (in_->at_end()) throw in_->error("the script ends before \"esac\"");
    bool matches = false;
    for (const auto& pattern : in_->take_patterns()) {
      std::vector<ShellWord> words;
      expand(pattern, state_, *in_.reader, words);
      matches = matches || (!words.empty() && fnmatch(words.front().text.c_str(), text.c_str(), 0) == 0);
    }
    guessed(active && matches && !done && guess, [&] { return list({";;", "esac"}, active && matches && !done); });
    done = done || matches;
    if (in_->peek_word() == ";;") in_->take_word();
  }
  finish("esac");
  in_->skip_redirections();
  return Truth::yes;
}

Truth Shell::function(bool active) {
  if (in_->peek_word() == "function") in_->take_word();
  const std::string name = in_->take_function_name();
  in_->skip_separators();
  if (active) functions_[name] = {in_.reader, in_->place()};
  command(false);
  return Truth::yes;
}

}  // namespace pipewright::emit
