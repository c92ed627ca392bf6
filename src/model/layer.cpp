// A dense layer in host order, as Megatron Core's TransformerLayer with Transformer Engine modules runs it. Sequence of
// allocations and launches: recorded allocator events and kernel traces of core_r0.19.0 with TE 2.20 (S tokens, bf16):
//
//   X -norm-> n1 -qkv GEMM-> QKV -copy-> q0 -rope-> q,k  -copy-> v  -attention-> O,lse -proj-> P -add-> A
//   A -norm-> n2 -fc1 GEMM-> F -activation-> G -fc2 GEMM-> M -add-> Y
//
// Saved for backward: statistics, n1, q, k, v, O, lse, A, n2, F, G and the input X (reference 5.1). QKV, q0, P, M go
// when the next operation's output exists. Backward frees each when its gradient is done; the gradient of the residual
// stream is one buffer into which both halves of every layer are added in place.
#include "layer.hpp"

#include <algorithm>

#include "linear.hpp"

namespace pipewright::model {
namespace {

const char* const residual_gradient = "gradient of the residual stream";

class LayerWriter {
 public:
  LayerWriter(PieceBuilder& builder, const Dimensions& dimensions, bool fp8)
      : w_(builder),
        d_(dimensions),
        linear_(builder, dimensions),
        qkv_{"attention.qkv", d_.h, d_.qkv(), fp8},
        proj_{"attention.proj", d_.q, d_.h, fp8},
        fc1_{"mlp.fc1", d_.h, d_.ffn_in(), fp8},
        fc2_{"mlp.fc2", d_.f, d_.h, fp8} {}

  void forward(std::uint32_t y, bool grad);
  void enter_graph();
  void leave_graph() { w_.home(Tensor::Home::allocator); }
  /// Adds into `dy` unless `out_of_place`; returns the gradient of the layer's input. `frees_dy`: nobody else holds it.
  std::uint32_t backward(std::uint32_t x, std::uint32_t dy, bool out_of_place, bool frees_dy);

 private:
  void attention_forward(bool grad);
  void core_attention(bool grad);
  std::uint32_t mlp_forward(bool grad);
  std::uint32_t attention_backward();
  std::uint32_t mlp_backward();
  void add(const std::string& name) { w_.launch(name, {"add", {d_.local * d_.h}}); }
  std::uint32_t dropout_mask();
  void accumulate(std::uint32_t part) { add("gradient accumulation"), w_.free(part); }
  void attention_kernel(const std::string& name, const char* family);

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;
  Linear qkv_, proj_, fc1_, fc2_;

