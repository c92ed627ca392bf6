// Megatron Bridge overrides in: Python statements, or Hydra's, onto the defaults of the model's provider; then what
// CommOverlapConfig.setup() and the mixed precision recipe make of them
// (Megatron-Bridge src/megatron/bridge/training/comm_overlap.py:353-643, mixed_precision.py).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "bridge_adapter.hpp"
#include "bridge_config.hpp"
#include "bridge_overlap.hpp"
#include "bridge_precision.hpp"
#include "bridge_providers.hpp"
#include "bridge_values.hpp"
#include "bridge_vocabulary.hpp"
#include "emitted.hpp"
#include "field_table.hpp"
#include "hybrid.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/userbuffers.hpp"
#include "python.hpp"
#include "recipe_command.hpp"

namespace pipewright::emit {

namespace {

void assign(Scenario& s, const Assignment& assignment) { scenario::set(s, assignment.first + "=" + assignment.second); }

class OverrideImporter {
 public:
  OverrideImporter(const std::string& file, const Machine& machine)
      : file_(file),
        said_vocabulary_(machine.vocab_size),
        stated_(machine.stated),
        core_stated_(!machine.megatron_core.empty()),
        dropped_(machine.ignore) {
    s_ = provider_defaults();
    if (!machine.megatron_core.empty())
      scenario::set(s_, "software.megatron_core=" + machine.megatron_core, "--megatron-core");
    s_.software.megatron_bridge = "0.7.0";  // the version whose sections and defaults these are
    s_.name = "bridge";
    s_.origin = {file, 0};
    s_.cluster.num_gpus = machine.num_gpus;
    s_.cluster.gpus_per_node = machine.gpus_per_node;
    s_.cluster.profile = machine.profile;
  }

  void judge(const std::vector<Override>& overrides) {
    for (const auto& [line, where] : overrides) read(line, where);
  }

  /// The text, then overrides `beside` it.
  Import run(std::string_view text, const std::vector<Override>& beside = {}) {
    if (is_bridge_config(text))
      for (const auto& line : bridge_config(text, file_)) resolved(line);
    else {
      if (!core_stated_ && stated_versions(s_, text))
        result_.notes.push_back("versions as the file says: Megatron Core " + s_.software.megatron_core +
                                ", Transformer Engine " + s_.software.transformer_engine);
      class_of_model(text);
      for (const auto& [line, number] : statements(text)) read(line, {file_, number});
    }
    judge(beside);
    if (s_.model.multi_latent_attention) {
      const Scenario plain;
      const Scenario provider = provider_defaults();
      for (const auto& field : scenario::fields())
        if (field.section == "settings" && !s_.positions.contains("settings." + field.name) &&
            scenario::get(provider, field.name) != scenario::get(plain, field.name))
          assign(s_, {field.name, scenario::get(plain, field.name)});
    }
    if (const auto& [length, where] = dataset_length_; length > 0) {
      if (s_.model.seq_length == 0 || resolved_)
        s_.model.seq_length = length;  // the run's rows, whatever the model can
      if (s_.model.seq_length != length)
        throw UsageError(where, "cfg.dataset.seq_length",
                         "is " + std::to_string(length) + ", cfg.model.seq_length " +
                             std::to_string(s_.model.seq_length) + ": Megatron Bridge insists on one length");
    }
    if (const auto& [length, where] = row_length_;
        s_.settings.sft && length > 0 && s_.model.seq_length > 0 && length != s_.model.seq_length)
      throw UsageError(where, "packed_sequence_size",
                       "is " + std::to_string(length) + ", cfg.model.seq_length " +
                           std::to_string(s_.model.seq_length) + ": rows of another length are not modelled");
    auto& settings = s_.settings;
    if (resolved_ && !settings.recompute_granularity) settings.recompute_modules.clear();  // the class' default
    if (settings.expert_model_parallel_size > 1 && !settings.expert_tensor_parallel_size)
      settings.expert_tensor_parallel_size = 1;  // models/transformer_config.py:80
    if (settings.tensor_model_parallel_size == 1) settings.sequence_parallel = false;
    if (s_.cluster.num_gpus == 0 && data_parallel_size_ > 0)
      s_.cluster.num_gpus = data_parallel_size_ * scenario::model_parallel_size(s_);
    result_.gpus_guessed = s_.cluster.num_gpus == 0;
    if (result_.gpus_guessed)
      s_.cluster.num_gpus = settings.pipeline_model_parallel_size *
                            std::max(settings.tensor_model_parallel_size * settings.context_parallel_size,
                                     settings.expert_model_parallel_size * scenario::expert_tensor_parallel_size(s_));
    join_depths(s_);
    if (resolved_ && !s_.model.other.contains("rope_scaling"))
      s_.model.other.erase("rope_scaling_factor");  // Llama's, a field of every provider
    if (decreases_batch_)
      if (const auto said = lower_batch(s_); !said.empty()) result_.notes.push_back(said);
    for (const auto& assignment : precision_) assign(s_, assignment);
    if (has_comm_overlap_) apply_comm_overlap(s_, comm_overlap_);
    if (s_.settings.tp_comm_overlap) read_overlap_table();
    check_for_nan();
    for (const auto& [field, where] : places_) s_.positions.restate(field, where);
    const auto passed_over = [&](const char* why, const std::set<std::string>& names) {
      if (!names.empty() && !resolved_)  // of a whole configuration most are
        result_.notes.push_back(fmt::format("{}: {}", why, fmt::join(names, " ")));
    };
    passed_over("without effect on time and memory, or of no section that is read", ignored_);
    passed_over("not known here, and passed over", unknown_);
    if (s_.model.vocab_size == 0) s_.model.vocab_size = said_vocabulary_;
    vocabulary_.settle(s_, resolved_, {file_, 0});
    result_.scenario = std::move(s_);
    return std::move(result_);
  }

