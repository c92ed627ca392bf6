// Options of Megatron Bridge's performance harness (scripts/performance/argument_parser.py) and the environment.
// The harness starts from a recipe, so what it has no option for is an override of that recipe: section.field=value.
#include <algorithm>

#include "emitted.hpp"
#include "field_table.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::emit {

namespace {

std::string joined(const scenario::Strings& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

std::string compute_dtype(const Scenario& s) {
  if (s.settings.fp4) return "nvfp4";
  if (!s.settings.fp8) return "bf16";
  const auto recipe = s.settings.fp8_recipe.value_or("delayed");
  if (recipe == "mxfp8") return "fp8_mx";
  if (recipe == "blockwise") return "fp8_sc";
  return recipe == "tensorwise" ? "fp8_cs" : "";
}

void add(Group& group, std::vector<std::string> words, std::string comment = "") {
  group.lines.push_back({std::move(words), std::move(comment)});
}

Group recompute_options(const Scenario& s) {
  const auto& settings = s.settings;
  Group group{"Recompute and offload", {}};
  if (!settings.recompute_granularity) {
    add(group, {"model.recompute_granularity=null"}, "the recipe may recompute");
  } else if (*settings.recompute_granularity == "selective") {
    add(group, {"--recompute_modules", joined(scenario::recompute_modules(s))});
  } else if (settings.recompute_method == "block") {
    add(group, {"-rl", std::to_string(settings.recompute_num_layers.value_or(1))},
        "-rl means full recompute, method block: layers of each model chunk");
  } else {
    // -rl always means block.
    add(group, {"model.recompute_granularity=full"});
    add(group, {"model.recompute_method=" + settings.recompute_method.value_or("uniform")});
    add(group, {"model.recompute_num_layers=" + std::to_string(settings.recompute_num_layers.value_or(1))});
  }
  if (settings.cpu_offloading) add(group, {"-ol", std::to_string(settings.cpu_offloading_num_layers)});
  if (settings.fine_grained_activation_offloading) {
    add(group, {"model.fine_grained_activation_offloading=true"}, "no option: an override");
    add(group, {"model.offload_modules=[" + joined(settings.offload_modules) + "]"});
    if (settings.activation_offload_fraction != 1.0)
      add(group, {"model.activation_offload_fraction=" + scenario::get(s, "activation_offload_fraction")});
  }
  return group;
}

Group overlap_options(const Scenario& s) {
  const auto& settings = s.settings;
  Group group{"Overlap and graphs", {}};
  if (settings.overlap_moe_expert_parallel_comm && settings.delay_wgrad_compute) {
    add(group, {"--moe_a2a_overlap", "true"}, "sets expert-parallel overlap and delayed weight gradients");
  } else if (settings.overlap_moe_expert_parallel_comm) {
    add(group, {"comm_overlap.overlap_moe_expert_parallel_comm=true"},
        "--moe_a2a_overlap would delay weight gradients");
    add(group, {"comm_overlap.delay_wgrad_compute=false"});
  }
  if (settings.overlap_p2p_comm_warmup_flush) add(group, {"model.overlap_p2p_comm_warmup_flush=true"});
  if (settings.microbatch_group_size_per_vp_stage)
    add(group,
        {"model.microbatch_group_size_per_vp_stage=" + std::to_string(*settings.microbatch_group_size_per_vp_stage)});
  add(group, {"--cuda_graph_impl", settings.cuda_graph_impl == "full_iteration" ? "local" : settings.cuda_graph_impl});
  if (settings.cuda_graph_impl == "full_iteration")
    add(group, {"--cuda_graph_scope", "full_iteration"});
  else if (!settings.cuda_graph_modules.empty() && settings.cuda_graph_impl != "none")
    add(group, {"--cuda_graph_scope", joined(settings.cuda_graph_modules)});
  if (s.model.num_moe_experts && settings.moe_token_dispatcher_type == "flex")
    add(group, {"--moe_flex_dispatcher_backend", settings.moe_flex_dispatcher_backend});
  if (settings.use_megatron_fsdp) add(group, {"--use_megatron_fsdp", "true"});
  if (settings.nccl_ub) add(group, {"--nccl_ub", "true"});
  if (settings.deterministic_mode) add(group, {"--deterministic"});
  return group;
}

}  // namespace

std::map<std::string, std::string> variables(const Scenario& scenario) {
  auto all = plan::with_required_environment(scenario).environment;
  // One hardware queue would serialise the two streams: 8, or 32 with DeepEP and HybridEP (Megatron Bridge,
  // scripts/performance/utils/overrides.py:254); without the variable a job script's habitual 1 would stand.
  if (scenario.settings.overlap_moe_expert_parallel_comm)
    all.try_emplace("CUDA_DEVICE_MAX_CONNECTIONS", scenario.settings.moe_token_dispatcher_type == "flex" ? "32" : "8");
  return all;
}

Groups harness(const Scenario& s) {
  const auto& settings = s.settings;
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  Group run{"Run", {}};
  run.lines.push_back({{}, "name the recipe with -m FAMILY -mr RECIPE (for example -m llama -mr llama3_70b)"});
  add(run, {"-ng", number(s.cluster.num_gpus)});
  add(run, {"-gn", number(std::min(s.cluster.gpus_per_node, s.cluster.num_gpus))});  // as many tasks are started
  if (!s.cluster.profile.empty()) add(run, {"-g", s.cluster.profile.substr(0, s.cluster.profile.find('-'))});
  if (const auto dtype = compute_dtype(s); !dtype.empty())
    add(run, {"-c", dtype});
  else
    run.lines.push_back({{}, "-c has no name for delayed scaling: set mixed_precision in the recipe"});

  Group parallel{"Parallelism and batch", {}};
  add(parallel, {"-tp", number(settings.tensor_model_parallel_size)});
  add(parallel, {"-pp", number(settings.pipeline_model_parallel_size)});
  add(parallel, {"-cp", number(settings.context_parallel_size)});
  add(parallel, {"-vp", scenario::num_chunks(s) > 1 ? number(scenario::num_chunks(s)) : "None"});
  add(parallel, {"-ep", number(settings.expert_model_parallel_size)});
  if (settings.expert_model_parallel_size > 1) add(parallel, {"-et", number(scenario::expert_tensor_parallel_size(s))});
  if (settings.pipeline_model_parallel_layout)
    add(parallel, {"--pipeline_model_parallel_layout", *settings.pipeline_model_parallel_layout});
  add(parallel, {"-mb", number(settings.micro_batch_size)});
  add(parallel, {"-gb", number(settings.global_batch_size)});
  add(parallel, {"-sl", number(s.model.seq_length)});

  Group environment{"Environment", {}};
  for (const auto& [name, value] : variables(s)) add(environment, {"--env", name + "=" + value});
  Groups groups = {run, parallel, recompute_options(s), overlap_options(s), environment};
  std::erase_if(groups, [](const Group& group) { return group.lines.empty(); });
  return groups;
}

Groups environment(const Scenario& scenario) {
  Group group{"Environment", {}};
  for (const auto& [name, value] : variables(scenario)) {
    Line line{{name + "=" + quoted(value)}, ""};
    if (!scenario.environment.contains(name))
      line.comment = scenario.settings.overlap_moe_expert_parallel_comm && name == "CUDA_DEVICE_MAX_CONNECTIONS"
                         ? "not stated in the scenario; expert-parallel overlap needs more than one queue"
                         : "not stated in the scenario; Megatron insists on it";
    group.lines.push_back(std::move(line));
  }
  if (group.lines.empty()) return {};
  return {group};
}

}  // namespace pipewright::emit
