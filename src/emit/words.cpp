// Shell words, YAML lists in one line, and the Python list expressions that some flags take.
#include <algorithm>

#include "field_table.hpp"
#include "python.hpp"

namespace pipewright::emit {

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
  std::string item;
  char quote = 0;
  const auto finish = [&] {
    while (item.starts_with(' ')) item.erase(0, 1);
    while (item.ends_with(' ')) item.pop_back();
    if (!item.empty()) items.push_back(std::move(item));
    item.clear();
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && c == ',') {
      finish();
      continue;
    }
    item += c;
    if (quote == '"' && c == '\\' && i + 1 < text.size())
      item += text[++i];
    else if (quote != 0)
      quote = c == quote ? '\0' : quote;
    else if ((c == '"' || c == '\'') && item.find_first_not_of(' ') == item.size() - 1)
      quote = c;
  }
  finish();
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

std::vector<std::string> python_values(std::string_view text, const std::string& flag, const Position& where) {
  const Python value = parse_python(text, where, flag);
  std::vector<std::string> values;
  const auto add = [&](const Python& one) {
    if (one.kind != Python::Kind::number || one.text.find_first_of(".eE") != std::string::npos)
      throw UsageError(where, flag,
                       "expected an integer, integers between commas or a Python list such as ([0]*3+[1]*58), found " +
                           std::string(text.substr(0, 60)));
    values.push_back(one.text);
  };
  if (value.kind == Python::Kind::list)
    for (const auto& item : value.items) add(item);
  else
    add(value);
  return values;
}

}  // namespace pipewright::emit
