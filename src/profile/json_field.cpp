#include "json_field.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

namespace pipewright::profile {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::int64_t largest_integer = std::int64_t{1} << 53;  // what every JSON reader keeps exact

std::string below(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

int line_at(const std::string& text, std::size_t byte) {
  return 1 + static_cast<int>(std::count(
                 text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size())), '\n'));
}

/// Reads a file a second time to find a place in it: `visit` gets each value's way and text, and says what to do below.
class Places {
 public:
  enum class Next : std::uint8_t { enter, pass, stop };
  using Visit = std::function<Next(const std::string& path, const char* at, ondemand::value& value)>;

  explicit Places(const std::string& text) : text_(text) {}

  void walk(const Visit& visit) {
    try {
      auto document = parser_.iterate(text_);
      if (document.type() != ondemand::json_type::object) return;
      for (auto field : document.get_object()) {
        const char* key = field.key().value().raw();
        const std::string path(std::string_view(field.unescaped_key()));
        ondemand::value value = field.value();
        if (!enter(path, key, value, visit)) return;
      }
    } catch (const simdjson::simdjson_error&) {
      return;  // damaged behind the place: what was found so far stands
    }
  }
  int line(const char* at) const { return 1 + static_cast<int>(std::count(text_.data(), at, '\n')); }

 private:
  bool enter(const std::string& path, const char* at, ondemand::value& value, const Visit& visit) {
    const Next next = visit(path, at, value);
    if (next != Next::enter) return next == Next::pass;
    const auto type = value.type().value();
    if (type == ondemand::json_type::object) {
      for (auto field : value.get_object()) {
        const char* key = field.key().value().raw();
        const std::string deeper = below(path, std::string_view(field.unescaped_key()));
        ondemand::value entry = field.value();
        if (!enter(deeper, key, entry, visit)) return false;
      }
    } else if (type == ondemand::json_type::array) {
      std::size_t index = 0;
      for (auto element : value.get_array()) {
        ondemand::value entry = element.value();
        const char* begin = entry.current_location();
        if (!enter(fmt::format("{}[{}]", path, index++), begin, entry, visit)) return false;
      }
    }
    return true;
  }

  simdjson::padded_string text_;
  ondemand::parser parser_;
};

/// Of the `nth` value on this way, else of the last one that leads there; 0: none does.
int line_of(const std::string& text, const std::string& wanted, int nth) {
  Places places(text);
  int line = 0, seen = 0;
  places.walk([&](const std::string& path, const char* at, ondemand::value&) {
    const bool leads_there = wanted.starts_with(path) &&
                             (wanted.size() == path.size() || wanted[path.size()] == '.' || wanted[path.size()] == '[');
    if (!leads_there) return Places::Next::pass;
    line = places.line(at);
    seen += wanted.size() == path.size() ? 1 : 0;
    return seen == nth ? Places::Next::stop : Places::Next::enter;
  });
  return line;
}

[[noreturn]] void refuse_number(const JsonFile& file) {
  Places places(file.text);
  std::string where;
  int line = 0;
  places.walk([&](const std::string& path, const char* at, ondemand::value& value) {
    if (value.type().value() != ondemand::json_type::number) return Places::Next::enter;
    if (value.get_number().error() == simdjson::SUCCESS) return Places::Next::pass;
    where = path;
    line = places.line(at);
    return Places::Next::stop;
  });
  throw UsageError({file.name, line}, where, "must be a number that 64 bits hold");
}

}  // namespace

std::string Field::path() const {
  if (above_ == nullptr) return "";
  const std::string way = above_->path();
  return key_.data() == nullptr ? fmt::format("{}[{}]", way, index_) : below(way, key_);
}

void Field::fail(const std::string& message, std::vector<std::string> allowed, std::string nearest) const {
  const std::string way = path();
  throw UsageError({file_->name, line_of(file_->text, way, 1)}, way, message, std::move(allowed), std::move(nearest));
}

void Field::fail_below(std::string_view key, const std::string& message, std::vector<std::string> allowed,
                       std::string nearest, int nth) const {
  const std::string way = below(path(), key);
  throw UsageError({file_->name, line_of(file_->text, way, nth)}, way, message, std::move(allowed), std::move(nearest));
}

