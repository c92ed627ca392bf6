// PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp, torch 2.11), the part that decides where a block
// goes. Requests are rounded to 512 B. Up to 1 MiB they come from segments of 2 MiB (small pool); below 10 MiB from
// segments of 20 MiB, else from a segment of their own size in steps of 2 MiB (large pool). A free block is chosen by
// best fit and split if what is left is worth it; freed blocks merge with free neighbours.
//
// With expandable segments a pool has one address range per stream that is mapped in pages of 2 MiB (small) or 20 MiB
// (large) as it is needed: the free tail grows instead of a new segment being made.
//
// Where nothing free fits (DeviceCachingAllocator::malloc): old cached segments are collected if a memory fraction and
// a threshold are set; a new segment; with max_split_size oversize cached segments are given back; all cached ones are.
#include <algorithm>
#include <bit>
#include <deque>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "likeness.hpp"
#include "pipewright/memory.hpp"

namespace pipewright::memory {

class Allocator::State {
 public:
  explicit State(const AllocatorConfig& config) : config_(config) {
    pools_[1].small = true;
    if (config.per_process_memory_fraction < 1 && config.device_total < INT64_MAX) {
      allowed_ =
          static_cast<std::int64_t>(config.per_process_memory_fraction * static_cast<double>(config.device_total));
    }
  }

  std::optional<std::uint32_t> allocate(std::int64_t bytes, std::int32_t stream) {
    if (std::exchange(may_be_over_, false)) process_events();
    if (bytes > largest_request) return std::nullopt;
    const std::int64_t size = rounded(bytes);
    auto& pool = pools_[size <= small_size ? 1 : 0];
    auto block = no_block;
    if (const auto hole = find_free(pool, size, stream)) {
      block = (*hole)->block;
      if (const auto rest = split(pool, block, size); rest != no_block)
        pool.free.replace(*hole, entry(rest));
      else
        pool.free.erase(*hole);
    } else {
      block = make_room(pool, size, stream);
      if (block == no_block) return std::nullopt;
      if (const auto rest = split(pool, block, size); rest != no_block) pool.free.insert(entry(rest));
    }
    auto& b = blocks_[block];
    b.allocated = true;
    allocated_ += b.size;
    peak_allocated_ = std::max(peak_allocated_, allocated_);
    return block;
  }

  /// A block of at least this size, in no list, where no hole is as large.
  std::uint32_t make_room(Pool& pool, std::int64_t size, std::int32_t stream) {
    if (collects()) collect_garbage();
    auto block = new_block(pool, size, stream);
    if (block == no_block && release_oversize(pool, size, stream)) block = new_block(pool, size, stream);
    if (block != no_block) return block;
    ++retries_;
    synchronize();
    release_cached();
    return new_block(pool, size, stream);
  }

  void record_stream(std::uint32_t block, std::int32_t stream) {
    if (stream == blocks_[block].stream) return;  // its own stream needs no event
    auto& streams = recorded_[block];
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }

  void retire(std::uint32_t block) {
    auto& b = blocks_[block];
    if (b.retired) return;
    b.retired = true;
    allocated_ -= b.size;
  }

  std::uint64_t free(std::uint32_t block) {
    retire(block);
    const auto uses = recorded_.empty() ? recorded_.end() : recorded_.find(block);
    if (uses == recorded_.end()) {
      give_back(block);
      return 0;
    }
    for (const auto stream : uses->second) pending_[stream].push_back({++events_, block});
    may_be_over_ = true;
    outstanding_[block] = uses->second.size();
    recorded_.erase(uses);
    return events_;
  }

  void passed(std::int32_t stream, std::uint64_t event) {
    auto& reached = passed_[stream];
    reached = std::max(reached, event);
    may_be_over_ = true;
  }

