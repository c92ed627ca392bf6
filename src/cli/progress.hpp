// Progress of long work on standard error, and Ctrl-C as a wish to stop with the best so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>

namespace pipewright::cli {

/// One changing line on a terminal; elsewhere a line every tenth of the way, and only after two seconds.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void operator()(std::int64_t done, std::int64_t total);

 private:
  std::string what_;
  bool terminal_, shown_ = false;
  std::int64_t tenth_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

/// While it lives, the first Ctrl-C only asks to stop; a second one ends the program as always.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  /// Call now and then: hands a Ctrl-C on to the token.
  void poll();

 private:
  std::stop_source source_;
};

}  // namespace pipewright::cli
