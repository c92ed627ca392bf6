// The values of each dimension. Sets of modules are enumerated over those that are legal and do something by
// themselves; what else a choice needs (overlap with interleaving, variables with offload) comes with its value.
#include "search_dimensions.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

using Sets = std::vector<std::vector<std::string>>;

constexpr const char* allocator_variable = "PYTORCH_CUDA_ALLOC_CONF";

void assign(scenario::Scenario& s, const std::string& name, const std::string& value) {
  scenario::set(s, name + "=" + value);
}

/// Rules of a severity, in the table's order; whether each fires.
std::vector<std::pair<const Rule*, bool>> fired(const Scenario& s, Severity severity) {
  std::vector<std::pair<const Rule*, bool>> all;
  for (const auto& rule : all_rules())
    if (rule.severity == severity && (severity != Severity::no_effect || rule.remedy))
      all.emplace_back(&rule, applies(rule, s));
  return all;
}

void say_once(std::vector<Finding>& list, const Finding& finding) {
  if (std::ranges::none_of(list, [&](const Finding& f) { return f.rule == finding.rule; })) list.push_back(finding);
}

/// The first finding that `changed` has and what fired `before` has not, if any.
std::optional<Finding> news(const std::vector<std::pair<const Rule*, bool>>& before, const Scenario& changed) {
  for (const auto& [rule, fires] : before)
    if (!fires && applies(*rule, changed)) return finding(*rule, changed);
  return std::nullopt;
}

/// Subsets of the modules that are legal and do something by themselves; `with` puts a set into a scenario.
/// Legality of every subset is left to the rules; a module that is illegal or idle alone stays so in every set.
Sets subsets(const Scenario& base, const std::vector<std::string>& modules, const std::string& prefix,
             const std::function<void(Scenario&, const std::vector<std::string>&)>& with, LeftOut& left_out) {
  std::vector<std::string> useful;
  Scenario none = base;
  with(none, {});
  const auto violations = fired(none, Severity::violation), idles = fired(none, Severity::no_effect);
  for (const auto& module : modules) {
    Scenario alone = none;
    with(alone, {module});
    if (const auto forbidden = news(violations, alone)) {
      const std::string label = prefix + " " + module;
      if (std::ranges::none_of(left_out.rejected, [&](const Rejected& r) { return r.label == label; }))
        left_out.rejected.push_back({label, {}, {}, forbidden->rule, forbidden->message});
    } else if (const auto idle = news(idles, alone)) {
      say_once(left_out.idle, *idle);
    } else {
      useful.push_back(module);
    }
  }
  Sets sets = {{}};
  for (const auto& module : useful) {
    const auto before = sets.size();
    for (std::size_t i = 0; i < before; ++i) {
      auto larger = sets[i];
      larger.push_back(module);
      sets.push_back(std::move(larger));
    }
  }
  std::ranges::stable_sort(sets, {}, [](const auto& set) { return set.size(); });
  return sets;
}

/// The rows of a catalogue that the search puts together here, in its order.
template <typename Row>
std::vector<Row> searched(std::span<const Row> catalogue, const Scenario& partial) {
  std::vector<Row> rows;
  for (const auto& row : catalogue)
    if (row.searched > 0 && (row.offered == nullptr || row.offered(partial))) rows.push_back(row);
  std::ranges::sort(rows, {}, &Row::searched);
  return rows;
}

bool covers_others(const std::vector<std::string>& set) {
  return std::ranges::any_of(scenario::recompute_catalogue(),
                             [&](const auto& row) { return !row.covers.empty() && has(set, row.name); });
}

void set_recompute(Scenario& s, const std::vector<std::string>& modules) {
  s.settings.recompute_granularity = modules.empty() ? std::nullopt : std::optional<std::string>("selective");
  s.settings.recompute_modules = modules;
  s.settings.recompute_method.reset();
  s.settings.recompute_num_layers.reset();
  s.settings.distribute_saved_activations = false;
}

void set_offload(Scenario& s, const std::vector<std::string>& modules) {
  s.settings.fine_grained_activation_offloading = !modules.empty();
  s.settings.offload_modules = modules;
  s.settings.cpu_offloading = false;
  s.settings.cpu_offloading_num_layers = 0;
  s = with_required_environment(std::move(s));
}

Value recompute_value(std::string label, const std::string& granularity, const std::vector<std::string>& modules,
                      const std::string& method, const std::string& layers) {
  return {std::move(label),
          {{"recompute_granularity", granularity},
           {"recompute_modules", list_text(modules)},
           {"recompute_method", method},
           {"recompute_num_layers", layers}},
          {}};
}

