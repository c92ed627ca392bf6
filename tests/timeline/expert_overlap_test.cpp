// Expert-parallel overlap: two streams, two serial chains (reference 2.2-2.4), drawn a letter a microsecond.
//   A D M C   attention, dispatch, MLP, combine forward      a d m c   backward
//   n v       weight gradients of MLP and attention
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include "draw.hpp"
#include "fixture.hpp"

namespace expert_overlap_test {

using namespace pipewright;
using namespace pipewright::timeline;
using timeline::test::draw;
using timeline::test::Napkin;

namespace {

using Name = schedule::Node::Name;

struct Overlap {
  int stages = 1, microbatches = 2, layers = 1;
  std::optional<int> chunks;
  bool delayed = false, early = false, p2p = false;
  bool backward_on_communication_stream = false;
  double transfer_us = 0;
  Napkin napkin{};

  model::Stages model() const {
    model::Stages result;
    result.owners = {"nothing"};
    result.boundary_bytes = Bytes(1000);
    model::Piece layer;
    layer.name = "layer";
    layer.tensors.resize(4);
    const auto node = [&](Name name, const char* f, int f_us, const char* b, int b_us, const char* w, int w_us) {
      model::NodeSteps steps{name, {}, {}, {}};
      const bool all_to_all = name == Name::moe_dispatch || name == Name::moe_combine;
      const auto launch = [&](std::vector<model::Step>& list, const char* what, int us) {
        if (us == 0) return;
        model::Kernel kernel;
        kernel.name = what;
        kernel.key = {"gemm.bf16.tn", {us, 1, 1}};
        kernel.purpose = all_to_all ? model::Purpose::ep : model::Purpose::compute;
        list.push_back({model::Step::Kind::launch, static_cast<std::uint32_t>(layer.kernels.size())});
        layer.kernels.push_back(kernel);
      };
      launch(steps.forward, f, f_us);
      launch(steps.backward, b, delayed ? b_us - w_us : b_us);
      if (delayed) launch(steps.weight_gradient, w, w_us);
      layer.nodes.push_back(steps);
    };
    node(Name::pre_dispatch_computation, "A", 3, "a", 5, "v", 2);
    node(Name::moe_dispatch, "D", 2, "d", 2, "", 0);
    node(Name::mlp, "M", 3, "m", 6, "n", 3);
    node(Name::moe_combine, "C", 2, "c", 2, "", 0);
    model::Piece ends;  // embedding and head take no time
    ends.tensors.resize(4);
    for (const Name name : {Name::embed, Name::logits, Name::loss}) ends.nodes.push_back({name, {}, {}, {}});
    result.pieces = {layer, ends};
    for (int r = 0; r < stages; ++r) {
      model::Rank rank;
      for (int c = 0; c < chunks.value_or(1); ++c) {
        model::Chunk chunk;
        chunk.pieces.assign(static_cast<std::size_t>(layers), 0);
        chunk.pieces.push_back(1);
        chunk.layers.assign(chunk.pieces.size(), 0);
        rank.chunks.push_back(chunk);
      }
      result.ranks.push_back(rank);
    }
    return result;
  }

  schedule::Program program() const {
    schedule::Config config;
    config.stages = stages;
    config.microbatches = microbatches;
    config.chunks = chunks;
    config.overlap_p2p = p2p;
    config.batched = !p2p;
    config.ep_overlap = true;
    config.delay_wgrad_compute = delayed;
    config.ep_overlap_early_attn_memory_release = early;
    config.overlap_p2p_backward_on_comm_stream = backward_on_communication_stream;
    const std::vector<schedule::Layer> chunk(static_cast<std::size_t>(layers));
    config.layers.assign(static_cast<std::size_t>(stages), {static_cast<std::size_t>(chunks.value_or(1)), chunk});
    return schedule::build(config);
  }

  profile::Profiles profiles() const {
    auto list = napkin.profiles().all();
    auto& samples = list[0].samples["gemm.bf16.tn"];
    samples.clear();
    for (const int us : {2, 3, 5, 6}) samples.push_back({{us, 1, 1}, us * 1e3, 0, 10, profile::Origin::measured, ""});
    list[0].samples["send_recv.nvlink"] = {{{1000}, transfer_us * 1e3, 0, 10, profile::Origin::measured, ""}};
    return profile::Profiles(list);
  }

