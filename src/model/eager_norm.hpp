// RMSNorm over all heads of a token as Megatron Bridge's MiniMax-M2 has it (minimax_m2_provider.py, _FullDimRMSNorm;
// 067f987df): eager operations in fp32. Tensor-parallel ranks, which have some heads each, add up their sums of
// squares.
//
//   x [2 T n] -> x32 [4 T n] -squared [4 T n], summed-> [4 T] -all-reduce, 1/rms-> [4 T]
//   x32 / rms [4 T n] -> in 16 bits [2 T n] x weight -> [2 T n]
//
// Backward keeps x32, 1/rms and the normalised rows in 16 bits.
#pragma once

#include <string>

#include "linear.hpp"

namespace pipewright::model {

class EagerNorm {
 public:
  /// `name`: "attention.q norm". `width`: n, of this rank's heads together.
  EagerNorm(PieceBuilder& builder, const Dimensions& dimensions, LinearWriter& linear, std::string name, Int width)
      : w_(builder), d_(dimensions), linear_(linear), name_(std::move(name)), width_(width) {}

  /// Returns the output; the input stays with the caller.
  std::uint32_t forward(bool grad);
  /// Returns the input's gradient. Frees `gradient` and what forward kept.
  std::uint32_t backward(std::uint32_t gradient);

 private:
  Int elements() const { return d_.tokens * width_; }
  std::uint32_t wide() { return w_.allocate_float(name_, 4 * elements()); }
  std::uint32_t narrow() { return w_.allocate(name_, 2 * elements()); }
  std::uint32_t of_rows() { return w_.allocate_float(name_, 4 * d_.tokens); }
  void run(const char* what, profile::Key key);
  void run_small(const char* what, int times);

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter& linear_;
  const std::string name_;
  const Int width_;
  std::uint32_t x32_ = no_tensor, inverse_ = no_tensor, normed_ = no_tensor;
};

}  // namespace pipewright::model
