// Experts as Transformer Engine's fused grouped MLP (TE pytorch/ops/fused/grouped_mlp.py, GroupedMLP_CuTeGEMMGLU;
// Megatron Core moe/experts.py, _fused_forward): MXFP8, cuDNN's grouped products of Blackwell with activation and
// quantization in their epilogues. Module of activation offload: fused_group_mlp. Also the region of moe_paged_stash.
#pragma once

#include <utility>

#include "experts.hpp"

namespace pipewright::model {

class FusedExperts : public LocalExperts {
 public:
  FusedExperts(PieceBuilder& builder, const Dimensions& dimensions);

  std::uint32_t forward(std::uint32_t rows, bool grad) override;
  std::uint32_t backward(std::uint32_t dout) override;

 private:
  /// Both copies of a matrix of the rows.
  Operand both(const std::string& name, Int width);
  void gemm(const Group& group, Product product);
  void weight_gradient(const Group& group);
  /// Casts of the experts' bf16 weights, anew in every forward pass and kept for the backward pass as its own; nothing
  /// where the parameters are in MXFP8.
  Operand cast_weights(const Group& group, bool grad);
  void release_weights() {
    linear_.release(std::exchange(fc1_weights_, {})), linear_.release(std::exchange(fc2_weights_, {}));
  }
  void stash();
  Int rows() const { return d_.moe.padded; }
  Int held() const { return d_.moe.held; }

  StashWriter stash_;
  Operand fc1_weights_, fc2_weights_;
  std::uint32_t fc1_input_ = no_tensor, fc1_out_ = no_tensor, fc2_input_ = no_tensor;
};

}  // namespace pipewright::model
