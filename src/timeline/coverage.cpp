// Covered time, see coverage.hpp.
#include "coverage.hpp"

#include <algorithm>

namespace pipewright::timeline {

bool Coverage::joins(Interval& last, Interval& next) {
  next.start = std::max(next.start, last.end);
  if (next.end <= next.start) return true;
  if (next.start != last.end || next.weight != last.weight) return false;
  last.end = next.end;
  return true;
}

void Coverage::add(std::int64_t start, std::int64_t end, double weight) {
  if (end <= start) return;
  if (ordered_ && !intervals_.empty() && start < intervals_.back().start) ordered_ = false;
  Interval next{start, end, weight};
  if (!ordered_ || intervals_.empty() || !joins(intervals_.back(), next)) intervals_.push_back(next);
}

void Coverage::finish() {
  if (!ordered_) {
    std::stable_sort(intervals_.begin(), intervals_.end(),
                     [](const auto& a, const auto& b) { return a.start < b.start; });
    std::size_t last = 0;
    for (std::size_t i = 1; i < intervals_.size(); ++i)
      if (!joins(intervals_[last], intervals_[i])) intervals_[++last] = intervals_[i];
    intervals_.resize(last + 1);
    ordered_ = true;
  }
  before_.reserve(intervals_.size() + 1);
  for (const Interval& one : intervals_) before_.push_back(before_.back() + covered(one, one.end));
}

double Coverage::until(std::int64_t t, std::size_t& near) const {
  // A few steps from the last place, else by halving.
  constexpr std::size_t steps = 8;
  for (std::size_t step = 0; step < steps && near > 0 && intervals_[near - 1].start > t; ++step) --near;
  for (std::size_t step = 0; step < steps && near < intervals_.size() && intervals_[near].start <= t; ++step) ++near;
  if ((near > 0 && intervals_[near - 1].start > t) || (near < intervals_.size() && intervals_[near].start <= t)) {
    const auto after = std::upper_bound(intervals_.begin(), intervals_.end(), t,
                                        [](std::int64_t time, const Interval& one) { return time < one.start; });
    near = static_cast<std::size_t>(after - intervals_.begin());
  }
  if (near == 0) return 0;
  const Interval& last = intervals_[near - 1];
  return before_[near - 1] + covered(last, std::min(t, last.end));
}

std::int64_t Coverage::shared_with(const Coverage& other) const {
  std::int64_t shared = 0;
  auto a = intervals_.begin(), b = other.intervals_.begin();
  while (a != intervals_.end() && b != other.intervals_.end()) {
    shared += std::max<std::int64_t>(0, std::min(a->end, b->end) - std::max(a->start, b->start));
    if (a->end < b->end)
      ++a;
    else
      ++b;
  }
  return shared;
}

}  // namespace pipewright::timeline
