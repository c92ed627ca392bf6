// A command in a process group of its own, its output in a file.
#pragma once

#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace pipewright::trial {

struct Ended {
  int status = 0;  ///< exit status; 128 + number of the signal that ended it
  bool timed_out = false, interrupted = false;
};

/// Runs it to its end, to `limit_s`, or until stop is asked for: then everything in its group is ended, first asked
/// (SIGTERM), after five seconds killed. Throws UsageError where it cannot be started.
Ended run_process(const std::vector<std::string>& words,
                  const std::vector<std::pair<std::string, std::string>>& environment, const std::string& log,
                  double limit_s, const std::stop_token& stop);

}  // namespace pipewright::trial
