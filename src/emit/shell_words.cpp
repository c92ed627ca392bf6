// Expanding words; bash's manual, "Shell Expansions", as far as launch scripts use it.
#include "shell_words.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace pipewright::emit {

namespace {

/// Expands one raw word into fields.
class Expander {
 public:
  Expander(ShellState& state, const ShellReader& reader, int line, bool splits, int depth = 0)
      : state_(state), reader_(reader), line_(line), splits_(splits), depth_(depth) {
    if (depth > 20) throw reader.error("expansions within each other without end");
  }

  std::vector<ShellWord> run(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c == '\\') {
        if (i + 1 < text.size()) put(text[i + 1]);
        i += 2;
      } else if (c == '\'') {
        const auto end = std::min(text.find('\'', i + 1), text.size());
        put(text.substr(i + 1, end - i - 1));
        i = end + 1;
      } else if (c == '"') {
        i = quoted(text, i + 1);
      } else if (c == '`') {
        i = backquoted(text, i, !splits_);
      } else if (c == '$') {
        i = dollar(text, i, !splits_);
      } else {
        put(c);
        ++i;
      }
    }
    finish();
    return std::move(fields_);
  }

 private:
  void put(std::string_view text) {
    if (now_.text.size() + text.size() > ShellState::longest) throw reader_.error("a word of more than 1 MiB");
    now_.text += text;
    if (now_.line == 0) now_.line = line_;
    open_ = true;
  }
  void put(char c) { put(std::string_view(&c, 1)); }
  void finish() {
    if (open_) {
      if (++state_.words > 100'000) throw reader_.error("more than 100,000 words");
      fields_.push_back(std::move(now_));
    }
    now_ = {};
    open_ = false;
  }
  /// An expansion outside of quotes is split at blanks.
  void put_split(const ShellWord& value) {
    for (const char c : value.text) {
      if (blank(c) || c == '\n') {
        finish();
      } else {
        if (!open_) now_.line = value.line;
        put(c);
      }
    }
  }

  std::size_t quoted(std::string_view text, std::size_t i) {
    const bool was_open = open_;
    nothing_ = false;
    open_ = true;
    if (now_.line == 0) now_.line = line_;
    while (i < text.size() && text[i] != '"') {
      if (text[i] == '\\' && i + 1 < text.size() &&
          std::string_view("\\\"$`\n").find(text[i + 1]) != std::string_view::npos) {
        if (text[i + 1] != '\n') put(text[i + 1]);
        i += 2;
      } else if (text[i] == '$') {
        i = dollar(text, i, true);
      } else if (text[i] == '`') {
        i = backquoted(text, i, true);
      } else {
        put(text[i++]);
      }
    }
    if (nothing_ && now_.text.empty()) open_ = was_open;  // "$@" and "${NONE[@]}" are no word at all
    return i + 1;
  }

  std::size_t backquoted(std::string_view text, std::size_t i, bool in_quotes) {
    const auto end = std::min(text.find('`', i + 1), text.size());
    output(text.substr(i + 1, end - std::min(end, i + 1)), in_quotes);
    return end + 1;
  }
  /// What the command prints; that of one that would have to run stays unknown.
  void output(std::string_view command, bool in_quotes) {
    const auto printed = state_.output ? state_.output(command, line_) : std::nullopt;
    if (!printed)
      put("${command}");
    else if (in_quotes)
      put(*printed);
    else
      put_split({*printed, line_});
  }

  static std::size_t closing(std::string_view text, std::size_t i, char open, char close) {
    int depth = 0;
    for (; i < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == '\'') {
        const auto end = text.find('\'', i + 1);
        if (end == std::string_view::npos) return text.size();
        i = end;
      } else if (text[i] == open) {
        ++depth;
      } else if (text[i] == close && --depth == 0) {
        return i;
      }
    }
    return text.size();
  }

  std::size_t dollar(std::string_view text, std::size_t i, bool in_quotes) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (next == '\'' && !in_quotes) {
      const auto end = std::min(text.find('\'', i + 2), text.size());
      put(text.substr(i + 2, end - i - 2));
      return end + 1;
    }
    if (next == '(') {
      const auto end = closing(text, i + 1, '(', ')');
      if (text.substr(i, 3) == "$((") {
        const auto inner = end > i + 3 ? text.substr(i + 3, end - i - 4) : "";
        const auto value = arithmetic(inner, state_);
        put(value ? std::to_string(*value) : "${arithmetic}");
      } else {
        output(text.substr(i + 2, end - std::min(end, i + 2)), in_quotes);
      }
      return end + 1;
    }
    if (next == '{') {
      const auto end = closing(text, i + 1, '{', '}');
      parameter(text.substr(i + 2, end - i - 2), in_quotes);
      return end + 1;
    }
    std::size_t end = i + 1;
    if (name_char(next) && std::isdigit(static_cast<unsigned char>(next)) == 0)
      while (end < text.size() && name_char(text[end])) ++end;
    else if (next != '\0' && (name_char(next) || std::string_view("@*#?$!-").find(next) != std::string_view::npos))
      ++end;
    if (end == i + 1) {
      put('$');
      return end;
    }
    parameter(text.substr(i + 1, end - i - 1), in_quotes);
    return end;
  }

  void insert(const std::vector<ShellWord>& values, bool all, bool separate, bool in_quotes) {
    nothing_ = nothing_ || (values.empty() && separate);
    if (values.empty()) return;
    if (!in_quotes) {
      for (std::size_t k = 0; k < (all ? values.size() : 1); ++k) {
        if (k > 0) finish();
        put_split(values[k]);
      }
      return;
    }
    for (std::size_t k = 0; k < (all ? values.size() : 1); ++k) {
      if (k > 0 && separate && splits_)
        finish();
      else if (k > 0)
        put(' ');
      if (!open_) now_.line = values[k].line;
      put(values[k].text);
    }
  }

  void parameter(std::string_view inner, bool in_quotes) {
    const auto unknown = [&] { put("${" + std::string(inner) + "}"); };
    if (inner.empty() || inner[0] == '!') return unknown();
    const bool length = inner[0] == '#' && inner.size() > 1;
    if (length) inner.remove_prefix(1);
    std::size_t end = 0;
    while (end < inner.size() && name_char(inner[end])) ++end;
    if (end == 0) end = 1;  // @ * # ? $
    const std::string name(inner.substr(0, end));
    std::string_view rest = inner.substr(end), index;
    if (rest.starts_with('[')) {
      const auto close = std::min(rest.find(']'), rest.size() - 1);
      index = rest.substr(1, close - 1);
      rest.remove_prefix(close + 1);
    }
    if (name == "@" || name == "*") {  // the script's own arguments: none
      nothing_ = nothing_ || name == "@";
      return;
    }

    std::vector<ShellWord> values;
    const auto array = state_.arrays.find(name);
    const auto scalar = state_.scalars.find(name);
    const bool set = array != state_.arrays.end() || scalar != state_.scalars.end();
    if (array != state_.arrays.end()) values = array->second;
    if (scalar != state_.scalars.end()) values = {scalar->second};
    bool all = index == "@" || index == "*";
    if (const auto table = state_.tables.find(name); table != state_.tables.end() && !index.empty()) {
      std::string key;
      for (const auto& word : Expander(state_, reader_, line_, false, depth_ + 1).run(index)) key += word.text;
      values.clear();
      for (const auto& [one, value] : table->second)
        if (all || one == key) values.push_back(value);
      if (values.empty() && !all) return;
      return insert(values, all, index == "@", in_quotes);
    }
    if (!index.empty() && !all) {
      const auto number = arithmetic(index, state_);
      if (!number) return unknown();
      const bool inside = *number >= 0 && static_cast<std::size_t>(*number) < values.size();
      values = inside ? std::vector{values[static_cast<std::size_t>(*number)]} : std::vector<ShellWord>{};
    }
    if (length) return put(std::to_string(all ? values.size() : values.empty() ? 0 : values.front().text.size()));
    if (!rest.empty()) {
      const bool colon =
          rest.starts_with(':') && rest.size() > 1 && std::string_view("-=+?").find(rest[1]) != std::string_view::npos;
      const char op = rest[colon ? 1 : 0];
      const bool usable = set && !(colon && (values.empty() || values.front().text.empty()));
      const auto other = [&] {
        return Expander(state_, reader_, line_, !in_quotes && splits_, depth_ + 1).run(rest.substr(colon ? 2 : 1));
      };
      if (op == '+') {
        if (usable) insert(other(), true, true, in_quotes);
        return;
      }
      if (op == '-' || op == '=') {
        if (usable) return insert(values, all, index == "@", in_quotes);
        const auto fallback = other();
        if (op == '=') {
          std::string text;
          for (const auto& word : fallback) text += (text.empty() ? "" : " ") + word.text;
          state_.scalars[name] = {text, line_};
        }
        return insert(fallback, true, true, in_quotes);
      }
      if (op != '?') return unknown();  // ${NAME%.*}, ${NAME/a/b}, ${NAME:3}
    }
    if (!set && !all) return unknown();
    insert(values, all, index == "@", in_quotes);
  }

  ShellState& state_;
  const ShellReader& reader_;
  int line_;
  bool splits_;
  int depth_;
  std::vector<ShellWord> fields_;
  ShellWord now_;
  bool open_ = false;
  bool nothing_ = false;  ///< a list without elements stood between the quotes
};