  /// release_cached_blocks; with fragments of segments in use nothing can be done.
  void release_cached() {
    for (auto& pool : pools_) {
      std::vector<FreeList::Entry> all;
      for (auto at = pool.free.begin(); at != pool.free.end(); ++at) all.push_back(*at);
      for (const auto& e : all) {
        const auto& b = blocks_[e.block];
        if (b.expandable) {
          unmap(pool, e.block);
        } else if (!is_split(e.block)) {
          release(pool, e);
        }
      }
    }
  }

  /// synchronize_and_free_events.
  void synchronize() {
    for (auto& [stream, events] : pending_) {
      for (const auto& e : events) event_over(e.block);
    }
    pending_.clear();
  }

  void limit(std::int64_t device_bytes) { config_.device_bytes = device_bytes; }
  void next_segment_at(std::int64_t address) { given_address_ = address; }

  /// get_allocation_size.
  std::int64_t segment_bytes(std::int64_t size) const {
    if (size <= small_size) return config_.small_segment;
    return size < min_large_alloc ? config_.large_segment : up(size, large_rounding);
  }

  std::int64_t largest_free() const {
    std::int64_t largest = 0;
    const auto& free = pools_[0].free;
    for (auto at = free.begin(); at != free.end(); ++at) largest = std::max(largest, at->size);
    return largest;
  }

  std::vector<Segment> snapshot() const {
    std::vector<std::uint32_t> heads;
    for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
      const auto& b = blocks_[i];
      if (b.exists && b.mapped && (b.previous == no_block || !blocks_[b.previous].mapped)) heads.push_back(i);
    }
    std::sort(heads.begin(), heads.end(), [&](auto a, auto b) { return blocks_[a].address < blocks_[b].address; });
    std::vector<Segment> result;
    for (const auto head : heads) {
      const auto& first = blocks_[head];
      Segment segment{0, 0, first.small, first.expandable, first.stream, {}};
      for (auto i = head; i != no_block && blocks_[i].mapped; i = blocks_[i].next) {
        const auto& b = blocks_[i];
        segment.bytes += b.size;
        if (b.allocated) segment.used += b.size;
        segment.blocks.push_back({i, b.size, b.allocated});
      }
      result.push_back(std::move(segment));
    }
    return result;
  }

  void describe(Likeness& state) const {
    const auto recorded = static_cast<std::int64_t>(recorded_.size());
    for (const auto word :
         {allocated_, reserved_, next_address_, std::int64_t{segments_}, config_.device_bytes, recorded})
      state.add(word);
    for (const auto& pool : pools_) {
      state.add(pool.searches);  // counted where garbage is collected: ages never come back
      for (const auto* list : {&pool.free, &pool.unmapped}) {
        for (auto at = list->begin(); at != list->end(); ++at) state.add(at->stream), describe(at->block, state);
        state.add(-1);
      }
    }
    for (const auto& [stream, events] : pending_)
      for (const auto& e : events) {
        state.add(stream), state.add(static_cast<std::int64_t>(events_ - e.event));
        describe(e.block, state);
      }
    state.add(-1);
    for (const auto& [stream, event] : passed_) state.add(static_cast<std::int64_t>(events_ - event));
  }
  void describe(std::uint32_t block, Likeness& state) const {
    state.add(blocks_[block].address), state.add(blocks_[block].size);
  }

  std::int64_t allocated_ = 0, reserved_ = 0, peak_allocated_ = 0, peak_reserved_ = 0, retries_ = 0;
  int segments_ = 0;
  std::uint64_t events_ = 0;
  Nearness nearness_;

  std::int64_t rounded(std::int64_t bytes) const {
    if (bytes < smallest) return smallest;
    const int log = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 1;
    const auto divisions = config_.roundup_power2_divisions[static_cast<std::size_t>(std::clamp(log - 20, 0, 15))];
    return divisions > 1 && bytes > smallest * divisions ? round_to_division(bytes, divisions) : block_bytes(bytes);
  }

