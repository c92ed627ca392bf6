// How fast this machine's hosts run code like PyTorch's, without Python and without a GPU.
//
// A thread runs the same small program again and again: an interpreter over boxed objects, as CPython is one
// (allocation, reference counts, names in hash tables, chains of pointers, calls through tables into more code than the
// first instruction cache holds). Times are means over windows of 10 ms. A core that another thread of the machine
// shares is slower for a while (on rented virtual machines 1.5 to 2 times, for 0.1 s to many seconds), so that a median
// or a minimum alone tells nothing: what counts is how fast calm windows are and how many are not.
#pragma once

#include <chrono>
#include <vector>

namespace pipewright::capture {

struct HostSpeed {
  double mean_us = 0;       ///< of one run of the program, over all windows of all threads
  double calm_us = 0;       ///< the tenth of the windows that is fastest
  double slow_share = 0;    ///< of the windows: longer than 1.35 times calm_us
  double slow_factor = 1;   ///< their mean over the calm ones' mean; 1 where there is none
  double slow_ms = 0;       ///< mean length of a stretch of slow windows on one thread; 0 where there is none
  double spread = 0;        ///< of the threads' means, standard deviation over mean
  std::size_t windows = 0;  ///< of all threads
};

/// Of windows of equal length, by thread, us a run. Throws InternalError without any window.
HostSpeed host_speed_of(const std::vector<std::vector<double>>& windows_us, double window_ms);

/// Measures with so many threads at once for so long.
HostSpeed measure_host_speed(int threads, std::chrono::milliseconds time);

/// calm_us of the reference host, on which a shipped profile's host.* costs are stated (host_speed.cpp: source).
double reference_host_us();

/// A shared core slows PyTorch's host code by more than this program, which waits for memory more often: 1.70 times
/// against 1.35 on the same machine (profiles/h200-sxm.json, host.slow_factor).
inline constexpr double pytorch_slow_factor = 1.7;

/// How many times as long as on the reference host PyTorch's host code takes: calm code by calm_us, and
/// pytorch_slow_factor times as long for slow_share of the time.
double host_time_factor(const HostSpeed& speed);

}  // namespace pipewright::capture
