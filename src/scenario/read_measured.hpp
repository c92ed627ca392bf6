// measured: what a real run showed (only in measured runs).
#pragma once

#include "pipewright/scenario/types.hpp"
#include "pipewright/scenario/yaml_value.hpp"

namespace pipewright::scenario {

Measured read_measured(const Value& value, const std::string& file);
std::string write_measured(const Measured& measured);

}  // namespace pipewright::scenario
