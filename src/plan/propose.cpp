// From a bare architecture to a run worth planning: what nobody would leave off (Megatron-LM's argument parser turns
// most of it on by itself: arguments.py, the fusions and gradient accumulation), and everything else searched.
#include <algorithm>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "rules.hpp"
#include "search_dimensions.hpp"

namespace pipewright::plan {

namespace {

/// Sets what the input has not said.
class Proposal {
 public:
  explicit Proposal(Scenario scenario) : s_(std::move(scenario)), given_(s_.positions) {}

  void set(const std::string& section, const std::string& name, const std::string& value) {
    if (given_.contains(section + "." + name)) return;
    scenario::set(s_, section + "." + name + "=" + value);
    s_.positions.erase(section + "." + name);
  }
  void settings(std::initializer_list<const char*> names, const std::string& value = "true") {
    for (const char* name : names) set("settings", name, value);
  }
  void search(std::initializer_list<const char*> names) {
    for (const char* name : names) set("search", name, "auto");
  }
  /// How the model is spread, with the sizes that are stated as they are.
  void search_parallelism() {
    search({"parallelism"});
    if (!given_.contains("settings.micro_batch_size")) search({"microbatch"});
    if (s_.search.parallelism != "auto") return;
    for (const char* size : parallel_sizes)
      if (given_.contains(std::string("settings.") + size)) s_.search.values[size] = {scenario::get(s_, size)};
  }
  /// Variables and fusions as rules ask for them beside what is stated, which stays: it is refused where it must be.
  void settle() {
    const Scenario legal = without_idle_settings(with_required_environment(s_));
    for (const auto& field : scenario::fields()) {
      if (field.section != "settings") continue;
      const auto value = scenario::get(legal, field.name);
      if (value != scenario::get(s_, field.name)) set(field.section, field.name, value);
    }
    s_.environment.insert(legal.environment.begin(), legal.environment.end());
  }
  Scenario take() { return std::move(s_); }

 private:
  Scenario s_;
  scenario::Positions given_;
};

}  // namespace

Scenario proposed(Scenario scenario) {
  const bool exact = opens_something(scenario);  // a written `search:`
  const bool moe = moe_model(scenario), gated = scenario.model.gated_linear_unit;
  const std::string activation = scenario::activation_func(scenario);
  const bool fuses = gated ? activation == "silu" || activation == "gelu" || activation == "quick_gelu"
                           : activation == "gelu" && scenario.model.add_bias_linear;
  const bool biased = scenario.model.add_bias_linear, spread = scenario.settings.tensor_model_parallel_size > 1,
             interleaved = scenario::interleaved(scenario);
  Proposal p(std::move(scenario));
  p.settings({"bf16", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
              "gradient_accumulation_fusion", "bias_dropout_fusion", "masked_softmax_fusion", "apply_rope_fusion",
              "persist_layer_norm", "cross_entropy_loss_fusion", "grad_reduce_in_fp32"});  // both frameworks with bf16
  if (fuses) p.settings({"bias_activation_fusion"});
  if (moe && activation == "squared_relu" && !gated) p.settings({"use_fused_weighted_squared_relu"});
  p.settings({"hidden_dropout", "attention_dropout"}, "0.0");
  if (moe) {
    p.settings({"moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"});
    p.set("settings", "moe_token_dispatcher_type", "alltoall");
    p.set("settings", "moe_router_dtype", "fp32");
    if (biased) p.set("settings", "expert_tensor_parallel_size", "1");  // moe.bias-needs-whole-experts
  }
  if (spread) p.settings({"sequence_parallel"});
  if (interleaved) p.settings({"overlap_p2p_comm"});  // arguments.py: unless --no-overlap-p2p-communication
  p.settle();
  if (exact) return p.take();
  p.search({"pipeline", "layout", "wgrad_delay", "recompute", "offload", "allocator"});
  p.search_parallelism();
  return p.take();
}

namespace {

constexpr std::pair<const char*, std::string scenario::Search::*> wishes[] = {
    {"recompute", &scenario::Search::recompute},     {"offload", &scenario::Search::offload},
    {"wgrad_delay", &scenario::Search::wgrad_delay}, {"pipeline", &scenario::Search::pipeline},
    {"layout", &scenario::Search::layout},           {"allocator", &scenario::Search::allocator},
    {"parallelism", &scenario::Search::parallelism}, {"microbatch", &scenario::Search::microbatch}};

/// A size of which nothing is listed but what stands.
bool as_it_stands(const Scenario& s, const std::string& field) {
  const auto listed = s.search.values.find(field);
  return listed != s.search.values.end() && std::ranges::find(parallel_sizes, field) != parallel_sizes.end() &&
         listed->second == std::vector{scenario::get(s, field)};
}

/// One size is opened beside the others as they stand; all with their dimension.
void open_sizes(Scenario& s, const std::string& name) {
  const bool all = name == "all" || name == "parallelism";
  if (!all && std::ranges::find(parallel_sizes, name) == parallel_sizes.end()) return;
  for (const char* size : parallel_sizes) {
    if (all || name == size) {
      if (as_it_stands(s, size)) s.search.values.erase(size);
    } else if (s.search.parallelism != "auto" && !s.search.values.contains(size)) {
      s.search.values[size] = {scenario::get(s, size)};
    }
  }
  s.search.parallelism = "auto";
}

}  // namespace

bool opens_something(const Scenario& scenario) {
  return !scenario.search.values.empty() ||
         std::ranges::any_of(wishes, [&](const auto& wish) { return scenario.search.*wish.second == "auto"; });
}

Scenario opened(Scenario scenario) {
  Proposal p(std::move(scenario));
  p.search({"recompute", "offload", "wgrad_delay", "pipeline", "layout", "allocator"});
  return p.take();
}

Scenario opened(Scenario scenario, const std::vector<std::string>& names) {
  std::vector<std::string> known = {"all"};
  for (const auto& [name, wish] : wishes) known.emplace_back(name);
  known.insert(known.end(), parallel_sizes.begin(), parallel_sizes.end());
  for (const auto& name : names) {
    if (std::ranges::find(known, name) == known.end())
      throw UsageError({"command line", 0}, "--open", "unknown dimension \"" + name + "\"", known,
                       nearest_name(name, known));
    for (const auto& [one, wish] : wishes)
      if (name == "all" || name == one) scenario.search.*wish = "auto";
    open_sizes(scenario, name);
  }
  return scenario;
}

std::pair<std::vector<std::string>, std::vector<std::string>> open_and_closed(const Scenario& scenario) {
  std::pair<std::vector<std::string>, std::vector<std::string>> both;
  for (const auto& [field, values] : scenario.search.values)
    (as_it_stands(scenario, field) ? both.second : both.first).push_back(field);
  const bool spread = scenario.search.parallelism == "auto";
  for (const auto& [name, wish] : wishes) {
    const bool implied = spread && (wish == &scenario::Search::pipeline || wish == &scenario::Search::layout);
    (scenario.search.*wish == "auto" || implied ? both.first : both.second).emplace_back(name);
  }
  return both;
}

}  // namespace pipewright::plan
