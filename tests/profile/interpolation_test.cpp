// Times of shapes that were not measured, against the formulas that the measured ones came from.
#include <doctest/doctest.h>

#include <algorithm>

#include "fabricate.hpp"

namespace interpolation_test {

using namespace pipewright;
using namespace pipewright::profile;

TEST_CASE("a measured shape is answered with its measurement") {
  const Profile p = fabricated();
  const auto t = p.time({"gemm.bf16.tn", {4096, 4096, 4096}}).value();
  CHECK(t.ns == gemm_ns(4096, 4096, 4096));
  CHECK(t.origin == Origin::measured);
  CHECK(t.spread == doctest::Approx(0.005));
  CHECK(t.profile == "fabricated");
  CHECK(p.time({"small", {}})->ns == 1800);
  CHECK_FALSE(p.time({"rmsnorm.forward", {4096, 4096}}));
}

TEST_CASE("matrix products between the measured ones are within some percent, and say so") {
  const Profile p = fabricated();
  std::mt19937 random(7);
  double squares = 0, worst = 0, claimed = 0;
  const int shapes = 300;
  for (int i = 0; i < shapes; ++i) {
    const auto any = [&](std::int64_t low, std::int64_t high) {  // log-uniform, a multiple of 128
      const double octaves = std::log2(static_cast<double>(high) / static_cast<double>(low));
      const double v = static_cast<double>(low) * std::exp2(octaves * static_cast<double>(random() % 1000) / 999);
      return std::max<std::int64_t>(low, static_cast<std::int64_t>(v) / 128 * 128);
    };
    const std::int64_t m = any(1024, 57344), n = any(1024, 8192), k = any(2048, 16384);
    const auto t = p.time({"gemm.bf16.tn", {m, n, k}}).value();
    CHECK(t.origin <= Origin::interpolated);
    const double error = t.ns / gemm_ns(m, n, k) - 1;
    squares += error * error;
    worst = std::max(worst, std::abs(error));
    claimed = std::max(claimed, t.spread);
  }
  const double rms = std::sqrt(squares / shapes);
  MESSAGE("rms " << rms << ", worst " << worst << ", claimed " << claimed);
  CHECK(rms < 0.05);
  CHECK(worst < 0.25);
  CHECK(rms < 1.5 * claimed);  // the stated deviation is not wishful
}

TEST_CASE("one dimension: the line between the neighbours, exact where the rate is a power") {
  Profile p;
  p.samples["fill"] = {sample({1000}, 10), sample({4000}, 80)};  // time ~ bytes^1.5
  CHECK(p.time({"fill", {2000}})->ns == doctest::Approx(10 * std::pow(2, 1.5)));
  CHECK(p.time({"fill", {2000}})->origin == Origin::interpolated);
}

TEST_CASE("beyond the measured range it is derived, with the reason") {
  const Profile p = fabricated();
  const auto large = p.time({"fill", {std::int64_t{1} << 33}}).value();
  CHECK(large.origin == Origin::derived);
  CHECK(large.note.starts_with("extrapolated: 3 octaves away"));
  CHECK(large.ns == doctest::Approx(stream_ns(std::exp2(33))).epsilon(0.01));
  const auto little = p.time({"fill", {16}}).value();
  CHECK(little.origin == Origin::derived);
  CHECK(little.ns == doctest::Approx(stream_ns(4096)));  // the fixed cost remains
  CHECK(p.time({"gemm.bf16.tn", {4096, 4096, 65536}})->origin == Origin::derived);
  CHECK(p.time({"gemm.bf16.tn", {4096, 4096, 65536}})->spread > p.time({"gemm.bf16.tn", {4096, 4096, 8000}})->spread);
}

TEST_CASE("a hole in the grid is not interpolated over") {
  Profile p;
  for (const std::int64_t cols : {1024, 16384}) {
    for (const std::int64_t rows : {64, 32768}) {
      p.samples["rmsnorm.forward"].push_back(sample({rows, cols}, stream_ns(4.0 * static_cast<double>(rows * cols))));
    }
  }
  CHECK(p.time({"rmsnorm.forward", {32768, 8192}})->origin == Origin::interpolated);
  CHECK(p.time({"rmsnorm.forward", {1500, 4096}})->origin == Origin::derived);
}

TEST_CASE("more work never takes less than measured less work, where the measurements agree") {
  const Profile p = fabricated();
  const auto& known = p.samples.at("gemm.bf16.tn");
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const std::vector<std::int64_t> dims = {1024 + 64 * static_cast<std::int64_t>(random() % 800),
                                            1024 + 64 * static_cast<std::int64_t>(random() % 100),
                                            2048 + 64 * static_cast<std::int64_t>(random() % 200)};
    const double ns = p.time({"gemm.bf16.tn", dims})->ns;
    for (const auto& s : known) {
      if (s.dims[0] <= dims[0] && s.dims[1] <= dims[1] && s.dims[2] <= dims[2]) CHECK(ns >= s.ns * (1 - 1e-12));
    }
  }
}

