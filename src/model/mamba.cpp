// A Mamba-2 layer's mixer in host order, as Megatron Core's MambaMixer (ssm/mamba_mixer.py, _ssm_training) runs it with
// mamba_ssm 2.3 (ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn) and causal_conv1d (S tokens, bf16):
//
//   X -norm-> n1 -in_proj-> M = z,x,B,C,dt    x,B,C -conv-> C    C,dt,A -chunk scan, times silu(z)-> Y
//   Y -norm by group-> N -out_proj-> P
//
// Saved for backward: statistics, n1 (layernorm_linear.py); M and the scan's output before the gate, "out_x"
// (ctx.save_for_backward of the Fn above); Y and 1/norm (layernorm_gated.py, LayerNormFn); N (out_proj's input); a few
// numbers a head. Backward convolves and computes the states of all chunks anew. Beside adapters it does the same work:
// neither these kernels nor the gated norm's ask which gradients are wanted; A and dt_bias alone stop there.
//
// With context parallelism (ssm/mamba_context_parallel.py) convolution and scan have whole sequences of a share of the
// heads: M's five parts are exchanged one by one, B and C repeated first where there are fewer groups than ranks, then
// joined and put in order; so is the scan's output, before the norm.
#include <string>
#include <utility>
#include <vector>

#include "mixer.hpp"

