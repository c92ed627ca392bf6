#include "shell_condition.hpp"

#include <fnmatch.h>
#include <regex.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string>

namespace pipewright::emit {

namespace {

class ShellCondition {
 public:
  explicit ShellCondition(ShellState& state) : state_(state) {}

  Truth of(const std::vector<std::string>& words) {
    std::size_t at = 0;
    const Truth truth = any(words, at);
    return at == words.size() ? truth : Truth::unknown;
  }

 private:
  /// text =~ pattern, whose groups become BASH_REMATCH.
  Truth matches(const std::string& text, const std::string& pattern) {
    constexpr std::size_t longest = 300, groups = 10;
    // What would take long or much memory (references to groups, large counts) is not looked at.
    bool plain = pattern.size() <= longest && text.size() <= longest && std::ranges::count(pattern, '{') <= 2;
    for (std::size_t i = 0; i + 2 < pattern.size(); ++i) {
      const auto digit = [&](std::size_t at) { return std::isdigit(static_cast<unsigned char>(pattern[at])) != 0; };
      plain = plain && !(pattern[i] == '\\' && digit(i + 1)) && !(digit(i) && digit(i + 1) && digit(i + 2));
    }
    regex_t compiled;
    if (!plain || regcomp(&compiled, pattern.c_str(), REG_EXTENDED) != 0) return Truth::unknown;
    std::array<regmatch_t, groups> found{};
    const bool is = regexec(&compiled, text.c_str(), groups, found.data(), 0) == 0;
    regfree(&compiled);
    auto& parts = state_.arrays["BASH_REMATCH"];
    parts.clear();
    for (const auto& part : found)
      if (is && part.rm_so >= 0)
        parts.push_back(
            {text.substr(static_cast<std::size_t>(part.rm_so), static_cast<std::size_t>(part.rm_eo - part.rm_so)), 0});
    return is ? Truth::yes : Truth::no;
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
    if (words[at] == "(") {
      const Truth truth = any(words, ++at);
      if (at >= words.size() || words[at] != ")") return Truth::unknown;
      ++at;
      return truth;
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
      if (op == "<") return yes(first < second);
      if (op == ">") return yes(first > second);
      if (op == "=~") return matches(first, second);
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
    if (left() >= 2 && first == "-v") {
      at += 2;
      const auto& name = words[at - 1];
      return state_.known(name) || state_.tables.contains(name) ? Truth::yes : Truth::unknown;
    }
    if (left() >= 2 && first.size() == 2 && first[0] == '-') {
      at += 2;
      return Truth::unknown;  // -f, -d, -v, ...: the machine's
    }
    ++at;
    return yes(!first.empty());
  }

  ShellState& state_;
};

}  // namespace

Truth condition_of(const std::vector<Raw>& raws, ShellState& state, const ShellReader& reader, bool& open) {
  std::vector<std::string> words;
  for (std::size_t i = 1; i < raws.size(); ++i) {
    if (raws[i].text == "]" || raws[i].text == "]]") break;
    Raw raw = raws[i];
    if (raws[i - 1].text == "=~")  // a regular expression keeps its backslashes
      for (std::size_t at = 0; (at = raw.text.find('\\', at)) != std::string::npos; at += 2) raw.text.insert(at, "\\");
    const std::string text = joined(raw, state, reader).text;
    // Nothing at all is what a default of nothing leaves of a variable that nobody sets.
    open = open || is_open(text) || (text.empty() && raws[i].text.find('$') != std::string::npos);
    words.push_back(is_unset_variable(text) ? "" : text);
  }
  return ShellCondition(state).of(words);
}

}  // namespace pipewright::emit
