// Replays a recording of PyTorch's allocator: an array of rows [action, address, bytes, stream, time_us] with marks.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "pipewright/memory.hpp"
#include "pipewright/pickle.hpp"

namespace pipewright::memory {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t largest = std::int64_t{1} << 46;  // bytes; no device has 64 TiB

[[noreturn]] void refuse(const std::string& file, const std::string& key, const std::string& message) {
  throw UsageError({file, 0}, key, message);
}

std::string brief(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60); }

/// TraceEntry::Action, as torch/csrc/cuda/Module.cpp (_cuda_memorySnapshot) writes them.
const std::vector<std::string>& actions() {
  static const std::vector<std::string> all = {"alloc",       "free_requested", "free_completed", "segment_alloc",
                                               "segment_map", "segment_free",   "segment_unmap",  "snapshot",
                                               "oom",         "user_defined"};
  return all;
}

void require_known(const Json& object, const std::string& file, const std::string& in,
                   const std::vector<std::string>& keys) {
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(keys, key) == keys.end())
      throw UsageError({file, 0}, in + key.substr(0, 60), "unknown key", keys, nearest_name(key, keys));
}

Json parsed(const std::string& text, const std::string& file) {
  const Json json = Json::parse(text, nullptr, false);
  const std::string rows =
      "; a recording has \"rows\" of [action, address, bytes, stream, time_us], the entries of device_traces";
  if (json.is_discarded() && is_pickle(text))
    refuse(file, "", "a Python pickle (torch.cuda.memory._dump_snapshot?), not a JSON document" + rows);
  if (json.is_discarded()) refuse(file, "", "not a JSON document");
  if (!json.is_object() || !json.contains("rows") || !json["rows"].is_array()) {
    const bool snapshot = json.is_object() && json.contains("device_traces");
    refuse(file, "rows",
           snapshot ? "is missing: this is a snapshot of torch.cuda.memory" + rows
                    : "a recording of allocator events has an array \"rows\"");
  }
  require_known(json, file, "", {"columns", "conf", "end", "marks", "rows"});  // columns: what a row's values are
  return json;
}

std::int64_t number(const Json& value, const std::string& file, const std::string& key) {
  const double as_double = value.is_number_integer() ? value.get<double>() : -1;
  if (!(as_double >= 0 && as_double <= static_cast<double>(largest)))
    refuse(file, key, "expected bytes, found " + brief(value));
  return value;
}

/// The row from which peaks count; -1: all.
std::int64_t peaks_from(const Json& json, const std::string& file) {
  if (!json.contains("marks")) return -1;
  const auto& marks = json["marks"];
  const auto is_row = [](const Json& mark) { return mark.is_number_integer() && mark.get<double>() < 1e18; };
  if (!marks.is_array() || !std::all_of(marks.begin(), marks.end(), is_row))
    refuse(file, "marks", "expected a list of row numbers, found " + brief(marks));
  std::int64_t last = 0;
  for (const auto& mark : marks) {
    const std::int64_t row = mark, rows = static_cast<std::int64_t>(json["rows"].size());
    if (row < last || row > rows)
      refuse(file, "marks", fmt::format("expected ascending numbers of {} rows, found {}", rows, brief(marks)));
    last = row;
  }
  return marks.size() > 2 ? marks[2].get<std::int64_t>() : -1;
}

std::optional<AllocatorTotals> recorded_end(const Json& json, const std::string& file) {
  if (!json.contains("end") || json["end"].is_null()) return std::nullopt;
  const auto& end = json["end"];
  if (!end.is_object()) refuse(file, "end", "expected the allocator's statistics by name, found " + brief(end));
  require_known(end, file, "end.", {"alloc", "alloc_max", "reserved", "reserved_max", "retries"});
  AllocatorTotals totals;
  for (const auto& [name, bytes] :
       {std::pair("alloc", &totals.allocated), std::pair("reserved", &totals.reserved),
        std::pair("alloc_max", &totals.peak_allocated), std::pair("reserved_max", &totals.peak_reserved)}) {
    const auto key = std::string("end.") + name;
    if (!end.contains(name)) refuse(file, key, "is missing");
    *bytes = Bytes(number(end[name], file, key));
  }
  return totals;
}

struct RecordedRow {
  std::int64_t index;
  std::string_view action;  ///< of the document
  std::int64_t address = 0, bytes = 0;
  std::int32_t stream = 0;

  std::string place() const { return fmt::format("rows[{}]", index); }
};

