// Values that Megatron Bridge writes otherwise than Megatron's fields have them.
#pragma once

#include <string>

#include "python.hpp"

namespace pipewright::emit {

/// The value of cfg.model.FIELD, as YAML. `key`: its name in messages. Throws UsageError for what no field can hold.
std::string value_in_megatron(const std::string& field, const Python& literal, const Position& where,
                              const std::string& key);

}  // namespace pipewright::emit