 private:
  static constexpr std::string_view overlap_table = "tp_comm_overlap_cfg";

  /// Recipes that pretrain dense models of some sizes name one; without a name Transformer Engine's own is used.
  void read_overlap_table() {
    const auto& [table, said_at] = overlap_table_;
    if (table.kind != Python::Kind::none) {
      const std::string own = overlap_in_place(table, said_at);
      const bool known = is_known_overlap(s_, table, said_at);
      if (table.entries.empty() ? !known : own.empty())
        return refuse(std::string(overlap_table), table.entries.empty() ? table.text : "written out", said_at);
      if (!known) s_.settings.other[std::string(overlap_table)] = own;
    } else if (model::possible_overlaps(s_).front().name != nullptr) {
      s_.settings.other[std::string(overlap_table)] = "none";
    }
  }

  /// "# cfg.model is a Gemma3ModelProvider", "... GPTModelProvider of minimax_m2_layer_spec", as emitted overrides say.
  void class_of_model(std::string_view text) {
    auto at = text.find(std::string("# ") + provider_remark);
    if (at == std::string_view::npos) return;
    at += 2 + std::string_view(provider_remark).size();
    const auto end = std::min(text.find_first_of(" \r\n", at), text.size());
    const auto line = static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    provider(std::string(text.substr(at, end - at)), {file_, line + 1});
    constexpr std::string_view of = " of ";
    if (!text.substr(end).starts_with(of)) return;
    const auto spec = text.substr(end + of.size());
    if (const auto built = built_by_spec(spec.substr(0, spec.find_first_of(" \r\n")))) builds(*built);
  }

