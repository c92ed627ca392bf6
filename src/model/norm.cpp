#include "norm.hpp"

namespace pipewright::model {

void Norm::run(bool grad, std::uint32_t out) {
  if (grad) statistics_ = w_.allocate_float(name_ + "_statistics", linear_.norm_statistics(d_.local));
  w_.allocate(out_ = out);
  linear_.norm(name_, true, d_.local, d_.h);
}

std::uint32_t Norm::forward(bool grad, std::uint32_t out) {
  run(grad && !recompute_, out);
  return out_;
}

void Norm::replay() {
  if (!recompute_) return;
  w_.recomputing(true);
  run(true, new_output());
  w_.recomputing(false);
}

std::uint32_t Norm::backward(std::uint32_t dout, std::uint32_t din) {
  w_.release(out_);
  return linear_.norm_backward(name_, std::exchange(statistics_, no_tensor), dout, d_.local, d_.h, din);
}

}  // namespace pipewright::model
