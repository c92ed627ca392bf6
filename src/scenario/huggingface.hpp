// The architecture that a Hugging Face config.json describes.
#pragma once

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

/// Fills `model`, and `positions` of what it filled. Returns the file's data type ("bfloat16"), "" if it states none.
/// `path`: the file, or the folder that holds it. `notes`: what of it is in no field.
std::string apply_hf_config(const std::string& path, Scenario& scenario, Strings* notes = nullptr);

}  // namespace pipewright::scenario
