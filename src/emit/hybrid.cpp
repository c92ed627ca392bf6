#include "hybrid.hpp"

#include <cmath>

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

}  // namespace pipewright::emit
