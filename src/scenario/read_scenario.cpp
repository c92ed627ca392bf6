// YAML text to a scenario: sections, unknown keys, --set and --env.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "field_rows.hpp"
#include "huggingface.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "read_measured.hpp"

namespace pipewright::scenario {
namespace {

const Strings sections = {"scenario", "model",  "settings", "environment", "cluster",
                          "software", "search", "ignore",   "measured"};
constexpr const char* modules = "recompute_modules";
constexpr std::size_t longest_list = 12;  // more names than this do not help in an error

bool is_empty_list(const Value& value) { return value.kind == Value::Kind::list && value.items.empty(); }

/// Before Megatron Core 0.18 a graph of the whole iteration was Megatron's own with a scope; newer versions still read
/// it so (transformer_config.py). Here it has the newer name whatever the version, and emit/ spells it as that has it.
void unite_graph_scope(Scenario& scenario) {
  auto& o = scenario.settings;
  if (o.cuda_graph_impl == "local" && std::erase(o.cuda_graph_modules, "full_iteration") != 0)
    o.cuda_graph_impl = "full_iteration";
}

void stop_recompute(Scenario& s) {
  if (s.settings.recompute_granularity == "selective") s.settings.recompute_granularity.reset();
}

/// A name that only sets others, of no field of ours; off, a field of Megatron's is let be.
void refuse_alias(const std::string& name, const Value& value, const Position& where, const std::string& key) {
  const EffectRow* row = effect_of(name);
  if (row == nullptr || row->name != name || !sets_others(*row) || is_none(value)) return;
  if (as_double(value).value_or(1) == 0 || (known_field(name) != nullptr && !as_bool(value).value_or(true))) return;
  throw UsageError(where, key, "is not read here: as a flag it " + row->text + "; state that");
}

class Reader {
 public:
  Reader(const Value& root, const std::string& file) : root_(root), file_(file) {}

  Scenario scenario() {
    require_map(root_, "scenario file");
    for (const auto& [key, line, value] : root_.entries) {
      if (std::find(sections.begin(), sections.end(), key) == sections.end()) throw unknown(line, {}, key, sections);
    }
    version();
    sections_needed();
    scenario_.origin = {file_, 0};
    scenario_.name = std::filesystem::path(file_).stem().string();
    software();
    architecture();
    section("settings");
    nothing_recomputed();
    unite_graph_scope(scenario_);
    environment();
    cluster();
    search();
    ignored();
    if (const Value* measured = entry("measured")) scenario_.measured = read_measured(*measured, file_);
    required();
    return std::move(scenario_);
  }

 private:
  const Value* entry(const std::string& key) const {
    for (const auto& e : root_.entries) {
      if (e.key == key) return &e.value;
    }
    return nullptr;
  }
  UsageError error(int line, const std::string& key, const std::string& message) const {
    return {{file_, line}, key, message};
  }
  UsageError unknown(int line, const std::string& in, const std::string& key, const Strings& known) const {
    const std::string name = in.empty() ? key : in + "." + key;
    const std::string nearest = nearest_name(key, known);
    const bool few = known.size() <= longest_list;
    return {{file_, line},
            name,
            few ? "unknown key" : "unknown key; `pipewright list settings` names all",
            few ? known : Strings{},
            nearest};
  }
  void require_map(const Value& value, const std::string& what) const {
    if (value.kind != Value::Kind::map) {
      throw error(value.line, what == "scenario file" ? "" : what,
                  fmt::format("expected a map of keys and values, found {}", describe(value)));
    }
  }

  void version() const {
    const Value* value = entry("scenario");
    if (value == nullptr) throw error(1, "scenario", "missing: a scenario begins with \"scenario: 1\"");
    if (as_int(*value) != 1) {
      throw UsageError({file_, value->line}, "scenario",
                       fmt::format("unknown format version, found {}", describe(*value)), {"1"});
    }
  }

