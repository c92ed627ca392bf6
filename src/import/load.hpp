// What a rank of a trace was under: its own load, for the clock, and communication kernels beside its compute stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/import.hpp"

namespace pipewright::traces {

/// Share of the time before a moment in which the rank computed, each kernel by its power; a step follows a step, so
/// time before the trace is its end (as the timeline does when it applies a clock law).
class Load {
 public:
  Load(const Trace& trace, const std::vector<std::string>& kinds, const std::vector<double>& weights) {
    std::int64_t until = 0, busy = 0;
    double total = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const Activity& a = trace.activities[i];
      period_ = std::max(period_, a.end());
      if (kinds[i] != "comp" || a.end() <= until) continue;
      const std::int64_t start = std::max(a.start, until);
      starts_.push_back(start);
      before_.push_back(total);
      weights_.push_back(weights[i]);
      total += weights[i] * static_cast<double>(a.end() - start);
      busy += a.end() - start;
      until = a.end();
    }
    before_.push_back(total);
    overall_ = static_cast<double>(busy) / static_cast<double>(period_);
  }

  double share(std::int64_t t, std::int64_t window) const {
    window = std::min(window, period_);
    return (busy_until(t) - busy_until(t - window)) / static_cast<double>(window);
  }
  double overall() const { return overall_; }  ///< every kernel alike

 private:
  double busy_until(std::int64_t t) const {
    if (t < 0) return busy_until(t + period_) - before_.back();
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), t);
    if (next == starts_.begin()) return 0;
    const auto i = static_cast<std::size_t>(next - starts_.begin()) - 1;
    return std::min(before_[i] + weights_[i] * static_cast<double>(t - starts_[i]), before_[i + 1]);
  }

  std::vector<std::int64_t> starts_;
  std::vector<double> before_, weights_;
  std::int64_t period_ = 1;
  double overall_ = 0;
};

/// When communication kernels held multiprocessors beside the compute stream, waiting for a peer included.
class Beside {
 public:
  Beside(const Trace& trace, const std::vector<std::string>& kinds, std::int64_t compute_stream) {
    std::int64_t until = 0, total = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {  // activities are sorted by start
      const Activity& a = trace.activities[i];
      const bool exchange = kinds[i] == "p2p" || kinds[i] == "ep" || kinds[i] == "coll";
      if (!exchange || a.stream == compute_stream || a.end() <= until) continue;
      const std::int64_t start = std::max(a.start, until);
      spans_.push_back({start, a.end(), total});
      total += a.end() - start;
      until = a.end();
    }
  }

  double share(std::int64_t from, std::int64_t to) const {
    return to > from ? static_cast<double>(covered(to) - covered(from)) / static_cast<double>(to - from) : 0;
  }

 private:
  struct Span {
    std::int64_t start, end, before;
  };
  std::int64_t covered(std::int64_t t) const {
    const auto next =
        std::upper_bound(spans_.begin(), spans_.end(), t, [](std::int64_t at, const Span& s) { return at < s.start; });
    if (next == spans_.begin()) return 0;
    const Span& last = *(next - 1);
    return last.before + std::min(t, last.end) - last.start;
  }

  std::vector<Span> spans_;
};

}  // namespace pipewright::traces