  Normed norm1_, norm2_;
  Operand proj_input_, fc2_input_;
  std::uint32_t mixed_ = no_tensor, q_ = no_tensor, k_ = no_tensor, v_ = no_tensor, o_ = no_tensor, lse_ = no_tensor,
                rng_ = no_tensor, q_raw_ = no_tensor, k_raw_ = no_tensor, qk_statistics_ = no_tensor;
  std::uint32_t residual_ = no_tensor, fc1_out_ = no_tensor, activation_ = no_tensor, fc2_out_ = no_tensor;
  std::uint32_t mask1_ = no_tensor, mask2_ = no_tensor;
};

void LayerWriter::attention_kernel(const std::string& name, const char* family) {
  // Context parallelism (ring): each of cp steps computes queries of this rank against the keys of one rank. With the
  // load-balanced split all but the first cover half of the square, as the causal one does.
  for (Int step = 0; step < d_.cp; ++step) {
    w_.launch(name, {family, {d_.b, d_.s, d_.s, d_.heads, d_.groups, d_.head_dim}});
    if (step + 1 < d_.cp) {
      w_.launch_on(Stream::communication, Purpose::cp, name + " key and value exchange",
                   {"send_recv." + d_.cp_link, {2 * 2 * d_.tokens * d_.kv}}, d_.cp_link);
      w_.wait(Stream::communication);
    }
  }
}

/// What a core attention checkpoint replays: v made contiguous, output, softmax statistics.
void LayerWriter::core_attention(bool grad) {
  v_ = w_.allocate("attention.v", 2 * d_.tokens * d_.kv);
  w_.launch("attention.v copy", {"copy.strided", {d_.tokens, d_.kv}});
  o_ = w_.allocate("attention.core_output", 2 * d_.tokens * d_.q);
  rng_ = w_.allocate("attention.rng_state", 16);
  lse_ = w_.allocate("attention.softmax_lse", 4 * d_.tokens * d_.heads);
  attention_kernel("attention.core forward", "attention.forward.bf16");
  if (!grad) {
    w_.free({rng_, lse_, v_});
    rng_ = lse_ = v_ = no_tensor;
  }
}

std::uint32_t LayerWriter::dropout_mask() {
  if (d_.hidden_dropout <= 0) return no_tensor;
  w_.launch("dropout", {"dropout.forward", {d_.local * d_.h}});
  return w_.allocate("dropout_mask", d_.local * d_.h);
}

void LayerWriter::attention_forward(bool grad) {
  mixed_ = linear_.norm_linear(qkv_, "attention.qkv", norm1_, grad);
  q_raw_ = w_.allocate("attention.q_contiguous", 2 * d_.tokens * d_.q);
  w_.launch("attention.q copy", {"copy.strided", {d_.tokens, d_.q}});
  if (d_.qk_norm) {
    // The norms make their inputs contiguous and save them.
    k_raw_ = w_.allocate("attention.k_contiguous", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k copy", {"copy.strided", {d_.tokens, d_.kv}});
    qk_statistics_ = w_.allocate("attention.qk_norm_statistics", 4 * d_.tokens * (d_.heads + d_.groups));
  }
  std::uint32_t q_normed = no_tensor, k_normed = no_tensor;
  if (d_.qk_norm) {
    q_normed = w_.allocate("attention.q_normed", 2 * d_.tokens * d_.q);
    linear_.norm("attention.q norm", true, d_.tokens * d_.heads, d_.head_dim);
    k_normed = w_.allocate("attention.k_normed", 2 * d_.tokens * d_.kv);
    linear_.norm("attention.k norm", true, d_.tokens * d_.groups, d_.head_dim);
  }
  const bool rotates = d_.rope;
  if (rotates) {
    q_ = w_.allocate("attention.q", 2 * d_.tokens * d_.q);
    w_.launch("attention.q rope", {"rope.forward", {d_.tokens, d_.heads, d_.head_dim}});
    k_ = w_.allocate("attention.k", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k rope", {"rope.forward", {d_.tokens, d_.groups, d_.head_dim}});
  } else {
    q_ = d_.qk_norm ? q_normed : q_raw_;
    if (d_.qk_norm) {
      k_ = k_normed;
    } else {
      k_ = w_.allocate("attention.k", 2 * d_.tokens * d_.kv);
      w_.launch("attention.k copy", {"copy.strided", {d_.tokens, d_.kv}});
    }
  }
  core_attention(grad && !d_.recompute_attention);
  const auto out = linear_.row_linear(proj_, "attention.proj_output", proj_input_, grad, d_.recipe != Recipe::delayed);
  // Frames return: copies that only the forward pass needed go. A core attention checkpoint saved v as a view of the
  // whole projection output, which therefore stays.
  if (rotates) w_.free({q_normed, k_normed});
  const bool keep_raw = grad && d_.qk_norm;
  if (!keep_raw) {
    if (rotates || d_.qk_norm) w_.free(q_raw_);
    w_.free({k_raw_, qk_statistics_});
    q_raw_ = k_raw_ = qk_statistics_ = no_tensor;
  }
  if (!grad) w_.free(k_);
  if (!grad || !d_.recompute_attention) {
    w_.free(mixed_);
    mixed_ = no_tensor;
  }
  if (!grad) {
    w_.free({q_, o_});
    q_ = k_ = o_ = no_tensor;
  }
  if (grad) mask1_ = dropout_mask();
  residual_ = w_.allocate("attention.residual", 2 * d_.local * d_.h);
  add("attention residual");
  w_.free(out);
}

std::uint32_t LayerWriter::mlp_forward(bool grad) {
  fc1_out_ = linear_.norm_linear(fc1_, "mlp.fc1_output", norm2_, grad);
  activation_ = w_.allocate("mlp.activation", 2 * d_.tokens * d_.f);
  w_.launch("mlp.activation forward", {d_.activation + ".forward", {d_.tokens, d_.f}});
  if (!grad) w_.free(fc1_out_);
  const auto out = linear_.row_linear(fc2_, "mlp.fc2_output", fc2_input_, grad, false);
  if (!grad || fc2_.fp8) {  // FP8 saved its own copy
    w_.free(activation_);
    activation_ = no_tensor;
  }
  return out;
}

/// The MLP as a TE CUDA graph: its input is copied into a static buffer that stays until the backward pass; what it
/// makes lives in the graphs' private pool, its output too.
void LayerWriter::enter_graph() {
  w_.home(Tensor::Home::static_buffer);
  const auto buffer = w_.allocate("CUDA graph inputs", 2 * d_.local * d_.h);
  w_.launch("CUDA graph input", {"copy.d2d", {2 * d_.local * d_.h}});
  w_.free(residual_);
  residual_ = buffer;
  w_.home(Tensor::Home::graph_pool);
}

void LayerWriter::forward(std::uint32_t y, bool grad) {
  attention_forward(grad);
  if (d_.graphed_mlp) enter_graph();
  const auto out = mlp_forward(grad && !d_.recompute_mlp);
  if (grad) mask2_ = dropout_mask();
  w_.allocate(y);
  add("mlp residual");
  w_.free(out);
  leave_graph();
  if (!grad) {
    w_.free(residual_);
    residual_ = no_tensor;
  }
}

std::uint32_t LayerWriter::mlp_backward() {
  std::uint32_t replayed = no_tensor;
  if (d_.recompute_mlp) {
    w_.recomputing(true);
    replayed = mlp_forward(true);
    w_.recomputing(false);
  }
  if (d_.hidden_dropout > 0) w_.launch("dropout backward", {"dropout.backward", {d_.local * d_.h}});
  const auto dactivation = linear_.row_backward(fc2_, fc2_input_, false);
  w_.free(activation_);
  const auto dfc1 = w_.allocate("mlp.fc1_output_gradient", 2 * d_.tokens * d_.ffn_in());
  w_.launch("mlp.activation backward", {d_.activation + ".backward", {d_.tokens, d_.f}});
  w_.free({dactivation, fc1_out_});
  activation_ = fc1_out_ = no_tensor;
  const auto dx = linear_.norm_linear_backward(fc1_, norm2_, dfc1);
  w_.free(replayed);
  w_.free(mask2_);
  w_.free(residual_);
  residual_ = mask2_ = no_tensor;
  return dx;
}

std::uint32_t LayerWriter::attention_backward() {
  if (d_.hidden_dropout > 0) w_.launch("dropout backward", {"dropout.backward", {d_.local * d_.h}});
  const auto dout = linear_.row_backward(proj_, proj_input_, d_.recipe != Recipe::delayed);
  if (d_.recompute_attention) {
    w_.free(o_);  // only the projection had saved it
    w_.recomputing(true);
    core_attention(true);
    w_.recomputing(false);
  }
  const auto dq = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
  const auto dk = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
  const auto dv = w_.allocate("attention.v_gradient", 2 * d_.tokens * d_.kv);
  // cuDNN: dq in fp32; dk and dv of every query head before they are summed over a group; row sums of dO x O.
  const Int expanded = d_.groups < d_.heads ? 2 * 2 * d_.tokens * d_.q : 0;
  w_.transient("workspace", 4 * d_.tokens * d_.q + expanded + 4 * d_.tokens * d_.heads + 256);
  attention_kernel("attention.core backward", "attention.backward.bf16");
  w_.free({dout, q_, k_, v_, o_, lse_, rng_, mixed_});
  q_ = k_ = v_ = o_ = lse_ = rng_ = mixed_ = no_tensor;

  auto dk_raw = dk, dq_raw = dq;
  if (d_.rope) {
    dk_raw = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k rope backward", {"rope.backward", {d_.tokens, d_.groups, d_.head_dim}});
    w_.free(dk);
    dq_raw = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
    w_.launch("attention.q rope backward", {"rope.backward", {d_.tokens, d_.heads, d_.head_dim}});
    w_.free(dq);
  }
  if (d_.qk_norm) {
    const auto dk_normed = dk_raw, dq_normed = dq_raw;
    dk_raw = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
    linear_.norm("attention.k norm", false, d_.tokens * d_.groups, d_.head_dim);
    w_.free({dk_normed, k_raw_});
    dq_raw = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
    linear_.norm("attention.q norm", false, d_.tokens * d_.heads, d_.head_dim);
    w_.free({dq_normed, q_raw_, qk_statistics_});
    q_raw_ = k_raw_ = qk_statistics_ = no_tensor;
  }
  const auto dmixed = w_.allocate("attention.qkv_gradient", 2 * d_.tokens * d_.qkv());
  w_.launch("attention.qkv gradient", {"cat", {d_.tokens, d_.qkv()}});
  w_.free({dq_raw, dk_raw, dv});
  const auto dx = linear_.norm_linear_backward(qkv_, norm1_, dmixed);
  w_.free(mask1_);
  mask1_ = no_tensor;
  return dx;
}

std::uint32_t LayerWriter::backward(std::uint32_t x, std::uint32_t dy, bool out_of_place, bool frees_dy) {
  if (d_.graphed_mlp) {
    w_.launch("CUDA graph output gradient", {"copy.d2d", {2 * d_.local * d_.h}});
    w_.home(Tensor::Home::graph_pool);
  }
  const auto dmlp = mlp_backward();
  auto total = dy;
  if (d_.graphed_mlp) {
    // The graph returns its own buffer, residual included; the sum with attention's part is a new tensor.
    add("gradient accumulation");
    leave_graph();
    if (frees_dy) w_.free(dy);
    const auto dattention = attention_backward();
    w_.free(x);
    w_.allocate(Piece::input_gradient);
    add("gradient accumulation");
    w_.free({dmlp, dattention});
    return Piece::input_gradient;
  }
  if (out_of_place) {
    total = Piece::input_gradient;
    w_.allocate(total);
    add("gradient accumulation");
    if (frees_dy) w_.free(dy);
    w_.free(dmlp);
  } else {
    accumulate(dmlp);
  }
  const auto dattention = attention_backward();
  w_.free(x);
  accumulate(dattention);
  return total;
}

}  // namespace

Piece layer_piece(Owners& owners, const Dimensions& d, const LayerKind& kind) {
  const auto n = static_cast<std::size_t>(std::max(1, kind.checkpointed));
  PieceBuilder w(owners, n > 1 ? "layer group" : "layer");
  w.border(Piece::input, "layer input", d.boundary_bytes());
  const auto home = d.graphed_mlp ? Tensor::Home::graph_pool : Tensor::Home::allocator;
  w.border(Piece::output, "layer input", d.boundary_bytes(), home);
  w.border(Piece::output_gradient, residual_gradient, d.boundary_bytes());
  w.border(Piece::input_gradient, residual_gradient, d.boundary_bytes());
  std::vector<LayerWriter> layers(n, LayerWriter(w, d, kind.fp8));

  w.to_forward();
  if (!kind.checkpointed) {
    layers[0].forward(Piece::output, true);
    w.to_backward();
    layers[0].backward(Piece::input, Piece::output_gradient, kind.last, true);
    return w.take();
  }
  std::uint32_t previous = no_tensor;
  for (std::size_t i = 0; i < n; ++i) {
    const auto y = i + 1 == n ? Piece::output : w.tensor("layer input", d.boundary_bytes());
    layers[i].forward(y, false);
    w.free(previous);
    previous = y;
  }

  w.to_backward();
  w.recomputing(true);
  std::vector<std::uint32_t> x = {Piece::input};
  for (std::size_t i = 0; i < n; ++i) {
    x.push_back(w.tensor("recomputed output", d.boundary_bytes()));
    layers[i].forward(x.back(), true);
  }
  w.recomputing(false);
  auto gradient = Piece::output_gradient;
  for (std::size_t i = n; i-- > 0;) {
    gradient = layers[i].backward(i > 0 ? x[i] : no_tensor, gradient, i + 1 == n, false);
  }
  w.free({x.back(), Piece::output_gradient, Piece::input});
  return w.take();
}

}  // namespace pipewright::model
