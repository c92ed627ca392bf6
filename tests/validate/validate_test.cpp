// The statistics of measured runs beside predictions, on figures that can be worked out by hand, and the calibration.
#include "pipewright/validate.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "fixture.hpp"
#include "pipewright/scenario/io.hpp"

namespace validate_test {

using namespace pipewright;
using namespace pipewright::validate;
using validate::test::run;
using validate::test::three;

namespace {

profile::Profiles shipped() {
  return profile::Profiles({profile::load(std::string(SOURCE_ROOT) + "/profiles/h200-sxm.json", {"test", 0})});
}

scenario::Scenario measured(const std::string& name) {
  return scenario::read(std::string(SOURCE_ROOT) + "/tests/measured/" + name + ".yaml");
}

}  // namespace

TEST_CASE("errors are predicted over measured, less one") {
  const auto v = three();
  CHECK(v.time().mean_abs == doctest::Approx((0.02 + 0.1 + 0) / 3));
  CHECK(v.time().max_abs == doctest::Approx(0.1));
  CHECK(v.time().bias == doctest::Approx((0.02 - 0.1) / 3));
  CHECK(v.memory()->max_abs == doctest::Approx(0.03));
  CHECK(v.memory()->bias == doctest::Approx(0.02 / 3));
  CHECK(v.largest_error() == doctest::Approx(0.1));
}

TEST_CASE("the interval is the step's, less the optimizer") {
  CHECK(*three().all().in_interval == doctest::Approx(2.0 / 3));  // b: 171 to 189 does not hold 200
}

TEST_CASE("Kendall's tau counts only runs that differ in settings alone") {
  auto v = three();
  CHECK(*v.kendall_tau() == doctest::Approx(1));
  v.cases[1].prediction.forward_backward_ns = 120'000'000;  // now below c: one pair of three is turned around
  CHECK(*v.kendall_tau() == doctest::Approx(1.0 / 3));
  v.cases[2].scenario.environment = v.cases[1].scenario.environment;  // repetitions have no order: a-b, a-c are right
  CHECK(*v.kendall_tau() == doctest::Approx(1));
  v.cases[1].scenario.model.num_layers = 99;  // another model: only the pair a, c remains
  CHECK(*v.kendall_tau() == doctest::Approx(1));
}

TEST_CASE("nothing measured, nothing divided by") {
  Validation v;
  CHECK(v.time().mean_abs == 0);
  CHECK_FALSE(v.kendall_tau());
  CHECK_FALSE(v.all().in_interval);
  CHECK_FALSE(v.all().half_width);
  CHECK_FALSE(v.memory());
  CHECK_FALSE(v.reserved());
  CHECK_FALSE(v.outside());
  CHECK(v.choices().empty());
}

TEST_CASE("half of the interval over the prediction, median") {
  CHECK(*three().all().half_width == doctest::Approx(0.05));
}

TEST_CASE("runs by profile: each counts in one, with its own errors and interval") {
  auto v = three();
  v.cases[1].scenario.cluster.profile = "another";
  const auto groups = v.by_profile(false);
  REQUIRE(groups.size() == 2);
  const Group& other = groups.at("another");
  CHECK(other.runs == 1);
  CHECK(other.time.bias == doctest::Approx(-0.1));
  CHECK(*other.in_interval == 0);
  const Group& rest = groups.at(v.cases[0].scenario.cluster.profile);
  CHECK(rest.runs == 2);
  CHECK(rest.time.mean_abs == doctest::Approx(0.01));
  CHECK(*rest.in_interval == 1);
  CHECK(v.by_profile(true).empty());
  v.cases[1].scenario.model.num_moe_experts = 8;
  CHECK(v.by_profile(true).at("another").runs == 1);
  CHECK(v.by_profile(false).size() == 1);
}

TEST_CASE("regret: what following the predicted order costs") {
  auto v = three();
  REQUIRE(v.choices().size() == 1);
  CHECK(v.choices()[0].chosen == "a");
  CHECK(v.choices()[0].regret == 0);
  v.cases[2].prediction.forward_backward_ns = 90'000'000;  // c is predicted fastest, but took 150 ms
  CHECK(v.choices()[0].chosen == "c");
  CHECK(v.choices()[0].best == "a");
  CHECK(v.choices()[0].of == 3);
  CHECK(v.choices()[0].regret == doctest::Approx(0.5));
}

TEST_CASE("a trace is compared at the speed of the step without profiler") {
  auto c = run("a", 100, 102, 1000, 990, {});
  auto& summary = c.scenario.measured->ranks[0].trace_summary.emplace();
  summary.span_us = 220'000;  // 220 ms with, 110 ms without
  summary.busy_us = {{"comp", 160'000}, {"p2p", 20'000}};
  summary.exposed_us = {{"p2p", 10'000}};
  c.prediction.ranks[1].account.traced_busy = {{"comp", 81'000'000}, {"coll", 1'000'000}};
  const auto rows = traced(c);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].kind == "comp");
  CHECK(rows[0].rank == 4);
  CHECK(rows[0].measured_busy_ms == doctest::Approx(80));
  CHECK(rows[0].predicted_busy_ms == doctest::Approx(81));
  CHECK(rows[1].kind == "p2p");
  CHECK(rows[1].measured_exposed_ms == doctest::Approx(5));
  CHECK(rows[1].predicted_exposed_ms == 0);
  CHECK(rows[2].kind == "coll");
}

TEST_CASE("a machine's speed is found again from a step that it would take") {
  const auto profiles = shipped();
  for (const char* name : {"a_pp4v2_m8", "t_cp2", "t_qwen30"})
    for (const double factor : {0.96, 1.06}) {
      CAPTURE(std::string(name));
      auto s = measured(name);
      const auto cold = predict::predict(s, profiles);
      const auto other = with_speed(profiles, {factor, 0.01}, "test");
      s.measured->forward_backward_ms = static_cast<double>(predict::predict(s, other).forward_backward_ns) / 1e6;
      CHECK(slowdown_of(s, profiles, cold) == doctest::Approx(factor).epsilon(0.002));
      CHECK(slowdown_of(s, other, predict::predict(s, other)) == doctest::Approx(factor).epsilon(0.002));
    }
}

TEST_CASE("a machine's hosts are found again from a step that waits for them; a step that does not tells nothing") {
  const auto profiles = shipped();
  const auto host_of = [&](const scenario::Scenario& s) {
    return host_factor_of(s, profiles, predict::predict(s, profiles));
  };
  for (const double factor : {0.7, 1.3, 2.2}) {  // below 0.7 the GPUs decide
    auto s = measured("t_qwen30");
    s.cluster.host_time_factor = factor;
    s.measured->forward_backward_ms = static_cast<double>(predict::predict(s, profiles).forward_backward_ns) / 1e6;
    s.cluster.host_time_factor.reset();
    const auto found = host_of(s);
    REQUIRE(found.has_value());
    CHECK(*found == doctest::Approx(factor).epsilon(0.03));
  }
  CHECK_FALSE(host_of(measured("a_pp4v2_m8")));  // the GPUs decide
  auto never = measured("t_qwen30");
  never.measured->forward_backward_ms *= 10;  // no host is so slow
  CHECK_FALSE(host_of(never));
  const auto both = host_factor({1.2, 1.8}, profiles, "two runs");
  CHECK(both.value == doctest::Approx(std::sqrt(1.2 * 1.8)));
  CHECK(both.spread == doctest::Approx(std::log(1.8 / 1.2) / 2));
  CHECK(host_factor({1.5}, profiles, "one").spread == profiles.scalar("host.run_spread").value);
}

TEST_CASE("calibration uses the other runs on the part, and never the run itself") {
  const auto profiles = shipped();
  Validation v;
  std::vector<profile::Profiles> all;
  for (const char* name : {"a_pp4_m8", "a_pp4v2_m8", "b_pp4v2_m8"}) {
    REQUIRE(add(v, measured(name), profiles));
    all.push_back(profiles);
  }
  v.cases[0].scenario.measured->forward_backward_ms *= 2;  // no machine's speed explains this one: not used
  calibrate_without_itself(v, all);
  CHECK(v.mode == "calibrated");
  CHECK(v.cases[0].calibrated_by == std::vector<std::string>{"a_pp4v2_m8", "b_pp4v2_m8"});
  CHECK(v.cases[1].calibrated_by == std::vector<std::string>{"b_pp4v2_m8"});
  CHECK(v.cases[2].calibrated_by == std::vector<std::string>{"a_pp4v2_m8"});
  CHECK(std::abs(time_error(v.cases[0])) > 0.4);  // its own figure did not help it
  CHECK(std::abs(time_error(v.cases[1])) < 0.05);
  CHECK_FALSE(v.cases[1].cold);
  // Where no other run can tell, a prediction stays cold and says so.
  Validation alone;
  REQUIRE(add(alone, measured("a_pp4_m8"), profiles));
  alone.mode = "cold";
  calibrate_without_itself(alone, {profiles});
  CHECK(alone.mode == "cold");
  CHECK(alone.cases[0].cold);
}

TEST_CASE("memory that a published run tells by pipeline rank is compared, reserved and outside too") {
  Validation v = three();
  CHECK_FALSE(v.outside());
  auto& c = v.cases[0];
  c.scenario.measured->ranks.clear();
  c.scenario.settings.pipeline_model_parallel_size = 2;
  c.scenario.cluster.num_gpus = 8;
  c.scenario.measured->peak_allocated_bytes_by_rank[1] = Bytes(900);
  c.scenario.measured->peak_reserved_bytes_by_rank[1] = Bytes(1000);
  c.scenario.measured->outside_allocator_bytes_by_rank[1] = Bytes(500);
  c.prediction.ranks[1].walk.peak_reserved = Bytes(1100);
  c.prediction.ranks[1].outside_allocator = Bytes(450);
  v.cases.resize(1);
  CHECK(v.reserved()->bias == doctest::Approx(0.1));
  CHECK(v.outside()->bias == doctest::Approx(-0.1));
}

TEST_CASE("the speed of a machine: one run, two models, runs that say little, runs that disagree") {
  const double machine = 0.02, repeats = 0.01;
  const auto sq = [](double x) { return x * x; };
  // Nothing observed: as the profile says, with the machine's spread and that of repeats.
  const Speed cold = expected_speed({}, 0, 0.01, machine);
  CHECK(cold.slowdown == 1);
  CHECK(cold.spread == doctest::Approx(std::sqrt(sq(machine) + sq(repeats))));
  // One run of the same model: by hand (m + k)^2 / ((m + k)^2 + repeats^2) of its deviation.
  const double shared = sq(machine) + sq(0.01);
  const Speed same = expected_speed({{1.02, 0.01, 0}}, 0, 0.01, machine);
  CHECK(same.slowdown == doctest::Approx(1 + 0.02 * shared / (shared + sq(repeats))));
  // Of another model it says less, a run known badly still less.
  const Speed other = expected_speed({{1.02, 0.01, 1}}, 0, 0.01, machine);
  CHECK(other.slowdown == doctest::Approx(1 + 0.02 * sq(machine) / (shared + sq(repeats))));
  const Speed vague = expected_speed({{1.02, 0.1, 1}}, 0, 0.01, machine);
  CHECK(vague.slowdown - 1 < 0.1 * (other.slowdown - 1));
  CHECK(vague.spread > other.spread);
  // A vague sibling hardly moves what a good one says.
  const Speed both = expected_speed({{1.02, 0.01, 0}, {1.1, 0.1, 0}}, 0, 0.01, machine);
  CHECK(both.slowdown == doctest::Approx(1.02).epsilon(0.003));
  // Runs that scatter beyond their spreads widen the result.
  const Speed calm = expected_speed({{1.02, 0.01, 0}, {1.02, 0.01, 0}, {1.02, 0.01, 0}}, 0, 0.01, machine);
  const Speed wild = expected_speed({{1.08, 0.01, 0}, {0.96, 0.01, 0}, {1.02, 0.01, 0}}, 0, 0.01, machine);
  CHECK(wild.slowdown == doctest::Approx(calm.slowdown));
  CHECK(wild.spread > 3 * calm.spread);
}

}  // namespace validate_test
