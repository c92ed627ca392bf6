// Every piece's work at least, and which layers of experts run in pairs: what time_floor.cpp adds up.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "floor_copies.hpp"
#include "floor_work.hpp"
#include "lines.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

class FloorPieces {
 public:
  FloorPieces(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
              const profile::Profiles& profiles, const Prices& prices)
      : stages_(stages),
        config_(config),
        prices_(prices),
        law_(clock_law(scenario, profiles)),
        gap_(static_cast<double>(nanoseconds(profiles.scalar("host.kernel_gap_us").value))),
        host_(scenario, profiles),
        copies_(scenario, stages, config, profiles, prices) {
    for (std::size_t i = 0; i < stages.pieces.size(); ++i) pieces_.push_back(passes(i));
    for (std::size_t i = 0; config.ep_overlap && i < stages.pieces.size(); ++i) nodes_.push_back(nodes_of(i));
  }

  /// Of the layers, for other pipelines. Precondition: so many microbatches that what only some run is none of it.
  LayerWorks works() const {
    LayerWorks works;
    works.kinds = pieces_;
    works.nodes = nodes_;
    for (std::size_t i = 0; i < stages_.pieces.size(); ++i) works.of_experts.push_back(of_experts(i));
    for (const auto& rank : stages_.ranks) {
      for (const auto& chunk : rank.chunks)
        for (std::size_t n = 0; n < chunk.pieces.size(); ++n) {
          if (chunk.layers[n] < 0) continue;
          const auto layer = static_cast<std::size_t>(chunk.layers[n]);
          if (works.kind.size() <= layer) works.kind.resize(layer + 1);
          works.kind[layer] = chunk.pieces[n];
        }
    }
    works.pairs = pairs();
    return works;
  }

 protected:
  /// What pull request 4268 defers runs at another place.
  bool of_pull_request() const {
    return config_.overlap_p2p_backward_on_comm_stream || config_.overlap_p2p_with_transformer_layer_wgrad ||
           config_.overlap_p2p_wgrad_delayed_layer_number != 1;
  }

  double duration(const model::Kernel& kernel, const Price& price) const {
    return gap_ + price.time.ns / kernel.sm_share;
  }

  /// `part`: of the microbatches that run it; what not all run is in no chain.
  void add(PassWork& pass, const model::Kernel& kernel, const Price& price, bool node, bool expert,
           double part = 1) const {
    pass.host += part * us_to_ns(price.host_us);
    if (kernel.key.family.empty()) return;
    const double ns = part * duration(kernel, price);
    const bool own = kernel.stream == model::Stream::compute;
    if (part == 1 && (own || (node && kernel.stream == model::Stream::communication))) pass.chain += ns;
    if (kernel.stream == model::Stream::communication) pass.communication += ns;
    if (own && expert) pass.experts += ns;
    if (own && !expert) pass.compute.add(work(kernel, price, ns));
  }

  static Work work(const model::Kernel& kernel, const Price& price, double ns) {
    Work work;
    const bool computes = kernel.stream == model::Stream::compute && kernel.purpose == model::Purpose::compute;
    if (const auto kind = kind_of(price.load); computes && kind)
      work.by_kind[*kind] = ns;
    else
      work.fixed = ns;
    return work;
  }

  /// Of steps on a stream of their own; what not all microbatches run is left out.
  Work way(std::size_t piece, const std::vector<model::Step>& steps) const {
    using Does = model::Step::Kind;
    LongestWay way;
    for (const model::Step& step : steps) {
      if (!runs_always(step)) continue;
      if (step.kind == Does::launch) {
        const model::Kernel& kernel = stages_.pieces[piece].kernels[step.index];
        const Price& price = prices_.pieces[piece][step.index];
        const bool on_gpu = !kernel.key.family.empty();
        way.launch(kernel.stream, on_gpu ? work(kernel, price, duration(kernel, price)) : Work{},
                   us_to_ns(price.host_us), on_gpu);
      } else if (step.kind == Does::wait) {
        way.wait(static_cast<model::Stream>(step.index));
      } else if (step.kind == Does::synchronize) {
        way.synchronize(static_cast<model::Stream>(step.index));
      }
    }
    return way.own();
  }

