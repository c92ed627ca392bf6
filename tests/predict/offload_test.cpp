// Activation offload beside measured steps and in what must hold of every configuration. The bounds on measured runs
// are today's figures rounded up: they may only be tightened.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "../on_h200.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

namespace offload_test {

using namespace pipewright;

namespace {

const std::string root = SOURCE_ROOT;

const profile::Profiles& shipped() {
  static const profile::Profiles profiles({profile::load(root + "/profiles/h200-sxm.json", {"test", 0})});
  return profiles;
}

scenario::Scenario measured(const std::string& name) {
  return scenario::read(root + "/tests/measured/" + name + ".yaml");
}

memory::Walk walk(const scenario::Scenario& s, int rank) {
  return memory::walk(test::build(s), schedule::build(schedule::config_of(s, true)), s, rank);
}

}  // namespace

TEST_CASE("measured runs with activation offload: time and peak memory of every rank") {
  struct Bound {
    const char* run;
    double time, peak;
  };
  for (const auto& bound : {Bound{"w_off4", 0.015, 0.0015}, Bound{"e_off_moe_act", 0.034, 0.001}}) {
    CAPTURE(bound.run);
    const auto s = measured(bound.run);
    const auto prediction = predict::predict(s, shipped());
    const double time = static_cast<double>(prediction.forward_backward_ns) / 1e6 / s.measured->forward_backward_ms - 1;
    CAPTURE(time);
    CHECK(std::abs(time) < bound.time);
    for (const auto& rank : s.measured->ranks) {
      const auto& predicted = prediction.ranks[static_cast<std::size_t>(rank.pp_rank)];
      const double peak = static_cast<double>(predicted.walk.peak_allocated.value) /
                              static_cast<double>(rank.peak_allocated_bytes.value) -
                          1;
      CAPTURE(peak);
      CHECK(std::abs(peak) < bound.peak);
      CHECK(predicted.account.offload > 0);
      CHECK(!predicted.walk.offloaded.empty());
    }
  }
}

TEST_CASE("a layer's copies: both saved objects of the attention output, nothing below the size limit") {
  const auto s = measured("w_off4");
  const auto stages = test::build(s);
  const auto& piece = stages.pieces[stages.ranks[0].chunks[0].pieces[1]];
  REQUIRE(piece.groups.size() == 1);
  std::int64_t bytes = 0;
  for (const auto& move : piece.groups[0].moves) bytes += piece.tensors[move.tensor].bytes.value;
  const std::int64_t hidden = 2 * 4096 * 4096;
  // X, n1, q, k and v (a quarter each), O twice, A, n2, fc1's output, activation.
  CHECK(bytes == hidden * 15 / 2 + 2ll * 4096 * 2 * 14336 + 2ll * 4096 * 14336);
}

TEST_CASE("with offload a step ends with the bytes it ends with without, and peaks no higher") {
  struct Choice {
    const char* run;
    std::vector<const char*> settings;
  };
  for (const auto& choice : {Choice{"w_off4", {}}, Choice{"e_off_moe_act", {}},
                             Choice{"e_off_moe_act", {"offload_modules=[expert_fc1,moe_act]"}},
                             Choice{"e_off_moe_act", {"offload_modules=[core_attn,attn_proj]"}},
                             Choice{"e_off_moe_act", {"offload_modules=[qkv_linear,mlp_norm]"}},
                             Choice{"e_off_moe_act", {"activation_offload_fraction=0.5"}}}) {
    auto with = measured(choice.run);
    std::string what = choice.run;
    for (const auto* setting : choice.settings) scenario::set(with, setting), what += std::string(" ") + setting;
    CAPTURE(what);
    auto without = with;
    scenario::set(without, "cpu_offloading=false");
    scenario::set(without, "fine_grained_activation_offloading=false");
    for (int rank = 0; rank < with.settings.pipeline_model_parallel_size; ++rank) {
      const auto a = walk(with, rank), b = walk(without, rank);
      // Up to the rest of a block that is not worth splitting off: drawn rows leave other holes where copies have gone.
      CHECK(std::abs(a.after_step.value - b.after_step.value) < 1 << 20);
      CHECK(a.static_bytes == b.static_bytes);
      CHECK(a.peak_allocated < b.peak_allocated);
    }
  }
}

TEST_CASE("more is offloaded, less is allocated; copies take the time of their bytes") {
  auto s = measured("e_off_moe_act");
  std::int64_t last = INT64_MAX;
  for (const char* fraction : {"0.5", "1.0"}) {
    scenario::set(s, std::string("activation_offload_fraction=") + fraction);
    const auto prediction = predict::predict(s, shipped());
    CHECK(prediction.ranks[0].walk.peak_allocated.value < last);
    last = prediction.ranks[0].walk.peak_allocated.value;
    const auto& moved = prediction.ranks[0].walk.offloaded.at(0);
    const std::int64_t group = 2ll * 8192 * 2 * 14336;
    CHECK(moved.bytes.value == moved.groups * group);
    CHECK(moved.groups + moved.kept == 32);
    const double alone = moved.groups * shipped().time({"copy.d2h", {group}}).ns;
    CHECK(static_cast<double>(prediction.ranks[0].account.traced_busy.at("d2h")) > 0.99 * alone);
  }
}

TEST_CASE("the fused grouped MLP moves three tensors, or those of marked operators") {
  auto s = measured("e_off_moe_act");
  scenario::set(s, "use_transformer_engine_op_fuser=true");
  scenario::set(s, "offload_modules=[fused_group_mlp]");
  const auto moves = [&] {
    const auto stages = test::build(s);
    return stages.pieces[stages.ranks[0].chunks[1].pieces[0]].groups.at(0).moves.size();
  };
  CHECK(moves() == 3);
  s.software.transformer_engine = "pr-3128";
  CHECK(moves() == 3);
  s.settings.te_op_offload.fc1_op = true;
  CHECK(moves() == 1);
  s.settings.te_op_offload = {false, true};
  CHECK(moves() == 2);
  s.settings.te_op_offload = {false, false};
  CHECK(moves() == 0);
}

}  // namespace offload_test
