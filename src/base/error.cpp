// The text of an input error, and the search for the name that was probably meant.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "pipewright/base.hpp"

namespace pipewright {
namespace {

constexpr std::size_t longest_quote = 240;     // beyond this a part of the input is cut: an error stays readable
constexpr std::size_t longest_message = 1500;  // several names with reasons, and what to write without them

/// Bytes of the printable UTF-8 character that the text begins with; 0: none, or a terminal takes it for an order.
std::size_t printable_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const unsigned c = byte(0);
  if (c < 0x80) return c < 0x20 || c == 0x7F ? 0 : 1;
  const std::size_t size = c >= 0xF0 && c < 0xF5 ? 4 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xC2 && c < 0xE0 ? 2 : 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  return c == 0xC2 && byte(1) < 0xA0 ? 0 : size;  // C1 controls: U+009B begins an escape sequence
}

/// One line of UTF-8, no control characters, whatever the input holds.
std::string printable(std::string_view text, std::size_t longest = longest_quote) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= longest) return out + "...";
    const std::size_t size = printable_character(text);
    if (size == 0)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    else
      out += text.substr(0, size);
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return out;
}

std::string line_of(const Position& where, const std::string& key, const std::string& message,
                    const std::vector<std::string>& allowed, const std::string& nearest) {
  std::string text;
  if (!where.file.empty()) text += printable(where.file) + (where.line > 0 ? fmt::format(":{}: ", where.line) : ": ");
  if (!key.empty()) text += printable(key) + ": ";
  text += message;
  if (!allowed.empty()) text += fmt::format("; allowed: {}", fmt::join(allowed, ", "));
  if (!nearest.empty()) text += fmt::format("; did you mean \"{}\"?", nearest);
  return text;
}

std::string folded(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours cost 1 each.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

/// No fewer edits than this: each of the letters that only one of the names has is inserted, deleted or replaced.
std::size_t fewest_edits(const std::string& a, const std::string& b) {
  std::array<int, 256> surplus{};
  for (const char c : a) ++surplus[static_cast<unsigned char>(c)];
  for (const char c : b) --surplus[static_cast<unsigned char>(c)];
  std::size_t of_a = 0, of_b = 0;
  for (const int count : surplus) (count > 0 ? of_a : of_b) += static_cast<std::size_t>(std::abs(count));
  return std::max(of_a, of_b);
}

/// Is every word of `name` one of `whole`'s ("num_experts" of "num_moe_experts")? A short word alone says too little.
bool has_words(const std::string& whole, const std::string& name) {
  if (name.find('_') == std::string::npos && name.size() < 5) return false;
  const std::string among = "_" + whole + "_";
  for (std::size_t from = 0; from <= name.size();) {
    const auto to = std::min(name.find('_', from), name.size());
    if (among.find("_" + name.substr(from, to - from) + "_") == std::string::npos) return false;
    from = to + 1;
  }
  return true;
}

}  // namespace

UsageError::UsageError(Position where, std::string key, std::string message, std::vector<std::string> allowed,
                       std::string nearest)
    : std::runtime_error(line_of(where, key, printable(message, longest_message), allowed, nearest)),
      where_(std::move(where)),
      key_(std::move(key)),
      message_(std::move(message)),
      allowed_(std::move(allowed)),
      nearest_(std::move(nearest)) {}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > 100) return {};
  const std::string wanted = folded(name);
  std::size_t best = (name.size() + 2) / 3 + 1;  // a third of the letters may be wrong
  bool by_length = true;                         // letters too many or too few are likelier than wrong ones
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const std::string known = folded(candidate);
    if (fewest_edits(wanted, known) > best) continue;  // most of them
    const std::size_t distance = edit_distance(wanted, known);
    const bool same_letters = std::max(wanted.size(), known.size()) - std::min(wanted.size(), known.size()) == distance;
    if (distance < candidate.size() && (distance < best || (distance == best && same_letters && !by_length))) {
      best = distance;
      by_length = same_letters;
      nearest = candidate;
    }
  }
  if (!nearest.empty() && best <= 2) return nearest;  // a slip of the fingers
  const std::string* shortest = nullptr;
  for (const std::string& candidate : candidates)
    if (has_words(folded(candidate), wanted) && (shortest == nullptr || candidate.size() < shortest->size()))
      shortest = &candidate;
  return shortest == nullptr ? nearest : *shortest;
}

}  // namespace pipewright
