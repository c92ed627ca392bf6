// Emitted groups as lines of text, as words, and values as shell words and Python literals.
#include <algorithm>
#include <charconv>

#include "emitted.hpp"
#include "table.hpp"

namespace pipewright::emit {

namespace {

bool is_number(const std::string& text) {
  double value = 0;
  const auto* end = text.data() + text.size();
  return std::from_chars(text.data(), end, value).ptr == end && !text.empty();
}

}  // namespace

std::string quoted(const std::string& word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,:/+%@";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string unquoted(const std::string& text) {
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
    return text.substr(1, text.size() - 2);
  return text;
}

std::string python_literal(const std::string& value) {
  if (value == "true") return "True";
  if (value == "false") return "False";
  if (value == "none") return "None";
  if (is_number(value)) return value;
  if (value.starts_with('[')) {
    std::string text;
    for (const auto& item : items_of(value)) text += (text.empty() ? "" : ", ") + python_literal(item);
    return "[" + text + "]";
  }
  return "\"" + unquoted(value) + "\"";
}

std::vector<std::string> words(const Groups& groups) {
  std::vector<std::string> all;
  for (const auto& group : groups)
    for (const auto& line : group.lines) all.insert(all.end(), line.words.begin(), line.words.end());
  return all;
}

std::vector<std::string> comments(const Groups& groups) {
  std::vector<std::string> all;
  for (const auto& group : groups)
    for (const auto& line : group.lines)
      if (!line.comment.empty()) all.push_back(line.comment);
  return all;
}

std::string text(const Groups& groups, bool continued) {
  // A comment would end a command that goes on over several lines, so there they come first and the flags stay whole.
  std::string remarks, body;
  std::size_t left = 0;
  for (const auto& group : groups)
    left += static_cast<std::size_t>(
        std::ranges::count_if(group.lines, [](const Line& line) { return !line.words.empty(); }));
  for (const auto& group : groups) {
    std::string lines;
    for (const auto& line : group.lines) {
      if (line.words.empty()) {
        (continued ? remarks : lines) += "# " + line.comment + "\n";
        continue;
      }
      --left;
      std::string row;
      for (const auto& word : line.words) row += (row.empty() ? "" : " ") + (continued ? quoted(word) : word);
      if (continued)
        row = "  " + row + (left > 0 ? " \\" : "");
      else if (!line.comment.empty())
        row += "  # " + line.comment;
      lines += row + "\n";
    }
    if (lines.empty()) continue;
    if (!continued) body += "# " + group.title + "\n";
    body += lines;
  }
  return remarks + body;
}

}  // namespace pipewright::emit