  /// A field of a whole configuration. What it holds beyond fields of ours are functions, objects and what is off.
  void resolved(const ConfigLine& line) {
    resolved_ = true;
    const auto& [section, field, value, where] = line;
    if (section == "env_vars") {
      if (!field.empty()) variable(field, value, where);
      return;
    }
    if (field.empty()) {
      if (section == "peft") read_peft(s_, value, where);
      if (section == "mixed_precision" && value.kind != Python::Kind::none) read_recipe(value, where);
      return;
    }
    if (value.kind == Python::Kind::none) {
      if (section == "model") without(field);
      return;
    }
    if (section == "model" && field == model_provider) return provider(value.text, where);
    if (section == "model" && holds_spec(field)) return specification_of_layers(field, value, where);
    if (section == "model" && field == "quant_recipe") return set(section, field, value, where);
    if (field == overlap_table) {
      if (section == "comm_overlap" || !value.entries.empty())
        overlap_table_ = {value, where};  // cfg.model's is what was made of it
      return;
    }
    if (vocabulary_.takes(section, field, value, where)) return;
    if (section == "train" && field == "decrease_batch_size_if_needed") return set(section, field, value, where);
    if (section == "comm_overlap" && field == "data_parallel_size") {
      data_parallel_size_ = integer_of(value, where, "data_parallel_size");
      return;
    }
    // TransformerConfig's own: a model that a recipe leaves to its user.
    constexpr std::array unsaid = {"num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"};
    if (section == "model" && value.text == "0" && std::ranges::find(unsaid, field) != unsaid.end()) return;
    const auto* effect = scenario::effect_of(field);
    const bool known = effect != nullptr;
    const bool plain =
        value.kind != Python::Kind::list && value.kind != Python::Kind::call && value.kind != Python::Kind::map;
    const bool fits_all = known && (plain ? !scenario::may_act(field, yaml_of(value, where, field))
                                          : effect->effect == scenario::Effect::none);
    const bool kept = is_field(field);
    if ((fits_all && !kept) || (!known && of_providers(field))) return;
    const bool object = value.kind == Python::Kind::call || value.kind == Python::Kind::map;
    if (object && field == "pipeline_model_parallel_layout" && std::ranges::find(stated_, field) == stated_.end())
      throw UsageError(
          where, "cfg.model." + field,
          "the file does not hold the layout, only that there is one: say it with --set " + field + "=...");
    const bool off = value.text == "False" || value.text.find_first_not_of("0.") == std::string::npos;
    const bool said = known || section == "dataset" || section == "rerun_state_machine" ||
                      (section == "model" && field == "share_embeddings_and_output_weights");
    if (!said && (object || value.kind == Python::Kind::name || (off && value.items.empty()))) return;
    if (object && section != "dataset") return;
    set(section, field, value, where);
  }

  /// One setting, on where either is; both are unless a file says otherwise (resilience_config.py, recipes/common.py).
  void check_for_nan() {
    auto& checks = s_.settings.check_for_nan_in_loss_and_grad;
    checks = gradients_checked_.value_or(true) || losses_checked_.value_or(true);
    if (!gradients_checked_ && !losses_checked_)
      result_.notes.emplace_back(
          "checks for NaN in losses and gradients are on, as Megatron Bridge's are: performance recipes turn off "
          "cfg.ddp.check_for_nan_in_grad and cfg.rerun_state_machine.check_for_nan_in_loss");
  }

  static std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

  /// What the model's class builds: a class that is not known is refused by name.
  void provider(const std::string& path, const Position& where) {
    const std::string name = last_name(path);
    const auto built = built_by_provider(name);
    builds(built ? *built : language_model_of(name));
    if (built) return;
    knows_model_ = false;
    refuse(std::string(model_provider), name, where);
  }

  void specification_of_layers(const std::string& field, const Python& value, const Position& where) {
    const auto built = built_by_spec(last_name(value.text));
    if (!built) return refuse(field, last_name(value.text), where);
    builds(*built);
  }

  void builds(const Built& built) {
    for (const auto& [field, value] : built) {
      assign(s_, {std::string(field), std::string(value)});
      of_class_.emplace(field);
    }
  }

  void refuse(const std::string& name, const std::string& value, const Position& where) {
    if (std::ranges::find(dropped_, name) != dropped_.end()) {
      ignored_.insert("cfg.model." + name);
      return;
    }
    s_.settings.other[name] = value;
    s_.positions["settings." + name] = where;
  }

  /// null, where a class' default is not.
  void without(const std::string& field) {
    if (of_class_.contains(field)) return;
    try {
      if (scenario::effect_of(field) != nullptr && scenario::get(s_, field) != "none") assign(s_, {field, "none"});
    } catch (const UsageError&) {
      return;  // no field of ours, or one that is never null in the versions that are
    }
  }

