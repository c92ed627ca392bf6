// A replayer with its last events: what it was before one of them is found again without a second walk.
//
//   events     ........................|..........x......
//                          a copy of the replayer   ^ the state before x: the copy, and the events since
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "replayer.hpp"

namespace pipewright::memory {

class Rewind {
 public:
  explicit Rewind(const Replayer& now) : start_(now) {}

  /// Before the replayer gets the event.
  void record(const Event& event, const Replayer& now) {
    // A copy takes about as long as a few hundred events.
    constexpr std::size_t many = 8192;
    if (events_.size() >= many) {
      if (marked_) before_ = std::make_unique<Rewind>(std::move(start_), std::move(events_), *marked_);
      marked_.reset();
      events_.clear();
      start_ = Replayer(now);
    }
    events_.push_back(event);
  }
  /// From now on without a copy, however many come.
  void record(const Event& event) { events_.push_back(event); }

  /// The last event recorded is the one to come back to.
  void mark() {
    marked_ = events_.size() - 1;
    before_.reset();
  }
  bool marked() const { return marked_ || before_; }
  const Event& event() const { return before_ ? before_->event() : events_[*marked_]; }
  /// The state before it.
  Replayer state() const {
    if (before_) return before_->state();
    Replayer then = start_;
    for (const Event& one : std::span(events_).first(*marked_)) then(one);
    return then;
  }

  /// What it was when the oldest of the events came, and these.
  const Replayer& start() const { return start_; }
  const std::vector<Event>& events() const { return events_; }

  Rewind(Replayer start, std::vector<Event> events, std::size_t marked)
      : start_(std::move(start)), events_(std::move(events)), marked_(marked) {}

 private:
  Replayer start_;
  std::vector<Event> events_;
  std::optional<std::size_t> marked_;
  std::unique_ptr<Rewind> before_;  ///< holds the marked event where that is older
};

}  // namespace pipewright::memory
