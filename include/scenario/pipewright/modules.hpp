// The catalogue of modules: what activation recompute replays and what fine-grained activation offload moves, one row a
// module (src/scenario/modules.cpp). Allowed values, rules, the search and the explanations are made of these rows;
// what a module does to a layer is in the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/versions.hpp"

namespace pipewright::scenario {

struct Scenario;

/// Entries of recompute_modules.
enum class Recompute : std::uint8_t {
  core_attn,
  moe_act,
  layernorm,
  mla_up_proj,
  mlp,
  moe,
  shared_experts,
  gdn,
  gdn_norm_out,
  gdp_in_proj,
  gdp_qkv,
  mhc
};

/// Entries of offload_modules.
enum class Offload : std::uint8_t {
  attn_norm,
  qkv_linear,
  core_attn,
  attn_proj,
  mlp_norm,
  expert_fc1,
  moe_act,
  fused_group_mlp,
  gdp_qkv
};

inline constexpr std::size_t recompute_modules_known = static_cast<std::size_t>(Recompute::mhc) + 1;
inline constexpr std::size_t offload_modules_known = static_cast<std::size_t>(Offload::gdp_qkv) + 1;

/// Where a module changes nothing: the no-effect rule that says so and its remedy.
struct Idle {
  bool (*when)(const Scenario&) = nullptr;   ///< null: it acts wherever it is allowed, or another rule says it
  std::string_view rule{}, reason{}, fix{};  ///< "<name> recompute does nothing: <reason>"
  std::string_view decided_by{};             ///< the setting beside the list of modules, if any
};

/// What a row says of either kind.
template <typename Module>
struct ModuleRow {
  Module module{};
  std::string_view name;
  Versions versions;        ///< that know the name
  std::string_view what{};  ///< recompute: what the backward pass runs again; offload: what moves. Empty: not modelled
  std::uint8_t quoted = 0;  ///< place in the list of Megatron's own error message; 0: not named there
  /// Place in the order in which the search puts modules together, 0: never searched; where it is offered (null:
  /// always).
  std::uint8_t searched = 0;
  bool (*offered)(const Scenario&) = nullptr;
  Idle idle{};
};

struct RecomputeRow : ModuleRow<Recompute> {
  std::vector<Recompute> covers{};  ///< modules that it replays anyway
};

struct OffloadRow : ModuleRow<Offload> {
  enum class Part : std::uint8_t { norms, attention, experts, other } part = Part::other;
  std::optional<Offload> beside{};  ///< legal only together with this one
  std::vector<Offload> covers{};    ///< modules whose tensors it moves, too
};

std::span<const RecomputeRow> recompute_catalogue();
std::span<const OffloadRow> offload_catalogue();
const RecomputeRow& row(Recompute module);
const OffloadRow& row(Offload module);
const RecomputeRow* find_recompute(std::string_view name);  ///< null: no such module
const OffloadRow* find_offload(std::string_view name);
std::vector<std::string> recompute_names();
std::vector<std::string> offload_names();
inline std::string_view name(Recompute module) { return row(module).name; }
inline std::string_view name(Offload module) { return row(module).name; }

/// Is the module an entry of this list of names?
bool lists(const std::vector<std::string>& names, Recompute module);
bool lists(const std::vector<std::string>& names, Offload module);

/// Is the module recomputed: granularity selective, or the older flag of moe?
bool recomputes(const Scenario& scenario, Recompute module);
/// Is it offloaded: fine-grained offload is on and names it?
bool offloads(const Scenario& scenario, Offload module);

}  // namespace pipewright::scenario
