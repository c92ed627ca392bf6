// What the host spends on an operation: the profile's own figure, else that of an operation whose host code is of the
// same kind, by the table below. Kernels differ by shape and type; the Python, autograd and C++ around them do not.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

struct Relative {
  std::string_view direction, family;  ///< whose cost is asked for; the family or how it begins
  std::string_view as_direction, as_family;
  bool each = false;  ///< eager operators: the other's cost for every kernel that the operation stands for
};

constexpr std::string_view forward = "forward", backward = "backward", finalize = "finalize";

constexpr std::array relatives = {
    // Transformer Engine's norms are one module, whatever they compute.
    Relative{forward, "layernorm.forward", forward, "rmsnorm.forward"},
    Relative{backward, "layernorm.backward", backward, "rmsnorm.backward"},
    // Functions under torch.compile: guards, wrappers, one kernel.
    Relative{forward, "gelu.forward", forward, "swiglu.forward"},
    Relative{backward, "gelu.backward", backward, "swiglu.backward"},
    Relative{forward, "swiglu.any_width.forward", forward, "swiglu.forward"},
    Relative{backward, "swiglu.any_width.backward", backward, "swiglu.backward"},
    Relative{forward, "squared_relu.any_width.forward", forward, "squared_relu.forward"},
    Relative{backward, "squared_relu.any_width.backward", backward, "squared_relu.backward"},
    Relative{forward, "out_correction", forward, "swiglu.forward"},
    // Quantizers of Transformer Engine.
    Relative{forward, "quantize", forward, "amax"},
    Relative{backward, "quantize", backward, "amax"},
    Relative{forward, "transpose.fp8", backward, "transpose.fp8"},
    // Calls of c10d; those to finish a step are the same code.
    Relative{forward, "send_recv", forward, "all_to_all"},
    Relative{backward, "send_recv", backward, "all_to_all"},
    Relative{backward, "reduce_scatter", backward, "all_gather"},
    Relative{backward, "all_reduce", backward, "all_gather"},
    Relative{finalize, "all_gather", backward, "all_gather"},
    Relative{finalize, "reduce_scatter", backward, "all_gather"},
    Relative{finalize, "all_reduce", backward, "all_gather"},
    Relative{finalize, "gemm", backward, "gemm"},
    // Loops over packed sequences: an operator, and each launch by the profile's own figure.
    Relative{forward, "rotation", forward, "small"},
    Relative{backward, "rotation", backward, "small"},
    Relative{forward, "roll", forward, "small"},
    // Copies between host and GPU are one call either way.
    Relative{backward, "copy.d2h", forward, "copy.d2h"},
    Relative{backward, "copy.h2d", forward, "copy.d2h"},
    Relative{forward, "copy.h2d", forward, "copy.d2h"},
    // Eager operators of PyTorch, one kernel each.
    Relative{forward, "cast.bf16_f32", forward, "small", true},
    Relative{forward, "cast.f32_bf16", forward, "small", true},
    Relative{forward, "cat", forward, "small", true},
    Relative{forward, "dropout", forward, "small", true},
    Relative{forward, "fill", forward, "small", true},
    Relative{forward, "glu.gate", forward, "small", true},
    Relative{forward, "glu.offset", forward, "small", true},
    Relative{forward, "index_select", forward, "small", true},
    Relative{forward, "scale", forward, "small", true},
    Relative{backward, "cast.bf16_f32", backward, "small", true},
    Relative{backward, "cast.bf16_f16", backward, "small", true},
    Relative{backward, "cast.f32_bf16", backward, "small", true},
    Relative{backward, "copy.d2d", backward, "small", true},
    Relative{backward, "copy.strided", backward, "small", true},
    Relative{backward, "dropout", backward, "small", true},
    Relative{backward, "fill", backward, "small", true},
    Relative{backward, "glu.gate", backward, "small", true},
    Relative{backward, "index_select", backward, "small", true},
    Relative{backward, "scale", backward, "small", true},
    Relative{finalize, "scale", backward, "small", true},
    Relative{finalize, "small", backward, "small", true},
};

/// The longest dotted prefix of the family that a profile knows; with FP8 first what it knows of FP8.
std::optional<HostCost> known(const Profiles& profiles, const std::string& direction, std::string family, bool fp8) {
  while (!family.empty()) {
    for (const char* precision : {"fp8.", ""}) {
      if (*precision != '\0' && !fp8) continue;
      const std::string name = "host." + direction + "." + precision + family;
      if (const auto once = profiles.find_scalar(name + "_us"))
        return HostCost{*once, profiles.find_scalar(name + "_each_us").value_or(0)};
    }
    const auto dot = family.rfind('.');
    family = dot == std::string::npos ? "" : family.substr(0, dot);
  }
  return std::nullopt;
}

bool begins(const std::string& family, std::string_view prefix) {
  return family.starts_with(prefix) && (family.size() == prefix.size() || family[prefix.size()] == '.');
}

}  // namespace

std::optional<HostCost> host_cost(const Profiles& profiles, const std::string& direction, const std::string& family,
                                  bool fp8) {
  if (const auto own = known(profiles, direction, family, fp8)) return own;
  const auto* relative = std::find_if(relatives.begin(), relatives.end(), [&](const Relative& r) {
    return r.direction == direction && begins(family, r.family);
  });
  if (relative == relatives.end()) return std::nullopt;
  auto cost = known(profiles, std::string(relative->as_direction), std::string(relative->as_family), fp8);
  if (cost && relative->each) return HostCost{0, cost->once};
  if (const auto each = profiles.find_scalar("host." + direction + "." + family + "_each_us"); cost && each)
    cost->each = *each;
  return cost;
}

}  // namespace pipewright::profile
