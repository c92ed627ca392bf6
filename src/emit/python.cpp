// Recursive descent over Python's expressions, as far as configurations use them:
//
//   expression := term (("+" | "-") term)*      integers, or lists one after the other
//   term       := factor ("*" factor)*          integers, or a list repeated
//   factor     := "-" factor | number | string+ | name [call] | "[" .. "]" | "(" .. ")" | "{" .. "}"
#include "python.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "emitted.hpp"
#include "field_table.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::emit {

namespace {

class PythonReader {
 public:
  PythonReader(std::string_view text, const Position& where, const std::string& key)
      : text_(text), where_(where), key_(key) {}

  Python whole() {
    Python value = expression(0);
    if (peek() == ',') {  // a tuple needs no brackets
      Python tuple{Python::Kind::list, {}, {std::move(value)}, {}};
      while (take(','))
        if (peek() != 0) add(tuple, expression(0));
      value = std::move(tuple);
    }
    if (peek() != 0) fail("");
    return value;
  }

 private:
  static constexpr int deepest = 20;               // a recipe's own nesting is 3
  static constexpr std::size_t longest = 100'000;  // elements: no model has as many layers

  [[noreturn]] void fail(const std::string& why) const {
    std::string found(text_.substr(0, 60));
    std::ranges::replace_if(
        found, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
    throw UsageError(
        where_, key_,
        (why.empty() ? "expected a number, a string, True, False, None or a list such as [0]*3+[1]*58" : why) +
            ", found " + found + (text_.size() > 60 ? "..." : ""));
  }

  char peek() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        if (at_ == text_.size()) break;
      } else if (c == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') {
        ++at_;
      } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
        return c;
      }
    }
    return 0;
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void add(Python& list, Python value) const {
    if (list.items.size() >= longest) fail(fmt::format("a list of more than {} elements", longest));
    list.items.push_back(std::move(value));
  }

  static std::int64_t integer(const Python& value, bool& is) {
    std::int64_t number = 0;
    const auto* end = value.text.data() + value.text.size();
    is = value.kind == Python::Kind::number && std::from_chars(value.text.data(), end, number).ptr == end;
    return number;
  }
  /// left op right of integers; false where one is none.
  bool arithmetic(char op, Python& left, const Python& right) const {
    bool a_is = false, b_is = false;
    const std::int64_t a = integer(left, a_is), b = integer(right, b_is);
    if (!a_is || !b_is) return false;
    std::int64_t result = 0;
    const bool over = op == '*'   ? __builtin_mul_overflow(a, b, &result)
                      : op == '+' ? __builtin_add_overflow(a, b, &result)
                                  : __builtin_sub_overflow(a, b, &result);
    if (over) fail("an integer beyond 64 bits");
    left.text = std::to_string(result);
    return true;
  }

  Python expression(int depth) {
    if (depth > deepest) fail(fmt::format("nested deeper than {} levels", deepest));
    Python value = term(depth);
    for (char op = peek(); op == '+' || op == '-'; op = peek()) {
      ++at_;
      Python right = term(depth);
      if (arithmetic(op, value, right)) continue;
      if (op != '+' || value.kind != Python::Kind::list || right.kind != Python::Kind::list) fail("");
      for (Python& item : right.items) add(value, std::move(item));
    }
    return value;
  }

  Python term(int depth) {
    Python value = factor(depth);
    while (peek() == '*') {
      ++at_;
      Python right = factor(depth);
      if (arithmetic('*', value, right)) continue;
      if (value.kind != Python::Kind::list) std::swap(value, right);
      bool counts = false;
      const std::int64_t times = integer(right, counts);
      if (value.kind != Python::Kind::list || !counts) fail("");
      const std::size_t n = value.items.size();
      if (times > 0 && n > longest / static_cast<std::size_t>(times))
        fail(fmt::format("a list of more than {} elements", longest));
      const std::vector<Python> once = std::move(value.items);
      value.items.clear();
      for (std::int64_t i = 0; n > 0 && i < times; ++i) value.items.insert(value.items.end(), once.begin(), once.end());
    }
    return value;
  }

  Python factor(int depth) {
    bool sign = false, negative = false;
    char c = peek();
    for (; c == '-' || c == '+'; c = peek()) {
      ++at_;
      sign = true;
      negative ^= c == '-';
    }
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.') {
      Python value = number();
      if (negative) value.text.insert(0, "-");
      return value;
    }
    if (sign) fail("");
    if (c == '[' || c == '(') return sequence(c == '[' ? ']' : ')', depth);
    if (c == '{') return map(depth);
    if (c == '"' || c == '\'') return string();
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') return word(depth);
    fail("");
  }

  Python sequence(char close, int depth) {
    const bool brackets = close == ']';
    ++at_;
    Python list{Python::Kind::list, {}, {}, {}};
    bool comma = false;
    while (peek() != close) {
      add(list, expression(depth + 1));
      if (!take(',')) break;
      comma = true;
    }
    if (!take(close)) fail(std::string("a bracket ") + (brackets ? "[" : "(") + " is not closed");
    if (!brackets && !comma && list.items.size() == 1) return std::move(list.items.front());
    return list;
  }

  Python map(int depth) {
    ++at_;
    Python all{Python::Kind::map, {}, {}, {}};
    while (peek() != '}') {
      if (take('*')) {  // **NAME: entries that are not known
        if (!take('*')) fail("");
        expression(depth + 1);
        if (!take(',')) break;
        continue;
      }
      Python key = expression(depth + 1);
      if (key.kind != Python::Kind::string || !take(':')) fail("");
      if (all.entries.size() >= longest) fail("too many entries");
      Python value = expression(depth + 1);
      all.entries.push_back({std::move(key.text), std::move(value)});
      if (!take(',')) break;
    }
    if (!take('}')) fail("a bracket { is not closed");
    return all;
  }

  Python number() {
    const auto begin = at_;
    const auto part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_'; };
    while (at_ < text_.size() && (part(text_[at_]) || ((text_[at_] == '-' || text_[at_] == '+') &&
                                                       (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E'))))
      ++at_;
    Python value{Python::Kind::number, std::string(text_.substr(begin, at_ - begin)), {}, {}};
    std::erase(value.text, '_');
    double number = 0;
    const auto* end = value.text.data() + value.text.size();
    const auto read = std::from_chars(value.text.data(), end, number);
    if (read.ptr != end || read.ec != std::errc() || !std::isfinite(number)) fail("");
    if (value.text.find_first_not_of("0123456789") == std::string::npos) {
      std::int64_t whole = 0;
      if (std::from_chars(value.text.data(), end, whole).ec != std::errc()) fail("an integer beyond 64 bits");
    }
    return value;
  }

  Python string() {
    Python value{Python::Kind::string, {}, {}, {}};
    for (char quote = peek(); quote == '"' || quote == '\''; quote = peek()) {  // strings side by side are one
      const bool triple = text_.substr(at_, 3) == std::string(3, quote);
      const std::string close(triple ? 3 : 1, quote);
      at_ += close.size();
      while (text_.substr(at_, close.size()) != close) {
        if (at_ >= text_.size() || (!triple && text_[at_] == '\n')) fail("a quote is not closed");
        if (text_[at_] == '\\')
          escape(value.text);
        else
          value.text += text_[at_++];
      }
      at_ += close.size();
    }
    return value;
  }

  void escape(std::string& out) {
    static constexpr std::string_view names = "ntr0abfv\\'\"\n", values("\n\t\r\0\a\b\f\v\\'\"\n", 12);
    ++at_;
    if (at_ >= text_.size()) fail("a quote is not closed");
    const char c = text_[at_++];
    if (c == '\n') return;
    if (const auto known = names.find(c); known != std::string_view::npos) {
      out += values[known];
      return;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    unsigned code = 0;
    const auto hex = text_.substr(at_, digits);
    if (digits == 0 || hex.size() != digits ||
        std::from_chars(hex.data(), hex.data() + digits, code, 16).ptr != hex.data() + digits || code > 0x10ffff)
      fail("an escape that is not known");
    at_ += digits;
    const auto byte = [&](unsigned value) { out += static_cast<char>(value); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) return byte(0xc0 | code >> 6U), byte(0x80 | (code & 0x3fU));
    if (code < 0x10000) {
      byte(0xe0 | code >> 12U);
    } else {
      byte(0xf0 | code >> 18U);
      byte(0x80 | (code >> 12U & 0x3fU));
    }
    byte(0x80 | (code >> 6U & 0x3fU));
    byte(0x80 | (code & 0x3fU));
  }

  Python word(int depth) {
    const auto begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_' || text_[at_] == '.'))
      ++at_;
    std::string name(text_.substr(begin, at_ - begin));
    if (name == "True" || name == "False") return {Python::Kind::boolean, name, {}, {}};
    if (name == "None") return {Python::Kind::none, {}, {}, {}};
    if (peek() != '(') return {Python::Kind::name, std::move(name), {}, {}};
    ++at_;
    Python call{Python::Kind::call, std::move(name), {}, {}};
    while (peek() != ')') {
      Python argument = expression(depth + 1);
      if (argument.kind == Python::Kind::name && take('='))
        call.entries.push_back({argument.text, expression(depth + 1)});
      else
        add(call, std::move(argument));
      if (!take(',')) break;
    }
    if (!take(')')) fail("a bracket ( is not closed");
    if ((call.text == "float" || call.text == "int") && call.items.size() == 1 &&
        call.items.front().kind == Python::Kind::number)
      return std::move(call.items.front());
    if (peek() != '.' || depth > deepest) return call;
    ++at_;  // a method of what the call gives: its name goes on, the arguments belong to another object
    Python method = word(depth + 1);
    method.text = call.text + "()." + method.text;
    method.kind = Python::Kind::call;
    method.entries.clear();
    method.items.clear();
    return method;
  }

  std::string_view text_;
  const Position& where_;
  const std::string& key_;
  std::size_t at_ = 0;
};

bool is_number(const std::string& text) {
  double value = 0;
  const auto* end = text.data() + text.size();
  return std::from_chars(text.data(), end, value).ptr == end && !text.empty() && std::isfinite(value);
}

}  // namespace

Python parse_python(std::string_view text, const Position& where, const std::string& key) {
  return PythonReader(text, where, key).whole();
}

std::string yaml_of(const Python& value, const Position& where, const std::string& key) {
  switch (value.kind) {
    case Python::Kind::none:
      return "none";
    case Python::Kind::boolean:
      return value.text == "True" ? "true" : "false";
    case Python::Kind::number:
      return value.text;
    case Python::Kind::string:
      return scenario::yaml_scalar(value.text);
    case Python::Kind::name:  // torch.bfloat16, AttnBackend.flash: what stands last says it
      return scenario::yaml_scalar(value.text.substr(value.text.rfind('.') + 1));
    case Python::Kind::list: {
      std::string text;
      for (const auto& item : value.items) text += (text.empty() ? "" : ", ") + yaml_of(item, where, key);
      return "[" + text + "]";
    }
    case Python::Kind::map:
    case Python::Kind::call:
      break;
  }
  throw UsageError(where, key,
                   value.kind == Python::Kind::map ? "expected a value, found a map"
                                                   : "expected a value, found a call of " + value.text);
}

std::int64_t integer_of(const Python& value, const Position& where, const std::string& key) {
  scenario::Scenario probe;
  try {
    scenario::set(probe, "seq_length=" + yaml_of(value, where, key));
  } catch (const UsageError& error) {
    throw UsageError(where, key, error.message(), error.allowed());
  }
  return probe.model.seq_length;
}

std::string python_string(std::string_view text) {
  std::string literal = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      literal += {'\\', c};
    else if (c == '\n')
      literal += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      literal += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    else
      literal += c;
  }
  return literal + "\"";
}

std::string python_literal(const std::string& value) {
  if (value == "true") return "True";
  if (value == "false") return "False";
  if (value == "none") return "None";
  if (is_number(value)) return value;
  if (value.starts_with('[') && value.ends_with(']')) {
    std::string text;
    for (const auto& item : items_of(value)) text += (text.empty() ? "" : ", ") + python_literal(item);
    return "[" + text + "]";
  }
  return python_string(unquoted(value));
}

bool is_assignment(std::string_view text) {
  const auto equals = text.find('=');
  return equals != std::string_view::npos && text.starts_with("cfg.") &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_. ") == equals;
}

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos
             ? ""
             : std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

std::vector<Statement> statements(std::string_view text) {
  std::vector<Statement> all;
  Statement now;
  std::string quote;  // the open one: ' " or three of them
  int line = 1, depth = 0;
  const auto finish = [&] {
    now.text = trimmed(now.text);
    if (!now.text.empty()) all.push_back(std::move(now));
    now = {};
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (now.text.empty() && (c == ' ' || c == '\t' || c == '\r' || c == '\n')) {
      line += c == '\n';
      continue;
    }
    if (now.text.empty()) now.line = line;
    if (c == '\n') ++line;
    if (c == '\\' && i + 1 < text.size()) {
      if (text[i + 1] == '\n') ++line;
      if (text[i + 1] != '\n' || !quote.empty()) (now.text += c) += text[i + 1];
      ++i;
    } else if (!quote.empty()) {
      now.text += c;
      if (quote.size() == 1 && c == '\n') {
        quote.clear();  // said where the value is read
      } else if (text.substr(i, quote.size()) == quote) {
        now.text += text.substr(i + 1, quote.size() - 1);
        i += quote.size() - 1;
        quote.clear();
      }
    } else if (c == '"' || c == '\'') {
      quote = text.substr(i, 3) == std::string(3, c) ? std::string(3, c) : std::string(1, c);
      now.text += quote;
      i += quote.size() - 1;
    } else if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if ((c == '\n' && depth <= 0) || (c == ';' && depth <= 0)) {
      finish();
    } else {
      depth += (c == '[' || c == '(' || c == '{') - (c == ']' || c == ')' || c == '}');
      now.text += c;
    }
  }
  finish();
  return all;
}

}  // namespace pipewright::emit
