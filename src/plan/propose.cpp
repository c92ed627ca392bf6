// From a bare architecture to a run worth planning: what nobody would leave off (Megatron-LM's argument parser turns
// most of it on by itself: arguments.py, the fusions and gradient accumulation), and everything else searched.
#include <algorithm>

#include "rules.hpp"

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
  Scenario take() { return std::move(s_); }

 private:
  Scenario s_;
  std::map<std::string, Position> given_;
};

}  // namespace

Scenario proposed(Scenario scenario) {
  const bool moe = moe_model(scenario);
  Proposal p(std::move(scenario));
  p.settings({"bf16", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
              "gradient_accumulation_fusion", "bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion",
              "apply_rope_fusion", "persist_layer_norm", "cross_entropy_loss_fusion"});
  p.settings({"hidden_dropout", "attention_dropout"}, "0.0");
  if (moe) {
    p.settings({"moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"});
    p.set("settings", "moe_token_dispatcher_type", "alltoall");
    p.set("settings", "moe_router_dtype", "fp32");
  }
  p.search({"parallelism", "microbatch", "pipeline", "layout", "recompute", "allocator"});
  if (moe) p.search({"wgrad_delay"});
  return p.take();
}

bool opens_something(const Scenario& scenario) {
  const auto& search = scenario.search;
  const auto wishes = {&search.recompute, &search.offload,   &search.wgrad_delay, &search.pipeline,
                       &search.layout,    &search.allocator, &search.parallelism, &search.microbatch};
  return !search.values.empty() || std::ranges::any_of(wishes, [](const auto* wish) { return *wish == "auto"; });
}

Scenario opened(Scenario scenario) {
  const bool moe = moe_model(scenario);
  Proposal p(std::move(scenario));
  p.search({"pipeline", "recompute", "allocator"});
  if (moe) p.search({"wgrad_delay"});
  return p.take();
}

}  // namespace pipewright::plan
