// Mean power of a board over a stretch of time.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "lab.hpp"

namespace pipewright::capture {

/// From NVML's energy counter; from power readings where it has none. Measures from its construction on.
class PowerMeter {
 public:
  explicit PowerMeter(const Nvml& nvml);
  ~PowerMeter();
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;
  double watts();  ///< 0: there are no readings

 private:
  const Nvml& nvml_;
  std::chrono::steady_clock::time_point start_;
  std::optional<double> joules_;
  std::atomic<bool> done_{false};
  std::vector<double> readings_;
  std::thread thread_;
};

}  // namespace pipewright::capture
