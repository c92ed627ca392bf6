#include "kept_gathers.hpp"

#include <algorithm>
#include <deque>
#include <ranges>

#include "pipewright/schedule.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::predict {
namespace {

constexpr double watchdog_us = 100e3;
// What a stream takes before the next call blocks: about a thousand launches (forums.developer.nvidia.com/t/68937),
// events and waits for them among them (t/220629).
constexpr std::size_t queued = 1000;
constexpr int events_of_collective = 4;  // recorded before and after it, waited for by either stream (c10d)
constexpr int most_microbatches = 8;     // by then a host is as far ahead as it gets

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
  double most() const { return most_; }

 private:
  struct Gather {
    double end_us, bytes;
  };

  void launch(const model::Kernel& kernel, const timeline::Price& price) {
    if (kernel.graphed) return;
    if (pacing_ != Pacing::queue) host_us_ += price.host_us;
    if (kernel.stream == model::Stream::compute) {
      if (ends_.size() >= queued) host_us_ = std::max(host_us_, ends_[ends_.size() - queued]);
      gpu_us_ = std::max(gpu_us_, host_us_) + static_cast<double>(price.time.ns) / 1e3;
      const int entries = kernel.launches + (kernel.link.empty() ? 0 : events_of_collective);
      ends_.insert(ends_.end(), static_cast<std::size_t>(entries), gpu_us_);
      while (!ends_.empty() && ends_.front() <= host_us_) ends_.pop_front();
    }
    if (kernel.kept == 0) return;
    gathers_.push_back({std::max(gpu_us_, host_us_), static_cast<double>(kernel.kept)});
    held_ += gathers_.back().bytes;
    while (gathers_.front().end_us + watchdog_us < host_us_) {
      held_ -= gathers_.front().bytes;
      gathers_.pop_front();
    }
    most_ = std::max(most_, held_);
  }

  const Pacing pacing_;
  double host_us_ = 0, gpu_us_ = 0, held_ = 0, most_ = 0;
  std::deque<double> ends_;  ///< of the launches that the stream has not run yet
  std::deque<Gather> gathers_;
};

Pacing pacing(const scenario::Scenario& scenario, const model::Stages& stages, const model::Rank& rank) {
  if (stages.ranks.size() == 1) return Pacing::own;
  if (!scenario.settings.overlap_p2p_comm) return Pacing::transfers;
  for (const auto& chunk : rank.chunks)
    for (const auto index : chunk.pieces)
      if (std::ranges::any_of(stages.pieces[index].forward,
                              [](const model::Step& step) { return step.kind == model::Step::Kind::synchronize; }))
        return Pacing::own;
  return Pacing::queue;
}

}  // namespace

model::Stages stages_of(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  auto stages = model::build(scenario, profiles.device());
  const bool keeps = std::ranges::any_of(stages.pieces, [](const model::Piece& piece) {
    return std::ranges::any_of(piece.kernels, [](const model::Kernel& kernel) { return kernel.kept > 0; });
  });
  if (!keeps) return stages;
  const auto prices = timeline::price(scenario, stages, profiles);
  const int microbatches = std::min(schedule::config_of(scenario).microbatches, most_microbatches);
  const auto owner = static_cast<std::uint32_t>(stages.owners.size());
  stages.owners.emplace_back("gathers that NCCL's watchdog holds");
  for (auto& rank : stages.ranks) {
    Ahead ahead(pacing(scenario, stages, rank));
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
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
    const double held = ahead.most();
    if (held > 0)
      rank.since_first_step.push_back(model::Tensor{owner, Bytes(static_cast<std::int64_t>(held)),
                                                    model::Stream::compute, model::Tensor::Home::allocator});
  }
  return stages;
}

}  // namespace pipewright::predict
