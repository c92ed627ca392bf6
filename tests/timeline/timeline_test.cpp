// Small pipelines whose step can be drawn by hand.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <numeric>
#include <random>

#include "fixture.hpp"

namespace timeline_test {

using namespace pipewright;
using namespace pipewright::timeline;
using timeline::test::ms;
using timeline::test::Napkin;

namespace {

std::int64_t total(const Account& a) {
  return a.busy + a.bubble + a.idle + a.p2p + a.tp + a.cp + a.ep + a.dp + a.offload + a.host;
}

void check_sums(const Result& result) {
  for (const Account& account : result.ranks) CHECK(total(account) == result.forward_backward + result.optimizer);
}

}  // namespace

TEST_CASE("1F1B without transfer times: the bubble formula, exactly") {
  // rank 0 |0|1|2|3|      b0 |4| b1 ...      step = (m + p - 1) (F + B)
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {1, 4, 8, 13}) {
      Napkin napkin;
      napkin.stages = p;
      napkin.microbatches = m;
      const Result result = napkin.simulate();
      CHECK(ms(result.forward_backward) == doctest::Approx((m + p - 1) * 3.0));
      check_sums(result);
      for (const Account& account : result.ranks) {
        CHECK(ms(account.busy) == doctest::Approx(m * 3.0));
        CHECK(account.p2p == 0);
        CHECK(account.host == 0);
      }
    }
}

TEST_CASE("interleaving divides the bubble by the number of chunks") {
  for (int v : {2, 4}) {
    Napkin napkin;
    napkin.chunks = v;
    napkin.overlap = true;
    napkin.forward_us = 1000.0 / v;
    napkin.backward_us = 2000.0 / v;
    const Result result = napkin.simulate();
    CHECK(ms(result.forward_backward) == doctest::Approx(8 * 3.0 + 3 * 3.0 / v));
    check_sums(result);
  }
}

TEST_CASE("two stages, one microbatch: every transfer is exposed, waiting for the peer is bubble") {
  // rank 0 |F|->            ->|B|      F 1 ms, B 2 ms, transfer 0.1 ms
  // rank 1     |F|B|->                 step = 1 + .1 + 1 + 2 + .1 + 2
  Napkin napkin;
  napkin.stages = 2;
  napkin.microbatches = 1;
  napkin.transfer_us = 100;
  const Result result = napkin.simulate();
  CHECK(ms(result.forward_backward) == doctest::Approx(6.2));
  check_sums(result);
  CHECK(ms(result.ranks[1].p2p) == doctest::Approx(0.2));  // its receive, and its send before the synchronisation
  CHECK(ms(result.ranks[1].bubble) == doctest::Approx(1.0));
  REQUIRE(result.boundaries.size() == 2);
  CHECK(result.boundaries[0].transfers == 1);
}

TEST_CASE("a receive that spins is busy P2P for a profiler, and exposed where nothing computes") {
  Napkin napkin;
  napkin.stages = 2;
  napkin.microbatches = 1;
  napkin.transfer_us = 100;
  const Result result = napkin.simulate();
  const Account& second = result.ranks[1];
  CHECK(ms(second.traced_busy.at("comp")) == doctest::Approx(3.0));
  CHECK(ms(second.traced_busy.at("p2p")) == doctest::Approx(1.1 + 0.1));
  CHECK(ms(second.traced_exposed.at("p2p")) == doctest::Approx(1.2));
}

TEST_CASE("a host slower than its kernels makes the step host-bound, and says so") {
  Napkin napkin;
  napkin.stages = 1;
  napkin.microbatches = 10;
  napkin.forward_us = 10;
  napkin.backward_us = 10;
  napkin.host_us = 50;
  const Result result = napkin.simulate();
  CHECK(ms(result.forward_backward) == doctest::Approx(20 * 0.05 + 0.01));
  CHECK(result.ranks[0].host > result.ranks[0].busy);
  check_sums(result);
}

TEST_CASE("a busier part runs slower: the clock follows the load") {
  Napkin napkin;
  napkin.stages = 1;
  auto profiles = napkin.profiles().all();
  profile::Clocks clocks;
  clocks.precision = "bf16";
  clocks.rows = {{0.0, 1980, 300, 1.0, 1.0, 1.0}, {1.0, 1500, 700, 1.2, 1.1, 1.0}};
  profiles[0].clocks = {clocks};
  profiles[0].scalars["clocks.window_ms"] = {5, 0, profile::Origin::measured, "test"};
  const Result result = simulate(napkin.scenario(), napkin.model(), napkin.program(), profile::Profiles(profiles));
  CHECK(ms(result.forward_backward) == doctest::Approx(24 * 1.2).epsilon(0.001));
  CHECK(result.slowdown[0] == doctest::Approx(1.2).epsilon(0.001));
  CHECK(result.duty[0] == doctest::Approx(1.0).epsilon(0.001));
}

