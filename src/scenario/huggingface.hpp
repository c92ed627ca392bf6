// The architecture that a Hugging Face config.json describes.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

/// Fills `model`, and `positions` of what it filled. Returns the file's data type ("bfloat16"), "" if it states none.
/// `path`: the file, or the folder that holds it. `notes`: what of it is in no field.
std::string apply_hf_config(const std::string& path, Scenario& scenario, Strings* notes = nullptr);

/// Of the keys in a config.json's `text` that were not `read`: throws what `error` makes of the first that stands for a
/// part of the model (a vision tower, dropout, experts); returns notes on those that nobody knows and on those that
/// only other families have.
Strings judge_keys(const std::string& text, const std::string& family, const std::set<std::string>& read,
                   const std::function<UsageError(const std::string& key, const std::string& why)>& error);

}  // namespace pipewright::scenario
