#include "kept_gathers.hpp"

#include <algorithm>
#include <deque>
#include <ranges>

#include "pipewright/schedule.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::predict {
namespace {

constexpr double watchdog_us = 100e3;
/// Events recorded before and after a collective, each waited for by the other stream (c10d), queue as launches do
/// (forums.developer.nvidia.com/t/220629); those for which no other stream waits do not (launch_queue_depth).
constexpr int events_of_collective = 4;
constexpr int most_microbatches = 8;  // by then a host is as far ahead as it gets

/// How a rank's host goes with its GPU.
enum class Pacing : std::uint8_t {
  own,        ///< at its own speed, to where it reads a result
  transfers,  ///< likewise; transfers between stages end with a synchronisation of the device
  queue       ///< nothing makes it wait, and its GPU waits for other stages: ahead by all that the driver queues
};

/// A rank's host and its compute stream, microbatch after microbatch.
class Ahead {
 public:
  explicit Ahead(Pacing pacing) : pacing_(pacing) {}

  void begin_chunk() {
    if (pacing_ == Pacing::transfers) host_us_ = std::max(host_us_, gpu_us_);
  }
  void run(const model::Piece& piece, const timeline::Prices::List& prices, const std::vector<model::Step>& steps) {
    for (const auto& step : steps) {
      if (step.before_microbatch <= 1) continue;
      if (step.kind == model::Step::Kind::synchronize) host_us_ = std::max(host_us_, gpu_us_);
      if (step.kind != model::Step::Kind::launch) continue;
      launch(piece.kernels[step.index], prices[step.index]);
    }
  }
  /// Expert-parallel overlap; what dispatches and combines runs beside the compute stream.
  void run_nodes(const model::Piece& piece, const timeline::Prices::List& prices, bool backward) {
    const auto run_node = [&](const model::NodeSteps& node) {
      beside_ = schedule::Node::communicates(node.name);
      run(piece, prices, backward ? node.backward : node.forward);
      if (backward) run(piece, prices, node.weight_gradient);
      beside_ = false;
    };
    if (backward)
      std::ranges::for_each(piece.nodes | std::views::reverse, run_node);
    else
      std::ranges::for_each(piece.nodes, run_node);
  }
  double most_held() const { return most_held_; }
  std::int64_t most_launched() const { return most_launched_; }

 private:
  static constexpr std::size_t depth = model::launch_queue_depth;
  struct Entry {
    double end_us;
    bool launch;
  };
  struct Gather {
    double end_us, bytes;
  };

  void queue(int entries, bool launch) {
    ends_.insert(ends_.end(), static_cast<std::size_t>(entries), {gpu_us_, launch});
    if (launch) launched_ += entries;
  }

  void launch(const model::Kernel& kernel, const timeline::Price& price) {
    if (kernel.graphed) return;
    if (pacing_ != Pacing::queue) host_us_ += price.host_us;
    if (kernel.stream == model::Stream::compute && !beside_) {
      if (ends_.size() >= depth) host_us_ = std::max(host_us_, ends_[ends_.size() - depth].end_us);
      gpu_us_ = std::max(gpu_us_, host_us_) + static_cast<double>(price.time.ns) / 1e3;
      queue(kernel.launches, true);
      if (!kernel.link.empty()) queue(events_of_collective, false);
      while (!ends_.empty() && ends_.front().end_us <= host_us_) {
        launched_ -= ends_.front().launch;
        ends_.pop_front();
      }
      most_launched_ = std::max(most_launched_, launched_);
    }
    if (kernel.kept == 0) return;
    gathers_.push_back({std::max(gpu_us_, host_us_), static_cast<double>(kernel.kept)});
    held_ += gathers_.back().bytes;
    while (gathers_.front().end_us + watchdog_us < host_us_) {
      held_ -= gathers_.front().bytes;
      gathers_.pop_front();
    }
    most_held_ = std::max(most_held_, held_);
  }

  const Pacing pacing_;
  bool beside_ = false;
  double host_us_ = 0, gpu_us_ = 0, held_ = 0, most_held_ = 0;
  std::int64_t launched_ = 0, most_launched_ = 0;  ///< and not run yet
  std::deque<Entry> ends_;                         ///< of what the stream has not run yet
  std::deque<Gather> gathers_;
};

Pacing pacing(const scenario::Scenario& scenario, const model::Stages& stages, const model::Rank& rank) {
  if (stages.ranks.size() == 1) return Pacing::own;
  if (!scenario.settings.overlap_p2p_comm) return Pacing::transfers;
  const auto waits = [](const std::vector<model::Step>& steps) {
    return std::ranges::find(steps, model::Step::Kind::synchronize, &model::Step::kind) != steps.end();
  };
  for (const auto& chunk : rank.chunks)
    for (const auto index : chunk.pieces)
      if (const auto& piece = stages.pieces[index];
          waits(piece.forward) || std::ranges::any_of(piece.nodes, waits, &model::NodeSteps::forward))
        return Pacing::own;
  return Pacing::queue;
}

}  // namespace

model::Stages stages_of(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  auto stages = model::build(scenario, profiles.device());
  const bool late = std::ranges::any_of(stages.pieces, [](const model::Piece& piece) {
    return std::ranges::any_of(piece.kernels, [](const model::Kernel& kernel) { return kernel.kept > 0; }) ||
           std::ranges::any_of(piece.tensors, [](const model::Tensor& tensor) { return tensor.exchanged; });
  });
  if (!late) return stages;
  const auto prices = timeline::price(scenario, stages, profiles);
  const int microbatches = std::min(schedule::config_of(scenario).microbatches, most_microbatches);
  const auto owner = static_cast<std::uint32_t>(stages.owners.size());
  stages.owners.emplace_back("gathers that NCCL's watchdog holds");
  for (auto& rank : stages.ranks) {
    Ahead ahead(pacing(scenario, stages, rank));
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      for (const auto& chunk : rank.chunks) {  // of one microbatch forward beside another's backward
        auto other = chunk.pieces.rbegin();
        for (const auto index : chunk.pieces) {
          ahead.run_nodes(stages.pieces[*other], prices.pieces[*other], true);
          ahead.run_nodes(stages.pieces[index], prices.pieces[index], false);
          ++other;
        }
      }
      for (const auto& chunk : rank.chunks) {
        ahead.begin_chunk();
        for (const auto index : chunk.pieces)
          ahead.run(stages.pieces[index], prices.pieces[index], stages.pieces[index].forward);
      }
      for (const auto& chunk : rank.chunks | std::views::reverse) {
        ahead.begin_chunk();
        for (const auto index : chunk.pieces | std::views::reverse)
          ahead.run(stages.pieces[index], prices.pieces[index], stages.pieces[index].backward);
      }
    }
    rank.launches_ahead = std::min(ahead.most_launched(), model::launch_queue_depth);
    const double held = ahead.most_held();
    if (held > 0)
      rank.since_first_step.push_back(model::Tensor{owner, Bytes(static_cast<std::int64_t>(held)),
                                                    model::Stream::compute, model::Tensor::Home::allocator});
  }
  return stages;
}

}  // namespace pipewright::predict
