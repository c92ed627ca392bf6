// Core attention as one of three implementations runs it:
//
//   fused (cuDNN, FlashAttention)   q, k, v -> O, row statistics (fp32);   s x s scores never reach memory
//   soft-capped (attn_logit_softcapping; FlexAttention, as Bridge's gemma2_provider.py calls it): the same, v stays a
//     view of the fused projection's output
//   unfused (Megatron Core's DotProductAttention of transformer_impl local; TE with attention_backend unfused):
//     k, v repeated for every query head;  q k' -> scores [2 b n s^2] -softmax-> P [2 b n s^2] -dropout-> P',mask
//     (the fused kernel; without it in place of one step: mask and softmax, in fp32 or in the scores' own type)
//     P' v -> C -permute-> O;   saved: q, repeated k and v, P (P' and mask with dropout), O
//
// core_r0.19.0 transformer/dot_product_attention.py:189-258, fusions/fused_softmax.py:325. Its batched products are
// priced as one product of the same work and the same output, its softmax as streaming kernels of the same traffic.
#include "core_attention.hpp"

#include <algorithm>
#include <utility>

#include "packed_rows.hpp"
#include "sdpa_figures.hpp"

namespace pipewright::model {

std::uint32_t CoreAttention::forward(bool grad) {
  if (exchanges_heads()) return exchanged_forward(grad);
  if (d_.context.gathers) return gathered_forward(grad);
  return d_.unfused_attention ? unfused_forward(grad) : fused_forward(grad);
}

CoreAttention::Gradients CoreAttention::backward(std::initializer_list<std::uint32_t> until_values) {
  if (d_.unfused_attention) return unfused_backward(until_values);
  const auto gradients = exchanges_heads()    ? exchanged_backward()
                         : d_.context.gathers ? gathered_backward()
                                              : fused_backward();
  w_.free(until_values);
  return gradients;
}

profile::Key CoreAttention::fused_key(const std::string& pass) const {
  if (exchanges_heads()) {
    const Int ranks = d_.context.heads, s = d_.s * ranks, heads = d_.heads / ranks, groups = d_.groups / ranks;
    if (window_ == 0 && !d_.sinks) return {std::string(plain()) + pass, {d_.b, s, s, heads, groups, d_.head_dim}};
    return {(d_.sinks ? "attention.sink." : "attention.window.") + pass,
            {d_.b, s, s, heads, groups, d_.head_dim, window_ == 0 ? s : window_}};
  }
  if (d_.mla) return {"attention.mla." + pass, {d_.b, d_.s, d_.s, d_.heads, d_.head_dim, d_.v_dim}};
  if (d_.caps_scores)
    return {"attention.softcap." + pass,
            {d_.b, d_.s, d_.s, d_.heads, d_.groups, d_.head_dim, window_ == 0 ? d_.s : window_}};
  if (!d_.sinks && window_ == 0)
    return {std::string(plain()) + pass, {d_.b, d_.s, d_.s, d_.heads, d_.groups, d_.head_dim}};
  return {(d_.sinks ? "attention.sink." : "attention.window.") + pass,
          {d_.b, d_.s, d_.s, d_.heads, d_.groups, d_.head_dim, window_ == 0 ? d_.s : window_}};
}

/// With dropout and of packed sequences the host calls what it calls without.
Kernel CoreAttention::kernel(const std::string& name, const std::string& pass) const {
  Kernel kernel;
  kernel.name = name;
  kernel.key = fused_key(pass);
  const auto& family = kernel.key.family;
  if (family.starts_with("attention.dropout.") || !d_.packed.empty()) kernel.host_family = "attention." + pass;
  if (quantizes_) {
    kernel.share = fp8_attention_share(d_, pass.starts_with("forward"));
    kernel.timed_as = Kernel::TimedAs::attention_in_16_bits;
  } else if (d_.deterministic_attention && !pass.starts_with("forward")) {
    kernel.share = deterministic_attention_share(d_);
    kernel.timed_as = Kernel::TimedAs::usual_attention;
  }
  return kernel;
}

profile::Key CoreAttention::packed_key(const EqualSequences& as, const std::string& pass) const {
  const Int heads = d_.heads / d_.context.heads, groups = d_.groups / d_.context.heads;
  const char* kind = pads_values() ? "padded." : window_ > 0 ? "window." : "";
  profile::Key key{std::string("attention.thd.") + kind + pass,
                   {as.batch, as.length, as.length, heads, groups, d_.head_dim}};
  if (window_ > 0) key.dims.push_back(std::min(window_, as.length));
  return key;
}

/// The kernel of every microbatch, or those of microbatches with packed sequences.
void CoreAttention::causal_kernel(const std::string& name, const std::string& pass) {
  launch_of_rows(w_, d_, kernel(name, pass), [&](Kernel& of_kind, const PackedRows& rows) {
    const EqualSequences& as = window_ > 0 ? rows.windowed : rows.attention;
    of_kind.key = packed_key(as, pass);
    of_kind.share = as.share;
    of_kind.empty = as.empty;
    // Its row sums read every token of the row for every sequence laid out.
    if (pads_values() && pass.starts_with("backward")) of_kind.empty = as.beyond_fewest * d_.tokens * d_.heads;
    of_kind.timed_as = Kernel::TimedAs::equal_lengths;
  });
}

void CoreAttention::fused_kernel(const std::string& name, const std::string& pass) {
  // Context parallelism (ring): each of its steps computes queries of this rank against the keys of one rank. With the
  // load-balanced split all but the first cover half of the square, as the causal one does. Beside a step's kernel the
  // next keys arrive, in backward with the gradients of those before (context_parallel.py:2465-2497).
  const Int ring = d_.context.ring, own = ring_bytes();
  const bool backward = pass.starts_with("backward");
  if (ring > 1) w_.launch("attention.k and v joined", {"copy.d2d", {own}});
  for (Int step = 0; step < ring; ++step) {
    const Int keys = step + 1 < ring ? own : 0, gradients = backward && step > 0 ? own : 0;
    if (keys + gradients > 0)
      w_.collective(Purpose::cp, name + " key and value exchange", "send_recv", ring, keys + gradients, d_.ring_link,
                    Stream::communication);
    causal_kernel(name, pass);
    if (keys + gradients > 0) w_.wait(Stream::communication);
    if (ring > 1 && backward) ring_adds(step);
  }
  if (ring > 1 && !backward) ring_corrects();
}

/// The last step's output joins that of those before (context_parallel.py:2150-2240). What is done to earlier steps
/// runs on the other of two streams, beside the next step's kernel. Shown is the last rank, all of whose queries see
/// the keys of every step; others correct half of their output.
void CoreAttention::ring_corrects() {
  const Int statistics = 4 * d_.tokens * d_.heads;
  w_.launch("attention.statistics before the last step", {"copy.d2d", {statistics}});
  w_.launch("attention.statistics corrected", {"copy.d2d", {statistics}});
  w_.launch("attention.output corrected", {"out_correction", {d_.tokens, d_.o_width()}});
  w_.stands_for(2);
}

/// A step's gradients: the first are copied, those that follow added, all on the stream of the kernels.
void CoreAttention::ring_adds(Int step) {
  for (const Int width : {d_.q, d_.kv, d_.v_width()}) {
    if (step == 0)
      w_.launch("attention.gradient of the first step", {"copy.d2d", {2 * d_.tokens * width}});
    else
      w_.launch("attention.gradient added", {"add", {d_.tokens * width}});
  }
}

// TE pytorch/attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndQKVOA2A: every rank sends the parts
// of other ranks' heads and gets the rest of the sequence of its own. Sequence of allocations and launches: recorded
// events and kernel traces of two ranks (tests/measured/f_cp2_a2a*.yaml); the kernels beside an exchange run after all
// three. In two levels (a2a+p2p; AttnFuncWithCPAndKVP2P, lines 1486-1502, 2032-2045, 2407-2421 and 2889-2905 of TE
// d0067d0da) the ring runs between the exchanges, with parts of the sequence that are longer by the ranks of the first.
void CoreAttention::exchange(const std::string& name, Int bytes) {
  w_.collective(Purpose::cp, name, "all_to_all", d_.context.heads, bytes, d_.heads_link, Stream::communication);
}

/// Put in order on the exchanges' stream, whose blocks no other stream takes (flash_attn_a2a_communicate, cp_stream).
std::uint32_t CoreAttention::arrived(const char* owner, Int bytes) {
  return w_.allocate_on(Stream::communication, owner, bytes);
}

/// The parameter in fp32.
std::uint32_t CoreAttention::cast_sinks() {
  if (!d_.sinks) return no_tensor;
  const auto sinks = w_.allocate_float("attention.sinks", 4 * d_.heads);
  w_.launch("attention.sinks cast", {"small", {}});
  return sinks;
}

std::uint32_t CoreAttention::exchanged_forward(bool grad) {
  const Int q_bytes = 2 * d_.tokens * d_.q, kv_bytes = 2 * d_.tokens * d_.kv;
  const char* const owner = "attention.exchange";
  const auto send = [&](const char* what, Int width) {
    const auto tensor = w_.allocate(owner, 2 * d_.tokens * width);
    w_.launch(std::string("attention.") + what + " for the exchange", {"copy.strided", {d_.tokens, width}});
    const auto received = w_.allocate(owner, 2 * d_.tokens * width);
    exchange(std::string("attention.") + what + " all-to-all", 2 * d_.tokens * width);
    return std::pair(tensor, received);
  };
  const auto all_sinks = cast_sinks();
  const auto [q_sent, q_got] = send("q", d_.q);
  const auto [k_sent, k_got] = send("k", d_.kv);
  q_ = arrived("attention.q_exchanged", q_bytes);
  const auto [v_sent, v_got] = send("v", d_.kv);
  w_.wait(Stream::communication);
  k_ = arrived("attention.k_exchanged", kv_bytes);
  v_ = arrived("attention.v_exchanged", kv_bytes);
  w_.launch("attention.q in order", {"copy.strided", {d_.tokens, d_.q}});
  w_.launch("attention.k in order", {"copy.strided", {d_.tokens, d_.kv}});
  w_.launch("attention.v in order", {"copy.strided", {d_.tokens, d_.kv}});
  w_.free({v_sent, k_sent, q_sent, v_got, k_got, q_got});
  if (d_.sinks) {  // index_select (flash_attn_a2a_communicate_softmax_offset)
    sinks_ = w_.allocate_float("attention.sinks", 4 * d_.heads / d_.context.heads);
    w_.launch("attention.sinks of own heads", {"small", {}});
  }
  out_ = w_.allocate("attention.exchanged_output", q_bytes);
  rng_ = w_.allocate("attention.rng_state", 16);
  statistics_ = w_.allocate_float("attention.softmax_lse", 4 * d_.tokens * d_.heads);
  fused_kernel("attention.core forward", "forward.bf16");
  const auto ordered = w_.allocate(owner, q_bytes);
  w_.launch("attention.output in order", {"copy.d2d", {q_bytes}});
  const auto received = w_.allocate(owner, q_bytes);
  exchange("attention.output all-to-all", q_bytes);
  w_.wait(Stream::communication);
  const auto out = arrived("attention.core_output", q_bytes);
  w_.launch("attention.output after the exchange", {"copy.strided", {d_.tokens, d_.q}});
  w_.free({ordered, received, all_sinks});
  if (!grad) w_.release(q_, k_, v_, out_, rng_, statistics_, sinks_);
  return out;
}

CoreAttention::Gradients CoreAttention::exchanged_backward() {
  const Int q_bytes = 2 * d_.tokens * d_.q, kv_bytes = 2 * d_.tokens * d_.kv;
  const char* const owner = "attention.exchange";
  const auto allocate = [&](Int bytes) { return w_.allocate(owner, bytes); };
  const auto sent = allocate(q_bytes), got = allocate(q_bytes);
  w_.launch("attention.output gradient for the exchange", {"copy.strided", {d_.tokens, d_.q}});
  exchange("attention.output gradient all-to-all", q_bytes);
  w_.wait(Stream::communication);
  const auto dout = arrived("attention.output_gradient_exchanged", q_bytes);
  w_.launch("attention.output gradient in order", {"copy.strided", {d_.tokens, d_.q}});
  w_.free({sent, got});
  const auto dq = allocate(q_bytes), dk = allocate(kv_bytes), dv = allocate(kv_bytes);
  const Int expanded = repeats() ? 2 * 2 * d_.tokens * d_.q : 0;
  w_.transient("workspace", 4 * d_.tokens * d_.q + expanded + 4 * d_.tokens * d_.heads + 256);
  fused_kernel("attention.core backward", "backward.bf16");
  const auto of_sinks =
      d_.sinks ? w_.allocate_float("attention.sinks_gradient", 4 * d_.heads / d_.context.heads) : no_tensor;
  const auto q_order = allocate(q_bytes), q_got = allocate(q_bytes), k_order = allocate(kv_bytes),
             k_got = allocate(kv_bytes), v_order = allocate(kv_bytes);
  for (const auto& [name, bytes] : {std::pair("q", q_bytes), std::pair("k", kv_bytes), std::pair("v", kv_bytes)}) {
    w_.launch(std::string("attention.") + name + " gradient in order", {"copy.d2d", {bytes}});
    exchange(std::string("attention.") + name + " gradient all-to-all", bytes);
  }
  w_.wait(Stream::communication);
  Gradients g{};
  g.q = arrived("attention.q_gradient", q_bytes);
  const auto v_got = allocate(kv_bytes);
  g.k = arrived("attention.k_gradient", kv_bytes);
  g.v = arrived("attention.v_gradient", kv_bytes);
  for (const Int width : {d_.q, d_.kv, d_.kv})
    w_.launch("attention.gradient after the exchange", {"copy.strided", {d_.tokens, width}});
  w_.free({v_order, k_order, q_order, v_got, k_got, q_got, dq, dk, dv, dout});
  if (d_.sinks) {  // those of all heads come back to every rank
    const auto all = w_.allocate_float("attention.sinks_gradient", 4 * d_.heads);
    w_.collective(Purpose::cp, "attention.sinks gradient all-gather", "all_gather", d_.context.heads, 4 * d_.heads,
                  d_.heads_link, Stream::communication);
    w_.wait(Stream::communication);
    w_.launch("attention.sinks gradient cast", {"small", {}});
    w_.free({all, of_sinks});
  }
  w_.release(q_, k_, v_, out_, statistics_, rng_, sinks_);
  return g;
}

void CoreAttention::quantize_inputs() {
  const std::pair<const char*, Int> inputs[] = {{"q", d_.q}, {"k", d_.kv}, {"v", d_.v_width()}};
  if (d_.precision.recipe == Recipe::mxfp8) {
    for (const auto& [name, width] : inputs)
      quantized_.push_back(
          linear_.quantize(d_.precision, std::string("attention.") + name, d_.tokens, width, true, true));
    order_scales();
    return;
  }
  const Int width = d_.q + d_.kv + d_.v_width();
  const auto joined = w_.allocate("attention.q_k_v", 2 * d_.tokens * width);
  w_.launch("attention.q, k and v joined", {"copy.d2d", {2 * d_.tokens * width}});
  quantized_.push_back(linear_.quantize(d_.precision, "attention.q_k_v", d_.tokens, width, true, false));
  w_.free(joined);
}

/// By heads, then as the tensor cores read them: of rows, of columns.
void CoreAttention::order_scales() {
  for (int i = 0; i < 3; ++i) w_.launch("attention.scales in order", {"small", {}});
}

bool CoreAttention::joins_keys() const {
  return d_.context.ring > 1 && !exchanges_heads() && !quantizes_ && !d_.mla && !d_.sinks && !d_.flash2 &&
         !d_.caps_scores && !d_.unfused_attention && d_.packed.empty();
}

// TE pytorch/attention/dot_product_attention/context_parallel.py (d0067d0da), AttnFuncWithCPAndKVP2P: keys and values
// in one tensor go round; c10d's stream holds each that was sent or received until the GPU has come there. Allocations
// as recorded on the first of two ranks, half of whose queries see the keys of others; every other step and what
// corrects it live on a second stream.
std::uint32_t CoreAttention::ring_forward() {
  const Int ring = d_.context.ring, own = ring_bytes();
  const Int out = 2 * d_.tokens * d_.o_width(), sums = 4 * d_.tokens * d_.heads;
  const char* const owner = "attention.ring";
  std::vector<std::uint32_t> sent, steps;
  ring_keys_ = w_.allocate_exchanged(owner, own);
  for (Int step = 0; step < ring; ++step) {
    if (step + 1 < ring) sent.push_back(std::exchange(ring_keys_, w_.allocate_exchanged(owner, own)));
    const Int part = step == 0 ? 1 : 2;
    const auto stream = step % 2 == 0 ? Stream::compute : Stream::communication;
    for (const Int bytes : {out / part, sums / part}) steps.push_back(w_.allocate_on(stream, owner, bytes));
  }
  rng_ = w_.allocate("attention.rng_state", 16);
  fused_kernel("attention.core forward", "forward.bf16");
  statistics_ = w_.allocate_float("attention.softmax_lse", sums);
  const auto corrected = w_.allocate("attention.core_output", out);
  const auto factors = w_.allocate_on(Stream::communication, owner, sums);
  for (Int step = 1; step < ring; ++step) {
    const auto half = w_.allocate_on(Stream::communication, owner, out / 2),
               whole = w_.allocate_on(Stream::communication, owner, out);
    w_.free({half, whole});
  }
  for (const auto tensor : steps) w_.free(tensor);
  for (const auto tensor : sent) w_.free(tensor);
  w_.free(factors);
  return corrected;
}

CoreAttention::Gradients CoreAttention::ring_backward() {
  const Int ring = d_.context.ring, own = ring_bytes(), sums = 4 * d_.tokens * d_.heads;
  const char* const owner = "attention.ring";
  const auto half_sums = w_.allocate_float(owner, sums / 2);
  Gradients g{};
  g.q = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
  // Each holds keys and values beside their gradients.
  g.k = w_.allocate_exchanged("attention.k_gradient", 2 * own);
  const auto other = w_.allocate_exchanged(owner, 2 * own);
  g.v = w_.tensor("attention.v_gradient", 2 * d_.tokens * d_.v_width(), Tensor::Home::view);
  w_.allocate(g.v);
  for (Int step = 0; step < ring; ++step) {
    const Int part = step + 1 < ring ? 2 : 1, q = 2 * d_.tokens * d_.q / part;
    const auto dq = w_.allocate(owner, q), dk = w_.allocate(owner, 2 * d_.tokens * d_.kv),
               dv = w_.allocate(owner, 2 * d_.tokens * d_.v_width());
    w_.transient("workspace", 2 * q + (repeats() ? 2 * 2 * d_.tokens * d_.q : 0) + sums / part + 256);
    w_.free({dq, dk, dv});
  }
  fused_kernel("attention.core backward", "backward.bf16");
  w_.free({half_sums, other});
  w_.release(ring_keys_, statistics_, rng_);
  return g;
}

std::uint32_t CoreAttention::fused_forward(bool grad) {
  if (joins_keys()) {
    const auto out = ring_forward();
    if (!grad) w_.release(ring_keys_, rng_, statistics_);
    return out;
  }
  if (quantizes_) quantize_inputs();
  if (pads_values()) v_ = padded("attention.v", "attention.v_padded");
  const auto out = w_.allocate("attention.core_output", 2 * d_.tokens * (pads_values() ? d_.q : d_.o_width()));
  if (!d_.caps_scores) rng_ = w_.allocate("attention.rng_state", 16);
  sinks_ = cast_sinks();
  statistics_ = w_.allocate_float("attention.softmax_lse", 4 * d_.tokens * d_.heads);
  fused_kernel("attention.core forward", "forward.bf16");
  if (!grad) {
    w_.release(rng_, statistics_, sinks_, v_);
    release_copies();
  }
  // FlashAttention saves its output by batch; TE copies it into the order of the sequence (backends.py, "sbhd"). Of
  // padded heads the narrow part is copied (_trim_mla_core_attention_output).
  const bool orders = d_.flash2 && d_.b > 1;
  if (!orders && !pads_values()) return out;
  const auto copied = w_.allocate("attention.core_output", 2 * d_.tokens * d_.o_width());
  w_.launch(orders ? "attention.output in order" : "attention.output trimmed",
            {"copy.strided", {d_.tokens, d_.o_width()}});
  if (grad)
    out_ = out;
  else
    w_.free(out);
  return copied;
}

/// Zeros, then a copy of what is narrower (F.pad, and the gradient of a slice).
std::uint32_t CoreAttention::padded(const std::string& name, const char* owner) {
  const auto wide = w_.allocate(owner, 2 * d_.tokens * d_.q);
  w_.launch(name + " zeroed", {"fill", {2 * d_.tokens * d_.q}});
  w_.launch(name + " in it", {"copy.strided", {d_.tokens, d_.v_width()}});
  return wide;
}

void CoreAttention::release_copies() {
  for (const Operand& copies : std::exchange(quantized_, {})) linear_.release(copies);
}

CoreAttention::Gradients CoreAttention::fused_backward() {
  if (joins_keys()) return ring_backward();
  Gradients g{};
  Operand gradient{};
  if (quantizes_) {
    const bool blocks = d_.precision.recipe == Recipe::mxfp8;
    gradient = linear_.quantize(d_.precision, "attention.core_output_gradient", d_.tokens, d_.o_width(), true, blocks);
    if (blocks) order_scales();
  }
  const auto wide = pads_values() ? padded("attention.output gradient", "attention.core_output_gradient") : no_tensor;
  g.q = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
  g.k = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
  g.v = w_.allocate("attention.v_gradient", 2 * d_.tokens * (pads_values() ? d_.q : d_.v_width()));
  // FlexAttention: the output's gradient made contiguous; row sums of dO x O.
  if (d_.caps_scores) w_.transient("workspace", 2 * d_.tokens * d_.q + 4 * d_.tokens * d_.heads);
  // cuDNN: dq in fp32; dk and dv of every query head before they are summed over a group; row sums of dO x O.
  const Int expanded = repeats() ? 2 * 2 * d_.tokens * d_.q : 0;
  // FlashAttention 2, deterministic: dq in fp32 once for each of the blocks that fill the GPU (flash_api.cpp, nsplits).
  const Int blocks = d_.b * d_.heads, splits = d_.flash2 ? (d_.gpu.multiprocessors + blocks - 1) / blocks : 1;
  if (d_.deterministic_attention)
    w_.transient("workspace", deterministic_workspace(d_) + expanded + 256);
  else if (!d_.caps_scores)
    w_.transient("workspace", splits * 4 * d_.tokens * d_.q + expanded + 4 * d_.tokens * d_.heads + 256);
  fused_kernel("attention.core backward", "backward.bf16");
  w_.release(out_);
  if (pads_values()) {
    const auto trimmed = w_.allocate("attention.v_gradient", 2 * d_.tokens * d_.v_width());
    w_.launch("attention.v gradient trimmed", {"copy.strided", {d_.tokens, d_.v_width()}});
    w_.free({wide, std::exchange(g.v, trimmed)});
    w_.release(v_);
  }
  if (d_.sinks) {
    const auto of_sinks = w_.allocate_float("attention.sinks_gradient", 4 * d_.heads);
    w_.launch("attention.sinks gradient cast", {"small", {}});
    w_.free(of_sinks);
  }
  w_.release(statistics_, rng_, sinks_);
  linear_.release(gradient);
  release_copies();
  return g;
}

/// A product over every head and row of queries: `m` results each, sums of `k` terms.
void CoreAttention::product(const std::string& name, const char* family, Int m, Int k) {
  w_.launch(name, {family, {m, d_.b * d_.heads * d_.s, k}});
}

/// From scores to probabilities, in 16 bits. An fp32 softmax stays for backward beside its cast.
std::uint32_t CoreAttention::softmax() {
  const Int n = scores();
  if (d_.softmax != Softmax::fp32) {
    if (d_.softmax == Softmax::half) w_.launch("attention.mask", {"copy.d2d", {2 * n}});  // in place
    const auto out = w_.allocate("attention.probabilities", 2 * n);
    w_.launch("attention.softmax forward", {"copy.d2d", {2 * n}});
    return out;
  }
  const auto scores = w_.allocate("attention.scores", 4 * n);
  w_.launch("attention.scores cast", {"cast.bf16_f32", {n}});
  w_.launch("attention.mask", {"scale", {n}});
  softmax_ = w_.allocate("attention.softmax", 4 * n);
  w_.launch("attention.softmax forward", {"scale", {n}});
  const auto out = w_.allocate("attention.probabilities", 2 * n);
  w_.launch("attention.probabilities cast", {"cast.f32_bf16", {n}});
  w_.free(scores);  // its name lives until the function returns
  return out;
}

std::uint32_t CoreAttention::unfused_forward(bool grad) {
  const Int n = scores();
  if (repeats()) {
    keys_ = w_.allocate("attention.repeated_keys", 2 * d_.tokens * d_.q);
    w_.launch("attention.keys repeated", {"copy.strided", {d_.tokens, d_.q}});
    values_ = w_.allocate("attention.repeated_values", 2 * d_.tokens * d_.q);
    w_.launch("attention.values repeated", {"copy.strided", {d_.tokens, d_.q}});
  }
  // The product's unread addend (beta = 0): the global memory buffer, which TE does not have.
  const auto addend = d_.local_spec ? no_tensor : w_.allocate("attention.scores", 2 * n);
  const auto scores = w_.allocate("attention.scores", 2 * n);
  product("attention.scores", "gemm.bf16.tn", d_.s, d_.head_dim);
  w_.free(addend);
  probabilities_ = softmax();
  const auto undropped = probabilities_;
  if (d_.attention_dropout > 0) {
    probabilities_ = w_.allocate("attention.dropped_probabilities", 2 * n);
    mask_ = w_.allocate("attention.dropout_mask", n);
    w_.launch("attention.dropout", {"dropout.forward", {n}});
    if (d_.softmax != Softmax::fp32 && grad) {
      softmax_ = undropped;  // saved by the softmax
    } else {
      w_.free(undropped);
    }
  }
  const auto context = w_.allocate("attention.context", 2 * d_.tokens * d_.o_width());
  product("attention.context", "gemm.bf16.nn", d_.o_width() / d_.heads, d_.s);
  const auto out = w_.allocate("attention.core_output", 2 * d_.tokens * d_.o_width());
  w_.launch("attention.context permuted", {"copy.strided", {d_.tokens, d_.o_width()}});
  w_.free({context, scores});
  if (!grad) w_.release(keys_, values_, softmax_, probabilities_, mask_);
  return out;
}

/// Frees or takes over `gradient` and frees the softmax; returns the gradient of the scores.
std::uint32_t CoreAttention::softmax_backward(std::uint32_t gradient) {
  const Int n = scores();
  if (d_.softmax == Softmax::fused) {  // in place
    w_.launch("attention.softmax backward", {"add", {n}});
    w_.release(softmax_);
    return gradient;
  }
  const bool wide = d_.softmax == Softmax::fp32;
  const auto matrix = [&] { return w_.allocate("attention.softmax_gradient", (wide ? 4 : 2) * n); };
  if (wide) {
    const auto cast = matrix();
    w_.launch("attention.probabilities gradient cast", {"cast.bf16_f32", {n}});
    w_.free(std::exchange(gradient, cast));
  }
  auto result = matrix();
  w_.free(matrix());  // gradient x output (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out)
  w_.launch("attention.softmax backward", {wide ? "add.f32" : "add", {n}});
  w_.free({gradient, softmax_});
  softmax_ = no_tensor;
  if (!wide) {
    // The mask was written into a view of the product: autograd's AsStridedBackward scatters into zeros, CopySlices
    // copies that, clones the slice and masks it (seen in recorded allocator events).
    const auto scattered = matrix();
    w_.free(std::exchange(result, scattered));
    const auto copied = matrix(), slice = matrix(), masked = matrix();
    for (int pass = 0; pass < 4; ++pass) w_.launch("attention.mask backward", {"copy.d2d", {2 * n}});
    w_.free({slice, masked, result});
    return copied;
  }
  const auto masked = matrix();
  w_.launch("attention.mask backward", {"scale", {n}});
  w_.free(result);
  const auto out = w_.allocate("attention.scores_gradient", 2 * n);
  w_.launch("attention.scores gradient cast", {"cast.f32_bf16", {n}});
  w_.free(masked);
  return out;
}

/// A batched product times a factor: autograd of baddbmm multiplies its result by alpha.
std::uint32_t CoreAttention::scaled_product(const std::string& owner, const std::string& name, const char* family) {
  const auto unscaled = w_.allocate(owner, 2 * d_.tokens * d_.q);
  product(name, family, d_.head_dim, d_.s);
  const auto out = w_.allocate(owner, 2 * d_.tokens * d_.q);
  w_.launch(name + " x scale", {"copy.d2d", {2 * d_.tokens * d_.q}});
  w_.free(unscaled);
  return out;
}

CoreAttention::Gradients CoreAttention::unfused_backward(std::initializer_list<std::uint32_t> until_values) {
  const Int n = scores(), v_dim = d_.o_width() / d_.heads;
  Gradients g{};
  g.v = w_.allocate("attention.v_gradient", 2 * d_.tokens * d_.o_width());
  product("attention.value gradient", "gemm.bf16.nt", v_dim, d_.s);
  auto gradient = w_.allocate("attention.probabilities_gradient", 2 * n);
  product("attention.probabilities gradient", "gemm.bf16.tn", d_.s, v_dim);
  w_.free(until_values);
  w_.free({values_, separate() ? probabilities_ : std::exchange(of_product_, no_tensor)});
  if (d_.attention_dropout > 0) {
    const auto dropped = gradient;
    gradient = w_.allocate("attention.probabilities_gradient", 2 * n);
    w_.launch("attention.dropout backward", {"dropout.backward", {n}});
    w_.free({dropped, mask_});
  }
  if (!separate()) softmax_ = probabilities_;
  const auto dscores = softmax_backward(gradient);
  g.q = scaled_product("attention.q_gradient", "attention.query gradient", "gemm.bf16.nn");
  g.k = scaled_product("attention.k_gradient", "attention.key gradient", "gemm.bf16.nt");
  w_.free({dscores, keys_});
  if (repeats()) {
    for (auto* repeated : {&g.v, &g.k}) {
      const auto summed = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
      w_.launch("attention.repeated heads summed", {"copy.strided", {d_.tokens, d_.q}});
      w_.free(std::exchange(*repeated, summed));
    }
  }
  keys_ = values_ = softmax_ = probabilities_ = mask_ = no_tensor;
  return g;
}

}  // namespace pipewright::model
