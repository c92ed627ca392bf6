// PyTorch's caching allocator: small cases by hand, and recordings of real runs to the byte. Runs in tests/memory.
#include <doctest/doctest.h>

#include "pipewright/memory.hpp"

namespace allocator_test {

using namespace pipewright;
using memory::Allocator;

namespace {
constexpr std::int64_t MiB = 1 << 20;
}

TEST_CASE("size classes: segments of 2 MiB, 20 MiB, or the request in steps of 2 MiB") {
  Allocator a;
  const auto tiny = a.allocate(1).value();
  CHECK(a.allocated() == 512);
  CHECK(a.reserved() == 2 * MiB);
  a.allocate(MiB);  // the largest of the small pool
  CHECK(a.reserved() == 2 * MiB);
  a.allocate(MiB + 1);
  CHECK(a.reserved() == 22 * MiB);
  a.allocate(10 * MiB);  // from the 20 MiB segment's rest
  CHECK(a.reserved() == 22 * MiB);
  a.allocate(11 * MiB);
  CHECK(a.reserved() == 34 * MiB);
  CHECK(a.segments() == 3);
  a.free(tiny);
  CHECK(a.allocated() == MiB + (MiB + 512) + 10 * MiB + 12 * MiB);  // 1 MiB is not worth splitting off
}

TEST_CASE("best fit, split, merge") {
  Allocator a;
  const auto big = a.allocate(100 * MiB).value(), fence = a.allocate(30 * MiB).value();
  a.free(big);
  const auto part = a.allocate(40 * MiB).value();  // splits the 100 MiB block
  CHECK(a.reserved() == 130 * MiB);
  CHECK(a.largest_free_block() == 60 * MiB);
  const auto exact = a.allocate(60 * MiB - 512).value();  // not worth splitting: less than 1 MiB would remain
  CHECK(a.allocated() == 130 * MiB);
  a.free(part);
  CHECK(a.largest_free_block() == 40 * MiB);
  a.free(exact);  // merges with its neighbour
  CHECK(a.largest_free_block() == 100 * MiB);
  a.free(fence);
  a.empty_cache();
  CHECK(a.reserved() == 0);
  CHECK(a.peak_reserved() == 130 * MiB);
}

TEST_CASE("fragmentation: a hole that is too small makes a new segment, an expandable segment grows") {
  const auto reserved = [](bool expandable) {
    memory::AllocatorConfig config;
    config.expandable_segments = expandable;
    Allocator a(config);
    const auto first = a.allocate(60 * MiB).value();
    a.free(first);
    a.allocate(80 * MiB);
    return a.reserved();
  };
  CHECK(reserved(false) == 140 * MiB);
  CHECK(reserved(true) == 80 * MiB);
}

TEST_CASE("at the device's limit cached segments are given back before it is out of memory") {
  memory::AllocatorConfig config;
  config.device_bytes = 200 * MiB;
  Allocator a(config);
  const auto first = a.allocate(150 * MiB).value();
  CHECK_FALSE(a.allocate(60 * MiB));
  a.free(first);
  CHECK(a.allocate(180 * MiB));
  CHECK(a.reserved() == 180 * MiB);
}

TEST_CASE("a retired block counts no more but cannot be used") {
  Allocator a;
  const auto first = a.allocate(40 * MiB).value();
  a.retire(first);
  CHECK(a.allocated() == 0);
  a.allocate(40 * MiB);
  CHECK(a.reserved() == 80 * MiB);
  a.free(first);
  a.allocate(40 * MiB);
  CHECK(a.reserved() == 80 * MiB);
}

TEST_CASE("options of the allocator") {
  const auto config = memory::parse_allocator_config("expandable_segments:True,max_split_size_mb:128", {});
  CHECK(config.expandable_segments);
  CHECK(config.max_split_size == 128 * MiB);
  CHECK_THROWS_WITH_AS(memory::parse_allocator_config("expandable_segment:True", {"run.yaml", 7}),
                       doctest::Contains("did you mean \"expandable_segments\""), UsageError);
  CHECK_THROWS_AS(memory::parse_allocator_config("expandable_segments:yes", {}), UsageError);
  CHECK_THROWS_AS(memory::parse_allocator_config("max_split_size_mb:-1", {}), UsageError);
}

TEST_CASE("recordings of real runs are reproduced to the byte") {
  for (const char* file : {"data/a_mem_pp4v2_m8.r0.mem.json.gz", "data/a_mem_pp4v2_m8_expandable.r3.mem.json.gz"}) {
    CAPTURE(file);
    const auto replay = memory::replay(read_file(file), file);
    REQUIRE(replay.recorded);
    CHECK(replay.recorded->peak_reserved > replay.recorded->peak_allocated);
    CHECK(replay.unknown_frees == 0);
    CHECK(replay.differs().empty());
    CHECK(replay.totals.reserved == replay.recorded->reserved);
    const auto other = memory::replay(read_file(file), file, "max_split_size_mb:64");
    CHECK_FALSE(other.as_recorded);
    CHECK(other.differs().empty());  // it is asked what would differ
  }
}

TEST_CASE("what a recording's end or segments say otherwise is told, whatever was lost") {
  // A process that fills, gives back, and fills again.
  const auto recording = [](const std::string& skipped) {
    std::string rows;
    for (const char* row : {R"(["segment_alloc", 4096, 20971520, 0])", R"(["alloc", 4096, 10000000, 0])",
                            R"(["free_requested", 4096, 10000000, 0])", R"(["free_completed", 4096, 10000000, 0])",
                            R"(["segment_free", 4096, 20971520, 0])", R"(["segment_alloc", 8192, 31457280, 0])",
                            R"(["alloc", 8192, 30000000, 0])", R"(["snapshot", 0, 0, 0])", R"(["oom", 5, 1000, 0])"})
      if (row != skipped) rows += (rows.empty() ? "" : ",") + std::string(row);
    return R"({"rows": [)" + rows +
           R"(], "end": {"alloc": 30000128, "alloc_max": 30000128, "reserved": 31457280, "reserved_max": 31457280}})";
  };
  const auto whole = memory::replay(recording(""), "x");
  CHECK(whole.differs().empty());
  CHECK(whole.given_back == 1);
  CHECK(whole.out_of_memory == 1);
  CHECK(whole.recorded_segments == 1);
  for (const char* lost : {R"(["alloc", 8192, 30000000, 0])", R"(["free_completed", 4096, 10000000, 0])",
                           R"(["segment_free", 4096, 20971520, 0])", R"(["segment_alloc", 4096, 20971520, 0])"}) {
    CAPTURE(lost);
    CHECK_FALSE(memory::replay(recording(lost), "x").differs().empty());
  }
}

TEST_CASE("broken recordings are refused") {
  CHECK_THROWS_AS(memory::replay("{", "x.json"), UsageError);
  CHECK_THROWS_AS(memory::replay("[]", "x.json"), UsageError);
  CHECK_THROWS_AS(memory::replay(R"({"rows": [["alloc", "here"]]})", "x.json"), UsageError);
  CHECK_THROWS_AS(memory::replay(R"({"rows": [["alloc", 1, -5, 0]]})", "x.json"), UsageError);
}

}  // namespace allocator_test
