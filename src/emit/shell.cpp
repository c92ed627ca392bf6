// A small part of bash's grammar, run over the text itself so that a loop's body can be run again:
//
//   list    := command ((";" | newline | "&&" | "||" | "|" | "&") command)*
//   command := if | for | while | case | "{" list "}" | "(" list ")" | NAME "()" "{" list "}" | simple
//   simple  := (NAME=word | NAME=(word*))* word* redirection*
//
// A condition that depends on the machine (a file, a program's answer) is taken as false, with a note.
#include "shell.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "shell_words.hpp"

namespace pipewright::emit {

namespace {

enum class Truth : unsigned char { no, yes, unknown };

Truth operator!(Truth t) { return t == Truth::unknown ? t : t == Truth::yes ? Truth::no : Truth::yes; }

class Shell {
 public:
  Shell(std::string_view text, const std::string& file, std::map<std::string, std::string> variables)
      : in_(text, file) {
    for (auto& [name, value] : variables) {
      state_.scalars[name] = {value, 0};
      state_.exported.insert(name);
    }
    state_.output = [this](std::string_view command, int line) { return printed(command, line); };
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  ShellRun run() {
    directives();
    list({}, true);
    if (!in_.at_end()) throw in_.error("a \")\", \"}\", fi, done or esac without its beginning");
    return std::move(result_);
  }

 private:
  using Words = std::vector<std::string_view>;

  void directives() {
    std::string_view text = in_.text();
    int line = 1;
    for (std::size_t at = 0; at < text.size(); ++line) {
      const auto end = std::min(text.find('\n', at), text.size());
      if (auto row = text.substr(at, end - at); row.starts_with("#SBATCH"))
        for (const auto& word : split_words(row.substr(7))) result_.directives.push_back({word, line});
      at = end + 1;
    }
  }

  /// Commands up to one of `ends` (which stays to be read); returns the truth of the last.
  Truth list(const Words& ends, bool active) {
    Truth truth = Truth::yes;
    std::string_view before;  // the operator before a command
    for (;;) {
      in_.skip_separators();
      const auto word = in_.peek_word();
      if (in_.at_end() || std::ranges::find(ends, word) != ends.end()) {
        if (in_.at_end() && !ends.empty())
          throw in_.error("the script ends before \"" + std::string(ends.front()) + "\"");
        return truth;
      }
      if (word == ")" || word == "}" || word == "fi" || word == "done" || word == "esac") return truth;
      const bool runs =
          active && !stopped_ && (before != "&&" || truth == Truth::yes) && (before != "||" || truth == Truth::no);
      const auto begin = in_.place().at;
      const Truth here = command(runs);
      if (runs) truth = here;
      before = in_.take_operator();
      if (in_.place().at == begin) throw in_.error("not understood: " + std::string(in_.peek_word()));
    }
  }

  Truth command(bool active) {
    const auto word = in_.peek_word();
    if (word == "!") {
      in_.take_word();
      return !command(active);
    }
    if (word == "if") return condition(active);
    if (word == "for" || word == "select") return loop(active);
    if (word == "while" || word == "until") {
      in_.take_word();
      const int line = in_.line();
      list({"do"}, false);
      in_.take_word();
      list({"done"}, false);
      finish("done");
      in_.skip_redirections();
      if (active) note(line, "a loop of unknown length is not followed");
      return Truth::unknown;
    }
    if (word == "case") return choice(active);
    if (word == "{" || word == "(") {
      in_.take_word();
      const Truth truth = list({word == "{" ? "}" : ")"}, active);
      finish(word == "{" ? "}" : ")");
      in_.skip_redirections();
      return truth;
    }
    if (word == "function" || in_.at_function()) return function();
    if (word == "((") {
      const std::string expression = in_.take_arithmetic();
      if (!active) return Truth::unknown;
      const auto value = arithmetic(expression, state_);
      return !value ? Truth::unknown : *value != 0 ? Truth::yes : Truth::no;
    }
    return simple(active);
  }

  void finish(std::string_view word) {
    if (in_.peek_word() != word) throw in_.error("\"" + std::string(word) + "\" is missing");
    in_.take_word();
  }
  void note(int line, const std::string& text) {
    if (result_.notes.size() < 20) result_.notes.push_back(fmt::format("{}:{}: {}", in_.file(), line, text));
  }

  Truth condition(bool active) {
    bool done = false;
    for (auto word = in_.peek_word(); word == "if" || word == "elif"; word = in_.peek_word()) {
      in_.take_word();
      const int line = in_.line();
      const Truth truth = list({"then"}, active && !done);
      finish("then");
      if (active && !done && truth == Truth::unknown)
        note(line, "this condition depends on the machine: taken as false");
      const bool taken = active && !done && truth == Truth::yes;
      list({"elif", "else", "fi"}, taken);
      done = done || taken;
    }
    if (in_.peek_word() == "else") {
      in_.take_word();
      list({"fi"}, active && !done);
    }
    finish("fi");
    in_.skip_redirections();
    return Truth::yes;
  }

  Truth loop(bool active) {
    in_.take_word();
    const int line = in_.line();
    if (in_.peek_word() == "((") {
      in_.take_arithmetic();
      in_.skip_separators();
      finish("do");
      list({"done"}, false);
      finish("done");
      in_.skip_redirections();
      if (active) note(line, "a counting loop is not followed");
      return Truth::unknown;
    }
    const std::string name(in_.take_word());
    std::vector<ShellWord> values;
    in_.skip_separators();
    if (in_.peek_word() == "in") {
      in_.take_word();
      for (auto raw = in_.next_raw(); raw; raw = in_.next_raw())
        if (active) expand(*raw, state_, in_, values);
    }
    in_.skip_separators();
    finish("do");
    const auto body = in_.place();
    if (values.empty() || !active) list({"done"}, false);
    for (const auto& value : values) {
      in_.go_to(body);
      state_.scalars[name] = value;
      list({"done"}, true);
    }
    finish("done");
    in_.skip_redirections();
    return Truth::yes;
  }

  Truth choice(bool active) {
    in_.take_word();
    std::vector<ShellWord> subject;
    if (const auto raw = in_.next_raw()) expand(*raw, state_, in_, subject);
    in_.skip_separators();
    finish("in");
    bool done = false;
    const std::string text = subject.empty() ? "" : subject.front().text;
    for (in_.skip_separators(); in_.peek_word() != "esac"; in_.skip_separators()) {
      if (in_.at_end()) throw in_.error("the script ends before \"esac\"");
      bool matches = false;
      for (const auto& pattern : in_.take_patterns()) {
        std::vector<ShellWord> words;
        expand(pattern, state_, in_, words);
        matches = matches || (!words.empty() && fnmatch(words.front().text.c_str(), text.c_str(), 0) == 0);
      }
      list({";;", "esac"}, active && matches && !done);
      done = done || matches;
      if (in_.peek_word() == ";;") in_.take_word();
    }
    finish("esac");
    in_.skip_redirections();
    return Truth::yes;
  }

  Truth function() {
    if (in_.peek_word() == "function") in_.take_word();
    const std::string name = in_.take_function_name();
    in_.skip_separators();
    functions_[name] = in_.place();
    command(false);
    return Truth::yes;
  }

  Truth simple(bool active) {
    std::vector<Raw> raws;
    std::map<std::string, ShellWord> assigned;
    const int line = in_.line();
    const auto declares = [&] {
      static const std::set<std::string> names = {"export", "declare", "local", "readonly", "typeset"};
      return !raws.empty() && names.contains(raws.front().text);
    };
    while (const auto raw = in_.next_raw(!raws.empty() && raws.front().text == "[[" && raws.back().text != "]]")) {
      if (raws.empty() && assign(*raw, active, assigned)) continue;
      if (declares()) assign(*raw, active, assigned);
      raws.push_back(*raw);
    }
    in_.skip_redirections();
    if (!active) return Truth::unknown;
    if (raws.empty()) {
      for (auto& [name, value] : assigned) state_.scalars[name] = std::move(value);
      return Truth::yes;
    }
    if (declares()) {
      for (auto& [name, value] : assigned) state_.scalars[name] = std::move(value);
      for (std::size_t i = 1; i < raws.size() && raws.front().text == "export"; ++i) {
        std::string name = raws[i].text.substr(0, assignment(raws[i].text));
        if (name.ends_with('+')) name.pop_back();
        state_.exported.insert(std::move(name));
      }
      return Truth::yes;
    }
    ShellCommand command;
    for (const Raw& raw : raws) expand(raw, state_, in_, command.words);
    if (command.words.empty()) return Truth::unknown;
    return built_in(std::move(command), assigned, raws, line);
  }

  /// NAME=word, NAME+=word, NAME=( words ); false: the word is no assignment.
  bool assign(const Raw& raw, bool active, std::map<std::string, ShellWord>& assigned) {
    const auto equals = assignment(raw.text);
    if (equals == std::string::npos) return false;
    const bool append = raw.text[equals - 1] == '+';
    const std::string name = raw.text.substr(0, equals - (append ? 1 : 0));
    if (raw.text[equals - 1] == ']') {  // NAME[KEY]=word
      const auto open = raw.text.find('[');
      if (active) enter(raw.text.substr(0, open), raw.text.substr(open), raw.line);
      return true;
    }
    if (const auto elements = in_.array_after(raw, equals)) {
      if (!active) return true;
      if (!append) state_.tables.erase(name);
      if (!elements->empty() && elements->front().text.starts_with('[') &&
          elements->front().text.find("]=") != std::string::npos) {
        for (const Raw& element : *elements) enter(name, element.text, element.line);
        return true;
      }
      auto& array = state_.arrays[name];
      std::vector<ShellWord> values;
      for (const Raw& element : *elements) expand(element, state_, in_, values);
      if (!append) array.clear();
      array.insert(array.end(), values.begin(), values.end());
      state_.scalars.erase(name);
      return true;
    }
    if (!active) return true;
    ShellWord value = joined(Raw{raw.text.substr(equals + 1), raw.line}, state_, in_);
    if (append)
      if (const auto old = state_.scalars.find(name); old != state_.scalars.end())
        value = {old->second.text + value.text, old->second.line};
    if (value.text.size() > ShellState::longest) throw in_.error(name + " grows beyond 1 MiB");
    state_.arrays.erase(name);
    assigned[name] = std::move(value);
    return true;
  }

  /// [KEY]=word of NAME.
  void enter(const std::string& name, const std::string& entry, int line) {
    const auto close = entry.find("]=");
    if (!entry.starts_with('[') || close == std::string::npos) return;
    const std::string key = joined(Raw{entry.substr(1, close - 1), line}, state_, in_).text;
    auto& table = state_.tables[name];
    if (table.size() > 10'000) throw in_.error(name + " has more than 10,000 entries");
    table[key] = joined(Raw{entry.substr(close + 2), line}, state_, in_);
  }

  /// echo WORDS, expr NUMBERS, a function of the script that only echoes; of anything else nothing is known.
  std::optional<std::string> printed(std::string_view text, int line) {
    constexpr std::size_t most = 10'000;
    if (++outputs_ > most) throw in_.error("more than 10,000 commands within words");
    ShellReader reader(text, in_.file());
    ShellCommand command;
    while (const auto raw = reader.next_raw()) expand(Raw{raw->text, line}, state_, reader, command.words);
    if (!reader.at_end() || command.words.empty()) return std::nullopt;
    const std::string name = command.words.front().text;
    if (functions_.contains(name)) {
      const auto before = result_.commands.size();
      call(command, line);
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

  /// read NAME << END: the text, its lines apart from each other.
  void read(const ShellCommand& command) {
    const auto document = in_.coming_document();
    if (!document || command.words.size() < 2) return;
    state_.scalars[command.words.back().text] = joined(*document, state_, in_);
  }

  /// sbatch << END, bash << END, cat << END of a text that begins with #!: the here-document is a script, too.
  void inner_script(const std::string& name) {
    if (name != "sbatch" && name != "bash" && name != "sh" && name != "cat") return;
    const auto document = in_.coming_document();
    if (!document) return;
    const auto body = joined(*document, state_, in_).text;
    if (name == "cat" && !body.starts_with("#!")) return;
    const auto script =
        std::string(static_cast<std::size_t>(std::max(document->line - 1, 0)), '\n') + body;  // its lines
    std::map<std::string, std::string> variables;
    for (const auto& variable : state_.exported)
      if (const auto at = state_.scalars.find(variable); at != state_.scalars.end())
        variables[variable] = at->second.text;
    if (++scripts_ > 100) throw in_.error("more than 100 scripts within the script");
    Shell inner(script, in_.file(), std::move(variables));
    inner.scripts_ = scripts_;
    auto run = inner.run();
    scripts_ = inner.scripts_;
    for (auto& word : run.directives) result_.directives.push_back(std::move(word));
    for (auto& one : run.commands) result_.commands.push_back(std::move(one));
    for (auto& one : run.notes) result_.notes.push_back(std::move(one));
  }

  Truth built_in(ShellCommand command, const std::map<std::string, ShellWord>& assigned, const std::vector<Raw>& raws,
                 int line) {
    auto& words = command.words;
    const std::string name = words.front().text;
    if (name == "[" || name == "[[" || name == "test") return test(raws);
    if (name == "true" || name == ":") return Truth::yes;
    if (name == "false") return Truth::no;
    if (name == "exit" || name == "return") {
      stopped_ = name == "exit" || depth_ == 0;
      return Truth::yes;
    }
    if (name == "unset") {
      for (const auto& word : words) state_.scalars.erase(word.text), state_.arrays.erase(word.text);
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
    if (name == "eval" || functions_.contains(name)) return call(command, line);
    inner_script(name.substr(name.rfind('/') + 1));
    for (const auto& [variable, value] : assigned) command.variables[variable] = value.text;
    add(std::move(command));
    return Truth::unknown;
  }

  void add(ShellCommand command) {
    for (const auto& variable : state_.exported)
      if (const auto at = state_.scalars.find(variable); at != state_.scalars.end())
        command.variables.emplace(variable, at->second.text);
    if (result_.commands.size() >= 10'000) throw in_.error("more than 10,000 commands");
    result_.commands.push_back(std::move(command));
  }

  Truth call(const ShellCommand& command, int line) {
    constexpr int deepest = 20;
    if (++depth_ > deepest) throw in_.error("functions call each other without end");
    const auto back = in_.place();
    if (const auto body = functions_.find(command.words.front().text); body != functions_.end()) {
      const auto before = state_.scalars;
      for (std::size_t i = 1; i < command.words.size() && i < 10; ++i)
        state_.scalars[std::to_string(i)] = command.words[i];
      in_.go_to(body->second);
      this->command(true);
      for (int i = 1; i < 10; ++i) {
        const auto old = before.find(std::to_string(i));
        if (old == before.end()) {
          state_.scalars.erase(std::to_string(i));
        } else {
          state_.scalars[old->first] = old->second;
        }
      }
    } else {  // eval: the words once more as a command
      std::string text;
      for (std::size_t i = 1; i < command.words.size(); ++i) text += command.words[i].text + " ";
      ShellCommand inner;
      for (const auto& word : split_words(text)) inner.words.push_back({word, line});
      if (!inner.words.empty()) add(std::move(inner));
    }
    in_.go_to(back);
    --depth_;
    return Truth::unknown;
  }

  // ---- Conditions: [ a == b -a -n c ], [[ a == b && ! -z c ]]

  Truth test(const std::vector<Raw>& raws) {
    std::vector<std::string> words;
    for (std::size_t i = 1; i < raws.size(); ++i) {
      if (raws[i].text == "]" || raws[i].text == "]]") break;
      const std::string text = joined(raws[i], state_, in_).text;
      words.push_back(is_unset_variable(text) ? "" : text);
    }
    std::size_t at = 0;
    const Truth truth = any(words, at);
    return at == words.size() ? truth : Truth::unknown;
  }
  Truth any(const std::vector<std::string>& words, std::size_t& at) {
    Truth truth = all(words, at);
    while (at < words.size() && (words[at] == "||" || words[at] == "-o")) {
      const Truth right = all(words, ++at);
      truth = truth == Truth::yes || right == Truth::yes ? Truth::yes : truth == Truth::no ? right : truth;
    }
    return truth;
  }
  Truth all(const std::vector<std::string>& words, std::size_t& at) {
    Truth truth = one(words, at);
    while (at < words.size() && (words[at] == "&&" || words[at] == "-a")) {
      const Truth right = one(words, ++at);
      truth = truth == Truth::no || right == Truth::no ? Truth::no : truth == Truth::yes ? right : truth;
    }
    return truth;
  }
  Truth one(const std::vector<std::string>& words, std::size_t& at) {
    const auto left = [&] { return words.size() - at; };
    if (left() == 0) return Truth::unknown;
    if (words[at] == "!") {
      const Truth truth = one(words, ++at);
      return !truth;
    }
    const std::string& first = words[at];
    const auto yes = [](bool is) { return is ? Truth::yes : Truth::no; };
    static const std::set<std::string> operators = {"=",   "==",  "!=",  "-eq", "-ne", "-gt",
                                                    "-ge", "-lt", "-le", "=~",  "<",   ">"};
    if (left() >= 3 && operators.contains(words[at + 1])) {
      const std::string &op = words[at + 1], &second = words[at + 2];
      at += 3;
      if (first.find("${") != std::string::npos || second.find("${") != std::string::npos) return Truth::unknown;
      if (op == "=" || op == "==") return yes(fnmatch(second.c_str(), first.c_str(), 0) == 0);
      if (op == "!=") return yes(fnmatch(second.c_str(), first.c_str(), 0) != 0);
      const auto a = arithmetic(first, state_), b = arithmetic(second, state_);
      if (op[0] != '-' || !a || !b) return Truth::unknown;
      return yes(op == "-eq"   ? *a == *b
                 : op == "-ne" ? *a != *b
                 : op == "-gt" ? *a > *b
                 : op == "-ge" ? *a >= *b
                 : op == "-lt" ? *a < *b
                               : *a <= *b);
    }
    if (left() >= 2 && (first == "-z" || first == "-n")) {
      at += 2;
      return yes(words[at - 1].empty() == (first == "-z"));
    }
    if (left() >= 2 && first.size() == 2 && first[0] == '-') {
      at += 2;
      return Truth::unknown;  // -f, -d, -v, ...: the machine's
    }
    ++at;
    return yes(!first.empty());
  }

  ShellReader in_;
  ShellState state_;
  ShellRun result_;
  std::map<std::string, ShellReader::Place> functions_;
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
