// Text helpers of the emitters.
#pragma once

#include <string>

#include "pipewright/emit.hpp"

namespace pipewright::emit {

std::string quoted(const std::string& word);  ///< as one shell word

/// A value without the quotes that YAML or Python put around it.
std::string unquoted(const std::string& text);

/// A value of the scenario as a Python literal: true -> True, none -> None, [a, b] -> ["a", "b"], mlp -> "mlp".
std::string python_literal(const std::string& yaml_value);

}  // namespace pipewright::emit