/// Integers with the precedence of C; names are variables.
class Arithmetic {
 public:
  Arithmetic(std::string_view text, const ShellState& state, int depth) : text_(text), state_(state), depth_(depth) {}

  std::optional<std::int64_t> run() {
    const auto value = level(0);
    skip();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  using Number = std::optional<std::int64_t>;

  void skip() {
    while (at_ < text_.size() && (blank(text_[at_]) || text_[at_] == '\n')) ++at_;
  }
  bool take(std::string_view op) {
    skip();
    if (!text_.substr(at_).starts_with(op)) return false;
    at_ += op.size();
    return true;
  }

  Number level(int at_least) {
    static constexpr std::string_view rows[][6] = {{"||"},     {"&&"},         {"==", "!="}, {"<=", ">=", "<", ">"},
                                                   {"+", "-"}, {"*", "/", "%"}};
    if (at_least == static_cast<int>(std::size(rows))) return unary();
    Number left = level(at_least + 1);
    for (;;) {
      std::string_view op;
      for (const auto candidate : rows[at_least])
        if (op.empty() && !candidate.empty() && take(candidate)) op = candidate;
      if (op.empty()) return left;
      left = apply(left, op, level(at_least + 1));
    }
  }

  static Number apply(Number a, std::string_view op, Number b) {
    if (!a || !b) return {};
    std::int64_t result = 0;
    if (op == "+") return __builtin_add_overflow(*a, *b, &result) ? Number() : result;
    if (op == "-") return __builtin_sub_overflow(*a, *b, &result) ? Number() : result;
    if (op == "*") return __builtin_mul_overflow(*a, *b, &result) ? Number() : result;
    if (op == "/" || op == "%") {
      if (*b == 0 || (*b == -1 && *a == INT64_MIN)) return {};
      return op == "/" ? *a / *b : *a % *b;
    }
    return op == "||"   ? *a != 0 || *b != 0
           : op == "&&" ? *a != 0 && *b != 0
           : op == "==" ? *a == *b
           : op == "!=" ? *a != *b
           : op == "<=" ? *a <= *b
           : op == ">=" ? *a >= *b
           : op == "<"  ? *a < *b
                        : *a > *b;
  }

  Number unary() {
    if (++signs_ > 200) return {};
    if (take("-")) return apply(0, "-", unary());
    if (take("!")) {
      const Number value = unary();
      return value ? Number(*value == 0) : value;
    }
    if (take("(")) {
      const Number value = level(0);
      return take(")") ? value : Number();
    }
    skip();
    const auto begin = at_;
    if (take("${")) {
      const auto end = text_.find('}', at_);
      if (end == std::string_view::npos) return {};
      const auto name = text_.substr(at_, end - at_);
      at_ = end + 1;
      return variable(name);
    }
    if (take("$")) {
    }
    const auto word = at_;
    while (at_ < text_.size() && name_char(text_[at_])) ++at_;
    const auto text = text_.substr(word, at_ - word);
    if (text.empty()) return {};
    if (word == begin && std::isdigit(static_cast<unsigned char>(text[0])) != 0) {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      return error == std::errc() && end == text.data() + text.size() ? Number(value) : Number();
    }
    return variable(text);
  }

  Number variable(std::string_view name) const {
    const auto found = state_.scalars.find(std::string(name));
    if (found == state_.scalars.end() || depth_ > 10) return {};
    return Arithmetic(found->second.text, state_, depth_ + 1).run();
  }

  std::string_view text_;
  const ShellState& state_;
  int depth_;
  std::size_t at_ = 0;
  int signs_ = 0;
};

}  // namespace

