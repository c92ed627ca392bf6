// What a capture measures: --ops, and of that what the profile of --lacking does not have.
//
// Kernels are the GPU's, the same on every machine with this part: shapes that a profile lacks can be measured anywhere
// and merged. What a host does is its machine's: a slow one's time for one more size would make a step in a family, and
// its host.time_factor would be taken for the profiled machine's. So with --lacking families of the host and of the way
// to its memory are measured where the profile has none of their shapes, and how fast this machine's hosts are is said
// only where --ops asks for it.
#pragma once

#include <optional>
#include <string>

#include "pipewright/capture.hpp"
#include "pipewright/regex.hpp"

namespace pipewright::capture {

/// How fast a machine's hosts are (src/profile/FORMAT.md).
inline constexpr const char* host_speeds[] = {"host.time_factor", "host.slow_share", "host.slow_factor",
                                              "host.rank_spread"};

class Wanted {
 public:
  /// Reads the profile of --lacking. Throws UsageError if there is none.
  explicit Wanted(const Options& options);
  Wanted(const std::string& ops, std::optional<profile::Profile> have);

  /// A scalar or a family, by its name.
  bool operator()(const std::string& name) const;
  bool operator()(const profile::Key& key) const;

 private:
  std::string ops_;
  Regex wanted_;
  std::optional<profile::Profile> have_;
};

}  // namespace pipewright::capture
