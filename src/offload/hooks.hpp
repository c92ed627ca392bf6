// A rank's hooks in host order, and what both kinds of offload answer to them.
#pragma once

#include <map>
#include <tuple>

#include "pipewright/offload.hpp"

namespace pipewright::offload {

/// Numbers units and collects the actions of an iteration.
class Recorder {
 public:
  explicit Recorder(const model::Stages& stages) : stages_(stages) {}

  std::uint32_t unit(const Unit& unit);
  void act(Action::Kind kind, std::uint32_t unit) { actions_.actions.push_back({kind, unit}); }
  void end_hook() { actions_.first.push_back(static_cast<std::uint32_t>(actions_.actions.size())); }
  Iteration take() { return std::exchange(actions_, {}); }

  const std::vector<Unit>& units() const { return units_; }
  const model::OffloadGroup& group(std::uint32_t unit) const {
    return stages_.pieces[units_[unit].piece].groups[units_[unit].group];
  }

 private:
  const model::Stages& stages_;
  std::vector<Unit> units_;
  std::map<std::tuple<int, int, std::uint32_t, std::uint32_t>, std::uint32_t> numbers_;
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
};

}  // namespace pipewright::offload
