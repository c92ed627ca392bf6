// Precision by module (TransformerConfig.quant_recipe, Megatron's --te-precision-config-file): settings.quant_recipe
// lists PATTERN=RECIPE, the first whose pattern matches the name of a linear layer says what it computes in, where its
// layer computes quantized at all. Source: core_r0.19.0 core/quantization/quant_config.py (RecipeConfig, GlobMatcher),
// core/extensions/transformer_engine.py (TEQuantizationRecipe: override_quantized_autocast, by default on, and
// override_nonquantized_autocast, off), core/models/*/..._model.py (named_modules, finish_init).
#pragma once

#include <string>
#include <vector>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

/// An entry; RECIPE is bf16, tensorwise, blockwise, mxfp8 or nvfp4.
struct PatternRecipe {
  std::string pattern, recipe;
};

/// Throws UsageError at settings.quant_recipe for what is no such entry.
std::vector<PatternRecipe> quant_recipe(const Scenario&);

/// A linear layer whose precision an entry says: its name within a layer ("self_attention.linear_qkv"), or "eh_proj".
struct ModuleRecipe {
  std::string module;
  bool mtp = false;  ///< of multi-token prediction
  std::string recipe;
};

/// Of the layers numbered 0 in their block; of others the same where tells_layers_apart() is false.
std::vector<ModuleRecipe> module_recipes(const Scenario&);

/// An entry matches a linear layer in one layer of a block and not in another.
bool tells_layers_apart(const Scenario&);

/// *, ?, [seq] and [!seq] as Python's fnmatch.fnmatchcase, which the C library's fnmatch reads alike.
bool matches_glob(const std::string& pattern, const std::string& name);

}  // namespace pipewright::scenario
