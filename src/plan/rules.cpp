// The table of rules: which fire, their text with values filled in, and the words that the conditions share.
#include "rules.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::plan {

using scenario::OffloadRow;

#include "rule_lines.inc"

namespace {

constexpr std::string_view bridge_ref = "Megatron-Bridge main";

/// Column of a version; one whose source was not read yet stands where the one before it does.
std::size_t cited_column(Version version) {
  std::size_t column = 0;
  for (std::size_t i = 0; i < lines_of.size(); ++i)
    if (lines_of[i] <= version) column = i;
  return column;
}

std::int64_t over(std::int64_t a, std::int64_t b) { return b > 0 ? a / b : 0; }

/// Layers that block recompute replays on a rank: n of every chunk.
std::int64_t recomputed_layers(const Scenario& s) {
  const auto n = std::min(s.settings.recompute_num_layers.value_or(0), layers_per_chunk(s));
  return n * scenario::num_chunks(s);
}

/// Derived values that messages name as {$name}. Divisions are guarded: rules speak of scenarios that do not split.
std::string derived(const Scenario& s, std::string_view name) {
  const auto& settings = s.settings;
  const auto pp = settings.pipeline_model_parallel_size;
  const auto counted = s.model.num_layers + (settings.account_for_embedding_in_pipeline_split ? 1 : 0) +
                       (settings.account_for_loss_in_pipeline_split ? 1 : 0);
  const auto first = settings.num_layers_in_first_pipeline_stage, last = settings.num_layers_in_last_pipeline_stage;
  if (name == "layers_per_rank") return std::to_string(over(counted, pp));
  if (name == "split_layers") return std::to_string(counted);
  if (name == "layers_per_chunk") return std::to_string(layers_per_chunk(s));
  if (name == "recomputed_layers") return std::to_string(recomputed_layers(s));
  if (name == "model_parallel_size") return std::to_string(scenario::model_parallel_size(s));
  if (name == "expert_parallel_size")
    return std::to_string(scenario::expert_tensor_parallel_size(s) * settings.expert_model_parallel_size * pp);
  if (name == "data_parallel_size") return std::to_string(over(s.cluster.num_gpus, scenario::model_parallel_size(s)));
  if (name == "num_query_groups") return std::to_string(scenario::num_query_groups(s));
  if (name == "num_microbatches") return std::to_string(scenario::num_microbatches(s));
  if (name == "group_remainder") return std::to_string(scenario::num_microbatches(s) % scenario::group_size(s));
  if (name == "middle_layers") return std::to_string(s.model.num_layers - first.value_or(0) - last.value_or(0));
  if (name == "middle_stages") return std::to_string(pp - (first ? 1 : 0) - (last ? 1 : 0));
  if (name == "layout_stages")
    return std::to_string(std::ranges::count(settings.pipeline_model_parallel_layout.value_or(""), '|') + 1);
  throw InternalError("rule text names an unknown value: " + std::string(name));
}

std::string filled(std::string_view text, const Scenario& s) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto close = text[at] == '{' ? text.find('}', at) : std::string_view::npos;
    if (close == std::string_view::npos) {
      out += text[at];
      continue;
    }
    const auto name = text.substr(at + 1, close - at - 1);
    if (name.starts_with('$'))
      out += derived(s, name.substr(1));
    else
      out += scenario::get(s, std::string(name));
    at = close;
  }
  return out;
}

std::string cited(const Rule& rule, Version version) {
  const auto column = cited_column(version);
  std::string text(rule.source->file);
  if (const auto line = rule.source->lines[column]; line != 0) text += ":" + std::to_string(line);
  const auto source = rule.speaker == Speaker::bridge ? bridge_ref : scenario::info(lines_of[column]).source;
  return text + " (" + std::string(source) + ")";
}