RecordedRow checked(const Json& row, const std::string& file, std::int64_t index) {
  RecordedRow result{index, {}};
  if (!row.is_array() || row.size() < 4 || !row[0].is_string() || !row[1].is_number_integer() ||
      !row[2].is_number_integer() || !row[3].is_number_integer()) {
    refuse(file, result.place(), "expected [action, address, bytes, stream, ...], found " + brief(row));
  }
  result.action = row[0].get_ref<const std::string&>();
  result.stream = static_cast<std::int32_t>(row[3].get<std::int64_t>() & 0x7fffffff);
  if (std::ranges::find(actions(), result.action) == actions().end())
    throw UsageError({file, 0}, result.place(), fmt::format("unknown action \"{}\"", result.action.substr(0, 60)),
                     actions(), nearest_name(result.action, actions()));
  const double address = row[1];  // an unsigned number beyond 63 bits would come out negative
  if (!(address >= 0 && address < 0x1p62)) refuse(file, result.place(), row[1].dump() + " is not an address");
  const double bytes = row[2];
  if (!(bytes >= 0 && bytes <= static_cast<double>(largest)))
    refuse(file, result.place(), row[2].dump() + " is not a size");
  result.address = row[1];
  result.bytes = row[2];
  return result;
}

class Recorded {
 public:
  Recorded(const AllocatorConfig& config, const std::string& file, bool as_recorded) : allocator_(config), file_(file) {
    result_.as_recorded = as_recorded;
  }

  void reset_peaks() { allocator_.reset_peaks(); }
  void take(const RecordedRow& row) {
    const auto action = row.action;
    const bool gives_back = action == "segment_free" || action == "segment_unmap";
    // A process gives back all that is cached (empty_cache, a retry), segment by segment.
    if (gives_back && !giving_back_) {
      allocator_.empty_cache();
      ++result_.given_back;
    }
    giving_back_ = gives_back;
    whole_ |= action == "segment_alloc";
    segments_ += (action == "segment_alloc") - (action == "segment_free");
    expandable_ |= action == "segment_map" || action == "segment_unmap";
    result_.out_of_memory += action == "oom";
    if (action == "segment_alloc" && result_.as_recorded) allocator_.next_segment_at(row.address);
    if (action == "alloc") allocate(row);
    const auto block = live_.find(row.address);
    if (action == "free_requested" && block != live_.end()) allocator_.retire(block->second);
    if (action != "free_completed") return;
    ++result_.events;
    if (block == live_.end()) {
      ++result_.unknown_frees;
      return;
    }
    allocator_.free(block->second);
    live_.erase(block);
  }

  Replay finish() {
    result_.totals = {Bytes(allocator_.allocated()), Bytes(allocator_.reserved()), Bytes(allocator_.peak_allocated()),
                      Bytes(allocator_.peak_reserved())};
    result_.segments = allocator_.segments();
    if (whole_ && !expandable_) result_.recorded_segments = segments_;
    return result_;
  }

 private:
  void allocate(const RecordedRow& row) {
    if (live_.contains(row.address))
      refuse(file_, row.place(), fmt::format("address {} is allocated already: a free is missing", row.address));
    const auto block = allocator_.allocate(row.bytes, row.stream);
    if (block) live_[row.address] = *block;
    ++result_.events;
  }

  Allocator allocator_;
  const std::string& file_;
  Replay result_;
  std::unordered_map<std::int64_t, std::uint32_t> live_;
  bool giving_back_ = false, whole_ = false, expandable_ = false;  ///< whole: segments by cudaMalloc
  std::int64_t segments_ = 0;
};

}  // namespace

std::vector<std::string> Replay::differs() const {
  std::vector<std::string> result;
  if (!as_recorded) return result;
  const auto compare = [&](const char* what, Bytes replayed, Bytes of_recording) {
    if (replayed != of_recording)
      result.push_back(fmt::format("{} {}, recorded {}", what, replayed.value, of_recording.value));
  };
  if (recorded) {
    compare("allocated at the end", totals.allocated, recorded->allocated);
    compare("reserved at the end", totals.reserved, recorded->reserved);
    compare("peak allocated", totals.peak_allocated, recorded->peak_allocated);
    compare("peak reserved", totals.peak_reserved, recorded->peak_reserved);
  }
  if (recorded_segments && *recorded_segments != segments)
    result.push_back(fmt::format("segments {}, recorded {}", segments, *recorded_segments));
  return result;
}

Replay replay(const std::string& text, const std::string& file, const std::optional<std::string>& conf) {
  const Json json = parsed(text, file);
  const auto& stated = json.contains("conf") ? json["conf"] : Json();
  if (!stated.is_null() && !stated.is_string()) refuse(file, "conf", "expected a string, found " + brief(stated));
  const std::string recorded = stated.is_string() ? stated.get<std::string>() : "";
  const std::int64_t reset_at = peaks_from(json, file);
  const auto end = recorded_end(json, file);
  Recorded recorded_run(parse_allocator_config(conf.value_or(recorded), {file, 0}), file, !conf || *conf == recorded);
  std::int64_t index = 0;
  for (const auto& row : json["rows"]) {
    if (index == reset_at) recorded_run.reset_peaks();
    recorded_run.take(checked(row, file, index++));
  }
  auto result = recorded_run.finish();
  result.recorded = end;
  return result;
}

}  // namespace pipewright::memory
