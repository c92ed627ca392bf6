#pragma once

#include <optional>

#include "pipewright/memory.hpp"

namespace pipewright::memory {

/// What a process may reserve: the device's memory or its share of it; up to where nothing happens to cached blocks.
struct Limits {
  Limits(const AllocatorConfig& config, std::optional<Bytes> bytes) : device(bytes ? bytes->value : INT64_MAX) {
    const bool shares = config.per_process_memory_fraction < 1 && config.device_total < INT64_MAX;
    const double allowed =
        shares ? config.per_process_memory_fraction * static_cast<double>(config.device_total) : 9e18;
    if (allowed < static_cast<double>(device)) device = static_cast<std::int64_t>(allowed);
    untouched = device;
    if (shares && config.garbage_collection_threshold > 0) {
      untouched = static_cast<std::int64_t>(allowed * config.garbage_collection_threshold);
    }
  }
  std::int64_t device, untouched = 0;
};

}  // namespace pipewright::memory
