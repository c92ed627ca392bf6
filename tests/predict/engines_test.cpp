// The chunk-level engine against the exact one on real models, with clocks and contention: one slowdown for up to 32
// kernels instead of one each. Bound: 1 % (largest today 0.8 %, tensor-parallel run b_tp2pp2v2_m8, where P2P kernels
// overlap the first matrix products of a piece only).
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "pipewright/predict.hpp"

using namespace pipewright;

namespace {

const std::string root = SOURCE_ROOT;

/// Estimated over exact step, - 1; nullopt where the estimate does not express the scenario.
std::optional<double> difference(const scenario::Scenario& s, const profile::Profiles& profiles) {
  const auto stages = model::build(s);
  const auto config = schedule::config_of(s);
  const auto quick = timeline::estimate(s, stages, config, profiles, timeline::price(stages, profiles));
  if (!quick) return std::nullopt;
  const auto exact = timeline::simulate(s, stages, schedule::build(config), profiles);
  return static_cast<double>(quick->forward_backward + quick->optimizer) /
             static_cast<double>(exact.forward_backward + exact.optimizer) -
         1;
}

}  // namespace

TEST_CASE("measured runs: both engines within 1 %") {
  const profile::Profiles profiles({profile::load(root + "/profiles/h200-sxm.json", {"test", 0})});
  int compared = 0;
  for (const auto& file : std::filesystem::directory_iterator(root + "/tests/measured")) {
    if (file.path().extension() != ".yaml") continue;
    const auto s = scenario::read(file.path().string());
    if (s.model.num_moe_experts || s.settings.cpu_offloading) continue;
    CAPTURE(file.path().stem().string());
    const auto error = difference(s, profiles);
    if (!error) continue;
    ++compared;
    CAPTURE(*error);
    CHECK(std::abs(*error) < 0.01);
  }
  CHECK(compared >= 20);
}

TEST_CASE("70B: many microbatches, other interleavings and recompute within 1 %") {
  const profile::Profiles profiles({profile::load(root + "/profiles/h100-sxm.json", {"test", 0})});
  for (const char* changes :
       {"global_batch_size=96", "virtual_pipeline_model_parallel_size=10", "recompute_modules=[mlp]"}) {
    CAPTURE(changes);
    auto s = scenario::read(root + "/scenarios/llama3-70b-sft-32xh100.yaml");
    scenario::set(s, changes);
    const auto error = difference(s, profiles);
    REQUIRE(error);
    CAPTURE(*error);
    CHECK(std::abs(*error) < 0.01);
  }
}
