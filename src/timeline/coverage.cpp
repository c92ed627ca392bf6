// Covered time, see coverage.hpp.
#include "coverage.hpp"

#include <algorithm>

namespace pipewright::timeline {

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
  for (Interval& one : intervals_) {
    one.before = total_;
    total_ += covered(one, one.end);
  }
}

std::size_t Coverage::begun_by(std::int64_t t) const {
  const auto after = std::upper_bound(intervals_.begin(), intervals_.end(), t,
                                      [](std::int64_t time, const Interval& one) { return time < one.start; });
  return static_cast<std::size_t>(after - intervals_.begin());
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
