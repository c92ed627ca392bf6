// Two engines, one meaning: the chunk-level engine against the exact one.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <cmath>

#include "fixture.hpp"

namespace chunk_engine_test {

using namespace pipewright;
using namespace pipewright::timeline;
using timeline::test::Napkin;

namespace {

Estimate estimate(const Napkin& napkin) {
  const auto stages = napkin.model();
  const auto profiles = napkin.profiles();
  const auto result = timeline::estimate(napkin.scenario(), stages, napkin.program().config, profiles,
                                         price(napkin.scenario(), stages, profiles));
  REQUIRE(result.has_value());
  return *result;
}

double exact(const Napkin& napkin) { return static_cast<double>(napkin.simulate().forward_backward); }

}  // namespace

TEST_CASE("without clocks and contention both engines agree to the nanosecond") {
  CHECK(rc::check("any pipeline, few microbatches", [] {
    Napkin n;
    n.stages = *rc::gen::inRange(1, 7);
    if (n.stages > 1 && *rc::gen::arbitrary<bool>()) n.chunks = *rc::gen::inRange(2, 5);
    n.microbatches = n.stages * *rc::gen::inRange(1, 4);
    n.overlap = n.chunks.has_value() && *rc::gen::arbitrary<bool>();
    n.forward_us = *rc::gen::inRange(1, 3000);
    n.backward_us = *rc::gen::inRange(1, 6000);
    n.transfer_us = *rc::gen::inRange(0, 2000);
    n.eager_bytes = *rc::gen::element(0, 1000);
    n.host_us = *rc::gen::element(0, 5, 700, 2500);
    n.connections = *rc::gen::element<std::string>("1", "8");
    n.reads = *rc::gen::arbitrary<bool>();
    const auto exact = n.simulate();
    const auto quick = estimate(n);
    RC_ASSERT(quick.forward_backward == exact.forward_backward);
    RC_ASSERT(quick.optimizer == exact.optimizer);
  }));
}

TEST_CASE("many microbatches cost no more than few, and give the exact engine's time") {
  for (const bool overlap : {false, true})
    for (const std::optional<int> chunks : {std::optional<int>(), std::optional<int>(2), std::optional<int>(4)}) {
      if (overlap && !chunks) continue;
      CAPTURE(overlap);
      CAPTURE(chunks.value_or(1));
      Napkin n;
      n.chunks = chunks;
      n.overlap = overlap;
      n.transfer_us = 300;
      n.host_us = 20;
      n.microbatches = 128;
      const auto some = estimate(n);
      CHECK(static_cast<double>(some.forward_backward) == doctest::Approx(exact(n)).epsilon(1e-6));
      n.microbatches = 512;
      const auto many = estimate(n);
      CHECK(many.operations == some.operations);
      CHECK(static_cast<double>(many.forward_backward) == doctest::Approx(exact(n)).epsilon(1e-6));
    }
}

TEST_CASE("what the chunk-level engine does not express has no estimate") {
  Napkin n;
  auto stages = n.model();
  auto config = n.program().config;
  config.ep_overlap = true;
  const auto profiles = n.profiles();
  CHECK_FALSE(
      timeline::estimate(n.scenario(), stages, config, profiles, price(n.scenario(), stages, profiles)).has_value());
}

TEST_CASE("a slower host: its costs grow, the GPU's stay, and both engines see it") {
  Napkin napkin;
  napkin.host_us = 300;
  const auto stages = napkin.model();
  const auto profiles = napkin.profiles();
  auto s = napkin.scenario();
  const auto reference = price(s, stages, profiles);
  s.cluster.host_time_factor = 4;
  const auto slow = price(s, stages, profiles);
  for (std::size_t piece = 0; piece < slow.pieces.size(); ++piece)
    for (std::size_t k = 0; k < slow.pieces[piece].size(); ++k) {
      CHECK(slow.pieces[piece][k].host_us == doctest::Approx(4 * reference.pieces[piece][k].host_us));
      CHECK(slow.pieces[piece][k].time.ns == reference.pieces[piece][k].time.ns);
    }
  const auto quick = timeline::estimate(s, stages, napkin.program().config, profiles, slow);
  const auto whole = timeline::simulate(s, stages, napkin.program(), profiles);
  REQUIRE(quick.has_value());
  CHECK(static_cast<double>(quick->forward_backward) ==
        doctest::Approx(static_cast<double>(whole.forward_backward)).epsilon(0.01));
  CHECK(whole.forward_backward > napkin.simulate().forward_backward);
}

TEST_CASE("a host's speed: the scenario's, else the profile's, else that of the reference host") {
  Napkin napkin;
  auto s = napkin.scenario();
  CHECK(host_time_factor(s, napkin.profiles()) == 1);
  profile::Profile measured;
  measured.scalars["host.time_factor"] = {1.4, 0, profile::Origin::measured, "test"};
  const profile::Profiles profiles({measured});
  CHECK(host_time_factor(s, profiles) == 1.4);
  s.cluster.host_time_factor = 0.8;
  CHECK(host_time_factor(s, profiles) == 0.8);
}

namespace {

profile::Profiles with(const Napkin& napkin, const std::map<std::string, double>& scalars) {
  auto list = napkin.profiles().all();
  for (const auto& [name, value] : scalars) list.front().scalars[name] = {value, 0, profile::Origin::measured, "test"};
  return profile::Profiles(std::move(list));
}

}  // namespace

TEST_CASE("hosts of GPUs that wait for each other go at the pace of the slowest; where they meet, in every layer") {
  Napkin napkin;
  auto s = napkin.scenario();
  const auto profiles = with(napkin, {{"host.rank_spread", 0.1}, {"host.slow_share", 0.25}, {"host.slow_factor", 1.8}});
  s.cluster.host_time_factor = 2;
  CHECK(host_pace(s, profiles) == 2);  // a host of its own
  double before = 2;
  for (const std::int64_t gpus : {2, 4, 8}) {
    s.settings.tensor_model_parallel_size = gpus;
    s.model.num_moe_experts.reset();
    const double lockstep = host_pace(s, profiles);
    CHECK(lockstep == doctest::Approx(2 * (1 + 0.1 * profile::expected_largest(gpus))));
    s.model.num_moe_experts = 8;  // hosts wait for the counts of tokens
    CHECK(host_pace(s, profiles) == doctest::Approx(2 * (1 + 0.8 * (1 - std::pow(0.75, gpus))) / 1.2));
    CHECK(host_pace(s, profiles) > before);
    before = host_pace(s, profiles);
    s.settings.moe_pad_expert_input_to_capacity = true;  // they know them
    CHECK(host_pace(s, profiles) == lockstep);
    s.settings.moe_pad_expert_input_to_capacity = false;
  }
  CHECK(host_pace(s, napkin.profiles()) == 2);  // a profile without slow stretches
  for (const double share : {0.0, 1.0}) {       // never or always slow: no host differs from another
    const auto alike = with(napkin, {{"host.slow_share", share}, {"host.slow_factor", 1.8}});
    CHECK(host_pace(s, alike) == doctest::Approx(2));
  }
}

TEST_CASE("a group's weights cost a hook each; FP8 has costs of its own where they are known") {
  Napkin napkin;
  auto s = napkin.scenario();
  auto stages = napkin.model();
  auto& kernel = stages.pieces.front().kernels.front();
  const auto cost = [&](const profile::Profiles& profiles) {
    return price(s, stages, profiles).pieces.front().front().host_us;
  };
  const std::string own = "host.forward." + kernel.key.family + "_us",
                    fp8 = "host.forward.fp8." + kernel.key.family + "_us";
  const auto profiles = with(napkin, {{own, 10}, {fp8, 17}, {"host.backward.parameter_us", 3}});
  const double alone = cost(profiles);
  kernel.parameters = 4;
  CHECK(cost(profiles) == doctest::Approx(alone + 12));
  CHECK(cost(with(napkin, {{own, 10}})) == doctest::Approx(alone));
  s.settings.fp8 = "hybrid";
  CHECK(cost(profiles) == doctest::Approx(alone + 12 + 7));
  CHECK(cost(with(napkin, {{own, 10}})) == doctest::Approx(alone));
}

}  // namespace chunk_engine_test
