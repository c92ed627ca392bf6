// Another program: started, waited for, ended.
#pragma once

#include <sys/types.h>

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

  bool ended();  ///< does not wait
  void wait();
  /// Asks (SIGTERM), and after five seconds, or `at_once`, kills, it and all of its group. Only with a log.
  void end(const std::stop_token& at_once = {});
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
};

/// Runs it to its end, to `limit_s`, or until stop is asked for; `at_once`: it need not end in peace. Needs a log.
Ended run_process(const Command& command, double limit_s, const std::stop_token& stop,
                  const std::stop_token& at_once = {});

}  // namespace pipewright