 private:
  Pool& pool_of(std::uint32_t block) { return pools_[blocks_[block].small ? 1 : 0]; }
  bool is_split(std::uint32_t block) const {
    return blocks_[block].previous != no_block || blocks_[block].next != no_block;
  }
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
  void unmake(std::uint32_t block) {
    blocks_[block].exists = false;
    unused_.push_back(block);
  }
  void insert_free(Pool& pool, std::uint32_t block) {
    blocks_[block].since = pool.searches;
    pool.free.insert(entry(block));
  }

  /// Merges a freed block with its free neighbours (free_block).
  void give_back(std::uint32_t block) {
    auto& b = blocks_[block];
    b.allocated = b.retired = false;
    b.since = pool_of(block).searches;
    auto& free = pool_of(block).free;
    std::optional<FreeList::Entry> hole;  ///< the larger of both, whose place in the list it takes
    for (const auto with : {b.previous, b.next}) {
      if (!can_merge(block, with)) continue;
      const auto other = entry(with);
      if (hole) free.erase(std::min(*hole, other));
      hole = hole ? std::max(*hole, other) : other;
      absorb(block, with);
    }
    if (hole)
      free.replace(*hole, entry(block));
    else
      free.insert(entry(block));
  }

  void event_over(std::uint32_t block) {
    const auto left = outstanding_.find(block);
    if (--left->second > 0) return;
    outstanding_.erase(left);
    give_back(block);
  }
  /// Events are looked at in the order of each stream, up to the first that has not passed.
  void process_events() {
    for (auto it = pending_.begin(); it != pending_.end();) {
      auto& events = it->second;
      const auto reached = passed_.find(it->first);
      while (!events.empty() && reached != passed_.end() && events.front().event <= reached->second) {
        const auto block = events.front().block;
        events.pop_front();
        event_over(block);
      }
      it = events.empty() ? pending_.erase(it) : std::next(it);
    }
  }

  /// Gives a cached segment back to the device.
  void release(Pool& pool, const FreeList::Entry& e) {
    reserved_ -= blocks_[e.block].size;
    --segments_;
    pool.free.erase(e);
    unmake(e.block);
  }

  // ---- Garbage collection

  bool collects() const { return allowed_ && config_.garbage_collection_threshold > 0; }

  /// garbage_collect_cached_blocks: whole cached segments of the large pool that have been passed over at least as
  /// often as the average, until the reserved memory is down to the threshold.
  void collect_garbage() {
    auto& pool = pools_[0];
    const auto threshold =
        static_cast<std::int64_t>(config_.garbage_collection_threshold * static_cast<double>(*allowed_));
    if (reserved_ <= threshold) return;
    const std::int64_t target = reserved_ - threshold;
    std::vector<FreeList::Entry> whole;
    for (auto at = pool.free.begin(); at != pool.free.end(); ++at) {
      if (!is_split(at->block) && !blocks_[at->block].expandable) whole.push_back(*at);
    }
    const auto age = [&](const FreeList::Entry& e) { return pool.searches - blocks_[e.block].since; };
    std::int64_t ages = 0;
    for (const auto& e : whole) ages += age(e);
    for (std::int64_t reclaimed = 0; reclaimed < target && !whole.empty();) {
      const double limit = static_cast<double>(ages) / static_cast<double>(whole.size());
      std::erase_if(whole, [&](const FreeList::Entry& e) {
        if (static_cast<double>(age(e)) < limit) return false;
        reclaimed += e.size;
        ages -= age(e);
        release(pool, e);
        return true;
      });
    }
  }

