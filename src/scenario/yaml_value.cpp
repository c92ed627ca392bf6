// YAML events to values. Building from events instead of YAML::Node keeps every line number, sees repeated keys and
// cannot be made to copy anchors without end.
#include "pipewright/scenario/yaml_value.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::scenario {
namespace {

constexpr std::size_t largest_text = std::size_t{4} << 20U;  // bytes; real scenarios have some thousand
constexpr std::size_t deepest = 16;                          // measured: ranks: [{trace_summary: {busy_us: ..}}] is 6

class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& file, Value& root, bool dumped) : file_(file), dumped_(dumped) {
    open_.push_back({&root, {}, 0, false});
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, anchor, {}, Value::Kind::none); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = anchored_.find(anchor);
    if (known == anchored_.end()) throw refuse(mark, "aliases are not supported here");
    copied_ += nodes(known->second);
    constexpr std::size_t most = 100'000;
    if (copied_ > most) throw refuse(mark, "aliases that stand for too much");
    add(mark, 0, {}, known->second.kind) = known->second;
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    if (open_.back().in_map && !open_.back().has_key) {
      check(mark, tag, anchor);
      key(mark, text);
      return;
    }
    Value& value = add(mark, anchor, tag, Value::Kind::scalar);
    value.text = text;
    value.quoted = tag == "!";
    if (anchor != 0) anchored_[anchor] = value;
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    push(add(mark, anchor, tag, Value::Kind::list), mark, anchor);
  }
  void OnSequenceEnd() override { pop(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    push(add(mark, anchor, tag, Value::Kind::map), mark, anchor);
    open_.back().in_map = true;
  }
  void OnMapEnd() override { pop(); }

 private:
  struct Open {
    Value* value;
    std::string pending;
    int line;
    bool has_key;
    bool in_map = false;
    std::set<std::string> keys = {};
    YAML::anchor_t anchor = 0;
  };

  static std::size_t nodes(const Value& value) {
    std::size_t count = 1;
    for (const auto& item : value.items) count += nodes(item);
    for (const auto& entry : value.entries) count += nodes(entry.value);
    return count;
  }

  UsageError refuse(const YAML::Mark& mark, const std::string& message, const std::string& name = {}) const {
    return {{file_, mark.line + 1}, name, message};
  }
  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (dumped_) return;
    if (anchor != 0) throw refuse(mark, "anchors are not supported here");
    if (!tag.empty() && tag != "?" && tag != "!") throw refuse(mark, "tags are not supported here", tag);
  }
  void key(const YAML::Mark& mark, const std::string& name) {
    Open& map = open_.back();
    if (!map.keys.insert(name).second) throw refuse(mark, "this key stands twice", name);
    map.pending = name;
    map.line = mark.line + 1;
    map.has_key = true;
  }
  Value& add(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag, Value::Kind kind) {
    check(mark, tag, anchor);
    Open& parent = open_.back();
    Value* value = parent.value;  // the document itself
    if (parent.in_map) {
      if (!parent.has_key) throw refuse(mark, "a key must be a word");
      value = &parent.value->entries.emplace_back(Value::Entry{parent.pending, parent.line, {}}).value;
      parent.has_key = false;
    } else if (parent.value->kind == Value::Kind::list) {
      value = &parent.value->items.emplace_back();
    }
    value->kind = kind;
    // Nothing after a key: yaml-cpp marks the next token, which may stand in another section.
    value->line = kind == Value::Kind::none && parent.in_map ? parent.line : mark.line + 1;
    return *value;
  }
  void push(Value& value, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (open_.size() > deepest) throw refuse(mark, fmt::format("nested deeper than {} levels", deepest));
    open_.push_back({&value, {}, 0, false});
    open_.back().anchor = anchor;
  }
  void pop() {
    if (open_.back().anchor != 0) anchored_[open_.back().anchor] = *open_.back().value;
    open_.pop_back();
  }

  std::string file_;
  bool dumped_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Value> anchored_;
  std::size_t copied_ = 0;  ///< values that aliases stood for
};

void check_no_controls(std::string_view text, const std::string& file) {
  int line = 1;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F)
      throw UsageError({file, line}, {}, "control character in the text: not a scenario file");
    if (c == '\n') ++line;
  }
}

bool number_text(const std::string& text) {
  return !text.empty() && text.find_first_not_of("+-.0123456789eE") == std::string::npos;
}

