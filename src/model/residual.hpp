// What a half of a layer adds to the residual stream: its output, the bias of its last linear layer, dropout.
//
//   bias_dropout_fusion:          R, O -> R + dropout(O + b)
//   else (fused_bias_dropout.py): O + b -> B     dropout(B) -> D, mask     R + D -> Y     B and D go when Y exists
#pragma once

#include <string>

#include "linear.hpp"

namespace pipewright::model {

class ResidualAdd {
 public:
  /// `biased`: the output comes without its bias.
  ResidualAdd(PieceBuilder& builder, const Dimensions& dimensions, std::string name, bool biased)
      : w_(builder), d_(dimensions), linear_(builder, dimensions), name_(std::move(name)), biased_(biased) {}

  /// Allocates `sum`, frees `out`.
  void forward(std::uint32_t sum, std::uint32_t out, bool grad);
  /// Of dropout and bias. Returns the gradient before dropout; none without it.
  std::uint32_t backward();

 private:
  bool adds_bias() const { return biased_ && !d_.fused_residual; }

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;
  std::string name_;
  bool biased_;
  std::uint32_t mask_ = no_tensor;
};

}  // namespace pipewright::model
