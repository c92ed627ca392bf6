// The interval where nobody says whose host it is: it holds the step on the hosts that are to be expected.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

namespace interval_test {

using namespace pipewright;

namespace {

scenario::Scenario scenario_of(const std::string& name) {
  auto s = scenario::read(std::string(SOURCE_ROOT) + "/tests/measured/" + name + ".yaml");
  s.cluster.host_time_factor.reset();
  return s;
}

profile::Profiles profile_of(const std::string& name) {
  return profile::Profiles({profile::load(std::string(SOURCE_ROOT) + "/profiles/" + name + ".json", {"test", 0})});
}

std::int64_t with_host(scenario::Scenario s, const profile::Profiles& profiles, double factor) {
  s.cluster.host_time_factor = factor;
  return predict::predict(s, profiles).step_ns;
}

}  // namespace

TEST_CASE("hosts that are to be expected stay inside, whether the step waits for its host or just hides its work") {
  for (const char* profile : {"h100-sxm", "h200-sxm"}) {
    const auto profiles = profile_of(profile);
    const double own = profiles.find_scalar("host.time_factor").value_or(1);
    const double slower = own * (1 + sigmas_of_90_percent * profiles.scalar("host.spread").value);
    for (const char* name : {"c_base", "t_qwen30", "a_pp4v2_m8"}) {
      CAPTURE(profile);
      CAPTURE(name);
      const auto s = scenario_of(name);
      const auto p = predict::predict(s, profiles);
      CHECK(with_host(s, profiles, slower) <= p.interval_high_ns);
      CHECK(with_host(s, profiles, 1) >= p.interval_low_ns);
    }
  }
}

TEST_CASE(
    "copies of several GPUs at once, as other hosts make them, stay inside; one GPU's and a known host's widen "
    "nothing") {
  const auto part = [](const predict::Prediction& p) {
    for (const auto& cause : p.interval_parts)
      if (cause.cause == "copies of several GPUs") return cause;
    return predict::IntervalPart{};
  };
  const auto profiles = profile_of("h200-sxm");
  const auto s = scenario_of("w_off4");
  const auto p = predict::predict(s, profiles);
  CHECK(part(p).plus_ns > 0.05 * static_cast<double>(p.step_ns));
  const auto with = [&](double to_host, double from_host, double spread) {
    auto all = profiles.all();
    for (const auto& [name, value] :
         {std::pair("contention.gpus_4.copy_d2h", to_host), std::pair("contention.gpus_4.copy_h2d", from_host)}) {
      all.front().scalars.at(name).value = value;
      all.front().scalars.at(name).spread = spread;
    }
    return predict::predict(s, profile::Profiles(std::move(all)));
  };
  CHECK(with(1.59, 1.29, 0).step_ns < p.interval_high_ns);  // hosts that were measured
  CHECK(with(1.05, 1.05, 0).step_ns > p.interval_low_ns);
  CHECK(part(with(1.59, 1.29, 0)).plus_ns == 0);
  auto one = s;
  one.cluster.num_gpus = one.cluster.gpus_per_node = 1;
  one.settings.global_batch_size = s.settings.global_batch_size / s.cluster.num_gpus;
  CHECK(part(predict::predict(one, profiles)).plus_ns == 0);
}

TEST_CASE("who states the host gets a narrower interval") {
  const auto profiles = profile_of("h100-sxm");
  auto s = scenario_of("t_qwen30");
  const auto unknown = predict::predict(s, profiles);
  s.cluster.host_time_factor = profiles.scalar("host.time_factor").value;
  const auto stated = predict::predict(s, profiles);
  CHECK(stated.step_ns == unknown.step_ns);
  CHECK(stated.interval_high_ns - stated.interval_low_ns <
        0.9 * static_cast<double>(unknown.interval_high_ns - unknown.interval_low_ns));
}

TEST_CASE("the interval is made of its named causes, each with a source, and of nothing else") {
  for (const char* profile : {"h100-sxm", "h200-sxm", "gb200-nvl72"}) {
    const auto profiles = profile_of(profile);
    for (const char* name : {"c_base", "t_qwen30", "a_pp4v2_m8"}) {
      CAPTURE(profile);
      CAPTURE(name);
      const auto p = predict::predict(scenario_of(name), profiles);
      double minus = 0, plus = 0;
      std::set<std::string> causes;
      for (const auto& part : p.interval_parts) {
        CAPTURE(part.cause);
        CHECK_FALSE(part.source.empty());
        CHECK((part.minus_ns >= 0 && part.plus_ns >= 0));
        CHECK(causes.insert(part.cause).second);
        minus = std::hypot(minus, part.minus_ns);
        plus = std::hypot(plus, part.plus_ns);
      }
      CHECK(static_cast<double>(p.step_ns - p.interval_low_ns) == doctest::Approx(minus).epsilon(1e-6));
      CHECK(static_cast<double>(p.interval_high_ns - p.step_ns) == doctest::Approx(plus).epsilon(1e-6));
    }
  }
}

TEST_CASE("cards that a data sheet says do up to their line may hang in a slower fabric; a stated one may not") {
  const auto network = [](const predict::Prediction& p) {
    for (const auto& part : p.interval_parts)
      if (part.cause == "network") return part.plus_ns;
    return 0.0;
  };
  scenario::Scenario s = scenario_of("c_base");
  s.cluster.gpus_per_node = 1;  // every exchange crosses the network
  for (const char* name : {"h200-sxm", "b200-sxm", "b300-sxm", "gb300-nvl72"}) {
    CAPTURE(name);
    const auto profiles = profile_of(name);
    s.cluster.profile = name;
    s.cluster.nvlink_domain = 1;
    const bool newest = std::string(name).find("300") != std::string::npos;
    const auto unsaid = predict::predict(s, profiles);
    CHECK((network(unsaid) > 0) == newest);
    auto slow = s, fast = s;
    slow.cluster.nic_gbits = 400;
    fast.cluster.nic_gbits = 800;
    const auto p = predict::predict(slow, profiles);
    CHECK(network(p) == 0);
    CHECK(network(predict::predict(fast, profiles)) == 0);
    CHECK(p.step_ns <= unsaid.interval_high_ns);
  }
}

TEST_CASE("a law of clocks that is known worse widens the interval, and only by its own cause") {
  auto measured = profile_of("h200-sxm");
  auto profile = profile::load(std::string(SOURCE_ROOT) + "/profiles/h200-sxm.json", {"test", 0});
  const auto s = scenario_of("c_base");
  const auto before = predict::predict(s, measured);
  profile.scalars.at("clocks.law_spread").value *= 2;
  const auto after = predict::predict(s, profile::Profiles({profile}));
  CHECK(after.step_ns == before.step_ns);
  CHECK(after.interval_high_ns > before.interval_high_ns);
  REQUIRE(after.interval_parts.size() == before.interval_parts.size());
  for (std::size_t i = 0; i < after.interval_parts.size(); ++i) {
    const auto &was = before.interval_parts[i], &is = after.interval_parts[i];
    CAPTURE(is.cause);
    CHECK(is.plus_ns == doctest::Approx((is.cause == "law of clocks" ? 2 : 1) * was.plus_ns));
  }
}

}  // namespace interval_test
