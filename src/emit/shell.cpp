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
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <optional>
#include <utility>

#include "sbatch.hpp"
#include "shell_condition.hpp"
#include "shell_words.hpp"

namespace pipewright::emit {

namespace {

/// What goes on behind here no more: a loop's pass, a loop, a function.
enum class Leaving : unsigned char { none, pass, loop, function };

/// The text that is read now: the script, or what an eval made.
struct Reading {
  ShellReader* reader;
  ShellReader* operator->() const { return reader; }
};

class Shell {
 public:
  Shell(std::string_view text, const std::string& file, std::map<std::string, std::string> variables)
      : text_(text, file), in_{&text_} {
    for (auto& [name, value] : variables) {
      state_.scalars[name] = {value, 0};
      state_.exported.insert(name);
    }
    state_.output = [this](std::string_view command, int line) { return printed(command, line); };
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  ShellRun run() {
    result_.directives = sbatch_directives(in_->text());
    set_as_sbatch(result_.directives, state_);
    whole();
    return std::move(result_);
  }

 private:
  using Words = std::vector<std::string_view>;

  Truth whole() {
    const Truth truth = list({}, true);
    if (!in_->at_end()) throw in_->error("a \")\", \"}\", fi, done or esac without its beginning");
    return truth;
  }
  bool going() const { return !stopped_ && leaving_ == Leaving::none; }

  /// Commands up to one of `ends` (which stays to be read); returns the truth of the last.
  Truth list(const Words& ends, bool active) {
    Truth truth = Truth::yes;
    std::string_view before;  // the operator before a command
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
      const Truth here = command(runs);
      if (runs) truth = here;
      before = in_->take_operator();
      if (in_->place().at == begin) throw in_->error("not understood: " + std::string(in_->peek_word()));
    }
  }

  Truth command(bool active) {
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
      if (!active) return Truth::unknown;
      return truth_of(value_of(expression));
    }
    return simple(active);
  }

  static Truth truth_of(std::optional<std::int64_t> value) {
    return !value ? Truth::unknown : *value != 0 ? Truth::yes : Truth::no;
  }
  std::optional<std::int64_t> value_of(const std::string& expression) {
    return arithmetic(joined(Raw{expression, in_->line()}, state_, *in_.reader).text, state_);
  }

  /// What is set, left or ended in `part` is so within it only.
  template <class Part>
  Truth in_subshell(const Part& part) {
    ShellState before = state_;
    const auto leaving = leaving_;
    const Truth truth = part();
    before.words = state_.words;
    state_ = std::move(before);
    leaving_ = leaving;
    stopped_ = false;  // it was going when this began
    return truth;
  }

  void finish(std::string_view word) {
    if (in_->peek_word() != word) throw in_->error("\"" + std::string(word) + "\" is missing");
    in_->take_word();
  }
  void note(int line, const std::string& text) {
    if (result_.notes.size() < 20) result_.notes.push_back(fmt::format("{}:{}: {}", in_->file(), line, text));
  }

  Truth condition(bool active) {
    bool done = false;
    for (auto word = in_->peek_word(); word == "if" || word == "elif"; word = in_->peek_word()) {
      in_->take_word();
      const int line = in_->line();
      const Truth truth = list({"then"}, active && !done);
      finish("then");
      if (active && !done && truth == Truth::unknown)
        note(line, "this condition depends on the machine: taken as false");
      const bool taken = active && !done && truth == Truth::yes;
      list({"elif", "else", "fi"}, taken);
      done = done || taken;
    }
    if (in_->peek_word() == "else") {
      in_->take_word();
      list({"fi"}, active && !done);
    }
    finish("fi");
    in_->skip_redirections();
    return Truth::yes;
  }

