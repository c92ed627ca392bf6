// A layer cut into the nodes of expert-parallel overlap (Megatron Core core_r0.19.0
// models/gpt/fine_grained_callables.py, models/common/utils.py, pipeline_parallel/utils.py):
//
//   pre_dispatch_computation   X -attention-> A -norm, router, permute-> rows      compute stream
//   moe_dispatch               rows -all-to-all-> rows, frees its input            communication stream
//   mlp                        sort, experts, unsort, frees its input              compute stream
//   moe_combine                all-to-all, unpermute, A + M -> Y                   communication stream
//
// A dense layer has pre_dispatch_computation (attention) and mlp. Inputs are detached, so every node has its own graph:
// gradients that leave one are new tensors, named by the caller until the next node's backward has returned; sums with
// them are out of place.
//
// CUDA graphs hold parts of pre_dispatch_computation only (transformer_config.py refuses mlp and moe there): attention,
// router, preprocessing. Delayed weight gradients of what they hold are a graph of their own (TE pytorch/graph.py,
// bwd_dw_graphs; models/common/utils.py, _BackwardDWWrapper).
#include "layer_nodes.hpp"

#include "mla.hpp"
#include "rope.hpp"

namespace pipewright::model {
namespace {

using Name = schedule::Node::Name;
using Pass = schedule::Node::Pass;

}  // namespace

LayerNodes::LayerNodes(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind,
                       const Borders& borders)
    : w_(builder),
      d_(dimensions),
      kind_(kind),
      borders_(borders),
      linear_(builder, dimensions),
      attention_(dimensions.mla ? latent_attention(builder, dimensions, kind)
                                : grouped_query_attention(builder, dimensions, kind)),
      attention_add_(builder, dimensions, "attention residual", dimensions.bias),
      mlp_add_(builder, dimensions, "mlp residual", dimensions.bias && !kind.moe),
      graph_(builder, dimensions),
      graphed_(graphed_parts(dimensions, kind)) {
  if (kind.moe) {
    moe_ = std::make_unique<MixtureOfExperts>(builder, dimensions, kind.precision, kind.any_width);
    if (graphed_.router) moe_->begin_in(graph_);
  } else {
    mlp_ = dense_mlp(builder, dimensions, kind.precision, kind.any_width);
  }
}

void LayerNodes::forward() {
  if (moe_) {
    moe_forward();
  } else {
    dense_forward();
  }
}

void LayerNodes::backward() {
  if (moe_) {
    moe_backward();
  } else {
    dense_backward();
  }
}

void LayerNodes::attention_forward() {
  if (graphed_.mixer) kept_input_ = graph_.enter_attention();
  const auto attended = attention_->forward(true);
  residual_ = w_.tensor("attention.residual", boundary());
  if (moe_) w_.exchanged(residual_);  // moe_combine reads it on its stream (fine_grained_callables.py:243)
  attention_add_.forward(residual_, attended, true);
  if (!graphed_.mixer) return;
  graph_.put_out({&residual_});
  if (!graphed_.router) graph_.leave();
}

/// The gradient of A is the sum of what came through the residual and through the MLP (`dx`). The node's output
/// gradients, `dresidual` and `drows`, live as long as it runs.
void LayerNodes::attention_backward(std::uint32_t dresidual, std::uint32_t dx, std::uint32_t drows) {
  // The weight gradient of the projection holds the sum when it is delayed, so that X's gradient is another tensor.
  auto sum = dresidual;
  if (dx != no_tensor) {
    sum = d_.delayed_wgrad ? w_.allocate("gradient of the residual stream", boundary()) : borders_.dx;
    if (!d_.delayed_wgrad) w_.allocate(sum);
    add("gradient accumulation");
    w_.free({dx, residual_});
  }
  const auto dattention = attention_->backward(attention_add_.backward());
  w_.free(borders_.x);
  if (sum != borders_.dx) w_.allocate(borders_.dx);
  add("gradient accumulation");
  w_.free({dattention, drows});
  if (sum != dresidual) w_.free(dresidual);
  sum_ = sum == borders_.dx ? no_tensor : sum;
}

/// Inside a graph the node's own gradients are static, and what it returns is another tensor.
void LayerNodes::graphed_backward(std::uint32_t dresidual, std::uint32_t drows) {
  if (graphed_.router) graph_.copy(no_tensor, boundary());
  auto sum = dresidual;
  if (moe_) {
    const auto dx = moe_->prepare_backward(drows);
    graph_.mlp_done();
    const bool one_graph = graphed_.router && graphed_.mixer;
    sum = one_graph && !d_.delayed_wgrad       ? borders_.dx
          : graphed_.router && !graphed_.mixer ? graph_.input_gradient(true)
                                               : w_.tensor("gradient of the residual stream", boundary());
    w_.allocate(sum);
    add("gradient accumulation");
    w_.free({dx, residual_});
  }
  if (graphed_.mixer && !graphed_.router) {
    graph_.copy(moe_ ? std::exchange(sum, no_tensor) : no_tensor, boundary());
    graph_.enter_backward();
  }
  if (!graphed_.mixer) graph_.leave_backward();
  const auto dattention = attention_->backward(attention_add_.backward());
  if (sum != borders_.dx) w_.allocate(borders_.dx);
  add("gradient accumulation");
  w_.free(dattention);
  if (graphed_.mixer) graph_.leave_backward();
  w_.free({borders_.x, drows, dresidual});
  w_.release(kept_input_);
  sum_ = sum == borders_.dx || sum == dresidual ? no_tensor : sum;
}

void LayerNodes::weight_gradients() {
  w_.to_node(Name::pre_dispatch_computation, d_.delayed_wgrad ? Pass::weight_gradient : Pass::backward);
  const bool shares = moe_ && d_.delayed_wgrad, replays = d_.delayed_wgrad && graphed_.any();
  if (shares && !graphed_.router) moe_->shared_weight_gradients();
  if (!graphed_.mixer) attention_->weight_gradients();
  if (replays && (graphed_.mixer || d_.moe.shared > 0)) {
    graph_.enter_weight_gradients();
    if (shares && graphed_.router) moe_->shared_weight_gradients();
    if (graphed_.mixer) attention_->weight_gradients();
    graph_.leave_weight_gradients();
  }
  w_.free(sum_);
}

void LayerNodes::moe_forward() {
  w_.to_node(Name::pre_dispatch_computation, Pass::forward);
  attention_forward();
  auto replaced = no_tensor;  // what a graph has copied; a frame names it until the node returns
  if (graphed_.router && !graphed_.mixer) replaced = std::exchange(residual_, graph_.enter(false));
  moe_->prepare();
  w_.free(replaced);
  w_.to_node(Name::moe_dispatch, Pass::forward);
  moe_->dispatch_node();
  w_.to_node(Name::mlp, Pass::forward);
  moe_->compute_node();
  w_.to_node(Name::moe_combine, Pass::forward);
  const auto out = moe_->combine_node();
  const auto y = kind_.final_norm ? w_.tensor("layer input", boundary()) : borders_.y;
  mlp_add_.forward(y, out, true);
  if (kind_.final_norm) {
    unnormed_ = y;
    statistics_ = w_.allocate("head.norm_statistics", linear_.norm_statistics(d_.local));
    w_.allocate(borders_.y);
    linear_.norm("head norm", true, d_.local, d_.h);
  }
  moe_->release_combined();
}

void LayerNodes::moe_backward() {
  w_.to_node(Name::moe_combine, Pass::backward);
  auto dy = borders_.dy;
  if (kind_.final_norm) {
    dy = linear_.norm_backward("head norm", statistics_, no_tensor, d_.local, d_.h);
    w_.free(unnormed_);
  }
  const auto dropped = mlp_add_.backward();
  const auto dresidual = w_.allocate("gradient of the residual stream", boundary());
  w_.launch("residual gradient", {"copy.d2d", {boundary()}});
  auto gradient = moe_->combine_backward();
  if (dy != borders_.dy) w_.free(dy);
  w_.free({borders_.dy, dropped});
  w_.to_node(Name::mlp, Pass::backward);
  gradient = moe_->compute_backward(gradient);
  if (d_.delayed_wgrad) {
    w_.to_node(Name::mlp, Pass::weight_gradient);
    moe_->weight_gradients();
  }
  w_.to_node(Name::moe_dispatch, Pass::backward);
  gradient = moe_->dispatch_backward(gradient);
  w_.to_node(Name::pre_dispatch_computation, Pass::backward);
  if (graphed_.any()) return graphed_backward(dresidual, gradient);
  const auto dx = moe_->prepare_backward(gradient);
  attention_backward(dresidual, dx, gradient);
}

void LayerNodes::dense_forward() {
  w_.to_node(Name::pre_dispatch_computation, Pass::forward);
  attention_forward();
  w_.to_node(Name::mlp, Pass::forward);
  const auto out = mlp_->forward(true);
  mlp_add_.forward(borders_.y, out, true);
}

void LayerNodes::dense_backward() {
  w_.to_node(Name::mlp, Pass::backward);
  const auto dmlp = mlp_->backward(mlp_add_.backward());
  const auto dresidual = w_.allocate("gradient of the residual stream", boundary());
  add("gradient accumulation");
  w_.free({dmlp, residual_});
  w_.to_node(Name::mlp, d_.delayed_wgrad ? Pass::weight_gradient : Pass::backward);
  mlp_->weight_gradients();
  w_.free(borders_.dy);  // the weight gradient of fc2 needs it
  w_.to_node(Name::pre_dispatch_computation, Pass::backward);
  if (graphed_.mixer) return graphed_backward(dresidual, no_tensor);
  attention_backward(dresidual, no_tensor, no_tensor);
}

Piece layer_nodes(Owners& owners, const Dimensions& d, const LayerKind& kind) {
  PieceBuilder w(owners, "layer");
  w.border(Piece::input, "layer input", d.boundary_bytes());
  w.border(Piece::output, "layer input", d.boundary_bytes());
  w.border(Piece::output_gradient, "gradient of the residual stream", d.boundary_bytes());
  w.border(Piece::input_gradient, "gradient of the residual stream", d.boundary_bytes(),
           graphed_parts(d, kind).begins ? Tensor::Home::graph_gradient : Tensor::Home::allocator);
  LayerNodes layer(w, d, kind, {Piece::input, Piece::output, Piece::output_gradient, Piece::input_gradient});
  w.to_node(Name::pre_dispatch_computation, Pass::forward);
  if (kind.angles) mrope_angles(w, d);
  layer.forward();
  layer.backward();
  layer.weight_gradients();
  return w.take();
}

}  // namespace pipewright::model
