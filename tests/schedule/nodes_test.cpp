// Combined calls written out: the nodes of every chunk come in order and once, and around them stands the same program.
#include <doctest/doctest.h>

#include <map>

#include "generate.hpp"
#include "pipewright/base.hpp"

namespace nodes_test {

using namespace pipewright;
using namespace pipewright::schedule;

namespace {

using Words = std::vector<std::string>;

/// Two microbatches, two stages of two chunks with two layers; the steady call of the last rank.
Words steady_call(const Config& config) {
  const Words words = text(build(config).ranks[1]);
  const auto begin = std::find(words.begin(), words.end(), "{F2.1|B1.1");
  REQUIRE(begin != words.end());
  return {begin, std::find(begin, words.end(), "}") + 1};
}

Config two_by_two() {
  Config c;
  c.stages = 2;
  c.chunks = 2;
  c.microbatches = 3;
  c.group_size = 3;
  c.overlap_p2p = true;
  c.batched = false;
  c.ep_overlap = true;
  c.delay_wgrad_compute = true;
  c.layers.assign(2, std::vector<std::vector<Layer>>(2, std::vector<Layer>(2)));
  return c;
}

}  // namespace

TEST_CASE("pull request 4268: gradient transfer on the communication stream, two layers' weight gradients behind it") {
  Config c = two_by_two();
  c.from_0_18 = false;
  c.overlap_p2p_backward_on_comm_stream = true;
  c.overlap_p2p_with_transformer_layer_wgrad = true;
  c.overlap_p2p_wgrad_delayed_layer_number = 2;
  CHECK(steady_call(c) ==
        Words{"{F2.1|B1.1",
              "Wrp2.1",
              "f2.1:0:pre_dispatch_computation",  // before the wait for the gradient (none on the last stage)
              "b1.1:logits",
              "b1.1:1:moe_combine@c",
              "b1.1:1:mlp",
              "f2.1:0:moe_dispatch@c",
              "b1.1:1:moe_dispatch@c",
              "f2.1:0:mlp",
              "f2.1:0:moe_combine@c",
              "b1.1:1:pre_dispatch_computation",
              "b1.1:0:moe_combine@c",
              "f2.1:1:pre_dispatch_computation",
              "b1.1:0:mlp",
              "f2.1:1:moe_dispatch@c",
              "b1.1:0:moe_dispatch@c",
              "f2.1:1:mlp",
              "f2.1:1:moe_combine@c",
              "b1.1:0:pre_dispatch_computation",
              "A[rn0.0 sp1.1]@c",
              "Wsp0.1@c",
              "w1.1:1:mlp",
              "w1.1:1:pre_dispatch_computation",
              "w1.1:0:mlp",
              "w1.1:0:pre_dispatch_computation",
              "f2.1:logits",
              "}"});
}

TEST_CASE("early release of attention memory: its backward before the forward's experts") {
  Config c = two_by_two();
  c.ep_overlap_early_attn_memory_release = true;
  const Words words = steady_call(c);
  const auto at = [&](const char* word) { return std::find(words.begin(), words.end(), word) - words.begin(); };
  CHECK(at("b1.1:1:moe_dispatch@c") + 1 == at("b1.1:1:pre_dispatch_computation"));
  CHECK(at("b1.1:1:pre_dispatch_computation") + 1 == at("f2.1:0:mlp"));
}

TEST_CASE("written out or not, it is the same program") {
  CHECK(rc::check("same program", [] {
    const Config detailed = any_detailed_config();
    RC_LOG() << detailed;
    Config plain = detailed;
    plain.layers.clear();
    const Program a = build(detailed), b = build(plain);
    for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
      // Waits stand before the combined instruction but inside the call that is written out: compare without it.
      RankProgram around, calls, around_plain, calls_plain;
      for (Instruction i : a.ranks[rank].instructions) {
        if (i.kind == Kind::combined_begin) {
          if (i.microbatch == no_microbatch) {
            i.kind = Kind::backward;
            i.microbatch = i.backward_microbatch, i.chunk = i.backward_chunk;
          } else {
            i.kind = i.backward_microbatch == no_microbatch ? Kind::forward : Kind::combined;
          }
          calls.instructions.push_back(i);
        } else if (i.kind != Kind::node && i.kind != Kind::combined_end) {
          around.instructions.push_back(i);
        }
      }
      for (const Instruction& i : b.ranks[rank].instructions) {
        const bool call = i.kind == Kind::forward || i.kind == Kind::backward || i.kind == Kind::combined;
        (call ? calls_plain : around_plain).instructions.push_back(i);
      }
      RC_ASSERT(text(calls) == text(calls_plain));
      RC_ASSERT(text(around, true, true) == text(around_plain, true, true));
    }
  }));
}

TEST_CASE("nodes come in the order of the network, once") {
  CHECK(rc::check("node order", [] {
    const Config c = any_detailed_config();
    RC_LOG() << c;
    const Program program = build(c);
    const int last_chunk = c.chunks.value_or(1) - 1;
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      std::map<std::tuple<Node::Pass, int, int>, std::vector<std::pair<int, Node::Name>>> seen;
      for (const Instruction& i : program.ranks[rank].instructions)
        if (i.kind == Kind::node) seen[{i.node.pass, i.microbatch, i.chunk}].emplace_back(i.node.layer, i.node.name);
      for (int m = 0; m < c.microbatches; ++m)
        for (int chunk = 0; chunk <= last_chunk; ++chunk) {
          std::vector<std::pair<int, Node::Name>> forward;
          std::size_t weights = 0;
          if (rank == 0 && chunk == 0) forward.emplace_back(-1, Node::Name::embed);
          const auto& layers = c.layers[rank][static_cast<std::size_t>(chunk)];
          for (int l = 0; l < static_cast<int>(layers.size()); ++l) {
            const Layer& layer = layers[static_cast<std::size_t>(l)];
            forward.emplace_back(l, Node::Name::pre_dispatch_computation);
            if (layer.moe) forward.emplace_back(l, Node::Name::moe_dispatch);
            forward.emplace_back(l, Node::Name::mlp);
            if (layer.moe) forward.emplace_back(l, Node::Name::moe_combine);
            if (layer.mtp) forward.emplace_back(l, Node::Name::mtp_post_process);
            weights += 2;
          }
          if (rank + 1 == program.ranks.size() && chunk == last_chunk) {
            forward.emplace_back(-1, Node::Name::logits);
            forward.emplace_back(-1, Node::Name::loss);
          }
          RC_ASSERT((seen[{Node::Pass::forward, m, chunk}] == forward));
          std::reverse(forward.begin(), forward.end());
          RC_ASSERT((seen[{Node::Pass::backward, m, chunk}] == forward));
          RC_ASSERT((seen[{Node::Pass::weight_gradient, m, chunk}].size() == (c.delay_wgrad_compute ? weights : 0)));
        }
    }
  }));
}

}  // namespace nodes_test
