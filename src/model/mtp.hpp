// Multi-token prediction: the layers that follow the decoder, each predicting one token further ahead.
#pragma once

#include "layer.hpp"

namespace pipewright::model {

/// The decoder's final norm, which stands beside its last layer where there is multi-token prediction.
Piece final_norm_piece(Owners& owners, const Dimensions& dimensions);
/// All depths; its output holds the decoder's hidden states and those of every depth, one after the other.
/// `kinds`: the layers of a depth, one but in hybrids.
Piece mtp_piece(Owners& owners, const Dimensions& dimensions, const scenario::Scenario& scenario,
                const std::vector<LayerKind>& kinds);
/// The same, one depth, as nodes of expert-parallel overlap.
Piece mtp_nodes(Owners& owners, const Dimensions& dimensions, const scenario::Scenario& scenario,
                const LayerKind& kind);

}  // namespace pipewright::model
