// A gated delta net layer's mixer in host order, as Megatron Core's GatedDeltaNet (ssm/gated_delta_net) runs it with
// flash-linear-attention 0.4 (S tokens, bf16; H value heads, which share query and key heads):
//
//   X -norm-> n1 -in_proj-> M = q,k,v,z,beta,alpha -conv-> C -split, L2 norm, repeat-> q,k,v   z,beta,alpha copied
//   alpha,beta -> g (fp32), beta   q,k,v,g,beta -delta rule-> O   O -norm-> n2 -times silu(z)-> G -out_proj-> P
//
// Saved for backward: statistics, n1, M (the convolution's input is a view of it), the L2 norm's output and 1/norm, q,
// k, v, z, alpha, beta, g and the triangular inverse of every chunk, O with the norm's statistics, n2, G. The rule's
// backward computes its states anew. A checkpoint of gdn_norm_out keeps O and z alone of what follows O.
// Beside adapters the kernels do the same work: flash-linear-attention's functions never ask which gradients are
// wanted.
#include <utility>

#include "mixer.hpp"

namespace pipewright::model {
namespace {

class GatedDeltaNet : public Mixer {
 public:
  GatedDeltaNet(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind)
      : Mixer(builder, dimensions, kind, "linear_attention", "self_attention", dimensions.linear.projected(),
              dimensions.linear.values()),
        l_(dimensions.linear) {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward(std::uint32_t dropped) override;

 private:
  Int of_keys() const { return 2 * d_.tokens * l_.keys(); }      ///< bytes of queries or keys before they are repeated
  Int of_values() const { return 2 * d_.tokens * l_.values(); }  ///< of values, and of repeated queries or keys
  Int of_gates() const { return 2 * d_.tokens * l_.value_heads; }  ///< of a number a head
  Int states() const { return 2 * d_.tokens / chunk * l_.value_heads * l_.head_dim * l_.head_dim; }
  std::vector<Int> heads() const { return {d_.tokens, l_.key_heads, l_.value_heads, l_.head_dim}; }
  std::vector<Int> rule() const { return {d_.tokens * l_.value_heads, l_.head_dim}; }
  std::vector<Int> chain() const { return {d_.s, d_.b * l_.value_heads, l_.head_dim}; }
  bool replays() const { return d_.recomputes(Recompute::gdn_norm_out); }
  void inputs(bool grad);
  void delta_rule(bool grad);
  void gated_norm(bool grad);
  std::uint32_t gated_norm_backward(std::uint32_t dout);
  std::uint32_t delta_rule_backward(std::uint32_t dout);
  std::uint32_t inputs_backward(std::uint32_t dz);

  static constexpr Int chunk = 64;  ///< tokens (flash-linear-attention, gated_delta_rule/chunk.py)
  // Kernels that an entry of the timeline stands for (a traced layer).
  static constexpr int input_launches = 10, forward_launches = 6, backward_launches = 8, input_backward_launches = 8,
                       conv_backward_launches = 4;

  const LinearAttention l_;
  std::uint32_t mixed_ = no_tensor, convolved_ = no_tensor, normed_qk_ = no_tensor, inverse_norms_ = no_tensor,
                q_ = no_tensor, k_ = no_tensor, v_ = no_tensor, z_ = no_tensor, alpha_ = no_tensor, beta_ = no_tensor,
                decay_ = no_tensor, log_decay_ = no_tensor, inverse_ = no_tensor, o_ = no_tensor,
                statistics_ = no_tensor, normed_ = no_tensor, gated_ = no_tensor;
  std::uint32_t dq_ = no_tensor, dk_ = no_tensor, dv_ = no_tensor, dgates_ = no_tensor;
};

/// Convolution, L2 norms, and what the rule takes in its own layout.
void GatedDeltaNet::inputs(bool grad) {
  convolved_ = w_.allocate("linear_attention.convolved", 2 * d_.tokens * l_.convolved());
  w_.launch("linear_attention.conv forward", {"gated_delta.conv.forward", {d_.tokens, l_.convolved()}});
  const auto joined = w_.allocate("linear_attention.qk", 2 * of_keys());
  normed_qk_ = w_.allocate("linear_attention.qk_normed", 2 * of_keys());
  inverse_norms_ = w_.allocate_float("linear_attention.qk_norms", 2 * 4 * d_.tokens * l_.key_heads);
  w_.free(joined);
  q_ = w_.allocate("linear_attention.q", of_values());
  k_ = w_.allocate("linear_attention.k", of_values());
  v_ = w_.allocate("linear_attention.v", of_values());
  z_ = w_.allocate("linear_attention.gate", of_values());
  alpha_ = w_.allocate("linear_attention.alpha", of_gates());
  const auto logits = w_.allocate("linear_attention.beta", of_gates());
  decay_ = w_.allocate_float("linear_attention.decay", 2 * of_gates());
  beta_ = w_.allocate("linear_attention.beta", of_gates());
  w_.launch("linear_attention.inputs forward", {"gated_delta.inputs.forward", heads()});
  w_.stands_for(input_launches);
  w_.free(logits);
  if (!grad) w_.release(normed_qk_, inverse_norms_, alpha_);
}

void GatedDeltaNet::delta_rule(bool grad) {
  log_decay_ = w_.allocate_float("linear_attention.log_decay", 2 * of_gates());
  const auto products = w_.allocate_float("linear_attention.products", 4 * d_.tokens * l_.value_heads * chunk);
  inverse_ = w_.allocate("linear_attention.inverse", 2 * d_.tokens * l_.value_heads * chunk);
  w_.free(products);
  const auto rows = w_.allocate("linear_attention.rows", of_values()),
             updates = w_.allocate("linear_attention.updates", of_values()),
             state = w_.allocate("linear_attention.states", states()),
             values = w_.allocate("linear_attention.new_values", of_values());
  w_.launch("linear_attention.states forward", {"gated_delta.state.forward", chain()});
  o_ = w_.allocate("linear_attention.core_output", of_values());
  w_.launch("linear_attention.rule forward", {"gated_delta.chunks.forward", rule()});
  w_.stands_for(forward_launches);
  w_.free({rows, updates, state, values});
  if (!grad) w_.release(log_decay_, inverse_);
}

void GatedDeltaNet::gated_norm(bool grad) {
  const Int rows = d_.tokens * l_.value_heads;
  statistics_ = w_.allocate_float("linear_attention.norm_statistics", linear_.norm_statistics(rows));
  normed_ = w_.allocate("linear_attention.normed", of_values());
  // Called from a function that torch.compile breaks there: the host takes longer than for a norm elsewhere.
  Kernel norm;
  norm.name = "linear_attention.norm forward";
  norm.key = linear_.norm_key(true, rows, l_.head_dim);
  norm.host_family = "gated_delta.norm";
  w_.launch(std::move(norm));
  gated_ = w_.allocate("linear_attention.gated", of_values());
  w_.launch("linear_attention.gate forward", {"gate.forward", {d_.tokens, l_.values()}});
  if (!grad) w_.release(statistics_, normed_);
  if (d_.b == 1) return;
  const auto by_token = w_.allocate("linear_attention.gated", of_values());
  w_.launch("linear_attention.output in order", {"copy.strided", {d_.tokens, l_.values()}});
  w_.free(std::exchange(gated_, by_token));
}

std::uint32_t GatedDeltaNet::forward(bool needed) {
  const bool grad = needed && !begins_in_out_;
  mixed_ = linear_.norm_linear(in_, "linear_attention.projected", norm_, grad);
  inputs(grad);
  delta_rule(grad);
  gated_norm(grad && !replays());
  const auto out = project_out(gated_, needed, replays() && !begins_in_out_);
  // The frame returns.
  w_.release(convolved_, decay_);
  if (!grad) w_.release(mixed_, q_, k_, v_, z_, beta_, o_);
  return out;
}

/// Returns the gradient of the rule's output; `z_` becomes its own.
std::uint32_t GatedDeltaNet::gated_norm_backward(std::uint32_t dout) {
  if (d_.b > 1) {
    const auto by_sequence = w_.allocate("linear_attention.gated_gradient", of_values());
    w_.launch("linear_attention.gradient in order", {"copy.strided", {d_.tokens, l_.values()}});
    w_.free(std::exchange(dout, by_sequence));
  }
  const auto dnormed = w_.allocate("linear_attention.normed_gradient", of_values()),
             dz = w_.allocate("linear_attention.gate_gradient", of_values());
  w_.launch("linear_attention.gate backward", {"gate.backward", {d_.tokens, l_.values()}});
  w_.free(dout);
  w_.release(normed_, z_);
  z_ = dz;
  const auto dcore = linear_.norm_backward("linear_attention.norm", std::exchange(statistics_, no_tensor), dnormed,
                                           d_.tokens * l_.value_heads, l_.head_dim);
  w_.release(o_);
  return dcore;
}

/// chunk_gated_delta_rule_bwd; frees `dout` and what forward kept.
std::uint32_t GatedDeltaNet::delta_rule_backward(std::uint32_t dout) {
  const auto values = [&](const char* what) { return w_.allocate(what, of_values()); };
  const auto rows = values("linear_attention.rows"), updates = values("linear_attention.updates"),
             state = w_.allocate("linear_attention.states", states()), fresh = values("linear_attention.new_values");
  w_.launch("linear_attention.states again", {"gated_delta.state.forward", chain()});
  const auto local = values("linear_attention.v_gradient"),
             dstate = w_.allocate("linear_attention.state_gradients", states());
  dv_ = values("linear_attention.v_gradient");
  w_.launch("linear_attention.states backward", {"gated_delta.state.backward", chain()});
  w_.free(local);
  dq_ = values("linear_attention.q_gradient");
  dk_ = values("linear_attention.k_gradient");
  // The decay's gradient, once for each half of a head's keys.
  const auto parts = w_.allocate_float("linear_attention.decay_gradient", 2 * 2 * of_gates()),
             drows = values("linear_attention.rows_gradient"),
             ddecay = w_.allocate_float("linear_attention.decay_gradient", 2 * of_gates());
  w_.free(parts);
  const auto dk = values("linear_attention.k_gradient"), dv = values("linear_attention.v_gradient");
  const auto dg = w_.allocate_float("linear_attention.decay_gradient", 2 * of_gates());
  dgates_ = w_.allocate("linear_attention.gates_gradient", 2 * of_gates() + of_gates());
  w_.launch("linear_attention.rule backward", {"gated_delta.chunks.backward", rule()});
  w_.stands_for(backward_launches);
  w_.free({std::exchange(dv_, dv), dk, ddecay, dg, drows, dstate, rows, updates, state, fresh, dout});
  w_.release(q_, k_, v_, log_decay_, inverse_);
  return dv_;
}

/// Returns the gradient of in_proj's output. Frees `dz`.
std::uint32_t GatedDeltaNet::inputs_backward(std::uint32_t dz) {
  const auto dalpha = w_.allocate("linear_attention.alpha_gradient", of_gates()),
             dbeta = w_.allocate("linear_attention.beta_gradient", of_gates());
  const auto djoined = w_.allocate("linear_attention.qk_normed_gradient", 2 * of_keys()),
             dqk = w_.allocate("linear_attention.qk_gradient", 2 * of_keys());
  const auto dconvolved = w_.allocate("linear_attention.convolved_gradient", 2 * d_.tokens * l_.convolved());
  w_.launch("linear_attention.inputs backward", {"gated_delta.inputs.backward", heads()});
  w_.stands_for(input_backward_launches);
  linear_.small_gradient("linear_attention.dt_bias", l_.value_heads);
  linear_.small_gradient("linear_attention.A_log", l_.value_heads);
  w_.free({djoined, dqk});
  w_.release(dq_, dk_, dv_, dgates_, alpha_, beta_, normed_qk_, inverse_norms_);
  const auto again = w_.allocate("linear_attention.convolved", 2 * d_.tokens * l_.convolved()),
             dprojected = w_.allocate("linear_attention.projected_gradient", 2 * d_.tokens * l_.convolved()),
             dweights = w_.allocate_float("linear_attention.conv_gradients",
                                          4 * ((d_.s + chunk - 1) / chunk) * d_.b * l_.convolved() * l_.conv);
  w_.launch("linear_attention.conv backward", {"gated_delta.conv.backward", {d_.tokens, l_.convolved()}});
  w_.stands_for(conv_backward_launches);
  w_.free({again, dweights, dconvolved});
  linear_.small_gradient("linear_attention.conv", l_.convolved() * l_.conv);
  const auto dmixed = w_.allocate("linear_attention.projected_gradient", 2 * d_.tokens * l_.projected());
  w_.launch("linear_attention.projected gradient", {"cat", {d_.tokens, l_.projected()}});
  w_.free({dprojected, dz, dalpha, dbeta});
  w_.release(mixed_);
  if (d_.b == 1) return dmixed;
  const auto by_token = w_.allocate("linear_attention.projected_gradient", 2 * d_.tokens * l_.projected());
  w_.launch("linear_attention.projected gradient in order", {"copy.strided", {d_.tokens, l_.projected()}});
  w_.free(dmixed);
  return by_token;
}

std::uint32_t GatedDeltaNet::backward(std::uint32_t dropped) {
  if (replays() && !begins_in_out_) {
    w_.recomputing(true);
    gated_norm(true);
    w_.recomputing(false);
  }
  const auto dgated = project_out_backward(gated_, dropped);
  if (begins_in_out_) return no_tensor;
  const auto dcore = gated_norm_backward(dgated);
  delta_rule_backward(dcore);
  const auto dmixed = inputs_backward(std::exchange(z_, no_tensor));
  return linear_.norm_linear_backward(in_, norm_, dmixed);
}

}  // namespace

std::unique_ptr<Attention> gated_delta_net(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind) {
  return std::make_unique<GatedDeltaNet>(builder, dimensions, kind);
}

}  // namespace pipewright::model
