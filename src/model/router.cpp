// Kernels and tensors of Megatron Core core_r0.19.0 moe/router.py and moe_utils.py, S tokens, E experts, top k:
//
//   gating: logits [S,E] (moe_router_dtype)    top-k: indices int64 [S,k]    softmax over the chosen: probs [S,k]
//   probs [S,E] and map [S,E] by scatter       auxiliary loss: softmax over all experts [S,E], sums
//   moe_router_fusion: probs, map and scores [S,E] from one kernel
//
// Kept for backward: the gating's input (the caller's), indices, probs of the chosen, the auxiliary scores. Without
// fusion, as autograd saves them (listed by saved_tensors_hooks on the module): scores before the choice of all experts
// where they are functions of all logits (sigmoid, softmax before top-k, softplus with its root), sums of the chosen
// where they are divided by them, else softmax's result for the chosen. z-loss: logits and their logsumexp.
#include "router.hpp"

namespace pipewright::model {

// Kernels of one call of TopKRouter.routing in core_r0.19.0, counted by kernels/megatron_probe.py (sums over many
// tokens take two); random logits, z-loss and dropping: operators of the same code.
int Router::forward_launches() const {
  const auto& m = d_.moe;
  int count = 0;
  if (m.random_logits) count += 2;  // clone, normal_
  if (m.z_loss) count += 8;         // logsumexp, square, mean, scale
  if (m.router_fusion) {
    ++count;  // fused_topk_with_score_function
  } else {
    count += 2;                       // gatherTopK, sort
    count += m.sigmoid ? 4 : 1;       // sigmoid, sum, +, / or softmax
    if (m.expert_bias) count += 2;    // add, gather
    if (m.grouped_topk) count += 11;  // group_limited_topk: top-k of groups, mask, masked scores
    if (m.scaled) ++count;
    count += 3 + 5;  // zeros_like, clone, scatter; zeros_like, int, clone, scatter, bool
  }
  if (m.aux_loss) {
    count += m.router_fusion ? 1 : (m.sigmoid ? 4 : 1) + 2 + 5;  // scores, top-k, map
    count += 8;                                                  // tokens per expert; sum, *, sum, *; record: /, +
    if (!m.router_fusion && m.experts >= 128) count += 2;
  }
  if (m.drops) count += 8;        // apply_router_token_dropping: top-k of each expert, mask, scatter, products
  if (m.expert_bias) count += 4;  // local_tokens_per_expert += map.sum
  return count;
}

int Router::backward_launches() const {
  const auto& m = d_.moe;
  if (m.router_fusion) return m.aux_loss ? 8 : 2;
  int count = 5;                                // gather, softmax backward (*, softmax), zeros, scatter
  if (m.aux_loss) count += m.sigmoid ? 13 : 7;  // scale, products, expand, scores' backward, sum of both gradients
  if (m.sigmoid) count += 6;
  if (m.scaled) ++count;
  if (m.random_logits) ++count;
  if (m.z_loss) count += 4;
  return count;
}

std::string Router::family(const char* pass) const {
  const auto& m = d_.moe;
  const char* scores = m.router_fusion  ? (m.sigmoid ? "fused_sigmoid" : "fused")
                       : m.grouped_topk ? "grouped"
                       : m.sigmoid      ? "sigmoid"
                                        : "topk";
  return std::string("moe.router.") + scores + (m.aux_loss ? "_aux" : "") + pass;
}

void Router::forward(bool grad) {
  const auto& m = d_.moe;
  const auto logits = w_.allocate("router.logits", logits_bytes());
  w_.launch("router gating forward", gating(m.router_bytes == 2 ? "bf16.tn" : "forward"));
  w_.on_host("moe.router.gemm.forward");
  w_.stands_for(2);
  auto random = no_tensor;
  if (m.random_logits) {
    random = w_.allocate("router.logits", logits_bytes());
    w_.free(logits);
  }
  logits_ = random == no_tensor ? logits : random;
  if (m.z_loss) log_sums_ = w_.allocate("router.logsumexp", m.router_bytes * d_.local);
  if (m.router_fusion) {  // te fused_router.cpp: probabilities, map and scores of all experts
    probs_ = w_.allocate("router.probs", 4 * d_.local * m.experts);
    indices_ = w_.allocate("router.map", d_.local * m.experts);
    chosen_ = w_.allocate("router.chosen_scores", 4 * d_.local * m.experts);
  } else {
    keep_scores();
    chosen_ = w_.allocate("router.chosen_probs", 4 * d_.local * m.topk);
    indices_ = w_.allocate("router.indices", 8 * d_.local * m.topk);
  }
  if (m.aux_loss) scores_ = w_.allocate("router.scores", 4 * d_.local * m.experts);
  if (!m.router_fusion) w_.transient("router.scatter", 4 * d_.local * m.experts);
  w_.launch("router top-k forward", {family(".forward"), {d_.local, m.experts}});
  w_.stands_for(forward_launches());
  w_.on_host(m.router_fusion ? "moe.router.fused" : "moe.router.topk.forward");
  const bool divided = m.sigmoid && m.topk > 1;
  if (!m.router_fusion && (m.pre_softmax || m.sigmoid) && !divided) w_.release(chosen_);
  const bool of_softplus = !m.router_fusion && m.softplus && m.router_bytes == 4;
  if (!m.z_loss && !of_softplus) w_.release(logits_);
  if (!grad) release();
}

/// Of the choice and, with sigmoid, of the auxiliary loss's own scores: what they are divided by.
void Router::keep_scores() {
  const auto& m = d_.moe;
  const Int of_all = 4 * d_.local * m.experts, of_tokens = 4 * d_.local;
  if (m.sigmoid || m.pre_softmax) all_ = w_.allocate("router.all_scores", of_all);
  if (m.softplus && m.router_bytes != 4) wide_ = w_.allocate("router.all_scores", of_all);  // logits in fp32
  const Int sums = (m.sigmoid && m.topk > 1 ? 1 : 0) + (m.sigmoid && m.aux_loss ? 1 : 0);
  if (sums > 0) sums_ = w_.allocate("router.score_sums", sums * of_tokens);
}

void Router::release() { w_.release(chosen_, indices_, scores_, probs_, logits_, all_, wide_, sums_, log_sums_); }

std::uint32_t Router::backward() {
  const auto& m = d_.moe;
  const auto dlogits = w_.allocate("router.logits_gradient", logits_bytes());
  w_.transient("router.logits_gradient", logits_bytes());
  w_.launch("router top-k backward", {family(".backward"), {d_.local, m.experts}});
  w_.stands_for(backward_launches());
  w_.on_host(m.router_fusion ? "moe.router.fused" : "moe.router.topk.backward");
  release();
  // RouterGatingLinearFunction.backward: both GEMMs in the router's type, with casts of weight, input and results.
  const Int size = m.router_bytes, inputs = size * d_.local * d_.h, weights = m.experts * d_.h;
  const auto wide = w_.allocate("router.input_gradient", inputs);
  w_.transient("router.cast_weight", size * weights);
  const auto cast = size > 2 ? w_.allocate("router.cast_input", inputs) : no_tensor;
  const auto dweight = w_.allocate_gradient(size * weights);
  if (size == 2) {
    w_.launch("router gating dgrad", gating("bf16.nn"));
    w_.stands_for(2);
    w_.on_host("moe.router.gemm.backward");
    w_.launch("router gating wgrad", gating("bf16.nt"));
    w_.within_call(1);
  } else {
    w_.launch("router gating backward", gating("backward"));
    w_.stands_for(7);
  }
  w_.free(cast);
  auto din = wide;
  if (size > 2) {
    din = w_.allocate("router.input_gradient", 2 * d_.local * d_.h);
    w_.free(wide);
  }
  if (w_.graphed())
    w_.returns(size * weights, "router weight gradient accumulation", {"small", {}});
  else if (!d_.frozen())  // whose gradient is computed all the same
    w_.launch("router weight gradient accumulation", {"small", {}});
  w_.free({dweight, dlogits});
  return din;
}

}  // namespace pipewright::model
