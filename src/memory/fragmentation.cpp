// Why the allocator reserves more than is allocated: a segment goes back to the device as a whole, so one live tensor
// pins all that is free beside it.
//
//   segment  |##fc1_output##|......free......|#lse#|....free....|     pinned by fc1_output and softmax_lse
//
// Free pages of an expandable segment go back one by one: nothing is pinned there. Looked at where reserved memory last
// grew to its peak: that request found no gap that was large enough.
#include "fragmentation.hpp"

#include <algorithm>

namespace pipewright::memory {
namespace {

constexpr std::size_t listed_segments = 8;

void describe(const Stages& stages, const Event& request, const Replayer& replayer, Bytes device,
              Fragmentation& result) {
  Allocator then = replayer.allocator();
  result.owner = owner_name(stages, request.owner);
  result.requested = replayer.asked(request);
  result.allocated = Bytes(then.allocated());
  result.cached = Bytes(then.reserved() - then.allocated());
  result.largest_gap = Bytes(then.largest_free_block());
  then.limit(device.value);
  result.largest_allocation = Bytes(then.largest_allocation());
  std::vector<std::int64_t> pinned(owner_count(stages));
  for (const auto& segment : then.snapshot()) {
    if (segment.small || segment.expandable || segment.used == 0 || segment.used == segment.bytes) continue;
    std::vector<std::int64_t> owners(owner_count(stages));
    for (const auto& block : segment.blocks) {
      if (block.used) owners[replayer.owner_of(block.handle)] += block.bytes;
    }
    const std::int64_t free = segment.bytes - segment.used;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const double share = static_cast<double>(owners[i]) / static_cast<double>(segment.used);
      pinned[i] += static_cast<std::int64_t>(static_cast<double>(free) * share);
    }
    result.segments.push_back({Bytes(segment.bytes), Bytes(free), by_size(stages, owners)});
  }
  result.pinned_by = by_size(stages, pinned);
  std::stable_sort(result.segments.begin(), result.segments.end(),
                   [](const auto& a, const auto& b) { return a.free > b.free; });
  if (result.segments.size() > listed_segments) result.segments.resize(listed_segments);
}

}  // namespace

Growth::Growth(const Replayer& replayer, Walker& walker)
    : replayer_(replayer),
      rewind_(replayer),
      walker_(walker),
      moments_{&walker.part(false).watch(Walker::never), &walker.part(walker.in_eager()).watch(Walker::never)} {}

void Growth::after() {
  if (replayer_.peak_reserved() - peak_ <= AllocatorConfig::small_segment) return;
  peak_ = replayer_.peak_reserved();
  rewind_.mark();
  eager_ = walker_.in_eager();
  walker_.part(eager_).notice(*moments_[eager_ ? 1 : 0]);
}

Fragmentation Growth::found(const Stages& stages, Bytes device) const {
  Fragmentation result;
  const Walker::Moment& moment = *moments_[eager_ ? 1 : 0];
  result.at = moment.place.empty() ? "the start" : moment.place;
  if (eager_) result.at += ", before the graphs are captured";
  result.piece = moment.kernel;
  if (!rewind_.marked()) return result;
  Replayer then = rewind_.state();
  describe(stages, rewind_.event(), then, device - Bytes(then.graph_pool()), result);
  then(rewind_.event());
  result.reserved = Bytes(then.reserved());
  return result;
}

}  // namespace pipewright::memory
