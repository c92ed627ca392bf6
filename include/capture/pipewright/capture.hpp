// Measuring a machine: `pipewright capture` runs the kernels of a transformer layer, the host's calls, the copies and
// the links, and writes what they took as a profile.
//
//   CLI ──► run() ──dlopen──► libpipewright_capture.so (CUDA, CUPTI, cuBLASLt, cuDNN, NCCL)
//
// The part that needs CUDA is a module of its own, so that no other command loads CUDA's libraries.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::capture {

/// One of several processes that mpirun, srun or torchrun started.
struct Seat {
  int rank = 0, ranks = 1;
  std::string launcher;  ///< whose variables said so: "torchrun", "Open MPI", ...
};
/// `variable`: getenv. nullopt: started alone. Throws UsageError naming the variable that makes no sense.
std::optional<Seat> seat(const std::function<const char*(const char*)>& variable);

struct Options {
  std::string name;                    ///< of the profile; empty: from the device ("NVIDIA H200" gives "h200")
  std::string ops;                     ///< ECMAScript regex on family names; empty: all
  std::string lacking;                 ///< name or path of a profile: only shapes that it does not have
  std::vector<profile::Key> keys;      ///< these shapes; empty: the standard grid
  bool quick = false;                  ///< fewer shapes and samples: under a minute
  bool sustained = false;              ///< also the clock law under load
  bool links = false;                  ///< instead of kernels: the links between all visible GPUs
  std::string link = "nvlink";         ///< with links: "nvlink", or "shared host memory" (NCCL_P2P_DISABLE=1)
  std::optional<Seat> seat;            ///< with links: this process is one of several, each with a GPU of its own
  std::string meet;                    ///< with a seat: a folder that all of them see, to find each other in
  std::optional<int> nvlink_domain;    ///< with a seat: GPUs that NVLink joins, if more than those of a host
  std::vector<std::string> arguments;  ///< command line, for the profile's provenance
};

struct Progress {
  std::string what;  ///< family or step under way
  std::size_t done = 0, total = 0;
  double elapsed_s = 0, remaining_s = 0;
};

struct Result {
  profile::Profile profile;
  bool written_here = true;           ///< false: another rank has the profile
  bool complete = true;               ///< false: stopped early; what was measured until then is valid
  std::vector<std::string> warnings;  ///< shapes left out, clocks that stayed low, ...
};

/// A command to run with the recorder loaded into every process of it that uses CUDA (src/capture/recorder.hpp).
struct Attach {
  std::vector<std::string> command;
  int first_step = 3, last_step = 4;  ///< counted from 1; both are recorded
  std::string step_kernel;            ///< regex: kernels that end a step; empty: those of optimizers
  std::string step_range;             ///< NVTX range that is a step; instead of kernels
  std::string folder;                 ///< for the recordings
};
struct Attached {
  std::vector<std::string> recordings;  ///< one a process, by rank: FOLDER/rec.rR.rec, for traces::read
  int status = 0;                       ///< of the command; 128 + number of the signal that ended it
};
/// Variables that load the recorder into a process and whatever it starts; none: this build has no recorder.
std::vector<std::pair<std::string, std::string>> recorder_environment(const Attach& how);
/// Runs it to its end; Ctrl-C goes to the command, and what it recorded until then counts. Throws UsageError if this
/// build has no recorder or the command cannot be started.
Attached attach(const Attach& how);
/// Names the recordings of a folder by their ranks, and returns them in that order.
std::vector<std::string> gather(const std::string& folder);

/// Measures on GPU 0 (with `links`: on all). Returns early with a partial profile once `stop` is set. Throws UsageError
/// if it cannot measure here, std::runtime_error if a library call fails.
Result run(const Options& options, const std::function<void(const Progress&)>& report, const std::atomic<bool>& stop);

}  // namespace pipewright::capture
