// Copies of activation offload slow each other: both directions of one GPU, and the GPUs of a host, which share its
// memory and its PCIe switches. At each moment a copy is as fast as capture measured beside what copies then: alone
// (1), one GPU both ways, all GPUs one way, all GPUs both ways. GPUs of a stage copy at the same time; stages as
// simulated, each slowing in proportion to how much of the copy's time it copies.
#pragma once

#include <vector>

#include "coverage.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// GPUs of a host that copy at the same moment: those of one stage.
std::int64_t copying_at_once(const scenario::Scenario& scenario);
/// Time of a copy over its time alone, while so many GPUs of a host copy that way; 1 where that was not measured.
double copies_at_once(const profile::Profiles& profiles, bool outwards, std::int64_t gpus);

struct CopyDirection {
  double two_way = 1;  ///< time while the same GPU copies the other way
  double others = 0;   ///< what every other GPU of the host adds that copies the same way ...
  double opposed = 0;  ///< ... or the other way
};
CopyDirection copy_direction(const profile::Profiles& profiles, bool outwards);

class CopyContention {
 public:
  CopyContention(const scenario::Scenario& scenario, const profile::Profiles& profiles);

  struct Copy {
    std::uint32_t node;
    std::int64_t ns;
  };
  /// What copies take under the times of the round before, and towards it from what they took then. `first`: they ran
  /// alone.
  std::vector<Copy> slowed(const Graph& graph, const Times& times, std::int64_t gap, bool first) const;

 private:
  double factor(const std::vector<Coverage>& copies, std::size_t rank, std::size_t way, std::int64_t start,
                std::int64_t end) const;

  bool offloads_ = false;
  CopyDirection ways_[2];  ///< D2H, H2D
  std::size_t ranks_ = 0;
  int members_ = 1;                                   ///< GPUs of a stage on one host
  std::vector<std::vector<std::size_t>> neighbours_;  ///< by rank: other stages that have GPUs on its host
};

}  // namespace pipewright::timeline
