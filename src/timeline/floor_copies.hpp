// What activation offload makes a rank's step take at least (time_floor.cpp), by the rules of offload/fine_grained.cpp
// and whole_layer.cpp, without following a program. Both engines have their copies to do; and the compute stream waits:
//
//   compute   |  forward  |loss|hook| a waits .. a |hook| b waits ....... b |    reloads of a pass begin with its
//   hooks: H2D                             [b ...........][c ................]          window and what is outside add
//   up
#pragma once

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "lines.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

class CopyFloor {
 public:
  CopyFloor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
            const profile::Profiles& profiles, const Prices& prices)
      : stages_(stages),
        config_(config),
        prices_(prices),
        gap_(static_cast<double>(nanoseconds(profiles.scalar("host.kernel_gap_us").value))),
        copies_(scenario, profiles),
        layers_(static_cast<std::size_t>(scenario.model.num_layers)),
        moving_(static_cast<std::size_t>(scenario.settings.cpu_offloading_num_layers)),
        fraction_(scenario.settings.activation_offload_fraction),
        whole_layer_(scenario.settings.cpu_offloading),
        fine_grained_(scenario.settings.fine_grained_activation_offloading && !stages.paged_stash &&
                      scenario.settings.delta_offload_bytes_across_pp_ranks == 0) {}

  /// Between the begin of a rank's first forward and the end of its last backward.
  double least(std::size_t rank) const {
    if (whole_layer_) return of_whole_layers(stages_.ranks[rank]);
    return fine_grained_ ? of_groups(static_cast<int>(rank)) : 0;
  }

 private:
  using Does = model::Step::Kind;
  struct Group {
    std::string_view name;
    double out = 0, in = 0;  ///< of its copies alone
    bool moves = true;
  };

  Group group(std::uint32_t piece, const model::OffloadGroup& moved) const {
    Group result{moved.name};
    for (const auto& move : moved.moves) {
      result.out += prices_.pieces[piece][move.out].time.ns;
      result.in += prices_.pieces[piece][move.in].time.ns;
    }
    return result;
  }

  /// Of kernels that every microbatch runs, on the compute stream of a cool part.
  double compute(std::uint32_t piece, const model::Step& step) const {
    if (step.kind != Does::launch || !step.runs(0) || !step.runs(config_.microbatches - 1)) return 0;
    const model::Kernel& kernel = stages_.pieces[piece].kernels[step.index];
    if (kernel.stream != model::Stream::compute || kernel.key.family.empty()) return 0;
    return gap_ + prices_.pieces[piece][step.index].time.ns / kernel.sm_share;
  }
  double compute(std::uint32_t piece, const std::vector<model::Step>& steps) const {
    double ns = 0;
    for (const auto& step : steps) ns += compute(piece, step);
    return ns;
  }

  // ---- Whole layers: no pipeline, a forward and its backward one after the other

  /// The compute stream waits for all copies out before the last layer's forward; those back begin after the backward
  /// of that layer and end before the first one's.
  double of_whole_layers(const model::Rank& rank) const {
    if (moving_ >= layers_) return 0;  // refused by a rule
    double out = 0, in = 0, before = 0, between = 0, after = 0, back_between = 0;
    std::size_t layer = 0;
    for (const auto index : rank.chunks.front().pieces) {
      const model::Piece& piece = stages_.pieces[index];
      const double forward = compute(index, piece.forward), backward = compute(index, piece.backward);
      if (piece.groups.empty()) {
        (layer == 0 ? before : after) += forward + backward;
        continue;
      }
      if (layer < moving_) {
        const Group moved = group(index, piece.groups.front());
        out += moved.out, in += moved.in;
      }
      const bool first = layer == 0, last = ++layer == layers_;
      (last ? after : between) += forward;
      (first ? before : last ? after : back_between) += backward;
    }
    const double waiting =
        before + after + std::max(between, copies_.ns(out, 0, true)) + std::max(back_between, copies_.ns(0, in, true));
    return config_.microbatches * (layer == layers_ ? waiting : copies_.ns(out, in, true));
  }

  // ---- Groups of modules

  /// Forwards that come before the backward of the same place in the order: with more of them no forward is followed
  /// by its own backward (FineGrained::moves), and what a backward reloads ahead is there.
  int ahead() const {
    return (config_.chunks.value_or(1) - 1) * schedule::group_size(config_) + (config_.ep_overlap ? 1 : 0);
  }

  /// A chunk's groups as learned(), fine_grained.cpp, leaves them; `keeps`: its backward may come next.
  std::vector<Group> groups(const model::Chunk& chunk, bool keeps) const {
    std::vector<Group> all;
    for (const auto index : chunk.pieces)
      for (const auto& one : stages_.pieces[index].groups) all.push_back(group(index, one));
    const auto eligible = std::ranges::count_if(all, [](const Group& one) { return one.out > 0; });
    auto kept = static_cast<std::size_t>(static_cast<double>(eligible) * (1 - fraction_));
    for (auto one = all.rbegin(); one != all.rend() && kept > 0; ++one)
      if (one->out > 0) one->moves = false, --kept;
    std::vector<std::string_view> seen;
    for (auto one = all.rbegin(); one != all.rend() && keeps; ++one)
      if (std::ranges::find(seen, one->name) == seen.end()) one->moves = false, seen.push_back(one->name);
    return all;
  }

  double of_groups(int rank) const {
    const auto& chunks = stages_.ranks[static_cast<std::size_t>(rank)].chunks;
    const int warmup = config_.stages == 1 ? 0 : schedule::warmup(config_, rank);
    const bool alone = warmup == 0 && chunks.size() == 1, far_ahead = warmup > ahead();
    double out = 0, in = 0, passes = 0, waiting = 0;  // of a microbatch
    std::map<std::string_view, Group> first;          // of each name one stays in the first backward pass
    std::vector<std::vector<Group>> all;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      for (const Group& one : all.emplace_back(groups(chunks[c], !far_ahead && c + 1 == chunks.size()))) {
        Group& most = first[one.name];
        most.out = std::max(most.out, one.out), most.in = std::max(most.in, one.in);
        if (one.moves) out += one.out, in += one.in;
      }
    }
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      double pass = 0;
      for (const auto index : chunks[c].pieces) {
        const model::Piece& piece = stages_.pieces[index];
        pass += compute(index, piece.forward) + compute(index, piece.backward);
      }
      passes += pass;
      // Every hook of a backward pass starts one reload at most, so none is ahead but as many as were kept.
      const bool every = std::ranges::all_of(all[c], [](const Group& one) { return one.moves; });
      const bool known = !config_.ep_overlap && (alone || (far_ahead && every));
      waiting += known ? std::max(pass, windowed(chunks[c], all[c], alone ? 0 : first.size())) : pass;
    }
    const double microbatches = config_.microbatches;
    double kept_out = 0, kept_in = 0;
    for (const auto& [name, one] : first) kept_out += one.out, kept_in += one.in;
    const double copying =
        copies_.ns(std::max(0.0, microbatches * out - kept_out), std::max(0.0, microbatches * in - kept_in), false);
    return config_.ep_overlap ? copying : std::max(copying, passes + (microbatches - 1) * waiting);
  }

  /// A chunk's forward and backward, of which all reloads but `ahead` begin after the first hook of the backward and
  /// end before the last wait.
  double windowed(const model::Chunk& chunk, const std::vector<Group>& all, std::size_t ahead) const {
    double outside = 0, window = 0, since = 0, in = 0, longest = 0;
    bool hooked = false;
    auto next = all.size();
    for (auto at = chunk.pieces.rbegin(); at != chunk.pieces.rend(); ++at) {
      const model::Piece& piece = stages_.pieces[*at];
      outside += compute(*at, piece.forward);
      next -= piece.groups.size();
      for (const auto& step : piece.backward) {
        (hooked ? since : outside) += compute(*at, step);
        if (step.kind == Does::reload_hook) hooked = true;
        if (step.kind == Does::reload_wait && hooked && all[next + step.index].moves) window += std::exchange(since, 0);
      }
    }
    for (const Group& one : all)
      if (one.moves) in += one.in, longest = std::max(longest, one.in);
    in = std::max(0.0, in - static_cast<double>(ahead) * longest);
    return outside + since + std::max(window, copies_.ns(0, in, false));
  }

  const model::Stages& stages_;
  const schedule::Config& config_;
  const Prices& prices_;
  double gap_;
  LeastCopies copies_;
  std::size_t layers_, moving_;
  double fraction_;
  bool whole_layer_, fine_grained_;
};

}  // namespace pipewright::timeline