bool out_of_range(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc::result_out_of_range && end == text.data() + text.size();
}

// 017 is 15 to YAML 1.1 (PyYAML) and 17 to YAML 1.2.
bool is_octal_to_some(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Would another YAML reader take this for a number? "0.19.0" is none; "1_000" and "0x10" are numbers of YAML 1.1.
bool looks_numeric(const std::string& text) {
  return text.find_first_not_of("+-._0123456789abcdefABCDEFxo") == std::string::npos &&
         text.find_first_of("0123456789") != std::string::npos && std::count(text.begin(), text.end(), '.') <= 1;
}

}  // namespace

// yaml-cpp reads bytes; what is no UTF-8 would come out as something else.
void check_utf8(std::string_view text, Position where, const std::string& key) {
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    std::size_t more = 0;
    if (c >= 0x80) more = (c & 0xE0U) == 0xC0U ? 1 : (c & 0xF0U) == 0xE0U ? 2 : (c & 0xF8U) == 0xF0U ? 3 : 9;
    if (more == 9 || c == 0xC0 || c == 0xC1 || i + more >= text.size()) throw UsageError(where, key, "not UTF-8");
    for (std::size_t k = 1; k <= more; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0U) != 0x80U) throw UsageError(where, key, "not UTF-8");
    }
    if (c == '\n' && where.line > 0) ++where.line;
    i += more + 1;
  }
}

Value parse_yaml(std::string_view text, const std::string& file, bool dumped) {
  if (text.size() > largest_text) throw UsageError({file, 0}, {}, "larger than 4 MiB: not a scenario file");
  check_utf8(text, {file, 1});
  check_no_controls(text, file);
  Value root;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Builder builder(file, root, dumped);
    if (!parser.HandleNextDocument(builder) || root.kind == Value::Kind::none) {
      throw UsageError({file, 0}, {}, "empty: a scenario begins with \"scenario: 1\"");
    }
    Value more;
    Builder rest(file, more, dumped);
    if (parser.HandleNextDocument(rest)) throw UsageError({file, more.line}, {}, "a second document in one file");
  } catch (const YAML::Exception& e) {
    const bool tab = text.starts_with('\t') || text.find("\n\t") != std::string_view::npos;
    throw UsageError({file, e.mark.line + 1}, {},
                     "not YAML: " + e.msg + (tab ? "; a tab cannot indent, use spaces" : ""));
  }
  return root;
}

namespace {

/// A word that is itself to every reader of YAML.
bool is_plain_word(std::string_view text) {
  constexpr std::size_t longest = 64;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || text.size() > longest || !(is_letter(text.front()) || is_digit(text.front()))) return false;
  constexpr std::string_view nothing = "null";  // Null and NULL, too
  const auto same = [](char a, char b) { return (a | 0x20) == b; };
  if (std::ranges::equal(text, nothing, same)) return false;
  return std::ranges::all_of(text, [&](char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '.'; });
}

/// What a search sets thousands of times: `8`, `true`, `[mlp, core_attn]`, without a parser; none: it takes one.
std::optional<Value> plain_value(std::string_view text) {
  const auto word = [](std::string_view of) {
    Value value;
    value.kind = Value::Kind::scalar, value.line = 1;
    value.text = std::string(of);
    return value;
  };
  if (is_plain_word(text)) return word(text);
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return {};
  text = text.substr(1, text.size() - 2);
  Value list;
  list.kind = Value::Kind::list, list.line = 1;
  constexpr std::string_view between = ", ";
  while (!text.empty()) {
    const auto end = std::min(text.find(between), text.size());
    if (!is_plain_word(text.substr(0, end)) || end + between.size() == text.size()) return {};
    list.items.push_back(word(text.substr(0, end)));
    text.remove_prefix(std::min(end + between.size(), text.size()));
  }
  return list;
}

}  // namespace