TEST_CASE("attention: two sequences of 32 heads are as one of 64") {
  Profile p;
  for (const std::int64_t seq : {1024, 2048, 4096, 8192}) {
    for (const std::int64_t heads : {8, 16, 32, 64}) {
      const double flop = family("attention.forward.bf16").flop({1, seq, seq, heads, heads / 4, 128});
      p.samples["attention.forward.bf16"].push_back(sample({1, seq, seq, heads, heads / 4, 128}, 4000 + flop / 550e3));
    }
  }
  const auto t = p.time({"attention.forward.bf16", {2, 4096, 4096, 32, 8, 128}}).value();
  CHECK(t.origin == Origin::interpolated);
  CHECK(t.ns == doctest::Approx(p.time({"attention.forward.bf16", {1, 4096, 4096, 64, 16, 128}})->ns).epsilon(0.02));
  CHECK(p.time({"attention.forward.bf16", {1, 4096, 4096, 64, 16, 256}})->origin == Origin::derived);
}

TEST_CASE("leave-one-out finds the sample that does not belong") {
  auto samples = gemm_samples();
  const double before = leave_one_out("gemm.bf16.tn", samples).error;
  samples[50].ns *= 3;
  CHECK(leave_one_out("gemm.bf16.tn", samples).error > 2 * before);
}

TEST_CASE("several profiles: the one that measured the shape, else the first that can say anything") {
  Profile real, lab;
  real.name = "real";
  lab.name = "lab";
  real.samples["fill"] = {sample({1000}, 11), sample({100000}, 110)};
  lab.samples["fill"] = {sample({1000}, 10), sample({2000}, 20), sample({1000000}, 1000)};
  lab.samples["add"] = {sample({5}, 5)};
  lab.scalars["host.cuda_launch_us"] = {2, 0, Origin::measured, {}};
  const Profiles both({real, lab});
  CHECK(both.time({"fill", {1000}}).profile == "real");
  CHECK(both.time({"fill", {2000}}).profile == "lab");
  CHECK(both.time({"fill", {3000}}).profile == "real");
  CHECK(both.time({"fill", {500000}}).profile == "lab");  // inside what lab measured, outside of real
  CHECK(both.time({"add", {5}}).profile == "lab");
  CHECK(both.scalar("host.cuda_launch_us").value == 2);
  CHECK_THROWS_WITH_AS(both.time({"memset", {5}}), doctest::Contains("no measurement of memset bytes=5"), UsageError);
  CHECK_THROWS_WITH_AS(both.scalar("host.cuda_lunch_us"), doctest::Contains("did you mean \"host.cuda_launch_us\"?"),
                       UsageError);
  CHECK_THROWS_AS(both.time({"fill", {1, 2}}), InternalError);
}

TEST_CASE("kernels of every expert: other numbers of experts, and more rows than measured, keep their fixed cost") {
  for (const char* name : {"moe.bias.forward", "moe.bias.backward"}) {
    const auto ns = [](std::int64_t experts, std::int64_t rows) {
      return 5e3 * static_cast<double>(experts) + 0.03 * static_cast<double>(rows * 2880) / 2;
    };
    Profile p = fabricated();
    for (const std::int64_t rows : {16384, 32768}) {
      Sample s;
      s.dims = {32, rows, 2880};
      s.ns = ns(32, rows);
      p.samples[name].push_back(s);
    }
    for (const std::int64_t experts : {1, 2, 16, 32, 64})
      for (const std::int64_t of_one : {512, 700, 1024, 4096, 32768}) {
        CAPTURE(experts);
        CAPTURE(of_one);
        const double truth = ns(experts, experts * of_one);
        CHECK(p.time({name, {experts, experts * of_one, 2880}})->ns == doctest::Approx(truth).epsilon(0.02));
      }
  }
}

}  // namespace interpolation_test
