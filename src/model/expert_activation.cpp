#include "expert_activation.hpp"

#include <string>
#include <utility>

namespace pipewright::model {

/// torch.compile's function has met the shared experts' rows and width when experts call it: theirs is its kernel for
/// any shape. (Rows alone that change leave a width that is known, and with it whole vectors.)
std::string ExpertActivation::activation() const {
  if (d_.gated) return d_.gate;
  return d_.activation == "squared_relu" && d_.moe.shared > 0 ? d_.activation + ".any_width" : d_.activation;
}

std::uint32_t ExpertActivation::forward(bool grad) {
  if (d_.fused_activation && d_.gated) {
    fused_forward(grad);
  } else if (d_.fused_relu && !d_.gated) {
    relu_forward();
  } else {
    plain_forward(grad);
  }
  return std::exchange(product_, no_tensor);
}

std::uint32_t ExpertActivation::backward(std::uint32_t gradient, std::uint32_t fc1_out) {
  if (d_.fused_relu && !d_.gated) return relu_backward(gradient, fc1_out);
  return d_.fused_activation && d_.gated ? fused_backward(gradient, fc1_out) : plain_backward(gradient, fc1_out);
}

// fusions/fused_weighted_squared_relu.py, compiled by torch.compile: as many bytes as the activation alone, and the sum
// of each row's gradients in the same pass. Timed on an H100: 1.04 times the activation forward, 1.05 to 1.14 backward.
void ExpertActivation::relu_forward() {
  product_ = w_.allocate("experts.activation", half());
  w_.launch("experts activation forward", {"squared_relu.forward", {rows_, d_.moe.f}});
  w_.on_host("moe.swiglu.forward");
}

std::uint32_t ExpertActivation::relu_backward(std::uint32_t gradient, std::uint32_t fc1_out) {
  const auto inputs = w_.allocate("experts.fc1_output_gradient", half());
  const auto dprobs = w_.allocate("moe.probs_gradient", 4 * rows_);
  w_.launch("experts activation backward", {"squared_relu.backward", {rows_, d_.moe.f}});
  w_.on_host("moe.swiglu.backward");
  w_.stands_for(2);
  w_.free({gradient, fc1_out, dprobs});
  return inputs;
}

void ExpertActivation::fused_forward(bool grad) {
  if (d_.clamped) {
    const auto gate = w_.allocate("experts.clamped_gate", half()), linear = w_.allocate("experts.clamped_half", half());
    w_.launch("experts clamp forward", {"clamp.forward", {rows_, d_.moe.f}});
    w_.stands_for(2);
    clamped_ = w_.allocate("experts.clamped", 2 * half());
    w_.launch("experts clamped halves joined", {"cat", {rows_, 2 * d_.moe.f}});
    w_.free({linear, gate});
  }
  product_ = w_.allocate("experts.activation", half());
  w_.launch("experts activation forward", {"moe.swiglu.forward", {rows_, d_.moe.f}});
  if (d_.clamped) w_.on_host("moe.quick_geglu");  // fused_bias_geglu.py: its offset comes from the host
  if (!grad) w_.release(clamped_);
}

std::uint32_t ExpertActivation::fused_backward(std::uint32_t gradient, std::uint32_t fc1_out) {
  const auto inputs = w_.allocate("experts.fc1_output_gradient", 2 * half());
  const auto dprobs = w_.allocate("moe.probs_gradient", 4 * rows_);
  w_.launch("experts activation backward", {"moe.swiglu.backward", {rows_, d_.moe.f}});
  w_.stands_for(2);
  if (!d_.clamped) {
    w_.free({gradient, fc1_out, dprobs});
    return inputs;
  }
  w_.free({gradient, std::exchange(clamped_, no_tensor), dprobs});
  const auto linear = clamp_backward("experts.linear_half_gradient", 2);
  const auto gate = clamp_backward("experts.gate_gradient", 1);
  w_.free({inputs, fc1_out});
  return joined(gate, linear);
}

/// Of one half with one bound or two: comparisons, a mask, what passes it.
std::uint32_t ExpertActivation::clamp_backward(const std::string& owner, int bounds) {
  const auto mask = w_.allocate("experts.clamp_mask", half() / 2);
  const auto other = bounds > 1 ? w_.allocate("experts.clamp_mask", half() / 2) : no_tensor;
  if (bounds > 1) {  // of both halves
    w_.launch("experts clamp backward", {"clamp.backward", {rows_, d_.moe.f}});
    w_.stands_for(6);
  }
  const auto gradient = w_.allocate(owner, half());
  w_.free({other, mask});
  return gradient;
}

std::uint32_t ExpertActivation::joined(std::uint32_t gate, std::uint32_t linear) {
  const auto both = w_.allocate("experts.fc1_output_gradient", 2 * half());
  w_.launch("experts halves joined", {"cat", {rows_, 2 * d_.moe.f}});
  w_.free({gate, linear});
  return both;
}

std::uint32_t WeighedIn16Bits::forward(const char* owner) const {
  const auto product = w.allocate(owner, 2 * rows * width);
  w.launch(name, {"glu.offset", {rows, width}});
  w.eager();
  return product;
}

std::uint32_t WeighedIn16Bits::backward(const char* owner, std::uint32_t gradient) const {
  const auto products = w.allocate("moe.probs_gradient", 2 * rows * width);
  w.launch("experts probability gradient", {"add", {rows * width}});
  w.eager();
  const auto rows_gradient = w.allocate(owner, 2 * rows * width);
  w.launch(std::string(name) + " backward", {"glu.offset", {rows, width}});
  w.eager();
  w.launch("experts probability gradient sum", {"l2norm", {rows * width / 2}});
  w.eager();
  w.free({products, gradient});
  return rows_gradient;
}

void ExpertActivation::plain_forward(bool grad) {
  const Int n = rows_ * d_.moe.f;
  auto clamped_half = no_tensor;
  if (d_.clamped) {
    clamped_ = w_.allocate("experts.clamped_gate", half());
    clamped_half = w_.allocate("experts.clamped_half", half());
    w_.launch("experts clamp forward", {"clamp.forward", {rows_, d_.moe.f}});
    w_.stands_for(2);
  }
  gate_ = w_.allocate("experts.gate", half());
  w_.launch("experts gate forward", {activation() + ".forward", {rows_, d_.moe.f}});
  auto result = gate_;
  if (d_.gated) {
    linear_ = w_.allocate("experts.linear_half", half());
    w_.launch("experts linear half offset", {"glu.offset", {rows_, d_.moe.f}});
    w_.eager();
    result = w_.allocate("experts.product", half());
    w_.launch("experts gate x linear half", {"add", {n}});
    w_.eager();
    w_.free(clamped_half);
  }
  if (d_.moe.weighs_in_16_bits()) {
    product_ = weighed().forward("experts.activation");
  } else {
    const auto wide = w_.allocate("experts.weighted", 2 * half());
    w_.launch("experts x probability", {"cast.bf16_f32", {n}});
    w_.eager();
    product_ = w_.allocate("experts.activation", half());
    w_.launch("experts weighted cast", {"cast.f32_bf16", {n}});
    w_.free(wide);
  }
  unweighted_ = result;
  if (grad) return;
  w_.free({clamped_, gate_, linear_, d_.gated ? unweighted_ : no_tensor});
  clamped_ = gate_ = linear_ = unweighted_ = no_tensor;
}

/// Of activation times probability: the gradient of the former. Frees `gradient`.
std::uint32_t ExpertActivation::unweighted_gradient(std::uint32_t gradient) {
  const Int n = rows_ * d_.moe.f;
  if (d_.moe.weighs_in_16_bits()) return weighed().backward("experts.product_gradient", gradient);
  const auto wide = w_.allocate("experts.weighted_gradient", 2 * half());
  w_.launch("experts weighted cast backward", {"cast.bf16_f32", {n}});
  w_.free(gradient);
  const auto dprobs = w_.allocate("moe.probs_gradient", 2 * half()),
             scaled = w_.allocate("experts.weighted_gradient", 2 * half());
  w_.launch("experts x probability backward", {"scale", {n}});
  w_.eager();
  w_.launch("experts probability gradient", {"add.f32", {n}});
  w_.eager();
  const auto product = w_.allocate("experts.product_gradient", half());
  w_.launch("experts product gradient cast", {"cast.f32_bf16", {n}});
  w_.free(scaled);
  w_.launch("experts probability gradient sum", {"l2norm", {n}});
  w_.eager();
  w_.free({dprobs, wide});
  return product;
}

std::uint32_t ExpertActivation::plain_backward(std::uint32_t gradient, std::uint32_t fc1_out) {
  const Int n = rows_ * d_.moe.f;
  const auto product = unweighted_gradient(gradient);
  const auto unweighted = std::exchange(unweighted_, no_tensor);
  if (!d_.gated) {
    const auto inputs = w_.allocate("experts.fc1_output_gradient", half());
    w_.launch("experts activation backward", {activation() + ".backward", {rows_, d_.moe.f}});
    w_.free({product, std::exchange(gate_, no_tensor), fc1_out});
    return inputs;
  }
  w_.free(unweighted);
  auto linear = w_.allocate("experts.linear_half_gradient", half());
  w_.launch("experts linear half gradient", {"add", {n}});
  w_.eager();
  const auto dgate = w_.allocate("experts.gate_gradient", half());
  w_.launch("experts gate gradient", {"add", {n}});
  w_.eager();
  w_.free({product, std::exchange(linear_, no_tensor), std::exchange(gate_, no_tensor)});
  auto gate = w_.allocate("experts.gate_gradient", half());
  w_.launch("experts gate backward", {activation() + ".backward", {rows_, d_.moe.f}});
  w_.free({std::exchange(clamped_, no_tensor), dgate});
  if (d_.clamped) {
    const auto unclamped = clamp_backward("experts.linear_half_gradient", 2);
    w_.free(std::exchange(linear, unclamped));
    const auto whole = clamp_backward("experts.gate_gradient", 1);
    w_.free(std::exchange(gate, whole));
  }
  w_.free(fc1_out);
  return joined(gate, linear);
}

}  // namespace pipewright::model
