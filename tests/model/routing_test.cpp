// Where a token's experts live, and what a dispatcher moves for it.
#include "../../src/model/routing.hpp"

#include <doctest/doctest.h>

#include "support.hpp"

namespace routing_test {

using namespace pipewright;
using namespace pipewright::model;

TEST_CASE("distinct units of a token: by hand, and the ends") {
  // 4 experts on 2 units, 2 a token: both on one unit in 2 of 6 choices.
  CHECK(units_of_a_token({4, 2}, 2) == doctest::Approx(2 * 2.0 / 6 / 2 + 2 * 4.0 / 6));
  CHECK(units_of_a_token({8, 3}, 1) == 1);
  CHECK(units_of_a_token({8, 1}, 4) == doctest::Approx(1));
  CHECK(units_of_a_token({8, 8}, 4) == doctest::Approx(4));
  CHECK(units_of_a_token({8, 3}, 8) == doctest::Approx(3));
  // Qwen3-30B on two nodes of 8, Qwen3-235B on four, DeepSeek-V3 on eight without groups.
  CHECK(units_of_a_token({128, 8}, 2) == doctest::Approx(1.994).epsilon(0.001));
  CHECK(units_of_a_token({128, 8}, 4) == doctest::Approx(3.629).epsilon(0.001));
  CHECK(units_of_a_token({256, 8}, 8) == doctest::Approx(5.295).epsilon(0.001));
}

TEST_CASE("group-limited routing: no more groups than allowed, nearly all of those") {
  const Routing deepseek{256, 8, 8, 4};
  const double nodes = units_of_a_token(deepseek, 8), gpus = units_of_a_token(deepseek, 64);
  CHECK(nodes <= 4);
  CHECK(nodes == doctest::Approx(3.96).epsilon(0.01));
  CHECK(gpus == doctest::Approx(7.48).epsilon(0.01));
  double before = 0;
  for (const scenario::Int allowed : {1, 2, 4, 8}) {
    const double now = units_of_a_token({256, 8, 8, allowed}, 8);
    CHECK(now >= before);
    CHECK(now <= static_cast<double>(allowed));
    before = now;
  }
  CHECK(units_of_a_token({256, 8, 8, 8}, 8) == doctest::Approx(units_of_a_token({256, 8}, 8)));  // all groups: no limit
}

}  // namespace routing_test
