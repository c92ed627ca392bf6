// A parsed YAML text as plain values with their lines: what stands between yaml-cpp and the table of fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::scenario {

struct Value {
  enum class Kind : std::uint8_t { none, scalar, list, map };
  struct Entry;
  Kind kind = Kind::none;
  bool quoted = false;  ///< a quoted scalar is a string, never a number or a boolean
  std::string text;     ///< of a scalar
  int line = 0;
  std::vector<Value> items;    ///< of a list
  std::vector<Entry> entries;  ///< of a map
};
struct Value::Entry {
  std::string key;
  int line;
  Value value;
};

/// One YAML document. Throws UsageError for what is no YAML, for repeated keys, for what scenarios have no use for
/// (anchors, tags, several documents) and for sizes and depths that only a broken file has. `dumped`: what a program
/// wrote may have anchors and tags; aliases are copies, as far as they stay small.
Value parse_yaml(std::string_view text, const std::string& file, bool dumped = false);

/// Throws UsageError for bytes that are no UTF-8. `where`: line of the first byte; 0: an option, which has no lines.
void check_utf8(std::string_view text, Position where, const std::string& key = {});

/// The value on the right of `option` NAME=VALUE (--set). A list may be written without brackets: a,b,c.
Value parse_setting(std::string_view text, const std::string& key, const std::string& option);

// Readings of a scalar; nullopt if it is none.
std::optional<std::int64_t> as_int(const Value& value);
std::optional<bool> as_bool(const Value& value);
std::optional<double> as_double(const Value& value);
bool is_none(const Value& value);  ///< null, ~, none, None or nothing

/// "the integer 4", "the list [..]", "a map": for messages.
std::string describe(const Value& value);

std::string yaml_number(double number);     ///< shortest text that reads back as the same double
std::string yaml_text(const Value& value);  ///< flow style, one line

}  // namespace pipewright::scenario