  Result simulate() const {
    Napkin machine = napkin;
    machine.stages = stages;
    machine.chunks = chunks;
    machine.overlap = p2p;
    machine.connections = "8";
    return timeline::simulate(machine.scenario(), model(), program(), profiles());
  }
};

}  // namespace

TEST_CASE("one stage, two microbatches: F 0, then F 1 with B 0, then B 1") {
  const Overlap one;
  const Result result = one.simulate();
  CHECK(draw(result, one.model(), 0, Lane::compute) == "AAA..MMM..AAAmmmmmmMMMaaaaa..mmmmmm..aaaaa");
  CHECK(draw(result, one.model(), 0, Lane::expert) == "...DD...CCcc.DD....dd.CC...cc......dd");
  const Account& account = result.ranks[0];
  CHECK(account.ep == 8000);  // dispatch and combine of F 0, combine and dispatch of B 1
  CHECK(account.busy == 34000);
  CHECK(account.bubble == 0);
  CHECK(result.forward_backward == 42000);
}

TEST_CASE("delayed weight gradients cover the backward dispatch") {
  Overlap one;
  one.delayed = true;
  const Result result = one.simulate();
  CHECK(draw(result, one.model(), 0, Lane::compute) == "AAA..MMM..AAAmmmnnnMMMaaavv..mmmnnnaaavv");
  CHECK(draw(result, one.model(), 0, Lane::expert) == "...DD...CCcc.DD.dd....CC...cc...dd");
}

TEST_CASE("early release of attention memory: dispatch backward and combine forward lose their cover") {
  Overlap one;
  one.early = true;
  const Result result = one.simulate();
  CHECK(draw(result, one.model(), 0, Lane::compute) == "AAA..MMM..AAAmmmmmm..aaaaaMMM....mmmmmm..aaaaa");
  CHECK(draw(result, one.model(), 0, Lane::expert) == "...DD...CCcc.DD....dd........CCcc......dd");
}

TEST_CASE("pull request 4268: the first attention runs before the wait for the gradient, so combine loses its cover") {
  Overlap one;
  one.backward_on_communication_stream = true;
  const Result result = one.simulate();
  CHECK(draw(result, one.model(), 0, Lane::compute) == "AAA..MMM..AAA..mmmmmmMMMaaaaa..mmmmmm..aaaaa");
  CHECK(draw(result, one.model(), 0, Lane::expert) == "...DD...CC...ccDD....dd.CC...cc......dd");
}

TEST_CASE("forward sends are waited for on the communication stream, not by computation") {
  Overlap two;
  two.stages = 2;
  two.chunks = 2;
  two.microbatches = 4;
  two.p2p = true;
  two.transfer_us = 4;
  const Result result = two.simulate();
  const auto program = two.program();
  int on_expert = 0, on_compute = 0;
  for (const Label& label : result.graph.labels) {
    if (label.kind != NodeKind::wait || label.piece() == Label::none) continue;
    if (label.part().type != schedule::Part::Type::send_next) continue;
    const auto& call = program.ranks[label.rank].instructions[label.instruction];
    if (call.kind == schedule::Kind::wait) ++(label.lane == Lane::expert ? on_expert : on_compute);
  }
  CHECK(on_expert > 0);
  CHECK(on_compute == 0);
}

TEST_CASE("properties: any overlapped pipeline ends, adds up, and is no shorter than its busiest stream") {
  CHECK(rc::check([] {
    Overlap any;
    any.stages = *rc::gen::inRange(1, 5);
    any.layers = *rc::gen::inRange(1, 4);
    if (any.stages > 1) any.chunks = *rc::gen::inRange(2, 4);
    any.microbatches = any.stages * *rc::gen::inRange(1, 4);
    any.delayed = *rc::gen::arbitrary<bool>();
    any.early = *rc::gen::arbitrary<bool>();
    any.p2p = any.stages == 2 || (any.stages > 1 && *rc::gen::arbitrary<bool>());
    any.backward_on_communication_stream = *rc::gen::arbitrary<bool>();
    any.transfer_us = *rc::gen::inRange(0, 20);
    const Result result = any.simulate();
    const auto step = result.forward_backward + result.optimizer;
    const std::int64_t chunk = any.microbatches * any.chunks.value_or(1) * any.layers;
    for (const Account& a : result.ranks) {
      RC_ASSERT(a.busy + a.bubble + a.idle + a.p2p + a.ep + a.host + a.tp + a.cp + a.dp + a.offload == step);
      RC_ASSERT(a.busy == chunk * 17000);
      RC_ASSERT(a.traced_busy.at("ep") == chunk * 8000);
    }
  }));
}

}  // namespace expert_overlap_test
