// Fields with values that change time or memory and are not modelled: what is missing, and when it is in use.
#pragma once

#include <span>
#include <string>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

struct RefusedField {
  const char *name;
  std::string missing;
  bool (*in_use)(const Scenario &);
  std::string (*now)(const Scenario &) = nullptr;  ///< of `missing`, where it lists several things: those in use
};

std::span<const RefusedField> refused_fields();

}  // namespace pipewright::scenario
