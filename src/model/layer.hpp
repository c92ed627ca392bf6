// One transformer layer (or a group of layers under one checkpoint) as a Piece.
#pragma once

#include <utility>
#include <vector>

#include "builder.hpp"
#include "mlp.hpp"

namespace pipewright::model {

/// A layer as a unit of Megatron-FSDP; elements of its parameters, and what is alive beside them. See fsdp.hpp.
struct Unit {
  struct Elements {
    Int dense = 0, experts = 0;
    Int fp8 = 0;  ///< of the dense ones: in FP8, a byte each, in a bucket of their own
    Int sum() const { return dense + experts; }
    Int bytes() const { return dense_bytes() + 2 * experts; }
    Int dense_bytes() const { return 2 * dense - fp8; }
    friend auto operator<=>(const Elements&, const Elements&) = default;
  };
  Elements own, next;
  std::vector<Elements> back;  ///< what its backward hook gathers, in that order
  bool first = false, last = false;
  std::vector<Elements> ahead, below;  ///< units gathered ahead, beside its own: in forward and in backward
  std::vector<Int> queued;             ///< gradients of units above that are being reduced, each in a bucket
  int parameters = 0;
  int gathers = 0;                              ///< that its forward hook launches
  std::vector<std::pair<Int, Int>> transposed;  ///< rows and columns of FP8 weights: the backward hook transposes them
  friend auto operator<=>(const Unit&, const Unit&) = default;
};

/// A transformer's layer, or one of its parts alone (hybrids).
enum class Parts : std::uint8_t { both, mixer, mlp };

struct LayerKind {
  LayerPrecision precision;
  bool moe = false;     ///< a mixture of experts instead of the dense MLP
  Int window = 0;       ///< keys that a query sees; 0: all before it
  bool rotary = true;   ///< queries and keys are rotated
  bool linear = false;  ///< a gated delta net in attention's place
  bool mamba = false;   ///< a Mamba-2 mixer in attention's place
  Parts parts = Parts::both;
  bool still = false;        ///< of a frozen model: nothing in it or before it trains, so that it has no backward pass
  bool ends = false;         ///< of a frozen model: its first adapter is the model's, its input needs no gradient
  bool ends_in_mlp = false;  ///< its mixer has none
  bool embedded = false;     ///< such a layer's input is the embedding's, which the model's frame names in forward
  bool angles = false;       ///< the first of its chunk, before which M-RoPE makes the angles of all tokens
  bool in_depth = false;     ///< of a hybrid's depth of multi-token prediction
  bool final_norm = false;   ///< its combine node ends with the decoder's final norm (expert-parallel overlap)
  bool given_input = false, given_gradient = false;  ///< one of Megatron's own graphs comes before it, after it
  bool last = false;     ///< of its chunk, or a graph follows: autograd adds to its output's gradient out of place
  int checkpointed = 0;  ///< layers under one activation checkpoint (full recompute); 0: none
  AnyWidth any_width;    ///< of the activation of its MLP or shared experts
  Unit unit;             ///< of Megatron-FSDP
  friend auto operator<=>(const LayerKind&, const LayerKind&) = default;
};

/// What of a layer a CUDA graph holds. A hybrid's layers are captured as they are; those of its depths of multi-token
/// prediction are not: their stack is no layer (core_r0.19.0 transformer/cuda_graphs.py:2043, _layer_is_graphable).
struct GraphedParts {
  bool mixer = false, mlp = false;
  bool router = false;  ///< of a mixture: the norm up to the dispatch
  bool begins = false;  ///< with the layer, whose input's gradient is then the graph's
  bool ends = false;    ///< with the layer, whose output is then a view of the graph's
  bool any() const { return mixer || mlp || router; }
};
GraphedParts graphed_parts(const Dimensions& dimensions, const LayerKind& kind);

/// One layer, or those that share a checkpoint.
Piece layer_piece(Owners& owners, const Dimensions& dimensions, const std::vector<LayerKind>& kinds);
/// The same cut into the nodes of expert-parallel overlap.
Piece layer_nodes(Owners& owners, const Dimensions& dimensions, const LayerKind& kind);

}  // namespace pipewright::model
