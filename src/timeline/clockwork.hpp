// Two things slow a kernel in a run that are not in its lone time, and both depend on when it runs: run, read, run
// again until nothing changes. The graph stays, and so do its durations: others are written where the times stand.
// - The clock follows the load: the share of the time before a kernel, over the window in which the power limiter
//   averages, in which its rank computed, each kind of kernel by its power. A step follows a step, so time before the
//   step is the step's own end.
// - An NCCL kernel beside it, waiting or moving data, holds some of the multiprocessors; a matrix product whose tiles
//   filled the part exactly then needs another wave.
// Copies between host and GPU slow each other too: copies.hpp.
#pragma once

#include <array>
#include <vector>

#include "by_rank.hpp"
#include "copies.hpp"
#include "coverage.hpp"
#include "pace.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// run() with other durations than the graph's: those that stand where the ends will be. Returns the last end.
std::int64_t run_lasting(const Graph& graph, Times& times);

/// When the last node of all ranks ends, ns.
std::int64_t step_of(const Times& times);

class Clockwork {
 public:
  Clockwork(const scenario::Scenario& scenario, const profile::Profiles& profiles);
  /// Finds the times; the graph's durations are those on a cool part with nothing beside. Returns the step.
  std::int64_t settle(const Graph& graph, Times& times) const;
  std::int64_t gap() const { return pace_.gap_ns; }

  static bool computes(const Label& label);

 private:
  /// What a round has to know of a node: a byte of its label.
  struct Role {
    std::uint8_t load : 3 = 0;
    bool computes : 1 = false;
    bool exchanges : 1 = false;   ///< experts' rows, slowed by kernels beside
    bool on_compute : 1 = false;  ///< a kernel of the compute stream
    bool partitioned : 1 = false;
    bool on_wire : 1 = false;  ///< NCCL's, slower as the clock falls
    profile::Load what() const { return static_cast<profile::Load>(load); }
  };
  static_assert(sizeof(Role) == 1);
  std::vector<Role> roles_of(const Graph& graph) const;
  /// When a rank computes, by power, and when NCCL kernels run on it beside.
  struct Use {
    Coverage compute, network, across;  ///< across: transfers over the network between nodes
    std::array<Coverage, 3> kinds;      ///< when it computes by matrix, attention and memory kernels
  };
  /// What occupies a rank's network: from the start of one node, or from the end of another, to its end.
  struct Occupation {
    std::uint32_t node, starts_with;
  };
  /// By rank.
  static std::vector<std::vector<Occupation>> occupations_of(const Graph& graph);
  /// Fills `use` anew.
  void find_use(const Graph& graph, const std::vector<Role>& roles, const ByRank& nodes, std::size_t rank,
                const std::vector<Occupation>& occupations, const Times& times, Use& use) const;

  Pace pace_;
  CopyContention copies_;
};

}  // namespace pipewright::timeline
