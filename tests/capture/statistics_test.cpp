#include <doctest/doctest.h>

#include "sample_statistics.hpp"

namespace statistics_test {

using namespace pipewright::capture;

TEST_CASE("median and spread") {
  const Summary s = summarize({5, 1, 2, 4, 3});
  CHECK(s.median == doctest::Approx(3));
  CHECK(s.count == 5);
  // 16th percentile 1.64, 84th 4.36
  CHECK(s.spread == doctest::Approx((4.36 - 1.64) / 2 / 3));
  CHECK(summarize({10, 20}).median == doctest::Approx(15));
}

TEST_CASE("an outlier moves neither") {
  const Summary calm = summarize({100, 101, 99, 100, 101, 99, 100, 100, 101, 99, 100});
  const Summary one_off = summarize({100, 101, 99, 100, 101, 99, 100, 100, 101, 99, 5000});
  CHECK(one_off.median == doctest::Approx(calm.median));
  CHECK(one_off.spread == doctest::Approx(calm.spread).epsilon(0.5));
}

TEST_CASE("nothing measured") {
  CHECK(summarize({}).count == 0);
  CHECK(summarize({7}).spread == 0);
}

TEST_CASE("sampling stops on the standard error, not before the least number") {
  CHECK_FALSE(enough({}, 1, 0.01));
  CHECK_FALSE(enough({100}, 1, 0.01));
  CHECK_FALSE(enough({100, 100, 100}, 8, 0.01));
  CHECK(enough({100, 100, 100}, 3, 0.01));
  // deviation 10, four samples: standard error 5.8 % of the mean
  CHECK_FALSE(enough({90, 110, 90, 110}, 4, 0.03));
  CHECK(enough({90, 110, 90, 110}, 4, 0.06));
}

}  // namespace statistics_test