  /// release_available_cached_blocks: oversize segments are never split, so the smallest that is large enough goes,
  /// else the largest ones until together they are.
  bool release_oversize(Pool& pool, std::int64_t size, std::int32_t stream) {
    if (config_.max_split_size == INT64_MAX) return false;
    const std::int64_t wanted = std::max(size, config_.max_split_size);
    const auto first = pool.free.lower_bound(stream, wanted);
    if (first != pool.free.end() && first->stream == stream && !blocks_[first->block].expandable) {
      release(pool, FreeList::Entry(*first));
      return true;
    }
    std::vector<FreeList::Entry> go;
    std::int64_t released = 0;
    for (auto at = first; at != pool.free.begin() && released < wanted;) {
      --at;
      if (at->stream != stream || at->size < config_.max_split_size) break;
      if (blocks_[at->block].expandable) continue;
      released += at->size;
      go.push_back(*at);
    }
    for (const auto& e : go) release(pool, e);
    return released >= wanted;
  }

  void reserve(std::int64_t bytes) {
    reserved_ += bytes;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
    nearness_.left = std::min(nearness_.left, config_.device_bytes - reserved_);
  }
  /// Whether the device has as much.
  bool has(std::int64_t bytes) {
    const std::int64_t lacking = reserved_ - (config_.device_bytes - bytes);
    if (lacking > 0) nearness_.lacking = std::min(nearness_.lacking, lacking);
    return lacking <= 0;
  }

  std::optional<FreeList::Place> find_free(Pool& pool, std::int64_t size, std::int32_t stream) {
    if (collects()) ++pool.searches;
    auto at = pool.free.lower_bound(stream, size);
    const auto end = pool.free.end();
    if (at == end || at->stream != stream) return std::nullopt;
    // A block at the end of what is mapped counts as the size that it can grow to: any other of at least its own size
    // that cannot grow as far goes first.
    const auto grows_by = [this](std::uint32_t block) {
      const auto next = blocks_[block].next;
      return next != no_block && !blocks_[next].mapped ? blocks_[next].size : 0;
    };
    if (config_.expandable_segments) {
      for (auto growth = grows_by(at->block); growth > 0;) {
        auto next = at;
        if (++next == end || next->stream != stream) break;
        const auto further = grows_by(next->block);
        if (next->size + further >= at->size + growth) break;
        at = next, growth = further;
      }
    }
    if (size < config_.max_split_size && at->size >= config_.max_split_size) return std::nullopt;
    if (size >= config_.max_split_size && at->size >= size + config_.max_non_split_rounding) return std::nullopt;
    return at;
  }