simdjson::dom::object Field::object() const {
  simdjson::dom::object object;
  if (value_.get(object) != simdjson::SUCCESS) fail("must be an object");
  return object;
}

std::vector<Field> Field::members() const {
  std::vector<Field> result;
  for (const auto& [key, value] : object()) result.emplace_back(value, *this, key);
  std::vector<std::string_view> keys;
  for (const auto& field : result) keys.push_back(field.key_);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) fail_below(*twice, "stands twice", {}, {}, 2);
  return result;
}

std::vector<Field> Field::list() const {
  simdjson::dom::array array;
  if (value_.get(array) != simdjson::SUCCESS) fail("must be a list");
  std::vector<Field> result;
  result.reserve(array.size());
  for (const auto value : array) result.emplace_back(value, *this, result.size());
  return result;
}

std::string Field::string() const {
  std::string_view text;
  if (value_.get(text) != simdjson::SUCCESS) fail("must be a string");
  return std::string(text);
}

double Field::number(double low, double high) const {
  double v = 0;
  if (value_.get(v) != simdjson::SUCCESS) fail("must be a number");
  if (!std::isfinite(v) || v < low || v > high) fail(fmt::format("must be between {} and {}", low, high));
  return v;
}

std::int64_t Field::integer(std::int64_t low) const {
  if (!value_.is_int64() && !value_.is_uint64()) fail("must be an integer");
  std::int64_t v = 0;  // get: beyond what int64 holds is an error too
  if (value_.get(v) != simdjson::SUCCESS || v < low || v > largest_integer)
    fail(fmt::format("must be between {} and {}", low, largest_integer));
  return v;
}

Object::Object(const Field& field, const std::vector<std::string>& known) : field_(field), known_(known) {
  if (known.size() > most) throw InternalError("more keys than an object of a profile has room for");
  auto next = known.begin();  // keys mostly stand in the order in which they are known
  for (const auto& [key, value] : field.object()) {
    const auto found = next != known.end() && *next == key ? next : std::find(known.begin(), known.end(), key);
    if (found == known.end()) field.fail_below(key, "unknown key", known, nearest_name(key, known));
    const auto place = static_cast<std::size_t>(found - known.begin());
    if (present(place)) field.fail_below(key, "stands twice", {}, {}, 2);
    present_ |= 1U << place;
    values_[place] = value;
    next = found + 1;
  }
}

std::size_t Object::place(std::string_view key) const {
  const auto found = std::find(known_.begin(), known_.end(), key);
  if (found == known_.end()) throw InternalError("a profile's object is asked for a key that it refuses");
  return static_cast<std::size_t>(found - known_.begin());
}

Field Object::at(std::size_t place) const {
  if (!present(place)) field_.fail_below(known_[place], "is missing");
  return {values_[place], field_, known_[place]};
}

Origin Field::origin() const {
  constexpr Origin all[] = {Origin::measured, Origin::interpolated, Origin::published, Origin::derived};
  const std::string text = string();
  for (const Origin o : all)
    if (text == name(o)) return o;
  std::vector<std::string> known;
  for (const Origin o : all) known.emplace_back(name(o));
  fail(fmt::format("\"{}\" is no origin", text), known, nearest_name(text, known));
}

Origin Object::origin(Origin otherwise) const { return has("origin") ? (*this)["origin"].origin() : otherwise; }

simdjson::dom::element parse_json(simdjson::dom::parser& parser, const JsonFile& file) {
  simdjson::dom::element root;
  const std::string_view mark = "\xEF\xBB\xBF";  // what some editors put before UTF-8
  const std::size_t skipped = file.text.starts_with(mark) ? mark.size() : 0;
  const auto error = parser.parse(file.text.data() + skipped, file.text.size() - skipped).get(root);
  if (error == simdjson::SUCCESS) return root;
  if (error == simdjson::NUMBER_ERROR) refuse_number(file);
  // Only nlohmann says where.
  try {
    const auto read = nlohmann::json::parse(file.text);
  } catch (const nlohmann::json::parse_error& found) {
    throw UsageError({file.name, line_at(file.text, found.byte)}, {}, "is not JSON");
  } catch (const nlohmann::json::exception&) {
  }
  throw UsageError({file.name, 0}, {}, fmt::format("is not JSON: {}", simdjson::error_message(error)));
}

}  // namespace pipewright::profile
