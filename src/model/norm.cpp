#include "norm.hpp"

#include <utility>

namespace pipewright::model {

void Norm::run(bool grad) {
  if (grad) statistics_ = w_.allocate(name_ + "_statistics", linear_.norm_statistics(d_.local));
  out_ = w_.allocate(name_ + "_output", 2 * d_.local * d_.h);
  linear_.norm(name_, true, d_.local, d_.h);
}

std::uint32_t Norm::forward(bool grad) {
  run(grad && !recompute_);
  return out_;
}

void Norm::replay() {
  if (!recompute_) return;
  w_.recomputing(true);
  run(true);
  w_.recomputing(false);
}

std::uint32_t Norm::backward(std::uint32_t dout) {
  w_.free(std::exchange(out_, no_tensor));
  return linear_.norm_backward(name_, std::exchange(statistics_, no_tensor), dout, d_.local, d_.h);
}

}  // namespace pipewright::model
