// What a rank's GPU did so far, for the clocks and the contention of the chunk-level engine.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace pipewright::timeline {

/// Of the time of `span`, the share that `others` cover: in the order of time and apart from each other. `near`: where
/// to look first; only goes on, for spans asked in the order of time.
inline double share_of(const std::pair<double, double>& span, const std::vector<std::pair<double, double>>& others,
                       std::size_t& near) {
  const auto [from, to] = span;
  if (to <= from) return 0;
  while (near < others.size() && others[near].second <= from) ++near;
  double covered = 0;
  for (auto i = near; i < others.size() && others[i].first < to; ++i)
    covered += std::min(to, others[i].second) - std::max(from, others[i].first);
  return covered / (to - from);
}

/// Time computed up to a moment, each kind of kernel by its power: linear between the ends of pieces.
class Computed {
 public:
  void add(double start, double end, double busy) {
    if (end <= start) return;
    const Moment last = moments_.back();
    if (start > last.time) moments_.push_back({start, last.total});
    moments_.push_back({end, last.total + busy});
  }
  double until(double t) {
    if (t <= 0) return 0;
    if (t >= moments_.back().time) return moments_.back().total;
    const Moment* at = moments_.data() + cursor_;
    while (at->time > t) --at;
    while (at[1].time <= t) ++at;
    cursor_ = static_cast<std::size_t>(at - moments_.data());
    const double share = (t - at->time) / (at[1].time - at->time);
    return at->total + share * (at[1].total - at->total);
  }
  double total() const { return moments_.back().total; }
  double share(double from, double to) { return to > from ? (until(to) - until(from)) / (to - from) : 0; }
  void reserve(std::size_t moments) { moments_.reserve(moments); }
  std::size_t size() const { return moments_.size(); }

 private:
  struct Moment {
    double time = 0, total = 0;
  };
  std::vector<Moment> moments_ = {{}};
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
  double share(double from, double to) { return share_of({from, to}, merged_, first_); }

 private:
  std::vector<std::pair<double, double>> merged_;
  std::size_t first_ = 0;
};

}  // namespace pipewright::timeline
