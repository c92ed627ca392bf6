// Text helpers of the emitters.
#pragma once

#include <string>

#include "pipewright/emit.hpp"

namespace pipewright::emit {

std::string quoted(const std::string& word);  ///< as one shell word

/// A value of the scenario without the quotes and escapes of YAML (scenario::yaml_scalar).
std::string unquoted(const std::string& text);

}  // namespace pipewright::emit
