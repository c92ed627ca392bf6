#include "host_speed.hpp"

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include "pipewright/base.hpp"
#include "pipewright/profile.hpp"

namespace host_speed_test {

using namespace pipewright::capture;

TEST_CASE("slow stretches are told from calm ones, by share, length and factor") {
  CHECK(rc::check([] {
    const int threads = *rc::gen::inRange(1, 9), length = *rc::gen::inRange(1, 30), cycle = *rc::gen::inRange(2, 4);
    const double calm = *rc::gen::inRange(5, 80), factor = 1 + 0.1 * *rc::gen::inRange(5, 20);
    std::vector<std::vector<double>> windows(static_cast<std::size_t>(threads));
    for (auto& thread : windows) {
      for (int i = 0; i < cycle * length * 20; ++i) {
        const bool slow = i / length % cycle == 1;
        thread.push_back(calm * (slow ? factor : 1) * (1 + 0.01 * (i % 3)));
      }
    }
    const HostSpeed speed = host_speed_of(windows, 10);
    RC_ASSERT(speed.windows == windows.size() * windows.front().size());
    RC_ASSERT(std::abs(speed.calm_us / calm - 1) < 0.03);
    RC_ASSERT(std::abs(speed.slow_share - 1.0 / cycle) < 1e-9);
    RC_ASSERT(std::abs(speed.slow_factor / factor - 1) < 0.03);
    RC_ASSERT(std::abs(speed.slow_ms - 10.0 * length) < 1e-9);
    RC_ASSERT(speed.spread < 1e-9);
    RC_ASSERT(std::abs(speed.mean_us / (calm * (1 + (factor - 1) / cycle)) - 1) < 0.03);
    // The host that a prediction assumes: calm speed, and PyTorch's own slowdown for the slow share.
    const double expected = speed.calm_us / reference_host_us() * (1 + (pytorch_slow_factor - 1) / cycle);
    RC_ASSERT(std::abs(host_time_factor(speed) / expected - 1) < 1e-9);
  }));
}

TEST_CASE("a calm machine has no slow stretch; threads that differ have a spread; no window is a fault of ours") {
  const HostSpeed calm = host_speed_of({{20, 21, 20, 22}, {20, 20, 21, 20}}, 10);
  CHECK(calm.slow_share == 0);
  CHECK(calm.slow_factor == 1);
  CHECK(calm.slow_ms == 0);
  CHECK(host_speed_of({{20, 20}, {24, 24}}, 10).spread == doctest::Approx(2.0 / 22));
  CHECK_THROWS_AS(host_speed_of({{}, {}}, 10), pipewright::InternalError);
}

TEST_CASE("measured for real: windows of every thread, and a speed of this century") {
  const HostSpeed speed = measure_host_speed(2, std::chrono::milliseconds(200));
  CHECK(speed.windows >= 4);
  CHECK(speed.windows <= 40);
  CHECK(speed.calm_us > 1);
  CHECK(speed.mean_us >= speed.calm_us * 0.99);
  CHECK(speed.calm_us < 100000);
}

TEST_CASE(
    "slow stretches slow PyTorch's host code by one factor: of a measured machine's factor and of the prediction") {
  const auto shipped = pipewright::profile::load(std::string(SOURCE_ROOT) + "/profiles/h200-sxm.json", {"test", 0});
  CHECK(shipped.scalars.at("host.slow_factor").value == pytorch_slow_factor);
}

}  // namespace host_speed_test
