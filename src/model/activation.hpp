// The activation between the linear layers of a dense MLP or of shared experts: one fused kernel, or without
// bias_activation_fusion silu(x_gate) * (x_linear + offset), every operation a kernel (mlp.py, glu).
#pragma once

#include <string>

#include "builder.hpp"

namespace pipewright::model {

/// Whether a fused activation meets kernels that torch.compile made for any width: a process calls one function for the
/// dense MLPs and the shared experts, the first width gets kernels of its own, and the second makes it a variable
/// (automatic dynamic shapes), with a division of 64 bits for each element.
struct AnyWidth {
  bool forward = false, backward = false;
  friend auto operator<=>(const AnyWidth&, const AnyWidth&) = default;
};

class Activation {
 public:
  /// `owner`: of its tensors and, before a space or dot, of its kernels. `width`: of its output. Shared experts beside
  /// the dispatcher add no offset (shared_experts.py, linear_fc1_forward_and_act).
  Activation(PieceBuilder& builder, const Dimensions& dimensions, std::string owner, std::string kernels, Int width,
             AnyWidth any, bool offset = true)
      : w_(builder),
        d_(dimensions),
        owner_(std::move(owner)),
        kernels_(std::move(kernels)),
        width_(width),
        any_(any),
        offset_(offset) {}

  /// Of `input`, fc1's output, which is kept; without `grad` nothing is, it neither.
  std::uint32_t forward(std::uint32_t& input, bool grad);
  /// The gradient of fc1's output. `gradient`, the input and what forward kept stay until done().
  std::uint32_t backward(std::uint32_t gradient);
  void done(std::uint32_t& input);

 private:
  bool unfused() const { return d_.gated && !d_.fused_activation; }
  std::uint32_t add_bias(std::uint32_t input);
  Int bytes() const { return 2 * d_.tokens * width_; }
  std::uint32_t make(const char* what, Int of_bytes) { return w_.allocate(owner_ + "." + what, of_bytes); }
  void launch(const char* what, profile::Key key) { w_.launch(kernels_ + what, std::move(key)); }

  PieceBuilder& w_;
  const Dimensions& d_;
  std::string owner_, kernels_;
  Int width_;
  AnyWidth any_;
  bool offset_;
  std::uint32_t clamped_gate_ = no_tensor, gate_ = no_tensor, linear_half_ = no_tensor, gradient_ = no_tensor,
                dgate_ = no_tensor, dlinear_ = no_tensor;
};

}  // namespace pipewright::model
