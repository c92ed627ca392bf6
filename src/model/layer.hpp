// One transformer layer (or a group of layers under one checkpoint) as a Piece.
#pragma once

#include <vector>

#include "builder.hpp"

namespace pipewright::model {

struct LayerKind {
  bool fp8 = false;
  bool moe = false;         ///< a mixture of experts instead of the dense MLP
  Int window = 0;           ///< keys that a query sees; 0: all before it
  bool rotary = true;       ///< queries and keys are rotated
  bool ends = false;        ///< the first layer of a frozen model: its input needs no gradient
  bool final_norm = false;  ///< its combine node ends with the decoder's final norm (expert-parallel overlap)
  bool last = false;     ///< last of its chunk: its output gradient comes from outside, so autograd adds out of place
  int checkpointed = 0;  ///< layers under one activation checkpoint (full recompute); 0: none
  friend auto operator<=>(const LayerKind&, const LayerKind&) = default;
};

/// One layer, or those that share a checkpoint.
Piece layer_piece(Owners& owners, const Dimensions& dimensions, const std::vector<LayerKind>& kinds);
/// The same cut into the nodes of expert-parallel overlap.
Piece layer_nodes(Owners& owners, const Dimensions& dimensions, const LayerKind& kind);

}  // namespace pipewright::model
