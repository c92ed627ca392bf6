// Why the allocator reserves more than is allocated: a segment goes back to the device as a whole, so one live tensor
// pins all that is free beside it.
//
//   segment  |##fc1_output##|......free......|#lse#|....free....|     pinned by fc1_output and softmax_lse
//
// Free pages of an expandable segment go back one by one: nothing is pinned there. Looked at where reserved memory last
// grew to its peak: that request found no gap that was large enough.
#include <algorithm>
#include <array>
#include <deque>

#include "rewind.hpp"

namespace pipewright::memory {
namespace {

constexpr std::size_t listed_segments = 8;

/// One way to configure the allocator, followed beside others through the same walk.
struct Followed {
  explicit Followed(const AllocatorConfig& config) : replayer(config), rewind(replayer) {}
  Replayer replayer;
  Rewind rewind;  ///< marked where reserved memory last grew by more than a small segment
  std::int64_t peak = 0;
  bool eager = false;  ///< that was before CUDA graphs were captured
};

class Finder {
 public:
  Finder(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario, int rank)
      : stages_(stages),
        program_(program),
        asynchronous_(transfers_are_asynchronous(scenario)),
        plan_(offload::resolve(scenario, stages, program, rank)),
        rank_(rank) {}

  std::vector<Fragmentation> look(const std::vector<AllocatorConfig>& configs, Bytes device) const {
    std::deque<Followed> all(configs.begin(), configs.end());
    std::vector<std::array<Walker::Moment*, 2>> moments(configs.size());
    Walker* walking = nullptr;
    const Listener listener = [&](const Event& e) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        Followed& one = all[i];
        one.rewind.record(e, one.replayer);
        one.replayer(e);
        if (one.replayer.peak_reserved() - one.peak <= AllocatorConfig::small_segment) continue;
        one.peak = one.replayer.peak_reserved();
        one.rewind.mark();
        one.eager = walking->in_eager();
        *moments[i][one.eager ? 1 : 0] = {walking->part(one.eager).heap().events(), {}, {}, true};
      }
    };
    Walker walker(stages_, program_, plan_, rank_, asynchronous_, listener);
    walking = &walker;
    for (auto& of : moments)
      of = {&walker.part(false).watch(Walker::never), &walker.part(walker.in_eager()).watch(Walker::never)};
    walker.reach_second_step();
    walker.step();
    std::vector<Fragmentation> results;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Followed& one = all[i];
      auto& result = results.emplace_back();
      const auto& moment = *moments[i][one.eager ? 1 : 0];
      result.at = moment.place.empty() ? "the start" : moment.place;
      if (one.eager) result.at += ", before the graphs are captured";
      result.piece = moment.kernel;
      if (!one.rewind.marked()) continue;
      Replayer then = one.rewind.state();
      describe(one.rewind.event(), then, device - Bytes(then.graph_pool()), result);
      then(one.rewind.event());
      result.reserved = Bytes(then.reserved());
    }
    return results;
  }

 private:
  void describe(const Event& request, const Replayer& replayer, Bytes device, Fragmentation& result) const {
    Allocator then = replayer.allocator();
    result.owner = owner_name(stages_, request.owner);
    result.requested = request.bytes;
    result.allocated = Bytes(then.allocated());
    result.cached = Bytes(then.reserved() - then.allocated());
    result.largest_gap = Bytes(then.largest_free_block());
    then.limit(device.value);
    result.largest_allocation = Bytes(then.largest_allocation());
    std::vector<std::int64_t> pinned(owner_count(stages_));
    for (const auto& segment : then.snapshot()) {
      if (segment.small || segment.expandable || segment.used == 0 || segment.used == segment.bytes) continue;
      std::vector<std::int64_t> owners(owner_count(stages_));
      for (const auto& block : segment.blocks) {
        if (block.used) owners[replayer.owner_of(block.handle)] += block.bytes;
      }
      const std::int64_t free = segment.bytes - segment.used;
      for (std::size_t i = 0; i < owners.size(); ++i) {
        const double share = static_cast<double>(owners[i]) / static_cast<double>(segment.used);
        pinned[i] += static_cast<std::int64_t>(static_cast<double>(free) * share);
      }
      result.segments.push_back({Bytes(segment.bytes), Bytes(free), by_size(stages_, owners)});
    }
    result.pinned_by = by_size(stages_, pinned);
    std::stable_sort(result.segments.begin(), result.segments.end(),
                     [](const auto& a, const auto& b) { return a.free > b.free; });
    if (result.segments.size() > listed_segments) result.segments.resize(listed_segments);
  }

  const Stages& stages_;
  const schedule::Program& program_;
  const bool asynchronous_;
  const offload::Plan plan_;
  const int rank_;
};

}  // namespace

Fragmentations fragmentation(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                             int pp_rank, Bytes device) {
  const auto config = without_limit(allocator_config(scenario));
  std::vector<AllocatorConfig> configs = {config};
  if (!config.expandable_segments) configs.push_back(config), configs.back().expandable_segments = true;
  const auto found = Finder(stages, program, scenario, pp_rank).look(configs, device);
  return {found.front(), found.back()};
}

}  // namespace pipewright::memory
