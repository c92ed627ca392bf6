// The classes and layer specifications of Megatron Bridge that build a model (src/megatron/bridge/models, 0.2 to 0.7):
// which of them build what the configuration's fields say, and what some build beyond it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

/// The name under which a class that is not known stands among what is refused.
inline constexpr std::string_view model_provider = "model_provider";

/// Defaults of GPTModelProvider (models/gpt_provider.py:137-206) that differ from TransformerConfig's. Those of
/// MLAModelProvider do not: of its two parents MLATransformerConfig's fields count (models/mla_provider.py).
scenario::Scenario provider_defaults();

using Built = std::vector<std::pair<std::string_view, std::string_view>>;

/// What the class `name` (without its modules) builds beyond its fields, as fields of ours and their values; nothing
/// where it is not known.
std::optional<Built> built_by_provider(std::string_view name);

/// What the language model of a class that is not known has beyond the class' fields.
Built language_model_of(std::string_view name);

/// The provider that builds what of `scenario` no field of Bridge says; nullptr where fields say all.
const char* special_provider(const scenario::Scenario& scenario);

/// interleaved_attn_pattern of Gemma 3's provider as window_attn_skip_freq: (N, 1), N layers with a window and one
/// without, or each layer's kind (gemma3_provider.py, _is_local_attn_layer); and back.
std::string skip_freq_of_gemma3(const Python& pattern, const Position& where, const std::string& key);
std::string gemma3_pattern(const scenario::Scenario& scenario);

/// What layers of the specification `name` have beyond the fields; nothing where it is not known.
std::optional<Built> built_by_spec(std::string_view name);

/// A field that holds such a specification.
bool holds_spec(std::string_view field);

/// A field that providers have beyond Megatron's: tables of the rotary embedding, where weights came from.
bool of_providers(std::string_view field);

}  // namespace pipewright::emit