  void state(const std::string& name, int line) { scenario_.positions[name] = {file_, line}; }

  // A key of the table, of a nested map of the table, or a Megatron field that pipewright does not use.
  void assign_key(const std::string& in, const Value::Entry& e) {
    std::string home = in;
    const bool megatron = in == "model" || in == "settings";
    const std::string key = e.key == "cuda_graph_scope" && megatron ? "cuda_graph_modules" : e.key;
    const Field* field = find(in, key);
    if (field == nullptr && megatron) {  // TransformerConfig's fields are welcome in either section
      home = in == "model" ? "settings" : "model";
      field = find(home, key);
    }
    const std::string name = in + "." + e.key;
    if (field != nullptr) {
      const Position* before = scenario_.positions.find(home + "." + key);
      if (before != nullptr && before->file == file_)  // else from the hf_config
        throw error(e.line, name, fmt::format("already stated in line {}", before->line));
      assign(*field, scenario_, e.value, {file_, e.line}, name);
      state(home + "." + key, e.line);
      return;
    }
    if (nested(in, e)) return;
    if (megatron) {
      refuse_alias(key, e.value, {file_, e.line}, name);
      if (const KnownField* known = known_field(key)) {
        assign_other(*known, in == "model" ? scenario_.model.other : scenario_.settings.other, e.value, {file_, e.line},
                     name);
        state(name, e.line);
        return;
      }
      if (const EffectRow* row = effect_of(key); row != nullptr && row->name == key) {  // a flag without a field
        assign_other({key.c_str(), KnownField::Type::any, {}},
                     in == "model" ? scenario_.model.other : scenario_.settings.other, e.value, {file_, e.line}, name);
        state(name, e.line);
        return;
      }
    }
    Strings known = names_of(in);
    if (megatron) {
      for (const std::string& other : names_of(in == "model" ? "settings" : "model")) known.push_back(other);
      for (const KnownField& other : known_fields()) known.emplace_back(other.name);
      if (in == "model") known.emplace_back("hf_config");
    }
    if (in == "cluster") known.emplace_back("overrides");
    throw unknown(e.line, in, e.key, known);
  }

  // te_op_offload: {fc1_op: true}, or a list of the parts that are true.
  bool nested(const std::string& in, const Value::Entry& e) {
    Strings parts;
    for (const std::string& name : names_of(in)) {
      if (name.starts_with(e.key + ".")) parts.push_back(name.substr(e.key.size() + 1));
    }
    if (parts.empty()) return false;
    const std::string name = in + "." + e.key;
    Value yes;
    yes.kind = Value::Kind::scalar;
    yes.text = "true";
    const auto part = [&](const std::string& key, int line, const Value& value) {
      const Field* field = find(in, e.key + "." + key);
      if (field == nullptr) throw unknown(line, name, key, parts);
      assign(*field, scenario_, value, {file_, line}, name + "." + key);
      state(name + "." + key, line);
    };
    if (e.value.kind == Value::Kind::list) {
      for (const Value& item : e.value.items) part(item.text, item.line, yes);
      return true;
    }
    require_map(e.value, name);
    for (const auto& [key, line, value] : e.value.entries)
      part(key, line, value.kind == Value::Kind::none ? yes : value);
    return true;
  }

  void sections_needed() const {
    Strings absent;
    for (const auto* name : {"model", "settings", "cluster"})
      if (entry(name) == nullptr) absent.emplace_back(name);
    if (!absent.empty())
      throw error(0, fmt::format("{}", fmt::join(absent, ", ")),
                  absent.size() == 1 ? "missing section" : "missing sections");
  }

  void section(const std::string& name) {
    const Value* value = entry(name);
    if (value == nullptr) return;
    require_map(*value, name);
    state(name, line_of(name));
    for (const auto& e : value->entries) assign_key(name, e);
  }

