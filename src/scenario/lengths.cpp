// sequence_lengths: entries and files.
#include "lengths.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <sstream>

namespace pipewright::scenario {
namespace {

constexpr Int longest_sequence = Int{1} << 30, most_counted = 1'000'000'000;
const Strings length_forms = {"LENGTH", "LENGTH*COUNT", "LENGTH+LENGTH... (a row that is packed already)",
                              "a file of these"};

bool is_entry(const std::string& text) { return text.find_first_not_of("0123456789+*") == std::string::npos; }

/// The sequences of a row; one is yet to be packed.
struct Entry {
  Ints row;
  Int count = 1;
};

Entry parse_entry(const std::string& text, const Position& where, const std::string& key) {
  const auto number = [&](const std::string& digits, Int limit) {
    Int value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9' || value > limit) value = limit + 1;
      if (value <= limit) value = 10 * value + (c - '0');
    }
    if (digits.empty() || value < 1 || value > limit)
      throw UsageError(where, key, fmt::format("\"{}\": expected numbers from 1 to {}", text, limit), length_forms);
    return value;
  };
  Entry entry;
  const auto star = text.find('*');
  if (star != std::string::npos) entry.count = number(text.substr(star + 1), most_counted);
  std::istringstream lengths(text.substr(0, star));
  for (std::string one; std::getline(lengths, one, '+');) entry.row.push_back(number(one, longest_sequence));
  if (entry.row.empty() || text.substr(0, star).ends_with('+')) number("", longest_sequence);
  return entry;
}

class Lengths {
 public:
  void add(const Entry& entry, const Position& where, const std::string& key) {
    Int& count = counts_[entry.row];
    if (entry.count > most_counted - count)
      throw UsageError(where, key, fmt::format("more than {} sequences", most_counted));
    count += entry.count;
  }

  /// A line holds lengths apart from each other by blanks or commas: one, or those of a ready row.
  void add_file(const std::string& name, const Position& where, const std::string& key) {
    const auto is_file = [](const std::filesystem::path& path) {
      std::error_code error;  // a name that is too long is no file either; a pipe (`<(...)` of a shell) is one
      const auto status = std::filesystem::status(path, error);
      return std::filesystem::exists(status) && !std::filesystem::is_directory(status);
    };
    const std::filesystem::path beside = std::filesystem::path(where.file).parent_path() / name;
    const std::string path = is_file(beside) ? beside.string() : name;
    if (!is_file(path))
      throw UsageError(where, key, fmt::format("\"{}\" is neither a length nor a file", name), length_forms);
    std::istringstream lines(read_file(path));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      line.erase(std::min(line.find('#'), line.size()));
      for (char& c : line)
        if (c == ',' || c == '\t' || c == '\r') c = ' ';
      std::string entry;
      std::istringstream words(line);
      for (std::string word; words >> word;) entry += (entry.empty() || word[0] == '*' ? "" : "+") + word;
      if (entry.empty()) continue;
      const Position at = {path, number};
      if (!is_entry(entry)) throw UsageError(at, key, fmt::format("\"{}\" is no list of lengths", line), length_forms);
      add(parse_entry(entry, at, key), at, key);
    }
    if (counts_.empty()) throw UsageError(where, key, fmt::format("\"{}\" holds no length", path), length_forms);
  }

  Strings text() const {
    Strings all;
    for (const auto& [row, count] : counts_)
      all.push_back(count == 1 ? fmt::format("{}", fmt::join(row, "+"))
                               : fmt::format("{}*{}", fmt::join(row, "+"), count));
    return all;
  }

 private:
  std::map<Ints, Int> counts_;
};

}  // namespace

Strings read_lengths(const Strings& written, const Position& where, const std::string& key) {
  Lengths lengths;
  for (const std::string& one : written)
    if (is_entry(one))
      lengths.add(parse_entry(one, where, key), where, key);
    else
      lengths.add_file(one, where, key);
  return lengths.text();
}

std::map<Ints, Int> length_counts(const Strings& read) {
  std::map<Ints, Int> counts;
  for (const std::string& one : read) {
    const Entry entry = parse_entry(one, {}, "settings.sequence_lengths");
    counts[entry.row] += entry.count;
  }
  return counts;
}

}  // namespace pipewright::scenario