TEST_CASE("NCCL's kernels over NVLink slow as the clock falls, in both engines; what a network decides does not") {
  const auto measured = [](double value) { return profile::Scalar{value, 0, profile::Origin::measured, "test"}; };
  struct Case {
    std::string family;
    double share;  ///< that grows as the clock falls
  };
  for (const auto& [family, share] : {Case{"all_to_all.nvlink", 0.75}, Case{"all_gather.nvlink", 0.25},
                                      Case{"send_recv.nvlink", 0}, Case{"all_to_all.infiniband", 0}}) {
    CAPTURE(family);
    Napkin napkin;
    napkin.stages = 1;
    auto profiles = napkin.profiles().all();
    profile::Clocks clocks;
    clocks.precision = "bf16";
    clocks.rows = {{0.0, 1980, 300, 1.0, 1.0, 1.0}, {0.001, 1500, 700, 1.2, 1.1, 1.0}, {1.0, 1500, 700, 1.2, 1.1, 1.0}};
    profiles[0].clocks = {clocks};
    profiles[0].scalars["clocks.window_ms"] = measured(5);
    profiles[0].scalars["clocks.peers"] = measured(0.75);
    profiles[0].scalars["clocks.ring"] = measured(0.25);
    model::Kernel exchange;
    exchange.name = "exchange";
    exchange.key = {family, {2, 1000}};
    if (family.starts_with("send_recv")) exchange.key.dims = {1000};
    exchange.purpose = model::Purpose::ep;
    profiles[0].samples[family] = {{exchange.key.dims, 500e3, 0, 10, profile::Origin::measured, ""}};
    auto stages = napkin.model();
    stages.pieces[0].kernels.push_back(exchange);
    stages.pieces[0].forward.push_back({model::Step::Kind::launch, 2});
    const profile::Profiles all(profiles);
    const auto exact = simulate(napkin.scenario(), stages, napkin.program(), all);
    const double pass = 3 * 1.2 + 0.5 * (1 + share * (1980. / 1500 - 1));
    CHECK(ms(exact.forward_backward) == doctest::Approx(8 * pass).epsilon(0.003));  // begins on a cool part
    const auto prices = price(napkin.scenario(), stages, all);
    const auto quick = estimate(napkin.scenario(), stages, napkin.program().config, all, prices);
    REQUIRE(quick.has_value());
    CHECK(static_cast<double>(quick->forward_backward) ==
          doctest::Approx(static_cast<double>(exact.forward_backward)).epsilon(0.01));
  }
  // By where the group stands and who exchanges.
  profile::Topology eight_a_node;
  model::Kernel kernel;
  kernel.key = {"all_to_all.nvlink", {8, 1000}};
  kernel.exchange.emplace().kind = profile::Exchange::Kind::all_to_all;
  kernel.exchange->ranks = 8;
  CHECK(load_of(kernel, eight_a_node) == profile::Load::peers);
  kernel.exchange->ranks = 16;
  CHECK(load_of(kernel, eight_a_node) == profile::Load::network);
  kernel.exchange->ranks = 8;
  kernel.exchange->library = profile::Exchange::Library::deepep;
  CHECK(load_of(kernel, eight_a_node) == profile::Load::network);
}

TEST_CASE("a kernel beside an NCCL kernel that waits is slower, only while both run") {
  // rank 1's asynchronous receives spin while it computes; without contention the step is known
  Napkin napkin;
  napkin.stages = 2;
  napkin.chunks = 2;
  napkin.overlap = true;
  auto profiles = napkin.profiles().all();
  const auto alone = simulate(napkin.scenario(), napkin.model(), napkin.program(), profile::Profiles(profiles));
  profiles[0].scalars["contention.matrix"].value = 1.25;
  const auto beside = simulate(napkin.scenario(), napkin.model(), napkin.program(), profile::Profiles(profiles));
  std::int64_t beside_any = 0;
  for (const Account& account : beside.ranks) {
    beside_any += account.traced_busy.at("p2p") - account.traced_exposed.at("p2p");
    const auto overlapped = account.traced_busy.at("p2p") - account.traced_exposed.at("p2p");
    const double plain = ms(alone.ranks[0].busy);
    CHECK(ms(account.busy) == doctest::Approx(plain + ms(overlapped) * 0.2).epsilon(0.01));
  }
  CHECK(beside_any > 0);
}

