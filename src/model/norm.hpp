// A norm that is a module of its own (TENorm, WrappedTorchNorm): it keeps its input, which the caller owns, and fp32
// statistics of each row. Recompute of `layernorm` drops the output once the modules that read it are done, and
// replays the norm before their backward (CheckpointWithoutOutput, tensor_parallel/random.py).
#pragma once

#include <string>
#include <utility>

#include "linear.hpp"

namespace pipewright::model {

class Norm {
 public:
  Norm(PieceBuilder& builder, const Dimensions& dimensions, std::string name, bool recompute = false)
      : w_(builder), d_(dimensions), linear_(builder, dimensions), name_(std::move(name)), recompute_(recompute) {}

  /// The output; without `grad` it is all that is left.
  std::uint32_t forward(bool grad) { return forward(grad, new_output()); }
  std::uint32_t forward(bool grad, std::uint32_t out);
  /// Whoever read the output has run. It goes unless a reader `keeps` it (as it is: not where quantized copies of it
  /// were saved) or when it is to be replayed.
  void leave(bool keeps) {
    if (!keeps || recompute_) w_.release(out_);
  }
  /// Before the backward of whoever read it.
  void replay();
  /// The output becomes the caller's to free.
  std::uint32_t give() { return std::exchange(out_, no_tensor); }
  /// Without a backward pass: its input needs no gradient.
  void drop() { w_.release(out_, statistics_); }
  /// The input's gradient, in `din` where that is given (not yet allocated). Frees what is left of forward, and `dout`.
  std::uint32_t backward(std::uint32_t dout, std::uint32_t din = no_tensor);

 private:
  std::uint32_t new_output() { return w_.tensor(name_ + "_output", 2 * d_.local * d_.h); }
  void run(bool grad, std::uint32_t out);

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;
  std::string name_;
  bool recompute_;
  std::uint32_t statistics_ = no_tensor, out_ = no_tensor;
};

/// The norm of a layer whose linears have none fused, or none at all (pre_layernorm).
class PreNorm {
 public:
  PreNorm(PieceBuilder& builder, const Dimensions& dimensions, const std::string& name)
      : on_(dimensions.separate_norms && dimensions.pre_norms),
        norm_(builder, dimensions, name, dimensions.recomputes(Recompute::layernorm)) {}

  /// None without a norm.
  std::uint32_t forward(bool grad) { return on_ ? norm_.forward(grad) : no_tensor; }
  void leave(bool keeps) {
    if (on_) norm_.leave(keeps);
  }
  void replay() {
    if (on_) norm_.replay();
  }
  std::uint32_t backward(std::uint32_t dout) { return on_ ? norm_.backward(dout) : dout; }

 private:
  const bool on_;
  Norm norm_;
};

/// A norm on what a linear layer puts out, before the residual (post_layernorm): out -> TENorm -> out'. It keeps `out`.
class PostNorm {
 public:
  PostNorm(PieceBuilder& builder, const Dimensions& dimensions, const std::string& name)
      : w_(builder), on_(dimensions.post_norms), norm_(builder, dimensions, name) {}

  /// Takes over `out`; returns it, or its normed successor.
  std::uint32_t forward(std::uint32_t out, bool grad) {
    if (!on_) return out;
    input_ = out;
    norm_.forward(grad);
    if (!grad) w_.release(input_);
    return norm_.give();
  }
  /// The gradient of what forward took. Frees `dout`; none: it belongs to somebody else.
  std::uint32_t backward(std::uint32_t dout) {
    if (!on_) return dout;
    const auto din = norm_.backward(dout);
    w_.release(input_);
    return din;
  }

 private:
  PieceBuilder& w_;
  const bool on_;
  Norm norm_;
  std::uint32_t input_ = no_tensor;
};

}  // namespace pipewright::model
