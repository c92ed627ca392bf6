// The MLP of a layer, from its input norm to the sum that is added to the residual stream.
#pragma once

#include <memory>

#include "activation.hpp"

namespace pipewright::model {

class Mlp {
 public:
  virtual ~Mlp() = default;
  /// Returns the output, without bias and residual. Without `grad` nothing else is left.
  virtual std::uint32_t forward(bool grad) = 0;
  /// Frees what forward left; returns the gradient of the norm's input, before the residual is added. `dropped`: the
  /// output's gradient where dropout made it a tensor of its own; freed once it has been read.
  virtual std::uint32_t backward(std::uint32_t dropped) = 0;
  /// What delay_wgrad_compute left of backward.
  virtual void weight_gradients() = 0;
};

/// `ends`: of a frozen model, whose first adapter it has.
std::unique_ptr<Mlp> dense_mlp(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer, AnyWidth any,
                               bool ends = false);

}  // namespace pipewright::model