  void read(const std::string& line, const Position& where) {
    for (const auto* rest : {"import ", "from ", "def ", "return", "@", "\"\"\"", "pass"})
      if (line.starts_with(rest)) return;  // of the recipe around it
    const auto equals = line.find('=');
    std::string path = trimmed(line.substr(0, equals));
    if (equals == std::string::npos) throw UsageError(where, line.substr(0, 60), "expected cfg.SECTION.FIELD = VALUE");
    std::string value = trimmed(line.substr(equals + 1));
    if (is_assignment(value)) read(value, where);  // cfg.rng.x = cfg.model.y = False
    while (is_assignment(value)) value = trimmed(value.substr(value.find('=') + 1));
    if (value.empty()) throw UsageError(where, path, "a value is missing");
    if (path == "cfg") {
      result_.notes.push_back("what " + value.substr(0, 60) + " sets is not known: only the overrides below it are");
      return;
    }
    while (path.starts_with('+')) path.erase(0, 1);  // Hydra: a key that is new
    const bool hydra = !path.starts_with("cfg.");
    if (!hydra) path.erase(0, 4);
    Python literal = parsed(value, where, "cfg." + path, hydra);
    if (literal.kind == Python::Kind::name)
      if (const auto variable = variables_.find(literal.text); variable != variables_.end()) literal = variable->second;
    if (path.starts_with("env_vars[") && path.ends_with(']'))
      return variable(parse_python(path.substr(9, path.size() - 10), where, path).text, literal, where);
    if (path.starts_with("env_vars.")) return variable(path.substr(9), literal, where);
    if (path == "env_vars") {
      if (literal.kind != Python::Kind::map) throw UsageError(where, "cfg.env_vars", "expected a map of variables");
      for (const auto& [name, one] : literal.entries) variable(name, one, where);
      return;
    }
    if (path == "mixed_precision") return read_recipe(literal, where);
    if (path == "comm_overlap") return read_comm_overlap(literal, where);
    if (path == "peft") return read_peft(s_, literal, where);
    if (path.starts_with("peft.")) return read_adapter(s_, path.substr(5), literal, where);
    const auto dot = path.find('.');
    if (dot == std::string::npos && hydra) {  // seq_length = 4096 above the overrides
      variables_[path] = std::move(literal);
      return;
    }
    if (dot == std::string::npos) return whole_section(path, literal, value, where);
    if (std::ranges::find(dropped_, path.substr(path.rfind('.') + 1)) == dropped_.end())
      require_section(path, hydra, where);
    set(path.substr(0, dot), path.substr(dot + 1), literal, where);
  }

  /// cfg.model = AutoBridge.from_hf_pretrained(...).to_megatron_provider(), cfg.ddp =
  /// DistributedDataParallelConfig(x=1): what is named in the call is read, what the object brings itself is not known.
  void whole_section(const std::string& section, const Python& object, const std::string& value,
                     const Position& where) {
    if (object.kind != Python::Kind::call && object.kind != Python::Kind::name && object.kind != Python::Kind::none)
      throw UsageError(where, section, "expected cfg.SECTION.FIELD = VALUE");
    const bool known = section == "model" && built_by_provider(last_name(object.text));
    if (known || (section == "model" && object.kind == Python::Kind::call && object.text.ends_with("Provider")))
      provider(object.text, where);
    for (const auto& [field, one] : object.entries) set(section, field, one, where);
    if (section == "model")
      result_.notes.push_back("what " + value.substr(0, 60) + " sets is not known: only what is said beside it is");
    else
      ignored_.insert("cfg." + section);
  }

  /// Hydra's overrides need no quotes: model.pipeline_model_parallel_layout=E|t*3|L, model.x=null.
  static Python parsed(const std::string& value, const Position& where, const std::string& key, bool hydra) {
    if (!hydra) return parse_python(value, where, key);
    if (value == "null") return {Python::Kind::none, {}, {}, {}};
    if (value == "true" || value == "false") return {Python::Kind::boolean, value == "true" ? "True" : "False", {}, {}};
    try {
      return parse_python(value, where, key);
    } catch (const UsageError&) {
      if (value.starts_with('[') || value.starts_with('{') || value.starts_with('(')) throw;
      return {Python::Kind::string, value, {}, {}};
    }
  }

