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
  DenseMlp(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer, AnyWidth any, bool ends)
      : w_(builder),
        d_(dimensions),
        begins_in_fc2_(ends && dimensions.lora.fc1 == 0),
        activate_(builder, dimensions, "mlp", "mlp.", dimensions.f, any),
        linear_(builder, dimensions),
        fc1_(column_parallel(d_, layer, "mlp.fc1", "mlp.linear_fc1", d_.h, d_.ffn_in(), d_.lora.fc1, ends)),
        fc2_(row_parallel(d_, layer, "mlp.fc2", "mlp.linear_fc2", d_.f, d_.h, d_.lora.fc2, begins_in_fc2_)),
        separate_norm_(builder, dimensions, "mlp.norm"),
        post_norm_(builder, dimensions, "mlp.post_norm") {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward(std::uint32_t dropped) override;
  void weight_gradients() override { linear_.weight_gradients.run(); }

 private:
  std::uint32_t run(bool grad);

  PieceBuilder& w_;
  const Dimensions& d_;
  const bool begins_in_fc2_;  ///< nothing before that adapter needs a gradient
  Activation activate_;
  LinearWriter linear_;
  Linear fc1_, fc2_;

  Normed norm_;
  PreNorm separate_norm_;  ///< local spec: not under a checkpoint of the MLP
  PostNorm post_norm_;
  Operand fc2_input_;
  Adapted fc2_adapted_;
  std::uint32_t fc1_out_ = no_tensor, activation_ = no_tensor;
};

std::uint32_t DenseMlp::run(bool needed) {
  const bool grad = needed && !begins_in_fc2_;
  fc1_out_ = d_.separate_norms ? linear_.column_linear(fc1_, "mlp.fc1_output", norm_.out, grad)
                               : linear_.norm_linear(fc1_, "mlp.fc1_output", norm_, grad);
  activation_ = activate_.forward(fc1_out_, grad);
  auto out = linear_.row_linear(fc2_, "mlp.fc2_output", fc2_input_, grad, false);
  out = linear_.adapt(fc2_, out, "mlp.fc2_output", no_tensor, fc2_adapted_, needed);
  // FP8 saved its own copy, a frozen layer none; an adapter reads the original.
  if (!needed || ((fc2_.fp8() || fc2_.frozen) && fc2_.rank == 0)) w_.release(activation_);
  return post_norm_.forward(out, needed);
}

std::uint32_t DenseMlp::forward(bool grad) {
  separate_norm_.forward(grad);
  const auto out = run(grad && !d_.recomputes(Recompute::mlp));
  separate_norm_.leave(grad);
  return out;
}

std::uint32_t DenseMlp::backward(std::uint32_t dropped) {
  separate_norm_.replay();
  std::uint32_t replayed = no_tensor;
  if (d_.recomputes(Recompute::mlp)) {
    w_.recomputing(true);
    replayed = run(true);
    w_.recomputing(false);
  }
  const bool held = d_.recomputes(Recompute::mlp);  // a checkpoint holds its gradient until it returns
  const auto dout = post_norm_.backward(held ? no_tensor : std::exchange(dropped, no_tensor));
  const auto through_adapter = linear_.adapt_backward(fc2_, fc2_adapted_);
  if (begins_in_fc2_) {
    w_.release(activation_);
    w_.free(dout);
    return no_tensor;
  }
  const auto dactivation = linear_.row_backward(fc2_, fc2_input_, false);
  linear_.add_through(fc2_, through_adapter);
  linear_.weight_gradients.put([this, dout] { w_.free(dout); });
  linear_.weight_gradients.put([this, activation = std::exchange(activation_, no_tensor)] { w_.free(activation); });
  const auto dfc1 = activate_.backward(dactivation);
  // fc1's bias is added in the activation.
  const auto dbias = d_.bias ? linear_.bias_gradient("mlp.fc1", d_.tokens, d_.ffn_in()) : no_tensor;
  activate_.done(fc1_out_);
  w_.free(dbias);
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

std::unique_ptr<Mlp> dense_mlp(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer, AnyWidth any,
                               bool ends) {
  return std::make_unique<DenseMlp>(builder, dimensions, layer, any, ends);
}

}  // namespace pipewright::model
