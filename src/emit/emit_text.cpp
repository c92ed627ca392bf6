// Emitted groups as lines of text, as words, and values as shell words.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "emitted.hpp"
#include "field_table.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::emit {

namespace {

/// A remark is one line, whatever a value in it holds: no part of it may stand outside the comment.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

}  // namespace

std::string quoted(const std::string& word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,:/+%@";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string said_elsewhere(const std::string& name, const std::string& value) {
  const auto* effect = scenario::effect_of(name);
  const bool refused = effect == nullptr || effect->effect == scenario::Effect::refused;
  return name + ": " + value + (refused ? " is not modelled;" : ":") + " pass it as before";
}

std::string lower_batch(scenario::Scenario& s) {
  auto& batch = s.settings.global_batch_size;
  const auto once = std::max<std::int64_t>(1, s.settings.micro_batch_size * scenario::data_parallel_size(s));
  const auto stated = batch;
  if (stated % once == 0 || stated < once) return {};
  batch -= stated % once;
  return fmt::format("decrease_batch_size_if_needed: steps of {} samples, {} does not divide {}", batch, once, stated);
}

std::string unquoted(const std::string& text) {
  if (text.size() < 2 || (text.front() != '"' && text.front() != '\'') || text.back() != text.front()) return text;
  std::string plain;
  const bool single = text.front() == '\'';
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    const char c = text[i];
    if (single) {
      plain += c;
      if (c == '\'' && text[i + 1] == '\'' && i + 2 < text.size()) ++i;
    } else if (c != '\\' || i + 2 >= text.size()) {
      plain += c;
    } else if (unsigned code = 0;
               text[i + 1] == 'x' && i + 4 < text.size() &&
               std::from_chars(text.data() + i + 2, text.data() + i + 4, code, 16).ptr == text.data() + i + 4) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[++i];
    }
  }
  return plain;
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

std::vector<std::string> unsaid(const Groups& groups) {
  std::vector<std::string> all;
  for (const auto& group : groups)
    for (const auto& line : group.lines)
      if (line.words.empty() && !line.comment.empty()) all.push_back(line.comment);
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
        (continued ? remarks : lines) += "# " + one_line(line.comment) + "\n";
        continue;
      }
      --left;
      std::string row;
      for (const auto& word : line.words) row += (row.empty() ? "" : " ") + (continued ? quoted(word) : word);
      if (continued)
        row = "  " + row + (left > 0 ? " \\" : "");
      else if (!line.comment.empty())
        row += "  # " + one_line(line.comment);
      lines += row + "\n";
    }
    if (lines.empty()) continue;
    if (!continued) body += "# " + group.title + "\n";
    body += lines;
  }
  return remarks + body;
}

}  // namespace pipewright::emit
