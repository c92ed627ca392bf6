// A scenario as flags of Megatron-LM: only what differs from the parser's defaults. What was printed is imported again,
// and every field that does not come back is said in a comment: no setting is lost silently.
#include <algorithm>
#include <cmath>

#include "emitted.hpp"
#include "field_table.hpp"
#include "hybrid.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/overlap_table.hpp"

namespace pipewright::emit {

namespace {

using Words = std::vector<std::string>;

/// Some parsers take integers only where a scenario may hold 500000.0; every float parser takes both.
std::string without_point(std::string value) {
  if (value.ends_with(".0")) value.resize(value.size() - 2);
  return value;
}

Words words_of(const Flag& flag, const std::string& value) {
  Words words = {std::string(flag.name)};
  const auto items = items_of(value);
  switch (flag.kind) {
    case Kind::on:
    case Kind::off:
      return words;
    case Kind::value:
      words.push_back(without_point(unquoted(value)));
      return words;
    case Kind::list:
      for (const auto& item : items) words.push_back(unquoted(item));
      return words;
    case Kind::python: {
      std::string text;
      if (flag.field == "window_size")  // a tuple, not a pattern
        for (const auto& item : items) text += (text.empty() ? "" : ",") + item;
      words.push_back(text.empty() ? python_text(items) : text);
      return words;
    }
    case Kind::special:
    case Kind::mark:
      break;
  }
  throw InternalError("flag " + std::string(flag.name) + " has no plain spelling");
}

/// The flags of a field whose flag does not simply name it.
std::optional<std::vector<Words>> special(const Scenario& s, const std::string& field) {
  const auto& settings = s.settings;
  const auto& model = s.model;
  std::vector<Words> lines;
  const auto when = [&](bool condition, Words words) {
    if (condition) lines.push_back(std::move(words));
    return lines;
  };
  if (field == "gated_linear_unit" || field == "activation_func") {
    if (field == "activation_func") return lines;  // said with gated_linear_unit
    const auto function = scenario::activation_func(s);
    when(model.gated_linear_unit && function == "silu", {"--swiglu"});
    when(model.gated_linear_unit && function == "quick_gelu", {"--quick-geglu"});
    return when(!model.gated_linear_unit && function == "squared_relu", {"--squared-relu"});
  }
  if (field == "ffn_hidden_size")  // with --swiglu the parser's default is 8/3 h, the config class's 4 h
    return when(model.ffn_hidden_size || model.gated_linear_unit,
                {"--ffn-hidden-size", std::to_string(scenario::ffn_hidden_size(s))});
  if (field == "num_query_groups") {
    if (!model.num_query_groups || model.multi_latent_attention) return lines;
    return std::vector<Words>{{"--group-query-attention"},
                              {"--num-query-groups", std::to_string(*model.num_query_groups)}};
  }
  if (field == "rotary_base")  // the parser's type is int
    return when(model.rotary_base != scenario::Model{}.rotary_base,
                {"--rotary-base", std::to_string(std::llround(model.rotary_base))});
  if (field == "max_position_embeddings")  // the parser compares it with --seq-length and knows no default
    return std::vector<Words>{
        {"--max-position-embeddings", std::to_string(model.max_position_embeddings.value_or(model.seq_length))}};
  if (field == "hybrid_layer_pattern") {
    if (!model.hybrid_layer_pattern) return lines;
    const bool earlier = scenario::core_version(s.software) < scenario::Version::v0_17;
    lines.push_back(
        {earlier ? "--hybrid-override-pattern" : "--hybrid-layer-pattern", unquoted(scenario::get(s, field))});
    lines.push_back({"--is-hybrid-model"});
    Words spec = hybrid_spec(s.software);
    spec.insert(spec.begin(), "--spec");
    lines.push_back(std::move(spec));
    return lines;
  }
  if (field == "virtual_pipeline_model_parallel_size" && model.hybrid_layer_pattern) return lines;  // by its pipes
  if (field == "virtual_pipeline_model_parallel_size")
    return when(
        settings.virtual_pipeline_model_parallel_size.value_or(1) > 1 && !settings.pipeline_model_parallel_layout,
        {"--num-virtual-stages-per-pipeline-rank",
         std::to_string(settings.virtual_pipeline_model_parallel_size.value_or(1))});
  if (field == "bias_activation_fusion") {
    if (settings.bias_activation_fusion) return lines;
    // core_transformer_config_from_args: --swiglu has a flag of its own, all else follows the other, which is off
    // without biases; other gates than these have no flag that could be followed by this one.
    const auto function = scenario::activation_func(s);
    when(model.gated_linear_unit && function == "silu", {"--no-bias-swiglu-fusion"});
    return when((!model.gated_linear_unit || function == "quick_gelu") && model.add_bias_linear,
                {"--no-bias-gelu-fusion"});
  }
  if (field == "overlap_param_gather_with_optimizer_step") {  // refused with distributed checkpoints, the default
    when(settings.overlap_param_gather_with_optimizer_step, {"--overlap-param-gather-with-optimizer-step"});
    return when(settings.overlap_param_gather_with_optimizer_step, {"--ckpt-format", "torch"});
  }
  const auto* lays_out = find_flag("--no-use-layer-wise-param-layout");
  if (field == "optimizer" && settings.optimizer == "dist_muon" && has(*lays_out, s.software))
    return std::vector<Words>{{"--optimizer", "dist_muon"}, {std::string(lays_out->name)}};
  if (field == "use_megatron_fsdp") {  // which has a format of its own for checkpoints
    when(settings.use_megatron_fsdp, {"--use-megatron-fsdp"});
    return when(settings.use_megatron_fsdp, {"--ckpt-format", "fsdp_dtensor"});
  }
  // What is in force: with Bridge and in programs of one's own both are off without being stated.
  if (field == "check_for_nan_in_loss_and_grad")
    return when(!scenario::checks_for_nan(s), {"--no-check-for-nan-in-loss-and-grad"});
  if (field == "create_attention_mask_in_dataloader")
    return when(!scenario::creates_attention_mask(s), {"--no-create-attention-mask-in-dataloader"});
  if (field == "persist_layer_norm") return when(!settings.persist_layer_norm, {"--no-persist-layer-norm"});
  if (field == "grad_reduce_in_fp32") {
    when(settings.bf16 && !settings.grad_reduce_in_fp32, {"--grad-reduce-in-bf16"});
    return when(!settings.bf16 && settings.grad_reduce_in_fp32, {"--accumulate-allreduce-grads-in-fp32"});
  }
  if (field == "fp8_param_gather") return when(settings.fp8_param_gather, {"--fp8-param-gather"});
  if (field == "fp4_param_gather") return when(settings.fp4_param_gather, {"--fp4-param-gather"});
  if (field == "apply_rope_fusion" && model.position_embedding_type == "yarn") return lines;  // off by itself
  const bool scopes = graphs_have_scopes(s.software);
  if (field == "cuda_graph_impl" && scopes && settings.cuda_graph_impl == "full_iteration")
    return std::vector<Words>{{"--cuda-graph-impl", "local"}, {"--cuda-graph-scope", "full_iteration"}};
  if (field == "cuda_graph_modules" && scopes) {
    Words words = {"--cuda-graph-scope"};
    words.insert(words.end(), settings.cuda_graph_modules.begin(), settings.cuda_graph_modules.end());
    return when(!settings.cuda_graph_modules.empty(), std::move(words));
  }
  return std::nullopt;
}

/// A scenario with the parser's default in every field that has a flag.
Scenario parser_defaults(const Scenario& s) {
  Scenario defaults;
  defaults.software = s.software;
  for (const auto& flag : flags())
    if (!is_special(flag) && !flag.parser_default.empty() && has(flag, s.software))
      scenario::set(defaults, std::string(flag.field) + "=" + default_of(flag, s.software));
  return defaults;
}

std::string missing_comment(const Scenario& s, const std::string& field, const std::string& printed) {
  const auto value = scenario::get(s, field);
  const auto elsewhere =
      std::ranges::find_if(flags(), [&](const Flag& flag) { return flag.field == field && !is_special(flag); });
  if (elsewhere != flags().end() && !has(*elsewhere, s.software))
    return field + ": " + value + " cannot be said: Megatron Core " + s.software.megatron_core + " has no " +
           std::string(elsewhere->name) + " (versions with it: " + versions_text(*elsewhere) + ")";
  if (field == "rotary_base")
    return field + ": " + value + " cannot be said: --rotary-base takes an integer, here " + printed;
  if (field.starts_with("lora_"))
    return field + ": " + value + " has no flag: Megatron Bridge has adapters (--emit bridge)";
  if (field == "quant_recipe") return field + ": " + value + " is a file of yours: --te-precision-config-file";
  if (field == "pre_layernorm")
    return field + ": " + value + " has no flag: a layer specification without fused norms builds it";
  if (field == "post_layernorm" || field == "apply_embedding_scaling")
    return field + ": " + value + " has no flag: Megatron Bridge's Gemma providers build it";
  if (field == "scale_queries_by_position")
    return field + ": " + value + " has no flag: Megatron Bridge's ministral_layer_spec builds it";
  if (is_ours(field))
    return field + ": " + value + " is not a setting of Megatron" +
           (field.starts_with("te_op_offload")
                ? "; with Transformer Engine pull request 3128 set the attribute fine_grained_activation_offloading on "
                  "the ops of the fused grouped MLP"
                : "");
  return field + ": " + value + " has no flag; the command line gives " + printed + ". Set config." + field +
         " in the code that builds the config";
}

bool can_say(const Carried& row, const scenario::Software& software) {
  const auto* flag = find_other_flag(row.flag);
  return flag != nullptr && has(flag->versions, software);
}

}  // namespace

Groups megatron(const Scenario& scenario) {
  const Scenario defaults = parser_defaults(scenario);
  Groups groups;
  for (const auto& [title, fields] : fields_by_title()) {
    Group group{title, {}};
    for (const auto& field : fields) {
      if (const auto lines = special(scenario, field)) {
        for (const auto& words : *lines) group.lines.push_back({words, ""});
        continue;
      }
      const Flag* flag = flag_of_field(field, scenario.software);
      if (flag == nullptr || !matters(field, scenario)) continue;
      const auto value = scenario::get(scenario, field);
      if (value == scenario::get(defaults, field) && !flag->parser_default.empty()) continue;
      if (value == "none" || (value == "[]" && flag->kind != Kind::value)) continue;
      if ((flag->kind == Kind::on && value != "true") || (flag->kind == Kind::off && value != "false")) continue;
      group.lines.push_back({words_of(*flag, value), ""});
    }
    if (title == "Model")
      for (const auto& row : carried()) {
        const auto at = scenario.model.other.find(std::string(row.field));
        if (at == scenario.model.other.end() || !can_say(row, scenario.software) || at->second == "false") continue;
        Words flag = {std::string(row.flag)};
        if (at->second != "true") flag.push_back(without_point(unquoted(at->second)));
        group.lines.push_back({std::move(flag), ""});
      }
    groups.push_back(std::move(group));
  }

  std::string line;
  for (const auto& word : words(groups)) line += quoted(word) + " ";
  const Machine machine{scenario.cluster.num_gpus, scenario.cluster.gpus_per_node, scenario.cluster.profile,
                        scenario.software.megatron_core};
  const auto back = from_megatron(line, machine).scenario;
  Group unsaid{"What this command line cannot say", {}};
  for (const auto& field : scenario::fields()) {
    if ((field.section != "model" && field.section != "settings") || same_value(scenario, back, field.name)) continue;
    if (!matters(field.name, scenario)) continue;
    unsaid.lines.push_back({{}, missing_comment(scenario, field.name, scenario::get(back, field.name))});
  }
  for (const auto* others : {&scenario.model.other, &scenario.settings.other})
    for (const auto& [name, value] : *others)
      if (const auto row = std::ranges::find(carried(), name, &Carried::field);
          row == carried().end() || !can_say(*row, scenario.software))
        unsaid.lines.push_back({{},
                                name == "tp_comm_overlap_cfg" && scenario::overlap_products(value)
                                    ? name + " is a file: --tp-comm-overlap-cfg FILE, which holds " + value
                                    : said_elsewhere(name, value)});
  if (scenario.software.megatron_bridge)
    unsaid.lines.push_back({{},
                            "predicted for Megatron Bridge; what pretrain_gpt.py reserves differs: simulate --megatron "
                            "with these flags tells"});
  auto as_command = scenario;
  as_command.software.megatron_bridge.reset();
  for (const auto& finding : plan::check(as_command))
    if (finding.severity == plan::Severity::violation)
      unsaid.lines.push_back({{}, "refused: " + plan::with_fix(finding.message, finding.fix)});
  groups.push_back(std::move(unsaid));
  std::erase_if(groups, [](const Group& group) { return group.lines.empty(); });
  return groups;
}

}  // namespace pipewright::emit
