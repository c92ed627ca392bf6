#include "bridge_precision.hpp"

#include <algorithm>
#include <set>

#include "pipewright/scenario/quant_recipe.hpp"

namespace pipewright::emit {

namespace {

std::vector<Assignment> with(std::vector<Assignment> base, const std::vector<Assignment>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

}  // namespace

const std::vector<Assignment>& precision_defaults() {
  static const std::vector<Assignment> defaults = {{"bf16", "false"},
                                                   {"fp16", "false"},
                                                   {"grad_reduce_in_fp32", "true"},
                                                   {"fp8", "none"},
                                                   {"fp8_recipe", "tensorwise"},
                                                   {"first_last_layers_bf16", "false"},
                                                   {"fp8_margin", "0"},
                                                   {"fp8_amax_history_len", "1"},
                                                   {"fp8_amax_compute_algo", "most_recent"},
                                                   {"fp8_wgrad", "true"},
                                                   {"fp8_dot_product_attention", "false"},
                                                   {"fp8_multi_head_attention", "false"},
                                                   {"fp8_param", "false"},
                                                   {"fp8_param_gather", "false"},
                                                   {"fp4", "none"},
                                                   {"fp4_recipe", "nvfp4"},
                                                   {"fp4_param", "false"},
                                                   {"fp4_param_gather", "false"},
                                                   {"num_layers_at_start_in_bf16", "0"},
                                                   {"num_layers_at_end_in_bf16", "0"},
                                                   {"reuse_grad_buf_for_mxfp8_param_ag", "false"}};
  return defaults;
}

const std::map<std::string, std::vector<Assignment>>& precision_recipes() {
  static const std::map<std::string, std::vector<Assignment>> table = [] {
    const std::vector<Assignment> gather = {{"fp8_param", "true"}, {"fp8_param_gather", "true"}};
    const auto delayed = with({{"fp8", "hybrid"},
                               {"fp8_recipe", "delayed"},
                               {"fp8_amax_history_len", "1024"},
                               {"fp8_amax_compute_algo", "max"}},
                              gather);
    const auto current = with({{"fp8", "hybrid"},
                               {"fp8_recipe", "tensorwise"},
                               {"first_last_layers_bf16", "true"},
                               {"num_layers_at_start_in_bf16", "1"},
                               {"num_layers_at_end_in_bf16", "1"}},
                              gather);
    const auto mxfp8 =
        with({{"fp8", "e4m3"}, {"fp8_recipe", "mxfp8"}, {"reuse_grad_buf_for_mxfp8_param_ag", "true"}}, gather);
    const std::vector<Assignment> subchannel = {{"fp8", "hybrid"}, {"fp8_recipe", "blockwise"}};
    const auto bf16 = with(precision_defaults(), {{"bf16", "true"}});
    const auto fp16 = with(precision_defaults(), {{"fp16", "true"}, {"grad_reduce_in_fp32", "false"}});
    std::map<std::string, std::vector<Assignment>> map;
    for (const auto& [prefix, base] : {std::pair{std::string("bf16"), bf16}, std::pair{std::string("fp16"), fp16}}) {
      map[prefix + "_mixed"] = base;
      map[prefix + "_with_fp8_delayed_scaling_mixed"] = with(base, delayed);
      map[prefix + "_with_fp8_current_scaling_mixed"] = with(base, current);
      map[prefix + "_with_mxfp8_mixed"] = with(base, mxfp8);
      map[prefix + "_with_fp8_subchannel_scaling_mixed"] = with(base, subchannel);
    }
    const std::vector<Assignment> two_layers = {{"num_layers_at_start_in_bf16", "2"},
                                                {"num_layers_at_end_in_bf16", "2"}};
    map["nemotron_h_bf16_with_fp8_current_scaling_mixed"] = with(with(bf16, current), two_layers);
    map["nanov2_bf16_with_fp8_current_scaling_mixed"] =
        with(map["nemotron_h_bf16_with_fp8_current_scaling_mixed"], {{"fp8_recipe", "blockwise"}});
    const auto nvfp4 = with(bf16, {{"fp4", "e2m1"}, {"fp4_param", "true"}, {"fp4_param_gather", "true"}});
    map["bf16_with_nvfp4_mixed"] = nvfp4;
    map["nemotron_3_super_bf16_with_nvfp4_mixed"] =
        with(nvfp4, {{"first_last_layers_bf16", "true"}, {"num_layers_at_end_in_bf16", "14"}});
    return map;
  }();
  return table;
}

namespace {

const Python* entry_of(const Python& value, std::string_view name) {
  const auto found = std::ranges::find(value.entries, name, &Python::Entry::name);
  return found == value.entries.end() ? nullptr : &found->value;
}

/// An argument of a call, by name or by place.
const Python* argument(const Python& call, std::string_view name, std::size_t place) {
  const auto* named = entry_of(call, name);
  return named != nullptr || place >= call.items.size() ? named : &call.items[place];
}

/// TEQuantizationRecipe (core_r0.19.0 extensions/transformer_engine.py): what it computes in, where all else of it is
/// its default or without effect.
std::optional<std::string> training_recipe(const Python& configuration) {
  const auto* type = entry_of(configuration, "transformer_engine_config_type");
  if (type == nullptr || type->text != "TEQuantizationParams") return std::nullopt;
  const auto* recipe = entry_of(configuration, "training_recipe");
  std::string name = "bf16";
  if (recipe == nullptr) return name;
  for (const auto& [key, value] : recipe->entries) {
    if (value.kind == Python::Kind::none || key == "fp8_format") continue;
    if (key == "fp8_quantization_recipe" || key == "fp4_quantization_recipe") {
      static const std::set<std::string, std::less<>> known = {"tensorwise", "blockwise", "mxfp8", "nvfp4"};
      name = value.text.substr(value.text.rfind('.') + 1);
      if (!known.contains(name)) return std::nullopt;
    } else if (value.text != (key == "override_quantized_autocast" ? "True" : "False")) {
      return std::nullopt;
    }
  }
  return name;
}

std::string last_word(const Python& call) { return call.text.substr(call.text.rfind('.') + 1); }

}  // namespace

std::optional<scenario::Strings> module_recipes_of(const Python& recipe) {
  if (recipe.kind != Python::Kind::call || last_word(recipe) != "RecipeConfig") return std::nullopt;
  const auto *matchers = argument(recipe, "matchers", 0), *configurations = argument(recipe, "config_dict", 1);
  if (matchers == nullptr) return std::nullopt;
  scenario::Strings entries;
  for (const auto& matcher : matchers->items) {
    const auto *pattern = argument(matcher, "pattern", 0), *key = argument(matcher, "config_key", 1);
    if (last_word(matcher) != "GlobMatcher" || pattern == nullptr || key == nullptr || configurations == nullptr)
      return std::nullopt;
    const auto* configuration = entry_of(*configurations, key->text);
    const auto name = configuration == nullptr ? std::nullopt : training_recipe(*configuration);
    if (!name) return std::nullopt;
    entries.push_back(pattern->text + "=" + *name);
  }
  return entries;
}

std::string module_recipes_python(const scenario::Scenario& scenario) {
  std::string matchers, configurations;
  std::set<std::string> said;
  for (const auto& [pattern, recipe] : scenario::quant_recipe(scenario)) {
    matchers += (matchers.empty() ? "" : ", ") + ("GlobMatcher(" + python_string(pattern)) + ", \"" + recipe + "\")";
    if (!said.insert(recipe).second) continue;
    const std::string training = recipe == "bf16" ? ""
                                                  : std::string(recipe == "nvfp4" ? "\"fp4" : "\"fp8") +
                                                        "_quantization_recipe\": \"" + recipe + "\"";
    configurations += (configurations.empty() ? "" : ", ") + ("\"" + recipe) +
                      "\": {\"transformer_engine_config_type\": \"TEQuantizationParams\", \"training_recipe\": {" +
                      training + "}}";
  }
  return "RecipeConfig([" + matchers + "], {" + configurations + "})";
}

}  // namespace pipewright::emit