  std::uint32_t new_block(Pool& pool, std::int64_t size, std::int32_t stream) {
    const std::int64_t bytes = segment_bytes(size);
    if (allowed_ && reserved_ + bytes > *allowed_) return no_block;
    if (config_.expandable_segments) return expand(pool, size, stream);
    if (!has(bytes) || next_address_ > last_address - 2 * bytes) return no_block;
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

  /// What is left of a block, which belongs into the list; none: that is not worth splitting off.
  std::uint32_t split(const Pool& pool, std::uint32_t block, std::int64_t size) {
    const std::int64_t left = blocks_[block].size - size;
    const bool worth = pool.small || config_.expandable_segments ? left >= smallest
                                                                 : size < config_.max_split_size && left > small_size;
    if (!worth) return no_block;
    const auto rest = cut(block, size);
    blocks_[rest].since = pool.searches;
    return rest;
  }
  /// What is behind a block's first `size` bytes, as a block of its own.
  std::uint32_t cut(std::uint32_t block, std::int64_t size) {
    Block rest = blocks_[block];
    rest.address += size;
    rest.size -= size;
    rest.previous = block;
    const auto id = make(rest);
    if (rest.next != no_block) blocks_[rest.next].previous = id;
    blocks_[block].size = size;
    blocks_[block].next = id;
    return id;
  }

  bool can_merge(std::uint32_t block, std::uint32_t with) const {
    return with != no_block && !blocks_[with].allocated && blocks_[with].mapped == blocks_[block].mapped;
  }
  /// `block` (in no list) swallows its free neighbour `with`.
  void merge(Pool& pool, std::uint32_t block, std::uint32_t with) {
    if (!can_merge(block, with)) return;
    (blocks_[with].mapped ? pool.free : pool.unmapped).erase(entry(with));
    absorb(block, with);
  }
  void absorb(std::uint32_t block, std::uint32_t with) {
    auto& b = blocks_[block];
    const auto& w = blocks_[with];
    if (with == b.previous) {
      b.address = w.address;
      b.previous = w.previous;
      if (b.previous != no_block) blocks_[b.previous].next = block;
    } else {
      b.next = w.next;
      if (b.next != no_block) blocks_[b.next].previous = block;
    }
    b.size += w.size;
    unmake(with);
  }

  // ---- Expandable segments

  bool available(std::uint32_t block) const { return block != no_block && !blocks_[block].allocated; }

  /// find_expandable_block: the lowest address with room for `size` in free and unmapped blocks one after another.
  std::uint32_t find_expandable(Pool& pool, std::int64_t size, std::int32_t stream) {
    const auto end = pool.unmapped.end();
    for (auto at = pool.unmapped.lower_bound(stream, 0); at != end && at->stream == stream; ++at) {
      auto start = at->block;
      if (available(blocks_[start].previous)) start = blocks_[start].previous;
      std::int64_t room = 0;
      for (auto b = start; room < size && available(b); b = blocks_[b].next) room += blocks_[b].size;
      if (room >= size) return start;
    }
    // A new address range; the real one spans 1 1/8 of the device's memory.
    if (size > address_range || next_address_ > last_address - address_range) return no_block;
    Block range;
    range.address = range.base = next_address_;
    range.size = address_range;
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
    if (candidate == no_block) return no_block;
    if (!blocks_[candidate].mapped && !map(pool, candidate, std::min(blocks_[candidate].size, size))) return no_block;
    while (blocks_[candidate].size < size) {
      const auto next = blocks_[candidate].next;
      const std::int64_t missing = size - blocks_[candidate].size;
      if (!map(pool, next, std::min(missing, blocks_[next].size))) return no_block;
      candidate = next;
    }
    pool.free.erase(entry(candidate));
    return candidate;
  }

  /// map_block: maps pages for at least `size` bytes at the block's start and merges with free neighbours.
  bool map(Pool& pool, std::uint32_t block, std::int64_t size) {
    const std::int64_t page = pool.small ? config_.small_segment : config_.large_segment;
    const std::int64_t bytes = std::min(up(size, page), blocks_[block].size);
    if (!has(bytes)) return false;
    pool.unmapped.erase(entry(block));
    if (bytes < blocks_[block].size) pool.unmapped.insert(entry(cut(block, bytes)));
    blocks_[block].mapped = true;
    merge(pool, block, blocks_[block].previous);
    merge(pool, block, blocks_[block].next);
    insert_free(pool, block);
    reserve(bytes);
    return true;
  }

  /// unmap_block: gives whole free pages back.
  bool unmap(Pool& pool, std::uint32_t block) {
    const std::int64_t page = pool.small ? config_.small_segment : config_.large_segment;
    const Block old = blocks_[block];
    const std::int64_t from = old.base + up(old.address - old.base, page);
    const std::int64_t to = old.base + (old.address + old.size - old.base) / page * page;
    if (to <= from) return false;
    pool.free.erase(entry(block));
    reserved_ -= to - from;
    if (from > old.address) {
      Block before = old;
      before.size = from - old.address;
      before.next = block;
      const auto id = make(before);
      if (before.previous != no_block) blocks_[before.previous].next = id;
      blocks_[block].previous = id;
      insert_free(pool, id);
    }
    if (to < old.address + old.size) {
      Block after = old;
      after.address = to;
      after.size = old.address + old.size - to;
      after.previous = block;
      const auto id = make(after);
      if (after.next != no_block) blocks_[after.next].previous = id;
      blocks_[block].next = id;
      insert_free(pool, id);
    }
    blocks_[block].address = from;
    blocks_[block].size = to - from;
    blocks_[block].mapped = false;
    merge(pool, block, blocks_[block].previous);
    merge(pool, block, blocks_[block].next);
    pool.unmapped.insert(entry(block));
    return true;
  }

  AllocatorConfig config_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> unused_;
  Pool pools_[2];
  std::int64_t next_address_ = std::int64_t{1} << 48;
  std::optional<std::int64_t> given_address_;
  std::optional<std::int64_t> allowed_;  ///< by the process's memory fraction
  // Blocks that other streams use (record_stream).
  std::unordered_map<std::uint32_t, std::vector<std::int32_t>> recorded_;  ///< not freed yet: by whom
  std::unordered_map<std::uint32_t, std::size_t> outstanding_;             ///< freed: events that it still waits for
  std::map<std::int32_t, std::deque<Pending>> pending_;                    ///< by stream
  std::map<std::int32_t, std::uint64_t> passed_;
  bool may_be_over_ = false;  ///< something came to one of both
};

Allocator::Allocator(const AllocatorConfig& config) : state_(std::make_unique<State>(config)) {}
Allocator::Allocator(const Allocator& other) : state_(std::make_unique<State>(*other.state_)) {}
Allocator::~Allocator() = default;
Allocator::Allocator(Allocator&&) noexcept = default;
Allocator& Allocator::operator=(Allocator&&) noexcept = default;

std::optional<std::uint32_t> Allocator::allocate(std::int64_t bytes, std::int32_t stream) {
  return state_->allocate(bytes, stream);
}
void Allocator::retire(std::uint32_t handle) { state_->retire(handle); }
void Allocator::record_stream(std::uint32_t handle, std::int32_t stream) { state_->record_stream(handle, stream); }
std::uint64_t Allocator::free(std::uint32_t handle) { return state_->free(handle); }
void Allocator::passed(std::int32_t stream, std::uint64_t event) { state_->passed(stream, event); }
void Allocator::limit(std::int64_t device_bytes) { state_->limit(device_bytes); }
void Allocator::next_segment_at(std::int64_t address) { state_->next_segment_at(address); }
void Allocator::empty_cache() {
  state_->synchronize();
  state_->release_cached();
}
void Allocator::reset_peaks() {
  state_->peak_allocated_ = state_->allocated_;
  state_->peak_reserved_ = state_->reserved_;
}
std::int64_t Allocator::allocated() const { return state_->allocated_; }
std::int64_t Allocator::reserved() const { return state_->reserved_; }
std::int64_t Allocator::peak_allocated() const { return state_->peak_allocated_; }
std::int64_t Allocator::peak_reserved() const { return state_->peak_reserved_; }
std::int64_t Allocator::largest_free_block() const { return state_->largest_free(); }
std::int64_t Allocator::segment_bytes(std::int64_t requested) const {
  return state_->segment_bytes(state_->rounded(requested));
}
int Allocator::segments() const { return state_->segments_; }
std::int64_t Allocator::retries() const { return state_->retries_; }
Allocator::Nearness Allocator::nearness() const { return state_->nearness_; }
std::vector<Segment> Allocator::snapshot() const { return state_->snapshot(); }

void Allocator::describe(Likeness& state) const { state_->describe(state); }
void Allocator::describe(std::uint32_t handle, Likeness& state) const { state_->describe(handle, state); }
std::uint64_t Allocator::events() const { return state_->events_; }

std::int64_t Allocator::largest_allocation(std::int32_t stream) const {
  std::int64_t fits = 0, fails = std::int64_t{1} << 44;  // in blocks of 512 B
  for (fails /= smallest; fails - fits > 1;) {
    const std::int64_t middle = fits + (fails - fits) / 2;
    (Allocator(*this).allocate(middle * smallest, stream) ? fits : fails) = middle;
  }
  return fits * smallest;
}

}  // namespace pipewright::memory
