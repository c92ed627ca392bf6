// What a real run showed: the section `measured:` of a scenario file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::scenario {

struct TraceSummary {
  double span_us = 0;
  std::map<std::string, double> busy_us, exposed_us;  ///< by comp, p2p, ep, coll, d2h, h2d
  friend bool operator==(const TraceSummary&, const TraceSummary&) = default;
};
struct MeasuredRank {
  std::int64_t rank = 0, pp_rank = 0, parameters = 0;
  double forward_backward_ms = 0;
  Bytes static_bytes, peak_allocated_bytes, after_step_bytes, peak_reserved_bytes;
  std::optional<Bytes> outside_allocator_bytes;
  std::optional<double> sm_clock_mhz;
  std::optional<TraceSummary> trace_summary;
  friend bool operator==(const MeasuredRank&, const MeasuredRank&) = default;
};
/// Of one's own runs forward-backward and every rank; of other people's often the step alone.
struct Measured {
  double forward_backward_ms = 0;  ///< 0: only the step is known
  std::vector<double> samples_ms;
  std::optional<double> optimizer_ms;
  std::vector<MeasuredRank> ranks;
  std::optional<double> step_ms;  ///< a published step
  std::string source;             ///< of a published run: where it stands
  std::optional<double> tokens_per_s_per_gpu;
  /// Of a published run, by pipeline rank.
  std::map<std::int64_t, Bytes> peak_allocated_bytes_by_rank, peak_reserved_bytes_by_rank,
      outside_allocator_bytes_by_rank;
  bool step_alone() const { return forward_backward_ms == 0 && step_ms.has_value(); }
  friend bool operator==(const Measured&, const Measured&) = default;
};

}  // namespace pipewright::scenario
