// One program started many times by mpirun, srun or torchrun: who is who, without MPI. The variables of the launcher
// tell a process its rank; files in a folder that all of them see tell the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pipewright/capture.hpp"

namespace pipewright::capture {

/// What all ranks know after they have met.
struct Met {
  std::vector<std::string> said;  ///< by every rank
  std::string told;               ///< by rank 0
};
struct Meeting {
  std::string folder;  ///< made if need be, removed by rank 0 at the end
  std::chrono::milliseconds patience{std::chrono::minutes(5)};
};
/// Every rank says one line; rank 0 tells one line to all. Returns once all have met; files of an earlier start that
/// was killed do no harm. Throws UsageError naming the ranks that did not come; std::runtime_error once `stop` is set.
Met meet(const Meeting& where, const Seat& me, const std::string& said, const std::function<std::string()>& tell,
         const std::atomic<bool>& stop);

/// Where the ranks run: neighbours on a host, equally many on each.
struct Hosts {
  int hosts = 1, gpus_a_host = 1;
};
/// From the name of every rank's host. Throws UsageError if ranks are dealt to hosts in another way.
Hosts hosts(const std::vector<std::string>& host_of);

/// Groups that measure at once. A rank without a group waits.
struct Grouping {
  std::int64_t ranks = 2, stride = 1, groups = 1;
  bool has(int rank) const { return group_of(rank) >= 0; }
  int group_of(int rank) const;  ///< -1: none
};
/// Inside one host 2, 4, ... GPUs; a GPU of one host with one of the next; of 2, 4, ... all hosts all GPUs together,
/// and one GPU a host, all of them at once.
std::vector<Grouping> groupings(const Hosts& where);

}  // namespace pipewright::capture
