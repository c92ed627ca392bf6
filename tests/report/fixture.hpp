// A step small enough to check by eye: two ranks, one microbatch, a layer with two kernels forward and two backward, of
// which one is recomputed. Times in microseconds:
//
//   rank 0 compute |F a|F b|                              |rec|B a|  |adam|
//   rank 0 p2p             [0->1]                  [1->0]
//   rank 1 compute             ......|F a|F b|rec|B a|         ....  |adam|
//          0       100 200 300  250  350 450 550 650  750 ...
#pragma once

#include "pipewright/predict.hpp"

namespace pipewright::report {

inline constexpr std::int64_t us = 1000;

inline model::Kernel kernel(const char* name, bool recompute = false) {
  model::Kernel k;
  k.name = name;
  k.key = {"gemm.bf16.tn", {4096, 4096, 4096}};
  k.recompute = recompute;
  return k;
}

/// Nodes in time order, each with the predecessors that matter.
class GraphMaker {
 public:
  std::uint32_t add(timeline::Label label, std::int64_t start, std::int64_t end,
                    const std::vector<std::uint32_t>& after) {
    auto& graph = result.graph;
    for (const auto from : after) graph.edges.add({from, 0});
    graph.edges.end_row();
    graph.duration_ns.push_back((end - start) * us);
    graph.loads.push_back(profile::Load::matrix);
    graph.labels.push_back(label);
    result.times.start.push_back(start * us);
    result.times.end.push_back(end * us);
    return static_cast<std::uint32_t>(graph.size() - 1);
  }

