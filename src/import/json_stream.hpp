// One JSON document of any length, a value at a time: the file is unpacked block by block, and the values of its
// top-level object are handed out as text, arrays element by element. Memory holds one value, not the file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace pipewright::traces {

/// `value` is complete JSON text with at least simdjson::SIMDJSON_PADDING readable bytes after it; `element`: it came
/// out of the array `key`. A document that is itself an array has the key "traceEvents", as Chrome's format allows.
using OnValue = std::function<void(const std::string& key, std::string_view value, bool element)>;

/// Throws UsageError: unreadable, truncated, not JSON.
void stream_json(const std::string& path, const OnValue& on_value);

}  // namespace pipewright::traces
