// The attention of a layer, from its input norm to the output of its projection.
#pragma once

#include <memory>

#include "layer.hpp"

namespace pipewright::model {

class Attention {
 public:
  virtual ~Attention() = default;
  /// Returns the projection's output. Without `grad` nothing else is left.
  virtual std::uint32_t forward(bool grad) = 0;
  /// Frees what forward left; returns the gradient of the norm's input, before the residual is added. `dropped`: the
  /// output's gradient where dropout made it a tensor of its own; freed once it has been read.
  virtual std::uint32_t backward(std::uint32_t dropped) = 0;
  /// What delay_wgrad_compute left of backward.
  virtual void weight_gradients() = 0;
};

std::unique_ptr<Attention> grouped_query_attention(PieceBuilder& builder, const Dimensions& dimensions,
                                                   const LayerKind& kind);

/// A gated delta net in attention's place.
std::unique_ptr<Attention> gated_delta_net(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind);

/// A Mamba-2 mixer in attention's place.
std::unique_ptr<Attention> mamba_mixer(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind);

}  // namespace pipewright::model
