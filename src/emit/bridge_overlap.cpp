#include "bridge_overlap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "field_table.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/overlap_table.hpp"
#include "pipewright/scenario/yaml_value.hpp"
#include "pipewright/userbuffers.hpp"

namespace pipewright::emit {
namespace {

struct OverlapField {
  std::string_view name, otherwise;  ///< Transformer Engine's default (pytorch/module/base.py, get_default_config)
};
struct OverlapClass {
  std::string_view method, name;
  std::vector<OverlapField> fields;
};
/// Megatron Bridge v0.6.0 src/megatron/bridge/training/comm_overlap.py:38-75. Without a default: the class has its own.
const std::array<OverlapClass, 3>& overlap_classes() {
  static const std::array<OverlapClass, 3> all = {
      {{"bulk", "BulkOverlapCfg", {{"num_sm", "16"}, {"cga_size", "2"}, {"set_sm_margin", "true"}}},
       {"ring_exchange",
        "RingExchangeOverlapCfg",
        {{"aggregate", ""},
         {"num_sm", ""},
         {"cga_size", ""},
         {"set_sm_margin", ""},
         {"fp8_buf", ""},
         {"atomic_gemm", ""}}},
       {"pipeline",
        "PipelineOverlapCfg",
        {{"num_sm", "16"},
         {"cga_size", "2"},
         {"num_splits", "4"},
         {"set_sm_margin", "true"},
         {"fp8_buf", "false"},
         {"atomic_gemm", ""}}}}};
  return all;
}

constexpr std::string_view overlap_layer_class = "TransformerLayerTPOverlapCfg";
/// Its fields, none with a default; what is None keeps Transformer Engine's.
constexpr std::array<std::string_view, 10> overlap_layer_fields = {"qkv_dgrad",  "qkv_wgrad",  "fc1_dgrad", "fc1_wgrad",
                                                                   "qkv_fprop",  "proj_dgrad", "fc1_fprop", "fc2_dgrad",
                                                                   "proj_fprop", "fc2_fprop"};

}  // namespace

void apply_comm_overlap(scenario::Scenario& s, const std::vector<Assignment>& user) {
  auto& settings = s.settings;
  const bool pipeline = settings.pipeline_model_parallel_size > 1;
  const bool interleaved = pipeline && settings.virtual_pipeline_model_parallel_size.value_or(1) > 1;
  settings.tp_comm_overlap = settings.defer_embedding_wgrad_compute = false;
  settings.wgrad_deferral_limit = 0;
  settings.overlap_moe_expert_parallel_comm = settings.delay_wgrad_compute = false;
  settings.overlap_p2p_comm = interleaved;
  settings.batch_p2p_comm = pipeline && !interleaved;
  if (settings.use_distributed_optimizer) {
    const bool data_parallel = s.cluster.num_gpus > 0 && scenario::data_parallel_size(s) > 1;
    settings.bucket_size = data_parallel ? scenario::OptInt(128 * 1024 * 1024) : std::nullopt;
    settings.overlap_grad_reduce = settings.overlap_param_gather = data_parallel;
    settings.overlap_param_gather_with_optimizer_step = false;
    settings.align_param_gather = data_parallel && interleaved;
  }
  for (const auto& assignment : user)
    if (assignment.second != "none" &&
        (settings.use_distributed_optimizer || !of_distributed_optimizer(assignment.first)))
      scenario::set(s, assignment.first + "=" + assignment.second);
  if (settings.tensor_model_parallel_size < 2 || !settings.sequence_parallel) settings.tp_comm_overlap = false;
}

OverlapObjects overlap_objects(const std::string& table) {
  if (!scenario::overlap_products(table)) return {};
  const auto document = scenario::parse_yaml("table: " + table, "tp_comm_overlap_cfg");
  const auto entry = [](const scenario::Value& map, std::string_view key) -> const scenario::Value* {
    const auto found = std::ranges::find(map.entries, key, &scenario::Value::Entry::key);
    return found == map.entries.end() ? nullptr : &found->value;
  };
  OverlapObjects out;
  out.classes.insert(std::string(overlap_layer_class));
  out.text = std::string(overlap_layer_class) + "(";
  for (const auto name : overlap_layer_fields) {
    const scenario::Value* product = entry(document.entries.front().value, name);
    out.text += fmt::format("{}{}=", name == overlap_layer_fields.front() ? "" : ", ", name);
    if (product == nullptr) {
      out.text += "None";
      continue;
    }
    const auto of = std::ranges::find(overlap_classes(), entry(*product, "method")->text, &OverlapClass::method);
    for (const auto& option : product->entries)
      if (option.key != "method" && std::ranges::find(of->fields, option.key, &OverlapField::name) == of->fields.end())
        return {};
    std::string arguments;
    for (const auto& field : of->fields) {
      const scenario::Value* stated = entry(*product, field.name);
      if (stated == nullptr && field.otherwise.empty()) continue;
      arguments += fmt::format("{}{}={}", arguments.empty() ? "" : ", ", field.name,
                               python_literal(stated != nullptr ? stated->text : std::string(field.otherwise)));
    }
    out.text += fmt::format("{}({})", of->name, arguments);
    out.classes.insert(std::string(of->name));
  }
  out.text += ")";
  return out;
}

std::string overlap_in_place(const Python& table, const Position& where) {
  std::string text;
  for (const auto& [name, product] : table.entries) {
    if (name == "_target_" || product.kind == Python::Kind::none) continue;
    std::string options;
    const auto add = [&](const std::string& key, const std::string& value) {
      options += fmt::format("{}{}: {}", options.empty() ? "" : ", ", key, value);
    };
    const bool says_method =
        std::ranges::find(product.entries, "method", &Python::Entry::name) != product.entries.end();
    for (const auto& of : overlap_classes())
      if (!says_method && product.text.ends_with(of.name)) add("method", std::string(of.method));
    for (const auto& [key, value] : product.entries)
      if (key != "_target_") add(key, yaml_of(value, where, name + "." + key));
    text += fmt::format("{}{}: {{{}}}", text.empty() ? "" : ", ", name, options);
  }
  text = "{" + text + "}";
  return scenario::overlap_products(text) ? text : "";
}

bool is_known_overlap(const scenario::Scenario& scenario, const Python& table, const Position& where) {
  const auto entry = [](const Python& of, const char* name) -> const Python* {
    for (const auto& [key, value] : of.entries)
      if (key == name) return &value;
    return nullptr;
  };
  using Multiprocessors = model::OverlapMultiprocessors;
  const auto known = model::possible_overlaps(scenario);
  if (table.entries.empty())
    return std::ranges::any_of(known, [&](const auto& one) { return one.name != nullptr && table.text == one.name; });
  Multiprocessors said;  // what a table leaves out is Transformer Engine's
  for (const auto& [name, member] : {std::pair("qkv_dgrad", &Multiprocessors::qkv_dgrad),
                                     {"qkv_wgrad", &Multiprocessors::qkv_wgrad},
                                     {"fc1_dgrad", &Multiprocessors::fc1_dgrad},
                                     {"fc1_wgrad", &Multiprocessors::fc1_wgrad},
                                     {"proj_fprop", &Multiprocessors::proj_forward},
                                     {"fc2_fprop", &Multiprocessors::fc2_forward}})
    if (const auto* product = entry(table, name)) {
      if (const auto* multiprocessors = entry(*product, "num_sm"))
        said.*member = integer_of(*multiprocessors, where, std::string(name) + ".num_sm");
      else if (product->text.ends_with("RingExchangeOverlapCfg"))
        said.*member = 1;  // its class' default
    }
  return std::ranges::find(known, said, &model::OverlapTable::multiprocessors) != known.end();
}

}  // namespace pipewright::emit