std::vector<Value> recompute_values(const Scenario& partial, LeftOut& left_out) {
  std::vector<Value> values;
  for (const auto& set : recompute_sets(partial, left_out))
    values.push_back(recompute_value(set.empty() ? "no recompute" : "recompute " + joined(set, ", "),
                                     set.empty() ? "none" : "selective", set, "none", "none"));
  const auto layers = layers_per_chunk(partial);
  // block n: the first n layers of every chunk (block with all of them is uniform 1); uniform n: groups of n layers.
  for (std::int64_t n = 1; n < layers; ++n)
    values.push_back(
        recompute_value("full recompute block " + std::to_string(n), "full", {}, "block", std::to_string(n)));
  for (std::int64_t n = 1; n <= layers; ++n)
    values.push_back(
        recompute_value("full recompute uniform " + std::to_string(n), "full", {}, "uniform", std::to_string(n)));
  return values;
}

/// Shares of the groups that move, where the version has --activation-offload-fraction.
std::vector<const char*> fractions(const Scenario& partial, bool nothing) {
  if (nothing || !scenario::versions_of("activation_offload_fraction").has(scenario::core_version(partial.software)))
    return {""};
  return {"0.25", "0.5", "0.75", "1"};
}

Value offload_value(const Scenario& partial, const std::vector<std::string>& set, const std::string& fraction) {
  Value value{
      set.empty() ? "no offload" : "offload " + joined(set, ", "),
      {{"fine_grained_activation_offloading", set.empty() ? "false" : "true"}, {"offload_modules", list_text(set)}},
      {}};
  if (!fraction.empty()) {
    if (fraction != "1") value.label += " of " + fraction + " of the layers";
    value.settings.emplace_back("activation_offload_fraction", fraction);
  }
  if (!set.empty()) value.environment.emplace_back("NVTE_CPU_OFFLOAD_V1", "1");
  return instead_of_layers(std::move(value), partial);
}

/// Transformer Engine's offload of whole layers: without pipelining and recompute only (reference 3.3).
void add_whole_layers(const Scenario& partial, std::vector<Value>& values) {
  const auto layers = partial.model.num_layers;
  if (partial.settings.pipeline_model_parallel_size > 1 || partial.settings.recompute_granularity) return;
  for (std::int64_t n = 1; n < layers; n += std::max<std::int64_t>(1, layers / 8))
    values.push_back({"offload " + std::to_string(n) + " whole layers",
                      {{"fine_grained_activation_offloading", "false"},
                       {"offload_modules", "[]"},
                       {"cpu_offloading", "true"},
                       {"cpu_offloading_num_layers", std::to_string(n)}},
                      {}});
}

std::vector<Value> offload_values(const Scenario& partial, LeftOut& left_out) {
  // A layer that is recomputed in full keeps its input alone. What is legal only beside another module is offered with
  // that one.
  if (partial.settings.recompute_granularity.value_or("") == "full") return {no_offload(partial)};
  const auto offered = searched(scenario::offload_catalogue(), partial);
  std::vector<std::string> modules;
  for (const auto& row : offered)
    if (!row.beside) modules.emplace_back(row.name);
  std::vector<Value> values;
  for (const auto& alone : subsets(partial, modules, "offload", set_offload, left_out)) {
    Sets sets = {alone};
    for (const auto& row : offered) {
      if (!row.beside || !lists(alone, *row.beside)) continue;
      const auto before = sets.size();
      for (std::size_t i = 0; i < before; ++i) sets.push_back(sets[i]), sets.back().emplace_back(row.name);
    }
    for (const auto& set : sets)
      for (const auto* fraction : fractions(partial, set.empty()))
        values.push_back(offload_value(partial, set, fraction));
  }
  values.front() = no_offload(partial);
  add_whole_layers(partial, values);
  return values;
}

/// What expert-parallel overlap needs of everything else (reference 3.5).
bool can_overlap_experts(const Scenario& s) {
  const auto& o = s.settings;
  return moe_model(s) && o.expert_model_parallel_size > 1 && o.moe_token_dispatcher_type != "allgather" &&
         (o.pipeline_model_parallel_size == 1 || scenario::interleaved(s)) && (o.bf16 || o.fp16) &&
         !o.moe_shared_expert_overlap && s.model.mtp_num_layers.value_or(0) <= 1;
}

Value overlap_value(const Scenario& partial, bool overlap, bool delay) {
  const auto text = [](bool on) { return on ? "true" : "false"; };
  Value value{!overlap ? "no expert overlap"
              : delay  ? "expert overlap, delayed weight gradients"
                       : "expert overlap",
              {{"overlap_moe_expert_parallel_comm", text(overlap)}, {"delay_wgrad_compute", text(delay)}},
              {}};
  // One hardware queue would serialise the two streams (Megatron Bridge, scripts/performance/utils/overrides.py:244).
  constexpr const char* connections = "CUDA_DEVICE_MAX_CONNECTIONS";
  if (overlap && scenario::variable(partial, connections) == "1")
    value.environment.emplace_back(connections, partial.settings.moe_token_dispatcher_type == "flex" ? "32" : "8");
  return value;
}

