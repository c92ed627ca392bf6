// A CSV table with a header: columns by name, fields without quotes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::tables {

class CsvTable {
 public:
  explicit CsvTable(const std::string& file);
  std::size_t size() const { return rows_; }
  bool has(std::string_view column) const;
  std::string_view text(std::size_t row, std::string_view column) const;
  double number(std::size_t row, std::string_view column) const;  ///< an empty field is 0

 private:
  std::size_t column(std::string_view name, std::size_t row) const;
  std::string file_, content_;
  std::vector<std::string_view> header_, fields_;
  std::size_t rows_ = 0;
};

}  // namespace pipewright::tables
