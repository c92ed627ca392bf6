// A rule: when it applies, what Megatron says, what to do, and where it is written in every version.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pipewright/plan.hpp"
#include "pipewright/scenario.hpp"

namespace pipewright::plan {

using scenario::Scenario;

/// Line of the source in each version, 0 where that version lacks the rule.
/// Order: 0.16, 0.17, 0.18, 0.19 (branches core_r0.16.0 ... core_r0.19.0), dev, main, pr-4268.
using Lines = std::array<std::uint16_t, 7>;

/// Who speaks: Megatron Core itself; only the argument parser of Megatron-LM (not reached through Bridge); Bridge.
enum class Speaker : std::uint8_t { core, arguments, bridge };

struct Rule {
  std::string_view id;
  Severity severity = Severity::violation;
  Speaker speaker = Speaker::core;
  std::vector<std::string_view> settings;
  std::string_view file;
  Lines lines{};
  bool (*applies)(const Scenario&) = nullptr;
  std::string_view message;  ///< `{field}` stands for the field's value, `{$name}` for a derived one (rules.cpp)
  std::string_view fix;
  /// no-effect: takes the idle setting out, so that equal candidates are recognised. violation: sets what only the
  /// environment lacks. Null where there is nothing to decide by machine.
  void (*remedy)(Scenario&) = nullptr;
};

/// The table, by area (rules_*.cpp).
std::vector<Rule> recompute_rules();
std::vector<Rule> offload_rules();
std::vector<Rule> graph_rules();
std::vector<Rule> overlap_rules();
std::vector<Rule> parallel_rules();
std::vector<Rule> run_rules();
std::vector<Rule> effect_rules();
std::vector<Rule> trap_rules();
std::vector<Rule> bridge_rules();

const std::vector<Rule>& all_rules();
bool applies(const Rule& rule, const Scenario& scenario);
Finding finding(const Rule& rule, const Scenario& scenario);

/// The scenario with what has no effect taken out: two scenarios that are equal then run alike.
Scenario without_idle_settings(Scenario scenario);

// ---- Words that the conditions share (rules.cpp)

bool has(const scenario::Strings& list, std::string_view word);
bool any_of(const scenario::Strings& list, const std::vector<std::string_view>& words);
bool only_of(const scenario::Strings& list, const std::vector<std::string_view>& words);
bool is(const std::optional<std::string>& value, std::string_view word);
bool full(const Scenario&);  ///< recompute_granularity full
bool selective(const Scenario&);
bool moe_model(const Scenario&);  ///< num_moe_experts is set
bool has_dense_layer(const Scenario&);
bool has_moe_layer(const Scenario&);
bool te_layers(const Scenario&);    ///< transformer_impl transformer_engine
bool norms_fused(const Scenario&);  ///< the input norm lives in the qkv projection: TE without MLA
bool graphs(const Scenario&);       ///< cuda_graph_impl is not none
bool te_graphs(const Scenario&);
bool whole_layer_graph(const Scenario&);  ///< full iteration, or per layer without modules
bool in_graph(const Scenario&, std::string_view module);
bool te_at_least(const Scenario&, int major, int minor);
bool hopper(const Scenario&);                    ///< compute capability below 10, judged by the profile's name
bool bridge(const Scenario&);                    ///< software.megatron_bridge is stated
std::int64_t layers_per_chunk(const Scenario&);  ///< the longest chunk; 0 for a scenario that cannot run

/// Paths that the table cites.
namespace source {
inline constexpr std::string_view transformer_config = "megatron/core/transformer/transformer_config.py";
inline constexpr std::string_view model_parallel_config = "megatron/core/model_parallel_config.py";
inline constexpr std::string_view arguments = "megatron/training/arguments.py";
inline constexpr std::string_view schedules = "megatron/core/pipeline_parallel/schedules.py";
inline constexpr std::string_view layout = "megatron/core/transformer/pipeline_parallel_layer_layout.py";
inline constexpr std::string_view parallel_state = "megatron/core/parallel_state.py";
inline constexpr std::string_view microbatches = "megatron/core/num_microbatches_calculator.py";
inline constexpr std::string_view optimizer_config = "megatron/core/optimizer/optimizer_config.py";
inline constexpr std::string_view ddp_config = "megatron/core/distributed/distributed_data_parallel_config.py";
inline constexpr std::string_view transformer_layer = "megatron/core/transformer/transformer_layer.py";
inline constexpr std::string_view attention = "megatron/core/transformer/attention.py";
inline constexpr std::string_view moe_layer = "megatron/core/transformer/moe/moe_layer.py";
inline constexpr std::string_view experts = "megatron/core/transformer/moe/experts.py";
inline constexpr std::string_view transformer_block = "megatron/core/transformer/transformer_block.py";
inline constexpr std::string_view chunk_plan = "megatron/core/models/common/model_chunk_schedule_plan.py";
inline constexpr std::string_view p2p = "megatron/core/pipeline_parallel/p2p_communication.py";
inline constexpr std::string_view bridge_overlap = "src/megatron/bridge/training/comm_overlap.py";
inline constexpr std::string_view bridge_config = "src/megatron/bridge/training/config.py";
inline constexpr std::string_view bridge_transformer = "src/megatron/bridge/models/transformer_config.py";
}  // namespace source

}  // namespace pipewright::plan