  timeline::Result result;
};

inline timeline::Label compute(int rank, std::uint32_t instruction, std::uint32_t kernel_index) {
  timeline::Label label;
  label.rank = static_cast<std::uint16_t>(rank);
  label.instruction = instruction;
  label.set_kernel(0, kernel_index);
  return label;
}

inline timeline::Label adam(int rank) {
  timeline::Label label;
  label.rank = static_cast<std::uint16_t>(rank);
  label.phase = 2;
  label.set_kernel(timeline::Label::none, 0);
  return label;
}

inline timeline::Label p2p(int rank, timeline::NodeKind kind, std::uint32_t instruction, schedule::Part::Type type) {
  timeline::Label label;
  label.rank = static_cast<std::uint16_t>(rank);
  label.lane = timeline::Lane::p2p;
  label.kind = kind;
  label.instruction = instruction;
  label.set_part({type, 0, 0});
  return label;
}

inline predict::Run small_run() {
  using schedule::Kind;
  using timeline::NodeKind;
  using Type = schedule::Part::Type;
  predict::Run run;

  model::Piece layer;
  layer.name = "layer";
  layer.kernels = {kernel("qkv forward"), kernel("mlp.fc1 forward"), kernel("mlp.fc1 forward", true),
                   kernel("mlp.fc1 dgrad")};
  run.stages.pieces = {layer};
  run.stages.ranks.resize(2);
  for (auto& rank : run.stages.ranks) {
    rank.chunks.resize(1);
    rank.optimizer = {kernel("adam")};
  }

  const auto instruction = [](Kind kind, std::vector<Type> parts = {}) {
    schedule::Instruction i;
    i.kind = kind;
    for (const auto type : parts) i.parts.push_back({type, 0, 0});
    return i;
  };
  run.program.config.stages = 2;
  run.program.ranks.resize(2);
  run.program.ranks[0] = {1,
                          {instruction(Kind::forward), instruction(Kind::p2p_sync, {Type::send_next}),
                           instruction(Kind::p2p_sync, {Type::recv_next}), instruction(Kind::backward)}};
  run.program.ranks[1] = {0,
                          {instruction(Kind::p2p_sync, {Type::recv_prev}), instruction(Kind::forward),
                           instruction(Kind::backward), instruction(Kind::p2p_sync, {Type::send_prev})}};

  GraphMaker maker;
  maker.result.graph.ranks = 2;
  const auto f0 = maker.add(compute(0, 0, 0), 0, 100, {});
  const auto f1 = maker.add(compute(0, 0, 1), 100, 200, {f0});
  const auto receiving = maker.add(p2p(1, NodeKind::transfer_start, 0, Type::recv_prev), 10, 10, {});
  const auto sending = maker.add(p2p(0, NodeKind::transfer_start, 1, Type::send_next), 200, 200, {f1});
  maker.add(p2p(0, NodeKind::transfer, 1, Type::send_next), 200, 250, {sending, receiving});
  const auto arrived = maker.add(p2p(1, NodeKind::transfer, 0, Type::recv_prev), 200, 250, {receiving, sending});
  timeline::Label wait = compute(1, 0, 0);
  wait.kind = NodeKind::wait;
  const auto waited = maker.add(wait, 250, 250, {arrived});
  const auto g0 = maker.add(compute(1, 1, 0), 250, 350, {waited});
  const auto g1 = maker.add(compute(1, 1, 1), 350, 450, {g0});
  const auto g2 = maker.add(compute(1, 2, 2), 450, 550, {g1});
  const auto g3 = maker.add(compute(1, 2, 3), 550, 750, {g2});
  const auto back_posted = maker.add(p2p(0, NodeKind::transfer_start, 2, Type::recv_next), 260, 260, {});
  const auto back_sent = maker.add(p2p(1, NodeKind::transfer_start, 3, Type::send_prev), 750, 750, {g3});
  maker.add(p2p(1, NodeKind::transfer, 3, Type::send_prev), 750, 800, {back_sent, back_posted});
  const auto back = maker.add(p2p(0, NodeKind::transfer, 2, Type::recv_next), 750, 800, {back_posted, back_sent});
  const auto b2 = maker.add(compute(0, 3, 2), 800, 900, {back});
  const auto b3 = maker.add(compute(0, 3, 3), 900, 1100, {b2});
  maker.add(adam(0), 1100, 1200, {b3});
  maker.add(adam(1), 1100, 1200, {b3});
  run.timeline = std::move(maker.result);
  return run;
}

inline predict::Prediction small_prediction() {
  predict::Prediction p;
  p.scenario = "two-ranks";
  p.profile = "example";
  p.origins = {0.25, 0.75, 0};
  p.megatron_core = "0.19.0";
  p.forward_backward_ns = 1100 * us;
  p.optimizer_ns = 100 * us;
  p.step_ns = 1200 * us;
  p.interval_low_ns = 1170 * us;
  p.interval_high_ns = 1234567;
  p.tflops_per_gpu = 1.0 / 3;
  p.tokens_per_s_per_gpu = 4096 / 1.2e-3;
  p.ranks.resize(2);
  auto& first = p.ranks[0];
  first.account.busy = 600 * us;
  first.account.bubble = 550 * us;
  first.account.p2p = 50 * us;
  first.account.recompute = 100 * us;
  first.account.forward_backward_end = 1100 * us;
  first.account.end = 1200 * us;
  first.account.traced_busy = {{"comp", 600 * us}};
  first.account.traced_exposed = {{"p2p", 600 * us}};
  first.account.by_phase[0] = {.busy = 600 * us, .bubble = 550 * us, .p2p = 50 * us};
  first.walk.static_bytes = Bytes(10LL << 30);
  first.walk.peak_allocated = Bytes(31478602752);
  first.walk.peak_reserved = Bytes(32900120576);
  first.outside_allocator = Bytes(8LL << 30);
  first.walk.peak_at = "B 0.0";
  first.walk.peak_owners = {{"parameters", Bytes(20LL << 30)}, {"mlp.fc1_output", Bytes(10003766272)}};
  auto& second = p.ranks[1];
  second = first;
  second.pp_rank = 1;
  second.account.bubble = 200 * us;
  second.account.idle = 350 * us;
  second.walk.peak_reserved = Bytes(75LL << 30);
  second.fits = false;
  p.boundaries = {{0, 1, true, Bytes(33554432), 1, 50 * us, 50 * us, "F 0.0", {}},
                  {1, 0, false, Bytes(33554432), 1, 50 * us, 50 * us, "B 0.0", {}}};
  p.critical_path = {{"rank 0 F 0.0", 200 * us, timeline::Why::compute},
                     {"rank 1 F 0.0", 50 * us, timeline::Why::transfer},
                     {"rank 1 F 0.0", 200 * us, timeline::Why::compute}};
  p.levers = {{"nvlink twice as fast", 25 * us, 20 * us}};
  p.fits = false;
  p.memory_limit = Bytes(80LL << 30);
  p.memory_margin = Bytes(1LL << 30);
  p.notes = {"a note <with> markup & a \"quote\""};
  p.time_sources = {{"gemm.bf16.tn", "example, measured"}, {"adam", "example, derived"}};
  return p;
}

}  // namespace pipewright::report
