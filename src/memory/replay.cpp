// Replays a recording of PyTorch's allocator: an array of rows [action, address, bytes, stream, time_us] with marks.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "pipewright/memory.hpp"

namespace pipewright::memory {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& file, const std::string& key, const std::string& message) {
  throw UsageError({file, 0}, key, message);
}

std::string brief(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60); }

}  // namespace

Replay replay(const std::string& text, const std::string& file, const std::optional<std::string>& conf) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) refuse(file, "", "not a JSON document");
  if (!json.is_object() || !json.contains("rows") || !json["rows"].is_array()) {
    refuse(file, "rows", "a recording of allocator events has an array \"rows\"");
  }
  const auto& stated = json.contains("conf") ? json["conf"] : Json();
  if (!stated.is_null() && !stated.is_string()) refuse(file, "conf", "expected a string, found " + brief(stated));
  const std::string recorded = stated.is_string() ? stated.get<std::string>() : "";
  const bool as_recorded = !conf || *conf == recorded;
  Allocator allocator(parse_allocator_config(conf.value_or(recorded), {file, 0}));
  std::int64_t reset_at = -1;
  if (json.contains("marks")) {
    const auto& marks = json["marks"];
    const auto is_row = [](const Json& mark) { return mark.is_number_integer() && mark.get<double>() < 1e18; };
    if (!marks.is_array() || !std::all_of(marks.begin(), marks.end(), is_row))
      refuse(file, "marks", "expected a list of row numbers, found " + brief(marks));
    if (marks.size() > 2) reset_at = marks[2];
  }

  Replay result;
  std::unordered_map<std::int64_t, std::uint32_t> live;
  std::int64_t index = 0;
  for (const auto& row : json["rows"]) {
    if (index++ == reset_at) allocator.reset_peaks();
    const auto where = [&] { return "rows[" + std::to_string(index - 1) + "]"; };
    if (!row.is_array() || row.size() < 4 || !row[0].is_string() || !row[1].is_number_integer() ||
        !row[2].is_number_integer() || !row[3].is_number_integer()) {
      refuse(file, where(), "expected [action, address, bytes, stream, ...]");
    }
    const auto& action = row[0].get_ref<const std::string&>();
    const double as_double = row[1];  // an unsigned number beyond 63 bits would come out negative
    if (!(as_double >= 0 && as_double < 0x1p62)) refuse(file, where(), row[1].dump() + " is not an address");
    const std::int64_t address = row[1], bytes = row[2];
    if (bytes < 0 || bytes > (std::int64_t{1} << 46)) refuse(file, where(), row[2].dump() + " is not a size");
    if (action == "alloc") {
      const auto block = allocator.allocate(bytes, static_cast<std::int32_t>(row[3].get<std::int64_t>() & 0x7fffffff));
      if (block) live[address] = *block;
      ++result.events;
    } else if (action == "free_requested") {
      const auto it = live.find(address);
      if (it != live.end()) allocator.retire(it->second);
    } else if (action == "free_completed") {
      ++result.events;
      const auto it = live.find(address);
      if (it == live.end()) {
        ++result.unknown_frees;
        continue;
      }
      allocator.free(it->second);
      live.erase(it);
    } else if (action == "segment_alloc" && as_recorded) {
      allocator.next_segment_at(address);
    }
  }
  result.allocated = Bytes(allocator.allocated());
  result.reserved = Bytes(allocator.reserved());
  result.peak_allocated = Bytes(allocator.peak_allocated());
  result.peak_reserved = Bytes(allocator.peak_reserved());
  result.segments = allocator.segments();
  return result;
}

}  // namespace pipewright::memory