  void variable(const std::string& name, const Python& value, const Position& where) {
    if (value.kind != Python::Kind::string && value.kind != Python::Kind::number && value.kind != Python::Kind::boolean)
      throw UsageError(where, "cfg.env_vars", "expected a string, a number or a boolean for " + name);
    try {
      scenario::set_env(s_, name + "=" + value.text);
      s_.positions["environment." + name] = where;
    } catch (const UsageError& error) {
      throw UsageError(where, "cfg.env_vars", name + ": " + error.message());
    }
  }

  void read_comm_overlap(const Python& value, const Position& where) {
    comm_overlap_.clear();
    overlap_table_ = {};
    has_comm_overlap_ = value.kind != Python::Kind::none;
    if (!has_comm_overlap_) return;
    if (value.kind != Python::Kind::call || !value.text.ends_with("CommOverlapConfig"))
      throw UsageError(where, "cfg.comm_overlap", "expected CommOverlapConfig(FIELD=VALUE, ...) or None");
    for (const auto& [field, one] : value.entries) set("comm_overlap", field, one, where);
  }

  void read_recipe(const Python& value, const Position& where) {
    const bool call = value.kind == Python::Kind::call;
    if (call && value.text.ends_with("MixedPrecisionConfig")) {
      precision_ = precision_defaults();  // whatever the model says: its setup() overwrites that
      for (const auto& [field, fixed] : precision_) places_[field] = where;
      for (const auto& [field, one] : value.entries) set("mixed_precision", field, one, where);
      return;
    }
    auto name = call && value.items.size() == 1 ? value.items.front().text : value.text;
    name.erase(0, name.rfind('.') + 1);
    std::ranges::replace(name, '-', '_');
    const auto recipe = precision_recipes().find(name);
    if (recipe == precision_recipes().end()) {
      std::vector<std::string> names;
      for (const auto& [known, fields] : precision_recipes()) names.push_back(known);
      throw UsageError(where, "cfg.mixed_precision", "unknown recipe " + name, names, nearest_name(name, names));
    }
    precision_ = recipe->second;
    for (const auto& [field, fixed] : precision_) places_[field] = where;
  }

  /// Bridge asserts that cfg.dataset.seq_length is cfg.model.seq_length (training/config.py:1644).
  void dataset_length(const std::string& value, const Position& where) {
    try {
      Scenario probe;
      assign(probe, {"seq_length", value});
      dataset_length_ = {probe.model.seq_length, where};
    } catch (const UsageError& error) {
      throw UsageError(where, "cfg.dataset.seq_length", error.message(), error.allowed());
    }
  }

  /// Packing by PackedSequenceSpecs (data/packing/config.py), the older name of the field, or one of its fields.
  bool packs(const std::string& field, const Python& value, const Position& where) {
    const auto dot = field.find('.');
    const std::string name = field.substr(0, dot);
    if (name != "enable_offline_packing" && name != "offline_packing_specs" && name != "packed_sequence_specs")
      return false;
    s_.positions["settings.sft"] = where;
    if (dot == std::string::npos) {
      s_.settings.sft = value.kind != Python::Kind::none && value.text != "False";
      for (const auto& [one, entry] : value.entries) specification(one, entry, where);
    } else {
      specification(field.substr(dot + 1), value, where);
    }
    return true;
  }

  void specification(const std::string& name, const Python& value, const Position& where) {
    if (name == "packed_sequence_size") {
      s_.settings.sft = true;
      row_length_ = {integer_of(value, where, name), where};
    } else if (name == "pad_cu_seqlens") {
      s_.settings.pad_cu_seqlens = value.text == "True";
      s_.positions["settings.pad_cu_seqlens"] = where;
    }
  }