Value parse_setting(std::string_view text, const std::string& key, const std::string& option) {
  if (text.empty()) throw UsageError({option, 0}, key, "no value");
  if (auto plain = plain_value(text)) return *std::move(plain);
  // `a,b` and `a` are YAML scalars; inside brackets the comma separates.
  const bool list_without_brackets =
      text.find(',') != std::string_view::npos && text.find_first_of("[{\"'|(") == std::string_view::npos;
  std::string yaml = "value: ";
  yaml += list_without_brackets ? "[" + std::string(text) + "]" : std::string(text);
  try {
    Value root = parse_yaml(yaml, option);
    if (root.kind == Value::Kind::map && root.entries.size() == 1) return std::move(root.entries[0].value);
  } catch (const UsageError&) {
    // Not YAML (a layout such as E|t*3|L, a path with a colon): taken as it stands.
  }
  Value value;
  value.kind = Value::Kind::scalar;
  value.text = std::string(text);
  return value;
}

std::optional<std::int64_t> as_int(const Value& value) {
  if (value.kind != Value::Kind::scalar || value.quoted || is_octal_to_some(value.text)) return {};
  std::string_view text = value.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

std::optional<bool> as_bool(const Value& value) {
  if (value.kind != Value::Kind::scalar || value.quoted) return {};
  for (const auto* yes : {"true", "True", "TRUE"}) {
    if (value.text == yes) return true;
  }
  for (const auto* no : {"false", "False", "FALSE"}) {
    if (value.text == no) return false;
  }
  return {};
}

std::optional<double> as_double(const Value& value) {
  if (value.kind != Value::Kind::scalar || value.quoted || !number_text(value.text) || is_octal_to_some(value.text))
    return {};
  std::string_view text = value.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return {};
  return number;
}

bool is_none(const Value& value) {
  if (value.kind == Value::Kind::none) return true;
  return value.kind == Value::Kind::scalar && !value.quoted &&
         (value.text == "none" || value.text == "None" || value.text == "null" || value.text == "~" ||
          value.text.empty());
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::none:
      return "nothing";
    case Value::Kind::list:
      return value.items.empty() ? "an empty list" : "a list";
    case Value::Kind::map:
      return "a map";
    case Value::Kind::scalar:
      break;
  }
  const std::string text = value.text.size() > 60 ? value.text.substr(0, 57) + "..." : value.text;
  if (as_int(value)) return "the integer " + text;
  if (as_double(value)) return "the number " + text;
  if (!value.quoted && is_octal_to_some(value.text)) return text + ", octal to some readers of YAML: no leading zero";
  if (!value.quoted && out_of_range(value.text)) return text + ", more or less than a number can be";
  if (as_bool(value)) return "the boolean " + text;
  return "the string \"" + text + "\"";
}

std::string yaml_scalar(std::string_view text) {
  Value as_plain;
  as_plain.kind = Value::Kind::scalar;
  as_plain.text = std::string(text);
  static constexpr std::string_view safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-*()| ";
  static constexpr std::string_view first = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./";
  static constexpr std::array<std::string_view, 8> words = {"yes", "no", "on", "off", "y", "n", "nan", "inf"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool plain = !text.empty() && first.find(text.front()) != std::string_view::npos &&
                     text.find_first_not_of(safe) == std::string_view::npos && text.back() != ' ' &&
                     !looks_numeric(as_plain.text) && !as_bool(as_plain) && !is_none(as_plain) &&
                     std::find(words.begin(), words.end(), lower) == words.end();
  if (plain) return as_plain.text;
  const bool control = std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  std::string quoted(1, control ? '"' : '\'');
  for (const char c : text) {
    if (control && (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else if (control ? c == '"' || c == '\\' : c == '\'') {
      quoted += {control ? '\\' : '\'', c};
    } else {
      quoted += c;
    }
  }
  return quoted + quoted.front();
}

std::string yaml_number(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string yaml_text(const Value& value) {
  std::string text;
  switch (value.kind) {
    case Value::Kind::none:
      return "none";
    case Value::Kind::scalar:
      // A plain number, boolean or none stays one; other words may need quotes in a list or beside a colon.
      return !value.quoted && (looks_numeric(value.text) || as_bool(value) || is_none(value)) ? value.text
                                                                                              : yaml_scalar(value.text);
    case Value::Kind::list:
      for (const Value& item : value.items) text += (text.empty() ? "" : ", ") + yaml_text(item);
      return "[" + text + "]";
    case Value::Kind::map:
      for (const auto& [key, line, item] : value.entries) {
        text += (text.empty() ? "" : ", ") + yaml_scalar(key) + ": " + yaml_text(item);
      }
      return "{" + text + "}";
  }
  return text;
}

}  // namespace pipewright::scenario
