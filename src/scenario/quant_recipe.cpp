#include "pipewright/scenario/quant_recipe.hpp"

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

bool in_set(std::string_view set, char c) {
  const bool inverted = set.starts_with('!');
  if (inverted) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found |= set[i] <= c && c <= set[i + 2];
      i += 2;
    } else {
      found |= set[i] == c;
    }
  }
  return found != inverted;
}

/// Characters of `pattern` that stand for `c`, at `at`; 0: it is another.
std::size_t matched(std::string_view pattern, std::size_t at, char c) {
  if (at >= pattern.size()) return 0;
  if (pattern[at] == '[') {
    const std::size_t first = at + 1 + (pattern.substr(at + 1).starts_with('!') ? 1 : 0);
    const auto end = pattern.find(']', first + 1);  // a bracket that comes first belongs to the set
    if (end != std::string_view::npos) return in_set(pattern.substr(at + 1, end - at - 1), c) ? end + 1 - at : 0;
  }
  return pattern[at] == '?' || pattern[at] == c ? 1 : 0;
}

}  // namespace

bool matches_glob(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, i = 0, star = std::string_view::npos, from = 0;  // the last star, and what it took the name up to
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++, from = i;
    } else if (const auto taken = matched(pattern, at, name[i])) {
      at += taken, ++i;
    } else if (star != std::string_view::npos) {
      at = star + 1, i = ++from;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
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
