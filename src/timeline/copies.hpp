// Copies of activation offload slow each other: both directions of one GPU, and the GPUs of a host, which share its
// memory and its PCIe switches. At each moment a copy is as fast as capture measured beside what copies then: alone
// (1), one GPU both ways, all GPUs one way, all GPUs both ways. GPUs of a stage copy at the same time; stages as
// simulated, each slowing in proportion to how much of the copy's time it copies.
#pragma once

#include <vector>

#include "coverage.hpp"
#include "pace.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

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
  /// What copies take under the times of the round before. `slower`: over their time alone, by copy, as that round ran
  /// them; what this one does.
  std::vector<Copy> slowed(const Graph& graph, const Times& times, std::int64_t gap, std::vector<double>& slower) const;

  /// What the times of a round say of it, some of the way there from what it was run with.
  static void settle(std::vector<double>& slower, std::size_t copy, double now) {
    if (copy < slower.size())
      slower[copy] += towards_next_round * (now - slower[copy]);
    else
      slower.push_back(now);
  }
  /// Time of a copy over its time alone. `share(rank, way)`: of its time, in which that rank copies that way.
  template <class Share>
  double factor(std::size_t rank, std::size_t way, const Share& share) const {
    const CopyDirection& direction = ways_[way];
    const double own = share(rank, 1 - way);
    double same = members_ - 1, opposed = 0;
    for (const auto neighbour : neighbours_[rank]) {
      same += members_ * share(neighbour, way);
      opposed += members_ * share(neighbour, 1 - way);
    }
    const double apart = 1 + direction.others * same + direction.opposed * opposed;
    const double beside = apart + direction.two_way - 1 + direction.opposed * (members_ - 1);
    // What is copied in a time is speed times time: for `own` of it at one speed, for the rest at the other.
    return 1 / ((1 - own) / apart + own / beside);
  }
  bool slows() const { return offloads_; }

 private:
  bool offloads_ = false;
  CopyDirection ways_[2];  ///< D2H, H2D
  std::size_t ranks_ = 0;
  int members_ = 1;                                   ///< GPUs of a stage on one host
  std::vector<std::vector<std::size_t>> neighbours_;  ///< by rank: other stages that have GPUs on its host
};

}  // namespace pipewright::timeline
