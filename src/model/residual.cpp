#include "residual.hpp"

#include <utility>

namespace pipewright::model {

void ResidualAdd::forward(std::uint32_t sum, std::uint32_t out, bool grad) {
  const Int elements = d_.local * d_.h;
  const bool drops = d_.hidden_dropout > 0;
  if (grad && drops && d_.fused_residual) {
    w_.launch("dropout", {"dropout.forward", {elements}});
    mask_ = w_.allocate("dropout_mask", elements);
  }
  auto biased = no_tensor, dropped = no_tensor;
  if (adds_bias()) {
    biased = w_.allocate(name_ + " with bias", 2 * elements);
    w_.launch(name_ + " bias", {"copy.d2d", {2 * elements}});
  }
  if (drops && !d_.fused_residual) {  // PyTorch's native_dropout: its output and a byte for every element
    dropped = w_.allocate(name_ + " after dropout", 2 * elements);
    mask_ = w_.allocate("dropout_mask", elements);
    w_.launch("dropout", {"dropout.forward", {elements}});
    w_.eager();
  }
  w_.allocate(sum);
  w_.launch(name_, {"add", {elements}});
  if (!d_.fused_residual) w_.eager();
  w_.free({biased, dropped, out});
  if (!grad) w_.release(mask_);
}

std::uint32_t ResidualAdd::backward() {
  const Int elements = d_.local * d_.h;
  auto gradient = no_tensor;
  if (d_.hidden_dropout > 0) {
    gradient = w_.allocate("dropout gradient", 2 * elements);
    w_.launch("dropout backward", {"dropout.backward", {elements}});
    if (!d_.fused_residual) w_.eager();
    w_.release(mask_);
  }
  if (adds_bias()) {
    w_.free(linear_.bias_gradient(name_, d_.local, d_.h));
  } else if (biased_) {
    w_.launch("bias gradient", {"l2norm", {elements / 2}});
    w_.eager();
  }
  return gradient;
}

}  // namespace pipewright::model
