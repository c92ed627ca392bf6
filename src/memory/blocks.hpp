// What the allocator knows of its memory, and PyTorch's constants (c10/cuda/CUDACachingAllocator.cpp).
#pragma once

#include <bit>
#include <cstdint>

#include "free_list.hpp"

namespace pipewright::memory {

inline constexpr std::int64_t MiB = 1 << 20;
inline constexpr std::int64_t small_size = MiB;                       // kSmallSize
inline constexpr std::int64_t min_large_alloc = 10 * MiB;             // kMinLargeAlloc
inline constexpr std::int64_t large_rounding = 2 * MiB;               // kRoundLarge
inline constexpr std::int64_t smallest = 512;                         // kMinBlockSize
inline constexpr std::int64_t address_range = std::int64_t{1} << 50;  // of an expandable segment: no device is as large
inline constexpr std::int64_t last_address = std::int64_t{1} << 62;
inline constexpr std::int64_t largest_request = std::int64_t{1}
                                                << 48;  // more than any device: refused before it is rounded
inline constexpr std::uint32_t no_block = 0xffffffff;

inline std::int64_t up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// roundup_power2_next_division: the next of `divisions` equal steps between two powers of two.
inline std::int64_t round_to_division(std::int64_t size, std::int64_t divisions) {
  return up(size, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size))) / divisions);
}

struct Block {
  std::int64_t address = 0, size = 0;
  std::uint32_t previous = no_block, next = no_block;  ///< neighbours in the segment
  std::int32_t stream = 0;
  bool small = false, allocated = false, retired = false, mapped = true, expandable = false, exists = true;
  std::int64_t base = 0;   ///< of its expandable segment: pages count from there
  std::int64_t since = 0;  ///< its pool's searches when it became free (garbage collection)
};

struct Pool {
  bool small = false;
  FreeList free, unmapped;  ///< unmapped: by address within a stream (size 0 in the key)
  std::int64_t searches = 0;
};

/// A block that was freed while other streams used it waits for one of these on each.
struct Pending {
  std::uint64_t event = 0;
  std::uint32_t block = no_block;
};

}  // namespace pipewright::memory
