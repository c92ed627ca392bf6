// Memory of a rank: walks its program in host order at tensor granularity, and replays the allocations through
// PyTorch's CUDA caching allocator. Allocated bytes count blocks (multiples of 512 B), as torch.cuda.memory_stats does.
//
// The caching allocator acts when the host runs the line, so times play no part; what keeps a pipeline tensor alive is
// which variable of Megatron's schedule functions still names it (reference 1.8; src/memory/walk.cpp has the list).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/model.hpp"
#include "pipewright/offload.hpp"
#include "pipewright/scenario/types.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::memory {

// ---- The walk

/// A block is born, dies, can be used again. `block` is its number until it can; then numbers are used again.
struct Event {
  /// retire: freed, but a transfer or a copy may still use it (record_stream); its `free` follows. empty_cache: of no
  /// block; cached segments go back to the device before CUDA graphs are captured.
  enum class Kind : std::uint8_t { allocate, retire, free, empty_cache } kind = Kind::allocate;
  std::uint32_t block = 0;
  std::uint32_t owner = 0;  ///< index into model::Stages::owners, or one of the walk's own (Walk::owner_names)
  Bytes bytes;              ///< as asked for, not rounded
  Bytes drawn;              ///< where rows of routing are drawn beside their mean: as asked for with these
  model::Stream stream = model::Stream::compute;  ///< whose pool it comes from
  bool graph = false;                             ///< in the private pool of CUDA graphs
};
using Listener = std::function<void(const Event&)>;

struct OwnerBytes {
  std::string owner;
  Bytes bytes;
};

/// The first allocation that finds no room.
struct Failure {
  std::string at, piece;     ///< "B 3.1"; "layer 5, attention.core backward"; no place: before the first step is over
  std::string owner;         ///< of what was asked for
  Bytes requested, segment;  ///< as asked for; what the device had to give for it
  Bytes allocated, reserved, graph_pool;
  std::vector<OwnerBytes> owners;  ///< who holds what is allocated, largest first
};
/// torch.OutOfMemoryError's text with the numbers of the replay.
std::string out_of_memory_message(const Failure& failure, Bytes device_total, Bytes outside_allocator, int gpu);

struct Walk {
  Bytes static_bytes;    ///< before the first step
  Bytes after_step;      ///< after a step, from the second on
  Bytes peak_allocated;  ///< over a step in which the optimizer's state exists
  Bytes peak_reserved;   ///< by the allocator replay, CUDA graphs' pools included
  Bytes built;          ///< reserved at most up to the second step: Megatron-FSDP gives back what the model was made of
  Bytes graph_pool;     ///< of which the graphs' private pools: reserved for good, used while they replay
  std::string peak_at;  ///< "B 3.1"
  std::string peak_piece;                 ///< "layer 5, attention.core backward": the kernel launched next
  std::vector<OwnerBytes> peak_owners;    ///< who holds the peak, largest first
  std::vector<offload::Moved> offloaded;  ///< by activation offload, in a step
  Bytes pinned;                           ///< host memory for that and for an optimizer on the host
  Bytes pageable;                         ///< host memory of an optimizer there
  std::int64_t events = 0, left_out = 0;  ///< left out: of these, in rounds of the schedule that only repeat
  bool retried = false;                   ///< under a limit: cached blocks had to be given back to the device
  std::optional<Failure> failure;         ///< under a limit: where even that did not help

  Bytes most_reserved() const { return std::max(peak_reserved, built); }  ///< what the whole process needs
};

/// A step of one pipeline rank, after one that made the optimizer's state. With CUDA graphs: the process as it runs,
/// steps without graphs, the cache given back, the capture, a step that replays; peaks are over all but the first.
/// `listener` sees every allocation and free
/// from process start on; without one, rounds of the schedule that would only repeat are left out. `device`: what the
/// allocator may take from the device, graph pools included; a run that would reserve more is replayed with that limit,
/// and peak_reserved is what it then holds.
Walk walk(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
          int pp_rank, std::optional<Bytes> device = {}, const Listener& listener = {});

/// Whether the process survives its first steps with so much of the device. One replay, where walk() takes up to three
/// to tell what happens.
bool runs_within(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                 int pp_rank, Bytes device);

/// The least of the device with which it survives them, by halving between one that is too little (no more than the
/// peak of what is allocated) and one that is enough.
Bytes least_to_run(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                   int pp_rank, Bytes too_little, Bytes enough, Bytes resolution);

