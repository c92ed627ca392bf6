// Another program: started, waited for, ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

struct Command {
  std::vector<std::string> words;                                ///< the first is looked for in PATH
  std::vector<std::pair<std::string, std::string>> environment;  ///< added to ours; a name of ours is replaced
  std::optional<std::string> log;  ///< file for its output, in a process group of its own; none: shares ours
};

/// Interrupts reach it as they would from a shell, whatever this process does with its own.
class Process {
 public:
  /// Throws UsageError where it cannot be started.
  explicit Process(const Command& command);

  void wait();
  /// Once it has ended: its exit status; 128 + number of the signal that ended it.
  int status() const;

 private:
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

struct Ended {
  int status = 0;  ///< as Process::status
  bool timed_out = false, interrupted = false;
  std::optional<std::uintmax_t> log_bytes = {};  ///< of its log, what it had said before it was asked to end
  bool left_behind = false;                      ///< it ended by itself, and what it had started had to be ended
  int unkillable = 0;                            ///< processes that outlived even SIGKILL (a driver holds them)
};

/// Runs it to its end, to `limit_s`, or until stop is asked for, and then ends all that it started, whatever session or
/// parent that has by now: asks (SIGTERM), and after 30 seconds, or `at_once`, kills. Needs a log. Throws UsageError
/// where it cannot be started.
Ended run_process(const Command& command, double limit_s, const std::stop_token& stop,
                  const std::stop_token& at_once = {});

}  // namespace pipewright
