// Memory of a rank: walks its program in host order at tensor granularity, and replays the allocations through
// PyTorch's CUDA caching allocator. Allocated bytes count blocks (multiples of 512 B), as torch.cuda.memory_stats does.
//
// The caching allocator acts when the host runs the line, so times play no part; what keeps a pipeline tensor alive is
// which variable of Megatron's schedule functions still names it (reference 1.8; src/memory/walk.cpp has the list).
#pragma once

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
#include "pipewright/scenario.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::memory {

// ---- The walk

/// A block is born, dies, can be used again. `block` is its number until it can; then numbers are used again.
struct Event {
  /// retire: freed, but a transfer or a copy may still use it (record_stream); its `free` follows.
  enum class Kind : std::uint8_t { allocate, retire, free } kind = Kind::allocate;
  std::uint32_t block = 0;
  std::uint32_t owner = 0;  ///< index into model::Stages::owners, or one of the walk's own (Walk::owner_names)
  Bytes bytes;              ///< as asked for, not rounded
  model::Stream stream = model::Stream::compute;  ///< whose pool it comes from
};
using Listener = std::function<void(const Event&)>;

struct OwnerBytes {
  std::string owner;
  Bytes bytes;
};

struct Walk {
  Bytes static_bytes;      ///< before the first step
  Bytes after_step;        ///< after a step, from the second on
  Bytes peak_allocated;    ///< over a step in which the optimizer's state exists
  Bytes peak_reserved;     ///< by the allocator replay, CUDA graphs' pools included
  Bytes graph_pool;        ///< of which the graphs' private pools: reserved for good, used while they replay
  std::string peak_at;     ///< "B 3.1"
  std::string peak_piece;  ///< "layer 5, attention.core backward": the kernel launched next
  std::vector<OwnerBytes> peak_owners;    ///< who holds the peak, largest first
  std::vector<Bytes> after_instruction;   ///< allocated once the host has run each instruction of the rank's program
  std::vector<offload::Moved> offloaded;  ///< by activation offload, in a step
  Bytes pinned;                           ///< host memory for that
  std::int64_t events = 0;
  bool retried = false;          ///< under a limit: cached blocks had to be given back to the device
  std::string out_of_memory_at;  ///< under a limit: "B 3.1", where even that did not help; empty: the run survives
};

/// A step of one pipeline rank, after one that made the optimizer's state. `listener` sees every allocation and free
/// from process start on. `device`: what the allocator may take from the device, graph pools included; a run that would
/// reserve more is replayed with that limit, and peak_reserved is what it then holds.
Walk walk(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
          int pp_rank, std::optional<Bytes> device = {}, const Listener& listener = {});

/// The walk without the allocator: what a rank holds for good (parameters, gradients, optimizer state), and the peak of
/// allocated bytes that walk() finds; a few times faster. Without `with_step` only the former.
struct Scout {
  Bytes static_bytes, state_bytes, peak_allocated;
};
Scout scout(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
            int pp_rank, bool with_step = true);

// ---- The allocator

/// PYTORCH_CUDA_ALLOC_CONF, what of it decides where blocks go.
struct AllocatorConfig {
  bool expandable_segments = false;
  std::int64_t max_split_size = INT64_MAX;  ///< bytes; max_split_size_mb
  std::int64_t max_non_split_rounding = 20 << 20;
  std::int64_t roundup_power2_divisions = 0;  ///< 0: off
  std::int64_t device_bytes = INT64_MAX;      ///< what cudaMalloc can hand out: limit less what lies outside
};
/// Throws UsageError naming an unknown key or a wrong value.
AllocatorConfig parse_allocator_config(std::string_view conf, const Position& where);

/// PyTorch's c10/cuda/CUDACachingAllocator.cpp: two pools, best fit, split, merge, expandable segments. Times do not
/// occur in it: a block that another stream still uses is retired first and freed when the caller says so.
class Allocator {
 public:
  explicit Allocator(const AllocatorConfig& config = {});
  ~Allocator();
  Allocator(Allocator&&) noexcept;
  Allocator& operator=(Allocator&&) noexcept;

  /// A handle for free(), or nullopt: out of memory, even after cached segments were released.
  std::optional<std::uint32_t> allocate(std::int64_t bytes, std::int32_t stream = 0);
  void retire(std::uint32_t handle);  ///< counts as allocated no more, but cannot be used again yet (record_stream)
  void free(std::uint32_t handle);
  void next_segment_at(std::int64_t address);  ///< where the driver puts the next segment; decides between equal fits
  void empty_cache();                          ///< torch.cuda.empty_cache
  void reset_peaks();

  std::int64_t allocated() const;
  std::int64_t reserved() const;
  std::int64_t peak_allocated() const;
  std::int64_t peak_reserved() const;
  std::int64_t largest_free_block() const;  ///< the largest cached block that an allocation could take
  int segments() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Bytes of the block that a request takes (round_size).
std::int64_t block_bytes(std::int64_t requested);

/// Replay of a recording (measured/README.md: columns, rows, marks, conf).
struct Replay {
  std::int64_t events = 0, unknown_frees = 0;
  Bytes peak_allocated, peak_reserved;  ///< since marks[2] where there are marks
  Bytes allocated, reserved;            ///< at the end
  int segments = 0;
};
/// `json`: the recording's text. `conf`: another PYTORCH_CUDA_ALLOC_CONF than the recorded one.
Replay replay(const std::string& json, const std::string& file, const std::optional<std::string>& conf = {});

}  // namespace pipewright::memory
