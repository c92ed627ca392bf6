// Activation recompute: TransformerConfig.__post_init__ and the checks of the argument parser.
#include "rules.hpp"

namespace pipewright::plan {

std::vector<Rule> recompute_rules() {
  using enum Severity;
  using enum Speaker;
  return {
      {"recompute.full-needs-method",
       violation,
       core,
       {"recompute_granularity", "recompute_method"},
       source::transformer_config,
       {1168, 1348, 1558, 1738, 2167, 1915, 1493},
       [](const Scenario& s) { return full(s) && !s.settings.recompute_method; },
       R"(Using recompute_granularity: full so recompute_method must be "block" or "uniform")",
       "add recompute_method: uniform (or block) and recompute_num_layers"},
      {"recompute.full-needs-layers",
       violation,
       core,
       {"recompute_granularity", "recompute_num_layers"},
       source::transformer_config,
       {1175, 1355, 1565, 1745, 2174, 1922, 1500},
       [](const Scenario& s) { return full(s) && !s.settings.recompute_num_layers; },
       "When using recompute_granularity: full recompute_num_layers must be between 1 and "
       "num_layers_per_pipeline_rank: {$layers_per_rank}",
       "add recompute_num_layers; it counts layers of each model chunk, not of the rank"},
      {"recompute.selective-with-layers",
       violation,
       core,
       {"recompute_granularity", "recompute_num_layers"},
       source::transformer_config,
       {1184, 1364, 1574, 1754, 2183, 1931, 1509},
       [](const Scenario& s) { return selective(s) && s.settings.recompute_num_layers.has_value(); },
       "When using recompute_granularity: selective recompute_num_layers must be None.",
       "remove recompute_num_layers: selective recompute acts on every layer"},
      {"recompute.selective-with-method",
       violation,
       arguments,
       {"recompute_granularity", "recompute_method"},
       source::arguments,
       {901, 1192, 1372, 1387, 1522, 1427, 1355},
       [](const Scenario& s) { return selective(s) && s.settings.recompute_method.has_value(); },
       "recompute method is not yet supported for selective recomputing granularity",
       "remove recompute_method"},
      {"recompute.distribute-with-sequence-parallel",
       violation,
       core,
       {"distribute_saved_activations", "sequence_parallel"},
       source::transformer_config,
       {1189, 1369, 1579, 1759, 2188, 1936, 1514},
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
       source::arguments,
       {885, 1176, 1356, 1371, 1506, 1411, 1339},
       [](const Scenario& s) {
         return s.settings.distribute_saved_activations && s.settings.tensor_model_parallel_size <= 1;
       },
       "can distribute recomputed activations only across tensor model parallel groups",
       "remove distribute_saved_activations"},
      {"recompute.distribute-needs-full",
       violation,
       arguments,
       {"distribute_saved_activations", "recompute_granularity"},
       source::arguments,
       {889, 1180, 1360, 1375, 1509, 1415, 1342},
       [](const Scenario& s) { return s.settings.distribute_saved_activations && !full(s); },
       "distributed recompute activations is only application to full recompute granularity",
       "remove distribute_saved_activations, or use recompute_granularity: full"},
      {"recompute.modules",
       violation,
       core,
       {"recompute_modules"},
       source::transformer_config,
       {1209, 1389, 1599, 1780, 2211, 1960, 1535},
       [](const Scenario& s) {
         const auto& software = s.software;
         std::vector<std::string_view> known = {"core_attn", "moe_act", "layernorm",     "mla_up_proj",
                                                "mlp",       "moe",     "shared_experts"};
         // Value tables of the versions' own allowed_modules sets.
         if (software.megatron_core == "dev") known.insert(known.end(), {"gdn", "gdn_norm_out", "mhc"});
         if (software.megatron_core == "main")
           known.insert(known.end(), {"gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc"});
         if (software.megatron_core == "pr-4268") known.emplace_back("mhc");
         if (software.megatron_core.starts_with("0.19")) known.emplace_back("gdn_norm_out");
         return selective(s) && !only_of(s.settings.recompute_modules, known);
       },
       "Invalid choices for recompute_modules: {recompute_modules}. Allowed modules are: core_attn, moe_act, "
       "layernorm, mla_up_proj, mlp, moe, shared_experts",
       "use the module names of this version"},
      {"recompute.moe-act-needs-grouped-gemm",
       violation,
       core,
       {"recompute_modules", "moe_grouped_gemm"},
       source::transformer_config,
       {1215, 1395, 1605, 1786, 2217, 1966, 1541},
       [](const Scenario& s) { return scenario::recomputes(s, "moe_act") && !s.settings.moe_grouped_gemm; },
       "moe_act in recompute_modules is only supported with moe_grouped_gemm.",
       "set moe_grouped_gemm: true, or take moe_act out"},
      {"recompute.mla-up-proj-needs-mla",
       violation,
       core,
       {"recompute_modules", "multi_latent_attention"},
       source::transformer_config,
       {1220, 1400, 1610, 1791, 2222, 1971, 1546},
       [](const Scenario& s) { return scenario::recomputes(s, "mla_up_proj") && !s.model.multi_latent_attention; },
       "mla_up_proj in recompute_modules is only supported with multi_latent_attention.",
       "take mla_up_proj out"},
      {"recompute.gdn-needs-variant",
       violation,
       core,
       {"recompute_modules"},
       source::transformer_config,
       {0, 0, 0, 1800, 2231, 1979, 0},
       [](const Scenario& s) {
         const auto variant = s.model.other.find("experimental_attention_variant");
         return scenario::recomputes(s, "gdn_norm_out") &&
                (variant == s.model.other.end() || !variant->second.starts_with("gated_delta_net"));
       },
       "gdn_norm_out in recompute_modules is only supported with experimental_attention_variant='gated_delta_net'.",
       "take gdn_norm_out out"},
      {"recompute.shared-experts-with-overlap",
       violation,
       core,
       {"recompute_modules", "moe_shared_expert_overlap", "moe_shared_expert_intermediate_size"},
       source::transformer_config,
       {1238, 1418, 1628, 1818, 2264, 1997, 1564},
       [](const Scenario& s) {
         return scenario::recomputes(s, "shared_experts") && s.model.moe_shared_expert_intermediate_size &&
                s.settings.moe_shared_expert_overlap;
       },
       "shared_experts recompute cannot work with --moe-shared-expert-overlap.",
       "take shared_experts out, or set moe_shared_expert_overlap: false"},
      {"recompute.delayed-scaling",
       violation,
       core,
       {"recompute_modules", "fp8", "fp8_recipe"},
       source::transformer_config,
       {1245, 1425, 1635, 1825, 2271, 2004, 1571},
       [](const Scenario& s) {
         return s.settings.fp8 && is(s.settings.fp8_recipe, "delayed") &&
                (scenario::recomputes(s, "moe_act") || scenario::recomputes(s, "layernorm"));
       },
       "Delayed scaling does not support moe_act and layernorm recompute for fp8.",
       "use fp8_recipe: tensorwise, or take moe_act and layernorm out"},
      {"recompute.fp8-needs-te-2.6",
       violation,
       core,
       {"recompute_modules", "fp8"},
       source::transformer_config,
       {1250, 1430, 1640, 1830, 2276, 2009, 1576},
       [](const Scenario& s) {
         return s.settings.fp8 && (scenario::recomputes(s, "moe_act") || scenario::recomputes(s, "layernorm")) &&
                !te_at_least(s, 2, 6);
       },
       "moe_act and layernorm recompute for fp8 needs transformer-engine>=2.6.0dev0, but your version is "
       "{transformer_engine}.",
       "install Transformer Engine 2.6 or newer"},
      {"recompute.moe-layer-recompute-with-full",
       violation,
       core,
       {"moe_layer_recompute", "recompute_granularity"},
       source::transformer_config,
       {1262, 1442, 1652, 1842, 2288, 2021, 1588},
       [](const Scenario& s) { return s.settings.moe_layer_recompute && full(s); },
       "Do not set --moe-layer-recompute with full recompute granularity.",
       "remove moe_layer_recompute"},
      {"recompute.mtp-uniform-one",
       violation,
       core,
       {"recompute_num_layers", "mtp_num_layers"},
       "megatron/core/transformer/multi_token_prediction.py",
       {848, 1073, 1223, 1413, 2500, 1627, 1086},
       [](const Scenario& s) {
         return full(s) && s.model.mtp_num_layers.value_or(0) > 0 && is(s.settings.recompute_method, "uniform") &&
                s.settings.recompute_num_layers.value_or(1) != 1;
       },
       "recompute_num_layers must be 1 for MTP recompute",
       "set recompute_num_layers: 1, or recompute_method: block"},
  };
}

}  // namespace pipewright::plan