std::vector<Value> wgrad_values(const Scenario& partial, LeftOut&) {
  std::vector<Value> values;
  const bool given = partial.settings.overlap_moe_expert_parallel_comm || partial.settings.delay_wgrad_compute;
  if (!moe_model(partial) && !given) return values;
  values.push_back(overlap_value(partial, false, false));
  if (!can_overlap_experts(partial)) {
    if (!given) values.front().label.clear();
    return values;
  }
  values.push_back(overlap_value(partial, true, false));
  values.push_back(overlap_value(partial, true, true));
  if (scenario::core_version(partial.software) != scenario::Version::pr_4268) return values;
  const auto delayed = values.back();
  values.pop_back();
  for (std::int64_t n = 0; n <= layers_per_chunk(partial); ++n)
    for (const bool stream : {false, true})
      for (const bool whole : {false, true}) {
        Value value = delayed;
        value.label += " of " + std::to_string(n) + " layers" + (stream ? ", P2P on the communication stream" : "") +
                       (whole ? ", MLP too" : "");
        value.settings.emplace_back("overlap_p2p_wgrad_delayed_layer_number", std::to_string(n));
        value.settings.emplace_back("overlap_p2p_backward_on_comm_stream", stream ? "true" : "false");
        value.settings.emplace_back("overlap_p2p_with_transformer_layer_wgrad", whole ? "true" : "false");
        values.push_back(std::move(value));
      }
  return values;
}

std::vector<Value> allocator_values(const Scenario& partial, LeftOut&) {
  const std::string conf = scenario::variable(partial, allocator_variable);
  std::string others;
  bool expands = false;
  for (std::size_t at = 0; at < conf.size();) {
    const auto end = std::min(conf.find(',', at), conf.size());
    if (const auto option = conf.substr(at, end - at); !option.starts_with("expandable_segments"))
      others += (others.empty() ? "" : ",") + option;
    else
      expands = option == "expandable_segments:True";
    at = end + 1;
  }
  // What stands keeps its wording: a value that only says the same in other words would be a change.
  Value fixed{"default allocator", {}, {{allocator_variable, expands ? others : conf}}};
  const auto on = (others.empty() ? "" : others + ",") + "expandable_segments:True";
  Value expandable{"expandable segments", {}, {{allocator_variable, expands ? conf : on}}};
  if (te_graphs(partial)) expandable.environment.emplace_back("NCCL_GRAPH_REGISTER", "0");
  return {std::move(fixed), std::move(expandable)};
}

/// Opening a dimension takes no choice away: what stands is one of its values, the last if nothing else says it.
std::vector<Value> with_given(std::vector<Value> values, const Scenario& partial, Decides what) {
  if (!values.empty() && std::ranges::none_of(values, [&](const Value& v) { return changes_nothing(v, partial); }))
    values.push_back({as_given(what), {}, {}});
  return values;
}

bool any_stated(const Scenario& s, const std::vector<std::string>& fields) {
  return std::ranges::any_of(fields, [&](const auto& field) { return s.search.values.contains(field); });
}

}  // namespace

std::string Value::setting(std::string_view name) const {
  const auto at = std::ranges::find(settings, name, &Assignments::value_type::first);
  return at == settings.end() ? std::string() : at->second;
}

std::string as_given(Decides what) {
  constexpr std::array names = {"",        "parallelism ", "cp_comm_type ", "micro batch ", "pipeline ",
                                "layout ", "wgrad delay ", "recompute ",    "offload ",     "allocator "};
  return std::string(names[static_cast<std::size_t>(what)]) + "as given";
}

Value instead_of_layers(Value value, const Scenario& partial) {
  if (!partial.settings.cpu_offloading || value.settings.empty() || !value.setting("cpu_offloading").empty())
    return value;
  value.settings.emplace_back("cpu_offloading", "false");
  value.settings.emplace_back("cpu_offloading_num_layers", "0");
  return value;
}

Value no_offload(const Scenario& partial) { return offload_value(partial, {}, ""); }

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

std::string list_text(const std::vector<std::string>& words) { return "[" + joined(words, ", ") + "]"; }

Sets recompute_sets(const Scenario& scenario, LeftOut& left_out) {
  std::vector<std::string> modules;
  for (const auto& row : searched(scenario::recompute_catalogue(), scenario)) modules.emplace_back(row.name);
  // Where offload is open, what is given of it must not decide which sets are legal.
  Scenario base = scenario;
  if (scenario.search.offload == "auto") apply(no_offload(base), base);
  auto sets = subsets(base, modules, "recompute", set_recompute, left_out);
  // What another module of the set replays anyway can only add to that.
  std::erase_if(sets, [](const auto& set) {
    return std::ranges::any_of(scenario::recompute_catalogue(), [&](const auto& row) {
      return has(set, row.name) && std::ranges::any_of(row.covers, [&](Recompute part) { return lists(set, part); });
    });
  });
  return sets;
}

