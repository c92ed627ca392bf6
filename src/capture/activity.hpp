// What the GPU did, as CUPTI's activity records tell it, behind an interface that tests can fabricate.
//
//   push(7)  launch A, launch B  pop()          tags:    correlation of A -> 7, of B -> 7
//   ──[ A ]─[  B  ]──────────────────►          records: A and B with start and end
//     └────────────┘ span of 7: from A's start to B's end, gap included
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pipewright::capture {

/// A kernel, copy or memset on the GPU.
struct Activity {
  std::string name;
  std::int64_t start_ns = 0, end_ns = 0;
  std::uint32_t correlation = 0;  ///< the API call that issued it
};

struct Tag {
  std::uint32_t correlation = 0;
  std::uint64_t id = 0;  ///< what was pushed when the call was made
};

struct Batch {
  std::vector<Activity> activities;
  std::vector<Tag> tags;
  std::size_t dropped = 0;  ///< records that CUPTI lost
};

class ActivitySource {
 public:
  virtual ~ActivitySource() = default;
  /// Tags the calls made until pop().
  virtual void push(std::uint64_t id) = 0;
  virtual void pop() = 0;
  /// Everything since the last call; the GPU must be idle.
  virtual Batch take() = 0;
  /// Recording costs host time; off while host calls are timed.
  virtual void enable(bool on) = 0;
};

/// The activities of one tag.
struct Span {
  std::int64_t start_ns = 0, end_ns = 0;
  std::int64_t busy_ns = 0;  ///< sum of durations
  int activities = 0;
};

/// By tag. Throws std::runtime_error if records were dropped, end before they start, or if a tagged call left none.
std::map<std::uint64_t, Span> spans(const Batch& batch);

}  // namespace pipewright::capture
