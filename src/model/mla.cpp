// Multi-latent attention in host order, from core_r0.19.0 transformer/multi_latent_attention.py and its specs in
// models/gpt/gpt_layer_specs.py (S tokens, L = S/t of them with sequence parallelism):
//
//   X -norm-> n [L,h] -q_down-> cq [L,rq] -(norm) q_up-> q [S,n(dn+dr)] -rope, in place-> q ─┐
//             n       -kv_down-> [ckv | kr] [L,rkv+dr]                                       ├-attention-> O -proj-> P
//                      ckv -copy-> -(norm) kv_up-> kv [S,n(dn+dv)] ─┬-rope-> k, v ───────────┘
//                      kr -all-gather-> [S,dr] ────────────────────-┘
//
// The down projections are whole on every tensor-parallel rank (TELinear "duplicated"); with mla_down_proj_fusion and
// in the local spec they are column-parallel, their outputs gathered over the width and scattered over the sequence.
// Saved: statistics, n (shared by both), cq, ckv and their norms' outputs, q, k, v, O, lse (reference 5.3); kv goes
// when the rotated k and v exist. Recompute of mla_up_proj keeps cq, [ckv | kr] and the gathered kr, and drops q, k, v.
#include "mla.hpp"

#include "core_attention.hpp"
#include "norm.hpp"
#include "offload_groups.hpp"
#include "rope.hpp"

