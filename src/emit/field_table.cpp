// The tables as included data, their look-up, and which of a scenario's fields a version can tell apart.
#include "field_table.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>

namespace pipewright::emit {

namespace {

namespace rows {  // the words of the rows
using enum scenario::Version;
using scenario::from;
using scenario::Versions;
constexpr auto all = scenario::all_versions;
constexpr Flag table[] = {
#include "flags/megatron.inc"
};
constexpr OtherFlag others[] = {
#include "flags/others.inc"
};
}  // namespace rows
using rows::others;
using rows::table;

constexpr Legend fictional[] = {
    {"--overlap-p2p-communication",
     "P2P overlap is on by default with a virtual pipeline: --no-overlap-p2p-communication turns it off, "
     "--overlap-p2p-communication-warmup-flush extends it to warm-up and cool-down"},
    {"--overlap-p2p-comm",
     "P2P overlap is on by default with a virtual pipeline: --no-overlap-p2p-communication turns it off"},
    {"--batch-p2p-communication", "batch_p2p_comm is the opposite of P2P overlap: --no-overlap-p2p-communication"},
    {"--batch-p2p-comm", "batch_p2p_comm is the opposite of P2P overlap: --no-overlap-p2p-communication"},
    {"--virtual-pipeline-model-parallel-size",
     "--num-virtual-stages-per-pipeline-rank or --num-layers-per-virtual-pipeline-stage"},
    {"--cpu-offloading", "--cpu-offloading-num-layers N with N > 0 turns it on"},
    {"--activation-offloading", "--fine-grained-activation-offloading with --offload-modules"},
    {"--num-moe-experts", "--num-experts"},
    {"--selective-recompute", "--recompute-granularity selective --recompute-modules ..."},
    {"--disable-parameter-transpose-cache", "nothing: TransformerConfig.disable_parameter_transpose_cache has no flag"},
    {"--deallocate-pipeline-outputs", "nothing: outputs are always deallocated"},
};

// megatron/training/arguments.py (core_r0.19.0) and MLATransformerConfig; the providers of Megatron Bridge name the
// first two as the fields here do.
constexpr Carried carried_flags[] = {
    {"--use-rope-scaling", "rope_scaling"},
    {"--rope-scaling-factor", "rope_scaling_factor"},
    {"--rotary-seq-len-interpolation-factor", "seq_len_interpolation_factor"},
    {"--rotary-scaling-factor", "rotary_scaling_factor"},
    {"--original-max-position-embeddings", "original_max_position_embeddings"},  // dev's
    {"", "beta_fast"},  // no flag sets these of latent attention: 32 and 1
    {"", "beta_slow"},
    {"--mscale", "mscale"},
    {"--mscale-all-dim", "mscale_all_dim"},
};

constexpr std::string_view mla_fields[] = {"q_lora_rank",         "kv_lora_rank", "qk_head_dim",
                                           "qk_pos_emb_head_dim", "v_head_dim",   "rope_type"};

}  // namespace

std::span<const Flag> flags() { return table; }

const Flag* find_flag(std::string_view name) {
  static const std::map<std::string_view, const Flag*> index = [] {
    std::map<std::string_view, const Flag*> map;
    for (const auto& flag : table) map.emplace(flag.name, &flag);
    return map;
  }();
  const auto at = index.find(name);
  return at == index.end() ? nullptr : at->second;
}

const Flag* flag_of_field(std::string_view field, const scenario::Software& software) {
  const Flag* found = nullptr;
  for (const auto& flag : table)
    if (flag.field == field && !is_special(flag) && has(flag.versions, software) &&
        (found == nullptr || flag.name.starts_with("--no-")))
      found = &flag;
  return found;
}

std::string default_of(const Flag& flag, const scenario::Software& software) {
  // DistributedDataParallelConfig's (arguments.py:2722 of 0.17.0, :2805 of 0.18.0).
  if (flag.field == "data_parallel_sharding_strategy" && scenario::core_version(software) < scenario::Version::v0_18)
    return "no_shard";
  return std::string(flag.parser_default);
}

bool graphs_have_scopes(const scenario::Software& software) {
  return flag_of_field("cuda_graph_modules", software) == nullptr;
}

bool has(scenario::Versions versions, const scenario::Software& software) {
  return versions.has(scenario::core_version(software));
}

std::string versions_text(scenario::Versions versions) { return scenario::in_words(versions, false); }

std::string newest_of(scenario::Versions versions) {
  const auto names = scenario::stated_names(versions);  // releases first, the newest last
  const auto branch = std::ranges::find_if(
      names, [](const std::string& name) { return std::isdigit(static_cast<unsigned char>(name.front())) == 0; });
  return names.empty() ? "" : branch == names.begin() ? names.front() : *std::prev(branch);
}

const OtherFlag* find_other_flag(std::string_view name) {
  static const std::map<std::string_view, const OtherFlag*> index = [] {
    std::map<std::string_view, const OtherFlag*> map;
    for (const auto& flag : others) map.emplace(flag.name, &flag);
    return map;
  }();
  const auto at = index.find(name);
  return at == index.end() ? nullptr : at->second;
}

std::span<const OtherFlag> other_flags() { return others; }

std::vector<std::string> all_flag_names() {
  std::vector<std::string> names;
  for (const auto& flag : table) names.emplace_back(flag.name);
  for (const auto& flag : others) names.emplace_back(flag.name);
  return names;
}

std::span<const Carried> carried() { return carried_flags; }

const Carried* carried_of_flag(std::string_view name) {
  const auto* at = std::ranges::find(carried_flags, name, &Carried::flag);
  return at == std::end(carried_flags) ? nullptr : at;
}

std::span<const Legend> legends() { return fictional; }

bool is_gone(std::string_view flag) {
  // megatron/arguments.py before core_r0.9.0: what is logged, how data is stored, which of two ways the only one since
  // is.
  constexpr std::array names = {"--log-batch-size-to-tensorboard",
                                "--no-log-learnig-rate-to-tensorboard",
                                "--log-learning-rate-to-tensorboard",
                                "--no-query-key-layer-scaling",
                                "--data-impl",
                                "--DDP-impl",
                                "--s3-cache-path"};
  return std::ranges::find(names, flag) != names.end();
}

bool is_ours(std::string_view field) {
  constexpr std::array names = {"moe_load_imbalance",
                                "pre_layernorm",
                                "post_layernorm",
                                "apply_embedding_scaling",
                                "attention_chunk_size",
                                "qk_layernorm_whole",
                                "scale_queries_by_position",
                                "sequence_lengths",
                                "packing_algorithm",
                                "pack_order",
                                "pad_cu_seqlens"};
  return std::ranges::find(names, field) != names.end() || field.starts_with("te_op_offload") ||
         field.starts_with("lora_");
}

bool is_field(const std::string& name) {
  static const auto fields = [] {
    std::set<std::string> names;
    for (const auto& row : scenario::fields()) names.insert(row.name);
    for (const auto& row : carried()) names.emplace(row.field);
    return names;
  }();
  return fields.contains(name);
}

bool of_distributed_optimizer(std::string_view field) {
  constexpr std::array names = {"overlap_grad_reduce", "overlap_param_gather", "align_param_gather",
                                "overlap_param_gather_with_optimizer_step", "bucket_size"};
  return std::ranges::find(names, field) != names.end();
}

bool matters(std::string_view field, const Scenario& s) {
  if (field == "packing_algorithm" || field == "pack_order") return !s.settings.sequence_lengths.empty();
  if (field.starts_with("muon_")) return s.settings.optimizer.ends_with("muon");
  if (field.starts_with("mamba_")) return scenario::has_mamba_layer(s);
  if (field.starts_with("lora_")) return !s.settings.lora_target_modules.empty();
  if (std::ranges::find(mla_fields, field) != std::end(mla_fields)) return s.model.multi_latent_attention;
  if (field == "moe_token_dispatcher_type" && s.settings.variable_seq_lengths) return true;  // asked of any model
  if (field == "moe_aux_loss_coeff" && s.settings.moe_router_load_balancing_type.empty()) return false;
  if (field.starts_with("moe_") && field != "moe_load_imbalance") return s.model.num_moe_experts.has_value();
  if (field.starts_with("cpu_offloading_")) return s.settings.cpu_offloading;  // a number of layers would switch it on
  if (field == "optimizer_offload_fraction") return s.settings.optimizer_cpu_offload;
  if (field == "data_parallel_sharding_strategy" || field == "suggested_communication_unit_size")
    return s.settings.use_megatron_fsdp;
  if (field == "align_param_gather") return s.settings.overlap_param_gather && scenario::interleaved(s);
  if (field == "overlap_p2p_comm") return scenario::interleaved(s);
  if (field == "bucket_size") return s.settings.overlap_grad_reduce;  // else one bucket for all
  if (field.starts_with("num_layers_at_")) return s.settings.first_last_layers_bf16;
  if (field == "quant_recipe") return s.settings.fp8 || s.settings.fp4;
  if (field == "fp8_recipe" || field == "fp8_margin" || field.starts_with("fp8_amax"))
    return s.settings.fp8.has_value();
  return true;
}

bool same_value(const Scenario& a, const Scenario& b, const std::string& field) {
  const bool by_program = field == "check_for_nan_in_loss_and_grad" || field == "create_attention_mask_in_dataloader";
  if (!by_program && scenario::get(a, field) == scenario::get(b, field)) return true;
  if (field == "batch_p2p_comm")  // read with a pipeline only
    return a.settings.pipeline_model_parallel_size == 1 || scenario::batch_p2p_comm(a) == scenario::batch_p2p_comm(b);
  if (field == "bucket_size") return scenario::bucket_size(a) == scenario::bucket_size(b);
  if (field == "activation_func") return scenario::activation_func(a) == scenario::activation_func(b);
  if (field == "num_query_groups") return scenario::num_query_groups(a) == scenario::num_query_groups(b);
  if (field == "kv_channels") return scenario::kv_channels(a) == scenario::kv_channels(b);
  if (field == "ffn_hidden_size") return scenario::ffn_hidden_size(a) == scenario::ffn_hidden_size(b);
  if (field == "expert_tensor_parallel_size")
    return scenario::expert_tensor_parallel_size(a) == scenario::expert_tensor_parallel_size(b);
  if (field == "max_position_embeddings")
    return a.model.max_position_embeddings.value_or(a.model.seq_length) ==
           b.model.max_position_embeddings.value_or(b.model.seq_length);
  if (field == "virtual_pipeline_model_parallel_size") return scenario::num_chunks(a) == scenario::num_chunks(b);
  if (field == "check_for_nan_in_loss_and_grad") return scenario::checks_for_nan(a) == scenario::checks_for_nan(b);
  if (field == "create_attention_mask_in_dataloader")
    return scenario::creates_attention_mask(a) == scenario::creates_attention_mask(b);
  if (field == "recompute_modules") return scenario::recompute_modules(a) == scenario::recompute_modules(b);
  return false;
}

std::vector<std::pair<std::string, std::vector<std::string>>> fields_by_title() {
  // The first field of each group, in the order of scenario::fields().
  static const std::map<std::string, std::string> first = {
      {"num_layers", "Model"},
      {"tensor_model_parallel_size", "Parallelism"},
      {"micro_batch_size", "Batch"},
      {"overlap_p2p_comm", "Pipeline transfers and schedule"},
      {"bf16", "Precision"},
      {"transformer_impl", "Kernels"},
      {"tp_comm_overlap", "Tensor-parallel overlap"},
      {"recompute_granularity", "Recompute"},
      {"cpu_offloading", "Activation offload"},
      {"overlap_moe_expert_parallel_comm", "Expert-parallel overlap and delayed weight gradients"},
      {"moe_token_dispatcher_type", "Mixture of experts"},
      {"cuda_graph_impl", "CUDA graphs"},
      {"use_distributed_optimizer", "Data parallel"},
      {"optimizer", "Optimizer"},
  };
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const auto& field : scenario::fields()) {
    if (field.section != "model" && field.section != "settings") continue;
    if (const auto title = first.find(field.name); title != first.end() || groups.empty())
      groups.emplace_back(title == first.end() ? "Model" : title->second, std::vector<std::string>{});
    groups.back().second.push_back(field.name);
  }
  return groups;
}

}  // namespace pipewright::emit