  void set(const std::string& section, const std::string& field, const Python& literal, const Position& where) {
    static const std::set<std::string> modelled = {"model", "comm_overlap", "mixed_precision",
                                                   "ddp",   "optimizer",    "train"};
    const std::string name = "cfg." + section + "." + field;
    if (section == "model" && scenario::effect_of(field) == nullptr && of_providers(field)) {
      ignored_.insert(name);
      return;
    }
    if (section == "model" && holds_spec(field)) return specification_of_layers(field, literal, where);
    if (section == "model" && field == "quant_recipe") {  // an object; what it says beyond that is in Megatron's file
      if (literal.kind == Python::Kind::none) return;
      const auto entries = module_recipes_of(literal);
      if (!entries) return refuse("te_precision_config_file", last_name(literal.text), where);
      s_.settings.quant_recipe = *entries;
      places_[field] = where;
      return;
    }
    if (section == "comm_overlap" && field == overlap_table) {
      overlap_table_ = {literal, where};
      return;
    }
    if (vocabulary_.takes(section, field, literal, where)) return;
    if (section == "tensor_inspect" && field == "enabled" && literal.text == "True")
      return refuse(section, "true", where);
    if (section == "model" && field == "interleaved_attn_pattern") {
      assign(s_, {"window_attn_skip_freq", skip_freq_of_gemma3(literal, where, name)});
      places_["window_attn_skip_freq"] = where;
      of_class_.emplace("window_attn_skip_freq");  // which stands in a whole configuration as null
      return;
    }
    if (section == "dataset" && (field == "seq_length" || field == "sequence_length"))
      return dataset_length(yaml_of(literal, where, name), where);
    if (section == "dataset" && packs(field, literal, where)) return;
    if ((section == "ddp" && field == "check_for_nan_in_grad") ||
        (section == "rerun_state_machine" && field == "check_for_nan_in_loss")) {
      (section == "ddp" ? gradients_checked_ : losses_checked_) = literal.text == "True";
      return;
    }
    if (section == "dataset" && field == "skip_getting_attention_mask_from_dataset") {
      s_.settings.create_attention_mask_in_dataloader = literal.text == "False";
      return;
    }
    if (!modelled.contains(section) && field != "log_params_norm") {
      const scenario::EffectRow* effect = scenario::effect_of(field);
      if (effect != nullptr && !is_field(field) && scenario::may_act(field, yaml_of(literal, where, name))) {
        s_.settings.other[effect->name] = yaml_of(literal, where, name);
        s_.positions["settings." + effect->name] = where;
      } else {
        ignored_.insert(name);
      }
      return;
    }
    if (section == "train" && field == "decrease_batch_size_if_needed") {
      decreases_batch_ = literal.text == "True";
      return;
    }
    if (section == "model" && field == "share_embeddings_and_output_weights") {
      s_.model.untie_embeddings_and_output_weights = literal.text == "False";
      return;
    }
    if (section == "model" && field == "hybrid_override_pattern")  // HybridModelProvider.finalize
      return set(section, "hybrid_layer_pattern", literal, where);
    if (std::ranges::find(dropped_, field) != dropped_.end()) {
      ignored_.insert(name);
      return;
    }
    const auto is_carried = [&](const Carried& row) { return row.field == field; };
    if (section == "model" && std::ranges::any_of(carried(), is_carried)) {
      if (literal.kind != Python::Kind::none && literal.text != "False")
        s_.model.other[field] = yaml_of(literal, where, name);
      else
        s_.model.other.erase(field);
      return;
    }
    const Assignment assignment = {field, value_in_megatron(field, literal, where, name)};
    if (section == "comm_overlap") {
      has_comm_overlap_ = true;
      comm_overlap_.push_back(assignment);
    }
    try {
      if (section == "comm_overlap" || section == "mixed_precision") {  // assigned when all is read
        Scenario probe = s_;
        assign(probe, assignment);
      } else {
        assign(s_, assignment);
      }
    } catch (const UsageError& error) {
      if (section == "train" || section == "optimizer" || section == "ddp") {
        const auto* known = scenario::effect_of(field);
        if (error.nearest().empty() || (known != nullptr && known->effect == scenario::Effect::none)) {
          (known == nullptr ? unknown_ : ignored_).insert(name);
          return;
        }
      }
      if (literal.kind == Python::Kind::none &&
          scenario::effect_of(field) != nullptr) {  // what the class decides itself
        const auto usual = scenario::get(provider_defaults(), field);
        if (usual != scenario::get(s_, field) && usual != "0") assign(s_, {field, usual});
        return;
      }
      if (!knows_model_ && section == "model" && scenario::effect_of(field) == nullptr) {  // refused as a whole
        unknown_.insert(name);
        return;
      }
      const std::string without = scenario::effect_of(field) == nullptr ? "; without it: --ignore " + field : "";
      throw UsageError(where, name, error.message() + without, error.allowed(), error.nearest());
    }
    places_[field] = where;
    if (field == "fp8_param" || field == "fp8_param_gather") places_["fp8_param"] = places_["fp8_param_gather"] = where;
    if (field == "hybrid_layer_pattern" && s_.model.num_layers == 0)  // HybridModelProvider.finalize counts them
      s_.model.num_layers = static_cast<scenario::Int>(scenario::hybrid_layers(s_).size());
    if (section == "mixed_precision") {
      precision_.push_back(assignment);
      // MixedPrecisionConfig keeps the two in step.
      for (const auto& [one, other] : {std::pair("fp8_param", "fp8_param_gather"), {"fp4_param", "fp4_param_gather"}}) {
        if (field == one) precision_.emplace_back(other, assignment.second);
        if (field == other) precision_.emplace_back(one, assignment.second);
      }
    }
    if (!resolved_ && section == "model" && literal.text == "True" &&
        (field == "overlap_moe_expert_parallel_comm" || field == "delay_wgrad_compute"))
      result_.findings.push_back(
          {"bridge.comm-overlap-resets",
           plan::Severity::trap,
           {"cfg.model." + field},
           "CommOverlapConfig.setup() resets cfg.model." + field + " to False where cfg.comm_overlap is set",
           "set cfg.comm_overlap." + field,
           "src/megatron/bridge/training/comm_overlap.py:438 (Megatron-Bridge main)"});
  }

