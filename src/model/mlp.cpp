// The dense MLP in host order, as Megatron Core's MLP with Transformer Engine modules runs it. Sequence of allocations
// and launches: recorded allocator events and kernel traces of core_r0.19.0 with TE 2.20 (S tokens, bf16):
//
//   A -norm-> n2 -fc1 GEMM-> F -activation-> G -fc2 GEMM-> M
//
// Saved for backward: statistics, n2, F, G (reference 5.1).
#include "mlp.hpp"

#include <utility>

#include "norm.hpp"

namespace pipewright::model {
namespace {

class DenseMlp : public Mlp {
 public:
  DenseMlp(PieceBuilder& builder, const Dimensions& dimensions, bool fp8, AnyWidth any)
      : w_(builder),
        d_(dimensions),
        any_(any),
        linear_(builder, dimensions),
        fc1_{.name = "mlp.fc1", .in = d_.h, .out = d_.ffn_in(), .fp8 = fp8, .frozen = d_.frozen(), .rank = d_.lora.fc1},
        fc2_{.name = "mlp.fc2",
             .in = d_.f,
             .out = d_.h,
             .fp8 = fp8,
             .row = true,
             .frozen = d_.frozen(),
             .rank = d_.lora.fc2},
        separate_norm_(builder, dimensions, "mlp.norm", dimensions.recomputes(Recompute::layernorm)),
        post_norm_(builder, dimensions, "mlp.post_norm") {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward(std::uint32_t dropped) override;
  void weight_gradients() override { linear_.weight_gradients.run(); }

 private:
  std::uint32_t run(bool grad);
  /// Gated, without bias_activation_fusion: silu(x_gate) * (x_linear + offset), every operation a kernel.
  bool unfused() const { return d_.gated && !d_.fused_activation; }
  void activate(bool grad);
  std::uint32_t activate_backward(std::uint32_t gradient);

  PieceBuilder& w_;
  const Dimensions& d_;
  AnyWidth any_;
  LinearWriter linear_;
  Linear fc1_, fc2_;

  Normed norm_;
  Norm separate_norm_;  ///< local spec: not under a checkpoint of the MLP
  PostNorm post_norm_;
  Operand fc2_input_;
  Adapted fc2_adapted_;
  std::uint32_t fc1_out_ = no_tensor, clamped_gate_ = no_tensor, gate_ = no_tensor, linear_half_ = no_tensor,
                activation_ = no_tensor;
};

void DenseMlp::activate(bool grad) {
  const Int bytes = 2 * d_.tokens * d_.f;
  auto clamped_half = no_tensor;
  if (d_.clamped) {
    clamped_gate_ = w_.allocate("mlp.clamped_gate", bytes);
    clamped_half = w_.allocate("mlp.clamped_half", bytes);
    w_.launch("mlp.clamp forward", {"clamp.forward", {d_.tokens, d_.f}});
    w_.stands_for(2);
  }
  if (unfused()) {
    gate_ = w_.allocate("mlp.gate", bytes);
    w_.launch("mlp.gate forward", {d_.gate + ".forward", {d_.tokens, d_.f}});
    linear_half_ = w_.allocate("mlp.linear_half", bytes);
    w_.launch("mlp.linear_half offset", {"glu.offset", {d_.tokens, d_.f}});
  }
  activation_ = w_.allocate("mlp.activation", bytes);
  if (unfused()) {
    w_.launch("mlp.activation forward", {"add", {d_.tokens * d_.f}});
    w_.free(clamped_half);
  } else {
    w_.launch("mlp.activation forward", {activation_forward(d_, any_), {d_.tokens, d_.f}});
  }
  if (!grad) {
    w_.free({fc1_out_, clamped_gate_, gate_, linear_half_});
    fc1_out_ = clamped_gate_ = gate_ = linear_half_ = no_tensor;
  }
}

/// Frees `gradient` and what the activation kept; returns the gradient of fc1's output.
std::uint32_t DenseMlp::activate_backward(std::uint32_t gradient) {
  const Int bytes = 2 * d_.tokens * d_.f;
  std::uint32_t dgate = no_tensor, dlinear = no_tensor;
  if (unfused()) {
    const auto dproduct = w_.allocate("mlp.gate_gradient", bytes);
    w_.launch("mlp.gate gradient", {"add", {d_.tokens * d_.f}});
    dlinear = w_.allocate("mlp.linear_half_gradient", bytes);
    w_.launch("mlp.linear_half gradient", {"add", {d_.tokens * d_.f}});
    w_.free({std::exchange(gradient, no_tensor), gate_, linear_half_});
    dgate = w_.allocate("mlp.gate_gradient", bytes);
    w_.launch("mlp.gate backward", {d_.gate + ".backward", {d_.tokens, d_.f}});
    w_.free({dproduct, std::exchange(clamped_gate_, no_tensor)});
  }
  if (d_.clamped) {  // masks of one byte, and each half's gradient anew
    w_.launch("mlp.clamp backward", {"clamp.backward", {d_.tokens, d_.f}});
    w_.stands_for(6);
    for (auto* half : {&dlinear, &dgate}) {
      const auto masks = w_.allocate("mlp.clamp_mask", bytes);
      const auto unclamped = w_.allocate("mlp.clamped_gradient", bytes);
      w_.free({masks, std::exchange(*half, unclamped)});
    }
  }
  const auto dfc1 = w_.allocate("mlp.fc1_output_gradient", 2 * d_.tokens * d_.ffn_in());
  if (unfused()) {
    w_.launch("mlp.halves joined", {"cat", {d_.tokens, d_.ffn_in()}});
  } else {
    w_.launch("mlp.activation backward", {activation_backward(d_, any_), {d_.tokens, d_.f}});
  }
  // fc1's bias is added in the activation.
  const auto dbias = d_.bias ? linear_.bias_gradient("mlp.fc1", d_.tokens, d_.ffn_in()) : no_tensor;
  w_.free({gradient, dgate, dlinear, fc1_out_, dbias});
  fc1_out_ = gate_ = linear_half_ = no_tensor;
  return dfc1;
}

std::uint32_t DenseMlp::run(bool grad) {
  fc1_out_ = d_.separate_norms ? linear_.column_linear(fc1_, "mlp.fc1_output", norm_.out, grad)
                               : linear_.norm_linear(fc1_, "mlp.fc1_output", norm_, grad);
  activate(grad);
  auto out = linear_.row_linear(fc2_, "mlp.fc2_output", fc2_input_, grad, false);
  out = linear_.adapt(fc2_, out, "mlp.fc2_output", no_tensor, fc2_adapted_, grad);
  // FP8 saved its own copy, a frozen layer none; an adapter reads the original.
  if (!grad || ((fc2_.fp8 || fc2_.frozen) && fc2_.rank == 0)) w_.release(activation_);
  return post_norm_.forward(out, grad);
}

std::uint32_t DenseMlp::forward(bool grad) {
  if (d_.separate_norms) separate_norm_.forward(grad);
  const auto out = run(grad && !d_.recomputes(Recompute::mlp));
  if (d_.separate_norms) separate_norm_.leave(grad);
  return out;
}

std::uint32_t DenseMlp::backward(std::uint32_t dropped) {
  if (d_.separate_norms) separate_norm_.replay();
  std::uint32_t replayed = no_tensor;
  if (d_.recomputes(Recompute::mlp)) {
    w_.recomputing(true);
    replayed = run(true);
    w_.recomputing(false);
  }
  const bool held = d_.recomputes(Recompute::mlp);  // a checkpoint holds its gradient until it returns
  const auto dout = post_norm_.backward(held ? no_tensor : std::exchange(dropped, no_tensor));
  const auto through_adapter = linear_.adapt_backward(fc2_, fc2_adapted_);
  const auto dactivation = linear_.row_backward(fc2_, fc2_input_, false);
  if (through_adapter != no_tensor) {
    w_.launch("mlp.fc2 adapter gradient added", {"add", {d_.tokens * d_.f}});
    w_.free(through_adapter);
  }
  linear_.weight_gradients.put([this, dout] { w_.free(dout); });
  linear_.weight_gradients.put([this, activation = std::exchange(activation_, no_tensor)] { w_.free(activation); });
  const auto dfc1 = activate_backward(dactivation);
  auto dx = no_tensor;
  if (d_.separate_norms) {
    const auto dnorm = linear_.column_backward(fc1_, norm_.out);
    linear_.weight_gradients.put([this, dfc1] { w_.free(dfc1); });
    dx = separate_norm_.backward(dnorm);
  } else {
    dx = linear_.norm_linear_backward(fc1_, norm_, dfc1);
  }
  w_.free({replayed, dropped});
  return dx;
}

}  // namespace

std::string activation_forward(const Dimensions& dimensions, AnyWidth any) {
  return dimensions.activation + (any.forward ? ".any_width.forward" : ".forward");
}

std::string activation_backward(const Dimensions& dimensions, AnyWidth any) {
  return dimensions.activation + (any.backward ? ".any_width.backward" : ".backward");
}

std::unique_ptr<Mlp> dense_mlp(PieceBuilder& builder, const Dimensions& dimensions, bool fp8, AnyWidth any) {
  return std::make_unique<DenseMlp>(builder, dimensions, fp8, any);
}

}  // namespace pipewright::model