TEST_CASE("a product that leaves multiprocessors free loses to an NCCL kernel beside it what that holds beyond them") {
  std::mt19937 random(5);
  Napkin napkin;
  napkin.stages = 2;
  napkin.chunks = 2;
  napkin.overlap = true;
  auto profiles = napkin.profiles().all();
  profiles[0].device.multiprocessors = 132;
  const double plain =
      ms(simulate(napkin.scenario(), napkin.model(), napkin.program(), profile::Profiles(profiles)).ranks[0].busy);
  for (int draw = 0; draw < 40; ++draw) {
    const int left = 1 + static_cast<int>(random() % 32), held = static_cast<int>(random() % 40);
    CAPTURE(left);
    CAPTURE(held);
    auto scenario = napkin.scenario();
    scenario.environment["NVTE_EXT_MARGIN_SM"] = std::to_string(left);
    auto stages = napkin.model();
    for (auto& piece : stages.pieces)
      for (auto& kernel : piece.kernels) kernel.sm_share = (132.0 - left) / 132;
    profiles[0].scalars["contention.matrix"].value = 132.0 / (132 - held);
    const auto result = simulate(scenario, stages, napkin.program(), profile::Profiles(profiles));
    const double beside = (132.0 - left) / (132 - std::max(left, held));  // over the time alone
    for (const Account& account : result.ranks) {
      const double overlapped = ms(account.traced_busy.at("p2p") - account.traced_exposed.at("p2p"));
      CHECK(ms(account.busy) ==
            doctest::Approx(plain * 132 / (132 - left) + overlapped * (1 - 1 / beside)).epsilon(0.01));
    }
    const auto quick = estimate(scenario, stages, napkin.program().config, profile::Profiles(profiles),
                                price(scenario, stages, profile::Profiles(profiles)));
    REQUIRE(quick.has_value());
    CHECK(static_cast<double>(quick->forward_backward) ==
          doctest::Approx(static_cast<double>(result.forward_backward)).epsilon(0.01));
  }
}

TEST_CASE("beside a transfer over the network a kernel loses the multiprocessors of two channels, not NVLink's many") {
  Napkin napkin;
  napkin.stages = 2;
  napkin.chunks = 2;
  napkin.overlap = true;
  auto profiles = napkin.profiles().all();
  profiles[0].device.multiprocessors = 132;
  profiles[0].links.push_back({"infiniband", 0, 50, 0, profile::Origin::measured, "test"});
  const auto lost_ms = [&](std::int64_t gpus_per_node) {
    auto scenario = napkin.scenario();
    scenario.cluster.inter_node_link = "infiniband";
    scenario.cluster.gpus_per_node = gpus_per_node;
    const auto busy = [&](double contention) {
      profiles[0].scalars["contention.matrix"].value = contention;
      const auto result = simulate(scenario, napkin.model(), napkin.program(), profile::Profiles(profiles));
      return ms(result.ranks[0].busy) + ms(result.ranks[1].busy);
    };
    return busy(1.25) - busy(1);
  };
  CHECK(lost_ms(2) > 0.2);
  CHECK(lost_ms(1) == doctest::Approx(lost_ms(2) * (2.0 / 130) / 0.25).epsilon(0.1));
}

TEST_CASE("an edge may lag: run() is the longest path") {
  Graph graph;
  graph.ranks = 1;
  graph.duration_ns = {10, 5, 7};
  graph.edges.end_row();
  graph.edges.add({0, 3});
  graph.edges.end_row();
  graph.edges.add({0, 0});
  graph.edges.add({1, 2});
  graph.edges.end_row();
  graph.loads.resize(3, profile::Load::none);
  graph.labels.resize(3);
  Times times;
  run(graph, times);
  CHECK(times.start == std::vector<std::int64_t>{0, 13, 20});
  CHECK(times.end == std::vector<std::int64_t>{10, 18, 27});
}

TEST_CASE("properties: accounts add up; no step is shorter than its work or its longest rank") {
  CHECK(rc::check([] {
    Napkin napkin;
    napkin.stages = *rc::gen::inRange(1, 6);
    napkin.overlap = napkin.stages > 1 && *rc::gen::arbitrary<bool>();
    if (napkin.overlap) napkin.chunks = *rc::gen::inRange(2, 4);
    napkin.microbatches = napkin.stages * *rc::gen::inRange(1, 5);
    napkin.forward_us = *rc::gen::inRange(1, 2000);
    napkin.backward_us = *rc::gen::inRange(1, 2000);
    napkin.transfer_us = *rc::gen::inRange(0, 300);
    napkin.eager_bytes = *rc::gen::element(0, 1000);
    napkin.host_us = *rc::gen::inRange(0, 50);
    napkin.connections = *rc::gen::element(std::string("1"), std::string("8"));
    const Result result = napkin.simulate();
    const auto step = result.forward_backward + result.optimizer;
    const double work = napkin.microbatches * napkin.chunks.value_or(1) * (napkin.forward_us + napkin.backward_us);
    RC_ASSERT(ms(step) >= work / 1e3 - 1e-6);
    for (const Account& account : result.ranks) RC_ASSERT(total(account) == step);
    std::int64_t path = 0;
    for (const CriticalStep& part : result.critical_path) path += part.ns;
    RC_ASSERT(path == step);
  }));
}

}  // namespace timeline_test
