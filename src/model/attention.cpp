// Grouped-query attention in host order, as Megatron Core's SelfAttention with Transformer Engine modules runs it.
// Sequence of allocations and launches: recorded allocator events and kernel traces of core_r0.19.0 with TE 2.20
// (S tokens, bf16):
//
//   X -norm-> n1 -qkv GEMM-> QKV -copy-> q0 -rope-> q,k  -copy-> v  -attention-> O,lse -proj-> P
//
// Saved for backward: statistics, n1, q, k, v, O, lse (reference 5.1). QKV and q0 go when the projection's output
// exists. Backward frees each when its gradient is done.
#include "attention.hpp"

#include <utility>

#include "core_attention.hpp"
#include "eager_norm.hpp"
#include "norm.hpp"
#include "offload_groups.hpp"
#include "rope.hpp"

namespace pipewright::model {
namespace {

class GroupedQueryAttention : public Attention {
 public:
  GroupedQueryAttention(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind)
      : w_(builder),
        d_(dimensions),
        begins_in_proj_(kind.ends && dimensions.lora.qkv == 0),
        rotates_(dimensions.rope && kind.rotary),
        linear_(builder, dimensions),
        core_(builder, dimensions, kind.window, kind.precision.quantized),
        q_rope_(builder, dimensions, "attention.q"),
        k_rope_(builder, dimensions, "attention.k"),
        q_norm_(builder, dimensions, linear_, "attention.q norm", dimensions.q),
        k_norm_(builder, dimensions, linear_, "attention.k norm", dimensions.kv),
        offload_(builder, dimensions),
        qkv_(column_parallel(d_, kind.precision, "attention.qkv", "self_attention.linear_qkv", d_.h, d_.qkv_part(),
                             d_.lora.qkv, kind.ends)),
        proj_(row_parallel(d_, kind.precision, "attention.proj", "self_attention.linear_proj", d_.q, d_.h, d_.lora.proj,
                           begins_in_proj_)),
        separate_norm_(builder, dimensions, "attention.norm"),
        post_norm_(builder, dimensions, "attention.post_norm") {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward(std::uint32_t dropped) override;
  /// The input projection first (attention.py, backward_dw).
  void weight_gradients() override { linear_.weight_gradients.run(true); }

 private:
  using Gradients = CoreAttention::Gradients;
  void project(bool grad);
  void gather_group();
  std::uint32_t scatter_group(std::uint32_t gradient);
  void queries_and_keys(bool grad);
  void run_core(bool grad);
  std::uint32_t attend_and_project(bool grad);
  /// Copies of q and k by a reshape over several groups, or for a kernel that wants them contiguous. The queries of a
  /// single group lie in one piece of every row: their reshape is a view.
  bool copies_q() const {
    return (d_.groups > 1 && d_.groups < d_.heads) || d_.qk_norm || (!rotates_ && !d_.local_spec && !d_.qk_l2_norm);
  }
  bool copies_k() const { return d_.qk_norm || (!rotates_ && !d_.local_spec && !d_.qk_l2_norm); }
  bool normalises() const { return d_.qk_norm || d_.qk_l2_norm; }
  void l2_norms();
  /// Of queries (or keys) of this many heads: every head is a row, or every token is.
  void norm_heads(const std::string& name, bool forward, Int of_heads) {
    const Int rows = d_.qk_norm_whole ? d_.tokens : d_.tokens * of_heads;
    linear_.norm(name, forward, rows, d_.tokens * of_heads * d_.head_dim / rows);
  }
  /// Statistics of both.
  Int norm_rows() const { return d_.tokens * (d_.qk_norm_whole ? 2 : d_.heads + d_.groups); }
  void gate_output(bool grad);
  std::uint32_t gate_backward(std::uint32_t gradient);
  void scale_queries(bool grad);
  std::uint32_t scale_queries_backward(std::uint32_t gradient);
  Gradients l2_norms_backward(Gradients gradients);
  /// v stays a view of the fused projection's output, which therefore stays: as a checkpoint's input, or in batched
  /// products that need no copy of it. An L2 norm keeps k, which is such a view, too.
  bool keeps_mixed() const {
    if (d_.fused_qkv_rope) return false;
    return d_.qk_l2_norm || d_.caps_scores || gate_is_view() || d_.recomputes(Recompute::core_attn) ||
           (d_.local_spec && (d_.groups == d_.heads || (d_.groups == 1 && !rotates_)));
  }
  /// The gate of a single group lies in one piece of every row of the fused projection's output.
  bool gate_is_view() const { return d_.output_gate && d_.groups == 1; }
  void release_output() {
    linear_.weight_gradients.put([this, output = std::exchange(o_, no_tensor)] { w_.free(output); });
  }

  PieceBuilder& w_;
  const Dimensions& d_;
  const bool begins_in_proj_;  ///< the first layer of a frozen model: nothing before its adapter needs a gradient
  const bool rotates_;
  LinearWriter linear_;
  CoreAttention core_;
  Rope q_rope_, k_rope_;
  EagerNorm q_norm_, k_norm_;
  OffloadWriter offload_;
  Linear qkv_, proj_;

  Normed norm_;
  PreNorm separate_norm_;
  PostNorm post_norm_;
  Operand proj_input_;
  Adapted proj_adapted_;
  std::uint32_t mixed_ = no_tensor, q_ = no_tensor, k_ = no_tensor, v_ = no_tensor, o_ = no_tensor, q_raw_ = no_tensor,
                k_raw_ = no_tensor, reloaded_o_ = no_tensor, q_normed_ = no_tensor, k_normed_ = no_tensor,
                qk_statistics_ = no_tensor, gate_ = no_tensor, gated_ = no_tensor, dgate_ = no_tensor,
                query_factor_ = no_tensor;
};

/// What a core attention checkpoint replays: v made contiguous for TE, output, softmax statistics.
void GroupedQueryAttention::run_core(bool grad) {
  if (!d_.local_spec && !d_.caps_scores && !d_.fused_qkv_rope) {
    v_ = w_.allocate("attention.v", 2 * d_.tokens * d_.kv);
    w_.launch("attention.v copy", {"copy.strided", {d_.tokens, d_.kv}});
  }
  o_ = core_.forward(grad);
  if (!grad || core_.keeps_copies() || core_.joins_keys() || (d_.unfused_attention && d_.groups < d_.heads))
    w_.release(v_);
}

void GroupedQueryAttention::queries_and_keys(bool grad) {
  if (d_.fused_qkv_rope) {  // TE rope.py, FusedQKVRoPEFunc: reads the fused projection's output once, saves nothing
    q_ = w_.allocate("attention.q", 2 * d_.tokens * d_.q);
    k_ = w_.allocate("attention.k", 2 * d_.tokens * d_.kv);
    v_ = w_.allocate("attention.v", 2 * d_.tokens * d_.kv);
    w_.launch("attention.qkv rope", {"rope.forward", {d_.tokens, d_.heads + 2 * d_.groups, d_.head_dim}});
    return;
  }
  if (copies_q()) {
    q_raw_ = w_.allocate("attention.q_contiguous", 2 * d_.tokens * d_.q);
    w_.launch("attention.q copy", {"copy.strided", {d_.tokens, d_.q}});
  }
  const auto copy_k = [this] {
    if (!copies_k()) return;
    k_raw_ = w_.allocate("attention.k_contiguous", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k copy", {"copy.strided", {d_.tokens, d_.kv}});
    if (d_.qk_norm && (!d_.qk_norm_whole || d_.qk_norm_eager)) w_.eager();  // inside its norm
  };
  if (!d_.qk_norm) {
    copy_k();
  } else if (d_.qk_norm_eager) {
    q_normed_ = q_norm_.forward(grad);
    w_.release(q_raw_);
    copy_k();
    k_normed_ = k_norm_.forward(grad);
    w_.release(k_raw_);
  } else {
    // The norms make their inputs contiguous and save them; OLMoE's attention reshapes both before it norms them.
    if (d_.qk_norm_whole) copy_k();
    qk_statistics_ = w_.allocate_float("attention.qk_norm_statistics", 4 * norm_rows());
    q_normed_ = w_.allocate("attention.q_normed", 2 * d_.tokens * d_.q);
    norm_heads("attention.q norm", true, d_.heads);
    if (!d_.qk_norm_whole) copy_k();
    k_normed_ = w_.allocate("attention.k_normed", 2 * d_.tokens * d_.kv);
    norm_heads("attention.k norm", true, d_.groups);
  }
  if (d_.output_gate && !gate_is_view()) {
    gate_ = w_.allocate("attention.gate", 2 * d_.tokens * d_.q);
    w_.launch("attention.gate copy", {"copy.strided", {d_.tokens, d_.q}});
  }
  if (d_.qk_l2_norm) l2_norms();
  if (rotates_) {
    q_ = q_rope_.forward(d_.heads, d_.head_dim, grad);
    k_ = k_rope_.forward(d_.groups, d_.head_dim, grad);
  } else {
    q_ = std::exchange(normalises() ? q_normed_ : q_raw_, no_tensor);
    k_ = std::exchange(normalises() ? k_normed_ : k_raw_, no_tensor);
  }
}

/// Megatron Bridge's ministral3_provider.py, MinistralTEDotProductAttention: in place, by a factor of each position,
/// which autograd keeps.
void GroupedQueryAttention::scale_queries(bool grad) {
  if (!d_.scales_queries) return;
  constexpr int small = 8;  // arange / length, floor, + 1, log, x beta, + 1, in 16 bits
  for (int i = 0; i < small; ++i) {
    w_.launch("attention.query factor", {"small", {}});
    w_.eager();
  }
  query_factor_ = w_.allocate("attention.query_factor", 2 * d_.tokens);
  w_.launch("attention.query scale forward", {"copy.d2d", {2 * d_.tokens * d_.q}});
  w_.eager();
  if (!grad) w_.release(query_factor_);
}

std::uint32_t GroupedQueryAttention::scale_queries_backward(std::uint32_t gradient) {
  if (!d_.scales_queries) return gradient;
  const auto of_unscaled = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
  w_.launch("attention.query scale backward", {"copy.d2d", {2 * d_.tokens * d_.q}});
  w_.free(gradient);
  w_.release(query_factor_);
  return of_unscaled;
}

/// attention.py, _apply_output_gate under torch.compile: keeps the attention's output and the gate.
void GroupedQueryAttention::gate_output(bool grad) {
  if (!d_.output_gate) return;
  gated_ = w_.allocate("attention.gated_output", 2 * d_.tokens * d_.q);
  w_.launch("attention.gate forward", {"gate.forward", {d_.tokens, d_.q}});
  if (!grad) w_.release(gate_);
}

std::uint32_t GroupedQueryAttention::gate_backward(std::uint32_t gradient) {
  if (!d_.output_gate) return gradient;
  const auto dout = w_.allocate("attention.core_output_gradient", 2 * d_.tokens * d_.q);
  dgate_ = w_.allocate("attention.gate_gradient", 2 * d_.tokens * d_.q);
  w_.launch("attention.gate backward", {"gate.backward", {d_.tokens, d_.q}});
  w_.free(gradient);
  w_.release(gate_, gated_);
  return dout;
}

/// torch_norm.py, L2Norm under torch.compile: keeps its input and 1/rms of every head in fp32.
void GroupedQueryAttention::l2_norms() {
  qk_statistics_ = w_.allocate_float("attention.qk_norm_statistics", 4 * d_.tokens * (d_.heads + d_.groups));
  q_normed_ = w_.allocate("attention.q_normed", 2 * d_.tokens * d_.q);
  const char* form = copies_q() ? "qk_l2_norm.forward" : "qk_l2_norm.strided.forward";
  w_.launch("attention.q norm forward", {form, {d_.tokens * d_.heads, d_.head_dim}});
  k_normed_ = w_.allocate("attention.k_normed", 2 * d_.tokens * d_.kv);
  w_.launch("attention.k norm forward", {"qk_l2_norm.strided.forward", {d_.tokens * d_.groups, d_.head_dim}});
}

CoreAttention::Gradients GroupedQueryAttention::l2_norms_backward(Gradients normed) {
  Gradients g = normed;
  g.k = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
  w_.launch("attention.k norm backward", {"qk_l2_norm.strided.backward", {d_.tokens * d_.groups, d_.head_dim}});
  w_.free(normed.k);
  g.q = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
  const char* form = copies_q() ? "qk_l2_norm.backward" : "qk_l2_norm.strided.backward";
  w_.launch("attention.q norm backward", {form, {d_.tokens * d_.heads, d_.head_dim}});
  w_.free(normed.q);
  w_.release(q_raw_, qk_statistics_, mixed_);
  return g;
}

void GroupedQueryAttention::project(bool grad) {
  const auto normed = separate_norm_.forward(grad);
  offload_.begin(Offload::qkv_linear, grad);
  if (d_.separate_norms) {
    mixed_ = linear_.column_linear(qkv_, "attention.qkv", norm_.out, grad);
    if (!qkv_.fp8()) offload_.saves(Offload::qkv_linear, {normed});
  } else {
    mixed_ = linear_.norm_linear(qkv_, "attention.qkv", norm_, grad);
    offload_.saves(Offload::qkv_linear, {w_.layer_input()});
  }
  offload_.saves(Offload::qkv_linear, {norm_.out.data, norm_.out.transpose});
  offload_.commit(Offload::qkv_linear);
  gather_group();
}

/// More ranks than groups: they gather what all of them projected, of which each reads its own group
/// (attention.py, get_query_key_value_tensors; mappings.py, _gather_along_last_dim).
void GroupedQueryAttention::gather_group() {
  if (d_.group_ranks == 1) return;
  const Int bytes = 2 * d_.tokens * d_.qkv_part() * d_.t;
  const auto stacked = w_.allocate("attention.qkv_gathered", bytes);
  w_.collective(Purpose::tp, "attention.qkv groups all-gather", "all_gather", d_.t, bytes, d_.tp_link);
  const auto joined = w_.allocate("attention.qkv", bytes);
  w_.launch("attention.qkv joined", {"cat", {d_.tokens, d_.qkv_part() * d_.t}});
  w_.free({stacked, std::exchange(mixed_, joined)});
}

/// The slices' gradients are zeros around what came: of a group's queries, then of all groups.
std::uint32_t GroupedQueryAttention::scatter_group(std::uint32_t gradient) {
  if (d_.group_ranks == 1) return gradient;
  const Int width = d_.qkv_part() * d_.t, bytes = 2 * d_.tokens * width;
  const auto all = w_.allocate("attention.qkv_gradient", bytes);
  w_.launch("attention.qkv gradient zeroed", {"fill", {bytes}});
  w_.launch("attention.qkv gradient of its group", {"copy.strided", {d_.tokens, d_.qkv()}});
  w_.free(gradient);
  const auto stacked = w_.allocate("attention.qkv_gathered", bytes);
  w_.launch("attention.qkv gradient split", {"cat", {d_.tokens, width}});
  const auto part = w_.allocate("attention.qkv_gradient", bytes / d_.t);
  w_.collective(Purpose::tp, "attention.qkv groups reduce-scatter", "reduce_scatter", d_.t, bytes, d_.tp_link);
  w_.free({stacked, all});
  return part;
}

std::uint32_t GroupedQueryAttention::attend_and_project(bool needed) {
  const bool grad = needed && !begins_in_proj_;
  const bool keeps = grad && !d_.recomputes(Recompute::core_attn),
             keeps_original = proj_.precision.recipe != Recipe::delayed;
  offload_.begin(Offload::core_attn, keeps);
  scale_queries(grad);
  run_core(keeps);
  if (keeps) {
    offload_.saves(Offload::core_attn, {q_, core_.joins_keys() ? no_tensor : k_, v_});
    offload_.saves(Offload::core_attn, core_.saved());
    core_.holds(offload_.saves_held(Offload::core_attn, core_.saved_twice()));
    reloaded_o_ = offload_.saves_held(Offload::core_attn, o_);
  }
  offload_.commit(Offload::core_attn);
  gate_output(grad);
  offload_.begin(Offload::attn_proj, grad);
  auto out = linear_.row_linear(proj_, "attention.proj_output", proj_input_, grad, keeps_original);
  out = linear_.adapt(proj_, out, "attention.proj_output", no_tensor, proj_adapted_, needed);
  out = post_norm_.forward(out, needed);
  const bool saves_o = !proj_.fp8() || keeps_original;
  if (grad) offload_.saves(Offload::attn_proj, {saves_o ? o_ : proj_input_.transpose});
  offload_.commit(Offload::attn_proj);
  if (keeps && saves_o && !d_.output_gate) w_.saved_again(o_);
  const bool adapted = needed && proj_.rank > 0;
  if (!adapted && (!grad || !saves_o || proj_.frozen)) w_.release(gated_);
  return out;
}

std::uint32_t GroupedQueryAttention::forward(bool needed) {
  const bool grad = needed && !begins_in_proj_;
  project(grad);
  queries_and_keys(grad);
  const auto out = attend_and_project(needed);
  // Frames return: copies that only the forward pass needed go.
  w_.release(q_normed_, k_normed_);
  if (!grad || !normalises()) w_.release(q_raw_, k_raw_, qk_statistics_);
  if (!grad || !keeps_mixed()) w_.release(mixed_);
  const bool repeated = d_.unfused_attention && d_.groups < d_.heads;  // only the repeated keys are read again
  if (repeated && !d_.recomputes(Recompute::core_attn)) w_.release(k_);
  if (core_.keeps_copies() && !d_.recomputes(Recompute::core_attn)) w_.release(q_, k_);
  if (core_.joins_keys() && !d_.recomputes(Recompute::core_attn)) w_.release(k_);
  if (!grad) w_.release(q_, k_);
  if (!needed || (begins_in_proj_ && d_.output_gate)) w_.release(o_);
  // Delayed scaling: the projection keeps an FP8 copy alone, a checkpoint keeps no output.
  if (d_.recomputes(Recompute::core_attn) && proj_.precision.recipe == Recipe::delayed && !d_.output_gate)
    w_.release(o_);
  separate_norm_.leave(grad);
  return out;
}

std::uint32_t GroupedQueryAttention::backward(std::uint32_t dropped) {
  if (!begins_in_proj_) separate_norm_.replay();
  offload_.needed(Offload::attn_proj);
  const auto dprojected = post_norm_.backward(dropped);
  const auto through_adapter = linear_.adapt_backward(proj_, proj_adapted_);
  if (begins_in_proj_) {
    w_.release(o_, gated_);
    w_.free(dprojected);
    return no_tensor;
  }
  auto dout = linear_.row_backward(proj_, proj_input_, proj_.precision.recipe != Recipe::delayed);
  linear_.add_through(proj_, through_adapter);
  linear_.weight_gradients.put([this, dprojected] { w_.free(dprojected); });
  dout = gate_backward(dout);
  if (reloaded_o_ != no_tensor) w_.free(std::exchange(o_, std::exchange(reloaded_o_, no_tensor)));
  offload_.done(Offload::attn_proj);
  offload_.needed(Offload::core_attn);
  if (d_.recomputes(Recompute::core_attn) || d_.unfused_attention || (d_.context.heads > 1))
    release_output();  // only the projection had saved it
  if (d_.recomputes(Recompute::core_attn)) {
    w_.recomputing(true);
    run_core(true);
    w_.recomputing(false);
  }
  // A checkpoint holds its inputs and its gradient until it returns. Unrotated q and k are views of `mixed_` too.
  CoreAttention::Gradients gradients{};
  if (d_.recomputes(Recompute::core_attn)) {
    gradients = core_.backward({});
    w_.free(dout);
  } else {
    const auto only_v = rotates_ && !d_.qk_l2_norm ? std::exchange(mixed_, no_tensor) : no_tensor;
    gradients = core_.backward({dout, std::exchange(v_, no_tensor), only_v});
  }
  auto [dq, dk, dv] = gradients;
  w_.release(q_, k_, v_);
  if (!d_.qk_l2_norm) w_.release(mixed_);
  release_output();
  offload_.done(Offload::core_attn);
  dq = scale_queries_backward(dq);
  if (rotates_ && !d_.fused_qkv_rope) {
    dk = k_rope_.backward(d_.groups, d_.head_dim, dk);
    dq = q_rope_.backward(d_.heads, d_.head_dim, dq);
  }
  if (d_.qk_l2_norm) {
    const auto raw = l2_norms_backward({dq, dk, dv});
    dq = raw.q, dk = raw.k;
  }
  if (d_.qk_norm_eager) {
    dk = k_norm_.backward(dk);
    dq = q_norm_.backward(dq);
  } else if (d_.qk_norm) {
    const auto dk_normed = dk, dq_normed = dq;
    dk = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
    norm_heads("attention.k norm", false, d_.groups);
    w_.free({dk_normed, k_raw_});
    dq = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
    norm_heads("attention.q norm", false, d_.heads);
    w_.free({dq_normed, q_raw_, qk_statistics_});
    q_raw_ = k_raw_ = qk_statistics_ = no_tensor;
  }
  const auto widen = [this](std::uint32_t& gradient) {  // to all queries of the group
    if (d_.group_ranks == 1 || gradient == no_tensor) return;
    const Int bytes = 2 * d_.tokens * d_.q * d_.group_ranks;
    const auto all = w_.allocate("attention.q_gradient", bytes);
    w_.launch("attention.q gradient zeroed", {"fill", {bytes}});
    w_.launch("attention.q gradient of its heads", {"copy.strided", {d_.tokens, d_.q}});
    w_.free(std::exchange(gradient, all));
  };
  widen(dq);
  widen(dgate_);
  auto dmixed = w_.allocate("attention.qkv_gradient", 2 * d_.tokens * d_.qkv());
  if (d_.fused_qkv_rope)
    w_.launch("attention.qkv rope backward", {"rope.backward", {d_.tokens, d_.heads + 2 * d_.groups, d_.head_dim}});
  else
    w_.launch("attention.qkv gradient", {"cat", {d_.tokens, d_.qkv()}});
  w_.free({dq, dk, dv, std::exchange(dgate_, no_tensor)});
  dmixed = scatter_group(dmixed);
  offload_.needed(Offload::qkv_linear);
  std::uint32_t dx = no_tensor;
  if (d_.separate_norms) {
    dx = linear_.column_backward(qkv_, norm_.out);
    w_.free(dmixed);
  } else {
    dx = linear_.norm_linear_backward(qkv_, norm_, dmixed);
  }
  offload_.done(Offload::qkv_linear);
  return separate_norm_.backward(dx);
}

}  // namespace

std::unique_ptr<Attention> grouped_query_attention(PieceBuilder& builder, const Dimensions& dimensions,
                                                   const LayerKind& kind) {
  return std::make_unique<GroupedQueryAttention>(builder, dimensions, kind);
}

}  // namespace pipewright::model
