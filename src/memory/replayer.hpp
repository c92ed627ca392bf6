// Drives the allocator with the events of a walk, and knows whose block is whose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/memory.hpp"
#include "pipewright/scenario/derived.hpp"
#include "walker.hpp"

namespace pipewright::memory {

/// Batched transfers end in torch.cuda.synchronize (reference 1.7).
inline bool transfers_are_asynchronous(const scenario::Scenario& scenario) {
  return !(scenario::batch_p2p_comm(scenario) && scenario.settings.batch_p2p_sync);
}

inline std::size_t owner_count(const Stages& stages) { return stages.owners.size() + own_names.size(); }

/// For replays that ask what a process would like to reserve.
AllocatorConfig without_limit(AllocatorConfig config);

/// Owners with what they have, largest first; `bytes` by owner.
std::vector<OwnerBytes> by_size(const Stages& stages, const std::vector<std::int64_t>& bytes);
std::string owner_name(const Stages& stages, std::uint32_t owner);

/// Caught where there is a limit; without one the model is larger than any address range, and the input is wrong.
struct OutOfMemory : UsageError {
  explicit OutOfMemory(const Event& asked)
      : UsageError({}, "memory", "a tensor of " + format_bytes(asked.bytes) + ": no device holds that"), event(asked) {}
  Event event;
};

/// The allocator, and beside it the private pool of CUDA graphs: it takes from the same device and keeps what it has.
class Replayer {
 public:
  /// `drawn`: of the process whose rows of routing are drawn, of a walk that tells both.
  explicit Replayer(const AllocatorConfig& config, bool drawn = false)
      : allocator_(config), graph_pool_(config), device_(config.device_bytes), drawn_(drawn) {}

  /// Throws OutOfMemory.
  void operator()(const Event& event) {
    if (event.kind == Event::Kind::empty_cache) {
      allocator_.empty_cache();
      eager_peak_ = std::max(eager_peak_, allocator_.peak_allocated());
      allocator_.reset_peaks();
    } else if (event.graph) {
      in_graph_pool(event);
    } else if (event.kind == Event::Kind::allocate) {
      const auto handle = allocator_.allocate(asked(event).value, static_cast<std::int32_t>(event.stream));
      if (!handle) throw OutOfMemory(event);
      grow(blocks_, event.block) = {*handle, 0};
      grow(owners_, *handle) = event.owner;
    } else if (event.kind == Event::Kind::retire) {
      auto& block = blocks_[event.block];
      allocator_.record_stream(block.handle, elsewhere);
      block.event = allocator_.free(block.handle);
    } else if (const auto& block = blocks_[event.block]; block.event > 0) {
      allocator_.passed(elsewhere, block.event);
    } else {
      allocator_.free(block.handle);
    }
    peak_reserved_ = std::max(peak_reserved_, reserved());
  }
  std::int64_t graph_pool() const { return graph_pool_.reserved(); }
  std::int64_t reserved() const { return allocator_.reserved() + graph_pool_.reserved(); }
  std::int64_t peak_reserved() const { return peak_reserved_; }
  std::int64_t peak_allocated() const { return std::max(eager_peak_, allocator_.peak_allocated()); }
  /// In both together, while graphs are captured: later their blocks are theirs alone, and no tensor's.
  std::int64_t captured() const { return allocator_.allocated() + graph_pool_.allocated(); }
  void reset_peaks() {
    allocator_.reset_peaks();
    eager_peak_ = 0;
    peak_reserved_ = reserved();
  }
  /// Adds what later events depend on: free memory; then the blocks that are named.
  void describe(Likeness& state) const {
    allocator_.describe(state);
    graph_pool_.describe(state);
  }
  void describe(const Heap& heap, Likeness& state) const {
    for (const auto block : state.named()) {
      const auto told = heap.told(block);
      if (!told) continue;
      if (told->graph) {
        graph_pool_.describe(graph_blocks_[told->block], state);
        continue;
      }
      const Live& live = blocks_[told->block];
      allocator_.describe(live.handle, state);
      if (live.event > 0) state.add(static_cast<std::int64_t>(allocator_.events() - live.event));
    }
  }
  /// Of the device, from now on; so far no more than that was reserved.
  void limit(std::int64_t device_bytes) {
    device_ = device_bytes;
    allocator_.limit(device_ - graph_pool_.reserved());
  }
  /// Devices on which all went alike.
  struct Devices {
    std::int64_t least, most;
    bool contain(std::int64_t bytes) const { return least <= bytes && bytes <= most; }
  };
  Devices alike() const {
    const auto near = allocator_.nearness(), in_graphs = graph_pool_.nearness();
    const auto lacking = std::min(near.lacking, in_graphs.lacking);
    return {device_ - std::min(near.left, in_graphs.left),
            lacking < INT64_MAX - device_ ? device_ + lacking - 1 : INT64_MAX};
  }
  /// What an event asks of this process for.
  Bytes asked(const Event& event) const { return drawn_ ? event.drawn : event.bytes; }
  Allocator& allocator() { return allocator_; }
  const Allocator& allocator() const { return allocator_; }
  std::uint32_t owner_of(std::uint32_t handle) const { return owners_[handle]; }

 private:
  static constexpr std::int32_t elsewhere = -1;  ///< whichever stream it is, the walk says when it has passed
  struct Live {
    std::uint32_t handle = 0;
    std::uint64_t event = 0;  ///< after which another stream is done with it; 0: no other uses it
  };
  template <class T>
  static T& grow(std::vector<T>& list, std::uint32_t index) {
    if (list.size() <= index) list.resize(index + 1);
    return list[index];
  }

  void in_graph_pool(const Event& event) {
    if (event.kind == Event::Kind::free) {
      graph_pool_.free(grow(graph_blocks_, event.block));
      return;
    }
    const auto stream = static_cast<std::int32_t>(event.stream);
    const bool limited = device_ < INT64_MAX;
    if (limited) graph_pool_.limit(device_ - allocator_.reserved());
    auto handle = graph_pool_.allocate(asked(event).value, stream);
    if (!handle) {
      allocator_.empty_cache();
      graph_pool_.limit(device_ - allocator_.reserved());
      handle = graph_pool_.allocate(asked(event).value, stream);
    }
    if (!handle) throw OutOfMemory(event);
    grow(graph_blocks_, event.block) = *handle;
    if (limited) allocator_.limit(device_ - graph_pool_.reserved());
  }

  Allocator allocator_, graph_pool_;
  std::int64_t device_, peak_reserved_ = 0, eager_peak_ = 0;  ///< allocated before CUDA graphs were captured
  bool drawn_;
  std::vector<std::uint32_t> graph_blocks_;  ///< by the walk's block
  std::vector<Live> blocks_;                 ///< by the walk's block
  std::vector<std::uint32_t> owners_;        ///< by the allocator's handle
};

}  // namespace pipewright::memory
