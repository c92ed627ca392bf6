// The estimate against the exact engine on real models, within the bounds that the search reads
// (pipewright/bounds.hpp); contract_test.cpp hunts over generated ones.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "../on_h200.hpp"
#include "pipewright/bounds.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace engines_test {

using namespace pipewright;

namespace {

const std::string root = SOURCE_ROOT;

/// Estimated over exact step, - 1.
double difference(const scenario::Scenario& s, const profile::Profiles& profiles) {
  const auto stages = test::build(s);
  const auto exact = timeline::simulate(s, stages, schedule::build(schedule::config_of(s, true)), profiles);
  return static_cast<double>(predict::estimate(s, profiles).step_ns) /
             static_cast<double>(exact.forward_backward + exact.optimizer) -
         1;
}

void check_difference(const scenario::Scenario& s, const profile::Profiles& profiles) {
  const double error = difference(s, profiles);
  CAPTURE(error);
  CHECK(error >= -predict::estimate_bounds(s).under);
  CHECK(error <= predict::estimate_bounds(s).over);
}

}  // namespace

TEST_CASE("measured runs: the estimate is within its bounds") {
  const profile::Profiles profiles({profile::load(root + "/profiles/h200-sxm.json", {"test", 0})});
  int compared = 0;
  for (const auto& file : std::filesystem::directory_iterator(root + "/tests/measured")) {
    if (file.path().extension() != ".yaml") continue;
    CAPTURE(file.path().stem().string());
    check_difference(scenario::read(file.path().string()), profiles);
    ++compared;
  }
  CHECK(compared >= 40);
}

TEST_CASE("8B and 70B: few and many microbatches, other interleavings and recompute") {
  const profile::Profiles profiles({profile::load(root + "/profiles/h100-sxm.json", {"test", 0})});
  const auto check = [&](const std::string& file, std::initializer_list<const char*> changes) {
    auto s = scenario::read(root + "/scenarios/" + file + ".yaml");
    for (const char* change : changes) scenario::set(s, change);
    CAPTURE(*changes.begin());
    check_difference(s, profiles);
  };
  const std::string small = "llama3-8b-pretrain-8xh100", large = "llama3-70b-sft-32xh100";
  check(large, {"global_batch_size=96"});
  check(large, {"virtual_pipeline_model_parallel_size=10"});
  check(large, {"recompute_modules=[mlp]"});
  check(small, {"global_batch_size=512", "num_gpus=64"});
  check(small, {"global_batch_size=128", "num_gpus=64"});
}

TEST_CASE("measured runs: no prediction is below its floor, in time or on any rank; the floor is not far below") {
  const profile::Profiles profiles({profile::load(root + "/profiles/h200-sxm.json", {"test", 0})});
  double worst_time = 1, worst_memory = 1;
  for (const auto& file : std::filesystem::directory_iterator(root + "/tests/measured")) {
    if (file.path().extension() != ".yaml") continue;
    const auto s = scenario::read(file.path().string());
    CAPTURE(file.path().stem().string());
    const auto exact = predict::predict(s, profiles);
    const auto floor = predict::floor(s, profiles);
    CHECK(floor.step_ns <= exact.step_ns);
    worst_time = std::min(worst_time, static_cast<double>(floor.step_ns) / static_cast<double>(exact.step_ns));
    REQUIRE(floor.ranks.size() == exact.ranks.size());
    for (std::size_t r = 0; r < exact.ranks.size(); ++r) {
      CAPTURE(r);
      CHECK(floor.ranks[r].walk.peak_allocated <= exact.ranks[r].walk.peak_allocated);
      worst_memory = std::min(worst_memory, static_cast<double>(floor.ranks[r].walk.peak_allocated.value) /
                                                static_cast<double>(exact.ranks[r].walk.peak_allocated.value));
    }
  }
  CHECK(worst_time > 0.7);
  CHECK(worst_memory > 0.85);  // what the first backward makes is in it
}