  /// ... or all that is waited for.
  void add_way(PassWork& pass, std::size_t piece, const std::vector<model::Step>& steps) const {
    pass.alike = way(piece, steps);
    pass.way = pass.alike.cool() > pass.compute.cool() ? pass.alike : pass.compute;
  }

  double part_of_microbatches(const model::Step& step) const {
    const int runs = std::min(step.before_microbatch, config_.microbatches) - std::max(step.from_microbatch, 0);
    return std::max(0, runs) / static_cast<double>(config_.microbatches);
  }
  bool runs_always(const model::Step& step) const { return part_of_microbatches(step) == 1; }

  BothWork passes(std::size_t index) const {
    const model::Piece& piece = stages_.pieces[index];
    BothWork result;
    const auto run = [&](PassWork& pass, const std::vector<model::Step>& steps, bool expert) {
      PassWork one;
      for (const model::Step& step : steps)
        if (step.kind == model::Step::Kind::launch)
          add(one, piece.kernels[step.index], prices_.pieces[index][step.index], !piece.nodes.empty(), expert,
              part_of_microbatches(step));
      if (!expert) add_way(one, index, steps);
      pass.add(one);
    };
    run(result.forward, piece.forward, false);
    run(result.backward, piece.backward, false);
    for (const auto& node : piece.nodes) {
      const bool expert = schedule::Node::communicates(node.name);
      run(result.forward, node.forward, expert);
      run(result.backward, node.backward, expert);
      run(result.backward, node.weight_gradient, expert);
      if (node.name == schedule::Node::Name::loss) continue;
      result.forward.host += host_.forward_node;
      result.backward.host += host_.backward_node;
      // What the pull request defers comes after all else.
      if (config_.delay_wgrad_compute && !node.weight_gradient.empty() && !of_pull_request())
        result.backward.host += host_.backward_node;
    }
    return result;
  }

  bool of_experts(std::size_t piece) const {
    return std::ranges::any_of(stages_.pieces[piece].nodes, [](const model::NodeSteps& node) {
      return node.name == schedule::Node::Name::moe_dispatch;
    });
  }

  LayerNodes nodes_of(std::size_t index) const {
    const model::Piece& piece = stages_.pieces[index];
    LayerNodes result;
    for (const auto& node : piece.nodes) {
      const auto at = LayerNodes::of(node.name);
      const auto add_to = [&](PassWork& all, const std::vector<model::Step>& steps) {
        PassWork pass;
        for (const model::Step& step : steps)
          if (step.kind == model::Step::Kind::launch && runs_always(step) &&
              piece.kernels[step.index].stream == model::Stream::compute)
            add(pass, piece.kernels[step.index], prices_.pieces[index][step.index], true, false);
        add_way(pass, index, steps);
        all.add(pass);
      };
      add_to(result.forward[at], node.forward);
      add_to(result.backward[at], node.backward);
      add_to(result.weight[at], node.weight_gradient);
    }
    return result;
  }

  /// Of a forward and a backward of a layer of experts in a microbatch, those that surely meet another such in their
  /// call, on all ranks and however the layers are split over them: a rank's layers of experts less its others, which
  /// may stand on the same rank.
  double pairs() const {
    if (!config_.ep_overlap || of_pull_request()) return 0;
    double pairs = 0;
    for (const auto& rank : stages_.ranks)
      for (const auto& chunk : rank.chunks)
        for (std::size_t n = 0; n < chunk.pieces.size(); ++n)
          if (chunk.layers[n] >= 0) pairs += of_experts(chunk.pieces[n]) ? 1 : -1;
    return std::max(0.0, pairs);
  }

  const model::Stages& stages_;
  const schedule::Config& config_;
  const Prices& prices_;
  std::optional<profile::ClockLaw> law_;
  double gap_;
  HostCalls host_;
  CopyFloor copies_;
  std::vector<BothWork> pieces_;
  std::vector<LayerNodes> nodes_;  ///< of every piece, under expert-parallel overlap
};

}  // namespace pipewright::timeline
