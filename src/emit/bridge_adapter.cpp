#include "bridge_adapter.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "pipewright/scenario/io.hpp"

namespace pipewright::emit {

namespace {

void refuse_adapter(scenario::Scenario& s, const Position& where) {
  s.settings.other["peft"] = "true";
  s.positions["settings.peft"] = where;
}

}  // namespace

void read_peft(scenario::Scenario& s, const Python& value, const Position& where) {
  s.settings.lora_target_modules.clear();
  s.settings.other.erase("peft");
  if (value.kind == Python::Kind::none) return;
  const auto name = value.text.substr(value.text.rfind('.') + 1);
  if (value.kind != Python::Kind::call || name != "LoRA") return refuse_adapter(s, where);
  s.settings.lora_target_modules = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
  s.positions["settings.lora_target_modules"] = where;
  for (const auto& [field, one] : value.entries) read_adapter(s, field, one, where);
}

void read_adapter(scenario::Scenario& s, const std::string& field, const Python& value, const Position& where) {
  // Numbers change, the work does not; params_to_save is of checkpoints.
  const std::vector<std::string> idle = {"alpha", "lora_A_init_method", "lora_B_init_method", "dropout_position",
                                         "params_to_save"};
  if (std::ranges::find(idle, field) != idle.end()) return;
  // What other values of these do is not modelled.
  const std::map<std::string, std::string, std::less<>> usual = {{"a2a_experimental", "False"},
                                                                 {"exclude_modules", ""},
                                                                 {"canonical_mapping", ""},
                                                                 {"experts_shared_outer_loras", "False"},
                                                                 {"lora_dtype", ""},
                                                                 {"normalize_moe_lora", "False"},
                                                                 {"sequence_parallel_input_regather", "False"},
                                                                 {"share_expert_adapters", "True"}};
  if (const auto row = usual.find(field); row != usual.end()) {
    const bool none = value.kind == Python::Kind::none || (value.kind == Python::Kind::list && value.items.empty()) ||
                      (value.kind == Python::Kind::map && value.entries.empty());
    if (row->second.empty() ? none : value.kind == Python::Kind::boolean && value.text == row->second) return;
  }
  const std::vector<std::string> known = {"target_modules", "dim", "dropout"};
  if (std::ranges::find(known, field) == known.end()) return refuse_adapter(s, where);
  // Of latent attention and CanonicalLoRA's halves; patterns of whole names.
  const std::vector<std::string> others = {
      "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
      "linear_q",      "linear_k",           "linear_v",         "linear_fc1_up",       "linear_fc1_gate"};
  const auto is_other = [&](const Python& target) {
    return target.text.find('*') != std::string::npos || std::ranges::find(others, target.text) != others.end();
  };
  if (field == "target_modules" && std::ranges::any_of(value.items, is_other)) return refuse_adapter(s, where);
  scenario::set(s, "lora_" + field + "=" + yaml_of(value, where, "cfg.peft." + field));
  s.positions["settings.lora_" + field] = where;
}

}  // namespace pipewright::emit
