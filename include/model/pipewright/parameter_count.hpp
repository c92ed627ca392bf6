// How many parameters the model of a scenario has.
#pragma once

#include <cstdint>

#include "pipewright/scenario/types.hpp"

namespace pipewright::model {

/// Each weight once, the vocabulary without padding, multi-token prediction and adapters with the rest.
struct ParameterCount {
  std::int64_t all = 0;
  std::int64_t of_a_token = 0;  ///< with as many experts as a token visits
};

/// Of a scenario that scenario::check() takes: a model of no heads has no width of them.
ParameterCount parameter_count(const scenario::Scenario& scenario);

}  // namespace pipewright::model