TEST_CASE("floors under other interleavings, microbatches, recompute, overlap and offload") {
  const profile::Profiles profiles({profile::load(root + "/profiles/h100-sxm.json", {"test", 0})});
  const auto check = [&](const std::string& file, std::initializer_list<const char*> changes) {
    auto s = scenario::read(root + "/scenarios/" + file + ".yaml");
    for (const char* change : changes) scenario::set(s, change);
    if (s.settings.use_megatron_fsdp) s.environment.erase("CUDA_DEVICE_MAX_CONNECTIONS");  // which it refuses
    CAPTURE(file);
    CAPTURE(*changes.begin());
    const auto exact = predict::predict(s, profiles), floor = predict::floor(s, profiles);
    const auto quick = predict::estimate(s, profiles);
    CHECK(floor.step_ns <= exact.step_ns);
    CHECK(static_cast<double>(floor.step_ns) > 0.7 * static_cast<double>(exact.step_ns));
    const double error = static_cast<double>(quick.step_ns) / static_cast<double>(exact.step_ns) - 1;
    CAPTURE(error);
    CHECK(error >= -predict::estimate_bounds(s).under);
    CHECK(error <= predict::estimate_bounds(s).over);
    for (std::size_t r = 0; r < exact.ranks.size(); ++r)
      CHECK(floor.ranks[r].walk.peak_allocated <= exact.ranks[r].walk.peak_allocated);
  };
  const std::string dense = "llama3-70b-sft-32xh100", moe = "qwen3-30b-a3b-pretrain-16xh100",
                    small = "llama3-8b-pretrain-8xh100";
  check(dense, {"virtual_pipeline_model_parallel_size=4", "microbatch_group_size_per_vp_stage=8"});
  check(dense, {"recompute_modules=[mlp]"});
  check(dense, {"cuda_graph_impl=none", "cuda_graph_modules=[]", "recompute_granularity=full",
                "recompute_method=uniform", "recompute_num_layers=1", "recompute_modules=[]"});
  check(dense, {"cuda_graph_impl=local", "cuda_graph_modules=[]", "use_te_rng_tracker=true"});
  check(moe, {"global_batch_size=512", "overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=false"});
  check(moe, {"global_batch_size=512", "overlap_moe_expert_parallel_comm=false", "delay_wgrad_compute=false"});
  check(moe, {"global_batch_size=512", "overlap_moe_expert_parallel_comm=false", "delay_wgrad_compute=false",
              "use_te_rng_tracker=true", "cuda_graph_impl=transformer_engine",
              "cuda_graph_modules=[attn,moe_router,moe_preprocess]"});
  check(moe, {"global_batch_size=512", "overlap_moe_expert_parallel_comm=false", "delay_wgrad_compute=false",
              "fine_grained_activation_offloading=true", "offload_modules=[moe_act]", "recompute_modules=[]",
              "cuda_graph_impl=none", "cuda_graph_modules=[]"});
  for (const char* fraction : {"optimizer_offload_fraction=0.5", "optimizer_offload_fraction=1.0"})
    check(small, {fraction, "optimizer_cpu_offload=true", "use_precision_aware_optimizer=true"});
  for (const char* buffers : {"fsdp_double_buffer=false", "fsdp_double_buffer=true"})
    for (const char* parameters : {"fp8_param_gather=false", "fp8_param_gather=true"})
      check(small, {buffers, parameters, "use_megatron_fsdp=true", "data_parallel_sharding_strategy=optim_grads_params",
                    "fp8_param=false", "global_batch_size=64", "pipeline_model_parallel_size=1",
                    "virtual_pipeline_model_parallel_size=none", "overlap_param_gather_with_optimizer_step=false"});
}

TEST_CASE(
    "hybrids: estimates and floors of stages that the pattern's pipes cut, with unlike layers on each, frozen too") {
  const profile::Profiles profiles({profile::load(root + "/profiles/h200-sxm.json", {"test", 0})});
  int compared = 0;
  for (const char* pattern : {"MEMEM*EMEME|MEM*E", "MEMEM*EM|EMEMEM*E", "MEMEM|*EMEM|EMEM|*E"})
    for (const char* targets :
         {"[]", "[linear_qkv, linear_proj]", "[linear_fc1]", "[in_proj, linear_fc1, linear_fc2]"}) {
      auto s = scenario::read(root + "/tests/real/n_nano_pp2.yaml");
      scenario::set(s, std::string("hybrid_layer_pattern=") + pattern);
      scenario::set(s, "num_layers=" + std::to_string(scenario::hybrid_layers(s).size()));
      scenario::set(s, std::string("lora_target_modules=") + targets);
      if (!scenario::unmodelled(s).empty()) continue;  // no adapter on the first stage
      ++compared;
      CAPTURE(pattern);
      CAPTURE(targets);
      check_difference(s, profiles);
      const auto exact = predict::predict(s, profiles), floor = predict::floor(s, profiles);
      CHECK(floor.step_ns <= exact.step_ns);
      CHECK(static_cast<double>(floor.step_ns) > 0.7 * static_cast<double>(exact.step_ns));
      for (std::size_t r = 0; r < exact.ranks.size(); ++r)
        CHECK(floor.ranks[r].walk.peak_allocated <= exact.ranks[r].walk.peak_allocated);
    }
  CHECK(compared == 11);
}

