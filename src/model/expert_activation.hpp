// The activation between an expert's linear layers, times the token's probability (core_r0.19.0 moe/experts.py:807,
// fusions/fused_bias_geglu.py:410). n rows, f wide, U = 2 n f bytes:
//
//   fused        fc1 [2U] -> A [U];  clamped: fc1 -> two halves [U, U] -> joined [2U, kept] -> A
//   one by one   fc1 -> (clamped gate [U, kept]) -> act(gate) [U, kept], linear + offset [U, kept] -> product [U, kept]
//                -> times probability in fp32 [2U] -> A
//
// The masks of a clamp's gradient have one byte an element.
#pragma once

#include <string>

#include "builder.hpp"

namespace pipewright::model {

/// rows x width times their probabilities, both in 16 bits (without moe_router_dtype): nothing is cast.
struct WeighedIn16Bits {
  PieceBuilder& w;
  Int rows, width;
  const char* name;  ///< of the product's kernel
  std::uint32_t forward(const char* owner) const;
  /// Of `gradient`, which it frees: the gradient of the rows.
  std::uint32_t backward(const char* owner, std::uint32_t gradient) const;
};

class ExpertActivation {
 public:
  ExpertActivation(PieceBuilder& builder, const Dimensions& dimensions, Int rows)
      : w_(builder), d_(dimensions), rows_(rows) {}

  /// Returns A; fc1's output stays with the caller.
  std::uint32_t forward(bool grad);
  /// Frees `gradient` and fc1's output; returns the gradient of the latter.
  std::uint32_t backward(std::uint32_t gradient, std::uint32_t fc1_out);

 private:
  Int half() const { return 2 * rows_ * d_.moe.f; }
  std::string activation() const;  ///< its family without the pass: of the gate's half where there is one
  void fused_forward(bool grad);
  void relu_forward();
  std::uint32_t relu_backward(std::uint32_t gradient, std::uint32_t fc1_out);
  void plain_forward(bool grad);
  std::uint32_t clamp_backward(const std::string& owner, int bounds);
  std::uint32_t fused_backward(std::uint32_t gradient, std::uint32_t fc1_out);
  std::uint32_t plain_backward(std::uint32_t gradient, std::uint32_t fc1_out);
  std::uint32_t unweighted_gradient(std::uint32_t gradient);
  WeighedIn16Bits weighed() const { return {w_, rows_, d_.moe.f, "experts x probability"}; }
  std::uint32_t joined(std::uint32_t gate, std::uint32_t linear);

  PieceBuilder& w_;
  const Dimensions& d_;
  const Int rows_;
  std::uint32_t clamped_ = no_tensor, gate_ = no_tensor, linear_ = no_tensor, product_ = no_tensor,
                unweighted_ = no_tensor;
};

}  // namespace pipewright::model