  // An empty list is not the same as none: with granularity selective nothing is recomputed then.
  void nothing_recomputed() {
    const auto& settings = entry("settings")->entries;
    if (std::any_of(settings.begin(), settings.end(),
                    [](const auto& e) { return e.key == modules && is_empty_list(e.value); })) {
      stop_recompute(scenario_);
    }
  }

  void software() {
    section("software");
    Software software = scenario_.software;
    if (software.megatron_bridge && !scenario_.positions.contains("software.megatron_core")) {
      software.megatron_core = "main";  // Bridge pins a commit of Megatron's main branch
    }
    check_software(software, [&](const std::string& name) { return position(scenario_, name); });
    Scenario fresh = defaults(software);
    fresh.origin = scenario_.origin;
    fresh.name = std::move(scenario_.name);
    fresh.positions = std::move(scenario_.positions);
    scenario_ = std::move(fresh);
  }

  void architecture() {
    const Value* value = entry("model");
    require_map(*value, "model");
    state("model", line_of("model"));
    for (const auto& e : value->entries) {
      if (e.key != "hf_config") continue;
      if (e.value.kind != Value::Kind::scalar || e.value.text.empty()) {
        throw error(e.line, "model.hf_config", "expected the path of a config.json, found " + describe(e.value));
      }
      std::filesystem::path path = e.value.text;
      if (path.is_relative()) path = std::filesystem::path(file_).parent_path() / path;
      std::error_code error;  // a name that is too long is no file either
      if (!is_regular_file(path, error) && !is_regular_file(path / "config.json", error)) {
        throw this->error(e.line, "model.hf_config", fmt::format("no such file: {}", path.string()));
      }
      apply_hf_config(path.string(), scenario_, &scenario_.notes);
    }
    for (const auto& e : value->entries) {
      if (e.key != "hf_config") assign_key("model", e);
    }
  }

  void environment() {
    const Value* value = entry("environment");
    if (value == nullptr || value->kind == Value::Kind::none) return;
    require_map(*value, "environment");
    for (const auto& [key, line, item] : value->entries) {
      const std::string name = "environment." + key;
      if (item.kind == Value::Kind::list || item.kind == Value::Kind::map) {
        throw error(line, name, "expected a string, found " + describe(item));
      }
      check_variable(key, {file_, line});
      scenario_.environment[key] = item.text;
      state(name, line);
    }
  }

  void cluster() {
    const Value* value = entry("cluster");
    require_map(*value, "cluster");
    state("cluster", line_of("cluster"));
    for (const auto& e : value->entries) {
      if (e.key != "overrides") {
        assign_key("cluster", e);
        continue;
      }
      require_map(e.value, "cluster.overrides");
      for (const auto& [key, line, item] : e.value.entries) {
        const auto number = as_double(item);
        if (!number) throw error(line, "cluster.overrides." + key, "expected a number, found " + describe(item));
        scenario_.cluster.overrides[key] = *number;
      }
    }
  }

  void search() {
    const Value* value = entry("search");
    if (value == nullptr || value->kind == Value::Kind::none) return;
    require_map(*value, "search");
    state("search", line_of("search"));
    for (const auto& e : value->entries) read_search(scenario_, e.key, e.value, {file_, e.line});
  }

  void ignored() {
    const Value* value = entry("ignore");
    if (value == nullptr || value->kind == Value::Kind::none) return;
    if (value->kind != Value::Kind::list)
      throw error(value->line, "ignore", "expected a list of names, found " + describe(*value));
    for (const Value& item : value->items) {
      if (item.kind != Value::Kind::scalar)
        throw error(item.line, "ignore", "expected a name, found " + describe(item));
      ignore(scenario_, item.text, {file_, item.line});
    }
  }

  int line_of(const std::string& name) const {
    for (const auto& e : root_.entries) {
      if (e.key == name) return e.line;
    }
    return 0;
  }

