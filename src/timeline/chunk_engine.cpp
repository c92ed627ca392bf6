// The chunk-level engine: the time of a step without a node for every kernel. What a rank issues between two places of
// its program is one max-plus map a piece (collapse.hpp); transfers join ranks as in the exact engine
// (chunk_transfers.hpp), copies of activation offload begin and are waited for where they are there (chunk_copies.hpp),
// and both engines follow the same reading of the program (pipewright/follow.hpp).
//
// In the steady state every rank repeats the same instructions with every group of microbatches (N with interleaving, 1
// without), so the program is run for as many microbatches as warm-up, some groups and cool-down need, and for more
// until all ranks keep one pace: each further group adds what the last one did (rhythm.hpp). The clock follows the load
// in the window before a piece (evaluated for the middle of it); NCCL kernels beside a piece are those of the round
// before.
#include <algorithm>
#include <cmath>
#include <deque>

#include "chunk_rank.hpp"
#include "copies.hpp"
#include "lines.hpp"
#include "pace.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {
namespace {

bool expressible(const scenario::Scenario& scenario, const schedule::Config& config) {
  if (config.ep_overlap && config.layers.empty()) return false;  // combined calls that are not written out
  return !scenario::exchanges_shapes(scenario);                  // which synchronises before every transfer
}

class Engine {
 public:
  Engine(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
         const profile::Profiles& profiles, const Prices& prices, const Changes& changes)
      : stages_(stages),
        collapser_(scenario, profiles, changes.host),
        lines_(collapse(stages, prices, collapser_, config.microbatches)),
        copies_(price_copies(stages, prices, nanoseconds(profiles.scalar("host.kernel_gap_us").value))),
        contention_(scenario, profiles),
        transfers_(scenario, stages, config, profiles, changes),
        machine_{scenario, stages, program_, collapser_, lines_, plans_, transfers_} {
    const double factor = replayed_host_factor(scenario, profiles);
    const auto ns = [&](const char* name) {
      return changes.host * static_cast<double>(nanoseconds(factor * profiles.scalar(name).value));
    };
    machine_.p2p_call = ns("host.p2p_call_us");
    machine_.synchronize = ns("host.launch_and_synchronize_us");
    machine_.forward_begin = ns("host.forward_begin_us");
    machine_.forward_end = ns("host.forward_end_us");
    machine_.backward_begin = ns("host.backward_begin_us");
    machine_.backward_end = ns("host.backward_end_us");
    // Not every profile has seen expert-parallel overlap.
    const auto optional_ns = [&](const char* name) {
      return changes.host * static_cast<double>(nanoseconds(factor * profiles.find_scalar(name).value_or(0)));
    };
    machine_.forward_node = optional_ns("host.forward_node_us");
    machine_.backward_node = optional_ns("host.backward_node_us");
    machine_.one_queue = one_hardware_queue(scenario);
  }

  Rhythm rhythm(double same) const {
    std::vector<Beats> beats;
    for (const ChunkRank& rank : ranks_) beats.push_back(rank.beats());
    return timeline::rhythm(program_.config, beats, same);
  }

  /// The first round of a schedule runs without anything beside; false: it deadlocks.
  bool begin(const schedule::Config& config) {
    program_ = schedule::build(config);
    plans_.assign(stages_.ranks.size(), {});
    if (std::ranges::any_of(stages_.pieces, [](const model::Piece& piece) { return !piece.groups.empty(); }))
      for (std::size_t r = 0; r < plans_.size(); ++r)
        plans_[r] = {copies_, offload::resolve(machine_.scenario, stages_, program_, static_cast<int>(r), true)};
    ranks_.clear();
    return one_round();
  }
  /// Further rounds, until nothing changes.
  bool settle() {
    double before = 0;
    for (int round = 0; round < most_rounds && !settled(before, end_, 3e-4); ++round) {
      before = end_;
      if (!one_round()) return false;
    }
    return true;
  }
  Estimate estimate() const { return {std::llround(schedule_end_), std::llround(end_ - schedule_end_), operations_}; }

