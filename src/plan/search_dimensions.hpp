// What the search may change. A dimension is a name and the values that it offers to a partly decided scenario; later
// dimensions see the choices of earlier ones (the layers of a chunk follow from the virtual pipeline size).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pipewright/plan.hpp"

namespace pipewright::plan {

struct Value {
  std::string label;  ///< "recompute mlp"; what this choice is called in tables and reasons
  Assignments settings, environment;

  /// What it sets a name to; empty: it says nothing of it.
  std::string setting(std::string_view name) const;
  bool operator==(const Value&) const = default;
};

/// What a dimension leaves out for every candidate alike, each said once.
struct LeftOut {
  std::vector<Rejected> rejected;  ///< a rule forbids it
  std::vector<Finding> idle;       ///< a no-effect rule makes it equal to another value
  std::vector<std::string> notes;  ///< asked for and not searched
};

/// What a dimension decides. How the model is spread and scheduled comes first (a structure), then what a structure
/// leaves open.
enum class Decides : std::uint8_t {
  field,  ///< a field whose values search.values states
  parallelism,
  context,  ///< how context-parallel ranks share attention
  microbatch,
  pipeline,
  layout,
  wgrad_delay,
  recompute,
  offload,
  allocator
};
/// What a choice is called that leaves a dimension as the scenario has it: "recompute as given".
std::string as_given(Decides what);
constexpr bool structural(Decides what) { return what < Decides::recompute; }

struct Dimension {
  Decides what;
  std::function<std::vector<Value>(const scenario::Scenario& partial, LeftOut& left_out)> values;
};

/// The sizes that the dimension "parallelism" decides: where it is open, lists of search: narrow it.
inline constexpr std::array parallel_sizes = {"tensor_model_parallel_size", "pipeline_model_parallel_size",
                                              "context_parallel_size", "expert_model_parallel_size"};

/// The dimensions that scenario.search opens, in the order in which they are decided.
std::vector<Dimension> dimensions(const scenario::Scenario& scenario);

/// May the layer split change? Also where the pipeline size may.
bool layout_is_open(const scenario::Scenario& scenario);

// How the model is spread (dimensions_parallel.cpp).
std::vector<Value> parallelism_values(const scenario::Scenario& partial, LeftOut& left_out);
/// Kinds of context parallelism (cp_comm_type) that are modelled for the model and whose ranks can share its heads; in
/// two levels the first is what of the group an NVLink domain holds.
std::vector<Value> context_values(const scenario::Scenario& partial, LeftOut& left_out);
std::vector<Value> microbatch_values(const scenario::Scenario& partial, LeftOut& left_out);
std::vector<Value> pipeline_values(const scenario::Scenario& partial, LeftOut& left_out);
std::vector<Value> layout_values(const scenario::Scenario& partial, LeftOut& left_out);

/// The first value of the dimension "offload": nothing is.
Value no_offload(const scenario::Scenario& partial);

/// A choice of modules to offload, beside whole layers that `partial` offloads: those stop.
Value instead_of_layers(Value value, const scenario::Scenario& partial);

/// What keeps least of a structure's activations among what is searched: full recompute of every layer; whatever can be
/// recomputed and offloaded beside each other; what is not searched stays as given.
std::vector<scenario::Scenario> least_kept(const scenario::Scenario& partial);

void apply(const Value& value, scenario::Scenario& scenario);
/// Does the scenario already say all of it?
bool changes_nothing(const Value& value, const scenario::Scenario& scenario);

/// Every set of recompute modules that is legal and not equal to a smaller one, the empty set first.
std::vector<std::vector<std::string>> recompute_sets(const scenario::Scenario& scenario, LeftOut& left_out);

std::string list_text(const std::vector<std::string>& words);  ///< "[mlp, core_attn]"
std::string joined(const std::vector<std::string>& words, std::string_view between);

}  // namespace pipewright::plan