namespace pipewright::model {
namespace {

class LatentAttention : public Attention {
 public:
  LatentAttention(PieceBuilder& builder, const Dimensions& d, const LayerKind& kind)
      : w_(builder),
        d_(d),
        begins_in_proj_(kind.ends && d.lora.latent() == 0),
        begins_(kind.ends && d.lora.latent() > 0),
        linear_(builder, d),
        core_(builder, d, 0, kind.precision.quantized),
        q_rope_(builder, d, "attention.q_rope"),
        k_rope_(builder, d, "attention.k_rope"),
        norm_(builder, d, "attention.norm", d.recomputes(Recompute::layernorm)),
        offload_(builder, d),
        q_down_(projection(kind, "attention.q_down", "linear_q_down_proj", d.h, split(d.q_rank), !d.splits_down,
                           d.lora.q_down, begins_)),
        kv_down_(projection(kind, "attention.kv_down", "linear_kv_down_proj", d.h, split(d.kv_rank + d.qk_rope),
                            !d.splits_down, d.lora.kv_down, begins_)),
        qkv_down_(projection(kind, "attention.qkv_down", "linear_qkv_down_proj", d.h,
                             split(d.q_rank + d.kv_rank + d.qk_rope), !d.splits_down, 0, false)),
        q_up_(projection(kind, "attention.q_up", d.q_rank > 0 ? "linear_q_up_proj" : "linear_q_proj",
                         d.q_rank > 0 ? d.q_rank : d.h, d.q, false, d.q_rank > 0 ? d.lora.q_up : d.lora.q,
                         begins_ && d.q_rank == 0)),
        kv_up_(
            projection(kind, "attention.kv_up", "linear_kv_up_proj", d.kv_rank, d.kv_up(), false, d.lora.kv_up, false)),
        proj_(row_parallel(d, kind.precision, "attention.proj", "self_attention.linear_proj", d.v_width(), d.h,
                           d.lora.proj, begins_in_proj_)) {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward(std::uint32_t dropped) override;
  void weight_gradients() override { linear_.weight_gradients.run(true); }

 private:
  /// A linear layer with or without a norm in front.
  struct Projection {
    Normed saved;
    std::uint32_t input = no_tensor;  ///< what the layer keeps of the compressed tensor itself
  };

  Linear projection(const LayerKind& kind, const char* name, const char* module, Int in, Int out, bool duplicated,
                    Int rank, bool ends) const {
    const auto make = duplicated ? model::duplicated : column_parallel;
    return make(d_, kind.precision, name, std::string("self_attention.") + module, in, out, rank, ends);
  }
  /// The linear layer of this input keeps it as it is for its weight gradient.
  bool keeps_input(const Linear& linear) const { return !linear.fp8() && !linear.frozen; }
  /// Two parts of every head, of these widths, as one.
  profile::Key joined(Int a, Int b) const {
    return {"cat.heads", {d_.tokens, d_.heads, std::max(a, b), std::min(a, b)}};
  }
  Int split(Int width) const { return d_.splits_down ? width / d_.t : width; }
  /// The queries' projection has a norm in front: of compressed queries, or of the layer's input.
  bool norms_queries() const { return d_.q_rank > 0 || d_.norms_q; }
  bool gathers_rope() const { return d_.sp && !d_.splits_down; }
  void down(bool grad);
  std::uint32_t whole_width(const std::string& name, Int width);
  std::uint32_t whole_width_backward(const std::string& name, Int width, std::uint32_t gradient, bool scattered);
  void up(bool grad);
  std::uint32_t project(const Linear& linear, const std::string& owner, Projection& projection, bool grad);
  std::uint32_t project_backward(const Linear& linear, Projection& projection, std::uint32_t gradient);
  void rotate(std::uint32_t kv, bool grad);
  void attend(bool grad);
  void discard_up();
  void offload_projections();
  void core_backward(std::uint32_t dout);
  /// Gradients of the compressed queries (or of n, without q_lora_rank), keys with values, and rotated key part.
  struct Compressed {
    std::uint32_t q, kv, rope;
  };
  Compressed up_backward();
  std::uint32_t down_backward(Compressed gradients);
  std::uint32_t normed_backward(const Linear& linear, Operand& saved, Adapted& adapted, std::uint32_t gradient,
                                std::uint32_t sum);

  PieceBuilder& w_;
  const Dimensions& d_;
  const bool begins_in_proj_;  ///< the first layer of a frozen model: nothing before its adapter needs a gradient
  const bool begins_;          ///< the same, and its first adapters are those of the projections of n
  LinearWriter linear_;
  CoreAttention core_;
  Rope q_rope_, k_rope_;
  Norm norm_;
  OffloadWriter offload_;
  Linear q_down_, kv_down_, qkv_down_, q_up_, kv_up_, proj_;

  Normed fused_norm_;
  Operand q_down_input_, kv_down_input_, proj_input_;
  Adapted q_down_adapted_, kv_down_adapted_, proj_adapted_;
  Projection q_projection_, kv_projection_;
  std::uint32_t mixed_ = no_tensor;  ///< output of the fused down projection
  std::uint32_t compressed_q_ = no_tensor, compressed_kv_ = no_tensor, key_rope_ = no_tensor;
  std::uint32_t q_ = no_tensor, k_ = no_tensor, v_ = no_tensor, o_ = no_tensor;
  std::uint32_t normed_ = no_tensor, reloaded_normed_ = no_tensor, reloaded_o_ = no_tensor;
  std::vector<std::uint32_t> reloaded_up_;
};

/// A width-parallel [S, width/t] becomes [S, width] (gather_from_tensor_model_parallel_region). What
/// scatter_to_sequence_parallel_region takes of that is a view, so the whole stays.
std::uint32_t LatentAttention::whole_width(const std::string& name, Int width) {
  const auto parts = w_.allocate(name, 2 * d_.tokens * width);
  w_.collective(Purpose::tp, name + " all-gather", "all_gather", d_.t, 2 * d_.tokens * width, d_.tp_link);
  const auto whole = w_.allocate(name, 2 * d_.tokens * width);
  w_.launch(name + " parts joined", {"cat", {d_.tokens, width}});
  w_.free(parts);
  return whole;
}

/// Frees `gradient`.
std::uint32_t LatentAttention::whole_width_backward(const std::string& name, Int width, std::uint32_t gradient,
                                                    bool scattered) {
  if (d_.sp && scattered) {
    const auto whole = w_.allocate(name + "_gradient", 2 * d_.tokens * width);
    w_.collective(Purpose::tp, name + " all-gather in backward", "all_gather", d_.t, 2 * d_.tokens * width, d_.tp_link);
    w_.free(std::exchange(gradient, whole));
  }
  const auto part = w_.allocate(name + "_gradient", 2 * d_.tokens * width / d_.t);
  w_.launch(name + " own part of gradient", {"copy.strided", {d_.tokens, width / d_.t}});
  w_.free(gradient);
  return part;
}

void LatentAttention::down(bool grad) {
  const Int kv_width = d_.kv_rank + d_.qk_rope;
  if (d_.fused_down) {
    offload_.begin(Offload::qkv_linear, grad);
    mixed_ = linear_.norm_linear(qkv_down_, "attention.qkv_compressed", fused_norm_, grad);
  } else {
    normed_ = norm_.forward(grad && !begins_);
    offload_.begin(Offload::qkv_linear, grad);
    if (d_.q_rank > 0)
      compressed_q_ = linear_.column_linear(q_down_, "attention.q_compressed", q_down_input_, grad,
                                            d_.recomputes(Recompute::layernorm));
    if (d_.q_rank > 0)
      compressed_q_ = linear_.adapt(q_down_, compressed_q_, "attention.q_compressed", no_tensor, q_down_adapted_, grad);
    if (d_.q_rank > 0 && d_.splits_down)
      w_.free(std::exchange(compressed_q_, whole_width("attention.q_compressed", d_.q_rank)));
    compressed_kv_ = linear_.column_linear(kv_down_, "attention.kv_compressed", kv_down_input_, grad,
                                           d_.recomputes(Recompute::layernorm));
    compressed_kv_ =
        linear_.adapt(kv_down_, compressed_kv_, "attention.kv_compressed", no_tensor, kv_down_adapted_, grad);
  }
  if (d_.splits_down) {
    if (d_.fused_down) compressed_q_ = whole_width("attention.q_compressed", d_.q_rank);
    key_rope_ = whole_width("attention.kv_compressed", kv_width);  // all of it, for the rotated part
    w_.release(compressed_kv_, mixed_);
    if (d_.sp) {
      compressed_kv_ = w_.allocate("attention.kv_compressed", 2 * d_.local * d_.kv_rank);
      w_.launch("attention.kv_compressed scattered", {"copy.d2d", {2 * d_.local * d_.kv_rank}});
    }
  } else if (gathers_rope()) {
    key_rope_ = w_.allocate("attention.key_rope", 2 * d_.tokens * d_.qk_rope);
    w_.collective(Purpose::tp, "attention.key_rope all-gather", "all_gather", d_.t, 2 * d_.tokens * d_.qk_rope,
                  d_.tp_link);
  }
}

/// Compressed tensors that are views of a wider one are made contiguous by the linear layer, which keeps the copy.
std::uint32_t LatentAttention::project(const Linear& linear, const std::string& owner, Projection& projection,
                                       bool grad) {
  const bool is_q = &projection == &q_projection_;
  const bool view = is_q ? d_.fused_down && !d_.splits_down : !(d_.splits_down && d_.sp);
  if (view) {
    projection.input = w_.allocate(linear.name + "_input", 2 * d_.local * linear.in);
    w_.launch(linear.name + " input copy", {"copy.strided", {d_.local, linear.in}});
  }
  std::uint32_t out = no_tensor;
  if (d_.qk_norm) {
    out = linear_.norm_linear(linear, owner, projection.saved, grad);
  } else {
    out = linear_.column_linear(linear, owner, projection.saved.out, grad);
  }
  if (!grad || (!keeps_input(linear) && !d_.qk_norm)) w_.release(projection.input);
  return out;
}

std::uint32_t LatentAttention::project_backward(const Linear& linear, Projection& projection, std::uint32_t gradient) {
  std::uint32_t result = no_tensor;
  if (d_.qk_norm) {
    result = linear_.norm_linear_backward(linear, projection.saved, gradient);
  } else {
    result = linear_.column_backward(linear, projection.saved.out);
    w_.free(gradient);
  }
  w_.release(projection.input);
  return result;
}

void LatentAttention::rotate(std::uint32_t kv, bool grad) {
  if (d_.fused_rope) {
    w_.launch("attention.q rope", {"rope.mla.forward", {d_.tokens, d_.heads, d_.qk_rope}});  // in place
    k_ = w_.allocate("attention.k", 2 * d_.tokens * d_.kv);
    v_ = w_.allocate("attention.v", 2 * d_.tokens * d_.v_width());
    w_.launch("attention.kv rope", {"rope.mla.forward", {d_.tokens, d_.heads, d_.qk_nope + d_.v_dim + d_.qk_rope / 2}});
  } else {
    const auto q_rope = q_rope_.forward(d_.heads, d_.qk_rope, grad);
    const auto k_rope = k_rope_.forward(1, d_.qk_rope, grad);
    const auto projected = q_;
    q_ = w_.allocate("attention.q", 2 * d_.tokens * d_.q);
    w_.launch("attention.q joined", joined(d_.qk_nope, d_.qk_rope));
    k_ = w_.allocate("attention.k", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k joined", joined(d_.qk_nope, d_.qk_rope));
    v_ = w_.allocate("attention.v", 2 * d_.tokens * d_.v_width());
    w_.launch("attention.v copy", {"copy.strided", {d_.tokens, d_.v_width()}});
    w_.free({q_rope, k_rope, projected});
  }
  w_.free(kv);
}

void LatentAttention::up(bool grad) {
  if (norms_queries()) {
    q_ = project(q_up_, "attention.q", q_projection_, grad);
  } else {
    q_ = linear_.column_linear(q_up_, "attention.q", q_projection_.saved.out, grad);
    q_ = linear_.adapt(q_up_, q_, "attention.q", no_tensor, q_projection_.saved.adapted, grad);
  }
  rotate(project(kv_up_, "attention.kv", kv_projection_, grad), grad);
}

/// Module qkv_linear. Both down projections (or the queries' with its own norm) save the norm's output, each as an
/// object of its own.
void LatentAttention::offload_projections() {
  if (d_.fused_down) {
    offload_.saves(Offload::qkv_linear, {w_.layer_input(), fused_norm_.out.data});
  } else if (!q_up_.fp8() && !d_.recomputes(Recompute::layernorm)) {
    offload_.saves(Offload::qkv_linear, {normed_});
    if (norms_queries()) reloaded_normed_ = offload_.saves_held(Offload::qkv_linear, normed_);
  }
  for (const auto* projection : {&q_projection_, &kv_projection_})
    offload_.saves(Offload::qkv_linear, {projection->input, projection->saved.out.data});
}

void LatentAttention::attend(bool grad) {
  const bool keeps = grad && !d_.recomputes(Recompute::core_attn);
  offload_.begin(Offload::core_attn, keeps);
  o_ = core_.forward(keeps);
  if (keeps && core_.pads_values()) w_.release(v_);
  if (keeps) {
    offload_.saves(Offload::core_attn, {q_, k_, v_});
    offload_.saves(Offload::core_attn, core_.saved());
    core_.holds(offload_.saves_held(Offload::core_attn, core_.saved_twice()));
    reloaded_o_ = offload_.saves_held(Offload::core_attn, o_);
  }
  offload_.commit(Offload::core_attn);
}

/// CheckpointWithoutOutput empties queries, keys and values, and fills them again in backward. What core_attn has
/// copied to the host before that comes back beside them: autograd holds the copies.
void LatentAttention::discard_up() {
  for (auto* tensor : {&q_, &k_, &v_}) {
    if (offload_.moves(Offload::core_attn, *tensor))
      reloaded_up_.push_back(std::exchange(*tensor, no_tensor));
    else
      w_.release(*tensor);
  }
}

std::uint32_t LatentAttention::forward(bool needed) {
  const bool grad = needed && !begins_in_proj_;
  down(grad);
  up(grad && !d_.recomputes(Recompute::mla_up_proj));
  if (grad && !d_.recomputes(Recompute::mla_up_proj)) offload_projections();
  offload_.commit(Offload::qkv_linear);
  if (!grad || !d_.recomputes(Recompute::mla_up_proj)) {
    if (!(d_.splits_down && !d_.sp)) w_.release(key_rope_);  // without sequence parallelism compressed keys view it
  }
  attend(grad);
  if (grad && d_.recomputes(Recompute::mla_up_proj)) discard_up();
  const bool keeps_original = proj_.precision.recipe != Recipe::delayed, saves_o = !proj_.fp8() || keeps_original;
  offload_.begin(Offload::attn_proj, grad);
  auto out = linear_.row_linear(proj_, "attention.proj_output", proj_input_, grad, keeps_original);
  out = linear_.adapt(proj_, out, "attention.proj_output", no_tensor, proj_adapted_, needed);
  if (grad) offload_.saves(Offload::attn_proj, {saves_o ? o_ : proj_input_.transpose});
  offload_.commit(Offload::attn_proj);
  if (grad && !d_.recomputes(Recompute::core_attn) && saves_o) w_.saved_again(o_);
  // Frames return.
  const bool adapted = needed && proj_.rank > 0;
  if (!adapted && (!grad || (d_.recomputes(Recompute::core_attn) && !saves_o))) w_.release(o_);
  if (!grad || (core_.keeps_copies() && !d_.recomputes(Recompute::core_attn))) w_.release(q_, k_, v_);
  if (!grad || !d_.recomputes(Recompute::mla_up_proj)) {
    const bool kept = grad && (keeps_input(q_up_) || d_.qk_norm);  // as the up projections' inputs, where no views
    w_.release(key_rope_, mixed_);
    if (!kept || !(d_.splits_down && d_.sp)) w_.release(compressed_kv_);
    if (!kept) w_.release(compressed_q_);
  }
  const bool adapts_normed = kv_down_.rank > 0;  // and the queries' projection of n with it
  if (!d_.fused_down) norm_.leave(grad && (keeps_input(q_up_) || (d_.norms_q && d_.q_rank == 0) || adapts_normed));
  return out;
}

void LatentAttention::core_backward(std::uint32_t dout) {
  if (d_.recomputes(Recompute::core_attn) || d_.unfused_attention) w_.release(o_);  // only the projection had saved it
  if (d_.recomputes(Recompute::core_attn)) {
    w_.recomputing(true);
    o_ = core_.forward(true);
    w_.recomputing(false);
  }
  const auto g = core_.backward({dout});
  w_.release(q_, k_, v_, o_);
  for (const auto tensor : std::exchange(reloaded_up_, {})) w_.free(tensor);
  q_ = g.q;
  k_ = g.k;
  v_ = g.v;
}

/// q_, k_ and v_ hold the gradients.
LatentAttention::Compressed LatentAttention::up_backward() {
  Compressed result{};
  const auto dkv = w_.allocate("attention.kv_gradient", 2 * d_.tokens * d_.kv_up());
  result.rope = w_.allocate("attention.key_rope_gradient", 2 * d_.tokens * d_.qk_rope);
  if (d_.fused_rope) {
    w_.launch("attention.kv rope backward",
              {"rope.mla.backward", {d_.tokens, d_.heads, d_.qk_nope + d_.v_dim + d_.qk_rope / 2}});
    w_.release(k_, v_);
    w_.launch("attention.q rope backward", {"rope.mla.backward", {d_.tokens, d_.heads, d_.qk_rope}});
  } else {
    w_.launch("attention.kv gradient", joined(d_.qk_nope, d_.v_dim));
    w_.launch("attention.key_rope gradient of heads summed", {"copy.strided", {d_.tokens, d_.heads * d_.qk_rope}});
    w_.release(k_, v_);
    result.rope = k_rope_.backward(1, d_.qk_rope, result.rope);
    const auto dq_rope = w_.allocate("attention.q_rope_gradient", 2 * d_.tokens * d_.heads * d_.qk_rope);
    w_.launch("attention.q_rope gradient copy", {"copy.strided", {d_.tokens, d_.heads * d_.qk_rope}});
    const auto rotated = q_rope_.backward(d_.heads, d_.qk_rope, dq_rope);
    const auto dq = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
    w_.launch("attention.q gradient", joined(d_.qk_nope, d_.qk_rope));
    w_.free({rotated, std::exchange(q_, dq)});
  }
  result.kv = project_backward(kv_up_, kv_projection_, dkv);
  if (norms_queries()) {
    result.q = project_backward(q_up_, q_projection_, std::exchange(q_, no_tensor));
  } else {
    const auto through = linear_.adapt_backward(q_up_, q_projection_.saved.adapted);
    result.q = q_up_.ends ? no_tensor : linear_.column_backward(q_up_, q_projection_.saved.out);
    linear_.add_through(q_up_, through);
    w_.release(q_);
  }
  w_.release(compressed_q_, compressed_kv_, key_rope_, mixed_);
  return result;
}

/// The gradient of n from one of its readers, added to `sum` where there is one. Frees `gradient`.
std::uint32_t LatentAttention::normed_backward(const Linear& linear, Operand& saved, Adapted& adapted,
                                               std::uint32_t gradient, std::uint32_t sum) {
  const auto through = linear_.adapt_backward(linear, adapted);
  if (linear.ends) {
    w_.free(gradient);
    return sum;
  }
  const auto part = linear_.column_backward(linear, saved, linear.fp8() && d_.recomputes(Recompute::layernorm));
  linear_.add_through(linear, through);
  w_.free(gradient);
  if (sum == no_tensor) return part;
  w_.launch("gradient accumulation", {"add", {d_.local * d_.h}});
  w_.free(part);
  return sum;
}

std::uint32_t LatentAttention::down_backward(Compressed g) {
  const Int kv_width = d_.kv_rank + d_.qk_rope;
  if (d_.splits_down && d_.sp) {
    const auto whole = w_.allocate("attention.kv_compressed_gradient", 2 * d_.tokens * d_.kv_rank);
    w_.collective(Purpose::tp, "attention.kv_compressed all-gather in backward", "all_gather", d_.t,
                  2 * d_.tokens * d_.kv_rank, d_.tp_link);
    w_.free(std::exchange(g.kv, whole));
  } else if (gathers_rope()) {
    const auto own = w_.allocate("attention.key_rope_gradient", 2 * d_.local * d_.qk_rope);
    w_.collective(Purpose::tp, "attention.key_rope reduce-scatter", "reduce_scatter", d_.t, 2 * d_.tokens * d_.qk_rope,
                  d_.tp_link);
    w_.free(std::exchange(g.rope, own));
  }
  const Int rows = d_.splits_down ? d_.tokens : d_.local;
  auto dkv = w_.allocate("attention.kv_compressed_gradient", 2 * rows * kv_width);
  w_.launch("attention.kv_compressed gradient", {"cat", {rows, kv_width}});
  w_.free({g.kv, g.rope});
  if (d_.splits_down) {
    dkv = whole_width_backward("attention.kv_compressed", kv_width, dkv, false);
    if (d_.q_rank > 0) g.q = whole_width_backward("attention.q_compressed", d_.q_rank, g.q, true);
  }
  if (d_.fused_down) {
    const Int width = qkv_down_.out;
    const auto dmixed = w_.allocate("attention.qkv_compressed_gradient", 2 * rows * width);
    w_.launch("attention.qkv_compressed gradient", {"cat", {rows, width}});
    w_.free({g.q, dkv});
    const auto dx = linear_.norm_linear_backward(qkv_down_, fused_norm_, dmixed);
    offload_.done(Offload::qkv_linear);
    return dx;
  }
  auto sum = d_.q_rank > 0 ? no_tensor : g.q;
  sum = normed_backward(kv_down_, kv_down_input_, kv_down_adapted_, dkv, sum);
  if (d_.q_rank > 0) sum = normed_backward(q_down_, q_down_input_, q_down_adapted_, g.q, sum);
  w_.release(reloaded_normed_);
  offload_.done(Offload::qkv_linear);
  if (begins_) {
    norm_.drop();
    return no_tensor;
  }
  return norm_.backward(sum);
}

std::uint32_t LatentAttention::backward(std::uint32_t dropped) {
  if (begins_in_proj_) {
    linear_.adapt_backward(proj_, proj_adapted_);
    w_.release(o_);
    w_.free(dropped);
    return no_tensor;
  }
  if (!d_.fused_down) norm_.replay();
  offload_.needed(Offload::attn_proj);
  const auto through_adapter = linear_.adapt_backward(proj_, proj_adapted_);
  const auto dout = linear_.row_backward(proj_, proj_input_, proj_.precision.recipe != Recipe::delayed);
  linear_.add_through(proj_, through_adapter);
  linear_.weight_gradients.put([this, dropped] { w_.free(dropped); });
  if (reloaded_o_ != no_tensor) w_.free(std::exchange(o_, std::exchange(reloaded_o_, no_tensor)));
  offload_.done(Offload::attn_proj);
  if (d_.recomputes(Recompute::mla_up_proj)) {  // a hook on the attention's output, before core_attn's
    w_.recomputing(true);
    up(true);
    w_.recomputing(false);
  }
  offload_.needed(Offload::core_attn);
  core_backward(dout);
  offload_.done(Offload::core_attn);
  offload_.needed(Offload::qkv_linear);
  return down_backward(up_backward());
}

}  // namespace

std::unique_ptr<Attention> latent_attention(PieceBuilder& builder, const Dimensions& dimensions,
                                            const LayerKind& kind) {
  return std::make_unique<LatentAttention>(builder, dimensions, kind);
}

}  // namespace pipewright::model