 private:
  bool one_round() {
    transfers_.reset(program_.config.microbatches);
    std::vector<ChunkBefore> before(stages_.ranks.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) before[r] = ranks_[r].leave();
    slow_copies(before);
    ranks_.clear();
    for (std::size_t r = 0; r < before.size(); ++r)
      ranks_.emplace_back(machine_, static_cast<int>(r), std::move(before[r]));
    for (bool moved = true; moved;) {
      moved = false;
      for (ChunkRank& rank : ranks_)
        while (rank.step()) moved = true;
    }
    for (const ChunkRank& rank : ranks_)
      if (!rank.finished()) return false;  // the exact engine says why
    finish();
    return true;
  }

  /// What copies take under the times of the round before.
  void slow_copies(std::vector<ChunkBefore>& before) const {
    if (ranks_.empty() || !contention_.slows()) return;
    std::vector<std::array<std::size_t, 2>> near(before.size());  // copies join their streams in the order of time
    for (std::size_t r = 0; r < before.size(); ++r)
      for (std::size_t way = 0; way < 2; ++way) {
        std::ranges::fill(near, std::array<std::size_t, 2>{});
        const auto& copies = before[r].copies[way];
        for (std::size_t copy = 0; copy < copies.size(); ++copy)
          CopyContention::settle(before[r].copies_slower[way], copy,
                                 contention_.factor(r, way, [&](std::size_t rank, std::size_t other) {
                                   return share_of(copies[copy], before[rank].copies[other], near[rank][other]);
                                 }));
      }
  }

  /// Gradient finalisation and the optimizer.
  void finish() {
    for (ChunkRank& rank : ranks_) rank.drain();
    run_joined(&RankLines::finalize);
    schedule_end_ = 0;
    for (ChunkRank& rank : ranks_) schedule_end_ = std::max(schedule_end_, rank.synchronize_device());
    run_joined(&RankLines::optimizer);
    transfers_.each(
        [&](int rank, double start, double end, bool crosses) { ranks_[rank].network(start, end, crosses); });
    end_ = 0;
    operations_ = 0;
    for (const ChunkRank& rank : ranks_) {
      end_ = std::max(end_, rank.end());
      operations_ += rank.operations();
    }
  }

  void run_joined(Joined RankLines::*which) {
    std::size_t joints = 0;
    for (const auto& lines : lines_.ranks) joints = std::max(joints, (lines.*which).joints.size());
    for (std::size_t j = 0; j <= joints; ++j) {
      double last = 0;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const Joined& lines = lines_.ranks[r].*which;
        if (j < lines.between.size()) ranks_[r].work(lines.between[j]);
        if (j < lines.joints.size()) last = std::max(last, ranks_[r].arrival(lines.calls[j]));
      }
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const Joined& lines = lines_.ranks[r].*which;
        if (j >= lines.joints.size()) continue;
        ranks_[r].meet(last);
        ranks_[r].work(lines.joints[j]);
      }
    }
  }

  const model::Stages& stages_;
  const Collapser collapser_;
  const ChunkLines lines_;
  const CopyPrices copies_;
  const CopyContention contention_;
  std::vector<CopyPlan> plans_;  ///< by rank
  ChunkTransfers transfers_;
  schedule::Program program_;
  ChunkMachine machine_;
  std::deque<ChunkRank> ranks_;
  double schedule_end_ = 0, end_ = 0;
  std::int64_t operations_ = 0;
};

}  // namespace

std::optional<Estimate> estimate(const scenario::Scenario& scenario, const model::Stages& stages,
                                 const schedule::Config& config, const profile::Profiles& profiles,
                                 const Prices& prices, const Changes& changes, bool glance) {
  if (!expressible(scenario, config)) return std::nullopt;
  auto few = shortened(config);
  Engine engine(scenario, stages, config, profiles, prices, changes);
  for (bool glanced = false;;) {
    if (!engine.begin(few)) return std::nullopt;
    const int left = config.microbatches - few.microbatches;
    // Whether the pace is settled shows without what runs beside, too.
    if (!glanced && left > 0 && !engine.rhythm(same_alone).settled) {
      few = prolonged(few, config.microbatches);
      continue;
    }
    glanced = true;
    if (!glance && !engine.settle()) return std::nullopt;
    auto result = engine.estimate();
    if (left == 0) return result;
    if (const auto rhythm = engine.rhythm(same_beside); glance || rhythm.settled) {
      result.forward_backward += std::llround(rhythm.growth * left / rhythm.apart);
      return result;
    }
    few = prolonged(few, config.microbatches);
  }
}

}  // namespace pipewright::timeline
