// Bytes as people write them. Powers of 1024 end in "iB", powers of 1000 in "B".
#include <fmt/format.h>

#include <array>
#include <limits>

#include "pipewright/base.hpp"

namespace pipewright {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
__extension__ typedef __int128 Wide;  // holds any product of a 62-bit value and a unit
constexpr std::int64_t kibi = 1024;
constexpr std::array<Unit, 11> units = {{{"", 1},
                                         {"B", 1},
                                         {"kB", 1'000},
                                         {"KB", 1'000},
                                         {"MB", 1'000'000},
                                         {"GB", 1'000'000'000},
                                         {"TB", 1'000'000'000'000},
                                         {"KiB", kibi},
                                         {"MiB", kibi* kibi},
                                         {"GiB", kibi* kibi* kibi},
                                         {"TiB", kibi* kibi* kibi* kibi}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Bytes parse_bytes(std::string_view text, const Position& where, const std::string& key) {
  const auto refuse = [&](const std::string& why) -> UsageError {
    return {where, key, fmt::format("{} \"{}\"; a size is written as 80530636800, 80GB or 74GiB", why, text)};
  };
  if (!text.empty() && text.front() == '-') throw refuse("negative size");

  // Exact: whole and fractional digits are kept as integers. 18 digits after the point are more than any unit resolves.
  Wide whole = 0, fraction = 0, scale = 1;
  std::size_t at = 0, digits = 0;
  constexpr Wide limit = std::int64_t{1} << 62;
  for (; at < text.size() && is_digit(text[at]); ++at, ++digits) {
    whole = whole * 10 + (text[at] - '0');
    if (whole > limit) throw refuse("too large a size");
  }
  if (digits == 0) throw refuse("not a size:");
  const bool fractional = at < text.size() && text[at] == '.';
  if (fractional) {
    const std::size_t first = ++at;
    for (; at < text.size() && is_digit(text[at]); ++at) {
      if (at - first >= 18) continue;
      fraction = fraction * 10 + (text[at] - '0');
      scale *= 10;
    }
    if (at == first) throw refuse("not a size:");
  }
  if (at < text.size() && text[at] == ' ') ++at;
  const std::string_view name = text.substr(at);
  for (const Unit& unit : units) {
    if (name != unit.name) continue;
    if (fractional && unit.bytes == 1) throw refuse("a fraction of a byte:");
    const Wide bytes = whole * unit.bytes + fraction * unit.bytes / scale;
    if (bytes > limit) throw refuse("too large a size");
    return Bytes(static_cast<std::int64_t>(bytes));
  }
  throw refuse("unknown unit in");
}

std::string format_bytes(Bytes bytes) {
  if (bytes.value == std::numeric_limits<std::int64_t>::min()) return "-8589934592.00 GiB";
  if (bytes.value < 0) return "-" + format_bytes(Bytes(-bytes.value));
  const auto value = static_cast<double>(bytes.value);
  if (bytes.value < kibi) return fmt::format("{} B", bytes.value);
  if (bytes.value < kibi * kibi) return fmt::format("{:.1f} KiB", value / kibi);
  if (bytes.value < kibi * kibi * kibi) return fmt::format("{:.1f} MiB", value / (kibi * kibi));
  return fmt::format("{:.2f} GiB", gib(bytes));
}

}  // namespace pipewright