namespace pipewright::model {
namespace {

class MambaMixer : public Mixer {
 public:
  MambaMixer(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind)
      : Mixer(builder, dimensions, kind, "mamba", "mixer", dimensions.mamba.projected(), dimensions.mamba.inner()),
        m_(dimensions.mamba),
        c_(m_.of_context_rank(dimensions.cp)),
        whole_(dimensions.tokens * dimensions.cp) {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward(std::uint32_t dropped) override;

 private:
  Int of_inner() const { return 2 * d_.tokens * m_.inner(); }
  Int of_heads() const { return 4 * d_.tokens * m_.heads; }                  ///< an fp32 number a head
  Int of_groups() const { return 4 * whole_ * c_.groups * c_.state; }        ///< B or C in fp32
  Int of_products() const { return 4 * whole_ * c_.groups * Mamba::chunk; }  ///< C B' of every chunk in fp32
  Int of_convolved() const { return 2 * whole_ * c_.convolved(); }
  Int of_projected() const { return 2 * whole_ * c_.projected(); }
  Int chunks() const { return d_.b * ((d_.s * d_.cp + Mamba::chunk - 1) / Mamba::chunk); }
  Int of_states(Int element) const { return element * chunks() * c_.inner() * c_.state; }
  Int of_final_states() const { return 4 * d_.b * c_.inner() * c_.state; }
  profile::Key rows(const char* family) const { return {family, {d_.tokens * m_.heads, m_.head_dim, m_.state}}; }
  profile::Key chain(const char* family) const {
    return {family, {d_.s * d_.cp, d_.b * c_.heads, c_.head_dim * c_.state}};
  }
  profile::Key of_group(const char* family) const { return {family, {whole_ * c_.groups, c_.state}}; }
  profile::Key conv(const char* family) const { return {family, {whole_, c_.convolved()}}; }
  profile::Key norm(const char* family) const { return {family, {d_.tokens * m_.groups, m_.inner() / m_.groups}}; }
  std::uint32_t states(Int element);
  void scan(bool grad);
  std::uint32_t scan_backward(std::uint32_t dout);
  std::uint32_t norm_backward(std::uint32_t dout);
  void decay(const std::string& name, int launches);
  /// Of packed sequences the same kernels begin anew with each (seq_idx); those were not timed.
  void run(const std::string& name, profile::Key key) {
    Kernel kernel;
    kernel.name = name;
    kernel.key = std::move(key);
    if (!d_.packed.empty()) kernel.timed_as = Kernel::TimedAs::equal_lengths;
    w_.launch(std::move(kernel));
  }
  std::uint32_t in_order(const char* owner, std::uint32_t tensor, Int rows, Int width);
  std::uint32_t copy(const std::string& what, const char* family, Int rows, Int width);
  std::uint32_t exchange(const std::string& what, Int width);
  std::uint32_t to_heads(std::uint32_t mixed);
  std::uint32_t to_heads_backward(std::uint32_t gradient);
  std::uint32_t to_tokens(std::uint32_t scanned);
  std::uint32_t to_tokens_backward(std::uint32_t gradient);
  void smalls(const std::string& name, int launches);

  // Kernels that an entry of the timeline stands for (a traced layer).
  static constexpr int decay_launches = 3, chunk_launches = 3, norm_backward_launches = 3, chunk_backward_launches = 31,
                       group_backward_launches = 6, conv_backward_launches = 5, decay_backward_launches = 4;
  // Of a context-parallel rank's slices of the weights (_slice_conv_param, _slice_vector_param): two joined ones;
  // backward a zeroed tensor and a copy into it for each of 2 x 3 and 3 slices, and two joined ones.
  static constexpr int slice_launches = 2, slice_backward_launches = 2 * (2 * 3 + 3) + 2;

  const Mamba m_, c_;  ///< c_: what convolution and scan have, m_ with a share of the heads
  const Int whole_;    ///< tokens that they have
  std::uint32_t mixed_ = no_tensor, logs_ = no_tensor, exponentials_ = no_tensor, decays_ = no_tensor,
                dt_bias_ = no_tensor, ungated_ = no_tensor, y_ = no_tensor, statistics_ = no_tensor,
                normed_ = no_tensor, final_states_ = no_tensor;
};

/// Sequence-first to batch-first or back: a copy where there are several sequences.
std::uint32_t MambaMixer::in_order(const char* owner, std::uint32_t tensor, Int rows, Int width) {
  if (d_.b == 1) return tensor;
  const auto ordered = w_.allocate(owner, 2 * rows * width);
  w_.launch(std::string(owner) + " in order", {"copy.strided", {rows, width}});
  w_.free(tensor);
  return ordered;
}

std::uint32_t MambaMixer::copy(const std::string& what, const char* family, Int rows, Int width) {
  const auto made = w_.allocate("mamba.exchange", 2 * rows * width);
  w_.launch("mamba." + what, {family, {rows, width}});
  return made;
}

std::uint32_t MambaMixer::exchange(const std::string& what, Int width) {
  const auto received = w_.allocate("mamba.exchange", 2 * d_.tokens * width);
  w_.collective(Purpose::cp, "mamba." + what + " all-to-all", "all_to_all", d_.cp, 2 * d_.tokens * width, d_.cp_link);
  return received;
}

/// pre_conv_ssm and _undo_attention_load_balancing; frees `mixed`.
std::uint32_t MambaMixer::to_heads(std::uint32_t mixed) {
  if (d_.cp == 1) return mixed;
  std::vector<std::uint32_t> parts;
  for (const auto& [name, own, sent] : c_.exchanged(m_, d_.cp)) {
    const auto repeated = sent > own ? copy(name + " repeated", "copy.strided", d_.tokens, sent) : no_tensor;
    const auto split = copy(name + " for the exchange", "cat", d_.tokens, sent);
    parts.push_back(exchange(name, sent));
    w_.free({split, repeated});
  }
  const auto joined = copy("parts joined", "cat", whole_, c_.projected());
  const auto ordered = w_.allocate("mamba.projected", of_projected());
  w_.launch("mamba.parts in order", {"cat", {whole_, c_.projected()}});
  for (const auto part : parts) w_.free(part);
  w_.free({joined, mixed});
  return ordered;
}

std::uint32_t MambaMixer::to_heads_backward(std::uint32_t gradient) {
  if (d_.cp == 1) return gradient;
  const auto ordered = copy("parts' gradients in order", "cat", whole_, c_.projected());
  w_.free(gradient);
  std::vector<std::uint32_t> parts;
  for (const auto& [name, own, sent] : c_.exchanged(m_, d_.cp)) {
    const auto split = copy(name + " gradient for the exchange", "copy.strided", d_.tokens, sent);
    const auto received = exchange(name + " gradient", sent);
    w_.free(split);
    auto part = copy(name + " gradient joined", "cat", d_.tokens, sent);
    w_.free(received);
    if (sent > own) w_.free(std::exchange(part, copy(name + " gradient summed", "copy.strided", d_.tokens, sent)));
    parts.push_back(part);
  }
  w_.free(ordered);
  const auto joined = w_.allocate("mamba.projected_gradient", 2 * d_.tokens * m_.projected());
  w_.launch("mamba.projected gradient", {"cat", {d_.tokens, m_.projected()}});
  for (const auto part : parts) w_.free(part);
  return joined;
}

/// _redo_attention_load_balancing and all_to_all_hp2sp; frees `scanned`.
std::uint32_t MambaMixer::to_tokens(std::uint32_t scanned) {
  if (d_.cp == 1) return scanned;
  const auto ordered = copy("scanned in order", "cat", whole_, c_.inner());
  const auto received = exchange("scanned", m_.inner());
  w_.free(ordered);
  const auto joined = w_.allocate("mamba.scanned", of_inner());
  w_.launch("mamba.scanned joined", {"cat", {d_.tokens, m_.inner()}});
  w_.free({received, scanned});
  return joined;
}

std::uint32_t MambaMixer::to_tokens_backward(std::uint32_t gradient) {
  if (d_.cp == 1) return gradient;
  const auto split = copy("scanned gradient for the exchange", "cat", d_.tokens, m_.inner());
  w_.free(gradient);
  const auto received = exchange("scanned gradient", m_.inner());
  w_.free(split);
  const auto ordered = w_.allocate("mamba.scanned_gradient", of_inner());
  w_.launch("mamba.scanned gradient in order", {"cat", {whole_, c_.inner()}});
  w_.free(received);
  return ordered;
}

void MambaMixer::smalls(const std::string& name, int launches) {
  for (int i = 0; i < launches; ++i) w_.launch(name, {"small", {}});
}

/// Every chunk's state from the one before (_chunk_state_fwd, _state_passing_fwd): fp32, passed on in `element` bytes.
std::uint32_t MambaMixer::states(Int element) {
  const auto own = w_.allocate_float("mamba.states", of_states(4));
  const auto passed = w_.tensor("mamba.states", of_states(element));
  w_.allocate(passed);
  final_states_ = w_.allocate_float("mamba.final_states", of_final_states());
  run(element == 4 ? "mamba.states again" : "mamba.states forward",
      chain(element == 4 ? "mamba.states.recompute" : "mamba.states.forward"));
  w_.free(own);
  return passed;
}

void MambaMixer::scan(bool grad) {
  // A = -exp(A_log) and dt_bias in fp32.
  logs_ = w_.allocate_float("mamba.decay", 4 * m_.heads);
  exponentials_ = w_.allocate_float("mamba.decay", 4 * m_.heads);
  decays_ = w_.allocate_float("mamba.decay", 4 * m_.heads);
  decay("mamba.decay forward", decay_launches);
  w_.release(logs_);
  if (d_.frozen()) w_.release(exponentials_);
  dt_bias_ = w_.allocate_float("mamba.dt_bias", 4 * m_.heads);
  w_.launch("mamba.dt_bias cast", {"small", {}});
  if (d_.cp > 1) smalls("mamba.weights of own heads", slice_launches);
  const auto convolved = w_.allocate("mamba.convolved", of_convolved());
  run("mamba.conv forward", conv("mamba.conv.forward"));
  const auto sums = w_.allocate_float("mamba.decay_sums", of_heads()), dt = w_.allocate_float("mamba.dt", of_heads());
  const auto passed = states(2);
  const auto products = w_.allocate_float("mamba.products", of_products());
  run("mamba.products forward", of_group("mamba.groups.forward"));
  y_ = w_.allocate("mamba.scanned", of_inner());
  ungated_ = w_.allocate("mamba.ungated", of_inner());
  run("mamba.chunks forward", rows("mamba.chunks.forward"));
  w_.stands_for(chunk_launches);
  w_.free({products, passed, std::exchange(final_states_, no_tensor), sums, dt, convolved});
  if (!grad) w_.release(ungated_, exponentials_, decays_, dt_bias_);
}

std::uint32_t MambaMixer::forward(bool needed) {
  const bool grad = needed && !begins_in_out_;
  mixed_ = to_heads(linear_.norm_linear(in_, "mamba.projected", norm_, grad));
  mixed_ = in_order("mamba.projected", mixed_, whole_, c_.projected());
  scan(grad);
  y_ = to_tokens(in_order("mamba.scanned", y_, whole_, c_.inner()));
  normed_ = w_.allocate("mamba.normed", of_inner());
  statistics_ = w_.allocate_float("mamba.norm_statistics", 4 * d_.tokens * m_.groups);
  w_.launch("mamba.norm forward", norm("mamba.norm.forward"));
  if (!grad) w_.release(statistics_, y_);
  const auto out = project_out(normed_, needed);
  if (!grad) w_.release(mixed_);
  return out;
}

/// A number a head, in several steps.
void MambaMixer::decay(const std::string& name, int launches) {
  for (int i = 0; i < launches; ++i) {
    Kernel kernel;
    kernel.name = name;
    kernel.key = {"small", {}};
    if (i == 0) kernel.host_family = "mamba.decay";  // all of them
    if (i > 0) kernel.within_call = true;
    w_.launch(std::move(kernel));
  }
}

/// _layer_norm_bwd: every program sums its rows' part of the weight's gradient. Frees `dout` and what forward kept.
std::uint32_t MambaMixer::norm_backward(std::uint32_t dout) {
  const auto dy = w_.allocate("mamba.scanned_gradient", of_inner());
  const Int width = m_.inner() / m_.groups;
  Int warps = 1;  // next_power_of_2(width) / 256, 1 to 8
  while (warps < 8 && 256 * warps < width) warps *= 2;
  const Int programs = (d_.gpu.multiprocessors * ((3 + warps) / warps) + m_.groups - 1) / m_.groups;
  const auto parts = w_.allocate_float("mamba.norm_weight_gradient", 4 * programs * m_.inner());
  w_.launch("mamba.norm backward", norm("mamba.norm.backward"));
  w_.stands_for(norm_backward_launches);
  w_.free({parts, dout});
  w_.release(y_, statistics_);
  linear_.small_gradient("mamba.norm", m_.inner());
  return dy;
}

/// MambaSplitConv1dScanCombinedFn.backward; frees `dout` and what forward kept but M. Returns the gradient of M.
std::uint32_t MambaMixer::scan_backward(std::uint32_t dout) {
  const auto convolved = w_.allocate("mamba.convolved", of_convolved());
  run("mamba.conv again", conv("mamba.conv.forward"));
  const auto dmixed = w_.allocate("mamba.projected_gradient", of_projected()),
             dconvolved = w_.allocate("mamba.convolved_gradient", of_convolved());
  const auto dt_in = w_.allocate("mamba.dt", 2 * d_.tokens * m_.heads);
  const auto sums = w_.allocate_float("mamba.decay_sums", of_heads()), dt = w_.allocate_float("mamba.dt", of_heads());
  const auto products = w_.allocate_float("mamba.products", of_products());
  const auto passed = states(4);
  const auto dungated = w_.allocate("mamba.ungated_gradient", of_inner());
  const auto dpassed = w_.allocate_float("mamba.state_gradients", of_states(4));
  const auto dstates = w_.allocate("mamba.state_gradients", of_states(2)),
             half = w_.allocate("mamba.states", of_states(2));
  run("mamba.states backward", chain("mamba.states.backward"));
  w_.free({dpassed, passed});
  const auto ddt = w_.allocate_float("mamba.dt_gradient", of_heads());
  const auto sum_of = [&](const char* owner, Int bytes) {  // over splits of a group's heads
    const auto parts = w_.allocate_float(owner, bytes), sum = w_.allocate_float(owner, bytes);
    w_.free(parts);
    return sum;
  };
  const auto db = sum_of("mamba.b_gradient", of_groups());
  const auto dnext = w_.allocate_float("mamba.decay_gradient", of_heads());
  const auto dc = sum_of("mamba.c_gradient", of_groups());
  const auto dprevious = w_.allocate_float("mamba.decay_gradient", of_heads());
  const auto dproducts = sum_of("mamba.products_gradient", of_products());
  run("mamba.products backward", of_group("mamba.groups.backward"));
  w_.stands_for(group_backward_launches);
  const auto blocks = w_.allocate_float("mamba.decay_gradient", Mamba::chunk / 32 * of_heads()),
             ddecay = w_.allocate_float("mamba.decay_gradient", of_heads());
  run("mamba.chunks backward", rows("mamba.chunks.backward"));
  w_.stands_for(chunk_backward_launches);
  w_.free({blocks, ddecay, dproducts, dprevious, dc, dnext, db, ddt, half, dstates, dungated,
           std::exchange(final_states_, no_tensor), products, dt, sums, dt_in});
  run("mamba.conv backward", conv("mamba.conv.backward"));
  w_.stands_for(conv_backward_launches);
  w_.free({dconvolved, convolved, dout});
  w_.release(ungated_, mixed_);
  for (const auto& [name, elements] : {std::pair("conv", m_.convolved() * Mamba::conv),
                                       {"conv bias", m_.convolved()},
                                       {"dt_bias", m_.heads},
                                       {"D", m_.heads}})
    linear_.small_gradient(std::string("mamba.") + name, elements);
  w_.release(dt_bias_, decays_);
  if (d_.frozen()) return dmixed;  // autograd stops at what made A and dt_bias
  if (d_.cp > 1) smalls("mamba.weights' gradients of own heads", slice_backward_launches);
  decay("mamba.decay backward", decay_backward_launches);
  w_.release(exponentials_);
  linear_.small_gradient("mamba.A_log", m_.heads);
  return dmixed;
}

std::uint32_t MambaMixer::backward(std::uint32_t dropped) {
  const auto dnormed = project_out_backward(normed_, dropped);
  if (begins_in_out_) return no_tensor;
  const auto dmixed = scan_backward(to_tokens_backward(norm_backward(dnormed)));
  return linear_.norm_linear_backward(
      in_, norm_, to_heads_backward(in_order("mamba.projected_gradient", dmixed, whole_, c_.projected())));
}

}  // namespace

std::unique_ptr<Attention> mamba_mixer(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind) {
  return std::make_unique<MambaMixer>(builder, dimensions, kind);
}

}  // namespace pipewright::model
