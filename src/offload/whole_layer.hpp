// Transformer Engine's offload of whole layers, as MCore's cpu_offloading uses it.
#pragma once

#include "hooks.hpp"

namespace pipewright::offload {

/// DefaultOffloadSynchronizer (pytorch/cpu_offload.py:576) for L layers of which the first n move:
///
///   forward of layer l     D2H of l-1, if it moves; waits for, then releases, layer l - (L-n)
///   backward of layer l    lets go of what l+1 had reloaded; H2D of layer l - (L-1-n)
class WholeLayer : public Manager {
 public:
  WholeLayer(int layers, int moving, Recorder& recorder) : layers_(layers), moving_(moving), recorder_(recorder) {}

  void begin_forward(int, int) override { units_.clear(); }
  void hook(model::Step::Kind kind, std::uint32_t unit) override;
  void end_backward(int, int) override { let_go(); }
  void end_iteration() override {}
  bool learns_from(model::Step::Kind /*kind*/) const override { return false; }

 private:
  bool moves(int layer) const { return layer >= 0 && layer < moving_; }
  void forward(std::uint32_t unit);
  void backward(int layer);
  int layer_of(std::uint32_t unit) const;
  void let_go();

  const int layers_, moving_;
  Recorder& recorder_;
  std::vector<std::uint32_t> units_;  ///< of the current microbatch, by layer
  int reloaded_ = -1;                 ///< the layer whose reloaded tensors are still named
};

}  // namespace pipewright::offload
