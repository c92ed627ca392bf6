// Time covered by intervals, each by its weight, for questions in nearly ascending order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipewright::timeline {

class Coverage {
 public:
  /// Intervals mostly come in the order of their starts: those are merged at once. What overlaps an earlier interval
  /// counts from the end of that one on.
  void add(std::int64_t start, std::int64_t end, double weight = 1);
  /// After the last add.
  void finish();
  /// Empty, with the memory that it has: times of every rank are covered anew in every round. `most` intervals come.
  void clear(std::size_t most) {
    intervals_.clear();
    intervals_.reserve(most);
    before_.resize(1);
    ordered_ = true;
  }
  double total() const { return before_.back(); }  ///< exact up to 2^53 ns where all weights are 1
  /// Covered time before t >= 0. `near`: the last answer's place; who asks in ascending order at several distances
  /// keeps one for each.
  double until(std::int64_t t, std::size_t& near) const;
  double until(std::int64_t t) const {
    std::size_t anywhere = 0;
    return until(t, anywhere);
  }
  std::int64_t shared_with(const Coverage& other) const;

 private:
  struct Interval {
    std::int64_t start, end;
    double weight;
  };
  /// Cuts off what the last one covers; true: it has become part of that, or nothing is left.
  static bool joins(Interval& last, Interval& next);
  static double covered(const Interval& one, std::int64_t to) {
    return one.weight * static_cast<double>(to - one.start);
  }

  std::vector<Interval> intervals_;
  std::vector<double> before_{0};
  bool ordered_ = true;
};

}  // namespace pipewright::timeline