/// Why reserved memory is more than allocated memory, at the moment when it grew to its peak.
struct Fragmentation {
  struct Pinned {
    Bytes bytes, free;               ///< of a segment that cannot be given back
    std::vector<OwnerBytes> owners;  ///< whose tensors are in it, largest first
  };
  std::string at, piece, owner;  ///< the allocation for which it grew: place, next kernel, what it is
  Bytes requested, allocated, reserved;
  Bytes cached;                       ///< free in cached segments
  Bytes largest_gap;                  ///< the largest of these free blocks
  Bytes largest_allocation;           ///< that could still succeed, cached segments given back where that helps
  std::vector<Pinned> segments;       ///< part-used ones, most free bytes first; small allocations' left out
  std::vector<OwnerBytes> pinned_by;  ///< free bytes of part-used segments, by owners of what is used in them, by size
};
/// With the scenario's PYTORCH_CUDA_ALLOC_CONF, and with expandable segments too (the same where it has them).
struct Fragmentations {
  Fragmentation as_configured, expandable;
};
/// walk() within `allowed`, and why the process reserves what it would like to reserve; `device`: what there is without
/// a margin.
struct Explained {
  Walk walk;
  Fragmentations why;
};
Explained explain(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                  int pp_rank, Bytes allowed, Bytes device, const Listener& listener = {});

/// The walk without the allocator: what a rank holds for good (parameters, gradients, optimizer state), and the peak of
/// the bytes asked for, of which walk() finds no fewer allocated; a few times faster. Without `with_step` only the
/// former.
struct Scout {
  Bytes static_bytes, state_bytes, peak_allocated;
  Bytes graph_pool;  ///< reserved besides, as in Walk
};
Scout scout(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
            int pp_rank, bool with_step = true);

/// No run of this rank allocates less at its peak: its state, what forwards leave whose backwards come later, and what
/// the next backward makes, or the next combined call of expert-parallel overlap; of what activation offload may move
/// no more than what the pass that runs needs of it. No walk: microseconds.
Scout floor(const model::Stages& stages, const schedule::Config& config, int pp_rank);
/// What that is made from. Bytes of a piece: what a forward leaves for the backward; what that has beside it at most.
std::int64_t kept_by(const model::Piece& piece);
std::int64_t added_by_backward(const model::Piece& piece);
/// Expert-parallel overlap, while the nodes of a forward and a backward layer take turns (null: there is none of that
/// pass): what is there at most beside what forwards left until then. `least`: the same whatever part of what
/// activation offload may move it does not.
struct Grown {
  std::int64_t most = 0, least = 0;
};
Grown grown_in_turns(const model::Piece* forward, const model::Piece* backward, const schedule::Config& config);
/// The same of whole chunks, by the layers that meet: `layers` many in the forward and in the backward chunk;
/// `grown(i)`: of the i-th of either, its first and its last; `left(i)`: by how much more is kept after these.
/// `begin`: bytes more than at the begin of the call.
template <class OfLayers, class Left>
std::int64_t grown_in_call(int layers, std::int64_t begin, const OfLayers& grown, const Left& left) {
  std::int64_t most = std::max<std::int64_t>(0, begin), now = begin;
  for (int i = 0; i < layers; ++i) {
    most = std::max(most, now + grown(i));
    now += left(i);
    most = std::max(most, now);
  }
  return most;
}
/// The first backward (schedules.py:962-989, get_schedule_table), then each moment of a period after it, when a
/// backward has gone and another forward has come: as many in all, of other chunks.
std::vector<schedule::Moment> moments(const schedule::Config& config, int pp_rank);

// ---- The allocator

/// PYTORCH_CUDA_ALLOC_CONF, what of it decides where blocks go.
struct AllocatorConfig {
  bool expandable_segments = false;
  std::int64_t max_split_size = INT64_MAX;  ///< bytes; max_split_size_mb
  std::int64_t max_non_split_rounding = 20 << 20;
  static constexpr std::int64_t small_segment = 2 << 20;       ///< bytes; kSmallBuffer
  std::int64_t large_segment = 20 << 20;                       ///< large_segment_size_mb
  std::array<std::int64_t, 16> roundup_power2_divisions = {};  ///< of sizes from 2^(20 + i) B; 0: off
  double garbage_collection_threshold = 0;                     ///< 0: off; without a memory fraction it does nothing
  double per_process_memory_fraction = 1;
  std::int64_t device_total = INT64_MAX;  ///< of which the fraction is a part
  std::int64_t device_bytes = INT64_MAX;  ///< what cudaMalloc can hand out: limit less what lies outside
};
/// Throws UsageError naming an unknown key or a wrong value.
AllocatorConfig parse_allocator_config(std::string_view conf, const Position& where);
/// Of a scenario: PYTORCH_CUDA_ALLOC_CONF, or PYTORCH_ALLOC_CONF as newer versions call it; per_process_memory_fraction
/// of cluster.memory_bytes.
AllocatorConfig allocator_config(const scenario::Scenario& scenario);

