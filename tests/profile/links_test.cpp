// Links, collectives over ranks that were not measured, and clocks under load.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "fabricate.hpp"

namespace links_test {

using namespace pipewright;
using namespace pipewright::profile;

TEST_CASE("a profile's own link comes before a published one") {
  Profile p;
  CHECK(p.link("infiniband")->gbytes_per_s == published_links().front().gbytes_per_s);
  CHECK(p.link("nvlink") == nullptr);
  Profile own;
  own.links = {{"infiniband", 5, 24, 0, Origin::measured, "HDR"}};
  CHECK(own.link("infiniband")->gbytes_per_s == 24);
  CHECK(Profiles({p, own}).link("infiniband").gbytes_per_s == 24);
  CHECK(own.time({"send_recv.infiniband", {24'000}})->ns == doctest::Approx(6000));
}

TEST_CASE("a link of two figures: latency by steps of the ring, and bandwidth") {
  const Profile p = fabricated();
  const Link& ib = *p.link("infiniband");
  CHECK(ib.origin == Origin::derived);
  CHECK_FALSE(ib.source.empty());
  const double lat = ib.latency_us * 1e3, bw = ib.gbytes_per_s;
  CHECK(p.time({"send_recv.infiniband", {1'000'000}})->ns == doctest::Approx(lat + 1e6 / bw));
  CHECK(p.time({"all_gather.infiniband", {4, 1'000'000}})->ns == doctest::Approx(3 * lat + 0.75e6 / bw));
  CHECK(p.time({"reduce_scatter.infiniband", {4, 1'000'000}})->ns == doctest::Approx(3 * lat + 0.75e6 / bw));
  CHECK(p.time({"all_reduce.infiniband", {4, 1'000'000}})->ns == doctest::Approx(6 * lat + 1.5e6 / bw));
  CHECK(p.time({"all_reduce.infiniband", {4, 1'000'000}})->origin == Origin::derived);
  CHECK_FALSE(p.time({"send_recv.carrier pigeon", {1'000'000}}));
}

TEST_CASE("8 ranks from measurements over 2 and 4") {
  const Profile p = fabricated();
  for (const std::int64_t bytes : {4096, 1 << 20, 1 << 28}) {
    const auto t = p.time({"all_gather.nvlink", {8, bytes}}).value();
    CHECK(t.origin == Origin::derived);
    CHECK(t.note.find("8 ranks from the measurements over 2 and 4") != std::string::npos);
    CHECK(t.ns == doctest::Approx(ring_ns(8, bytes)).epsilon(0.02));
  }
  CHECK(p.time({"all_gather.nvlink", {4, 1 << 20}})->origin == Origin::measured);
  CHECK(p.time({"all_gather.nvlink", {4, 3 << 20}})->origin == Origin::interpolated);
  CHECK(p.time({"all_gather.nvlink", {4, 3 << 20}})->ns == doctest::Approx(ring_ns(4, 3 << 20)).epsilon(0.1));
  const Profiles all({p});
  CHECK(all.link("nvlink").gbytes_per_s == 370);
  CHECK_THROWS_WITH_AS(all.link("nvlnk"), doctest::Contains("did you mean \"nvlink\"?"), UsageError);
}

TEST_CASE("clocks: linear between the rows, held before the first, on beyond the last") {
  const Clocks c = *fabricated().clocks_for("bf16");
  CHECK(c.slowdown(Load::matrix, 0.1) == 1);
  CHECK(c.slowdown(Load::matrix, 0.6) == doctest::Approx(1.1));
  CHECK(c.slowdown(Load::matrix, 0.8) == doctest::Approx(1.2));
  CHECK(c.slowdown(Load::attention, 0.8) == doctest::Approx(1.125));
  CHECK(c.slowdown(Load::network, 1) == 1);
  Clocks one = c;  // a single row holds everywhere
  one.rows = {{0.5, 1900, 600, 1.05, 1, 1}};
  CHECK(one.slowdown(Load::matrix, 0.1) == 1.05);
  CHECK(one.slowdown(Load::matrix, 0.9) == 1.05);
  CHECK(Clocks{}.slowdown(Load::matrix, 1) == 1);
  CHECK(fabricated().clocks_for("fp8") == nullptr);
  CHECK(fabricated().clocks_for("bf16", "memory") == nullptr);
}

TEST_CASE("a kind of kernels weighs what the layer's duty is at the same clock") {
  Profile p = fabricated();
  Clocks layer = *p.clocks_for("bf16");
  layer.limit_watts = 700;
  layer.matrix_share = 0.8, layer.attention_share = 0, layer.memory_share = 0.2;
  layer.rows = {{0.1, 1980, 200, 1, 1, 1}, {0.6, 1900, 660, 1, 1, 1}, {1.0, 1500, 690, 1.16, 1.25, 1.12}};
  CHECK(!layer.duty_at(1950));  // above the clocks at the limit
  CHECK(layer.duty_at(1700).value() == doctest::Approx(0.8));
  CHECK(layer.duty_at(1400).value() == doctest::Approx(1.1));
  CHECK(layer.slowdown(Load::matrix, 1.1) == doctest::Approx(1.2));
  CHECK(layer.slowdown(Load::matrix, 0.01) == 1);
  Clocks matrix = layer, both = layer, memory = layer;
  matrix.kernels = "matrix";
  matrix.rows = {{0.1, 1860, 300, 1, 1, 1}, {0.8, 1600, 690, 1.1, 1, 1}};  // the first: one tick of the controller
  both.kernels = "matrix+memory";
  both.matrix_share = both.memory_share = 0.5;
  both.rows = {{1.0, 1600, 690, 1.1, 1, 1.1}};
  memory.kernels = "memory";
  memory.rows = {{0.1, 1980, 170, 1, 1, 1}, {1.0, 1980, 620, 1, 1, 1}};  // never meets the limit
  p.clocks = {layer, matrix, both, memory};
  const auto law = Profiles({p}).clock_law("bf16");
  REQUIRE(law);
  // matrix 0.9 / 0.8; with it memory 2 x 0.9 - 1.125; the layer itself 0.8 and 0.2 of them.
  const double whole = 0.8 * 1.125 + 0.2 * 0.675;
  CHECK(law->weight(Load::matrix) == doctest::Approx(1.125 / whole));
  CHECK(law->weight(Load::memory) == doctest::Approx(0.675 / whole));
  CHECK(law->weight(Load::attention) == doctest::Approx(1 / whole));  // not measured alone: as the layer
  CHECK(law->weight(Load::network) == 0);
  CHECK(!Profiles({p}).clock_law("fp8"));
  CHECK(layer.busy_watts() == 0);  // one row below the limit
  p.clocks[0].rows.insert(p.clocks[0].rows.begin() + 1, {0.5, 1980, 520, 1, 1, 1});
  CHECK(p.clocks[0].busy_watts() == doctest::Approx(800));
  p.scalars["clocks.exchange_watts"] = {200, 0, Origin::measured, "test"};
  CHECK(Profiles({p}).clock_law("bf16")->weight(Load::network) == doctest::Approx(0.25));
  // Full load adds 0.8 x 16 + 0.2 x 12 % to the layer. The largest of two normal deviates is 1 / sqrt(pi) in the mean.
  p.scalars["clocks.fluctuation"] = {0.0152, 0, Origin::measured, "test"};
  const auto moving = Profiles({p}).clock_law("bf16");
  CHECK(moving->fluctuation == doctest::Approx(0.1));
  CHECK(moving->lockstep(1, 1) == 1);
  CHECK(moving->lockstep(2, 2) == doctest::Approx(1 + 0.1 / std::sqrt(std::numbers::pi)).epsilon(1e-4));
  CHECK(moving->lockstep(8, 8) == doctest::Approx(1.1424).epsilon(1e-3));
  CHECK(moving->lockstep(1, 8) == 1);  // chips are alike: who meets only at a step's end meets the mean of many moments
  p.scalars["clocks.chips"] = {0.0114, 0, Origin::measured, "test"};
  const auto unlike = Profiles({p}).clock_law("bf16");
  CHECK(unlike->chips == doctest::Approx(0.075));
  CHECK(unlike->lockstep(1, 8) == doctest::Approx(1 + 0.75 * 0.1424).epsilon(1e-3));
  CHECK(unlike->lockstep(8, 8) == doctest::Approx(1 + 1.25 * 0.1424).epsilon(1e-3));
  CHECK(unlike->lockstep(8, 512) > unlike->lockstep(8, 8));
}

TEST_CASE("of NCCL's kernels over NVLink a share slows with the clock, of a network's none") {
  Profile p = fabricated();
  Clocks layer = *p.clocks_for("bf16");
  layer.rows = {{0.1, 1980, 200, 1, 1, 1}, {0.6, 1980, 660, 1, 1, 1}, {1.0, 1500, 690, 1.16, 1.25, 1.12}};
  p.clocks = {layer};
  const Load wires[] = {Load::ring, Load::peers};
  const Profiles without({p});
  for (const Load load : wires) CHECK(without.clock_law("bf16")->slowdown(load, 1) == 1);  // nobody measured it
  p.scalars["clocks.ring"] = {0.25, 0, Origin::measured, "test"};
  p.scalars["clocks.peers"] = {0.75, 0, Origin::measured, "test"};
  const Profiles profiles({p});
  const auto law = profiles.clock_law("bf16");
  CHECK(law->slowdown(Load::ring, 1) == doctest::Approx(1 + 0.25 * (1980. / 1500 - 1)));
  CHECK(law->slowdown(Load::peers, 1) == doctest::Approx(1 + 0.75 * (1980. / 1500 - 1)));
  CHECK(law->slowdown(Load::peers, 0.8) == doctest::Approx(1 + 0.75 * (1980. / 1740 - 1)));
  for (const Load load : wires) CHECK(law->slowdown(load, 0.3) == 1);
  CHECK(law->slowdown(Load::network, 1) == 1);
  for (const Load load : wires) CHECK(law->weight(load) == law->weight(Load::network));
}

TEST_CASE("clocks of one kind of kernels stand beside the layer's, and are merged and written on their own") {
  Profile p = fabricated();
  Clocks memory = *p.clocks_for("bf16");
  memory.kernels = "memory";
  memory.memory_share = 1;
  memory.rows = {{0.1, 1980, 170, 1, 1, 1}, {1.0, 1980, 620, 1, 1, 1.001}};
  Profile other = p;
  other.clocks = {memory};
  const Profile both = parse(to_json(merge({p, other})), "merged");
  REQUIRE(both.clocks_for("bf16", "memory") != nullptr);
  CHECK(both.clocks_for("bf16", "memory")->slowdown(Load::memory, 1.0) == doctest::Approx(1.001));
  CHECK(both.clocks_for("bf16", "memory")->memory_share == 1);
  CHECK(both.clocks_for("bf16")->kernels == "layer");
}

}  // namespace links_test
