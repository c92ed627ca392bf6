// PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp, torch 2.11), the part that decides where a block
// goes. Requests are rounded to 512 B. Up to 1 MiB they come from segments of 2 MiB (small pool); below 10 MiB from
// segments of 20 MiB, else from a segment of their own size in steps of 2 MiB (large pool). A free block is chosen by
// best fit and split if what is left is worth it; freed blocks merge with free neighbours.
//
// With expandable segments a pool has one address range per stream that is mapped in pages of 2 MiB (small) or 20 MiB
// (large) as it is needed: the free tail grows instead of a new segment being made.
#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/memory.hpp"

namespace pipewright::memory {
namespace {

constexpr std::int64_t MiB = 1 << 20;
constexpr std::int64_t small_size = MiB, small_segment = 2 * MiB;             // kSmallSize, kSmallBuffer
constexpr std::int64_t large_segment = 20 * MiB, min_large_alloc = 10 * MiB;  // kLargeBuffer, kMinLargeAlloc
constexpr std::int64_t large_rounding = 2 * MiB;                              // kRoundLarge
constexpr std::int64_t smallest = 512;                                        // kMinBlockSize
constexpr std::uint32_t none = 0xffffffff;

std::int64_t up(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// round_size with roundup_power2_divisions: the next of `divisions` equal steps between two powers of two.
std::int64_t round_to_division(std::int64_t size, std::int64_t divisions) {
  if (size <= 4 || divisions <= 1 || (size & (size - 1)) == 0) return size;
  std::int64_t floor = 1;
  while (floor * 2 <= size) floor *= 2;
  const std::int64_t step = floor / divisions;
  return step == 0 ? size : up(size, step);
}

struct Block {
  std::int64_t address = 0, size = 0;
  std::uint32_t previous = none, next = none;  ///< neighbours in the segment
  std::int32_t stream = 0;
  bool small = false, allocated = false, retired = false, mapped = true, expandable = false;
};

/// Free blocks in the allocator's order: stream, size, address. A sorted array: some hundred entries at most, and
/// moving them costs less than a tree's pointers.
class FreeList {
 public:
  struct Entry {
    std::int64_t size, address;
    std::int32_t stream;
    std::uint32_t block;
    friend bool operator<(const Entry& a, const Entry& b) {
      if (a.stream != b.stream) return a.stream < b.stream;
      if (a.size != b.size) return a.size < b.size;
      return a.address < b.address;
    }
  };
  void insert(const Entry& entry) { entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry), entry); }
  void erase(const Entry& entry) { entries_.erase(std::lower_bound(entries_.begin(), entries_.end(), entry)); }
  std::size_t lower_bound(std::int32_t stream, std::int64_t size) const {
    const Entry key{size, 0, stream, none};
    return static_cast<std::size_t>(std::lower_bound(entries_.begin(), entries_.end(), key) - entries_.begin());
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

struct Pool {
  bool small = false;
  FreeList free, unmapped;  ///< unmapped: by address within a stream (size 0 in the key)
};

}  // namespace

class Allocator::State {
 public:
  explicit State(const AllocatorConfig& config) : config_(config) { pools_[1].small = true; }

  std::optional<std::uint32_t> allocate(std::int64_t bytes, std::int32_t stream) {
    const std::int64_t size = rounded(bytes);
    auto& pool = pools_[size <= small_size ? 1 : 0];
    auto block = find_free(pool, size, stream);
    if (block == none) block = new_block(pool, size, stream);
    if (block == none && release_cached()) block = new_block(pool, size, stream);
    if (block == none) return std::nullopt;
    split(pool, block, size);
    auto& b = blocks_[block];
    b.allocated = true;
    allocated_ += b.size;
    peak_allocated_ = std::max(peak_allocated_, allocated_);
    return block;
  }

  void retire(std::uint32_t block) {
    auto& b = blocks_[block];
    if (b.retired) return;
    b.retired = true;
    allocated_ -= b.size;
  }

  void free(std::uint32_t block) {
    retire(block);
    auto& b = blocks_[block];
    b.allocated = b.retired = false;
    auto& pool = pool_of(block);
    merge(pool, block, blocks_[block].previous);
    merge(pool, block, blocks_[block].next);
    pool.free.insert(entry(block));
  }

  bool release_cached() {
    bool released = false;
    for (auto& pool : pools_) {
      const auto entries = pool.free.entries();
      for (const auto& e : entries) {
        const auto& b = blocks_[e.block];
        if (b.expandable) {
          released |= unmap(pool, e.block);
        } else if (b.previous == none && b.next == none) {
          reserved_ -= b.size;
          --segments_;
          pool.free.erase(e);
          unused_.push_back(e.block);
          released = true;
        }
      }
    }
    return released;
  }

  void next_segment_at(std::int64_t address) { given_address_ = address; }

  std::int64_t largest_free() const {
    std::int64_t largest = 0;
    for (const auto& e : pools_[0].free.entries()) largest = std::max(largest, e.size);
    return largest;
  }

