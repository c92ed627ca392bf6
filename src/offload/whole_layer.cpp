#include "whole_layer.hpp"

#include <algorithm>

namespace pipewright::offload {

using Kind = Action::Kind;
using model::Step;

int WholeLayer::layer_of(std::uint32_t unit) const {
  return static_cast<int>(std::find(units_.begin(), units_.end(), unit) - units_.begin());
}

void WholeLayer::hook(Step::Kind kind, std::uint32_t unit) {
  if (kind == Step::Kind::offload_begin) return forward(unit);
  const int layer = layer_of(unit);
  if (kind == Step::Kind::reload_hook) return backward(layer);
  if (kind == Step::Kind::reload_wait && moves(layer)) recorder_.act(Kind::wait_in, unit);
}

void WholeLayer::forward(std::uint32_t unit) {
  const int layer = static_cast<int>(units_.size());
  units_.push_back(unit);
  if (moves(layer - 1)) recorder_.act(Kind::copy_out, units_[static_cast<std::size_t>(layer - 1)]);
  const int finished = layer - (layers_ - moving_);
  if (!moves(finished)) return;
  recorder_.act(Kind::wait_out, units_[static_cast<std::size_t>(finished)]);
  recorder_.act(Kind::release, units_[static_cast<std::size_t>(finished)]);
}

void WholeLayer::backward(int layer) {
  let_go();
  reloaded_ = layer;
  const int starts = layer - (layers_ - 1 - moving_);
  if (moves(starts)) recorder_.act(Kind::copy_in, units_[static_cast<std::size_t>(starts)]);
}

void WholeLayer::let_go() {
  if (moves(reloaded_)) recorder_.act(Kind::let_go, units_[static_cast<std::size_t>(reloaded_)]);
  reloaded_ = -1;
}

}  // namespace pipewright::offload
