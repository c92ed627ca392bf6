// The router of a mixture-of-experts layer (Megatron Core moe/router.py, moe_utils.py): gating GEMM, scores, top-k,
// routing map, auxiliary loss.
#pragma once

#include "builder.hpp"

namespace pipewright::model {

class Router {
 public:
  Router(PieceBuilder& builder, const Dimensions& dimensions) : w_(builder), d_(dimensions) {}

  /// Makes the probabilities [tokens, experts] that the dispatcher permutes. `grad`: keeps what backward needs.
  void forward(bool grad);
  /// Gradient of its input, a bf16 tensor; frees what forward kept.
  std::uint32_t backward();

 private:
  std::string family(const char* pass) const;  ///< of the kernels between logits and probabilities
  int forward_launches() const;
  int backward_launches() const;
  void release();
  void keep_scores();
  profile::Key gating(const char* product) const {
    return {std::string("moe.router.gemm.") + product, {d_.local, d_.h, d_.moe.experts}};
  }
  Int logits_bytes() const { return d_.moe.router_bytes * d_.local * d_.moe.experts; }

  PieceBuilder& w_;
  const Dimensions& d_;
  std::uint32_t indices_ = no_tensor, chosen_ = no_tensor, scores_ = no_tensor, probs_ = no_tensor, logits_ = no_tensor,
                all_ = no_tensor, wide_ = no_tensor, sums_ = no_tensor, log_sums_ = no_tensor;
};

}  // namespace pipewright::model
