// Shared experts of a mixture-of-experts layer (Megatron Core moe/shared_experts.py): a dense MLP that every token
// takes, optionally weighed by a sigmoid gate.
#pragma once

#include "linear.hpp"
#include "mlp.hpp"

namespace pipewright::model {

class SharedExperts {
 public:
  /// `ends`: of a frozen model, nothing before fc1's adapter needs a gradient.
  SharedExperts(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer, AnyWidth any,
                bool ends = false);

  void forward_fc1(bool grad);           ///< up to the activation
  std::uint32_t forward_fc2(bool grad);  ///< and from there; returns the output
  std::uint32_t forward(bool grad) {
    forward_fc1(grad);
    return forward_fc2(grad);
  }
  void backward_fc2();           ///< takes nothing: its output's gradient is the layer's
  std::uint32_t backward_fc1();  ///< gradient of the input, if it needs one
  std::uint32_t backward() {
    backward_fc2();
    return backward_fc1();
  }
  /// The input lives until the weight gradients are computed.
  void keep(std::uint32_t input) {
    linear_.weight_gradients.put([this, input] { w_.free(input); });
  }
  void weight_gradients() { linear_.weight_gradients.run(); }

 private:
  std::vector<Int> gate_product() const;

  PieceBuilder& w_;
  const Dimensions& d_;
  Activation activate_;
  LinearWriter linear_;
  Linear fc1_, fc2_;
  Operand fc1_input_, fc2_input_;
  Adapted fc1_adapted_, fc2_adapted_;
  std::uint32_t fc1_out_ = no_tensor, activation_ = no_tensor, ungated_ = no_tensor, dactivation_ = no_tensor;
};

}  // namespace pipewright::model
