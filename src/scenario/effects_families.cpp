#include "effects_families.hpp"

#include <algorithm>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"

namespace pipewright::scenario {
namespace {

bool replays_groups(const Scenario& s) {
  const auto& o = s.settings;
  return o.recompute_granularity.value_or("") == "full" && o.recompute_method.value_or("") != "block" &&
         o.recompute_num_layers.value_or(1) > 1;
}

bool keeps_quantized(const Scenario& s) {
  const auto& o = s.settings;
  return o.fp8_param || o.fp8_param_gather || o.fp4_param || o.fp4_param_gather;
}

/// Of Megatron-FSDP; quantized by tensor they are modelled.
bool keeps_blocks(const Scenario& s) {
  const auto& o = s.settings;
  const std::string recipe = o.fp8_recipe.value_or("delayed");
  return o.fp4_param || o.fp4_param_gather || (keeps_quantized(s) && recipe != "tensorwise" && recipe != "delayed");
}

constexpr unsigned delta = 1, hybrid = 2, fsdp = 4, host = 8;

struct Limit {
  Feature feature;
  unsigned refused;  ///< families that are not modelled beside it
};

#define USES(expression) [](const Scenario& s) { return expression; }
const Limit limits[] = {
    {{"context parallelism", USES(s.settings.context_parallel_size > 1), "context_parallel_size=2"}, delta},
    {{"packed sequences over context-parallel ranks",
      USES(s.settings.context_parallel_size > 1 && (packing(s) || s.settings.sft)),
      "context_parallel_size=2; sft=true; sequence_lengths=[512*8]"},
     hybrid},
    {{"pipeline parallelism", USES(s.settings.pipeline_model_parallel_size > 1), "pipeline_model_parallel_size=2"},
     fsdp},
    {{"activation offload", USES(s.settings.cpu_offloading || s.settings.fine_grained_activation_offloading),
      "cpu_offloading=true"},
     delta | hybrid},
    {{"fine-grained activation offload", USES(s.settings.fine_grained_activation_offloading),
      "fine_grained_activation_offloading=true; offload_modules=[core_attn]"},
     fsdp},
    {{"CUDA graphs of modules",
      USES(s.settings.cuda_graph_impl != "none" && s.settings.cuda_graph_impl != "full_iteration"),
      "cuda_graph_impl=transformer_engine"},
     fsdp},
    {{"a CUDA graph of the iteration", USES(s.settings.cuda_graph_impl == "full_iteration"),
      "cuda_graph_impl=full_iteration"},
     fsdp},
    {{"expert-parallel overlap", USES(s.settings.overlap_moe_expert_parallel_comm),
      "overlap_moe_expert_parallel_comm=true"},
     delta | hybrid | fsdp},
    {{"multi-token prediction", USES(s.model.mtp_num_layers.value_or(0) > 0), "mtp_num_layers=1"}, fsdp},
    {{"multi-token prediction under full recompute",
      USES(s.model.mtp_num_layers.value_or(0) > 0 && s.settings.recompute_granularity.value_or("") == "full"),
      "mtp_num_layers=1; recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1"},
     hybrid},
    {{"packed sequences", USES(packing(s) || s.settings.sft), "sft=true; sequence_lengths=[512*8]"}, delta},
    {{"latent attention", USES(s.model.multi_latent_attention), "multi_latent_attention=true"}, hybrid},
    {{"other attention variants", USES(s.model.experimental_attention_variant.has_value()),
      "experimental_attention_variant=dsa"},
     hybrid},
    {{"gates on attention's output", USES(s.model.attention_output_gate), "attention_output_gate=true"}, hybrid},
    {{"norms apart from the linears", USES(!norms_fused(s)), "transformer_impl=local"}, delta},
    {{"local layers", USES(!te_layers(s)), "transformer_impl=local"}, hybrid},
    {{"biases", USES(s.model.add_bias_linear), "add_bias_linear=true"}, delta | hybrid},
    {{"post-norms", USES(s.model.post_layernorm), "post_layernorm=true"}, delta | hybrid},
    {{"adapters", USES(!s.settings.lora_target_modules.empty()), "lora_target_modules=[linear_qkv]"}, fsdp},
    {{"other optimizers than Adam", USES(s.settings.optimizer != "adam"), "optimizer=muon"},
     delta | hybrid | fsdp | host},
    {{"the optimizer on the host", USES(s.settings.optimizer_cpu_offload),
      "optimizer_cpu_offload=true; use_precision_aware_optimizer=true"},
     delta | hybrid | fsdp},
    {{"precision-aware states", USES(s.settings.use_precision_aware_optimizer), "use_precision_aware_optimizer=true"},
     fsdp},
    {{"gradients that are not pinned", USES(!s.settings.pin_cpu_grads), "pin_cpu_grads=false"}, host},
    {{"Megatron-FSDP", USES(s.settings.use_megatron_fsdp), "use_megatron_fsdp=true"}, delta},
    // mcore_fsdp_adapter.py, fsdp_unit_modules; before, Mamba layers are gathered for good with both ends.
    {{"Mamba layers before Megatron Core 0.19, which are no units",
      USES(has_mamba_layer(s) && core_version(s.software) < Version::v0_19),
      "hybrid_layer_pattern=M*M-; software.megatron_core=0.18.0"},
     fsdp},
    {{"tied embeddings", USES(!s.model.untie_embeddings_and_output_weights),
      "untie_embeddings_and_output_weights=false"},
     fsdp},
    {{"FP8 or FP4 parameters", keeps_quantized, "fp8_param=true"}, host},
    {{"parameters in FP4 or in FP8 by blocks (blockwise, mxfp8)", keeps_blocks,
      "fp8=e4m3; fp8_recipe=blockwise; fp8_param=true"},
     fsdp},
    {{"experts' FP8 parameters", USES(keeps_quantized(s) && s.model.num_moe_experts.has_value()),
      "num_moe_experts=8; fp8=hybrid; fp8_recipe=tensorwise; fp8_param=true"},
     fsdp},
    {{"FP8 parameters under full recompute",
      USES(keeps_quantized(s) && s.settings.recompute_granularity.value_or("") == "full"),
      "recompute_granularity=full; recompute_method=block; recompute_num_layers=1; fp8=hybrid; fp8_recipe=tensorwise; "
      "fp8_param=true"},
     fsdp},
    {{"layers in bf16 beside others", USES(s.settings.first_last_layers_bf16), "first_last_layers_bf16=true"}, fsdp},
    {{"fp16", USES(s.settings.fp16), "fp16=true"}, fsdp | host},
    {{"the gather in the optimizer's step", USES(s.settings.overlap_param_gather_with_optimizer_step),
      "overlap_param_gather_with_optimizer_step=true"},
     host},
    {{"delay_wgrad_compute", USES(s.settings.delay_wgrad_compute), "delay_wgrad_compute=true"}, hybrid | fsdp},
    {{"deferred embedding gradients", USES(s.settings.defer_embedding_wgrad_compute),
      "defer_embedding_wgrad_compute=true"},
     fsdp},
    {{"full recompute of several layers at once", replays_groups,
      "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=2"},
     fsdp},
    {{"deterministic mode", USES(s.settings.deterministic_mode), "deterministic_mode=true"}, hybrid},
    {{"Megatron Core before 0.18, whose kernels are others", USES(core_version(s.software) < Version::pr_4268),
      "software.megatron_core=0.17.0"},
     delta},
};
#undef USES

unsigned bit(Family family) { return 1U << static_cast<unsigned>(family); }

}  // namespace

std::span<const Feature> features() {
  static const auto all = [] {
    std::vector<Feature> list;
    for (const Limit& limit : limits) list.push_back(limit.feature);
    return list;
  }();
  return all;
}

bool modelled_beside(Family family, const Feature& feature) {
  const auto found = std::ranges::find_if(limits, [&](const Limit& r) { return r.feature.name == feature.name; });
  return (found->refused & bit(family)) == 0;
}

bool beside_unmodelled(Family family, const Scenario& s) {
  return std::ranges::any_of(limits,
                             [&](const Limit& r) { return (r.refused & bit(family)) != 0 && r.feature.in_use(s); });
}

std::string unmodelled_beside(Family family, const Scenario& s) {
  std::string text;
  for (const Limit& limit : limits)
    if ((limit.refused & bit(family)) != 0 && limit.feature.in_use(s))
      text += (text.empty() ? "" : ", ") + std::string(limit.feature.name);
  return text;
}

std::string not_beside(Family family) {
  std::string text;
  for (const Limit& limit : limits)
    if ((limit.refused & bit(family)) != 0) text += (text.empty() ? "" : ", ") + std::string(limit.feature.name);
  return text;
}

}  // namespace pipewright::scenario
