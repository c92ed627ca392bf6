// Work that runs again and again beside what is timed.
#pragma once

#include <thread>

#include "parts.hpp"

namespace pipewright::capture {

/// Runs `body` over and over in a thread of its own; a failure ends it and is thrown away with it.
class Background {
 public:
  explicit Background(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          try {
            while (!done_) body();
          } catch (const std::exception&) {
          }
        }) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until it runs
  }
  ~Background() {
    done_ = true;
    thread_.join();
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

/// Kernels of one kind ("matrix", "attention", "memory") on the lab's stream, one round a call.
class KernelLoop {
 public:
  KernelLoop(Lab& lab, Attention& attention, const std::string& kind);
  void operator()() const;

 private:
  Lab& lab_;
  std::vector<Op> ops_;
};

/// contention.WHAT.KIND: slow-down of kernels of each kind between the calls of `begin` and `end`; prefix
/// "contention.WHAT".
void measure_contention(Lab& lab, Attention& attention, Session& session, const std::string& prefix,
                        const std::function<void()>& begin, const std::function<void()>& end,
                        const std::string& beside);

/// contention.beside_KIND.WHAT: what `time` gives while kernels of each kind run, over what it gives alone.
void measure_beside(Lab& lab, Attention& attention, Session& session, const std::string& what,
                    const std::function<double()>& time);

/// Copies between device and pinned host memory: alone, both ways, beside kernels, and kernels beside them.
void measure_copies(Lab& lab, Attention& attention, Session& session);

}  // namespace pipewright::capture
