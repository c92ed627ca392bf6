// What PYTORCH_CUDA_ALLOC_CONF, other streams and a full device do to PyTorch's caching allocator: programs of a few
// lines whose outcome is worked out by hand from c10/cuda/CUDACachingAllocator.cpp (torch 2.11). Runs in tests/memory.
#include <doctest/doctest.h>

#include "pipewright/memory.hpp"

namespace allocator_options_test {

using namespace pipewright;
using memory::Allocator;
using memory::AllocatorConfig;

namespace {

constexpr std::int64_t MiB = 1 << 20;

AllocatorConfig parsed(const std::string& conf) { return memory::parse_allocator_config(conf, {"run.yaml", 7}); }

/// Cached segments of 40 and 60 MiB, the first one longer ago; 80 and 90 MiB in use; then 100 MiB are asked for.
std::int64_t reserved_with_two_cached(double threshold, double fraction) {
  AllocatorConfig config;
  config.garbage_collection_threshold = threshold;
  config.per_process_memory_fraction = fraction;
  config.device_total = 800 * MiB;
  Allocator a(config);
  a.free(a.allocate(40 * MiB).value());
  a.free(a.allocate(60 * MiB).value());
  a.allocate(80 * MiB);
  a.allocate(90 * MiB);
  CHECK(a.reserved() == 270 * MiB);
  a.allocate(100 * MiB);
  return a.reserved();
}

}  // namespace

TEST_CASE("garbage collection: whole cached segments of at least average age, down to the threshold") {
  // 270 MiB against 0.5 x 400: the average age of 4 and 3 searches is 3.5, so 40 MiB go, then 60 as well.
  CHECK(reserved_with_two_cached(0.5, 0.5) == (270 - 100 + 100) * MiB);
  // Against 0.6 x 400 = 240 MiB: 40 MiB are enough.
  CHECK(reserved_with_two_cached(0.6, 0.5) == (270 - 40 + 100) * MiB);
  CHECK(reserved_with_two_cached(0.9, 0.5) == (270 + 100) * MiB);
  // Without a memory fraction nothing is collected (allowed_memory_maximum is not set), without a threshold neither.
  CHECK(reserved_with_two_cached(0.5, 1) == (270 + 100) * MiB);
  CHECK(reserved_with_two_cached(0, 0.5) == (270 + 100) * MiB);
}

TEST_CASE("garbage collection leaves segments that are in part in use") {
  AllocatorConfig config;
  config.garbage_collection_threshold = 0.1;
  config.per_process_memory_fraction = 0.5;
  config.device_total = 800 * MiB;
  Allocator a(config);
  const auto whole = a.allocate(40 * MiB).value();
  a.free(whole);
  a.allocate(10 * MiB);  // splits it
  a.allocate(60 * MiB);
  CHECK(a.reserved() == 100 * MiB);
}

TEST_CASE("a memory fraction limits reserved memory, cached segments are given back first") {
  AllocatorConfig config;
  config.per_process_memory_fraction = 0.25;
  config.device_total = 400 * MiB;
  Allocator a(config);
  const auto first = a.allocate(60 * MiB).value();
  CHECK_FALSE(a.allocate(60 * MiB));
  a.free(first);
  CHECK(a.allocate(80 * MiB));
  CHECK(a.reserved() == 80 * MiB);
  CHECK(a.retries() == 2);
}

TEST_CASE("a freed block waits for an event on every stream that recorded it, in the order of each stream") {
  Allocator a;
  const auto both = a.allocate(40 * MiB).value(), one = a.allocate(30 * MiB).value();
  a.record_stream(both, 1);
  a.record_stream(both, 2);
  a.record_stream(both, 0);  // its own stream counts for nothing
  a.record_stream(one, 1);
  const auto first = a.free(both), second = a.free(one);
  CHECK(second > first);
  CHECK(a.allocated() == 0);
  a.passed(1, second);  // `one` is free, `both` waits for stream 2
  const auto again = a.allocate(30 * MiB).value();
  CHECK(a.reserved() == 70 * MiB);
  const auto other = a.allocate(40 * MiB).value();
  CHECK(a.reserved() == 110 * MiB);
  a.passed(2, first);
  a.free(again);
  CHECK(a.allocate(40 * MiB));
  CHECK(a.reserved() == 110 * MiB);
  CHECK(a.free(other) == 0);
}

TEST_CASE("before it is out of memory the allocator waits for events and frees what they held") {
  AllocatorConfig config;
  config.device_bytes = 100 * MiB;
  Allocator a(config);
  const auto sent = a.allocate(70 * MiB).value();
  a.record_stream(sent, 1);
  const auto event = a.free(sent);
  CHECK(a.allocate(80 * MiB));
  CHECK(a.reserved() == 80 * MiB);
  CHECK(a.retries() == 1);
  a.passed(1, event);  // too late to matter
  CHECK(a.allocate(15 * MiB));
}

TEST_CASE("max_split_size_mb: oversize blocks are not split, serve requests up to the rounding, go back one by one") {
  auto config = parsed("max_split_size_mb:32");
  config.device_bytes = 200 * MiB;
  Allocator a(config);
  a.free(a.allocate(100 * MiB).value());
  a.allocate(12 * MiB);  // smaller than 32 MiB: not from an oversize block
  CHECK(a.reserved() == 112 * MiB);
  const auto rounded = a.allocate(90 * MiB).value();  // 100 < 90 + 20
  CHECK(a.allocated() == 112 * MiB);
  a.free(rounded);
  a.allocate(60 * MiB);  // 100 >= 60 + 20
  CHECK(a.reserved() == 172 * MiB);
  a.allocate(70 * MiB);  // no room: the cached 100 MiB are large enough and go
  CHECK(a.reserved() == 142 * MiB);
  CHECK(a.retries() == 0);
  CHECK_THROWS_WITH_AS(parsed("max_split_size_mb:10"),
                       doctest::Contains("at least the size of a large segment, 20 MiB"), UsageError);
  CHECK(parsed("max_split_size_mb:10,large_segment_size_mb:8").max_split_size == 10 * MiB);
}

TEST_CASE("max_split_size_mb: several oversize blocks go where none alone is large enough") {
  auto config = parsed("max_split_size_mb:32");
  config.device_bytes = 130 * MiB;
  Allocator a(config);
  const auto x = a.allocate(40 * MiB).value(), y = a.allocate(50 * MiB).value();
  a.free(x);
  a.free(y);
  a.allocate(80 * MiB);  // gives 50, then 40 back
  CHECK(a.reserved() == 80 * MiB);
  CHECK(a.retries() == 0);
}

TEST_CASE("large_segment_size_mb") {
  Allocator a(parsed("large_segment_size_mb:64"));
  a.allocate(2 * MiB);
  CHECK(a.reserved() == 64 * MiB);
  a.allocate(10 * MiB);  // from the rest; a new segment would have its own size
  CHECK(a.reserved() == 64 * MiB);
}

TEST_CASE("roundup_power2_divisions: steps between powers of two, by size class") {
  Allocator a(parsed("roundup_power2_divisions:4"));
  a.allocate(MiB + 200 * 1024);  // 1 MiB in 4 steps of 256 KiB
  CHECK(a.allocated() == MiB + 256 * 1024);
  a.allocate(1024);  // not above 4 x 512 B
  CHECK(a.allocated() == MiB + 256 * 1024 + 1024);

  const auto by_size = [](const std::string& conf, std::int64_t mebibytes) {
    int index = 0;
    while ((std::int64_t{2} << index) <= mebibytes) ++index;
    return parsed("roundup_power2_divisions:" + conf).roundup_power2_divisions.at(static_cast<std::size_t>(index));
  };
  const std::string listed = "[64:8,128:2,256:4,1024:1,>:16]";
  CHECK(by_size(listed, 1) == 8);  // up to the first size: its divisions
  CHECK(by_size(listed, 64) == 8);
  CHECK(by_size(listed, 128) == 2);
  CHECK(by_size(listed, 512) == 0);  // between: none
  CHECK(by_size(listed, 1024) == 1);
  CHECK(by_size(listed, 2048) == 16);
  CHECK(by_size(listed, 32768) == 16);
  CHECK_THROWS_AS(parsed("roundup_power2_divisions:3"), UsageError);
  CHECK_THROWS_AS(parsed("roundup_power2_divisions:[64:8"), UsageError);
  CHECK_THROWS_AS(parsed("roundup_power2_divisions:[64,8]"), UsageError);
  CHECK(parsed("roundup_power2_divisions:[64:8,>:1],expandable_segments:True").expandable_segments);
}

TEST_CASE("thresholds and fractions are shares") {
  CHECK(parsed("garbage_collection_threshold:0.8").garbage_collection_threshold == 0.8);
  CHECK(parsed("per_process_memory_fraction: 1").per_process_memory_fraction == 1);
  for (const char* wrong : {"garbage_collection_threshold:1", "garbage_collection_threshold:0",
                            "garbage_collection_threshold:x", "per_process_memory_fraction:1.5"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parsed(wrong), UsageError);
  }
}

TEST_CASE("expandable segments: pages of one stream's free memory serve another when the device is full") {
  AllocatorConfig config;
  config.expandable_segments = true;
  config.device_bytes = 100 * MiB;
  Allocator a(config);
  a.free(a.allocate(60 * MiB, 0).value());
  CHECK(a.allocate(80 * MiB, 1));
  CHECK(a.reserved() == 80 * MiB);
  CHECK(a.largest_allocation() == 20 * MiB);
}

TEST_CASE("expandable segments: a page that is used in part stays") {
  AllocatorConfig config;
  config.expandable_segments = true;
  config.device_bytes = 100 * MiB;
  Allocator a(config);
  const auto first = a.allocate(50 * MiB).value();  // pages 1 to 3
  a.allocate(5 * MiB);                              // the end of page 3
  a.free(first);
  CHECK(a.reserved() == 60 * MiB);
  CHECK(a.largest_free_block() == 50 * MiB);
  CHECK(a.largest_allocation() == 85 * MiB);  // 5 behind it in page 3, pages 1 and 2 again and 40 of the device
  CHECK(a.allocate(40 * MiB, 1));
  CHECK(a.reserved() == 100 * MiB);
}

TEST_CASE("a segment that is used in part cannot be given back, whatever else is free") {
  AllocatorConfig config;
  config.device_bytes = 100 * MiB;
  Allocator a(config);
  const auto first = a.allocate(60 * MiB).value();
  a.free(first);
  const auto small = a.allocate(12 * MiB).value();  // pins 48 MiB
  CHECK(a.largest_free_block() == 48 * MiB);
  CHECK(a.largest_allocation() == 48 * MiB);
  CHECK_FALSE(a.allocate(50 * MiB));
  const auto segments = a.snapshot();
  REQUIRE(segments.size() == 1);
  CHECK(segments[0].bytes == 60 * MiB);
  CHECK(segments[0].used == 12 * MiB);
  REQUIRE(segments[0].blocks.size() == 2);
  CHECK(segments[0].blocks[0].handle == small);
  a.free(small);
  CHECK(a.allocate(90 * MiB));
}

TEST_CASE("copies of an allocator go their own ways") {
  Allocator a;
  const auto x = a.allocate(40 * MiB).value();
  Allocator b = a;
  b.free(x);
  CHECK(a.allocated() == 40 * MiB);
  CHECK(b.allocated() == 0);
}

TEST_CASE("the message of torch.OutOfMemoryError") {
  memory::Failure f;
  f.segment = Bytes(512 * MiB);
  f.allocated = Bytes(50LL << 30);
  f.reserved = Bytes(60LL << 30);
  CHECK(
      memory::out_of_memory_message(f, Bytes(80LL << 30), Bytes((19LL << 30) + (924 << 20)), 3) ==
      "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 80.00 GiB of which 100.00 MiB "
      "is "
      "free. Including non-PyTorch memory, this process has 79.90 GiB memory in use. Of the allocated memory 50.00 GiB "
      "is allocated by PyTorch, and 10.00 GiB is reserved by PyTorch but unallocated.");
  f.graph_pool = Bytes(1LL << 30);
  f.segment = Bytes(2 * MiB);
  const auto message = memory::out_of_memory_message(f, Bytes(80LL << 30), Bytes(18LL << 30), 0);
  CHECK(message.find(
            "51.00 GiB is allocated by PyTorch, with 1024.00 MiB allocated in private pools (e.g., CUDA Graphs), "
            "and 10.00 GiB is reserved") != std::string::npos);
}

}  // namespace allocator_options_test