  /// A pass of a loop is over; true: so is the loop.
  bool left() {
    if (++passes_ > 100'000) throw in_->error("loops of more than 100,000 passes");
    if (leaving_ == Leaving::function || stopped_) return true;
    if (leaving_ == Leaving::none) return false;
    if (--levels_ > 0) return true;  // an outer loop is meant
    return std::exchange(leaving_, Leaving::none) == Leaving::loop;
  }

  /// Runs condition and body over and over, as far as the condition is known; the body is passed over in the end.
  template <class Condition>
  Truth passes(bool active, int line, const Condition& condition, const ShellReader::Place& top) {
    constexpr int most = 1000;
    for (int n = 0;; ++n) {
      in_->go_to(top);
      const Truth truth = condition(active);
      in_->skip_separators();
      finish("do");
      if (active && (truth == Truth::unknown || truth == Truth::likely || n >= most))
        note(line, n == 0 ? "a loop of unknown length is not followed" : "a loop of unknown length is not followed on");
      const bool runs = active && truth == Truth::yes && n < most;
      ++loops_;
      list({"done"}, runs);
      --loops_;
      if (!runs) break;
      if (left()) active = false;
    }
    finish("done");
    in_->skip_redirections();
    return active ? Truth::yes : Truth::unknown;
  }

  Truth conditional_loop(bool active) {
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

  /// for (( begin; condition; step ))
  Truth counting_loop(bool active) {
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

  Truth loop(bool active) {
    in_->take_word();
    if (in_->peek_word() == "((") return counting_loop(active);
    const std::string name(in_->take_word());
    std::vector<ShellWord> values;
    in_->skip_separators();
    if (in_->peek_word() == "in") {
      in_->take_word();
      for (auto raw = in_->next_raw(); raw; raw = in_->next_raw())
        if (active) expand(*raw, state_, *in_.reader, values);
    } else if (active) {
      values = state_.arguments.value_or(std::vector<ShellWord>());
    }
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

  Truth choice(bool active) {
    in_->take_word();
    std::vector<ShellWord> subject;
    if (const auto raw = in_->next_raw()) expand(*raw, state_, *in_.reader, subject);
    in_->skip_separators();
    finish("in");
    bool done = false;
    const std::string text = subject.empty() || is_unset_variable(subject.front().text) ? "" : subject.front().text;
    for (in_->skip_separators(); in_->peek_word() != "esac"; in_->skip_separators()) {
      if (in_->at_end()) throw in_->error("the script ends before \"esac\"");
      bool matches = false;
      for (const auto& pattern : in_->take_patterns()) {
        std::vector<ShellWord> words;
        expand(pattern, state_, *in_.reader, words);
        matches = matches || (!words.empty() && fnmatch(words.front().text.c_str(), text.c_str(), 0) == 0);
      }
      list({";;", "esac"}, active && matches && !done);
      done = done || matches;
      if (in_->peek_word() == ";;") in_->take_word();
    }
    finish("esac");
    in_->skip_redirections();
    return Truth::yes;
  }

  Truth function(bool active) {
    if (in_->peek_word() == "function") in_->take_word();
    const std::string name = in_->take_function_name();
    in_->skip_separators();
    if (active) functions_[name] = {in_.reader, in_->place()};
    command(false);
    return Truth::yes;
  }

  Truth simple(bool active) {
    std::vector<Raw> raws;
    std::map<std::string, std::optional<ShellWord>> before;  // of NAME=word in front of a command
    std::map<std::string, ShellWord> declared;
    const int line = in_->line();
    in_->take_here_string();
    const auto declares = [&] {
      static const std::set<std::string> names = {"export", "declare", "local", "readonly", "typeset"};
      return !raws.empty() && names.contains(raws.front().text);
    };
    while (const auto raw = in_->next_raw(!raws.empty() && raws.front().text == "[[" && raws.back().text != "]]")) {
      if (raws.empty()) {
        if (auto value = assign(*raw, active, {})) {
          if (!value->first.empty()) {
            before.emplace(value->first, state_.known(value->first));
            assign_scalar(state_, value->first, std::move(value->second));
          }
          continue;
        }
      } else if (declares()) {
        const std::string hidden = active ? declare(raws, raw->text) : "";
        auto value = assign(*raw, active, declared);  // still sees what it hides
        if (!hidden.empty() && !(value && value->first.empty()) && !state_.tables.contains(hidden))
          forget(state_, hidden);
        if (value && !value->first.empty()) declared[value->first] = std::move(value->second);
      }
      raws.push_back(*raw);
    }
    in_->skip_redirections();
    if (!active) return Truth::unknown;
    if (raws.empty()) return Truth::yes;
    if (declares()) {
      for (auto& [name, value] : declared) assign_scalar(state_, name, std::move(value));
      for (std::size_t i = 1; i < raws.size() && raws.front().text == "export"; ++i) {
        std::string name = raws[i].text.substr(0, assignment(raws[i].text));
        if (name.ends_with('+')) name.pop_back();
        state_.exported.insert(std::move(name));
      }
      return Truth::yes;
    }
    std::map<std::string, std::optional<ShellWord>> own;  // what the command alone sees, not its words
    for (const auto& [name, old] : before) own[name] = state_.known(name);
    restore(before);
    ShellCommand command;
    for (const Raw& raw : raws) expand(raw, state_, *in_.reader, command.words);
    if (command.words.empty()) return Truth::unknown;
    restore(own);
    for (const auto& [name, value] : own)
      if (value) command.variables[name] = value->text;
    const Truth truth = built_in(std::move(command), raws, line);
    restore(before);
    return truth;
  }

  void restore(const std::map<std::string, std::optional<ShellWord>>& values) {
    for (const auto& [name, value] : values) {
      if (value)
        assign_scalar(state_, name, *value);
      else
        state_.scalars.erase(name);
    }
  }

  /// Before `declare -A NAME` and so on: what kind NAME is; a function's own come back as they were when it ends.
  /// Returns the name that this one begins to hide.
  std::string declare(const std::vector<Raw>& words, const std::string& text) {
    std::string name = text.substr(0, assignment(text));
    if (name.ends_with('+')) name.pop_back();
    const auto has = [&](char letter) {
      return std::any_of(words.begin() + 1, words.end(), [&](const Raw& word) {
        return word.text.starts_with('-') && word.text.find(letter) != std::string::npos;
      });
    };
    if (name.empty() || name.front() == '-') return {};
    const auto& how = words.front().text;
    const bool hides = !frames_.empty() && how != "export" && how != "readonly" && !has('g') &&
                       frames_.back()
                           .emplace(name, Variable{found(state_.scalars, name), found(state_.arrays, name),
                                                   found(state_.tables, name)})
                           .second;
    if (has('A')) state_.tables[name];
    return hides ? name : "";
  }
  template <class Map>
  static std::optional<typename Map::mapped_type> found(const Map& map, const std::string& name) {
    const auto at = map.find(name);
    return at == map.end() ? std::optional<typename Map::mapped_type>() : at->second;
  }
  template <class Map>
  static std::optional<typename Map::mapped_type> taken(Map& map, const std::string& name) {
    const auto node = map.extract(name);
    return node.empty() ? std::optional<typename Map::mapped_type>() : std::move(node.mapped());
  }

  using Named = std::pair<std::string, ShellWord>;
  /// NAME=word or NAME+=word is returned; NAME=( words ) and NAME[KEY]=word are done, without a name. nullopt: the word
  /// is no assignment. `declared`: what this command has set so far.
  std::optional<Named> assign(const Raw& raw, bool active, const std::map<std::string, ShellWord>& declared) {
    const auto equals = assignment(raw.text);
    if (equals == std::string::npos) return {};
    const bool append = raw.text[equals - 1] == '+';
    const std::string name = raw.text.substr(0, equals - (append ? 1 : 0));
    if (raw.text[equals - 1] == ']') {  // NAME[KEY]=word
      const auto open = raw.text.find('[');
      if (active) enter(raw.text.substr(0, open), raw.text.substr(open), raw.line);
      return Named();
    }
    if (const auto elements = in_->array_after(raw, equals)) {
      if (!active) return Named();
      if (!append && state_.tables.contains(name)) state_.tables[name].clear();
      if (!elements->empty() && elements->front().text.starts_with('[') &&
          elements->front().text.find("]=") != std::string::npos) {
        if (!append) state_.arrays.erase(name), state_.scalars.erase(name);
        for (const Raw& element : *elements) enter(name, element.text, element.line);
        return Named();
      }
      std::vector<ShellWord> values;
      for (const Raw& element : *elements) expand(element, state_, *in_.reader, values);
      auto& array = state_.arrays[name];
      if (!append) array.clear();
      if (const auto scalar = taken(state_.scalars, name); scalar && append) array.insert(array.begin(), *scalar);
      array.insert(array.end(), values.begin(), values.end());
      return Named();
    }
    if (!active) return Named();
    ShellWord value = joined(Raw{raw.text.substr(equals + 1), raw.line}, state_, *in_.reader);
    if (append) {
      const auto sooner = declared.find(name);
      if (const auto old = sooner != declared.end() ? std::optional(sooner->second) : state_.known(name))
        value = {old->text + value.text, old->line};
    }
    if (value.text.size() > ShellState::longest) throw in_->error(name + " grows beyond 1 MiB");
    return Named(name, std::move(value));
  }

  /// [KEY]=word of NAME: an element of a list unless NAME was declared with -A or KEY is no number.
  void enter(const std::string& name, const std::string& entry, int line) {
    const auto close = entry.find("]=");
    if (!entry.starts_with('[') || close == std::string::npos) return;
    const std::string key = joined(Raw{entry.substr(1, close - 1), line}, state_, *in_.reader).text;
    ShellWord value = joined(Raw{entry.substr(close + 2), line}, state_, *in_.reader);
    constexpr std::size_t most = 10'000;
    const auto number = state_.tables.contains(name) ? std::optional<std::int64_t>() : arithmetic(key, state_);
    if (number && *number >= 0) {
      auto& array = state_.arrays[name];
      if (const auto scalar = taken(state_.scalars, name)) array.insert(array.begin(), *scalar);
      if (static_cast<std::size_t>(*number) < array.size())
        array[static_cast<std::size_t>(*number)] = std::move(value);
      else
        array.push_back(std::move(value));  // a gap is no element
      if (array.size() > most) throw in_->error(name + " has more than 10,000 entries");
      return;
    }
    auto& table = state_.tables[name];
    if (table.size() > most) throw in_->error(name + " has more than 10,000 entries");
    table[key] = std::move(value);
  }

  /// echo WORDS, expr NUMBERS, a function of the script that only echoes; of anything else nothing is known.
  std::optional<std::string> printed(std::string_view text, int line) {
    constexpr std::size_t most = 10'000;
    if (++outputs_ > most) throw in_->error("more than 10,000 commands within words");
    ShellReader reader(text, in_->file());
    ShellCommand command;
    while (const auto raw = reader.next_raw()) expand(Raw{raw->text, line}, state_, reader, command.words);
    if (!reader.at_end() || command.words.empty()) return std::nullopt;
    const std::string name = command.words.front().text;
    if (functions_.contains(name)) {
      const auto before = result_.commands.size();
      in_subshell([&] { return call(command, line); });
      std::string all;
      bool known = true;
      for (std::size_t i = before; i < result_.commands.size(); ++i) {
        const auto one = echoed(result_.commands[i].words);
        known = known && one.has_value();
        all += (all.empty() ? "" : "\n") + one.value_or("");
      }
      result_.commands.resize(before);
      return known ? std::optional(all) : std::nullopt;
    }
    if (name == "expr") {
      std::string expression;
      for (std::size_t i = 1; i < command.words.size(); ++i) expression += command.words[i].text + " ";
      const auto value = arithmetic(expression, state_);
      return value ? std::optional(std::to_string(*value)) : std::nullopt;
    }
    return echoed(command.words);
  }
  static std::optional<std::string> echoed(const std::vector<ShellWord>& words) {
    if (words.empty() || words.front().text != "echo") return std::nullopt;
    std::string text;
    std::size_t first = 1;
    while (first < words.size() && (words[first].text == "-n" || words[first].text == "-e")) ++first;
    for (std::size_t i = first; i < words.size(); ++i) text += (i == first ? "" : " ") + words[i].text;
    return text;
  }

  /// read NAME << END: the text, its lines apart from each other; read NAMES <<< word: its parts.
  void read(const ShellCommand& command) {
    std::vector<std::string> names;
    bool list = false;
    for (std::size_t i = 1; i < command.words.size(); ++i) {
      const auto& word = command.words[i].text;
      if (word.starts_with('-') && word.size() > 1) {
        list = list || word.ends_with('a');
        if (std::string_view("dnNptu").find(word.back()) != std::string_view::npos) ++i;
      } else {
        names.push_back(word);
      }
    }
    if (names.empty()) return;
    if (const auto document = in_->coming_document()) {
      state_.scalars[names.back()] = joined(*document, state_, *in_.reader);
      return;
    }
    const auto raw = in_->take_here_string();
    const ShellWord text = raw ? joined(*raw, state_, *in_.reader) : ShellWord();
    for (const auto& name : names) forget(state_, name);
    if (!raw || is_open(text.text)) {  // what comes from outside
      for (const auto& name : names) state_.scalars[name] = {"${" + name + "}", text.line};
      return;
    }
    const auto separators = state_.known("IFS").value_or(ShellWord{" \t\n", 0}).text;
    const auto separates = [&](char c) { return separators.find(c) != std::string::npos; };
    const auto space = [&](char c) { return (blank(c) || c == '\n') && separates(c); };
    std::vector<ShellWord> parts;
    std::string_view rest = text.text;
    const auto trim = [&] {
      while (!rest.empty() && space(rest.front())) rest.remove_prefix(1);
    };
    trim();
    while (!rest.empty() && space(rest.back())) rest.remove_suffix(1);
    while (!rest.empty() && (list || parts.size() + 1 < names.size())) {
      const auto end = std::min(rest.find_first_of(separators), rest.size());
      parts.push_back({std::string(rest.substr(0, end)), text.line});
      rest.remove_prefix(end);
      trim();
      if (!rest.empty() && separates(rest.front())) rest.remove_prefix(1);
      trim();
    }
    if (list) {
      state_.arrays[names.front()] = std::move(parts);
      return;
    }
    parts.push_back({std::string(rest), text.line});
    for (std::size_t i = 0; i < names.size(); ++i)
      state_.scalars[names[i]] = i < parts.size() ? parts[i] : ShellWord{"", text.line};
  }

  /// sbatch << END, bash << END, cat << END of a text that begins with #!: the here-document is a script, too.
  void inner_script(const std::string& name) {
    if (name != "sbatch" && name != "bash" && name != "sh" && name != "cat") return;
    const auto document = in_->coming_document();
    if (!document) return;
    const auto body = joined(*document, state_, *in_.reader).text;
    if (name == "cat" && !body.starts_with("#!")) return;
    const auto script =
        std::string(static_cast<std::size_t>(std::max(document->line - 1, 0)), '\n') + body;  // its lines
    std::map<std::string, std::string> variables;
    for (const auto& variable : state_.exported)
      if (const auto at = state_.scalars.find(variable); at != state_.scalars.end())
        variables[variable] = at->second.text;
    if (++scripts_ > 100) throw in_->error("more than 100 scripts within the script");
    Shell inner(script, in_->file(), std::move(variables));
    inner.scripts_ = scripts_;
    auto run = inner.run();
    scripts_ = inner.scripts_;
    for (auto& word : run.directives) result_.directives.push_back(std::move(word));
    for (auto& one : run.commands) result_.commands.push_back(std::move(one));
    for (auto& one : run.notes) result_.notes.push_back(std::move(one));
  }

  Truth built_in(ShellCommand command, const std::vector<Raw>& raws, int line) {
    auto& words = command.words;
    const std::string name = words.front().text;
    if (name == "[" || name == "[[" || name == "test") return condition_of(raws, state_, *in_.reader);
    if (name == "true" || name == ":") return Truth::yes;
    if (name == "false") return Truth::no;
    if (name == "exit" || name == "return") {
      if (name == "exit" || frames_.empty())
        stopped_ = true;
      else
        leaving_ = Leaving::function;
      return words.size() > 1 && words[1].text != "0" ? Truth::no : Truth::yes;
    }
    if ((name == "break" || name == "continue") && loops_ > 0) {
      leaving_ = name == "break" ? Leaving::loop : Leaving::pass;
      levels_ = words.size() > 1 ? std::clamp(std::atoi(words[1].text.c_str()), 1, loops_) : 1;
      return Truth::yes;
    }
    if (name == "unset") {
      for (const auto& word : words) forget(state_, word.text);
      return Truth::yes;
    }
    if (name == "let") {
      std::optional<std::int64_t> value;
      for (std::size_t i = 1; i < words.size(); ++i) value = arithmetic(words[i].text, state_);
      return truth_of(value);
    }
    if (name == "set") {
      const auto dashes = std::ranges::find(words, "--", &ShellWord::text);
      if (dashes != words.end()) state_.arguments.emplace(dashes + 1, words.end());
      return Truth::yes;
    }
    if (name == "shift") {
      if (!state_.arguments) return Truth::unknown;
      auto& arguments = *state_.arguments;
      const auto count = words.size() > 1 ? std::atoi(words[1].text.c_str()) : 1;
      if (count < 0 || static_cast<std::size_t>(count) > arguments.size()) return Truth::no;
      arguments.erase(arguments.begin(), arguments.begin() + count);
      return Truth::yes;
    }
    if (name == "printf" && words.size() > 2 && words[1].text == "-v") {
      forget(state_, words[2].text);  // what it prints is not followed
      return Truth::yes;
    }
    if (name == "source" || name == ".") {
      note(line, (words.size() > 1 ? words[1].text : "a file") + " is not read: give its variables with --env");
      return Truth::yes;
    }
    if (name == "read") {
      read(command);
      return Truth::unknown;
    }
    if (name == "eval") return eval(command, line);
    if (functions_.contains(name)) return call(command, line);
    const std::string program = name.substr(name.rfind('/') + 1);
    inner_script(program);
    add(std::move(command));
    static const std::set<std::string> asks = {"grep", "egrep", "fgrep", "command", "which", "type",       "hash",
                                               "diff", "cmp",   "pgrep", "pidof",   "ping",  "getent",     "nc",
                                               "id",   "lsmod", "lspci", "nvcc",    "ip",    "nvidia-smi", "find"};
    return asks.contains(program) ? Truth::unknown : Truth::likely;
  }

  void add(ShellCommand command) {
    for (const auto& variable : state_.exported)
      if (const auto at = state_.scalars.find(variable); at != state_.scalars.end())
        command.variables.emplace(variable, at->second.text);
    if (result_.commands.size() >= 10'000) throw in_->error("more than 10,000 commands");
    result_.commands.push_back(std::move(command));
  }

  void deeper() {
    constexpr int deepest = 20;
    if (++depth_ > deepest) throw in_->error("functions call each other without end");
  }

  Truth call(const ShellCommand& command, int) {
    deeper();
    const auto [reader, body] = functions_.at(command.words.front().text);
    ShellReader* const from = in_.reader;
    const auto back = in_->place();
    auto arguments =
        std::exchange(state_.arguments, std::vector<ShellWord>(command.words.begin() + 1, command.words.end()));
    const int loops = std::exchange(loops_, 0);
    frames_.emplace_back();
    in_.reader = reader;
    const auto there = in_->place();
    in_->go_to(body);
    const Truth truth = this->command(true);
    in_->go_to(there);
    in_.reader = from;
    in_->go_to(back);
    if (leaving_ == Leaving::function) leaving_ = Leaving::none;
    for (auto& [name, variable] : frames_.back()) {
      forget(state_, name);
      if (variable.scalar) state_.scalars[name] = std::move(*variable.scalar);
      if (variable.array) state_.arrays[name] = std::move(*variable.array);
      if (variable.table) state_.tables[name] = std::move(*variable.table);
    }
    frames_.pop_back();
    loops_ = loops;
    state_.arguments = std::move(arguments);
    --depth_;
    return truth;
  }

  /// The words once more, as a script.
  Truth eval(const ShellCommand& command, int line) {
    deeper();
    std::string text;
    for (std::size_t i = 1; i < command.words.size(); ++i) text += (i > 1 ? " " : "") + command.words[i].text;
    texts_.push_back(std::move(text));
    readers_.emplace_back(texts_.back(), in_->file());
    if (readers_.size() > 1000) throw in_->error("more than 1,000 evals");
    ShellReader* const from = std::exchange(in_.reader, &readers_.back());
    in_->go_to({0, line});
    const Truth truth = whole();
    in_.reader = from;
    --depth_;
    return truth;
  }

  /// What a function's `local` hides.
  struct Variable {
    std::optional<ShellWord> scalar;
    std::optional<std::vector<ShellWord>> array;
    std::optional<std::map<std::string, ShellWord>> table;
  };

  ShellReader text_;
  Reading in_;
  std::deque<std::string> texts_;    ///< of evals: functions may have been written in them
  std::deque<ShellReader> readers_;  ///< theirs
  ShellState state_;
  ShellRun result_;
  std::map<std::string, std::pair<ShellReader*, ShellReader::Place>> functions_;
  std::vector<std::map<std::string, Variable>> frames_;  ///< of the functions that run
  Leaving leaving_ = Leaving::none;
  int levels_ = 0;  ///< loops that break and continue mean
  int loops_ = 0;   ///< around here, in this function
  int passes_ = 0;  ///< of all loops so far
  int depth_ = 0;
  std::size_t outputs_ = 0;  ///< of $( ) so far
  int scripts_ = 0;          ///< here-documents that are scripts, those within them included
  bool stopped_ = false;
};

}  // namespace

ShellRun run_shell(std::string_view script, const std::string& file, std::map<std::string, std::string> variables) {
  return Shell(script, file, std::move(variables)).run();
}

bool is_unset_variable(std::string_view word) {
  return word.starts_with("${") && word.find('}') == word.size() - 1 && word.size() > 3;
}

}  // namespace pipewright::emit
