// What the readers of the four forms share.
#pragma once

#include <string>
#include <unordered_map>

#include "pipewright/import.hpp"

namespace pipewright::traces {

constexpr std::int64_t latest_time = std::int64_t{1} << 61;  ///< ns; differences of two stay within 64 bits

/// A trace under construction: names once, launches by correlation id, the one GPU that the kernels ran on.
class TraceBuilder {
 public:
  explicit TraceBuilder(const std::string& file) { trace.file = file; }

  void add(Activity activity, std::string_view name, std::int64_t device, std::int64_t correlation);
  void add_launch(std::int64_t correlation, const Launch& launch);
  /// Sorts, joins launches, checks times, and takes the rank from the file's name if it is not known yet.
  Trace finish();

  Trace trace;
  std::optional<int> rank;
  std::optional<std::int64_t> clock_from;  ///< ns since 1970 at which the clock of the times began; unknown: nullopt

 private:
  std::uint32_t intern(std::string_view name);

  std::unordered_map<std::string, std::uint32_t> index_;
  std::unordered_map<std::int64_t, Launch> launches_;
  std::vector<std::int64_t> correlations_;
  std::optional<std::int64_t> device_;
};

Trace read_json(const std::string& path);
Trace read_nsys(const std::string& path);
Trace read_recording(const std::string& path);

}  // namespace pipewright::traces
