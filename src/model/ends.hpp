// The pieces at both ends of the model: word embedding, and final norm with output layer and loss.
#pragma once

#include "builder.hpp"

namespace pipewright::model {

Piece embedding_piece(Owners& owners, const Dimensions& dimensions, const scenario::Scenario& scenario);
/// `normed`: the last layer has applied the final norm (expert-parallel overlap).
Piece head_piece(Owners& owners, const Dimensions& dimensions, const scenario::Scenario& scenario, bool normed);
/// The weight gradient of the output layer, accumulated into the main gradient.
profile::Key head_wgrad(const Dimensions& dimensions);

}  // namespace pipewright::model
