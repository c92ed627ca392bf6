// PYTORCH_CUDA_ALLOC_CONF: "key:value,key:value" (c10/core/AllocatorConfig.cpp, c10/cuda/CUDAAllocatorConfig.cpp).
#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>

#include "pipewright/memory.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::memory {
namespace {

const std::vector<std::string> known = {"expandable_segments",
                                        "max_split_size_mb",
                                        "max_non_split_rounding_mb",
                                        "large_segment_size_mb",
                                        "roundup_power2_divisions",
                                        "garbage_collection_threshold",
                                        "per_process_memory_fraction",
                                        "throw_on_cudamalloc_oom",
                                        "backend",
                                        "pinned_use_cuda_host_register",
                                        "pinned_num_register_threads",
                                        "pinned_use_background_threads",
                                        "release_lock_on_cudamalloc",
                                        "graph_capture_record_stream_reuse"};

std::string option(std::string_view key) { return "PYTORCH_CUDA_ALLOC_CONF." + std::string(key); }

[[noreturn]] void refuse(std::string_view key, std::string_view text, const std::string& why, const Position& where) {
  throw UsageError(where, option(key), "\"" + std::string(text) + "\" " + why);
}

template <class Number>
Number number(std::string_view text, std::string_view key, const Position& where) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > Number{1LL << 40}) {
    refuse(key, text, "is not a number", where);
  }
  return value;
}

std::int64_t mebibytes(std::string_view text, std::string_view key, const Position& where) {
  return number<std::int64_t>(text, key, where) << 20;
}

/// Between 0 and 1, 0 excluded.
double share(std::string_view text, std::string_view key, bool one, const Position& where) {
  const auto value = number<double>(text, key, where);
  if (value <= 0 || value > 1 || (value == 1 && !one)) refuse(key, text, "is not between 0 and 1", where);
  return value;
}

/// "4" for all sizes, or "[64:8,256:4,>:1]": sizes from so many MiB on.
std::array<std::int64_t, 16> divisions(std::string_view text, std::string_view key, const Position& where) {
  std::array<std::int64_t, 16> result = {};
  const auto power_of_two = [&](std::string_view digits) {
    const auto value = number<std::int64_t>(digits, key, where);
    if ((value & (value - 1)) != 0) refuse(key, digits, "is no power of two", where);
    return value;
  };
  if (text.empty() || text.front() != '[') {
    result.fill(power_of_two(text));
    return result;
  }
  if (text.back() != ']') refuse(key, text, "lacks its closing bracket", where);
  std::size_t next = 0;  // the first interval that has no value yet
  bool first = true;
  for (auto rest = text.substr(1, text.size() - 2); !rest.empty();) {
    const auto comma = rest.find(',');
    const auto pair = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const auto colon = pair.find(':');
    if (colon == std::string_view::npos) refuse(key, pair, "is not SIZE:DIVISIONS", where);
    const auto value = power_of_two(pair.substr(colon + 1));
    if (pair.substr(0, colon) == ">") {
      std::fill(result.begin() + static_cast<std::ptrdiff_t>(next), result.end(), value);
      continue;
    }
    const auto size = power_of_two(pair.substr(0, colon));
    if (size == 0) refuse(key, pair, "is not SIZE:DIVISIONS", where);
    const auto index = std::min<std::size_t>(
        static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(size))), result.size() - 1);
    if (std::exchange(first, false))
      std::fill(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(index), value);
    result[index] = value;
    next = index + 1;
  }
  return result;
}

/// The text up to a comma outside brackets, which is taken off.
std::string_view cut(std::string_view& conf) {
  int depth = 0;
  std::size_t end = 0;
  for (; end < conf.size() && (conf[end] != ',' || depth > 0); ++end) depth += (conf[end] == '[') - (conf[end] == ']');
  const auto item = conf.substr(0, end);
  conf = end < conf.size() ? conf.substr(end + 1) : std::string_view();
  return item;
}

}  // namespace

AllocatorConfig parse_allocator_config(std::string_view text, const Position& where) {
  std::string stripped(text);
  std::erase(stripped, ' ');
  std::string_view conf = stripped;
  AllocatorConfig config;
  while (!conf.empty()) {
    const auto pair = cut(conf);
    if (pair.empty()) continue;
    const auto colon = pair.find(':');
    const std::string key(pair.substr(0, colon));
    const std::string_view value = colon == std::string_view::npos ? std::string_view() : pair.substr(colon + 1);
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw UsageError(where, "PYTORCH_CUDA_ALLOC_CONF", "unknown option \"" + key + "\"", known,
                       nearest_name(key, known));
    }
    if (key == "expandable_segments") {
      if (value != "True" && value != "False") {
        throw UsageError(where, option(key), "wrong value \"" + std::string(value) + "\"", {"True", "False"});
      }
      config.expandable_segments = value == "True";
    } else if (key == "max_split_size_mb") {
      config.max_split_size = mebibytes(value, key, where);
    } else if (key == "max_non_split_rounding_mb") {
      config.max_non_split_rounding = mebibytes(value, key, where);
    } else if (key == "large_segment_size_mb") {
      config.large_segment = mebibytes(value, key, where);
    } else if (key == "roundup_power2_divisions") {
      config.roundup_power2_divisions = divisions(value, key, where);
    } else if (key == "garbage_collection_threshold") {
      config.garbage_collection_threshold = share(value, key, false, where);
    } else if (key == "per_process_memory_fraction") {
      config.per_process_memory_fraction = share(value, key, true, where);
    }
  }
  if (config.max_split_size < config.large_segment) {
    throw UsageError(
        where, option("max_split_size_mb"),
        "PyTorch wants at least the size of a large segment, " + std::to_string(config.large_segment >> 20) + " MiB");
  }
  return config;
}

AllocatorConfig allocator_config(const scenario::Scenario& scenario) {
  // Both names are read; PyTorch refuses to start when both are set and differ.
  const char* name = "PYTORCH_CUDA_ALLOC_CONF";
  if (scenario::variable(scenario, name).empty()) name = "PYTORCH_ALLOC_CONF";
  auto config = parse_allocator_config(scenario::variable(scenario, name),
                                       scenario::position(scenario, std::string("environment.") + name));
  if (scenario.cluster.memory_bytes) config.device_total = scenario.cluster.memory_bytes->value;
  return config;
}

}  // namespace pipewright::memory
