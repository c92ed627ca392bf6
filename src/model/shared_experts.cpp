// S tokens, FFN width f, bf16. Kept for backward: fc1's output [4 S f], its activation [2 S f], unfused its parts; the
// input is the norm's output, which the router keeps. With a gate also the ungated output and the gate's score.
#include "shared_experts.hpp"

#include <utility>

namespace pipewright::model {

SharedExperts::SharedExperts(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer, AnyWidth any,
                             bool ends)
    : w_(builder),
      d_(dimensions),
      activate_(builder, dimensions, "shared_experts", "shared experts ", dimensions.moe.shared, any,
                !dimensions.moe.shared_overlap),
      linear_(builder, dimensions),
      fc1_(column_parallel(d_, layer, "shared_experts.fc1", "mlp.shared_experts.linear_fc1", d_.h,
                           d_.moe.shared * (d_.gated ? 2 : 1), d_.lora.fc1, ends)),
      fc2_(row_parallel(d_, layer, "shared_experts.fc2", "mlp.shared_experts.linear_fc2", d_.moe.shared, d_.h,
                        d_.lora.fc2)) {}

void SharedExperts::forward_fc1(bool grad) {
  fc1_out_ = linear_.column_linear(fc1_, "shared_experts.fc1_output", fc1_input_, grad);
  fc1_out_ = linear_.adapt(fc1_, fc1_out_, "shared_experts.fc1_output", no_tensor, fc1_adapted_, grad);
  activation_ = activate_.forward(fc1_out_, grad);
}

/// F.linear with one row (transformer/moe/shared_experts.py: gate_weight): memory bounds it, as it does a thin adapter.
/// Traced on an H100, 8192 tokens of 2048: 15 us forward, 18 and 29 backward; a broadcast product 44 to 47.
std::vector<Int> SharedExperts::gate_product() const {
  constexpr Int thinnest = 8;  // of what profiles hold
  return {thinnest, d_.local, d_.h};
}

std::uint32_t SharedExperts::forward_fc2(bool grad) {
  auto out = linear_.row_linear(fc2_, "shared_experts.output", fc2_input_, grad, false);
  out = linear_.adapt(fc2_, out, "shared_experts.output", no_tensor, fc2_adapted_, grad);
  if (!grad || ((fc2_.fp8() || fc2_.frozen) && fc2_.rank == 0)) w_.release(activation_);
  if (!d_.moe.shared_gate) return out;
  const auto gated = w_.allocate("shared_experts.output", 2 * d_.local * d_.h);
  w_.launch("shared experts gate", {"gemm.lora.bf16.tn", gate_product()});
  w_.launch("shared experts gate sigmoid", {"small", {}});
  w_.launch("shared experts gating", {"copy.strided", {d_.local, d_.h}});
  w_.eager();
  if (grad) {
    ungated_ = out;
  } else {
    w_.free(out);
  }
  return gated;
}

void SharedExperts::backward_fc2() {
  auto dout = no_tensor;
  if (d_.moe.shared_gate) {
    dout = w_.allocate("shared_experts.output_gradient", 2 * d_.local * d_.h);
    w_.launch("shared experts gating backward", {"add", {d_.local * d_.h}});
    w_.eager();
    w_.launch("shared experts gate's gradients", {"copy.strided", {d_.local, d_.h}});
    w_.eager();
    w_.launch("shared experts gate's gradients summed", {"amax", {d_.local * d_.h}});
    w_.eager();
    w_.launch("shared experts gate sigmoid backward", {"small", {}});
    for (const char* name : {"shared experts gate wgrad", "shared experts gate dgrad"})
      w_.launch(name, {"gemm.lora.bf16.nn", gate_product()});
    w_.launch("shared experts gate gradient added", {"add", {d_.local * d_.h}});
    w_.launch("shared experts gate gradient accumulation", {"small", {}});
    w_.release(ungated_);
  }
  const auto through = linear_.adapt_backward(fc2_, fc2_adapted_);
  dactivation_ = linear_.row_backward(fc2_, fc2_input_, false);
  linear_.add_through(fc2_, through);
  linear_.weight_gradients.put([this, dout, activation = std::exchange(activation_, no_tensor)] {
    w_.free({activation, dout});
  });
}

std::uint32_t SharedExperts::backward_fc1() {
  const auto dfc1 = activate_.backward(std::exchange(dactivation_, no_tensor));
  activate_.done(fc1_out_);
  const auto through = linear_.adapt_backward(fc1_, fc1_adapted_);
  if (fc1_.ends) {
    w_.free(dfc1);
    return no_tensor;
  }
  const auto din = linear_.column_backward(fc1_, fc1_input_);
  linear_.add_through(fc1_, through);
  linear_.weight_gradients.put([this, dfc1] { w_.free(dfc1); });
  return din;
}

}  // namespace pipewright::model