  void required() const {
    Strings absent;
    for (const auto& [section, name] : required_fields) {
      const std::string key = fmt::format("{}.{}", section, name);
      if (!scenario_.positions.contains(key)) absent.push_back(key);
    }
    if (absent.empty()) return;
    const std::string section = absent.front().substr(0, absent.front().find('.'));
    throw error(line_of(section), fmt::format("{}", fmt::join(absent, ", ")), "missing");
  }

 public:
  static void check_variable(const std::string& name, const Position& where) {
    const auto is_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0 ||
        !std::all_of(name.begin(), name.end(), is_word)) {
      throw UsageError(where, name, "not the name of an environment variable");
    }
  }

  static void read_search(Scenario& scenario, const std::string& key, const Value& value, const Position& where) {
    const std::string name = "search." + key;
    scenario.positions[name] = where;
    if (key == "memory_margin") {
      scenario.search.memory_margin = margin(value, where, name);
      return;
    }
    if (const Field* field = find("search", key)) {
      assign(*field, scenario, value, where, name);
      return;
    }
    const Field* field = find("settings", key);
    if (field == nullptr) field = find("model", key);
    if (field == nullptr) {
      Strings known = names_of("search");
      known.emplace_back("memory_margin");
      Strings near = known;
      for (const std::string& other : names_of("settings")) near.push_back(other);
      throw UsageError(where, name, "unknown key: neither a search key nor a setting", known, nearest_name(key, near));
    }
    if (value.kind != Value::Kind::list || value.items.empty()) {
      throw UsageError(where, name, fmt::format("expected a list of values to try, found {}", describe(value)));
    }
    Strings& values = scenario.search.values[key];
    values.clear();
    for (const Value& item : value.items) {
      Scenario scratch;
      assign(*field, scratch, fitted(*field, item), where, name);
      values.push_back(yaml_text(item));
    }
  }

  static std::optional<Margin> margin(const Value& value, const Position& where, const std::string& name) {
    if (is_none(value)) return {};
    if (value.kind != Value::Kind::scalar) {
      throw UsageError(where, name, "expected bytes or percent (2GiB, 3%), found " + describe(value));
    }
    Margin found;
    if (!value.text.ends_with('%')) {
      found.bytes = parse_bytes(value.text, where, name);
      return found;
    }
    Value number;
    number.kind = Value::Kind::scalar;
    number.text = value.text.substr(0, value.text.size() - 1);
    while (number.text.ends_with(' ')) number.text.pop_back();
    const auto percent = as_double(number);
    if (!percent || *percent < 0 || *percent > 100) {
      throw UsageError(where, name, fmt::format("\"{}\" is no percentage", value.text), {"0% to 100%"});
    }
    found.percent = *percent;
    return found;
  }

 private:
  const Value& root_;
  std::string file_;
  Scenario scenario_;
};

}  // namespace

Scenario parse(std::string_view yaml, const std::string& file) {
  const Value root = parse_yaml(yaml, file);
  return Reader(root, file).scenario();
}

Scenario read(const std::string& path) { return parse(read_file(path), path); }

namespace {
constexpr std::pair<std::string_view, std::string_view> short_names[] = {
    {"tp", "tensor_model_parallel_size"},
    {"pp", "pipeline_model_parallel_size"},
    {"vpp", "virtual_pipeline_model_parallel_size"},
    {"cp", "context_parallel_size"},
    {"ep", "expert_model_parallel_size"},
    {"etp", "expert_tensor_parallel_size"},
    {"sp", "sequence_parallel"},
    {"mbs", "micro_batch_size"},
    {"gbs", "global_batch_size"},
    {"seq", "seq_length"},
    {"gpus", "num_gpus"}};
}  // namespace

std::string full_name(std::string_view name) {
  for (const auto& [alias, full] : short_names)
    if (alias == name) return std::string(full);
  return std::string(name);
}

