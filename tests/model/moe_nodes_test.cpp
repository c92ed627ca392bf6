// Nodes of expert-parallel overlap: what of a mixture's layer runs where, and graphs beside it.
#include <algorithm>

#include "large_experts.hpp"
#include "pipewright/effects.hpp"

namespace moe_nodes_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::NodeSteps;
using model::Piece;
using model::Step;
using Name = schedule::Node::Name;

namespace {

const NodeSteps& node(const Piece& piece, Name name) {
  const auto found =
      std::find_if(piece.nodes.begin(), piece.nodes.end(), [&](const NodeSteps& steps) { return steps.name == name; });
  REQUIRE(found != piece.nodes.end());
  return *found;
}

std::vector<std::string> names(const Piece& piece, const std::vector<Step>& steps) {
  std::vector<std::string> result;
  for (const auto& step : steps) {
    if (step.kind == Step::Kind::launch) result.push_back(piece.kernels[step.index].name);
  }
  return result;
}

}  // namespace

TEST_CASE("nodes of expert-parallel overlap: what runs where, weight gradients apart, input projection first") {
  const auto stages =
      test::build(with(large_experts(), {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true",
                                         "create_attention_mask_in_dataloader=false"}));
  const auto& piece = layer(stages);
  CHECK(piece.forward.empty());
  REQUIRE(piece.nodes.size() == 4);
  CHECK(launched(piece, node(piece, Name::moe_dispatch).forward, "all_to_all") == 2);
  CHECK(launched(piece, node(piece, Name::moe_combine).forward, "all_to_all") == 1);
  CHECK(launched(piece, node(piece, Name::mlp).forward, "gemm.grouped") == 16);
  CHECK(launched(piece, node(piece, Name::mlp).backward, "gemm.grouped.bf16.nt") == 0);
  CHECK(names(piece, node(piece, Name::mlp).weight_gradient) ==
        std::vector<std::string>{"experts.fc2 wgrad", "experts.fc1 wgrad"});
  CHECK(names(piece, node(piece, Name::pre_dispatch_computation).weight_gradient) ==
        std::vector<std::string>{"attention.qkv wgrad", "attention.proj wgrad"});
  CHECK(node(piece, Name::moe_combine).weight_gradient.empty());
  // The last layer of the last stage ends with the final norm, so that the head has none.
  const auto& chunk = stages.ranks[1].chunks[1];
  const auto& last = stages.pieces[chunk.pieces[chunk.pieces.size() - 2]];
  CHECK(names(last, node(last, Name::moe_combine).forward).back() == "head norm forward");
  CHECK(names(stages.pieces[chunk.pieces.back()], stages.pieces[chunk.pieces.back()].nodes.front().forward)[1] ==
        "head forward");
}

// fine_grained_callables.py, _te_cuda_graph_replay; common/utils.py, _BackwardDWWrapper: weight gradients of what a
// graph holds are a graph of their own, the others run before it.
TEST_CASE("graphs beside expert-parallel overlap hold parts of one node, and delayed weight gradients of their own") {
  for (const char* modules : {"[attn]", "[moe_router]", "[moe_router, moe_preprocess]", "[attn, moe_router]",
                              "[attn, moe_router, moe_preprocess]"})
    for (const char* delayed : {"delay_wgrad_compute=false", "delay_wgrad_compute=true"})
      for (const char* shared :
           {"moe_shared_expert_intermediate_size=none", "moe_shared_expert_intermediate_size=2048"}) {
        const std::string all = std::string(modules) + " " + delayed + " " + shared;
        CAPTURE(all);
        const std::string named = std::string("cuda_graph_modules=") + modules;
        const auto s = with(large_experts(), {"overlap_moe_expert_parallel_comm=true", delayed, shared,
                                              "create_attention_mask_in_dataloader=false", "use_te_rng_tracker=true",
                                              "cuda_graph_impl=transformer_engine", named.c_str()});
        CHECK_NOTHROW(scenario::refuse_unmodelled(s));
        const auto stages = test::build(s);
        check_all(stages);
        const auto& piece = layer(stages);
        const bool attention = named.find("attn") != named.npos, router = named.find("router") != named.npos;
        const bool wgrad = std::string(delayed).ends_with("true"),
                   shares = s.model.moe_shared_expert_intermediate_size.has_value();
        const auto& graphed = node(piece, Name::pre_dispatch_computation);
        const auto replays = [&](const std::vector<model::Step>& steps) {
          return std::ranges::count_if(names(piece, steps), [](const auto& n) {
            return n.starts_with("CUDA graph f") || n == "CUDA graph backward" || n.ends_with("weight gradients");
          });
        };
        CHECK(replays(graphed.forward) == 1);
        CHECK(replays(graphed.backward) == 1);
        CHECK(replays(graphed.weight_gradient) == (wgrad && (attention || shares)));
        for (const auto& other : piece.nodes)
          if (other.name != Name::pre_dispatch_computation)
            CHECK(replays(other.forward) + replays(other.backward) + replays(other.weight_gradient) == 0);
        for (const auto& kernel : piece.kernels) {
          CAPTURE(kernel.name);
          if (kernel.name.ends_with("accumulation")) continue;  // a hook on what the graph has returned
          if (kernel.name.starts_with("attention.qkv")) CHECK(kernel.graphed == attention);
          if (kernel.name.starts_with("moe router ")) CHECK(kernel.graphed == router);
          if (kernel.name.starts_with("shared_experts.fc")) CHECK(kernel.graphed == router);
          if (kernel.name.starts_with("experts.fc")) CHECK(!kernel.graphed);
        }
      }
  CHECK_THROWS_AS(scenario::refuse_unmodelled(
                      with(large_experts(), {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true",
                                             "gradient_accumulation_fusion=false", "cuda_graph_impl=transformer_engine",
                                             "cuda_graph_modules=[attn]"})),
                  UsageError);
}

}  // namespace moe_nodes_test
