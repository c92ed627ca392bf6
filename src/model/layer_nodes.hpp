// One transformer layer as nodes of expert-parallel overlap.
#pragma once

#include <memory>
#include <string>

#include "attention.hpp"
#include "graph_writer.hpp"
#include "layer.hpp"
#include "linear.hpp"
#include "mlp.hpp"
#include "moe.hpp"
#include "residual.hpp"

namespace pipewright::model {

class LayerNodes {
 public:
  /// Input and output of the layer and their gradients: tensors of the piece.
  struct Borders {
    std::uint32_t x, y, dy, dx;
  };
  LayerNodes(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind, const Borders& borders);

  void forward();           ///< what has been written to pre_dispatch_computation before stays in front
  void backward();          ///< ends in pre_dispatch_computation; frees x and dy, allocates dx
  void weight_gradients();  ///< those of attention and shared experts that are delayed

 private:
  Int boundary() const { return d_.boundary_bytes(); }
  void add(const std::string& name) { w_.launch(name, {"add", {d_.local * d_.h}}); }
  void attention_forward();
  void attention_backward(std::uint32_t dresidual, std::uint32_t dx, std::uint32_t drows);
  /// pre_dispatch_computation with a graph in it, from the gradients that reach the node on.
  void graphed_backward(std::uint32_t dresidual, std::uint32_t drows);
  void moe_forward();
  void moe_backward();
  void dense_forward();
  void dense_backward();

  PieceBuilder& w_;
  const Dimensions& d_;
  const LayerKind kind_;
  const Borders borders_;
  LinearWriter linear_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<MixtureOfExperts> moe_;
  std::unique_ptr<Mlp> mlp_;
  ResidualAdd attention_add_, mlp_add_;
  GraphWriter graph_;
  const GraphedParts graphed_;
  std::uint32_t kept_input_ = no_tensor;
  std::uint32_t residual_ = no_tensor, statistics_ = no_tensor, unnormed_ = no_tensor, sum_ = no_tensor;
};

}  // namespace pipewright::model
