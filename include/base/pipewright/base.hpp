// Units, errors and small text helpers that every room shares. Knows nothing of pipelines.
#pragma once

#include <compare>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

/// An integer with a unit. Bytes and nanoseconds cannot be mixed up by accident.
template <class Unit>
struct Quantity {
  std::int64_t value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t v) : value(v) {}

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
  friend constexpr Quantity operator*(Quantity a, std::int64_t n) { return Quantity(a.value * n); }
  friend constexpr Quantity operator*(std::int64_t n, Quantity a) { return Quantity(a.value * n); }
  friend constexpr Quantity operator/(Quantity a, std::int64_t n) { return Quantity(a.value / n); }
  constexpr Quantity& operator+=(Quantity b) {
    value += b.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity b) {
    value -= b.value;
    return *this;
  }
};

using Bytes = Quantity<struct BytesUnit>;
using Nanoseconds = Quantity<struct NanosecondsUnit>;

// Profiles and traces state microseconds, scenarios and reports milliseconds; the simulation counts nanoseconds.
constexpr double us_to_ns(double us) { return us * 1e3; }
constexpr double ms_to_ns(double ms) { return ms * 1e6; }
constexpr double ns_to_us(double ns) { return ns / 1e3; }
constexpr double ns_to_ms(double ns) { return ns / 1e6; }
constexpr double ns_to_us(std::int64_t ns) { return ns_to_us(static_cast<double>(ns)); }
constexpr double ns_to_ms(std::int64_t ns) { return ns_to_ms(static_cast<double>(ns)); }
/// To the nearest whole nanosecond, of a time that is not negative.
constexpr std::int64_t whole_ns(double ns) { return static_cast<std::int64_t>(ns + 0.5); }

/// Half the width of the interval that holds 90 % of a normal distribution, in standard deviations: its 95th
/// percentile.
inline constexpr double sigmas_of_90_percent = 1.6449;

constexpr double gib(Bytes b) { return static_cast<double>(b.value) / (1024.0 * 1024.0 * 1024.0); }

/// Where in an input something stands. Line 0: not known or not a file (then `file` says what, e.g. "--set").
struct Position {
  std::string file;
  int line = 0;
};

/// The input is wrong (exit status 2). what() is one line:
/// FILE:LINE: KEY: MESSAGE; allowed: A, B, C; did you mean "X"?
class UsageError : public std::runtime_error {
 public:
  UsageError(Position where, std::string key, std::string message, std::vector<std::string> allowed = {},
             std::string nearest = {});
  explicit UsageError(std::string message) : UsageError({}, {}, std::move(message)) {}

  const Position& where() const { return where_; }
  const std::string& key() const { return key_; }
  const std::string& message() const { return message_; }
  const std::vector<std::string>& allowed() const { return allowed_; }
  const std::string& nearest() const { return nearest_; }

 private:
  Position where_;
  std::string key_, message_;
  std::vector<std::string> allowed_;
  std::string nearest_;
};

/// A bug in pipewright (exit status 3).
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// The candidate closest to `name` by edit distance (with transpositions), or "" if none is close enough to suggest.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// "74GiB", "80GB", "1024" -> bytes. Throws UsageError at `where` naming `key`.
Bytes parse_bytes(std::string_view text, const Position& where, const std::string& key);

/// "29.32 GiB", "416.0 MiB", "512 B".
std::string format_bytes(Bytes bytes);

/// Text with columns aligned: first column to the left, the others to the right; a rule under the header.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

/// Writes a file as a whole or not at all: to a temporary beside it, then renamed; permissions stay as they were.
/// Throws UsageError if it cannot, or if the file is one that this process has read (also through a link).
void write_file(const std::string& path, std::string_view content);
/// What write_file() would refuse, before there is anything to write.
void require_writable(const std::string& path);
/// What write_file() refuses first, for writers of their own.
void require_no_input(const std::string& path);
/// Tells that `path` is read by other means than read_file().
void note_input(const std::string& path);

/// Is this what a small gzip made to fill memory looks like? Sizes in bytes.
bool inflates_too_much(std::size_t unpacked, std::int64_t packed);

inline constexpr std::size_t largest_input = std::size_t{256} << 20U;  ///< bytes, unpacked; real ones have some MB

/// The whole content of a file; a ".gz" is unpacked. Throws UsageError if it cannot be read or is larger.
std::string read_file(const std::string& path, std::size_t largest = largest_input);

}  // namespace pipewright