TEST_CASE("the steps before CUDA graphs are captured count: no peak is below that of the run without graphs") {
  auto s = scenario::read(std::string(SOURCE_ROOT) + "/tests/measured/a_pp4v2_m8_fp8cs.yaml");
  const auto profiles = predict::profiles_of(s);
  const auto eager = predict::predict(s, profiles);
  for (const char* setting : {"use_te_rng_tracker=true", "cuda_graph_impl=transformer_engine"})
    scenario::set(s, setting);
  for (const char* modules :
       {"cuda_graph_modules=[mlp]", "cuda_graph_modules=[attn]", "cuda_graph_modules=[attn,mlp]"}) {
    CAPTURE(modules);
    scenario::set(s, modules);
    const auto graphed = predict::predict(s, profiles);
    for (std::size_t r = 0; r < eager.ranks.size(); ++r) {
      CHECK(graphed.ranks[r].walk.graph_pool.value > 0);
      CHECK(graphed.ranks[r].walk.peak_allocated >= eager.ranks[r].walk.peak_allocated);
      CHECK(graphed.ranks[r].walk.peak_reserved >= eager.ranks[r].walk.peak_reserved);
    }
  }
}

TEST_CASE("graphs take launches from the host: a step that hosts bind is shorter with them, and the same kernels run") {
  auto s = scenario::read(root + "/tests/real/q_ep4_graph.yaml");
  const auto profiles = predict::profiles_of(s);
  const auto graphed = predict::predict(s, profiles);
  scenario::set(s, "cuda_graph_modules=[attn,moe_router,moe_preprocess]");
  const auto with_attention = predict::predict(s, profiles);
  for (const char* setting : {"cuda_graph_impl=none", "cuda_graph_modules=[]"}) scenario::set(s, setting);
  const auto eager = predict::predict(s, profiles);
  CHECK(graphed.step_ns < eager.step_ns);
  CHECK(with_attention.step_ns < graphed.step_ns);
  CHECK(graphed.ranks[0].account.busy > eager.ranks[0].account.busy);  // copies into static buffers, clones
}

TEST_CASE("Megatron's own graphs of layers: hosts bind less, the first step's peak counts, no interval is told") {
  auto s = scenario::read(std::string(SOURCE_ROOT) + "/tests/measured/a_pp4v2_m8_fp8cs.yaml");
  scenario::set(s, "host_time_factor=3");
  const auto profiles = predict::profiles_of(s);
  const auto eager = predict::predict(s, profiles);
  CHECK(eager.ignored.empty());
  // One pool for all whatever is said: 0.16 on.
  for (const char* pool : {"cuda_graph_use_single_mempool=true", "cuda_graph_use_single_mempool=false"}) {
    for (const char* setting : {"use_te_rng_tracker=true", "cuda_graph_impl=local", "cuda_graph_warmup_steps=0", pool})
      scenario::set(s, setting);
    CHECK(scenario::unmodelled(s).empty());
    const auto graphed = predict::predict(s, profiles);
    CHECK(graphed.step_ns < eager.step_ns);
    CHECK(graphed.ignored.size() == 1);
    for (std::size_t r = 0; r < eager.ranks.size(); ++r) {
      CHECK(graphed.ranks[r].walk.graph_pool.value > 0);
      CHECK(graphed.ranks[r].walk.peak_allocated >= eager.ranks[r].walk.peak_allocated);
    }
  }
}

}  // namespace engines_test