void set(Scenario& scenario, std::string_view name_is_value, std::string_view option) {
  const Position where = {std::string(option), 0};
  const std::size_t equals = name_is_value.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw UsageError(where, std::string(name_is_value), "expected NAME=VALUE");
  }
  std::string name(name_is_value.substr(0, equals));
  const std::string key = name;
  check_utf8(name, where);
  check_utf8(name_is_value.substr(equals + 1), where, key);
  const Value value = parse_setting(name_is_value.substr(equals + 1), key, where.file);

  std::string section;
  for (const std::string& known : sections) {
    if (name.starts_with(known + ".")) {
      section = known;
      name.erase(0, known.size() + 1);
      break;
    }
  }
  name = full_name(name);
  if (name == "cuda_graph_scope") name = "cuda_graph_modules";
  if (section == "environment") return set_env(scenario, name_is_value.substr(section.size() + 1), option);
  const Field* field = section.empty() ? find(name) : find(section, name);
  if (section == "search" || (section.empty() && name == "memory_margin")) {
    return Reader::read_search(scenario, name, value, where);
  }
  const std::string overrides = "overrides.";
  if ((section.empty() || section == "cluster") && name.starts_with(overrides)) {
    const auto number = as_double(value);
    if (!number) throw UsageError(where, key, "expected a number, found " + describe(value));
    scenario.cluster.overrides[name.substr(overrides.size())] = *number;
    return;
  }
  const bool megatron = section.empty() || section == "settings" || section == "model";
  const KnownField* known = megatron ? known_field(name) : nullptr;
  const EffectRow* effect = effect_of(name);
  if (field == nullptr && megatron) refuse_alias(name, value, where, key);
  const KnownField flag = {name.c_str(), KnownField::Type::any, {}};  // without a field
  if (known == nullptr && megatron && effect != nullptr && effect->name == name) known = &flag;
  if (field == nullptr && known == nullptr) {
    Strings names;
    for (const Field& row : table()) {
      if (section.empty() || section == row.section) names.emplace_back(row.name);
    }
    if (section.empty()) {
      for (const KnownField& other : known_fields()) names.emplace_back(other.name);
      for (const auto& [alias, full] : short_names) names.emplace_back(alias);
    }
    throw UsageError(where, key, "unknown setting; `pipewright list settings` names all", {},
                     nearest_name(name, names));
  }
  if (field == nullptr) {
    assign_other(*known, section == "model" ? scenario.model.other : scenario.settings.other, value, where, key);
    return;
  }
  if (std::string_view(field->section) != "software") {
    assign(*field, scenario, fitted(*field, value), where, key);
    if (field->name == std::string_view(modules) && is_empty_list(value)) stop_recompute(scenario);
    unite_graph_scope(scenario);
  } else {
    const Scenario before = defaults(scenario.software);
    Software software = scenario.software;
    Scenario changed = scenario;
    assign(*field, changed, value, where, key);
    check_software(changed.software, [&](const std::string&) { return where; });
    // Fields that were at the old version's default follow to the new version's.
    const Scenario after = defaults(changed.software);
    for (const Field& row : table()) {
      if (std::string_view(row.section) != "settings" || same(row, before, after) || !same(row, before, scenario))
        continue;
      assign(row, changed, parse_setting(text(row, after), row.name, where.file), where, row.name);
    }
    scenario = std::move(changed);
  }
  scenario.positions[std::string(field->section) + "." + field->name] = where;
}

void set_env(Scenario& scenario, std::string_view name_is_value, std::string_view option) {
  const Position where = {std::string(option), 0};
  const std::size_t equals = name_is_value.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw UsageError(where, std::string(name_is_value), "expected NAME=VALUE");
  }
  const std::string name(name_is_value.substr(0, equals)), value(name_is_value.substr(equals + 1));
  Reader::check_variable(name, where);
  check_utf8(value, where, name);
  if (value.empty()) {
    scenario.environment.erase(name);
  } else {
    scenario.environment[name] = value;
  }
  scenario.positions["environment." + name] = where;
}

}  // namespace pipewright::scenario
