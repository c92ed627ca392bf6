#include "precision.hpp"

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::model {
namespace {

using scenario::Scenario;

[[noreturn]] void refuse_precision(const Scenario& s, const std::string& key, const std::string& message) {
  throw UsageError(scenario::position(s, key), key, message);
}

Int round_up(Int value, Int to) { return (value + to - 1) / to * to; }

void needs_blackwell(const Scenario& s, const profile::Device& gpu, const std::string& key, const std::string& name) {
  if (gpu.compute_capability >= 100 && gpu.compute_capability < 120) return;
  if (gpu.compute_capability >= 120)
    refuse_precision(s, key, name + " is not modelled on compute capability 12.0 and above");
  refuse_precision(s, key,
                   name + " is refused by Transformer Engine below compute capability 10.0 (" +
                       (gpu.compute_capability == 90 ? "Hopper" : gpu.name) + " is " +
                       profile::capability_text(gpu.compute_capability) + ")");
}

}  // namespace

Recipe recipe_of(const Scenario& s, const profile::Device& gpu) {
  const auto& o = s.settings;
  // Where what of it is not modelled is let through (effects_refused.cpp), layers are in bf16.
  if (o.fp4 && !scenario::ignores(s, "fp4")) {
    if (o.fp4_recipe.value_or("nvfp4") != "nvfp4")
      refuse_precision(s, "settings.fp4_recipe", "\"" + *o.fp4_recipe + "\" is not modelled; allowed: nvfp4");
    return recipe_named(s, gpu, "nvfp4", "settings.fp4");
  }
  if (!o.fp8) return Recipe::bf16;
  return recipe_named(s, gpu, o.fp8_recipe.value_or("delayed"), "settings.fp8_recipe");
}

Recipe recipe_named(const Scenario& s, const profile::Device& gpu, const std::string& name, const std::string& key) {
  const auto& o = s.settings;
  if (name == "bf16") return Recipe::bf16;
  if (name == "nvfp4") {
    needs_blackwell(s, gpu, key, "NVFP4");
    return Recipe::nvfp4;
  }
  if (gpu.fp8_layouts.empty()) refuse_precision(s, "settings.fp8", "the tensor cores of " + gpu.name + " have no FP8");
  if (name == "tensorwise") return Recipe::tensorwise;
  if (name == "delayed") return Recipe::delayed;
  if (name == "mxfp8") {
    needs_blackwell(s, gpu, key, "\"mxfp8\"");
    // Without it a persistent buffer would hold the parameters, too; Megatron Bridge refuses that.
    if (o.fp8_param_gather && o.use_distributed_optimizer && !o.reuse_grad_buf_for_mxfp8_param_ag)
      refuse_precision(s, "settings.fp8_param_gather",
                       "with fp8_recipe mxfp8 is modelled with reuse_grad_buf_for_mxfp8_param_ag only");
    return Recipe::mxfp8;
  }
  if (name == "blockwise") {
    if (gpu.fp8_layouts != std::vector{profile::Layout::tn})
      refuse_precision(s, key,
                       "\"blockwise\" is not modelled on " + gpu.name +
                           ": Transformer Engine computes it in MXFP8 there; allowed: tensorwise, delayed, mxfp8");
    return Recipe::blockwise;
  }
  refuse_precision(s, key, "\"" + name + "\" is not modelled; allowed: tensorwise, delayed, blockwise, mxfp8");
}

Int Precision::copy_bytes(Int rows, Int cols, bool columnwise) const {
  switch (recipe) {
    case Recipe::bf16:
      return 2 * rows * cols;
    case Recipe::tensorwise:
    case Recipe::delayed:
      return rows * cols;
    case Recipe::blockwise:
      return rows * cols + rows * cols / 128 * 4;  // an fp32 scale for 128 elements
    case Recipe::mxfp8: {                          // TE pytorch/tensor/mxfp8_tensor.py, get_scale_shape
      constexpr Int block = 32;
      const Int scales = columnwise ? round_up(rows / block, 4) * round_up(cols, 128)
                                    : round_up(rows, 128) * round_up(cols / block, 4);
      return rows * cols + scales;
    }
    case Recipe::nvfp4: {  // TE pytorch/tensor/nvfp4_tensor.py, get_scale_shape; column-wise data is transposed
      constexpr Int block = 16;
      const Int outer = columnwise ? cols : rows, inner = columnwise ? rows : cols;
      return rows * cols / 2 + round_up(outer, 128) * round_up((inner + block - 1) / block, 4);
    }
  }
  throw InternalError("recipe out of range");
}

std::string product_family(Recipe recipe, const char* prefix, bool fast) {
  switch (recipe) {
    case Recipe::blockwise:
      return std::string(prefix) + "fp8.block.tn";
    case Recipe::mxfp8:
      return std::string(prefix) + "mxfp8.tn";
    case Recipe::nvfp4:
      return std::string(prefix) + "nvfp4.tn";
    default:
      return std::string(prefix) + (fast ? "fp8.tn" : "fp8.tn.split");
  }
}

Int row_alignment(const Scenario& s, Recipe recipe) {
  if (s.settings.use_transformer_engine_op_fuser) return 256;  // TE's fused grouped MLP
  return recipe == Recipe::bf16 ? 1 : profile::row_alignment(product_family(recipe, "gemm.grouped.", true));
}

}  // namespace pipewright::model