class Likeness;

/// A stretch of memory that cudaMalloc gave, or with expandable segments one that is mapped without a hole.
struct Segment {
  struct Block {
    std::uint32_t handle = 0;  ///< of allocate(), where it is in use
    std::int64_t bytes = 0;
    bool used = false;  ///< or freed and still used by another stream
  };
  std::int64_t bytes = 0, used = 0;
  bool small = false, expandable = false;
  std::int32_t stream = 0;
  std::vector<Block> blocks;  ///< by address
};

/// PyTorch's c10/cuda/CUDACachingAllocator.cpp: two pools, best fit, split, merge, expandable segments. Times do not
/// occur in it: the caller says how far other streams have come.
class Allocator {
 public:
  explicit Allocator(const AllocatorConfig& config = {});
  Allocator(const Allocator&);
  ~Allocator();
  Allocator(Allocator&&) noexcept;
  Allocator& operator=(Allocator&&) noexcept;

  /// A handle for free(), or nullopt: out of memory, even after cached segments were released.
  std::optional<std::uint32_t> allocate(std::int64_t bytes, std::int32_t stream = 0);
  /// Another stream uses the block: once freed it waits for an event on that stream.
  void record_stream(std::uint32_t handle, std::int32_t stream);
  /// Counts as allocated no more. Can be used again at once, or after passed() for every stream that recorded it; then
  /// the result is the number of its last event, else 0.
  std::uint64_t free(std::uint32_t handle);
  /// The GPU has come past all events on `stream` up to this number; the next allocate() sees it.
  void passed(std::int32_t stream, std::uint64_t event);
  /// The same in two steps, for recordings that say when: not allocated any more; free() then frees it.
  void retire(std::uint32_t handle);
  void limit(std::int64_t device_bytes);
  void next_segment_at(std::int64_t address);  ///< where the driver puts the next segment; decides between equal fits
  void empty_cache();                          ///< torch.cuda.empty_cache
  void reset_peaks();

  std::int64_t allocated() const;
  std::int64_t reserved() const;
  std::int64_t peak_allocated() const;
  std::int64_t peak_reserved() const;
  std::int64_t largest_free_block() const;  ///< the largest cached block that an allocation could take
  /// The largest request that would succeed now, with everything that allocate() does to find room (not with a device
  /// without limit).
  std::int64_t largest_allocation(std::int32_t stream = 0) const;
  std::int64_t segment_bytes(std::int64_t requested) const;  ///< what a new segment for it takes
  int segments() const;
  std::int64_t retries() const;  ///< times that cached segments were released to find room
  /// How near the device was to being full whenever it gave memory, and to having enough whenever it did not: with less
  /// than `left` less, or less than `lacking` more, all would have gone alike.
  struct Nearness {
    std::int64_t left = INT64_MAX, lacking = INT64_MAX;
  };
  Nearness nearness() const;
  std::vector<Segment> snapshot() const;  ///< by address

  /// Adds what the answers to later calls depend on: all but the blocks in use, and one of these.
  void describe(Likeness& state) const;
  void describe(std::uint32_t handle, Likeness& state) const;
  std::uint64_t events() const;  ///< the last one's number

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Bytes of the block that a request takes (round_size).
std::int64_t block_bytes(std::int64_t requested);

/// What the allocator's own statistics say, or a replay's; bytes. Peaks since marks[2] where there are marks.
struct AllocatorTotals {
  Bytes allocated, reserved, peak_allocated, peak_reserved;
};

/// Replay of a recording (measured/README.md: columns, rows, marks, end, conf).
struct Replay {
  std::int64_t events = 0, unknown_frees = 0;
  std::int64_t given_back = 0;  ///< times that the recorded process gave cached memory back; the replay does, too
  std::int64_t out_of_memory = 0;
  AllocatorTotals totals;
  int segments = 0;
  bool as_recorded = true;                        ///< with the recorded configuration
  std::optional<AllocatorTotals> recorded;        ///< the recording's `end`
  std::optional<std::int64_t> recorded_segments;  ///< by its rows; not of expandable segments
  /// With the recorded configuration: what of the totals and segments differs from the recording; empty: nothing.
  std::vector<std::string> differs() const;
};
/// `json`: the recording's text. `conf`: another PYTORCH_CUDA_ALLOC_CONF than the recorded one. Throws UsageError
/// naming the row and what is wrong with it: an action that PyTorch has not, an address allocated twice, marks out of
/// order.
Replay replay(const std::string& json, const std::string& file, const std::optional<std::string>& conf = {});

}  // namespace pipewright::memory
