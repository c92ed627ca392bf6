#include "eager_norm.hpp"

#include <utility>

namespace pipewright::model {

void EagerNorm::run(const char* what, profile::Key key) {
  w_.launch(name_ + " " + what, std::move(key));
  w_.eager();
}

void EagerNorm::run_small(const char* what, int times) {
  for (; times > 0; --times) run(what, {"small", {}});
}

std::uint32_t EagerNorm::forward(bool grad) {
  const Int n = elements();
  x32_ = wide();
  run("input to fp32", {"cast.bf16_f32", {n}});
  const auto squares = wide();
  run("input squared", {"scale", {n}});
  const auto sums = of_rows();
  run("squares summed", {"l2norm", {n}});  // reads 4 bytes an element, as that does
  w_.free(squares);
  if (d_.t > 1) w_.collective(Purpose::tp, name_ + " sums all-reduce", "all_reduce", d_.t, 4 * d_.tokens, d_.tp_link);
  inverse_ = of_rows();
  run_small("1/rms", 4);  // over ranks that share a group, over the width, epsilon, root
  const auto scaled = wide();
  run("input over rms", {"scale", {n}});
  normed_ = narrow();
  run("rows to 16 bits", {"cast.f32_bf16", {n}});
  const auto out = narrow();
  run("rows weighed", {"copy.d2d", {2 * n}});
  w_.free({scaled, sums});  // names of the function
  if (!grad) w_.release(x32_, inverse_, normed_);
  return out;
}

std::uint32_t EagerNorm::backward(std::uint32_t gradient) {
  const Int n = elements();
  const auto of_weight = narrow();
  run("weight gradient of rows", {"add", {n}});  // a product of two tensors moves what a sum does
  const auto weighed = narrow();
  run("gradient weighed", {"copy.d2d", {2 * n}});
  w_.free(gradient);
  run("weight gradient", {"l2norm", {n / 2}});
  linear_.small_gradient(name_, width_);
  w_.free({of_weight, std::exchange(normed_, no_tensor)});
  const auto in_fp32 = wide();
  run("gradient to fp32", {"cast.bf16_f32", {n}});
  w_.free(weighed);
  const auto through_rows = wide();
  run("gradient over rms", {"scale", {n}});
  const auto of_rms = wide();
  run("gradient of 1/rms by element", {"add.f32", {n}});
  run("gradient of 1/rms", {"l2norm", {n}});
  w_.free({of_rms, in_fp32});
  run_small("gradient of the sums", 6);
  w_.free(std::exchange(inverse_, no_tensor));
  // pow_backward: the gradient x (2 x pow(x, 1)); the second factor's two tensors live as long as the expression.
  const auto power = wide();
  run("first power", {"copy.d2d", {4 * n}});
  const auto twice = wide();
  run("twice", {"scale", {n}});
  const auto through_sums = wide();
  run("gradient through the sums", {"scale", {n}});
  w_.free({power, twice, std::exchange(x32_, no_tensor)});
  run("gradients added", {"add.f32", {n}});
  w_.free(through_sums);
  const auto out = narrow();
  run("gradient to 16 bits", {"cast.f32_bf16", {n}});
  w_.free(through_rows);
  return out;
}

}  // namespace pipewright::model
