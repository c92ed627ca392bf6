// Two engines, one meaning: the chunk-level engine against the exact one.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include "fixture.hpp"

using namespace pipewright;
using namespace pipewright::timeline;
using timeline::test::Napkin;

namespace {

Estimate estimate(const Napkin& napkin) {
  const auto stages = napkin.model();
  const auto profiles = napkin.profiles();
  const auto result =
      timeline::estimate(napkin.scenario(), stages, napkin.program().config, profiles, price(stages, profiles));
  REQUIRE(result.has_value());
  return *result;
}

double exact(const Napkin& napkin) { return static_cast<double>(napkin.simulate().forward_backward); }

}  // namespace

TEST_CASE("without clocks and contention both engines agree to the nanosecond") {
  rc::check("any pipeline, few microbatches", [] {
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
    const auto exact = n.simulate();
    const auto quick = estimate(n);
    RC_ASSERT(quick.forward_backward == exact.forward_backward);
    RC_ASSERT(quick.optimizer == exact.optimizer);
  });
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
  CHECK_FALSE(timeline::estimate(n.scenario(), stages, config, profiles, price(stages, profiles)).has_value());
}
