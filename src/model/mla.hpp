// Multi-latent attention (DeepSeek-V2, V3): queries, keys and values are projected from narrow, compressed ones.
#pragma once

#include "attention.hpp"

namespace pipewright::model {

std::unique_ptr<Attention> latent_attention(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind);

}  // namespace pipewright::model