void expand(const Raw& raw, ShellState& state, const ShellReader& reader, std::vector<ShellWord>& out) {
  for (auto& word : Expander(state, reader, raw.line, true).run(raw.text)) out.push_back(std::move(word));
}

ShellWord joined(const Raw& raw, ShellState& state, const ShellReader& reader) {
  ShellWord word{"", raw.line};
  for (const auto& part : Expander(state, reader, raw.line, false).run(raw.text))
    word.text += (word.text.empty() ? "" : " ") + part.text;
  return word;
}

std::optional<std::int64_t> arithmetic(std::string_view expression, const ShellState& state) {
  return Arithmetic(expression, state, 0).run();
}

std::size_t assignment(std::string_view word) {
  std::size_t n = 0;
  while (n < word.size() && name_char(word[n])) ++n;
  if (n == 0 || std::isdigit(static_cast<unsigned char>(word[0])) != 0) return std::string_view::npos;
  if (n < word.size() && word[n] == '[')
    if (const auto close = word.find("]=", n); close != std::string_view::npos) return close + 1;
  if (n < word.size() && word[n] == '+') ++n;
  return n < word.size() && word[n] == '=' ? n : std::string_view::npos;
}

std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0 ? c == quote : c == '"' || c == '\'') {
      quote = quote != 0 ? '\0' : c;
      open = true;
    } else if (quote == 0 && (blank(c) || c == '\n')) {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else {
      if (c == '\\' && quote != '\'' && i + 1 < line.size() && line[++i] == '\n') continue;
      word += line[i];
      open = true;
    }
  }
  if (open) words.push_back(std::move(word));
  return words;
}

}  // namespace pipewright::emit
