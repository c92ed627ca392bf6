// Activation and optimizer offload: TransformerConfig.__post_init__ and the checks of the argument parser.
#include <algorithm>

#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

bool fine_grained(const Scenario& s) { return s.settings.fine_grained_activation_offloading; }
bool offloads_part_of(const Scenario& s, Offload whole) {
  return std::ranges::any_of(scenario::row(whole).covers, [&](Offload part) { return offloads(s, part); });
}

}  // namespace

std::vector<Rule> offload_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  using enum scenario::OffloadRow::Part;
  static const std::string modules_message =
      "Invalid choices for offload_modules: {offload_modules}. Allowed modules are: " +
      quoted_names(scenario::offload_catalogue());
  return {
      {"offload.layers-below-all",
       violation,
       core,
       {"cpu_offloading_num_layers", "num_layers"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.cpu_offloading && (s.settings.cpu_offloading_num_layers < 0 ||
                                              s.settings.cpu_offloading_num_layers >= s.model.num_layers);
       },
       "CPU offloading can be done only for layers less than {num_layers}",
       "set cpu_offloading_num_layers below num_layers"},
      {"offload.no-pipeline",
       violation,
       core,
       {"cpu_offloading", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return s.settings.cpu_offloading && s.settings.pipeline_model_parallel_size > 1; },
       "Currently there is no support for Pipeline parallelism with CPU offloading",
       "use fine_grained_activation_offloading, which works with a pipeline, or pipeline_model_parallel_size: 1"},
      {"offload.no-recompute",
       violation,
       core,
       {"cpu_offloading", "recompute_granularity"},
       everywhere,
       [](const Scenario& s) { return s.settings.cpu_offloading && s.settings.recompute_granularity.has_value(); },
       "CPU offloading does not work when activation recomputation is enabled",
       "remove recompute_granularity, or cpu_offloading"},
      {"offload.fine-grained-or-whole",
       violation,
       core,
       {"fine_grained_activation_offloading", "cpu_offloading"},
       everywhere,
       [](const Scenario& s) { return fine_grained(s) && s.settings.cpu_offloading; },
       "fine_grained_activation_offloading cannot be enabled with cpu_offloading.",
       "keep one of the two"},
      {"offload.modules-missing",
       violation,
       core,
       {"fine_grained_activation_offloading", "offload_modules"},
       everywhere,
       [](const Scenario& s) { return fine_grained(s) && s.settings.offload_modules.empty(); },
       "assert self.offload_modules is not None and len(self.offload_modules) > 0",
       "name offload_modules, or set fine_grained_activation_offloading: false"},
      {"offload.modules",
       violation,
       core,
       {"offload_modules"},
       everywhere,
       [](const Scenario& s) {
         return fine_grained(s) && !std::ranges::all_of(s.settings.offload_modules, [&](const std::string& name) {
                  const auto* module = scenario::find_offload(name);
                  return module != nullptr && module->versions.has(scenario::core_version(s.software));
                });
       },
       modules_message,
       "use the module names of this version; the dense MLP has none and cannot be offloaded by this feature"},
      {"offload.proj-needs-core-attn",
       violation,
       core,
       {"offload_modules"},
       everywhere,
       [](const Scenario& s) {
         return std::ranges::any_of(scenario::offload_catalogue(), [&](const auto& row) {
           return row.beside && offloads(s, row.module) && !offloads(s, *row.beside);
         });
       },
       "attn_proj cannot be set to offload_modules alone without core_attn because the input of attn_proj is the "
       "output of core_attn, which is needed in core_attn.backward().",
       "add core_attn to offload_modules"},
      {"offload.inside-recomputed-moe",
       violation,
       core,
       {"offload_modules", "recompute_modules"},
       pr_4268 | from(v0_19),
       [](const Scenario& s) {
         return fine_grained(s) && scenario::recomputes(s, Recompute::moe) && offloads_any(s, experts);
       },
       "Cannot offload {offload_modules} while recomputing the entire MoE layer. 'moe' in recompute_modules wraps the "
       "full MoE forward in a checkpoint, so offloading activations inside it is redundant and will cause errors.",
       "take moe out of recompute_modules, or these modules out of offload_modules"},
      {"offload.fused-group-needs-op-fuser",
       violation,
       core,
       {"offload_modules", "use_transformer_engine_op_fuser"},
       from(v0_19),
       [](const Scenario& s) {
         return offloads(s, Offload::fused_group_mlp) && !s.settings.use_transformer_engine_op_fuser;
       },
       "fused_group_mlp requires use_transformer_engine_op_fuser.",
       "set use_transformer_engine_op_fuser: true, or offload expert_fc1 and moe_act instead"},
      {"offload.fused-group-alone",
       violation,
       core,
       {"offload_modules"},
       from(v0_19),
       [](const Scenario& s) {
         return offloads(s, Offload::fused_group_mlp) && offloads_part_of(s, Offload::fused_group_mlp);
       },
       "fused_group_mlp offloads the whole fused grouped MLP and cannot be combined with expert_fc1 or moe_act.",
       "keep fused_group_mlp alone"},
      {"offload.parts-of-fused-group",
       violation,
       core,
       {"offload_modules", "use_transformer_engine_op_fuser"},
       from(pr_4268),
       [](const Scenario& s) {
         return fine_grained(s) && s.settings.use_transformer_engine_op_fuser &&
                offloads_part_of(s, Offload::fused_group_mlp);
       },
       "Fused GroupedMLP is not supported for this configuration.",
       "offload fused_group_mlp (all three tensors), or set use_transformer_engine_op_fuser: false"},
      {"offload.paged-stash-with-whole",
       violation,
       core,
       {"moe_paged_stash", "cpu_offloading"},
       from(pr_4268),
       [](const Scenario& s) { return s.settings.moe_paged_stash && s.settings.cpu_offloading; },
       "moe_paged_stash cannot be enabled with cpu_offloading.",
       "keep one of the two"},
      {"offload.paged-stash-with-experts",
       violation,
       core,
       {"moe_paged_stash", "offload_modules"},
       from(pr_4268),
       [](const Scenario& s) { return s.settings.moe_paged_stash && offloads_any(s, experts); },
       "When moe_paged_stash is enabled, offload_modules must not include expert_fc1, moe_act, or fused_group_mlp "
       "(paged stash covers those activations).",
       "take them out of offload_modules"},
      {"moe.paged-stash-needs-budget",
       violation,
       core,
       {"moe_paged_stash", "moe_expert_rank_capacity_factor"},
       from(pr_4268),
       [](const Scenario& s) { return s.settings.moe_paged_stash && !s.settings.moe_expert_rank_capacity_factor; },
       "moe_paged_stash requires moe_expert_rank_capacity_factor to be set; there is no need to use paged stashing "
       "without it.",
       "set moe_expert_rank_capacity_factor: 1.5"},
      {"moe.budget-needs-hybridep",
       violation,
       core,
       {"moe_expert_rank_capacity_factor", "moe_flex_dispatcher_backend"},
       from(pr_4268),
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.moe_expert_rank_capacity_factor && o.moe_flex_dispatcher_backend != "hybridep" &&
                (o.moe_flex_dispatcher_backend != "ncclep" || scenario::core_version(s.software) < v0_19);
       },
       "moe_expert_rank_capacity_factor requires moe_flex_dispatcher_backend to be 'hybridep'.",
       "set moe_token_dispatcher_type: flex, moe_flex_dispatcher_backend: hybridep"},
      {"moe.budget-needs-op-fuser",
       violation,
       core,
       {"moe_expert_rank_capacity_factor", "use_transformer_engine_op_fuser"},
       from(pr_4268),
       [](const Scenario& s) {
         return s.settings.moe_expert_rank_capacity_factor && !s.settings.use_transformer_engine_op_fuser &&
                !s.settings.other.contains("moe_use_grouped_tensor");
       },
       "moe_expert_rank_capacity_factor with the 'hybridep' backend requires use_transformer_engine_op_fuser to be "
       "enabled.",
       "set use_transformer_engine_op_fuser: true"},
      {"moe.fused-experts",
       violation,
       core,
       {"use_transformer_engine_op_fuser", "NVTE_CUTEDSL_FUSED_GROUPED_MLP", "moe_apply_probs_on_input",
        "expert_tensor_parallel_size"},
       from(pr_4268),
       [](const Scenario& s) {
         const bool asks = scenario::core_version(s.software) >= v0_19;  // the older ones warn only
         const std::string enabled = scenario::variable(s, "NVTE_CUTEDSL_FUSED_GROUPED_MLP", "0");
         return moe_model(s) && s.settings.moe_grouped_gemm && s.settings.use_transformer_engine_op_fuser &&
                (scenario::expert_tensor_parallel_size(s) > 1 || s.settings.moe_apply_probs_on_input ||
                 (s.model.gated_linear_unit && asks && enabled == "0"));
       },
       "Fused GroupedMLP is not supported for this configuration.",
       "set the environment variable NVTE_CUTEDSL_FUSED_GROUPED_MLP=1, expert_tensor_parallel_size: 1 and "
       "moe_apply_probs_on_input: false",
       [](Scenario& s) { s.environment.emplace("NVTE_CUTEDSL_FUSED_GROUPED_MLP", "1"); }},
      {"offload.needs-te",
       violation,
       arguments,
       {"fine_grained_activation_offloading", "transformer_impl"},
       everywhere,
       [](const Scenario& s) { return fine_grained(s) && !te_layers(s); },
       "Fine-grained activation offloading is only supported with transformer_engine implementation",
       "set transformer_impl: transformer_engine"},
      {"offload.needs-v1",
       violation,
       arguments,
       {"fine_grained_activation_offloading", "NVTE_CPU_OFFLOAD_V1"},
       everywhere,
       [](const Scenario& s) {
         return fine_grained(s) && te_at_least(s, 2, 10) && scenario::variable(s, "NVTE_CPU_OFFLOAD_V1", "0") != "1";
       },
       "For fine-grained activation offloading with TE >= 2.10.0, NVTE_CPU_OFFLOAD_V1 should be set to 1 to avoid "
       "offloading weights.",
       "set the environment variable NVTE_CPU_OFFLOAD_V1=1",
       [](Scenario& s) { s.environment["NVTE_CPU_OFFLOAD_V1"] = "1"; }},
      {"offload.optimizer-needs-precision-aware",
       violation,
       arguments,
       {"optimizer_cpu_offload", "use_precision_aware_optimizer"},
       everywhere,
       [](const Scenario& s) { return s.settings.optimizer_cpu_offload && !s.settings.use_precision_aware_optimizer; },
       "The optimizer cpu offload must be used in conjunction with `--use-precision-aware-optimizer`, as the hybrid "
       "device optimizer reuses the code path of this flag.",
       "set use_precision_aware_optimizer: true"},
      {"offload.optimizer-with-fp8-gather",
       violation,
       arguments,
       {"optimizer_cpu_offload", "fp8_param_gather", "fp8_recipe"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.optimizer_cpu_offload && s.settings.fp8_param_gather &&
                !is(s.settings.fp8_recipe, "delayed");
       },
       "When `--fp8-param-gather` is enabled, the optimizer cpu offload must be used in conjunction with "
       "`--fp8-recipe delayed`.",
       "set fp8_param_gather: false, or fp8_recipe: delayed"},
  };
}

}  // namespace pipewright::plan
