// Every operation of a layer has a host cost: the profile's own, or that of an operation of its kind. A bare launch is
// what the host spends on none of them.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "../draws.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/timeline.hpp"

namespace host_cost_test {

using namespace pipewright;

namespace {

const std::string root = SOURCE_ROOT;

profile::Profiles shipped(const std::string& name) {
  return profile::Profiles({profile::load(root + "/profiles/" + name + ".json", {"test", 0})});
}

using Visit = std::function<void(const model::Kernel&, const std::string& direction)>;

/// What the host launches in forward and backward passes and where gradients are finished. The optimizer's operations
/// stand for thousands of launches each and are priced by them.
void each_operation(const model::Stages& stages, const Visit& visit) {
  const auto steps_of = [&](const model::Piece& piece, const std::vector<model::Step>& steps, const char* direction) {
    for (const auto& step : steps) {
      if (step.kind != model::Step::Kind::launch) continue;
      const auto& kernel = piece.kernels[step.index];
      if (!kernel.graphed && !kernel.within_call) visit(kernel, kernel.recompute ? "forward" : direction);
    }
  };
  const auto passes_of = [&](const model::Piece& piece, const auto& passes) {
    steps_of(piece, passes.forward, "forward");
    steps_of(piece, passes.backward, "backward");
    steps_of(piece, passes.weight_gradient, "backward");
  };
  for (const auto& piece : stages.pieces) {
    passes_of(piece, piece);
    for (const auto& node : piece.nodes) passes_of(piece, node);
  }
  for (const auto& rank : stages.ranks) {
    for (const auto& chunk : rank.chunks) {
      for (const auto& kernel : chunk.gradient_sync) visit(kernel, "backward");
      for (const auto& kernel : chunk.parameter_gather) visit(kernel, "forward");
    }
    for (const auto& kernel : rank.finalize) visit(kernel, kernel.read_by_host ? "backward" : "finalize");
  }
}

/// Names of operations without a host cost.
std::set<std::string> unpriced(const scenario::Scenario& s, const profile::Profiles& profiles) {
  std::set<std::string> result;
  each_operation(model::build(s, profiles.device()), [&](const model::Kernel& kernel, const std::string& direction) {
    const auto& family = kernel.host_family.empty() ? kernel.key.family : kernel.host_family;
    const auto cost = profile::host_cost(profiles, direction, family, s.settings.fp8.has_value());
    if (!cost || !(cost->once + cost->each > 0)) result.insert(direction + " " + family + " (" + kernel.name + ")");
  });
  return result;
}

std::vector<std::string> files() {
  std::set<std::string> result;
  for (const char* folder : {"/scenarios", "/tests/measured", "/tests/real", "/tests/published"})
    for (const auto& file : std::filesystem::directory_iterator(root + folder))
      if (file.path().extension() == ".yaml") result.insert(file.path().string());
  return {result.begin(), result.end()};
}

std::vector<scenario::Scenario> scenarios_here() {
  std::vector<scenario::Scenario> result;
  for (const auto& file : files()) result.push_back(scenario::read(file));
  return result;
}

const char* const switches[] = {
    "moe_router_fusion=true",
    "moe_permute_fusion=false",
    "moe_router_score_function=sigmoid",
    "moe_aux_loss_coeff=0.001",
    "moe_z_loss_coeff=0.001",
    "moe_token_dispatcher_type=allgather",
    "moe_shared_expert_overlap=true",
    "moe_router_force_load_balancing=true",
    "bias_activation_fusion=false",
    "bias_dropout_fusion=false",
    "add_bias_linear=true",
    "qk_layernorm=true",
    "qk_l2_norm=true",
    "normalization=LayerNorm",
    "post_layernorm=true",
    "pre_layernorm=false",
    "activation_func=gelu",
    "activation_func=squared_relu",
    "cross_entropy_loss_fusion=true",
    "cross_entropy_loss_fusion=false",
    "apply_rope_fusion=false",
    "gradient_accumulation_fusion=false",
    "overlap_grad_reduce=true",
    "overlap_grad_reduce=false",
    "hidden_dropout=0.1",
    "attention_dropout=0.1",
    "q_lora_rank=none",
    "recompute_granularity=full",
    "fp8=hybrid",
    "fp8_recipe=tensorwise",
    "fp8_recipe=delayed",
    "fp8_recipe=blockwise",
    "untie_embeddings_and_output_weights=false",
};

}  // namespace

TEST_CASE("no operation of any scenario here is priced as a bare launch, on any GPU with a profile") {
  for (const char* gpu : {"h200-sxm", "h100-sxm", "gb200-nvl72"}) {
    const auto profiles = shipped(gpu);
    CAPTURE(gpu);
    unsigned priced = 0;
    std::size_t nth = 0;
    for (const auto& file : files()) {
      if (!test::taken(nth++)) continue;
      auto s = scenario::read(file);
      s.cluster.compute_capability = profiles.device().compute_capability;
      std::set<std::string> missing;
      try {
        missing = unpriced(s, profiles);
        ++priced;
      } catch (const UsageError&) {  // of another GPU
      }
      CAPTURE(file);
      for (const auto& what : missing) FAIL_CHECK(what);
    }
    CHECK(priced >= test::draws(60));
  }
}

TEST_CASE("whatever is switched on in a layer, its operations have host costs") {
  const auto profiles = shipped("h200-sxm");
  const auto scenarios = scenarios_here();
  int priced = 0;
  CHECK(rc::check([&] {
    auto s = *rc::gen::elementOf(scenarios);
    const auto chosen = *rc::gen::container<std::vector<std::string>>(
        *rc::gen::inRange(1, 5),
        rc::gen::elementOf(std::vector<std::string>(std::begin(switches), std::end(switches))));
    std::set<std::string> missing;
    try {
      for (const auto& setting : chosen) scenario::set(s, setting);
      missing = unpriced(s, profiles);
      ++priced;
    } catch (const UsageError&) {  // they exclude each other
    }
    RC_ASSERT(missing == std::set<std::string>());
  }));
  CHECK(priced >= 30);
}

TEST_CASE("a profile's own cost goes before that of its kind; eager operators cost every kernel") {
  profile::Profile napkin;
  napkin.name = "napkin";
  const auto set = [&](const char* name, double us) {
    napkin.scalars[name] = {us, 0, profile::Origin::measured, "test"};
  };
  const auto cost = [&](const char* direction, const char* family, bool fp8 = false) {
    return profile::host_cost(profile::Profiles({napkin}), direction, family, fp8);
  };
  CHECK_FALSE(cost("forward", "layernorm.forward"));
  set("host.forward.rmsnorm.forward_us", 120);
  CHECK(cost("forward", "layernorm.forward")->once == 120);
  CHECK(cost("forward", "layernorm.forward.general")->once == 120);
  CHECK_FALSE(cost("forward", "layernormed"));
  set("host.forward.layernorm_us", 90);
  CHECK(cost("forward", "layernorm.forward")->once == 90);
  set("host.forward.small_us", 35);
  CHECK(cost("forward", "cast.bf16_f32")->once == 0);
  CHECK(cost("forward", "cast.bf16_f32")->each == 35);
  set("host.forward.gemm.grouped_us", 150);
  set("host.forward.gemm.grouped_each_us", 5);
  set("host.forward.fp8.gemm.grouped_us", 170);
  CHECK(cost("forward", "gemm.grouped.bf16.tn")->each == 5);
  CHECK(cost("forward", "gemm.grouped.bf16.tn", true)->once == 170);
}

namespace {

/// us of the host in forward and backward passes: of every microbatch, and what the first adds.
struct HostTime {
  double every = 0, first = 0;
};
HostTime host_time(const scenario::Scenario& s, const profile::Profiles& profiles) {
  const auto stages = model::build(s, profiles.device());
  const auto prices = timeline::price(s, stages, profiles);
  HostTime all;
  for (std::size_t p = 0; p < stages.pieces.size(); ++p)
    for (const auto* steps : {&stages.pieces[p].forward, &stages.pieces[p].backward})
      for (const auto& step : *steps)
        if (step.kind == model::Step::Kind::launch)
          (step.before_microbatch == 1 ? all.first : all.every) += prices.pieces[p][step.index].host_us;
  return all;
}

}  // namespace

// Whichever kernel a call of Transformer Engine begins with, the Python before it is spent: with delayed scaling no
// maximum is taken, and quantized tensors are made for every expert.
TEST_CASE("quantizing takes the host longer than not to, whatever the recipe, and casts of many weights are one call") {
  const auto profiles = shipped("h200-sxm");
  const auto scenarios = scenarios_here();
  int compared = 0;
  CHECK(rc::check([&] {
    auto s = *rc::gen::elementOf(scenarios);
    const bool ub = *rc::gen::arbitrary<bool>(), mixture = s.model.num_moe_experts.has_value();
    const std::string recipe = *rc::gen::element("tensorwise", "delayed", "blockwise");
    try {
      for (const char* setting : {"fp8=none", "fp8_param_gather=false", "fp4=none", "cuda_graph_impl=none",
                                  "moe_use_grouped_tensor=false", "use_transformer_engine_op_fuser=false"})
        scenario::set(s, setting);
      if (s.settings.tensor_model_parallel_size > 1 && !mixture)
        scenario::set(s, ub ? "tp_comm_overlap=true" : "tp_comm_overlap=false");
      auto quantized = s;
      scenario::set(quantized, "fp8=hybrid");
      scenario::set(quantized, "fp8_recipe=" + recipe);
      const auto plain = host_time(s, profiles), fp8 = host_time(quantized, profiles);
      if (plain.every == 0) return;  // one graph for the iteration
      ++compared;
      RC_LOG() << s.name << " " << recipe << " " << plain.every << " " << fp8.every << " first " << fp8.first;
      RC_ASSERT(fp8.every > plain.every);
      RC_ASSERT(fp8.first < fp8.every);
    } catch (const UsageError&) {  // they exclude each other
    }
  }));
  CHECK(compared >= 30);
}

}  // namespace host_cost_test
