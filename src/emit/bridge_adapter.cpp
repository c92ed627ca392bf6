#include "bridge_adapter.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "pipewright/scenario/io.hpp"

namespace pipewright::emit {

namespace {

/// `what`: as effects_values.cpp names it; the first that is found stands.
void refuse_adapter(scenario::Scenario& s, const std::string& what, const Position& where) {
  if (s.settings.other.try_emplace("peft", what).second) s.positions["settings.peft"] = where;
}

/// *.linear_qkv takes that module in every layer, as its name does (peft/module_matcher.py).
std::string module_of(const std::string& target) {
  if (!target.starts_with('*')) return target;
  std::string rest = target.substr(1);
  if (rest.starts_with('.')) rest.erase(0, 1);
  return rest.find_first_of("*.") == std::string::npos ? rest : target;
}

}  // namespace

void read_peft(scenario::Scenario& s, const Python& value, const Position& where) {
  s.settings.lora_target_modules.clear();
  s.settings.other.erase("peft");
  if (value.kind == Python::Kind::none) return;
  const auto name = value.text.substr(value.text.rfind('.') + 1);
  if (value.kind != Python::Kind::call || name != "LoRA") return refuse_adapter(s, name.empty() ? "true" : name, where);
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
  if (std::ranges::find(known, field) == known.end()) return refuse_adapter(s, field, where);
  // CanonicalLoRA's halves.
  const std::vector<std::string> others = {"linear_q", "linear_k", "linear_v", "linear_fc1_up", "linear_fc1_gate"};
  if (field == "target_modules") {
    std::string modules;
    for (const auto& item : value.items) {
      const std::string module = module_of(item.text);
      if (module.find('*') != std::string::npos) return refuse_adapter(s, "*", where);
      if (std::ranges::find(others, module) != others.end()) return refuse_adapter(s, module, where);
      modules += (modules.empty() ? "" : ", ") + module;
    }
    if (modules.empty()) return refuse_adapter(s, "exclude_modules", where);  // all linear layers
    scenario::set(s, "lora_target_modules=[" + modules + "]");
  } else {
    scenario::set(s, "lora_" + field + "=" + yaml_of(value, where, "cfg.peft." + field));
  }
  s.positions["settings.lora_" + field] = where;
}

}  // namespace pipewright::emit
