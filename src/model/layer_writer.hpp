// One transformer layer as part of a piece.
#pragma once

#include <memory>
#include <string>

#include "attention.hpp"
#include "graph_writer.hpp"
#include "layer.hpp"
#include "mlp.hpp"
#include "offload_groups.hpp"
#include "residual.hpp"

namespace pipewright::model {

class LayerWriter {
 public:
  LayerWriter(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind);

  void forward(std::uint32_t y, bool grad);
  /// Adds into `dy` unless `out_of_place`; returns the gradient of the layer's input. `frees_dy`: nobody else holds it.
  std::uint32_t backward(std::uint32_t x, std::uint32_t dy, bool out_of_place, bool frees_dy);

 private:
  void attention_forward(std::uint32_t sum, bool grad);   ///< no `sum`: it becomes residual_
  std::uint32_t mlp_forward(std::uint32_t y, bool grad);  ///< returns the sum: y, or a graph's
  void graphed_part_forward(std::uint32_t y, bool grad);
  std::uint32_t graphed_backward(std::uint32_t x, std::uint32_t dy, bool frees_dy);
  std::uint32_t graphed_part_backward(std::uint32_t x, std::uint32_t dy, bool frees_dy);
  std::uint32_t backward_of(std::uint32_t x, std::uint32_t dy, bool out_of_place, bool frees_dy);
  std::uint32_t attention_backward();
  std::uint32_t mlp_backward();
  void add(const std::string& name) { w_.launch(name, {"add", {d_.local * d_.h}}); }
  void accumulate(std::uint32_t part) {
    if (part != no_tensor) add("gradient accumulation"), w_.free(part);
  }

  PieceBuilder& w_;
  const Dimensions& d_;
  std::unique_ptr<Attention> attention_;  ///< none: a layer that is an MLP alone
  std::unique_ptr<Mlp> mlp_;              ///< none: a layer without one
  OffloadWriter offload_;
  ResidualAdd attention_add_, mlp_add_;
  GraphWriter graph_;
  const GraphedParts graphed_;
  const bool still_, ends_in_mlp_, drops_input_;
  const bool transformer_;                ///< a TransformerLayer, whose graphs are called with a mask
  const bool attention_norm_, mlp_norm_;  ///< modules of their own, so that their input can be offloaded
  std::uint32_t residual_ = no_tensor, kept_input_ = no_tensor;
};

}  // namespace pipewright::model