  std::int64_t allocated_ = 0, reserved_ = 0, peak_allocated_ = 0, peak_reserved_ = 0;
  int segments_ = 0;

 private:
  std::int64_t rounded(std::int64_t bytes) const {
    if (bytes < smallest) return smallest;
    if (config_.roundup_power2_divisions > 1 && bytes > smallest * config_.roundup_power2_divisions) {
      return up(round_to_division(bytes, config_.roundup_power2_divisions), smallest);
    }
    return block_bytes(bytes);
  }
  Pool& pool_of(std::uint32_t block) { return pools_[blocks_[block].small ? 1 : 0]; }
  FreeList::Entry entry(std::uint32_t block) const {
    const auto& b = blocks_[block];
    return {b.mapped ? b.size : 0, b.address, b.stream, block};
  }

  std::uint32_t make(const Block& block) {
    if (unused_.empty()) {
      blocks_.push_back(block);
      return static_cast<std::uint32_t>(blocks_.size() - 1);
    }
    const auto id = unused_.back();
    unused_.pop_back();
    blocks_[id] = block;
    return id;
  }

  void reserve(std::int64_t bytes) {
    reserved_ += bytes;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
  }

  std::uint32_t find_free(Pool& pool, std::int64_t size, std::int32_t stream) {
    const auto& entries = pool.free.entries();
    auto i = pool.free.lower_bound(stream, size);
    if (i == entries.size() || entries[i].stream != stream) return none;
    // A block at the end of what is mapped counts as the size that it can grow to.
    const auto can_grow_to = [this](std::uint32_t block) {
      const auto& b = blocks_[block];
      return b.size + (b.next != none && !blocks_[b.next].mapped ? blocks_[b.next].size : 0);
    };
    while (blocks_[entries[i].block].expandable && i + 1 < entries.size() && entries[i + 1].stream == stream &&
           can_grow_to(entries[i + 1].block) < can_grow_to(entries[i].block)) {
      ++i;
    }
    const auto found = entries[i];
    if (size < config_.max_split_size && found.size >= config_.max_split_size) return none;
    if (size >= config_.max_split_size && found.size >= size + config_.max_non_split_rounding) return none;
    pool.free.erase(found);
    return found.block;
  }

  std::uint32_t new_block(Pool& pool, std::int64_t size, std::int32_t stream) {
    if (config_.expandable_segments) return expand(pool, size, stream);
    const std::int64_t bytes = pool.small               ? small_segment
                               : size < min_large_alloc ? large_segment
                                                        : up(size, large_rounding);
    if (reserved_ > config_.device_bytes - bytes) return none;
    Block block;
    block.address = given_address_ ? *std::exchange(given_address_, std::nullopt) : next_address_;
    block.size = bytes;
    block.stream = stream;
    block.small = pool.small;
    next_address_ += up(bytes, large_rounding);
    reserve(bytes);
    ++segments_;
    return make(block);
  }

  void split(Pool& pool, std::uint32_t block, std::int64_t size) {
    const std::int64_t left = blocks_[block].size - size;
    const bool worth = pool.small || config_.expandable_segments ? left >= smallest
                                                                 : size < config_.max_split_size && left > small_size;
    if (!worth) return;
    Block rest = blocks_[block];
    rest.address += size;
    rest.size = left;
    rest.previous = block;
    const auto id = make(rest);
    if (rest.next != none) blocks_[rest.next].previous = id;
    blocks_[block].size = size;
    blocks_[block].next = id;
    pool.free.insert(entry(id));
  }

  bool can_merge(std::uint32_t block, std::uint32_t with) const {
    return with != none && !blocks_[with].allocated && blocks_[with].mapped == blocks_[block].mapped;
  }
  /// `block` (in no list) swallows its free neighbour `with`.
  void merge(Pool& pool, std::uint32_t block, std::uint32_t with) {
    if (!can_merge(block, with)) return;
    (blocks_[with].mapped ? pool.free : pool.unmapped).erase(entry(with));
    auto& b = blocks_[block];
    const auto& w = blocks_[with];
    if (with == b.previous) {
      b.address = w.address;
      b.previous = w.previous;
      if (b.previous != none) blocks_[b.previous].next = block;
    } else {
      b.next = w.next;
      if (b.next != none) blocks_[b.next].previous = block;
    }
    b.size += w.size;
    unused_.push_back(with);
  }

  // ---- Expandable segments

  bool available(std::uint32_t block) const { return block != none && !blocks_[block].allocated; }

