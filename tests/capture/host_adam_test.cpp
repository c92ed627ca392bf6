#include "host_adam.hpp"

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

namespace host_adam_test {

using namespace pipewright::capture;

TEST_CASE("the arithmetic is AdamW's, for every element") {
  CHECK(rc::check([] {
    const auto count = *rc::gen::inRange<std::size_t>(1, 70);
    std::vector<float> g(count), p(count), m(count), v(count);
    for (std::size_t i = 0; i < count; ++i) {
      g[i] = 0.001F * static_cast<float>(*rc::gen::inRange(-900, 900));
      p[i] = 0.01F * static_cast<float>(*rc::gen::inRange(-900, 900));
    }
    const auto before = p;
    const int steps = *rc::gen::inRange(1, 4);
    std::vector<double> dp(p.begin(), p.end()), dm(count), dv(count);
    for (int step = 1; step <= steps; ++step) {
      adam_on_host(g.data(), p.data(), m.data(), v.data(), count, step);
      for (std::size_t i = 0; i < count; ++i) {
        dm[i] = 0.9 * dm[i] + 0.1 * g[i];
        dv[i] = 0.95 * dv[i] + 0.05 * g[i] * g[i];
        const double mean = dm[i] / (1 - std::pow(0.9, step)), square = dv[i] / (1 - std::pow(0.95, step));
        dp[i] = dp[i] * (1 - 1e-5) - 1e-4 * mean / (std::sqrt(square) + 1e-8);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      RC_ASSERT(std::abs(p[i] - dp[i]) < 1e-5 + 1e-5 * std::abs(dp[i]));
      RC_ASSERT(g[i] == 0 || p[i] != before[i]);
    }
  }));
}

TEST_CASE("as many rounds as asked for, each takes time, more elements take more") {
  for (const int processes : {1, 2})
    for (const int threads : {1, 3}) {
      const auto few = measure_host_adam(processes, threads, 1000, 40);  // one of them finds its cores free
      REQUIRE(few.size() == 40);
      for (const double ns : few) CHECK(ns > 0);
      const auto many = measure_host_adam(processes, threads, 2'000'000, 3);
      CHECK(*std::ranges::min_element(many) > *std::ranges::min_element(few));
    }
}

}  // namespace host_adam_test
