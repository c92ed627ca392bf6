// The text of torch.OutOfMemoryError, word for word as c10/cuda/CUDACachingAllocator.cpp
// (DeviceCachingAllocator::malloc, torch 2.11) puts it together, so that what the program prints can be compared with
// it.
#include <fmt/format.h>

#include "pipewright/memory.hpp"

namespace pipewright::memory {
namespace {

/// format_size.
std::string size(Bytes bytes) {
  const auto value = static_cast<double>(bytes.value);
  if (bytes.value <= 1024) return fmt::format("{} bytes", bytes.value);
  if (bytes.value <= 1 << 20) return fmt::format("{:.2f} KiB", value / 1024);
  if (bytes.value <= 1 << 30) return fmt::format("{:.2f} MiB", value / (1 << 20));
  return fmt::format("{:.2f} GiB", value / (1 << 30));
}

}  // namespace

std::string out_of_memory_message(const Failure& f, Bytes device_total, Bytes outside_allocator, int gpu) {
  const Bytes in_use = f.reserved + f.graph_pool + outside_allocator;
  const std::string pools =
      f.graph_pool.value > 0
          ? fmt::format("with {} allocated in private pools (e.g., CUDA Graphs), ", size(f.graph_pool))
          : "";
  return fmt::format(
      "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. Including "
      "non-PyTorch memory, this process has {} memory in use. Of the allocated memory {} is allocated by PyTorch, "
      "{}and "
      "{} is reserved by PyTorch but unallocated.",
      size(f.segment), gpu, size(device_total), size(device_total - in_use), size(in_use),
      size(f.allocated + f.graph_pool), pools, size(f.reserved - f.allocated));
}

}  // namespace pipewright::memory
