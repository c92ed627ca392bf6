// The pieces at both ends of the model: word embedding, and final norm with output layer and loss.
#pragma once

#include "head.hpp"

namespace pipewright::model {

Piece embedding_piece(Owners& owners, const Dimensions& dimensions, const scenario::Scenario& scenario);
/// `normed`: what comes in has passed the final norm, as with multi-token prediction, whose depths follow the main
/// hidden states in one tensor. `embeds`: its chunk has the word embedding, too.
Piece head_piece(Owners& owners, const Dimensions& dimensions, const scenario::Scenario& scenario, bool normed,
                 bool embeds);

}  // namespace pipewright::model
