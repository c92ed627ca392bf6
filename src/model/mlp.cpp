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
  DenseMlp(PieceBuilder& builder, const Dimensions& dimensions, bool fp8)
      : w_(builder),
        d_(dimensions),
        linear_(builder, dimensions),
        fc1_{"mlp.fc1", d_.h, d_.ffn_in(), fp8},
        fc2_{"mlp.fc2", d_.f, d_.h, fp8},
        separate_norm_(builder, dimensions, "mlp.norm", dimensions.recompute_norms) {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward() override;
  void weight_gradients() override { linear_.weight_gradients.run(); }

 private:
  std::uint32_t run(bool grad);

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;
  Linear fc1_, fc2_;

  Normed norm_;
  Norm separate_norm_;  ///< local spec: not under a checkpoint of the MLP
  Operand fc2_input_;
  std::uint32_t fc1_out_ = no_tensor, activation_ = no_tensor;
};

std::uint32_t DenseMlp::run(bool grad) {
  fc1_out_ = d_.separate_norms ? linear_.column_linear(fc1_, "mlp.fc1_output", norm_.out, grad)
                               : linear_.norm_linear(fc1_, "mlp.fc1_output", norm_, grad);
  activation_ = w_.allocate("mlp.activation", 2 * d_.tokens * d_.f);
  w_.launch("mlp.activation forward", {d_.activation + ".forward", {d_.tokens, d_.f}});
  if (!grad) w_.free(fc1_out_);
  const auto out = linear_.row_linear(fc2_, "mlp.fc2_output", fc2_input_, grad, false);
  if (!grad || fc2_.fp8) {  // FP8 saved its own copy
    w_.free(activation_);
    activation_ = no_tensor;
  }
  return out;
}

std::uint32_t DenseMlp::forward(bool grad) {
  if (d_.separate_norms) separate_norm_.forward(grad);
  const auto out = run(grad && !d_.recompute_mlp);
  if (d_.separate_norms) separate_norm_.leave(grad);
  return out;
}

std::uint32_t DenseMlp::backward() {
  if (d_.separate_norms) separate_norm_.replay();
  std::uint32_t replayed = no_tensor;
  if (d_.recompute_mlp) {
    w_.recomputing(true);
    replayed = run(true);
    w_.recomputing(false);
  }
  const auto dactivation = linear_.row_backward(fc2_, fc2_input_, false);
  linear_.weight_gradients.put([this, activation = std::exchange(activation_, no_tensor)] { w_.free(activation); });
  const auto dfc1 = w_.allocate("mlp.fc1_output_gradient", 2 * d_.tokens * d_.ffn_in());
  w_.launch("mlp.activation backward", {d_.activation + ".backward", {d_.tokens, d_.f}});
  w_.free({dactivation, fc1_out_});
  fc1_out_ = no_tensor;
  auto dx = no_tensor;
  if (d_.separate_norms) {
    const auto dnorm = linear_.column_backward(fc1_, norm_.out);
    linear_.weight_gradients.put([this, dfc1] { w_.free(dfc1); });
    dx = separate_norm_.backward(dnorm);
  } else {
    dx = linear_.norm_linear_backward(fc1_, norm_, dfc1);
  }
  w_.free(replayed);
  return dx;
}

}  // namespace

std::unique_ptr<Mlp> dense_mlp(PieceBuilder& builder, const Dimensions& dimensions, bool fp8) {
  return std::make_unique<DenseMlp>(builder, dimensions, fp8);
}

}  // namespace pipewright::model
