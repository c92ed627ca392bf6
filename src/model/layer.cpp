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
#include "rope.hpp"

namespace pipewright::model {
namespace {

const char* const residual_gradient = "gradient of the residual stream";

std::unique_ptr<Attention> mixer(PieceBuilder& w, const Dimensions& d, const LayerKind& kind) {
  if (kind.parts == Parts::mlp) return nullptr;
  if (kind.mamba) return mamba_mixer(w, d, kind);
  if (kind.linear) return gated_delta_net(w, d, kind);
  return d.mla ? latent_attention(w, d, kind) : grouped_query_attention(w, d, kind);
}

std::unique_ptr<Mlp> mlp(PieceBuilder& w, const Dimensions& d, const LayerKind& kind) {
  if (kind.parts == Parts::mixer) return nullptr;
  if (kind.moe) return std::make_unique<MixtureOfExperts>(w, d, kind.precision, kind.any_width, kind.ends_in_mlp);
  return dense_mlp(w, d, kind.precision, kind.any_width, kind.ends_in_mlp);
}

}  // namespace

GraphedParts graphed_parts(const Dimensions& d, const LayerKind& kind) {
  GraphedParts g;
  if (kind.in_depth) return g;
  if (kind.parts != Parts::mlp) g.mixer = kind.mamba ? d.graphs.mamba : d.graphs.attention;
  if (kind.parts != Parts::mixer) {
    g.mlp = kind.moe ? d.graphs.experts : d.graphs.mlp;
    g.router = kind.moe && d.graphs.router;
  }
  g.begins = kind.parts == Parts::mlp ? g.mlp || g.router : g.mixer;
  g.ends = kind.parts == Parts::mixer ? g.mixer : g.mlp;
  return g;
}

LayerWriter::LayerWriter(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind)
    : w_(builder),
      d_(dimensions),
      attention_(mixer(builder, dimensions, kind)),
      mlp_(mlp(builder, dimensions, kind)),
      offload_(builder, dimensions),
      attention_add_(builder, dimensions, kind.mamba ? "mamba residual" : "attention residual", dimensions.bias),
      mlp_add_(builder, dimensions, "mlp residual", dimensions.bias && !kind.moe),
      graph_(builder, dimensions, kind.given_input, kind.given_gradient),
      graphed_(graphed_parts(dimensions, kind)),
      still_(kind.still),
      ends_in_mlp_(kind.ends_in_mlp),
      drops_input_((kind.still || kind.ends) && !kind.embedded),
      transformer_(!kind.mamba),
      attention_norm_(dimensions.separate_norms || (dimensions.mla && !dimensions.fused_down)),
      mlp_norm_(dimensions.separate_norms || kind.moe) {
  if (graphed_.router) static_cast<MixtureOfExperts&>(*mlp_).begin_in(graph_);
}

void LayerWriter::attention_forward(std::uint32_t sum, bool grad) {
  if (graphed_.mixer) kept_input_ = transformer_ ? graph_.enter_attention() : graph_.enter(false);
  offload_.begin(Offload::attn_norm, grad && attention_norm_);
  const auto attended = attention_->forward(grad);
  if (sum == no_tensor) sum = residual_ = w_.tensor("attention.residual", 2 * d_.local * d_.h);
  attention_add_.forward(sum, attended, grad);
  offload_.saves(Offload::attn_norm, {w_.layer_input()});
  offload_.commit(Offload::attn_norm);
}

std::uint32_t LayerWriter::mlp_forward(std::uint32_t y, bool grad) {
  offload_.begin(Offload::mlp_norm, grad && mlp_norm_);
  const auto out = mlp_->forward(grad);
  const auto sum = graphed_.mlp ? graph_.output() : y;
  mlp_add_.forward(sum, out, grad);
  offload_.saves(Offload::mlp_norm, {attention_ ? residual_ : w_.layer_input()});
  offload_.commit(Offload::mlp_norm);
  return sum;
}

void LayerWriter::forward(std::uint32_t y, bool needed) {
  const bool grad = needed && !still_, of_mixer = grad && !ends_in_mlp_;
  if (!attention_ || !mlp_) {
    if (graphed_.any()) return graphed_part_forward(y, grad);
    if (mlp_)
      mlp_forward(y, grad);
    else
      attention_forward(y, grad);
    if (drops_input_) w_.free(w_.layer_input());
    return;
  }
  attention_forward(no_tensor, of_mixer);
  auto replaced = no_tensor;  // what a graph has copied; a frame names it until the layer returns
  if (graphed_.mixer) {
    replaced = w_.layer_input();
    if (!graphed_.mlp) graph_.put_out({&residual_});
    if (!graphed_.mlp && !graphed_.router) graph_.leave();
  } else if (graphed_.any()) {
    replaced = std::exchange(residual_, graph_.enter(false));
  }
  const auto sum = mlp_forward(y, grad);
  if (graphed_.mlp) graph_.leave_with(sum, y);
  w_.free(replaced);
  if (!of_mixer) w_.release(residual_);
  if (drops_input_) w_.free(w_.layer_input());
}

/// A hybrid's layer: all of it, or of a mixture what comes before the dispatch. Replayed with a mask that only
/// attention copies (transformer_layer.py, _get_te_cuda_graph_replay_args) where attention's layers are captured, too.
void LayerWriter::graphed_part_forward(std::uint32_t y, bool grad) {
  if (mlp_) residual_ = graph_.enter(d_.graphs.attention);
  auto sum = y;
  if (attention_) {
    sum = graph_.output();
    attention_forward(sum, grad);
  } else {
    sum = mlp_forward(y, grad);
  }
  if (!graphed_.router) graph_.leave_with(sum, y);
  w_.free(w_.layer_input());
  if (!grad) w_.release(residual_);
}

std::uint32_t LayerWriter::mlp_backward() {
  offload_.needed(Offload::mlp_norm);
  const auto dx = mlp_->backward(mlp_add_.backward());
  offload_.done(Offload::mlp_norm);
  w_.release(residual_);
  return dx;
}

std::uint32_t LayerWriter::attention_backward() {
  offload_.needed(Offload::attn_norm);
  const auto dx = attention_->backward(attention_add_.backward());
  offload_.done(Offload::attn_norm);
  return dx;
}

/// Static gradients are not added to in place, nor those that a graph returns: each sum with one is a new tensor.
std::uint32_t LayerWriter::graphed_backward(std::uint32_t x, std::uint32_t dy, bool frees_dy) {
  const bool begins_in_mlp = graphed_.mlp || graphed_.router;
  const auto dx = x == Piece::input ? Piece::input_gradient
                  : graphed_.mixer  ? graph_.input_gradient(false)
                                    : w_.tensor(residual_gradient, d_.boundary_bytes());
  const auto given = frees_dy ? dy : no_tensor;
  const auto finish = [&](std::uint32_t dresidual) {
    const auto dattention = attention_backward();
    w_.allocate(dx);
    add("gradient accumulation");
    w_.free({dattention, dresidual});
  };
  if (begins_in_mlp) graph_.copy(given, d_.boundary_bytes());
  if (graphed_.mlp) graph_.enter_backward();
  const auto dmlp = mlp_backward();
  graph_.mlp_done();
  auto sum = dx;
  if (!begins_in_mlp)
    sum = w_.tensor(residual_gradient, d_.boundary_bytes());
  else if (!graphed_.mixer)
    sum = graph_.input_gradient(graphed_.router);
  w_.allocate(sum);
  add("gradient accumulation");
  w_.free(dmlp);
  if (begins_in_mlp && graphed_.mixer) {  // one graph: the sum is its own
    accumulate(attention_backward());
  } else if (graphed_.mixer) {
    w_.free(given);
    graph_.copy(sum, d_.boundary_bytes());
    graph_.enter_backward();
    finish(no_tensor);
  }
  graph_.leave_backward();
  w_.release(kept_input_);
  if (graphed_.mixer) return dx;
  finish(sum);
  w_.free(x);
  return dx;
}

std::uint32_t LayerWriter::graphed_part_backward(std::uint32_t x, std::uint32_t dy, bool frees_dy) {
  const auto dx = x == Piece::input ? Piece::input_gradient : graph_.input_gradient(graphed_.router);
  graph_.copy(frees_dy ? dy : no_tensor, d_.boundary_bytes());
  if (!graphed_.router) graph_.enter_backward();
  const auto part = mlp_ ? mlp_backward() : attention_backward();
  if (mlp_) graph_.mlp_done();
  w_.allocate(dx);
  add("gradient accumulation");
  w_.free(part);
  graph_.leave_backward();
  w_.release(kept_input_);
  return dx;
}

std::uint32_t LayerWriter::backward(std::uint32_t x, std::uint32_t dy, bool out_of_place, bool frees_dy) {
  if (drops_input_) x = no_tensor;
  if (!still_) return backward_of(x, dy, out_of_place, frees_dy);
  w_.free(x);
  return dy;
}

std::uint32_t LayerWriter::backward_of(std::uint32_t x, std::uint32_t dy, bool out_of_place, bool frees_dy) {
  if (graphed_.any())
    return attention_ && mlp_ ? graphed_backward(x, dy, frees_dy) : graphed_part_backward(x, dy, frees_dy);
  const auto dmlp = mlp_ ? mlp_backward() : attention_backward();
  auto total = dy;
  if (out_of_place && dmlp != no_tensor) {
    total = Piece::input_gradient;
    w_.allocate(total);
    add("gradient accumulation");
    if (frees_dy) w_.free(dy);
    w_.free(dmlp);
  } else {
    accumulate(dmlp);
  }
  if (!mlp_ || !attention_ || ends_in_mlp_) {
    w_.free(x);
    return total;
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
  using Home = Tensor::Home;
  const GraphedParts graphed = graphed_parts(d, kind);
  w.border(Piece::output, "layer input", d.boundary_bytes(), graphed.ends ? Home::view : Home::allocator);
  w.border(Piece::output_gradient, residual_gradient, d.boundary_bytes());
  w.border(Piece::input_gradient, residual_gradient, d.boundary_bytes(),
           graphed.begins ? Home::graph_gradient : Home::allocator);
  if (graphed.begins && graphed.router && kind.parts == Parts::mlp)
    GraphWriter::leaves_as_output(w, Piece::input_gradient);
  std::vector<LayerWriter> layers;
  for (const LayerKind& each : kinds) layers.emplace_back(w, d, each);

  w.to_forward();
  if (kinds.front().angles) mrope_angles(w, d);
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
