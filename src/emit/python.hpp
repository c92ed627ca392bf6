// Python as launch scripts and recipes write it: literals, lists with + and *, names and calls. Nothing is executed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::emit {

struct Python {
  enum class Kind : unsigned char { none, boolean, number, string, list, map, name, call } kind = Kind::none;
  std::string text;           ///< of a number, a string (without quotes), a name ("torch.bfloat16"), a call's function
  std::vector<Python> items;  ///< of a list or tuple; a call's positional arguments
  struct Entry;
  std::vector<Entry> entries;  ///< of a map; a call's named arguments
};
struct Python::Entry {
  std::string name;
  Python value;
};

/// Without blanks at both ends.
std::string trimmed(std::string_view text);

/// "cfg.x.y = VALUE", as the value of another assignment may be.
bool is_assignment(std::string_view text);

struct Statement {
  std::string text;
  int line = 0;
};
/// Logical lines: brackets, triple quotes and a backslash go on; comments are left out.
std::vector<Statement> statements(std::string_view text);

/// One expression. Throws UsageError at `where` naming `key`: not such an expression, nested deeper than 20, a list of
/// more than 100,000 elements, an integer beyond 64 bits.
Python parse_python(std::string_view text, const Position& where, const std::string& key);

/// As scenario::set() takes it. Throws UsageError for a map or a call.
std::string yaml_of(const Python& value, const Position& where, const std::string& key);

/// As scenario::set() reads one. Throws UsageError for anything else.
std::int64_t integer_of(const Python& value, const Position& where, const std::string& key);

/// `text` as a Python string literal, whatever it holds.
std::string python_string(std::string_view text);

/// A value of the scenario as a Python literal: true -> True, none -> None, [a, b] -> ["a", "b"], mlp -> "mlp".
std::string python_literal(const std::string& yaml_value);

}  // namespace pipewright::emit
