// The graph and its longest path, with Boost.Graph as oracle; what a longest path cannot do.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dag_shortest_paths.hpp>
#include <boost/graph/topological_sort.hpp>

#include "../../src/timeline/by_rank.hpp"
#include "fixture.hpp"
#include "pipewright/reading.hpp"

namespace graph_test {

using namespace pipewright;
using namespace pipewright::timeline;
using timeline::test::Napkin;

namespace {

Napkin any_napkin() {
  Napkin n;
  n.stages = *rc::gen::inRange(1, 6);
  if (n.stages > 1 && *rc::gen::arbitrary<bool>()) n.chunks = *rc::gen::inRange(2, 4);
  n.overlap = n.chunks.has_value() && *rc::gen::arbitrary<bool>();
  n.microbatches = n.stages * *rc::gen::inRange(1, 5);
  n.forward_us = *rc::gen::inRange(1, 2000);
  n.backward_us = *rc::gen::inRange(1, 2000);
  n.transfer_us = *rc::gen::inRange(0, 900);
  n.eager_bytes = *rc::gen::element(0, 1000);
  n.host_us = *rc::gen::inRange(0, 50);
  n.connections = *rc::gen::element(std::string("1"), std::string("8"));
  n.reads = *rc::gen::arbitrary<bool>();
  return n;
}

std::int64_t step_of(const Result& result) { return result.forward_backward + result.optimizer; }

}  // namespace

TEST_CASE("Boost.Graph finds the same order legal and the same longest path") {
  using Oracle = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property,
                                       boost::property<boost::edge_weight_t, std::int64_t>>;
  CHECK(rc::check([] {
    const Result result = any_napkin().simulate();
    const Graph& graph = result.graph;
    const auto source = graph.size();
    Oracle oracle(source + 1);
    for (std::uint32_t node = 0; node < graph.size(); ++node) {
      boost::add_edge(source, node, -graph.duration_ns[node], oracle);
      for (const auto [from, lag_ns] : graph.edges.of(node)) {
        RC_ASSERT(from < node);
        boost::add_edge(from, node, -(lag_ns + graph.duration_ns[node]), oracle);
      }
    }
    std::vector<std::size_t> order;
    boost::topological_sort(oracle, std::back_inserter(order));  // throws where there is a cycle
    RC_ASSERT(order.size() == graph.size() + 1);
    std::vector<std::int64_t> distance(source + 1);
    boost::dag_shortest_paths(oracle, source, boost::distance_map(distance.data()));
    for (std::uint32_t node = 0; node < graph.size(); ++node) RC_ASSERT(-distance[node] == result.times.end[node]);
  }));
}

TEST_CASE("rank by rank every node is visited once, in its order") {
  CHECK(rc::check([] {
    const Result result = any_napkin().simulate();
    const ByRank nodes(result.graph);
    std::vector<int> visits(result.graph.size());
    for (std::size_t rank = 0; rank < nodes.ranks(); ++rank) {
      std::size_t count = 0;
      std::int64_t last = -1;
      nodes.each(rank, [&](std::uint32_t node) {
        RC_ASSERT(result.graph.labels[node].rank == rank);
        RC_ASSERT(node > last);
        last = node, ++visits[node], ++count;
      });
      RC_ASSERT(count == nodes.size(rank));
    }
    RC_ASSERT(std::ranges::count(visits, 1) == std::ssize(visits));
  }));
}

TEST_CASE("no step is shorter than its critical path or its busiest stream; slack is what a node may lose") {
  CHECK(rc::check([] {
    const Result result = any_napkin().simulate();
    const Graph& graph = result.graph;
    std::int64_t path = 0;
    for (const CriticalStep& part : result.critical_path) path += part.ns;
    RC_ASSERT(path == step_of(result));
    std::vector<std::array<std::int64_t, lanes>> busy(static_cast<std::size_t>(graph.ranks));
    for (std::size_t node = 0; node < graph.size(); ++node)
      if (graph.labels[node].kind == NodeKind::kernel)
        busy[graph.labels[node].rank][static_cast<std::size_t>(graph.labels[node].lane)] += graph.duration_ns[node];
    for (const auto& rank : busy)
      for (const auto ns : rank) RC_ASSERT(step_of(result) >= ns);

    std::vector<std::int64_t> slack(graph.size(), -1);
    timeline::slack(graph, result.times, [&](std::uint32_t at, std::int64_t ns) { slack[at] = ns; });
    for (const auto ns : slack) RC_ASSERT(ns >= 0);
    const auto node = static_cast<std::size_t>(*rc::gen::inRange<std::size_t>(0, graph.size()));
    Graph slower = graph;
    slower.duration_ns[node] += slack[node];
    Times times;
    run(slower, times);
    RC_ASSERT(*std::max_element(times.end.begin(), times.end.end()) == step_of(result));
    ++slower.duration_ns[node];
    run(slower, times);
    RC_ASSERT(*std::max_element(times.end.begin(), times.end.end()) == step_of(result) + 1);
  }));
}

TEST_CASE("slack of a long run is told in pieces: the same as in one array") {
  Napkin n;
  n.microbatches = 800;
  n.transfer_us = 300;
  n.host_us = 20;
  const Result result = n.simulate();
  const Graph& graph = result.graph;
  REQUIRE(graph.size() > 20'000);
  std::vector<std::int64_t> latest(graph.size(), step_of(result));
  for (auto node = static_cast<std::uint32_t>(graph.size()); node-- > 0;)
    for (const auto [from, lag_ns] : graph.edges.of(node))
      latest[from] = std::min(latest[from], latest[node] - graph.duration_ns[node] - lag_ns);
  std::uint32_t expected = static_cast<std::uint32_t>(graph.size()), wrong = 0;
  slack(graph, result.times, [&](std::uint32_t node, std::int64_t ns) {
    wrong += node != --expected || ns != latest[node] - result.times.end[node];
  });
  CHECK(wrong == 0);
  CHECK(expected == 0);
}

// Megatron enqueues in a fixed order, so a transfer cannot overtake: the graph of a schedule does not depend on times,
// and a longest path never grows when a node shrinks. (Only a send that becomes eager changes the graph: below.)
TEST_CASE("a faster link or host is never slower") {
  CHECK(rc::check([] {
    Napkin n = any_napkin();
    const auto before = step_of(n.simulate());
    n.transfer_us /= 2;
    const auto faster_link = step_of(n.simulate());
    RC_ASSERT(faster_link <= before);
    n.host_us /= 2;
    RC_ASSERT(step_of(n.simulate()) <= faster_link);
  }));
}

TEST_CASE("a host that reads a loss is not ahead any more: what it launches next starts a launch later") {
  CHECK(rc::check([] {
    Napkin n;
    n.stages = 1;
    n.microbatches = *rc::gen::inRange(1, 9);
    n.forward_us = *rc::gen::inRange(100, 2000);
    n.backward_us = *rc::gen::inRange(100, 2000);
    n.host_us = *rc::gen::inRange(0, 100);
    const double work = n.microbatches * (n.forward_us + n.backward_us);
    RC_ASSERT(n.simulate().forward_backward == std::llround(1e3 * (n.host_us + work)));
    n.reads = true;  // the check of the bucket takes as long as a forward kernel
    const double launches = n.microbatches * n.host_us;
    RC_ASSERT(n.simulate().forward_backward == std::llround(1e3 * (n.host_us + work + launches + n.forward_us)));
  }));
}

TEST_CASE("what the host reads makes no step shorter, in any pipeline") {
  CHECK(rc::check([] {
    Napkin n = any_napkin();
    n.reads = false;
    const auto without = step_of(n.simulate());
    n.reads = true;
    RC_ASSERT(step_of(n.simulate()) >= without);
  }));
}

TEST_CASE("every F has one B, and both run once for each microbatch and chunk") {
  CHECK(rc::check([] {
    const Napkin n = any_napkin();
    const auto program = n.program();
    for (const auto& rank : program.ranks) {
      std::map<std::pair<int, int>, int> forward, backward;
      for (const auto& i : rank.instructions) {
        if (i.kind == schedule::Kind::forward) ++forward[{i.microbatch, i.chunk}];
        if (i.kind == schedule::Kind::backward) ++backward[{i.microbatch, i.chunk}];
      }
      RC_ASSERT(forward == backward);
      RC_ASSERT(forward.size() == static_cast<std::size_t>(n.microbatches * n.chunks.value_or(1)));
      for (const auto& [op, times] : forward) RC_ASSERT(times == 1);
    }
  }));
}

TEST_CASE("phases add up to the step, and 1F1B's bubble lies in warm-up and cool-down") {
  CHECK(rc::check([] {
    Napkin n = any_napkin();
    const Result result = n.simulate();
    for (const Account& account : result.ranks) {
      Split sum;
      for (const Split& phase : account.by_phase) sum += phase;
      RC_ASSERT(sum.busy == account.busy);
      RC_ASSERT(sum.bubble == account.bubble);
      RC_ASSERT(sum.p2p == account.p2p);
      RC_ASSERT(sum.host == account.host);
    }
    for (const Boundary& boundary : result.boundaries) {
      std::int64_t exposed = 0;
      for (const auto& phase : boundary.by_phase)
        for (const auto ns : phase) exposed += ns;
      RC_ASSERT(exposed == boundary.exposed);
    }
  }));
  Napkin n;
  n.microbatches = 16;
  const Result result = n.simulate();
  for (int r = 0; r < 4; ++r) {  // warm-up of rank r: 3 - r forwards
    CHECK(result.ranks[r].by_phase[0].busy == (3 - r) * 1000000);
    CHECK(result.ranks[r].by_phase[2].busy == (3 - r) * 2000000);
    CHECK(result.ranks[r].by_phase[1].busy == (16 - (3 - r)) * 3000000);
  }
}

TEST_CASE("levers: what the longest path holds is worth its share, simulated again") {
  Napkin n;
  n.stages = 1;
  const Result result = n.simulate();  // 8 x (1 + 2) ms of two families, nothing else
  const auto found = levers(result, n.scenario(), n.model(), n.program(), n.profiles());
  REQUIRE(found.size() == 2);
  CHECK(found[0].what == "gemm.bf16.nn 10 % faster");
  CHECK(found[0].gain_ns == 1600000);
  CHECK(found[0].on_path_ns == 1600000);
  CHECK(found[1].gain_ns == 800000);
}

TEST_CASE("shapes are exchanged before every transfer, and the device is synchronised") {
  Napkin n;
  n.stages = 2;
  n.microbatches = 1;
  n.transfer_us = 100;
  auto scenario = n.scenario();
  scenario.settings.variable_seq_lengths = true;
  auto profiles = n.profiles().all();
  profiles[0].samples["send_recv.nvlink"].push_back({{24}, 10e3, 0, 10, profile::Origin::measured, ""});
  profiles[0].scalars["host.launch_and_synchronize_us"].value = 5;
  const auto plain = n.simulate();
  const auto with = simulate(scenario, n.model(), n.program(), profile::Profiles(profiles));
  // F 1, shapes .01, sync .005, tensor .1, sync .005, F 1, B 2, the same back, B 2
  CHECK(with.forward_backward == 6000000 + 2 * (10000 + 5000 + 100000 + 5000) + 5000);
  CHECK(plain.forward_backward == 6200000);
}

namespace {

/// One stage of two layers, and a collective of data-parallel ranks that takes 1 ms.
struct TwoLayers {
  Napkin n;
  model::Stages stages;
  model::Kernel bucket;

  TwoLayers(const char* name, model::Stream stream) {
    n.stages = 1;
    n.microbatches = 1;
    stages = n.model();
    chunk().pieces = {0, 0};
    chunk().layers = {0, 1};
    bucket.name = name;
    bucket.key = {"gemm.bf16.tn", {1, 1, 1}};
    bucket.stream = stream;
    bucket.purpose = model::Purpose::dp;
  }
  model::Chunk& chunk() { return stages.ranks[0].chunks[0]; }
  Result simulate(const schedule::Program& program) const {
    return timeline::simulate(n.scenario(), stages, program, n.profiles());
  }
};

}  // namespace

TEST_CASE("buckets are reduced as soon as the backward of their last layer is over; without buckets, at the end") {
  // compute    |F|B: layer 1|layer 0|       gradient   ........|bucket of layer 1|bucket of layer 0|
  TwoLayers two("gradient reduction", model::Stream::gradient);
  const auto program = two.n.program();
  two.chunk().gradient_sync = {two.bucket, two.bucket};
  CHECK(two.simulate(program).forward_backward == 6000000 + 2000000);
  two.chunk().gradient_sync_layers = {1, 0};
  const Result result = two.simulate(program);
  CHECK(result.forward_backward == 6000000 + 1000000);
  CHECK(result.ranks[0].dp == 1000000);
}

TEST_CASE("parameters are gathered a bucket ahead, by align_param_gather without chunks when they are needed") {
  // parameter  |layer 0|layer 1|          compute   ........|F layer 0|F layer 1|B
  TwoLayers two("parameter all-gather", model::Stream::parameter);
  two.chunk().parameter_gather = {two.bucket, two.bucket};
  two.chunk().parameter_gather_layers = {1, 0};
  auto program = two.n.program();
  CHECK(two.simulate(program).forward_backward == 6000000 + 1000000);
  program.config.align_param_gather = true;
  CHECK(two.simulate(program).forward_backward == 6000000 + 2000000);
}

TEST_CASE("GPUs that share a port send one after the other") {
  Napkin n;
  n.stages = 2;
  n.microbatches = 1;
  auto scenario = n.scenario();
  scenario.settings.tensor_model_parallel_size = 2;
  scenario.cluster.num_gpus = 4;
  scenario.cluster.gpus_per_node = 2;
  scenario.cluster.inter_node_link = "infiniband";
  auto profiles = n.profiles().all();
  profiles[0].links.push_back({"infiniband", 0, 1, 0, profile::Origin::measured, "test"});  // 1 GB/s: 1000 B in 1 us
  const auto step = [&] {
    return simulate(scenario, n.model(), n.program(), profile::Profiles(profiles)).forward_backward;
  };
  CHECK(step() == 6000000 + 2 * 1000);
  profiles[0].links.back().gpus_per_port = 2;
  CHECK(step() == 6000000 + 2 * 2000);
  profiles[0].links.back().gpus_per_port = 8;  // but a stage has only two
  CHECK(step() == 6000000 + 2 * 2000);
}

// A measured run of 4 stages x 2 chunks x 8 microbatches hung with this option. Its process group was given a device,
// so that both directions of both neighbours share one stream.
TEST_CASE("overlap_p2p_comm_warmup_flush on one communicator deadlocks, and the cycle is told") {
  Napkin n;
  n.chunks = 2;
  n.overlap = true;
  n.eager_bytes = 1000;
  auto config = n.program().config;
  config.warmup_flush = true;
  const auto program = schedule::build(config);
  auto scenario = n.scenario();
  CHECK_NOTHROW(simulate(scenario, n.model(), program, n.profiles()));
  scenario.software.process_group_device_id = true;
  CHECK_THROWS_WITH_AS(simulate(scenario, n.model(), program, n.profiles()),
                       doctest::Contains("the schedule deadlocks: rank"), UsageError);
}

}  // namespace graph_test
