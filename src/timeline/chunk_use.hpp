// What a rank's GPU did so far, for the clocks and the contention of the chunk-level engine.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace pipewright::timeline {

/// Time computed up to a moment, each kind of kernel by its power: linear between the ends of pieces.
class Computed {
 public:
  void add(double start, double end, double busy) {
    if (end <= start) return;
    if (start > times_.back()) push(start, total_.back());
    push(end, total_.back() + busy);
  }
  double until(double t) {
    if (t <= 0) return 0;
    if (t >= times_.back()) return total_.back();
    while (times_[cursor_] > t) --cursor_;
    while (times_[cursor_ + 1] <= t) ++cursor_;
    const double share = (t - times_[cursor_]) / (times_[cursor_ + 1] - times_[cursor_]);
    return total_[cursor_] + share * (total_[cursor_ + 1] - total_[cursor_]);
  }
  double total() const { return total_.back(); }
  double share(double from, double to) { return to > from ? (until(to) - until(from)) / (to - from) : 0; }

 private:
  void push(double t, double total) {
    times_.push_back(t);
    total_.push_back(total);
  }
  std::vector<double> times_ = {0}, total_ = {0};
  std::size_t cursor_ = 0;
};

/// What a rank computed. Two streams under expert-parallel overlap; else the first.
struct ChunkUse {
  std::array<Computed, 2> computed;  ///< by stream, each kind of kernel by its power
  Computed exchanges;                ///< experts' exchanges on the second stream ...
  std::array<Computed, 3> kinds;     ///< ... and the first one's matrix, attention and memory kernels, which slow those
};

/// Union of intervals, asked for ranges in ascending order.
class Covered {
 public:
  explicit Covered(std::vector<std::pair<double, double>> intervals) {
    // Streams tell theirs in order, so that hardly any has far to go.
    for (auto at = intervals.begin(); at != intervals.end(); ++at) {
      const auto next = *at;
      auto to = at;
      for (; to != intervals.begin() && next < *(to - 1); --to) *to = *(to - 1);
      *to = next;
    }
    merged_.reserve(intervals.size());
    for (const auto& next : intervals) {
      if (!merged_.empty() && next.first <= merged_.back().second)
        merged_.back().second = std::max(merged_.back().second, next.second);
      else if (next.second > next.first)
        merged_.push_back(next);
    }
  }
  double share(double from, double to) {
    if (to <= from) return 0;
    while (first_ < merged_.size() && merged_[first_].second <= from) ++first_;
    double covered = 0;
    for (auto i = first_; i < merged_.size() && merged_[i].first < to; ++i)
      covered += std::min(to, merged_[i].second) - std::max(from, merged_[i].first);
    return covered / (to - from);
  }

 private:
  std::vector<std::pair<double, double>> merged_;
  std::size_t first_ = 0;
};

}  // namespace pipewright::timeline
