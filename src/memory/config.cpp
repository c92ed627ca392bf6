// PYTORCH_CUDA_ALLOC_CONF: "key:value,key:value" (c10/core/AllocatorConfig.cpp).
#include <algorithm>
#include <charconv>

#include "pipewright/memory.hpp"

namespace pipewright::memory {
namespace {

const std::vector<std::string> known = {"expandable_segments",
                                        "max_split_size_mb",
                                        "max_non_split_rounding_mb",
                                        "roundup_power2_divisions",
                                        "garbage_collection_threshold",
                                        "backend",
                                        "pinned_use_cuda_host_register",
                                        "pinned_num_register_threads",
                                        "pinned_use_background_threads",
                                        "release_lock_on_cudamalloc",
                                        "graph_capture_record_stream_reuse"};

std::int64_t number(std::string_view text, const std::string& key, const Position& where) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > (std::int64_t{1} << 40)) {
    throw UsageError(where, "PYTORCH_CUDA_ALLOC_CONF." + key, "\"" + std::string(text) + "\" is not a count");
  }
  return value;
}

}  // namespace

AllocatorConfig parse_allocator_config(std::string_view conf, const Position& where) {
  AllocatorConfig config;
  while (!conf.empty()) {
    const auto comma = conf.find(',');
    const auto pair = conf.substr(0, comma);
    conf = comma == std::string_view::npos ? std::string_view() : conf.substr(comma + 1);
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
        throw UsageError(where, "PYTORCH_CUDA_ALLOC_CONF." + key, "wrong value \"" + std::string(value) + "\"",
                         {"True", "False"});
      }
      config.expandable_segments = value == "True";
    } else if (key == "max_split_size_mb") {
      config.max_split_size = number(value, key, where) << 20;
    } else if (key == "max_non_split_rounding_mb") {
      config.max_non_split_rounding = number(value, key, where) << 20;
    } else if (key == "roundup_power2_divisions") {
      config.roundup_power2_divisions = number(value, key, where);
    }
  }
  return config;
}

}  // namespace pipewright::memory
