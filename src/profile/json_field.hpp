// A JSON file as its reader sees it: every value knows the way to it, and what is wrong is said with file, line and
// key.
#pragma once

#include <simdjson.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::profile {

struct JsonFile {
  const std::string& text;
  const std::string& name;
};

/// A value and its way, from the value above it: that one has to outlive it.
class Field {
 public:
  Field(simdjson::dom::element value, const JsonFile& file) : value_(value), file_(&file) {}
  Field(simdjson::dom::element value, const Field& above, std::string_view key)
      : value_(value), file_(above.file_), above_(&above), key_(key) {}
  Field(simdjson::dom::element value, const Field& above, std::size_t index)
      : value_(value), file_(above.file_), above_(&above), index_(index) {}

  /// families.gemm.bf16.tn.samples[3].time_us
  std::string path() const;
  [[noreturn]] void fail(const std::string& message, std::vector<std::string> allowed = {},
                         std::string nearest = {}) const;
  /// Of a key below this object: `nth` of those that are so called; where there are fewer, the object's line.
  [[noreturn]] void fail_below(std::string_view key, const std::string& message, std::vector<std::string> allowed = {},
                               std::string nearest = {}, int nth = 1) const;

  simdjson::dom::object object() const;
  /// The values of an object whose keys are free; none stands twice.
  std::vector<Field> members() const;
  std::vector<Field> list() const;
  std::string_view key() const { return key_; }

  std::string string() const;
  double number(double low, double high) const;
  std::int64_t integer(std::int64_t low) const;
  Origin origin() const;

 private:
  simdjson::dom::element value_;
  const JsonFile* file_;
  const Field* above_ = nullptr;
  std::string_view key_;  // in the parser's strings
  std::size_t index_ = 0;
};

/// An object whose keys are known: others and those that stand twice are refused.
class Object {
 public:
  Object(const Field& field, const std::vector<std::string>& known);
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  bool has(std::string_view key) const { return present(place(key)); }
  Field operator[](std::string_view key) const { return at(place(key)); }
  Field at(std::size_t place) const;
  bool present(std::size_t place) const { return (present_ >> place & 1U) != 0; }
  Origin origin(Origin otherwise) const;
  std::string source() const { return has("source") ? (*this)["source"].string() : std::string(); }

 private:
  static constexpr std::size_t most = 16;
  std::size_t place(std::string_view key) const;

  const Field field_;
  const std::vector<std::string>& known_;
  std::uint32_t present_ = 0;
  std::array<simdjson::dom::element, most> values_;
};

/// Throws UsageError: not JSON, a number that 64 bits do not hold.
simdjson::dom::element parse_json(simdjson::dom::parser& parser, const JsonFile& file);

}  // namespace pipewright::profile
