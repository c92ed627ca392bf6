// The output layer and the loss of one prediction: the next token's, or that of a depth of multi-token prediction.
#pragma once

#include <cstdint>
#include <string>

#include "linear.hpp"

namespace pipewright::model {

/// What a loss leaves for its backward pass: the gradient in the logits' place, an fp32 tensor, a copy of the logits.
enum class Kept : std::uint8_t { logits, fp32, logits_copy };

class OutputLayer {
 public:
  OutputLayer(PieceBuilder& builder, const Dimensions& dimensions, const scenario::Scenario& scenario,
              std::string name);

  /// The input, normed hidden states, stays with the caller, forward and backward.
  void forward();
  /// `depth`: counts accepted predictions too (multi_token_prediction.py, _compute_mtp_acceptance_counts).
  void forward_of_depth();
  /// `din`, not yet allocated, becomes the input's gradient. A deferred weight gradient still reads the input.
  void backward(std::uint32_t din);
  /// Frees what the weight gradient reads: in the backward pass, or for microbatches whose gradient waits, after it.
  void done_with(std::uint32_t tensor);

 private:
  void run(bool counts);
  void weight_gradient();

  PieceBuilder& w_;
  const Dimensions& d_;
  const std::string name_, loss_;
  const Kept keeps_;
  bool again_ = false;        ///< a depth's: the main head's weight has a gradient already
  const bool works_in_copy_;  ///< its kernels work in an fp32 copy of their own
  void cap_logits();
  void cap_logits_backward();

  LinearWriter linear_;
  const Linear projection_;  ///< in MXFP8
  Operand input_;
  std::uint32_t tanh_ = no_tensor;  ///< of capped logits
  std::uint32_t logits_ = no_tensor, kept_ = no_tensor, mask_ = no_tensor, target_ = no_tensor;
};

/// The weight gradient of the output layer, accumulated into the main gradient.
profile::Key head_wgrad(const Dimensions& dimensions);

}  // namespace pipewright::model