/// The newest release that has the rule, else the first version that does.
Version newest_with(const Rule& rule) {
  std::optional<Version> release, first;
  for (const auto& row : scenario::versions()) {
    if (!rule.versions.has(row.version)) continue;
    if (row.kind == scenario::VersionKind::release) release = row.version;
    if (!first) first = row.version;
  }
  if (!first) throw InternalError("rule of no version: " + std::string(rule.id));
  return release.value_or(*first);
}

std::string quoted(const auto& rows) {
  std::map<int, std::string_view> places;
  for (const auto& row : rows)
    if (row.quoted > 0) places.emplace(row.quoted, row.name);
  std::string list;
  for (const auto& [place, name] : places) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

std::vector<std::string> strings(const std::vector<std::string_view>& views) { return {views.begin(), views.end()}; }

}  // namespace

std::string_view name(Severity severity) {
  switch (severity) {
    case Severity::violation:
      return "violation";
    case Severity::no_effect:
      return "no-effect";
    case Severity::trap:
      return "trap";
  }
  throw InternalError("severity");
}

std::span<const Version> cited_versions() { return lines_of; }

std::uint16_t line_in(const Rule& rule, Version cited) { return rule.source->lines[cited_column(cited)]; }

const std::vector<Rule>& all_rules() {
  static const std::vector<Rule> table = [] {
    std::vector<Rule> rules;
    for (auto* part : {recompute_rules, offload_rules, graph_rules, overlap_rules, parallel_rules, run_rules,
                       model_rules, version_rules, effect_rules, trap_rules, bridge_rules})
      std::ranges::move(part(), std::back_inserter(rules));
    for (auto& rule : rules) {
      rule.source = std::ranges::find(citations, rule.id, &Citation::rule);
      if (rule.source == std::end(citations)) throw InternalError("rule without a source: " + std::string(rule.id));
    }
    std::ranges::stable_sort(rules, {}, &Rule::source);
    return rules;
  }();
  return table;
}

bool applies(const Rule& rule, const Scenario& scenario) {
  if (rule.speaker == Speaker::bridge && !bridge(scenario)) return false;
  if (rule.speaker == Speaker::arguments && bridge(scenario)) return false;
  return rule.versions.has(scenario::core_version(scenario.software)) && rule.applies(scenario);
}

Finding finding(const Rule& rule, const Scenario& scenario) {
  return {std::string(rule.id),       rule.severity,
          strings(rule.settings),     filled(rule.message, scenario),
          filled(rule.fix, scenario), cited(rule, scenario::core_version(scenario.software))};
}

std::string with_fix(std::string_view message, std::string_view fix) {
  const auto sentence = [](std::string_view text) {
    return std::string(text) + (text.empty() || std::string_view(".!?").find(text.back()) != text.npos ? "" : ".");
  };
  return sentence(message) + (fix.empty() ? "" : " Fix: " + sentence(fix));
}

std::vector<Finding> check(const Scenario& scenario) {
  std::vector<Finding> findings;
  for (const auto& rule : all_rules())
    if (applies(rule, scenario)) findings.push_back(finding(rule, scenario));
  return findings;
}

std::vector<RuleInfo> rules() {
  std::vector<RuleInfo> rows;
  for (const auto& rule : all_rules()) {
    const auto words = rule.speaker == Speaker::bridge ? "Bridge" : scenario::in_words(rule.versions, true);
    rows.push_back({std::string(rule.id), words, rule.severity, strings(rule.settings), std::string(rule.message),
                    std::string(rule.fix), cited(rule, newest_with(rule))});
  }
  return rows;
}

Scenario without_idle_settings(Scenario scenario) {
  for (const auto& rule : all_rules())
    if (rule.severity == Severity::no_effect && rule.remedy && applies(rule, scenario)) rule.remedy(scenario);
  return scenario;
}

Scenario with_required_environment(Scenario scenario) {
  for (const auto& rule : all_rules())
    if (rule.severity != Severity::no_effect && rule.remedy && applies(rule, scenario)) rule.remedy(scenario);
  return scenario;
}

