// Time covered by intervals, each by its weight, for questions in nearly ascending order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipewright::timeline {

class Coverage {
 public:
  /// Where the last range began and ended.
  struct Places {
    std::size_t from = 0, to = 0;
  };

  /// Intervals mostly come in the order of their starts: those are merged at once. What overlaps an earlier interval
  /// counts from the end of that one on.
  void add(std::int64_t start, std::int64_t end, double weight = 1) {
    if (end <= start) return;
    Interval next{start, end, weight};
    if (!intervals_.empty()) {
      Interval& last = intervals_.back();
      ordered_ = ordered_ && start >= last.start;
      if (ordered_ && joins(last, next)) return;
    }
    intervals_.push_back(next);
  }
  /// After the last add.
  void finish();
  /// Empty, with the memory that it has: times of every rank are covered anew in every round. `most` intervals come.
  void clear(std::size_t most) {
    intervals_.clear();
    intervals_.reserve(most);
    total_ = 0;
    ordered_ = true;
  }
  double total() const { return total_; }  ///< exact up to 2^53 ns where all weights are 1
  /// Covered time before t >= 0. `near`: the last answer's place; who asks in ascending order at several distances
  /// keeps one for each.
  double until(std::int64_t t, std::size_t& near) const {
    find(t, near);
    return up_to(t, near);
  }
  double until(std::int64_t t) const {
    std::size_t anywhere = 0;
    return until(t, anywhere);
  }
  /// Covered time between two moments, 0 <= from <= to.
  double between(std::int64_t from, std::int64_t to, Places& near) const {
    find(from, near.from);
    if ((near.from == 0 || intervals_[near.from - 1].end <= from) &&
        (near.from == intervals_.size() || intervals_[near.from].start >= to)) {
      near.to = near.from;
      return 0;
    }
    const double before = up_to(from, near.from);
    return until(to, near.to) - before;
  }
  std::int64_t shared_with(const Coverage& other) const;

 private:
  struct Interval {
    std::int64_t start, end;
    double weight;
    double before = 0;  ///< is covered
  };
  double up_to(std::int64_t t, std::size_t begun) const {
    if (begun == 0) return 0;
    const Interval& last = intervals_[begun - 1];
    return last.before + covered(last, std::min(t, last.end));
  }
  /// How many have begun: a few steps from the last place, else by halving.
  void find(std::int64_t t, std::size_t& near) const {
    constexpr std::size_t steps = 8;
    const Interval* all = intervals_.data();
    const std::size_t size = intervals_.size();
    if (near < size && all[near].start <= t) {
      const std::size_t far = std::min(size, near + steps);
      while (++near < far && all[near].start <= t) {
      }
      if (near == far && near < size && all[near].start <= t) near = begun_by(t);
    } else if (near > 0 && all[near - 1].start > t) {
      const std::size_t far = near > steps ? near - steps : 0;
      while (--near > far && all[near - 1].start > t) {
      }
      if (near == far && near > 0 && all[near - 1].start > t) near = begun_by(t);
    }
  }
  std::size_t begun_by(std::int64_t t) const;
  /// Cuts off what the last one covers; true: it has become part of that, or nothing is left.
  static bool joins(Interval& last, Interval& next) {
    next.start = std::max(next.start, last.end);
    if (next.end <= next.start) return true;
    if (next.start != last.end || next.weight != last.weight) return false;
    last.end = next.end;
    return true;
  }
  static double covered(const Interval& one, std::int64_t to) {
    return one.weight * static_cast<double>(to - one.start);
  }

  std::vector<Interval> intervals_;
  double total_ = 0;
  bool ordered_ = true;
};

}  // namespace pipewright::timeline
