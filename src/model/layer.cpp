// A layer in host order, as Megatron Core's TransformerLayer runs it (S tokens, bf16):
//
//   X -attention-> P -add-> A        A -MLP-> M -add-> Y
//
// Saved for backward beside what attention and MLP keep: A and the input X. P and M go when the sum exists. Backward:
// the gradient of the residual stream is one buffer into which both halves of every layer are added in place.
#include "layer.hpp"

#include <algorithm>
#include <utility>

#include "layer_writer.hpp"
#include "mla.hpp"
#include "moe.hpp"
#include "offload_groups.hpp"

namespace pipewright::model {
namespace {

const char* const residual_gradient = "gradient of the residual stream";

}  // namespace

LayerWriter::LayerWriter(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind)
    : w_(builder),
      d_(dimensions),
      attention_(dimensions.mla ? latent_attention(builder, dimensions, kind.fp8)
                                : grouped_query_attention(builder, dimensions, kind)),
      mlp_(kind.moe ? std::make_unique<MixtureOfExperts>(builder, dimensions, kind.fp8)
                    : dense_mlp(builder, dimensions, kind.fp8)),
      offload_(builder, dimensions),
      attention_add_(builder, dimensions, "attention residual", dimensions.bias),
      mlp_add_(builder, dimensions, "mlp residual", dimensions.bias && !kind.moe),
      graphed_mlp_(dimensions.graphed_mlp && !kind.moe),
      attention_norm_(dimensions.separate_norms || (dimensions.mla && !dimensions.fused_down)),
      mlp_norm_(dimensions.separate_norms || kind.moe) {}

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
  offload_.begin(Offload::attn_norm, grad && attention_norm_);
  const auto attended = attention_->forward(grad);
  residual_ = w_.tensor("attention.residual", 2 * d_.local * d_.h);
  attention_add_.forward(residual_, attended, grad);
  offload_.saves(Offload::attn_norm, {w_.layer_input()});
  offload_.commit(Offload::attn_norm);
  if (graphed_mlp_) enter_graph();
  offload_.begin(Offload::mlp_norm, grad && mlp_norm_);
  const auto out = mlp_->forward(grad);
  mlp_add_.forward(y, out, grad);
  offload_.saves(Offload::mlp_norm, {residual_});
  offload_.commit(Offload::mlp_norm);
  leave_graph();
  if (!grad) {
    w_.free(residual_);
    residual_ = no_tensor;
  }
}

std::uint32_t LayerWriter::mlp_backward() {
  offload_.needed(Offload::mlp_norm);
  const auto dx = mlp_->backward(mlp_add_.backward());
  offload_.done(Offload::mlp_norm);
  w_.free(std::exchange(residual_, no_tensor));
  return dx;
}

std::uint32_t LayerWriter::attention_backward() {
  offload_.needed(Offload::attn_norm);
  const auto dx = attention_->backward(attention_add_.backward());
  offload_.done(Offload::attn_norm);
  return dx;
}

std::uint32_t LayerWriter::backward(std::uint32_t x, std::uint32_t dy, bool out_of_place, bool frees_dy) {
  if (graphed_mlp_) {
    w_.launch("CUDA graph output gradient", {"copy.d2d", {2 * d_.local * d_.h}});
    w_.home(Tensor::Home::graph_pool);
  }
  const auto dmlp = mlp_backward();
  auto total = dy;
  if (graphed_mlp_) {
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

Piece layer_piece(Owners& owners, const Dimensions& d, const std::vector<LayerKind>& kinds) {
  const std::size_t n = kinds.size();
  const LayerKind& kind = kinds.back();
  PieceBuilder w(owners, n > 1 ? "layer group" : "layer");
  w.border(Piece::input, "layer input", d.boundary_bytes());
  const auto home = d.graphed_mlp && !kind.moe ? Tensor::Home::graph_pool : Tensor::Home::allocator;
  w.border(Piece::output, "layer input", d.boundary_bytes(), home);
  w.border(Piece::output_gradient, residual_gradient, d.boundary_bytes());
  w.border(Piece::input_gradient, residual_gradient, d.boundary_bytes());
  std::vector<LayerWriter> layers;
  for (const LayerKind& each : kinds) layers.emplace_back(w, d, each);

  w.to_forward();
  if (!kind.checkpointed) {
    layers[0].forward(Piece::output, true);
    w.to_backward();
    layers[0].backward(Piece::input, Piece::output_gradient, kind.last, true);
    if (d.whole_layer_offload) offload_whole_layer(w.piece(), w.saved_again());
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
