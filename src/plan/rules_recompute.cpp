// Activation recompute: TransformerConfig.__post_init__ and the checks of the argument parser.
#include <algorithm>

#include "rules.hpp"

namespace pipewright::plan {

std::vector<Rule> recompute_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  static const std::string modules_message =
      "Invalid choices for recompute_modules: {recompute_modules}. Allowed modules are: " +
      quoted_names(scenario::recompute_catalogue());
  return {
      {"recompute.full-needs-method",
       violation,
       core,
       {"recompute_granularity", "recompute_method"},
       everywhere,
       [](const Scenario& s) { return full(s) && !s.settings.recompute_method; },
       R"(Using recompute_granularity: full so recompute_method must be "block" or "uniform")",
       "add recompute_method: uniform (or block) and recompute_num_layers"},
      {"recompute.full-needs-layers",
       violation,
       core,
       {"recompute_granularity", "recompute_num_layers"},
       everywhere,
       [](const Scenario& s) { return full(s) && !s.settings.recompute_num_layers; },
       "When using recompute_granularity: full recompute_num_layers must be between 1 and "
       "num_layers_per_pipeline_rank: {$layers_per_rank}",
       "add recompute_num_layers; it counts layers of each model chunk, not of the rank"},
      {"recompute.selective-with-layers",
       violation,
       core,
       {"recompute_granularity", "recompute_num_layers"},
       everywhere,
       [](const Scenario& s) { return selective(s) && s.settings.recompute_num_layers.has_value(); },
       "When using recompute_granularity: selective recompute_num_layers must be None.",
       "remove recompute_num_layers: selective recompute acts on every layer"},
      {"recompute.selective-with-method",
       violation,
       arguments,
       {"recompute_granularity", "recompute_method"},
       everywhere,
       [](const Scenario& s) { return selective(s) && s.settings.recompute_method.has_value(); },
       "recompute method is not yet supported for selective recomputing granularity",
       "remove recompute_method"},
      {"recompute.distribute-with-sequence-parallel",
       violation,
       core,
       {"distribute_saved_activations", "sequence_parallel"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.recompute_granularity && s.settings.distribute_saved_activations &&
                s.settings.sequence_parallel;
       },
       "distribute_saved_activations: true must be false when sequence parallel is enabled: true",
       "remove distribute_saved_activations: with sequence_parallel the saved inputs are split already"},
      {"recompute.distribute-needs-tensor-parallel",
       violation,
       arguments,
       {"distribute_saved_activations", "tensor_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.distribute_saved_activations && s.settings.tensor_model_parallel_size <= 1;
       },
       "can distribute recomputed activations only across tensor model parallel groups",
       "remove distribute_saved_activations"},
      {"recompute.distribute-needs-full",
       violation,
       arguments,
       {"distribute_saved_activations", "recompute_granularity"},
       everywhere,
       [](const Scenario& s) { return s.settings.distribute_saved_activations && !full(s); },
       "distributed recompute activations is only application to full recompute granularity",
       "remove distribute_saved_activations, or use recompute_granularity: full"},
      {"recompute.modules",
       violation,
       core,
       {"recompute_modules"},
       everywhere,
       [](const Scenario& s) {
         return selective(s) && !std::ranges::all_of(s.settings.recompute_modules, [&](const std::string& name) {
                  const auto* module = scenario::find_recompute(name);
                  return module != nullptr && module->versions.has(scenario::core_version(s.software));
                });
       },
       modules_message,
       "use the module names of this version"},
      {"recompute.moe-act-needs-grouped-gemm",
       violation,
       core,
       {"recompute_modules", "moe_grouped_gemm"},
       everywhere,
       [](const Scenario& s) { return scenario::recomputes(s, Recompute::moe_act) && !s.settings.moe_grouped_gemm; },
       "moe_act in recompute_modules is only supported with moe_grouped_gemm.",
       "set moe_grouped_gemm: true, or take moe_act out"},
      {"recompute.mla-up-proj-needs-mla",
       violation,
       core,
       {"recompute_modules", "multi_latent_attention"},
       everywhere,
       [](const Scenario& s) {
         return scenario::recomputes(s, Recompute::mla_up_proj) && !s.model.multi_latent_attention;
       },
       "mla_up_proj in recompute_modules is only supported with multi_latent_attention.",
       "take mla_up_proj out"},
      {"recompute.gdn-needs-variant",
       violation,
       core,
       {"recompute_modules"},
       from(v0_19),
       [](const Scenario& s) {
         return scenario::recomputes(s, Recompute::gdn_norm_out) &&
                s.model.experimental_attention_variant.value_or("") != "gated_delta_net";
       },
       "gdn_norm_out in recompute_modules is only supported with experimental_attention_variant='gated_delta_net'.",
       "take gdn_norm_out out"},
      {"recompute.shared-experts-with-overlap",
       violation,
       core,
       {"recompute_modules", "moe_shared_expert_overlap", "moe_shared_expert_intermediate_size"},
       everywhere,
       [](const Scenario& s) {
         return scenario::recomputes(s, Recompute::shared_experts) && s.model.moe_shared_expert_intermediate_size &&
                s.settings.moe_shared_expert_overlap;
       },
       "shared_experts recompute cannot work with --moe-shared-expert-overlap.",
       "take shared_experts out, or set moe_shared_expert_overlap: false"},
      {"recompute.delayed-scaling",
       violation,
       core,
       {"recompute_modules", "fp8", "fp8_recipe"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.fp8 && is(s.settings.fp8_recipe, "delayed") &&
                (scenario::recomputes(s, Recompute::moe_act) || scenario::recomputes(s, Recompute::layernorm));
       },
       "Delayed scaling does not support moe_act and layernorm recompute for fp8.",
       "use fp8_recipe: tensorwise, or take moe_act and layernorm out"},
      {"recompute.fp8-needs-te-2.6",
       violation,
       core,
       {"recompute_modules", "fp8"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.fp8 &&
                (scenario::recomputes(s, Recompute::moe_act) || scenario::recomputes(s, Recompute::layernorm)) &&
                !te_at_least(s, 2, 6);
       },
       "moe_act and layernorm recompute for fp8 needs transformer-engine>=2.6.0dev0, but your version is "
       "{transformer_engine}.",
       "install Transformer Engine 2.6 or newer"},
      {"recompute.moe-layer-recompute-with-full",
       violation,
       core,
       {"moe_layer_recompute", "recompute_granularity"},
       everywhere,
       [](const Scenario& s) { return s.settings.moe_layer_recompute && full(s); },
       "Do not set --moe-layer-recompute with full recompute granularity.",
       "remove moe_layer_recompute"},
      {"recompute.mtp-uniform-one",
       violation,
       core,
       {"recompute_num_layers", "mtp_num_layers"},
       everywhere,
       [](const Scenario& s) {
         return full(s) && s.model.mtp_num_layers.value_or(0) > 0 && is(s.settings.recompute_method, "uniform") &&
                s.settings.recompute_num_layers.value_or(1) != 1;
       },
       "recompute_num_layers must be 1 for MTP recompute",
       "set recompute_num_layers: 1, or recompute_method: block"},
  };
}

}  // namespace pipewright::plan
