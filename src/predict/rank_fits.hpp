// One rank's memory, under another scenario of equal times.
#pragma once

#include "pipewright/predict.hpp"

namespace pipewright::predict {

/// Does this rank of `same` fit with the scenario's memory?
bool rank_fits(const Prediction& same, std::size_t rank, const scenario::Scenario& scenario,
               const profile::Profiles& profiles);

}  // namespace pipewright::predict
