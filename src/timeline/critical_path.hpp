// The chain of ops and waits that decides when the step ends, and what its ops are called.
#pragma once

#include <string>
#include <vector>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// The forward or backward to which an instruction belongs: itself or the next one.
class OpNames {
 public:
  explicit OpNames(const schedule::Program& program) : program_(program) {}
  std::uint32_t from(const Label& label) const;                 ///< its instruction; Label::none after the last
  std::string name(int rank, std::uint32_t instruction) const;  ///< "F 4.1", "F 4.1 | B 0.1"

 private:
  const schedule::Program& program_;
};

/// In time order; an op's stay on the path is given by reason, not launch by launch.
std::vector<CriticalStep> critical_path(const Graph& graph, const Times& times, const OpNames& ops);

}  // namespace pipewright::timeline
