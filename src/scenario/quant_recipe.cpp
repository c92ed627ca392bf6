#include "pipewright/scenario/quant_recipe.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <optional>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::scenario {
namespace {

constexpr std::array recipe_names = {"bf16", "tensorwise", "blockwise", "mxfp8", "nvfp4"};

/// Of Transformer Engine's linear layers in a layer of a block.
constexpr std::array linear_modules = {"self_attention.linear_qkv",
                                       "self_attention.linear_proj",
                                       "self_attention.linear_q_proj",
                                       "self_attention.linear_q_down_proj",
                                       "self_attention.linear_q_up_proj",
                                       "self_attention.linear_kv_down_proj",
                                       "self_attention.linear_kv_up_proj",
                                       "self_attention.linear_qkv_down_proj",
                                       "self_attention.in_proj",
                                       "self_attention.out_proj",
                                       "mixer.in_proj",
                                       "mixer.out_proj",
                                       "mlp.linear_fc1",
                                       "mlp.linear_fc2",
                                       "mlp.fc1_latent_proj",
                                       "mlp.fc2_latent_proj",
                                       "mlp.experts.linear_fc1",
                                       "mlp.experts.linear_fc2",
                                       "mlp.shared_experts.linear_fc1",
                                       "mlp.shared_experts.linear_fc2",
                                       "eh_proj"};

/// The name that named_modules() gives it; `layer` counts from 0 within the block, whatever stage holds it.
std::string path(const Scenario& s, const std::string& module, bool mtp, Int layer) {
  const std::string number = std::to_string(layer);
  if (!mtp) return "decoder.layers." + number + "." + module;
  if (module == "eh_proj") return "mtp.layers." + number + "." + module;
  return "mtp.layers." + number + ".mtp_model_layer." + (is_hybrid(s) ? "layers." + number + "." : "") + module;
}

std::optional<std::string> first_match(const std::vector<PatternRecipe>& entries, const std::string& name) {
  const auto found = std::ranges::find_if(entries, [&](const auto& e) { return matches_glob(e.pattern, name); });
  return found == entries.end() ? std::nullopt : std::optional(found->recipe);
}

}  // namespace

bool matches_glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

std::vector<PatternRecipe> quant_recipe(const Scenario& s) {
  std::vector<PatternRecipe> entries;
  for (const std::string& text : s.settings.quant_recipe) {
    const auto equals = text.rfind('=');
    PatternRecipe entry;
    if (equals != std::string::npos) entry = {text.substr(0, equals), text.substr(equals + 1)};
    if (entry.pattern.empty() || std::ranges::find(recipe_names, entry.recipe) == recipe_names.end())
      throw UsageError(position(s, "settings.quant_recipe"), "settings.quant_recipe",
                       "\"" + text +
                           "\" is not PATTERN=RECIPE with one of bf16, tensorwise, blockwise, mxfp8, nvfp4, such as "
                           "*.linear_qkv=bf16");
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<ModuleRecipe> module_recipes(const Scenario& s) {
  const auto entries = quant_recipe(s);
  std::vector<ModuleRecipe> found;
  for (const std::string module : linear_modules)
    for (const bool mtp : {false, true})
      if (const auto recipe = first_match(entries, path(s, module, mtp, 0))) found.push_back({module, mtp, *recipe});
  return found;
}

bool tells_layers_apart(const Scenario& s) {
  const auto entries = quant_recipe(s);
  if (entries.empty()) return false;
  const Int layers = std::min<Int>(s.model.num_layers, 1000);
  for (const std::string module : linear_modules)
    for (const bool mtp : {false, true}) {
      const auto first = first_match(entries, path(s, module, mtp, 0));
      for (Int layer = 1; layer < layers; ++layer)
        if (first_match(entries, path(s, module, mtp, layer)) != first) return true;
    }
  return false;
}

}  // namespace pipewright::scenario
