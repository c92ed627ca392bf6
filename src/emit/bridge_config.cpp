// What is written is megatron/training/config/yaml_utils.py of Megatron-LM: functions, dtypes, enumerators and objects
// are maps with _target_; only enumerators' and partial calls' contents are kept.
#include "bridge_config.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "bridge_providers.hpp"
#include "emitted.hpp"
#include "field_table.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/yaml_value.hpp"

namespace pipewright::emit {

namespace {

using scenario::Value;

constexpr std::string_view root = "_target_:", container = "ConfigContainer";

/// Where the configuration begins: a line "_target_: ...ConfigContainer".
std::size_t begin_of(std::string_view text) {
  for (std::size_t at = 0; (at = text.find(root, at)) != std::string_view::npos; ++at) {
    if (at > 0 && text[at - 1] != '\n') continue;
    auto line = text.substr(at, text.find('\n', at) - at);
    while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    if (line.ends_with(container)) return at;
  }
  return std::string_view::npos;
}

/// Up to a log's next line: what begins in the first column with anything but a key.
std::string_view configuration_of(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    const bool goes_on = !line.empty() && (line.front() == ' ' || line.front() == '#' || line.starts_with("- "));
    const auto colon = line.find(':');
    const bool key = colon != std::string_view::npos && colon > 0 &&
                     line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == colon;
    if (!goes_on && !key) break;
    at = end + 1;
  }
  return text.substr(0, std::min(at, text.size()));
}

const Value* member(const Value& map, std::string_view key) {
  const auto at = std::ranges::find(map.entries, key, &Value::Entry::key);
  return at == map.entries.end() ? nullptr : &at->value;
}

struct Enumeration {
  std::string_view name;
  std::array<std::string_view, 9> values;  ///< by number, from 1
};
// megatron/core/transformer/enums.py: before _name_ was written beside it, the number alone.
constexpr std::array enumerations = {
    Enumeration{"AttnBackend", {"", "flash", "fused", "unfused", "local", "auto"}},
    Enumeration{"CudaGraphModule", {"", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"}},
    Enumeration{"CudaGraphScope",
                {"", "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "inference"}}};

std::optional<std::string> enumerator(const Value& map, std::string_view type) {
  if (const auto* name = member(map, "_name_")) return name->text;
  const auto known = std::ranges::find(enumerations, type, &Enumeration::name);
  const auto* arguments = member(map, "_args_");
  if (known == enumerations.end() || arguments == nullptr || arguments->items.size() != 1) return std::nullopt;
  const auto number = scenario::as_int(arguments->items.front()).value_or(0);
  if (number < 1 || number >= static_cast<std::int64_t>(known->values.size())) return std::nullopt;
  const auto text = known->values[static_cast<std::size_t>(number)];
  return text.empty() ? std::nullopt : std::optional(std::string(text));
}

Python python_of(const Value& value, bool inside = false);

std::vector<Python::Entry> entries_of(const Value& map) {
  std::vector<Python::Entry> entries;
  for (const auto& entry : map.entries)
    if (!entry.key.starts_with('_')) entries.push_back({entry.key, python_of(entry.value, true)});
  return entries;
}

/// A field's own map says nothing (those of cfg.model are what was made of another's); one `inside` an object does.
Python object_of(const Value& map, bool inside) {
  const auto* target = member(map, "_target_");
  if (target == nullptr) return {Python::Kind::map, {}, {}, inside ? entries_of(map) : std::vector<Python::Entry>()};
  const std::string type = target->text.substr(target->text.rfind('.') + 1);
  if (auto name = enumerator(map, type)) return {Python::Kind::string, std::move(*name), {}, {}};
  const auto* call = member(map, "_call_");
  if (call != nullptr && !scenario::as_bool(*call).value_or(true)) return {Python::Kind::name, target->text, {}, {}};
  return {Python::Kind::call, type, {}, entries_of(map)};
}

Python python_of(const Value& value, bool inside) {
  switch (value.kind) {
    case Value::Kind::none:
      return {Python::Kind::none, {}, {}, {}};
    case Value::Kind::map:
      return object_of(value, inside);
    case Value::Kind::list: {
      Python list{Python::Kind::list, {}, {}, {}};
      for (const auto& item : value.items) list.items.push_back(python_of(item, inside));
      return list;
    }
    case Value::Kind::scalar:
      break;
  }
  if (value.quoted) return {Python::Kind::string, value.text, {}, {}};
  if (scenario::is_none(value)) return {Python::Kind::none, {}, {}, {}};
  if (const auto boolean = scenario::as_bool(value))
    return {Python::Kind::boolean, *boolean ? "True" : "False", {}, {}};
  const bool number = scenario::as_int(value) || scenario::as_double(value);
  return {number ? Python::Kind::number : Python::Kind::string, value.text, {}, {}};
}

}  // namespace

std::string layout_of(const Python& stages, const Position& where, const std::string& key) {
  static const std::map<std::string, char, std::less<>> letters = {
      {"embedding", 'E'}, {"decoder", 't'}, {"mtp", 'm'}, {"loss", 'L'}};
  std::string text;
  for (std::size_t n = 0; n < stages.items.size(); ++n) {
    if (n > 0) text += '|';
    if (stages.items[n].kind != Python::Kind::list)
      throw UsageError(where, key, "expected a list of a stage's layers, or a string");
    for (const auto& layer : stages.items[n].items) {
      const auto letter = letters.find(layer.text.substr(layer.text.rfind('.') + 1));
      if (letter == letters.end())
        throw UsageError(where, key, "unknown layer \"" + layer.text + '"', {"embedding", "decoder", "mtp", "loss"});
      text += letter->second;
    }
  }
  return text;
}

bool stated_versions(scenario::Scenario& s, std::string_view text) {
  const std::string begin = std::string("# ") + version_remark + " Megatron ";
  auto at = text.starts_with(begin) ? 0 : text.find("\n" + begin);
  if (at == std::string_view::npos) return false;
  at = text.find("# ", at);
  auto line = text.substr(at, text.find('\n', at) - at);
  line.remove_prefix(2 + std::string_view(version_remark).size());
  const std::vector<std::pair<std::string, std::string>> names = {{"Megatron Bridge ", "megatron_bridge"},
                                                                  {"Megatron Core ", "megatron_core"},
                                                                  {"Transformer Engine ", "transformer_engine"},
                                                                  {"torch ", "torch"}};
  while (!line.empty()) {
    const auto end = std::min(line.find(','), line.size());
    const auto part = trimmed(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
    for (const auto& [name, field] : names)
      if (part.starts_with(name)) scenario::set(s, "software." + field + "=" + std::string(part.substr(name.size())));
  }
  return true;
}

bool is_bridge_config(std::string_view text) { return begin_of(text) != std::string_view::npos; }

std::vector<ConfigLine> bridge_config(std::string_view text, const std::string& file) {
  const auto begin = begin_of(text);
  const auto before =
      static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
  const auto tree = scenario::parse_yaml(configuration_of(text.substr(begin)), file, true);
  std::vector<ConfigLine> lines;
  for (const auto& section : tree.entries) {
    const Position there{file, before + section.line};
    if (section.key.starts_with('_')) continue;
    const bool whole = section.value.kind != Value::Kind::map || section.key == "peft";
    if (whole) {
      lines.push_back({section.key, {}, python_of(section.value), there});
      continue;
    }
    const auto add = [&](const Value& fields, const auto& again) -> void {
      for (const auto& field : fields.entries) {
        const bool model_class = section.key == "model" && field.key == "_target_";
        if (field.key.starts_with('_') && !model_class) continue;
        if (field.key == "transformer" && field.value.kind == Value::Kind::map)  // of a GPTModelConfig
          again(field.value, again);
        else
          lines.push_back({section.key,
                           model_class ? std::string(model_provider) : field.key,
                           python_of(field.value),
                           {file, before + field.line}});
      }
    };
    add(section.value, add);
  }
  return lines;
}

void require_section(const std::string& path, bool hydra, const Position& where) {
  static const scenario::Strings sections = {// ConfigContainer (training/config.py of Megatron Bridge 0.7)
                                             "model",
                                             "train",
                                             "optimizer",
                                             "ddp",
                                             "scheduler",
                                             "dataset",
                                             "logger",
                                             "tokenizer",
                                             "checkpoint",
                                             "dist",
                                             "rng",
                                             "rerun_state_machine",
                                             "optimizer_config_override_provider",
                                             "validation",
                                             "ft",
                                             "straggler",
                                             "nvrx_straggler",
                                             "profiling",
                                             "tensor_inspect",
                                             "inprocess_restart",
                                             "comm_overlap",
                                             "mixed_precision"};
  const auto known = [&](const std::string& name) { return std::ranges::find(sections, name) != sections.end(); };
  const std::string section = path.substr(0, path.find('.')), field = path.substr(path.rfind('.') + 1);
  if (known(section)) return;
  std::string meant;
  for (auto dot = path.find('.'); dot != std::string::npos && meant.empty(); dot = path.find('.', dot + 1))
    if (known(path.substr(dot + 1, path.find('.', dot + 1) - dot - 1)) && path.find('.', dot + 1) != std::string::npos)
      meant = "cfg." + path.substr(dot + 1);
  const bool other = hydra && meant.empty() && nearest_name(section, sections).empty() && !is_field(field) &&
                     scenario::effect_of(field) == nullptr;
  if (other) return;
  if (meant.empty()) meant = nearest_name(section, sections);
  throw UsageError(where, (hydra ? "" : "cfg.") + path,
                   "no section of Bridge's configuration, which is called cfg here", sections, meant);
}

}  // namespace pipewright::emit
