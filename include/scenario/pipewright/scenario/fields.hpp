// The table of fields: drives reading, writing, --set, defaults, `list settings` and suggestions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/scenario/types.hpp"
#include "pipewright/versions.hpp"

namespace pipewright::scenario {

struct FieldInfo {
  std::string section, name, type;  ///< type: int, bool, float, string, list, bytes; "int or none"
  std::string default_value;        ///< as written in YAML; "none"
  Strings allowed;                  ///< empty: any
  std::string doc;                  ///< one line
  Versions versions;                ///< of Megatron Core that have it; empty: not of Megatron Core
};
std::vector<FieldInfo> fields();
/// Versions of Megatron Core that have this field; throws InternalError for what is no field of any.
Versions versions_of(const std::string& field);
std::string get(const Scenario& scenario, const std::string& name);  ///< a field's value as written in YAML
/// Text as a YAML scalar, quoted where another reader would take it for something else than a string.
std::string yaml_scalar(std::string_view text);
/// Where `name` ("settings.bf16") was stated; the scenario's origin if it was not.
Position position(const Scenario& scenario, const std::string& name);

}  // namespace pipewright::scenario