std::string quoted_names(std::span<const scenario::RecomputeRow> rows) { return quoted(rows); }
std::string quoted_names(std::span<const OffloadRow> rows) { return quoted(rows); }

Versions without(const char* field) { return everywhere.except(scenario::versions_of(field)); }

bool has(const scenario::Strings& list, std::string_view word) { return std::ranges::find(list, word) != list.end(); }
bool any_of(const scenario::Strings& list, const std::vector<std::string_view>& words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return has(list, word); });
}
bool only_of(const scenario::Strings& list, const std::vector<std::string_view>& words) {
  return std::ranges::all_of(list,
                             [&](const std::string& word) { return std::ranges::find(words, word) != words.end(); });
}
bool offloads_any(const Scenario& s, OffloadRow::Part part) {
  return std::ranges::any_of(scenario::offload_catalogue(), [&](const OffloadRow& row) {
    return row.part == part && has(s.settings.offload_modules, row.name);
  });
}
bool offloads_only(const Scenario& s, OffloadRow::Part part) {
  return std::ranges::all_of(s.settings.offload_modules, [&](const std::string& name) {
    const auto* row = scenario::find_offload(name);
    return row != nullptr && row->part == part;
  });
}
bool is(const std::optional<std::string>& value, std::string_view word) { return value && *value == word; }

bool full(const Scenario& s) { return is(s.settings.recompute_granularity, "full"); }
bool selective(const Scenario& s) { return is(s.settings.recompute_granularity, "selective"); }
bool moe_model(const Scenario& s) { return s.model.num_moe_experts.has_value(); }

bool graphs(const Scenario& s) { return s.settings.cuda_graph_impl != "none"; }
bool te_graphs(const Scenario& s) { return s.settings.cuda_graph_impl == "transformer_engine"; }
bool whole_iteration_checks_for_nan(const Scenario& s) {
  return s.settings.cuda_graph_impl == "full_iteration" && scenario::checks_for_nan(s);
}
bool whole_layer_graph(const Scenario& s) {
  return s.settings.cuda_graph_impl == "full_iteration" || s.settings.cuda_graph_modules.empty();
}
bool in_graph(const Scenario& s, std::string_view module) {
  return graphs(s) && (whole_layer_graph(s) || has(s.settings.cuda_graph_modules, module));
}

bool te_at_least(const Scenario& s, int major, int minor) {
  return scenario::te_version(s.software).at_least(major, minor);
}

bool below_capability(const Scenario& s, int capability) {
  return s.cluster.compute_capability.value_or(0) < capability;
}
bool bridge(const Scenario& s) { return s.software.megatron_bridge.has_value(); }

std::int64_t layers_per_chunk(const Scenario& s) {
  try {
    scenario::check(s);
    const auto last = s.settings.pipeline_model_parallel_size - 1, last_chunk = scenario::num_chunks(s) - 1;
    std::size_t most = 0;
    if (const auto& layout = s.settings.pipeline_model_parallel_layout) {
      thread_local std::map<std::string, std::int64_t> known;  // reading one takes as long as all rules
      const auto [at, fresh] = known.emplace(*layout, 0);
      if (!fresh) return at->second;
      for (std::int64_t rank = 0; rank <= last; ++rank)
        for (std::int64_t chunk = 0; chunk <= last_chunk; ++chunk)
          most = std::max(most, scenario::layers_of(s, rank, chunk).size());
      return at->second = static_cast<std::int64_t>(most);
    }
    // Between the ends all are alike.
    for (const auto rank : {std::int64_t{0}, std::min<std::int64_t>(1, last), last})
      for (const auto chunk : {std::int64_t{0}, last_chunk})
        most = std::max(most, scenario::layers_of(s, rank, chunk).size());
    return static_cast<std::int64_t>(most);
  } catch (const UsageError&) {
    return 0;  // it cannot run at all; another rule says why
  }
}

}  // namespace pipewright::plan
