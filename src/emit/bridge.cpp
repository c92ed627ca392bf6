// Megatron Bridge overrides out. A field goes to the section whose value survives: CommOverlapConfig.setup() and the
// mixed precision recipe write over cfg.model, cfg.ddp and cfg.optimizer (Megatron-Bridge
// src/megatron/bridge/training/comm_overlap.py:353-643, mixed_precision.py).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "bridge_overlap.hpp"
#include "bridge_precision.hpp"
#include "bridge_providers.hpp"
#include "emitted.hpp"
#include "field_table.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/userbuffers.hpp"
#include "python.hpp"

namespace pipewright::emit {

namespace {

const std::set<std::string, std::less<>> comm_overlap_fields = {"tp_comm_overlap",
                                                                "tp_comm_bootstrap_backend",
                                                                "overlap_p2p_comm",
                                                                "batch_p2p_comm",
                                                                "overlap_grad_reduce",
                                                                "overlap_param_gather",
                                                                "align_param_gather",
                                                                "overlap_param_gather_with_optimizer_step",
                                                                "bucket_size",
                                                                "defer_embedding_wgrad_compute",
                                                                "wgrad_deferral_limit",
                                                                "delay_wgrad_compute",
                                                                "overlap_moe_expert_parallel_comm"};
const std::set<std::string, std::less<>> precision_fields = {"fp16",
                                                             "bf16",
                                                             "grad_reduce_in_fp32",
                                                             "fp8",
                                                             "fp8_recipe",
                                                             "fp8_margin",
                                                             "first_last_layers_bf16",
                                                             "fp8_amax_history_len",
                                                             "fp8_wgrad",
                                                             "fp8_param",
                                                             "fp8_param_gather",
                                                             "fp8_amax_compute_algo",
                                                             "fp4",
                                                             "fp4_recipe",
                                                             "fp4_param",
                                                             "fp4_param_gather",
                                                             "num_layers_at_start_in_bf16",
                                                             "num_layers_at_end_in_bf16",
                                                             "reuse_grad_buf_for_mxfp8_param_ag",
                                                             "fp8_dot_product_attention",
                                                             "fp8_multi_head_attention"};
const std::set<std::string, std::less<>> ddp_fields = {"use_distributed_optimizer",
                                                       "num_distributed_optimizer_instances",
                                                       "num_buckets",
                                                       "average_in_collective",
                                                       "pad_buckets_for_high_nccl_busbw",
                                                       "reduce_scatter_with_fp32_accumulation",
                                                       "use_megatron_fsdp",
                                                       "data_parallel_sharding_strategy",
                                                       "gradient_reduce_div_fusion",
                                                       "nccl_ub",
                                                       "fsdp_double_buffer",
                                                       "suggested_communication_unit_size",
                                                       "keep_fp8_transpose_cache"};
const std::set<std::string, std::less<>> optimizer_fields = {"optimizer",
                                                             "muon_num_ns_steps",
                                                             "muon_split_qkv",
                                                             "muon_nesterov",
                                                             "clip_grad",
                                                             "log_num_zeros_in_grad",
                                                             "use_precision_aware_optimizer",
                                                             "main_grads_dtype",
                                                             "main_params_dtype",
                                                             "exp_avg_dtype",
                                                             "exp_avg_sq_dtype",
                                                             "store_param_remainders",
                                                             "optimizer_cpu_offload",
                                                             "optimizer_offload_fraction",
                                                             "overlap_cpu_optimizer_d2h_h2d",
                                                             "use_torch_optimizer_for_cpu_offload",
                                                             "pin_cpu_grads",
                                                             "pin_cpu_params",
                                                             "optimizer_cuda_graph"};
const std::set<std::string, std::less<>> train_fields = {"micro_batch_size", "global_batch_size"};

std::string section_of(const Scenario& s, std::string_view field) {
  if (of_distributed_optimizer(field) && !s.settings.use_distributed_optimizer)  // setup() hands them over with it only
    return field == "overlap_param_gather_with_optimizer_step" ? "optimizer" : "ddp";
  if (comm_overlap_fields.contains(field)) return "comm_overlap";
  if (precision_fields.contains(field)) return "mixed_precision";
  if (ddp_fields.contains(field)) return "ddp";
  if (optimizer_fields.contains(field)) return "optimizer";
  if (train_fields.contains(field)) return "train";
  if (field == "log_params_norm") return "logger";
  if (field == "align_grad_reduce") return "dist";  // DistributedInitConfig, read by setup.py:470
  return "model";
}

std::string recipe_of(const Scenario& s) {
  const std::string prefix = s.settings.fp16 ? "fp16" : "bf16";
  if (!s.settings.fp8) return prefix + "_mixed";
  const std::string recipe = s.settings.fp8_recipe.value_or("delayed");
  if (recipe == "delayed") return prefix + "_with_fp8_delayed_scaling_mixed";
  if (recipe == "mxfp8") return prefix + "_with_mxfp8_mixed";
  if (recipe == "blockwise") return prefix + "_with_fp8_subchannel_scaling_mixed";
  return prefix + "_with_fp8_current_scaling_mixed";
}

const std::map<std::string, std::string>& functions() {
  static const std::map<std::string, std::string> table = {
      {"silu", "torch.nn.functional.silu"}, {"gelu", "torch.nn.functional.gelu"}, {"relu", "torch.nn.functional.relu"},
      {"fast_gelu", "fast_gelu"},           {"quick_gelu", "quick_gelu"},         {"squared_relu", "squared_relu"}};
  return table;
}

bool is_gemma3(const Scenario& s) {
  const char* provider = special_provider(s);
  return provider != nullptr && std::string_view(provider) == "Gemma3ModelProvider";
}

std::string literal_of(const Scenario& s, const std::string& field) {
  const auto value = scenario::get(s, field);
  // Gemma 3's provider counts the query itself and takes the layers' pattern by another name.
  if (is_gemma3(s) && field == "window_size" && !s.model.window_size.empty())
    return std::to_string(s.model.window_size.front() + 1);
  // Where experts are spread, None is 1 in Bridge, TP in Megatron Core.
  if (field == "expert_tensor_parallel_size") return std::to_string(scenario::expert_tensor_parallel_size(s));
  if (field == "vocab_size") return std::to_string(scenario::padded_vocab_size(s));  // Bridge pads none that is stated
  if (field == "activation_func") return functions().at(scenario::activation_func(s));
  static const std::set<std::string, std::less<>> scalars = {
      "cp_comm_type",          "moe_layer_freq",     "window_attn_skip_freq",         "no_rope_freq",
      "linear_attention_freq", "moe_aux_loss_coeff", "moe_router_load_balancing_type"};
  if (scalars.contains(field)) {  // a list of one is a pattern of one layer, or needs a list of coefficients
    const auto items = items_of(value);
    if (items.size() == 1) return python_literal(items.front());
    if (items.empty() && field == "moe_router_load_balancing_type") return python_literal("\"none\"");
  }
  return python_literal(value);
}

Line line_of(const Scenario& s, const std::string& field) {
  if (field == "untie_embeddings_and_output_weights")
    return {{"cfg.model.share_embeddings_and_output_weights = " +
             std::string(s.model.untie_embeddings_and_output_weights ? "False" : "True")},
            ""};
  if (is_gemma3(s) && field == "window_attn_skip_freq")
    return {{"cfg.model.interleaved_attn_pattern = " + gemma3_pattern(s)}, ""};
  if (field == "quant_recipe") return {{"cfg.model.quant_recipe = " + module_recipes_python(s)}, ""};
  Line line{{"cfg." + section_of(s, field) + "." + field + " = " + literal_of(s, field)}, ""};
  if (section_of(s, field) == "comm_overlap" &&
      (field == "overlap_moe_expert_parallel_comm" || field == "delay_wgrad_compute"))
    line.comment = "cfg.model." + field + " would be reset";
  return line;
}

/// Lines that always stand: other defaults hang on them.
bool structural(const Scenario& s, const std::string& field) {
  static const std::set<std::string> always = {"num_layers",
                                               "hidden_size",
                                               "num_attention_heads",
                                               "seq_length",
                                               "vocab_size",
                                               "tensor_model_parallel_size",
                                               "pipeline_model_parallel_size",
                                               "virtual_pipeline_model_parallel_size",
                                               "context_parallel_size",
                                               "expert_model_parallel_size",
                                               "sequence_parallel",
                                               "micro_batch_size",
                                               "global_batch_size",
                                               "use_distributed_optimizer"};
  if (field == "expert_tensor_parallel_size") return s.settings.expert_model_parallel_size > 1;
  // CommOverlapConfig.setup() starts it at -1, which Megatron Core refuses.
  if (field == "wgrad_deferral_limit") return s.settings.defer_embedding_wgrad_compute;
  if (field == "multi_latent_attention") return s.model.multi_latent_attention;
  return always.contains(field);
}

}  // namespace

/// What a reader of the file cannot know otherwise (import_bridge.cpp reads it back).
std::string versions_of_run(const Scenario& s) {
  const auto& w = s.software;
  std::string text = version_remark;
  if (w.megatron_bridge) text += " Megatron Bridge " + *w.megatron_bridge + ",";
  text += " Megatron Core " + w.megatron_core + ", Transformer Engine " + w.transformer_engine;
  if (w.torch) text += ", torch " + *w.torch;
  return text;
}

Groups bridge(const Scenario& scenario) {
  const Machine machine{scenario.cluster.num_gpus, scenario.cluster.gpus_per_node, scenario.cluster.profile,
                        scenario.software.megatron_core};
  const std::string recipe = "cfg.mixed_precision = get_mixed_precision_config(\"" + recipe_of(scenario) + "\")";
  const auto titles = fields_by_title();
  // Without a table Transformer Engine would take its own.
  const char* const found = scenario.settings.tp_comm_overlap ? model::overlap_table(scenario) : nullptr;
  OverlapObjects table;
  if (const auto own = scenario.settings.other.find("tp_comm_overlap_cfg"); found != nullptr)
    table = {found, {found}};
  else if (scenario.settings.tp_comm_overlap && own != scenario.settings.other.end())
    table = overlap_objects(own->second);
  // Its only argument without a default comes first.
  const std::string comm_overlap = "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=" +
                                   std::string(scenario.settings.tp_comm_overlap ? "True" : "False") +
                                   (table.text.empty() ? "" : ", tp_comm_overlap_cfg=" + table.text) + ")";
  std::string structure = recipe + "\n" + comm_overlap + "\n";
  for (const auto& [title, fields] : titles)
    for (const auto& field : fields)
      if (structural(scenario, field)) structure += line_of(scenario, field).words.front() + "\n";
  const auto base = from_bridge_text(structure, "bridge", machine).scenario;

  Groups groups = {{"Imports",
                    {{{"import torch"}, ""},
                     {{fmt::format("from megatron.bridge.training.comm_overlap import CommOverlapConfig{}{}",
                                   table.classes.empty() ? "" : ", ", fmt::join(table.classes, ", "))},
                      ""},
                     {{"from megatron.bridge.training.mixed_precision import get_mixed_precision_config"}, ""}}}};
  groups.front().lines.insert(groups.front().lines.begin(), {{}, versions_of_run(scenario)});
  const char* const provider = special_provider(scenario);
  const std::string model_class = provider == nullptr ? "" : provider_remark + std::string(provider);
  if (provider != nullptr) groups.front().lines.insert(std::next(groups.front().lines.begin()), {{}, model_class});
  const auto activation = scenario::activation_func(scenario);
  // TransformerConfig knows these by identity: each is the object that it imports itself.
  if (activation == "quick_gelu")
    groups.front().lines.push_back({{"from megatron.core.fusions.fused_bias_geglu import quick_gelu"}, ""});
  if (activation == "fast_gelu" || activation == "squared_relu")
    groups.front().lines.push_back({{"from megatron.core.activations import " + activation}, ""});
  if (!scenario.settings.quant_recipe.empty())
    groups.front().lines.push_back(
        {{"from megatron.core.quantization.quant_config import GlobMatcher, RecipeConfig"}, ""});
  if (const auto& targets = scenario.settings.lora_target_modules; !targets.empty()) {
    groups.front().lines.push_back({{"from megatron.bridge.peft.lora import LoRA"}, ""});
    groups.push_back(
        {"Adapters",
         {{{fmt::format("cfg.peft = LoRA(target_modules=[\"{}\"], dim={}, dropout={})", fmt::join(targets, "\", \""),
                        scenario.settings.lora_dim, scenario.settings.lora_dropout)},
           "asks for a cfg.checkpoint.pretrained_checkpoint of yours"}}});
  }
  if (scenario.settings.sft) {
    groups.front().lines.push_back({{"from megatron.bridge.data.packing import PackedSequenceSpecs"}, ""});
    const auto cp = scenario.settings.context_parallel_size;
    groups.push_back(
        {"Packed sequences",
         {{{"cfg.dataset.enable_offline_packing = True"},
           "of a dataset configuration that packs (GPTSFTDatasetConfig)"},
          {{fmt::format("cfg.dataset.offline_packing_specs = PackedSequenceSpecs(packed_sequence_size={}, "
                        "pad_seq_to_mult={}{})",
                        scenario.model.seq_length, cp > 1 ? 2 * cp : 1,
                        scenario.settings.pad_cu_seqlens ? ", pad_cu_seqlens=True" : "")},
           scenario.settings.pad_cu_seqlens ? "asks for cfg.dataset.dataset_kwargs = {\"pad_to_max_length\": True}"
                                            : ""}}});
  }
  Group overlap{"Overlap", {{{comm_overlap}, "None in most recipes: its fields need it first"}}};
  groups.push_back(std::move(overlap));
  for (const auto& [title, fields] : titles) {
    Group group{title, {}};
    if (title == "Precision") group.lines.push_back({{recipe}, ""});
    for (const auto& field : fields) {
      if (is_ours(field) || field == "sft") continue;
      if (field == "tp_comm_overlap") continue;                     // said where cfg.comm_overlap is made
      if (field == "make_vocab_size_divisible_by") continue;        // the vocabulary is stated as padded
      if (field == "rotary_base" && is_gemma3(scenario)) continue;  // its provider's is a pair
      // GPTModelProvider has no such field and builds as many positions as a sequence has.
      if (field == "max_position_embeddings" && !scenario.model.multi_latent_attention) {
        const auto positions = scenario.model.max_position_embeddings.value_or(scenario.model.seq_length);
        if (scenario.model.position_embedding_type == "learned_absolute" && positions != scenario.model.seq_length)
          group.lines.push_back(
              {{}, fmt::format("{} positions cannot be said: cfg.model.seq_length are built", positions)});
        continue;
      }
      const bool always = structural(scenario, field) || field == "check_for_nan_in_loss_and_grad";  // recipes differ
      if (!always && (same_value(scenario, base, field) || !matters(field, scenario))) continue;
      // None on cfg.comm_overlap means "let setup() decide": what Megatron Core would decide is said.
      if (field == "batch_p2p_comm" && !scenario.settings.batch_p2p_comm) {
        group.lines.push_back({{std::string("cfg.comm_overlap.batch_p2p_comm = ") +
                                (scenario::batch_p2p_comm(scenario) ? "True" : "False")},
                               ""});
        continue;
      }
      if (field == "bucket_size" && !scenario.settings.bucket_size) {
        group.lines.push_back(
            {{"cfg.comm_overlap.bucket_size = " + std::to_string(scenario::bucket_size(scenario))}, ""});
        continue;
      }
      if (field == "check_for_nan_in_loss_and_grad") {
        const std::string checks = scenario::checks_for_nan(scenario) ? "True" : "False";
        group.lines.push_back({{"cfg.ddp.check_for_nan_in_grad = " + checks}, ""});
        group.lines.push_back({{"cfg.rerun_state_machine.check_for_nan_in_loss = " + checks}, ""});
        continue;
      }
      if (field == "create_attention_mask_in_dataloader") {
        group.lines.push_back({{std::string("cfg.dataset.skip_getting_attention_mask_from_dataset = ") +
                                (scenario::creates_attention_mask(scenario) ? "False" : "True")},
                               ""});
        continue;
      }
      if (section_of(scenario, field) == "comm_overlap" && scenario::get(scenario, field) == "none") continue;
      group.lines.push_back(line_of(scenario, field));
      if (field == "use_distributed_optimizer")  // where one of the two is True, Bridge sets both
        group.lines.push_back({{std::string("cfg.optimizer.use_distributed_optimizer = ") +
                                (scenario.settings.use_distributed_optimizer ? "True" : "False")},
                               ""});
      if (field == "use_megatron_fsdp" &&
          scenario.settings.use_megatron_fsdp)  // its own format of checkpoints, as flags say
        group.lines.push_back({{"cfg.checkpoint.ckpt_format = \"fsdp_dtensor\""}, ""});
      if (field == "seq_length")
        group.lines.push_back({{"cfg.dataset.seq_length = " + std::to_string(scenario.model.seq_length)}, ""});
    }
    if (title == "Model")
      for (const auto& [name, value] : scenario.model.other)
        if (std::ranges::find(carried(), name, &Carried::field) != carried().end())
          group.lines.push_back({{"cfg.model." + name + " = " + python_literal(value)}, ""});
    groups.push_back(std::move(group));
  }

  std::string printed = provider == nullptr ? "" : "# " + model_class + "\n";
  for (const auto& word : words(groups)) printed += word + "\n";
  const auto back = from_bridge_text(printed, "bridge", machine).scenario;
  Group unsaid{"What these overrides cannot say", {}};
  for (const auto& field : scenario::fields())
    if ((field.section == "model" || field.section == "settings") && !same_value(scenario, back, field.name) &&
        matters(field.name, scenario))
      unsaid.lines.push_back({{},
                              field.name + ": " + scenario::get(scenario, field.name) +
                                  " is not a setting of Megatron Bridge; these overrides give " +
                                  scenario::get(back, field.name)});
  for (const auto& [others, read] :
       {std::pair(&scenario.model.other, &back.model.other), std::pair(&scenario.settings.other, &back.settings.other)})
    for (const auto& [name, value] : *others)
      if (const auto said = read->find(name); value != "none" && (said == read->end() || said->second == "none"))
        unsaid.lines.push_back({{}, said_elsewhere(name, value)});
  if (!scenario.software.megatron_bridge)
    unsaid.lines.push_back(
        {{},
         "predicted for pretrain_gpt.py; Megatron Bridge's step and memory differ: simulate --bridge "
         "with these lines tells"});
  if (scenario::core_version(scenario.software) == scenario::Version::pr_4268)
    unsaid.lines.push_back({{},
                            "overlap_p2p_* exist only in Megatron-LM pull request 4268: Bridge's pinned "
                            "Megatron-LM must be replaced by it"});
  groups.push_back(std::move(unsaid));
  Group environment{"Environment", {}};
  for (const auto& [name, value] : variables(scenario))
    environment.lines.push_back({{"cfg.env_vars[" + python_string(name) + "] = " + python_string(value)}, ""});
  groups.push_back(std::move(environment));
  std::erase_if(groups, [](const Group& group) { return group.lines.empty(); });
  return groups;
}

}  // namespace pipewright::emit