  /// find_expandable_block: the lowest address with room for `size` in free and unmapped blocks one after another.
  std::uint32_t find_expandable(Pool& pool, std::int64_t size, std::int32_t stream) {
    for (const auto& e : pool.unmapped.entries()) {
      if (e.stream != stream) continue;
      auto start = e.block;
      if (available(blocks_[start].previous)) start = blocks_[start].previous;
      std::int64_t room = 0;
      for (auto b = start; room < size && available(b); b = blocks_[b].next) room += blocks_[b].size;
      if (room >= size) return start;
    }
    // A new address range; the real one spans 1 1/8 of the device's memory.
    Block range;
    range.address = next_address_;
    range.size = std::int64_t{1} << 44;
    range.stream = stream;
    range.small = pool.small;
    range.mapped = false;
    range.expandable = true;
    next_address_ += range.size;
    ++segments_;
    const auto id = make(range);
    pool.unmapped.insert(entry(id));
    return id;
  }

  std::uint32_t expand(Pool& pool, std::int64_t size, std::int32_t stream) {
    auto candidate = find_expandable(pool, size, stream);
    if (!blocks_[candidate].mapped && !map(pool, candidate, std::min(blocks_[candidate].size, size))) return none;
    while (blocks_[candidate].size < size) {
      const auto next = blocks_[candidate].next;
      const std::int64_t missing = size - blocks_[candidate].size;
      if (!map(pool, next, std::min(missing, blocks_[next].size))) return none;
      candidate = next;
    }
    pool.free.erase(entry(candidate));
    return candidate;
  }

  /// map_block: maps pages for at least `size` bytes at the block's start and merges with free neighbours.
  bool map(Pool& pool, std::uint32_t block, std::int64_t size) {
    const std::int64_t page = pool.small ? small_segment : large_segment;
    const std::int64_t bytes = std::min(up(size, page), blocks_[block].size);
    if (reserved_ > config_.device_bytes - bytes) return false;
    pool.unmapped.erase(entry(block));
    blocks_[block].mapped = true;
    if (bytes < blocks_[block].size) {
      Block rest = blocks_[block];
      rest.address += bytes;
      rest.size -= bytes;
      rest.mapped = false;
      rest.previous = block;
      const auto id = make(rest);
      if (rest.next != none) blocks_[rest.next].previous = id;
      blocks_[block].size = bytes;
      blocks_[block].next = id;
      pool.unmapped.insert(entry(id));
    }
    merge(pool, block, blocks_[block].previous);
    merge(pool, block, blocks_[block].next);
    pool.free.insert(entry(block));
    reserve(bytes);
    return true;
  }

  /// unmap_block: gives whole free pages back.
  bool unmap(Pool& pool, std::uint32_t block) {
    const std::int64_t page = pool.small ? small_segment : large_segment;
    const Block old = blocks_[block];
    const std::int64_t from = up(old.address, page), to = (old.address + old.size) / page * page;
    if (to <= from) return false;
    pool.free.erase(entry(block));
    reserved_ -= to - from;
    if (from > old.address) {
      Block before = old;
      before.size = from - old.address;
      before.next = block;
      const auto id = make(before);
      if (before.previous != none) blocks_[before.previous].next = id;
      blocks_[block].previous = id;
      pool.free.insert(entry(id));
    }
    if (to < old.address + old.size) {
      Block after = old;
      after.address = to;
      after.size = old.address + old.size - to;
      after.previous = block;
      const auto id = make(after);
      if (after.next != none) blocks_[after.next].previous = id;
      blocks_[block].next = id;
      pool.free.insert(entry(id));
    }
    blocks_[block].address = from;
    blocks_[block].size = to - from;
    blocks_[block].mapped = false;
    merge(pool, block, blocks_[block].previous);
    merge(pool, block, blocks_[block].next);
    pool.unmapped.insert(entry(block));
    return true;
  }

  const AllocatorConfig config_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> unused_;
  Pool pools_[2];
  std::int64_t next_address_ = std::int64_t{1} << 48;
  std::optional<std::int64_t> given_address_;
};

Allocator::Allocator(const AllocatorConfig& config) : state_(std::make_unique<State>(config)) {}
Allocator::~Allocator() = default;
Allocator::Allocator(Allocator&&) noexcept = default;
Allocator& Allocator::operator=(Allocator&&) noexcept = default;

std::optional<std::uint32_t> Allocator::allocate(std::int64_t bytes, std::int32_t stream) {
  return state_->allocate(bytes, stream);
}
void Allocator::retire(std::uint32_t handle) { state_->retire(handle); }
void Allocator::free(std::uint32_t handle) { state_->free(handle); }
void Allocator::next_segment_at(std::int64_t address) { state_->next_segment_at(address); }
void Allocator::empty_cache() { state_->release_cached(); }
void Allocator::reset_peaks() {
  state_->peak_allocated_ = state_->allocated_;
  state_->peak_reserved_ = state_->reserved_;
}
std::int64_t Allocator::allocated() const { return state_->allocated_; }
std::int64_t Allocator::reserved() const { return state_->reserved_; }
std::int64_t Allocator::peak_allocated() const { return state_->peak_allocated_; }
std::int64_t Allocator::peak_reserved() const { return state_->peak_reserved_; }
std::int64_t Allocator::largest_free_block() const { return state_->largest_free(); }
int Allocator::segments() const { return state_->segments_; }

}  // namespace pipewright::memory
