// Columns of whole numbers beside one JSON, as a page carries them: variable-length integers, deflated, base64.
//
//   length of the JSON (4 bytes, little endian) | JSON | column | column | ...        all deflated (zlib)
//
// The JSON's "columns" says where each one is: name -> [offset behind the JSON, bytes, numbers]. A number is seven bits
// a byte, lowest first, the highest bit set while more follow; signed ones are zigzag (0, -1, 1, -2, ...). The browser
// reads it with its own DecompressionStream (page/unpack.js).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pipewright::report {

class Column {
 public:
  void put(std::uint64_t value) {
    for (; value >= 128; value >>= 7U) bytes_ += static_cast<char>(value | 128U);
    bytes_ += static_cast<char>(value);
    ++size_;
  }
  void put_signed(std::int64_t value) {
    put((static_cast<std::uint64_t>(value) << 1U) ^ static_cast<std::uint64_t>(value >> 63U));
  }
  /// The difference to the number before.
  void put_delta(std::int64_t value) { put_signed(value - std::exchange(last_, value)); }
  std::size_t size() const { return size_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::size_t size_ = 0;
  std::int64_t last_ = 0;
};

class Pack {
 public:
  /// Stays where it is until the pack is made.
  Column& column(std::string name);
  /// `json`: members of the JSON object, without its braces.
  std::string base64(const std::string& json) const;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<Column>>> columns_;
};

}  // namespace pipewright::report
