// A rule: in which versions and when it applies, what Megatron says, and what to do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/modules.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::plan {

using scenario::from;
using scenario::has_dense_layer;
using scenario::has_moe_layer;
using scenario::norms_fused;
using scenario::Offload;
using scenario::offloads;
using scenario::Recompute;
using scenario::Scenario;
using scenario::te_layers;
using scenario::Version;
using scenario::Versions;

inline constexpr Versions everywhere = scenario::all_versions;
/// "core_attn, moe_act, ...": a catalogue's modules as Megatron's own message lists them.
std::string quoted_names(std::span<const scenario::RecomputeRow> rows);
std::string quoted_names(std::span<const scenario::OffloadRow> rows);
/// Versions that lack a field of Megatron Core.
Versions without(const char* field);

/// Who speaks: Megatron Core itself; only the argument parser of Megatron-LM (not reached through Bridge); Bridge.
enum class Speaker : std::uint8_t { core, arguments, bridge };

struct Citation;  ///< file and lines (rules.cpp)

struct Rule {
  std::string_view id;
  Severity severity = Severity::violation;
  Speaker speaker = Speaker::core;
  std::vector<std::string_view> settings;
  scenario::Versions versions;  ///< of Megatron Core that have it; where it is written there: rule_lines.inc
  bool (*applies)(const Scenario&) = nullptr;
  std::string_view message;  ///< `{field}` stands for the field's value, `{$name}` for a derived one (rules.cpp)
  std::string_view fix;
  /// no-effect: takes the idle setting out, so that equal candidates are recognised. violation: sets what only the
  /// environment lacks. Null where there is nothing to decide by machine.
  void (*remedy)(Scenario&) = nullptr;
  const Citation* source = nullptr;  ///< set by all_rules()
};

/// The table, by area (rules_*.cpp).
std::vector<Rule> recompute_rules();
std::vector<Rule> offload_rules();
std::vector<Rule> graph_rules();
std::vector<Rule> overlap_rules();
std::vector<Rule> parallel_rules();
std::vector<Rule> run_rules();
std::vector<Rule> model_rules();
std::vector<Rule> version_rules();
std::vector<Rule> effect_rules();
std::vector<Rule> trap_rules();
std::vector<Rule> bridge_rules();

const std::vector<Rule>& all_rules();  ///< in the order of rule_sources.txt

std::span<const Version> cited_versions();               ///< those whose sources were read
std::uint16_t line_in(const Rule& rule, Version cited);  ///< 0: nothing there to cite
bool applies(const Rule& rule, const Scenario& scenario);
Finding finding(const Rule& rule, const Scenario& scenario);

/// The scenario with what has no effect taken out: two scenarios that are equal then run alike.
Scenario without_idle_settings(Scenario scenario);

// ---- Words that the conditions share (rules.cpp)

bool has(const scenario::Strings& list, std::string_view word);
bool any_of(const scenario::Strings& list, const std::vector<std::string_view>& words);
bool only_of(const scenario::Strings& list, const std::vector<std::string_view>& words);
/// Does offload_modules name one that lies there, or only such?
bool offloads_any(const Scenario&, scenario::OffloadRow::Part part);
bool offloads_only(const Scenario&, scenario::OffloadRow::Part part);
bool is(const std::optional<std::string>& value, std::string_view word);
bool full(const Scenario&);  ///< recompute_granularity full
bool selective(const Scenario&);
bool moe_model(const Scenario&);  ///< num_moe_experts is set
bool graphs(const Scenario&);     ///< cuda_graph_impl is not none
bool te_graphs(const Scenario&);
bool whole_iteration_checks_for_nan(const Scenario&);
bool whole_layer_graph(const Scenario&);  ///< full iteration, or per layer without modules
bool in_graph(const Scenario&, std::string_view module);
bool te_at_least(const Scenario&, int major, int minor);
bool below_capability(const Scenario&, int capability);  ///< 100 for 10.0; true where the GPU is not known
bool bridge(const Scenario&);                            ///< software.megatron_bridge is stated
std::int64_t layers_per_chunk(const Scenario&);          ///< the longest chunk; 0 for a scenario that cannot run

}  // namespace pipewright::plan
