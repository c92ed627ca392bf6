// Shell words, YAML lists in one line, and the small Python list expressions that some flags take.
#include <algorithm>
#include <charconv>

#include "table.hpp"

namespace pipewright::emit {

namespace {

/// expr := term ('+' term)*, term := factor ('*' integer)*, factor := '[' integers ']' | '(' expr ')' | integers
class PythonList {
 public:
  PythonList(std::string_view text, const std::string& flag) : text_(text), flag_(flag) {}

  std::vector<std::string> run() {
    auto values = expression(0);
    skip();
    if (at_ != text_.size()) fail();
    return values;
  }

 private:
  static constexpr int deepest = 20;
  static constexpr std::size_t longest = 100000;

  [[noreturn]] void fail() const {
    throw UsageError({"--megatron", 0}, flag_,
                     "expected an integer, integers between commas or a Python list such as "
                     "([0]*3+[1]*58), found " +
                         std::string(text_));
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string integer() {
    skip();
    const auto begin = at_;
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    std::int64_t value = 0;
    const auto word = text_.substr(begin, at_ - begin);
    if (std::from_chars(word.data(), word.data() + word.size(), value).ec != std::errc()) fail();
    return std::to_string(value);
  }
  std::vector<std::string> integers(char end) {
    std::vector<std::string> values;
    skip();
    if (end != 0 && take(end)) return values;
    do values.push_back(integer());
    while (take(','));
    if (end != 0 && !take(end)) fail();
    return values;
  }
  std::vector<std::string> factor(int depth) {
    if (take('[')) return integers(']');
    if (take('(')) {
      skip();
      if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(')) {
        auto values = expression(depth + 1);
        if (!take(')')) fail();
        return values;
      }
      return integers(')');
    }
    return integers(0);
  }
  std::vector<std::string> term(int depth) {
    auto values = factor(depth);
    while (take('*')) {
      const auto times = integer();
      std::int64_t n = 0;
      std::from_chars(times.data(), times.data() + times.size(), n);
      if (n < 0 || static_cast<std::size_t>(n) * values.size() > longest) fail();
      std::vector<std::string> repeated;
      for (std::int64_t i = 0; i < n; ++i) repeated.insert(repeated.end(), values.begin(), values.end());
      values = std::move(repeated);
    }
    return values;
  }
  std::vector<std::string> expression(int depth) {
    if (depth > deepest) fail();
    auto values = term(depth);
    while (take('+')) {
      const auto more = term(depth);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  }

  std::string_view text_;
  const std::string& flag_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::string> split_shell(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      open = true;
    } else if (c == '\\' && i + 1 < text.size()) {
      // A backslash before the end of a line continues it.
      if (text[++i] != '\n') word += text[i], open = true;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (quote != 0) throw UsageError({"--megatron", 0}, "", std::string("a quote ") + quote + " is not closed");
  if (open) words.push_back(std::move(word));
  return words;
}

std::vector<std::string> items_of(const std::string& yaml_list) {
  std::string_view text = yaml_list;
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> items;
  while (!text.empty()) {
    const auto end = std::min(text.find(','), text.size());
    auto item = text.substr(0, end);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (!item.empty()) items.emplace_back(item);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return items;
}

std::string python_text(const std::vector<std::string>& integers) {
  if (integers.size() == 1) return integers.front();
  std::string text;
  for (std::size_t i = 0; i < integers.size();) {
    auto end = i;
    while (end < integers.size() && integers[end] == integers[i]) ++end;
    text += (text.empty() ? "" : "+") + ("[" + integers[i] + "]*" + std::to_string(end - i));
    i = end;
  }
  return "(" + text + ")";
}

std::vector<std::string> python_values(std::string_view text, const std::string& flag) {
  return PythonList(text, flag).run();
}

}  // namespace pipewright::emit
