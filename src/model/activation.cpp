#include "activation.hpp"

#include <utility>

namespace pipewright::model {

/// Without bias_activation_fusion fc1's bias is a kernel of its own, and the sum takes the product's name (mlp.py,
/// intermediate_parallel + bias_parallel). A broadcast keeps ATen from its kernel for plain rows, as an offset's stride
/// does (both elementwise_kernel<128, 4>).
std::uint32_t Activation::add_bias(std::uint32_t input) {
  const Int columns = d_.gated ? 2 * width_ : width_;
  const auto sum = make("fc1_output", 2 * d_.tokens * columns);
  launch("bias", {"glu.offset", {d_.tokens, columns}});
  w_.free(input);
  return sum;
}

std::uint32_t Activation::forward(std::uint32_t& input, bool grad) {
  if (d_.bias && !d_.fused_activation) input = add_bias(input);
  auto clamped_half = no_tensor;
  if (d_.clamped) {
    clamped_gate_ = make("clamped_gate", bytes());
    clamped_half = make("clamped_half", bytes());
    launch("clamp forward", {"clamp.forward", {d_.tokens, width_}});
    w_.stands_for(2);
  }
  if (unfused()) {
    gate_ = make("gate", bytes());
    launch("gate forward", {d_.gate + ".forward", {d_.tokens, width_}});
    if (offset_) {
      linear_half_ = make("linear_half", bytes());
      launch("linear_half offset", {"glu.offset", {d_.tokens, width_}});
    }
  }
  const auto out = make("activation", bytes());
  if (unfused()) {
    launch("activation forward", {"add", {d_.tokens * width_}});
    w_.eager();
    w_.free(clamped_half);
  } else {
    launch("activation forward",
           {d_.activation + (any_.forward ? ".any_width.forward" : ".forward"), {d_.tokens, width_}});
  }
  if (!grad) w_.release(input, clamped_gate_, gate_, linear_half_);
  return out;
}

std::uint32_t Activation::backward(std::uint32_t gradient) {
  gradient_ = gradient;
  if (unfused()) {
    const auto dproduct = make("gate_gradient", bytes());
    launch("gate gradient", {"add", {d_.tokens * width_}});
    w_.eager();
    dlinear_ = make("linear_half_gradient", bytes());
    launch("linear_half gradient", {"add", {d_.tokens * width_}});
    w_.eager();
    w_.release(gradient_, gate_, linear_half_);
    dgate_ = make("gate_gradient", bytes());
    launch("gate backward", {d_.gate + ".backward", {d_.tokens, width_}});
    w_.free({dproduct, std::exchange(clamped_gate_, no_tensor)});
  }
  if (d_.clamped) {  // masks of one byte, and each half's gradient anew
    launch("clamp backward", {"clamp.backward", {d_.tokens, width_}});
    w_.stands_for(6);
    for (auto* half : {&dlinear_, &dgate_}) {
      const auto masks = make("clamp_mask", bytes());
      const auto unclamped = make("clamped_gradient", bytes());
      w_.free({masks, std::exchange(*half, unclamped)});
    }
  }
  const Int both = d_.gated ? 2 * width_ : width_;
  const auto inputs = make("fc1_output_gradient", 2 * d_.tokens * both);
  if (unfused())
    launch("halves joined", {"cat", {d_.tokens, both}});
  else
    launch("activation backward",
           {d_.activation + (any_.backward ? ".any_width.backward" : ".backward"), {d_.tokens, width_}});
  return inputs;
}

void Activation::done(std::uint32_t& input) { w_.release(gradient_, dgate_, dlinear_, input); }

}  // namespace pipewright::model
