// Why the allocator reserves more than is allocated: a segment goes back to the device as a whole, so one live tensor
// pins all that is free beside it.
//
//   segment  |##fc1_output##|......free......|#lse#|....free....|     pinned by fc1_output and softmax_lse
//
// Free pages of an expandable segment go back one by one: nothing is pinned there. Looked at where reserved memory last
// grew to its peak: that request found no gap that was large enough.
#include <algorithm>

#include "replayer.hpp"

namespace pipewright::memory {
namespace {

constexpr std::size_t listed_segments = 8;
constexpr std::int64_t telling_growth = 2 << 20;  ///< of a small segment (allocator.cpp): one says nothing

class Finder {
 public:
  Finder(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario, int rank,
         const AllocatorConfig& config)
      : stages_(stages),
        program_(program),
        asynchronous_(transfers_are_asynchronous(scenario)),
        plan_(offload::resolve(scenario, stages, program, rank)),
        rank_(rank),
        config_(config) {}

  /// The event at which reserved memory last grew by more than a small segment.
  std::int64_t last_growth() const {
    Replayer replayer(config_);
    const Heap* heap = nullptr;
    std::int64_t peak = 0, event = 0;
    const Listener listener = [&](const Event& e) {
      replayer(e);
      if (replayer.allocator().peak_reserved() - peak <= telling_growth) return;
      peak = replayer.allocator().peak_reserved();
      event = heap->events();
    };
    Walker walker(stages_, program_, plan_, rank_, asynchronous_, listener);
    heap = &walker.heap();
    walker.reach_second_step();
    walker.step();
    return event;
  }

  Fragmentation look(std::int64_t event, Bytes device) const {
    Replayer replayer(config_);
    const Heap* heap = nullptr;
    Fragmentation result;
    bool over = false;
    const Listener listener = [&](const Event& e) {
      if (over) return;
      over = heap->events() == event && e.kind == Event::Kind::allocate;
      if (over) describe(e, replayer, device - Bytes(heap->graph_pool()), result);
      replayer(e);
      if (over) result.reserved = Bytes(replayer.allocator().reserved() + heap->graph_pool());
    };
    Walker walker(stages_, program_, plan_, rank_, asynchronous_, listener);
    heap = &walker.heap();
    walker.watch(event);
    walker.reach_second_step();
    walker.step();
    result.at = walker.place.empty() ? "the start" : walker.place;
    result.piece = walker.kernel;
    return result;
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
  const AllocatorConfig config_;
};

}  // namespace

Fragmentation fragmentation(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                            int pp_rank, bool expandable, Bytes device) {
  auto config = without_limit(allocator_config(scenario));
  config.expandable_segments |= expandable;
  const Finder finder(stages, program, scenario, pp_rank, config);
  return finder.look(finder.last_growth(), device);
}

}  // namespace pipewright::memory
