#include "hybrid.hpp"

#include <algorithm>
#include <cmath>

#include "emitted.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::emit {

// models/mamba/mamba_layer_specs.py until 0.17, models/hybrid/hybrid_layer_specs.py from 0.18 on.
std::vector<std::string> hybrid_spec(const scenario::Software& software) {
  if (scenario::core_version(software) >= scenario::Version::v0_18)
    return {"megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"};
  return {"megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"};
}

bool is_hybrid_spec(const std::vector<std::string>& values) {
  return values.size() == 2 &&
         (values[0].ends_with("hybrid_layer_specs") || values[0].ends_with("mamba_layer_specs")) &&
         (values[1] == "hybrid_stack_spec" || values[1] == "mamba_stack_spec");
}

// ssm/mamba_hybrid_layer_allocation.py (core_r0.16.0), _allocate_auto; Python rounds halves to even, as nearbyint does.
std::string pattern_from_ratios(scenario::Int layers, double attention, double mlp) {
  const double all = static_cast<double>(layers), attentions = std::nearbyint(all * attention);
  double mambas = all - attentions;
  std::string pattern(static_cast<std::size_t>(layers), 'M');
  const auto place = [&](char letter, double every) {
    double left = every;
    for (char& layer : pattern) {
      if (layer != 'M') continue;
      if (left < 0.5) {
        layer = letter;
        left += every;
      } else {
        left -= 1;
      }
    }
  };
  place('*', mambas / (attentions + 1));
  const double mlps = std::nearbyint(all * mlp);
  if (mlps == 0) return pattern;
  mambas -= mlps;
  place('-', mambas / mlps);
  return pattern;
}

// training/arguments.py of core_r0.17.0 on (the pattern's own depths win); models/hybrid/hybrid_provider.py of Megatron
// Bridge, finalize (the layers stated apart win).
void join_depths(scenario::Scenario& s) {
  if (!s.model.hybrid_layer_pattern) return;
  std::string& pattern = *s.model.hybrid_layer_pattern;
  const auto apart = s.settings.other.find("mtp_hybrid_override_pattern");
  const scenario::Int stated = s.model.mtp_num_layers.value_or(0);
  if (apart != s.settings.other.end() && apart->second != "none") {
    const bool replaces = s.software.megatron_bridge.has_value();
    if (stated > 0 && (replaces || scenario::hybrid_mtp_part(s).empty())) {
      pattern = pattern.substr(0, pattern.find('/'));
      for (scenario::Int depth = 0; depth < stated; ++depth) pattern += "/" + unquoted(apart->second);
    }
    s.settings.other.erase(apart);
  }
  const std::string part = scenario::hybrid_mtp_part(s);
  if (part.size() > 1) s.model.mtp_num_layers = std::count(part.begin(), part.end(), '/');
}

}  // namespace pipewright::emit