  std::string file_;
  scenario::Int said_vocabulary_;  ///< beside the file; 0: none
  Scenario s_;
  Import result_;
  std::vector<Assignment> precision_, comm_overlap_;
  bool has_comm_overlap_ = false, resolved_ = false, decreases_batch_ = false, knows_model_ = true;
  std::optional<bool> gradients_checked_, losses_checked_;
  std::int64_t data_parallel_size_ = 0;  ///< of a whole configuration
  BridgeVocabulary vocabulary_;
  std::pair<Python, Position> overlap_table_;
  std::pair<std::int64_t, Position> dataset_length_ = {0, {}}, row_length_ = {0, {}};
  std::map<std::string, Position> places_;  ///< of fields
  std::set<std::string> ignored_, unknown_;
  std::set<std::string> of_class_;   ///< fields that the model's class decides
  std::vector<std::string> stated_;  ///< said beside the file
  bool core_stated_;
  std::vector<std::string> dropped_;         ///< names to go on without
  std::map<std::string, Python> variables_;  ///< of the recipe around the overrides
};

}  // namespace

bool is_bridge_text(std::string_view text) {
  if (is_bridge_config(text)) return true;
  for (const auto& [line, number] : statements(text))  // overrides, after what they import
    if (!line.starts_with("from ") && !line.starts_with("import "))
      return line.starts_with("cfg.") && line.find('=') != std::string::npos;
  return false;
}

Import from_bridge_text(std::string_view text, const std::string& file, const Machine& machine) {
  return OverrideImporter(file, machine).run(text);
}

Import read_overrides(std::string_view text, const std::string& file, const Machine& machine,
                      const std::vector<Override>& beside) {
  return OverrideImporter(file, machine).run(text, beside);
}

void judge_overrides(const std::string& file, const Machine& machine, const std::vector<Override>& overrides) {
  OverrideImporter(file, machine).judge(overrides);
}

Import from_bridge(const std::string& path, const Machine& machine) {
  const std::string text = read_file(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw UsageError({path, 0}, {}, "empty: overrides are lines cfg.x.y = value");
  return from_bridge_text(text, path, machine);
}

}  // namespace pipewright::emit
