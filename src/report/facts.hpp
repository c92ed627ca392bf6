// What is known of a kernel beside its name, and what a rank's host does when: for pages and traces.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nodes.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::report {

/// Null where a run was put together without prices.
const timeline::Price* price_of(const predict::Run& run, const timeline::Label& label);

/// "m=4096 n=8192 k=1024"
std::string shape_text(const profile::Key& key);
/// Read and written; of FLOP. None where the family is not known.
std::optional<double> bytes_of(const profile::Key& key);
std::optional<double> flop_of(const profile::Key& key);

/// A stretch of the host's time: it issues one op, or stands in a call that waits for the GPU.
struct HostStay {
  std::int64_t from = 0, to = 0;
  timeline::Label label;  ///< of what it issues last
  bool synchronises = false;
};
std::vector<HostStay> host_stays(const predict::Run& run, const Nodes& nodes, int rank);

}  // namespace pipewright::report