std::vector<Scenario> least_kept(const Scenario& partial) {
  LeftOut ignored;
  std::vector<Scenario> all;
  if (partial.search.recompute == "auto") {
    // Every layer's input, or one of a whole chunk beside all that its layers need while they are replayed.
    for (const auto layers : std::set<std::int64_t>{1, layers_per_chunk(partial)})
      if (!graphs(partial) && layers > 0) {
        all.push_back(partial);
        apply(recompute_value("", "full", {}, "uniform", std::to_string(layers)), all.back());
      }
    // The largest sets without and with what contains others.
    for (const bool whole : {false, true}) {
      auto sets = recompute_sets(partial, ignored);
      std::erase_if(sets, [&](const auto& set) { return covers_others(set) != whole; });
      if (sets.empty()) continue;
      all.push_back(partial);
      set_recompute(all.back(), sets.back());
    }
  } else {
    all.push_back(partial);
  }
  if (partial.search.offload != "auto") return all;
  const auto searched = all.size();
  for (std::size_t i = 0; i < searched; ++i) {
    const auto values = offload_values(all[i], ignored);
    const auto is_layers = [](const Value& value) { return value.setting("cpu_offloading") == "true"; };
    const auto layers = std::ranges::find_if(values, is_layers);
    if (layers != values.begin()) all.push_back(all[i]), apply(*(layers - 1), all.back());
    if (layers != values.end()) all.push_back(all[i]), apply(values.back(), all.back());
  }
  return all;
}

std::vector<Dimension> dimensions(const Scenario& scenario) {
  std::vector<Dimension> all;
  const bool spreads = scenario.search.parallelism == "auto";
  for (const auto& [field, values] : scenario.search.values) {
    if (spreads && std::ranges::find(parallel_sizes, field) != parallel_sizes.end()) continue;
    all.push_back({Decides::field, [field, values](const Scenario&, LeftOut&) {
                     std::vector<Value> list;
                     for (const auto& value : values) list.push_back({field + " " + value, {{field, value}}, {}});
                     return list;
                   }});
  }
  const auto& search = scenario.search;
  const auto open = [&](const std::string& wish, Decides what, const std::vector<std::string>& fields, auto values) {
    if (wish != "auto" || any_stated(scenario, fields)) return;
    all.push_back({what, [values, what](const Scenario& partial, LeftOut& left_out) {
                     auto found = values(partial, left_out);
                     // What stands of context parallelism may be nothing that another number of ranks can do;
                     // parallelism has what is given, unless a list is without it.
                     if (what == Decides::context || what == Decides::parallelism) return found;
                     return with_given(std::move(found), partial, what);
                   }});
  };
  open(search.parallelism, Decides::parallelism, {}, parallelism_values);
  open(search.parallelism, Decides::context, {"cp_comm_type", "hierarchical_context_parallel_sizes"}, context_values);
  open(search.microbatch, Decides::microbatch, {"micro_batch_size"}, microbatch_values);
  // Another pipeline size needs an interleaving and a layer split of its own.
  open(spreads ? "auto" : search.pipeline, Decides::pipeline, {"virtual_pipeline_model_parallel_size"},
       pipeline_values);
  open(layout_is_open(scenario) ? "auto" : "keep", Decides::layout, {"pipeline_model_parallel_layout"}, layout_values);
  open(search.wgrad_delay, Decides::wgrad_delay, {"delay_wgrad_compute", "overlap_moe_expert_parallel_comm"},
       wgrad_values);
  open(search.recompute, Decides::recompute,
       {"recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"}, recompute_values);
  open(search.offload, Decides::offload, {"offload_modules", "fine_grained_activation_offloading"}, offload_values);
  open(search.allocator, Decides::allocator, {}, allocator_values);
  return all;
}

bool changes_nothing(const Value& value, const Scenario& s) {
  const auto stands = [&](const auto& setting) { return scenario::get(s, setting.first) == setting.second; };
  const auto is_set = [&](const auto& variable) { return scenario::variable(s, variable.first) == variable.second; };
  return std::ranges::all_of(value.settings, stands) && std::ranges::all_of(value.environment, is_set);
}

void apply(const Value& value, Scenario& scenario) {
  for (const auto& [name, text] : value.settings) assign(scenario, name, text);
  for (const auto& [name, text] : value.environment) scenario::set_env(scenario, name + "=" + text);
}

}  // namespace pipewright::plan
