// A rank's hooks in host order, and what both kinds of offload answer to them.
#pragma once

#include <utility>
#include <vector>

#include "pipewright/follow.hpp"
#include "pipewright/offload.hpp"

namespace pipewright::offload {

/// Numbers units and collects the actions of an iteration.
class Recorder {
 public:
  Recorder(const model::Stages& stages, const model::Rank& rank);

  /// The number of a group of a piece in a microbatch: in the order in which they come first.
  std::uint32_t unit(model::Call call, std::size_t position, std::uint32_t group);
  void act(Action::Kind kind, std::uint32_t unit) { actions_.actions.push_back({kind, unit}); }
  void end_hook() { actions_.first.push_back(static_cast<std::uint32_t>(actions_.actions.size())); }
  Iteration take() { return std::exchange(actions_, {}); }

  const std::vector<Unit>& units() const { return units_; }
  const model::OffloadGroup& group(std::uint32_t unit) const {
    return stages_.pieces[units_[unit].piece].groups[units_[unit].group];
  }
  /// Of a unit's group: the same for the same OffloadGroup::name.
  int name(std::uint32_t unit) const { return known_[units_[unit].piece][units_[unit].group].name; }

 private:
  struct Known {
    int name = 0;
    Bytes bytes;
  };
  static constexpr std::uint32_t fresh = 0xffffffff;

  const model::Stages& stages_;
  const model::Rank& rank_;
  std::vector<std::vector<Known>> known_;        ///< [piece][group]
  std::vector<std::vector<std::size_t>> first_;  ///< [chunk][position]: of its groups among those of a microbatch
  std::size_t groups_ = 0;                       ///< of a microbatch
  std::vector<std::uint32_t> numbers_;           ///< [microbatch, group]
  std::vector<Unit> units_;
  Iteration actions_;
};

/// What a kind of offload does at each hook.
class Manager {
 public:
  virtual ~Manager() = default;
  virtual void begin_forward(int microbatch, int chunk) = 0;
  virtual void hook(model::Step::Kind kind, std::uint32_t unit) = 0;
  virtual void end_backward(int microbatch, int chunk) = 0;
  virtual void end_iteration() = 0;
  /// Whether what later iterations do depends on these hooks of the first one.
  virtual bool learns_from(model::Step::Kind kind) const = 0;
};

}  // namespace pipewright::offload
