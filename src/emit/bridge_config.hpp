// The configuration that Megatron Bridge writes beside a checkpoint (run_config.yaml) and prints into its log
// ("Task Configuration"): everything that a run had, after all that its recipe and CommOverlapConfig.setup() decided.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

struct ConfigLine {
  std::string section, field;  ///< field empty: the section itself (null, or a recipe's name)
  Python value;                ///< kind call with a class' name: an object whose contents the file does not hold
  Position where;
};

/// Whether a text is or holds one.
bool is_bridge_config(std::string_view text);

/// Sets the versions of the remark that emitted overrides begin with: "# for Megatron Bridge 0.4.2, Megatron Core
/// 0.17.0, ..."; false where there is none.
bool stated_versions(scenario::Scenario& s, std::string_view text);

/// Throws UsageError for what an override assigns to (PATH is model.x, without cfg.): the configuration by another name
/// (config.model.x, cfg2.model.x, an alias of cfg.model) and a slip in a section's, as what they set would be lost.
/// Other objects' attributes are passed over.
void require_section(const std::string& path, bool hydra, const Position& where);

/// The fields of a text that is_bridge_config, in order, without objects that no field of ours can be (initializers,
/// timers). The class of the model's section is a field `model_provider` (bridge_providers.hpp).
std::vector<ConfigLine> bridge_config(std::string_view text, const std::string& file);

/// Bridge's lists of a stage's layers as Megatron's string: [["embedding", "decoder"], ["decoder", "loss"]] -> Et|tL.
std::string layout_of(const Python& stages, const Position& where, const std::string& key);

}  // namespace pipewright::emit
