// A CSV table with a header.
#include "csv_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace pipewright::tables {
namespace {

constexpr int header_lines = 1;

void split(std::string_view line, std::vector<std::string_view>& fields) {
  for (;;) {
    const auto comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

CsvTable::CsvTable(const std::string& file) : file_(file), content_(read_file(file)) {
  std::string_view rest = content_;
  for (int line = 1; !rest.empty(); ++line) {
    const auto end = rest.find('\n');
    const auto text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line == 1) {
      split(text, header_);
      continue;
    }
    if (text.empty()) continue;
    split(text, fields_);
    if (fields_.size() != ++rows_ * header_.size())
      throw UsageError({file_, line}, {}, fmt::format("must have {} fields, as the header has", header_.size()));
  }
}

bool CsvTable::has(std::string_view name) const { return std::ranges::find(header_, name) != header_.end(); }

std::size_t CsvTable::column(std::string_view name, std::size_t row) const {
  const auto found = std::ranges::find(header_, name);
  if (found == header_.end()) {
    const std::vector<std::string> known(header_.begin(), header_.end());
    throw UsageError({file_, header_lines}, std::string(name), "no such column", known,
                     nearest_name(std::string(name), known));
  }
  return row * header_.size() + static_cast<std::size_t>(found - header_.begin());
}

std::string_view CsvTable::text(std::size_t row, std::string_view name) const { return fields_[column(name, row)]; }

double CsvTable::number(std::size_t row, std::string_view name) const {
  const std::string_view field = text(row, name);
  if (field.empty()) return 0;
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || end != field.data() + field.size()) {
    throw UsageError({file_, static_cast<int>(row) + header_lines + 1}, std::string(name),
                     fmt::format("\"{}\" is no number", field));
  }
  return value;
}

}  // namespace pipewright::tables
