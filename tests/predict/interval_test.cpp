// The interval where nobody says whose host it is: it holds the step on the hosts that are to be expected.
#include <doctest/doctest.h>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

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
