// What was computed: the configuration above every text, and at the head of every JSON.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "format.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/json_schema.hpp"
#include "pipewright/parameter_count.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

/// "fp8 hybrid tensorwise, fp8 parameters"
std::string precision(const scenario::Scenario& s) {
  const auto& o = s.settings;
  std::string text = o.fp16 ? "fp16" : o.bf16 ? "bf16" : "fp32";
  if (o.fp4) text = fmt::format("fp4 {} {}", *o.fp4, o.fp4_recipe.value_or(""));
  if (o.fp8) text = fmt::format("fp8 {} {}", *o.fp8, o.fp8_recipe.value_or("delayed"));
  if (o.fp8 && (o.fp8_param || o.fp8_param_gather)) text += ", fp8 parameters";
  return text + (o.grad_reduce_in_fp32 ? ", fp32 gradients" : "");
}

std::int64_t nodes(const scenario::Scenario& s) {
  const auto each = std::max<std::int64_t>(1, std::min(s.cluster.gpus_per_node, s.cluster.num_gpus));
  return (s.cluster.num_gpus + each - 1) / each;
}

/// A run that does not divide has no sizes yet: check() says so elsewhere.
std::int64_t chunks(const scenario::Scenario& s) {
  try {
    return scenario::num_chunks(s);
  } catch (const UsageError&) {
    return 1;
  }
}

std::int64_t data_parallel(const scenario::Scenario& s) {
  return scenario::model_parallel_size(s) > 0 ? scenario::data_parallel_size(s) : 0;
}

/// None of a model whose sizes do not go together: check() says so elsewhere.
std::optional<model::ParameterCount> parameters(const scenario::Scenario& s) {
  try {
    scenario::check(s);
    return model::parameter_count(s);
  } catch (const UsageError&) {
    return {};
  }
}

/// "30.5 B parameters, 3.35 B of them a token's, "
std::string parameters_text(const scenario::Scenario& s) {
  const auto count = parameters(s);
  if (!count) return {};
  const auto number = [](std::int64_t n) {
    const bool millions = n < 1'000'000'000;
    return fmt::format("{:.{}f} {}", static_cast<double>(n) / (millions ? 1e6 : 1e9),
                       n >= 100'000'000'000 || millions ? 0
                       : n >= 10'000'000'000            ? 1
                                                        : 2,
                       millions ? "M" : "B");
  };
  const std::string active = count->of_a_token < count->all ? ", " + number(count->of_a_token) + " of a token" : "";
  return number(count->all) + " parameters" + active + ", ";
}

std::int64_t microbatches(const scenario::Scenario& s) {
  const auto per_step = s.settings.micro_batch_size * data_parallel(s);
  return per_step > 0 ? s.settings.global_batch_size / per_step : 0;
}

}  // namespace

std::string configuration_text(const scenario::Scenario& s, const std::vector<std::string>& assumed) {
  const auto& o = s.settings;
  const auto& w = s.software;
  std::string text = s.name + ": " + counted(s.cluster.num_gpus, "GPU");
  if (nodes(s) > 1) text += fmt::format(" ({} nodes of {})", nodes(s), s.cluster.gpus_per_node);
  text += fmt::format(", TP {}{} PP {} VPP {} CP {}", o.tensor_model_parallel_size, o.sequence_parallel ? " SP" : "",
                      o.pipeline_model_parallel_size, chunks(s), o.context_parallel_size);
  if (s.model.num_moe_experts)
    text += fmt::format(" EP {} ETP {}", o.expert_model_parallel_size, scenario::expert_tensor_parallel_size(s));
  text += fmt::format(" DP {}, {} of {} (global batch {}), sequence {}, {}{}", data_parallel(s),
                      counted(microbatches(s), "microbatch"), o.micro_batch_size, o.global_batch_size,
                      s.model.seq_length, parameters_text(s), precision(s));
  text += fmt::format("; Megatron Core {}", w.megatron_core);
  if (w.megatron_bridge) text += fmt::format(", Bridge {}", *w.megatron_bridge);
  text += fmt::format(", Transformer Engine {}", w.transformer_engine);
  if (!s.cluster.profile.empty()) text += fmt::format(", profile {}", s.cluster.profile);
  text = wrapped(text) + "\n";
  std::map<bool, scenario::Strings> ignored;
  const auto through = scenario::let_through(s);
  for (const auto& name : s.ignore) ignored[std::ranges::find(through, name) != through.end()].push_back(name);
  if (ignored.contains(true))
    text += wrapped(fmt::format("ignored as asked: {}", fmt::join(ignored[true], ", "))) + "\n";
  if (ignored.contains(false))
    text +=
        wrapped(fmt::format("needs no ignore, modelled or not in force: {}", fmt::join(ignored[false], ", "))) + "\n";
  if (!assumed.empty()) text += wrapped(fmt::format("assumed: {}", fmt::join(assumed, ", "))) + "\n";
  return text;
}

Json configuration_json(const scenario::Scenario& s) {
  const auto& o = s.settings;
  const auto& w = s.software;
  const auto optional = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  const auto count = parameters(s);
  const auto all = count ? std::optional(count->all) : std::nullopt;
  const auto of_a_token = count ? std::optional(count->of_a_token) : std::nullopt;
  return {{"scenario", s.name},
          {"gpus", s.cluster.num_gpus},
          {"nodes", nodes(s)},
          {"tensor_parallel", o.tensor_model_parallel_size},
          {"pipeline_parallel", o.pipeline_model_parallel_size},
          {"virtual_pipeline", chunks(s)},
          {"context_parallel", o.context_parallel_size},
          {"expert_parallel", o.expert_model_parallel_size},
          {"expert_tensor_parallel", scenario::expert_tensor_parallel_size(s)},
          {"data_parallel", data_parallel(s)},
          {"micro_batch_size", o.micro_batch_size},
          {"global_batch_size", o.global_batch_size},
          {"microbatches", microbatches(s)},
          {"seq_length", s.model.seq_length},
          {"parameters", optional(all)},
          {"parameters_of_a_token", optional(of_a_token)},
          {"precision", precision(s)},
          {"megatron_core", w.megatron_core},
          {"megatron_bridge", optional(w.megatron_bridge)},
          {"transformer_engine", w.transformer_engine},
          {"profile", s.cluster.profile},
          {"ignored", s.ignore}};
}

Json stamped(const Json& body, const Stamp& stamp) {
  Json json = {{"schema", json_schema}, {"tool", {{"version", tool_version()}, {"commit", tool_commit()}}}};
  if (stamp.scenario != nullptr) {
    json["configuration"] = configuration_json(*stamp.scenario);
    json["assumed"] = stamp.assumed;
  }
  for (const auto& [key, value] : body.items()) json[key] = value;
  return json;
}

std::string stamped(const std::string& json) { return dumped(stamped(Json::parse(json), Stamp())); }

std::string dumped(const Json& body, const Stamp* stamp) {
  return stamp == nullptr ? dumped(body) : dumped(stamped(body, *stamp));
}

}  // namespace pipewright::report
