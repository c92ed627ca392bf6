// Rows of experts as routing draws them.
#include "drawn_rows.hpp"

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <cmath>
#include <numeric>

namespace drawn_rows_test {

using pipewright::capture::drawn_rows;

TEST_CASE("experts' rows keep the mean, spread as independent choices do and are padded") {
  CHECK(rc::check([&] {
    const auto experts = *rc::gen::inRange<std::int64_t>(1, 257), each = *rc::gen::inRange<std::int64_t>(256, 16384),
               align = *rc::gen::element<std::int64_t>(1, 16, 32, 128), tokens = experts * each;
    constexpr int draws = 8;
    const auto rows = drawn_rows(experts, tokens, align, draws);
    RC_ASSERT(rows == drawn_rows(experts, tokens, align, draws));
    RC_ASSERT(rows.size() == draws);
    double sum = 0, square = 0;
    for (const auto& draw : rows) {
      RC_ASSERT(draw.size() == static_cast<std::size_t>(experts));
      for (const auto of_expert : draw) {
        RC_ASSERT(of_expert >= 0);
        RC_ASSERT(of_expert % align == 0);
        sum += static_cast<double>(of_expert);
        square += std::pow(static_cast<double>(of_expert - each), 2);
      }
    }
    const double n = static_cast<double>(draws * experts), mean = static_cast<double>(each),
                 step = static_cast<double>(align * align) / 12;  // variance of what rounds up to a multiple
    // Few rows all end in the same multiple. Mirrored draws leave the rounding alone: five standard errors over n rows.
    const bool one_multiple = std::sqrt(mean) < static_cast<double>(align);
    const double rounding = one_multiple ? static_cast<double>(align) / 2 : 5 * std::sqrt((step + 1) / n);
    RC_ASSERT(std::abs(sum / n - mean) <= rounding + 0.5);
    // The variance of a Poisson distribution is its mean; a sample's spreads by sqrt(2 / n), mirrored pairs are one.
    if (experts >= 16 && !one_multiple)
      RC_ASSERT(std::abs(square / n / (mean + step) - 1) <= 0.1 + 7 * std::sqrt(4 / n));
  }));
}

TEST_CASE("a single expert's rows differ from draw to draw, few rows may be none") {
  const auto one = drawn_rows(1, 4096, 1, 4);
  CHECK(one[0] != one[2]);
  CHECK(one[0][0] + one[1][0] == 2 * 4096);
  const auto few = drawn_rows(64, 64, 1, 4);
  CHECK(std::accumulate(few[0].begin(), few[0].end(), std::int64_t{0}) > 0);
}

}  // namespace drawn_rows_test
