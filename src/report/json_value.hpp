// Values of settings as --set takes them, turned into JSON of their own type.
#pragma once

#include "pipewright/plan.hpp"
#include "to_json.hpp"

namespace pipewright::report {

/// "4" -> 4, "true" -> true, "none" -> null, "[mlp, core_attn]" -> ["mlp", "core_attn"], else the text.
Json value_json(const std::string& text);
Json settings_json(const plan::Assignments& settings);
Json environment_json(const plan::Assignments& environment);

}  // namespace pipewright::report
