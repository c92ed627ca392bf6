// Progress of long work on standard error, and Ctrl-C as a wish to stop with the best so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

namespace pipewright::cli {

struct Embedding;

/// One changing line on a terminal, at most ten times a second; elsewhere a line every ten seconds at most, and only
/// after two.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `total` 0: nobody knows how much there is to do. The time that is left is told for a phase whose length is known.
  void operator()(std::int64_t done, std::int64_t total, const std::string& phase = {});

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_, phase_;
  bool quiet_, terminal_, shown_ = false;  ///< quiet: called as a function
  Clock::time_point begin_, phase_began_, last_;
};

/// While it lives, the first Ctrl-C only asks to stop, as the end of a time limit does; a second one ends the program
/// as always, or where it has others to end before (`Second::at_once`) asks for haste, as a lost terminal asks for
/// both; then the third does.
class Interruptible {
 public:
  enum class Second { ends, at_once };
  explicit Interruptible(std::optional<double> limit_s = {}, Second second = Second::ends);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  std::stop_token at_once() const { return haste_.get_token(); }

 private:
  Embedding* host_;  ///< whose flag asks instead of Ctrl-C; null: a program
  std::stop_source source_, haste_;
  std::jthread watch_;
};

}  // namespace pipewright::cli
