// Recordings of allocator events that were damaged: replayed or refused by a UsageError, never anything else.
#include <doctest/doctest.h>

#include "../draws.hpp"
#include "../mutate.hpp"
#include "pipewright/memory.hpp"

namespace hostile_test {

using namespace pipewright;

namespace {

std::string recording(const char* conf) {
  return std::string(R"({"conf": ")") + conf +
         R"(", "columns": ["action", "address", "bytes", "stream", "time_us"], "marks": [0, 2, 4],
  "rows": [["segment_alloc", 4096, 2097152, 0, 0], ["alloc", 4096, 1024, 0, 1], ["alloc", 8192, 90000000, 0, 2],
  ["free_requested", 4096, 1024, 0, 3], ["alloc", 16384, 30000000, 7, 4], ["free_completed", 4096, 1024, 0, 5],
  ["free_completed", 8192, 90000000, 0, 6], ["alloc", 32768, 5000000, 0, 7], ["free_completed", 1, 2, 3, 4]]})";
}

}  // namespace

TEST_CASE("mutated recordings") {
  int replayed = 0;
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8"}) {
    const std::string seed = recording(conf);
    CHECK(memory::replay(seed, "seed").events == 7);
    for (unsigned round = 0; round < test::draws(1500); ++round) {
      const std::string text = test::Mutator(round)(seed);
      CAPTURE(text);
      try {
        const auto result = memory::replay(text, "mutant");
        CHECK(result.totals.allocated.value >= 0);
        CHECK(result.totals.reserved >= result.totals.allocated);
        CHECK(result.totals.peak_reserved >= result.totals.reserved);
        ++replayed;
      } catch (const UsageError&) {
      } catch (const std::exception& error) {
        FAIL(error.what());
      }
    }
  }
  CHECK(replayed > static_cast<int>(test::draws(100)));  // most mutants are no recording any more
}

TEST_CASE("wrong types and sizes are named") {
  const auto refused = [](const char* text, const char* what) {
    CHECK_THROWS_WITH_AS(memory::replay(text, "f"), doctest::Contains(what), UsageError);
  };
  refused(R"({"conf": 3, "rows": []})", "f: conf: expected a string, found 3");
  refused(R"({"rows": [], "marks": [0, 1, "x"]})", "f: marks: expected a list of row numbers");
  refused(R"({"rows": [], "marks": 7})", "f: marks: expected a list of row numbers");
  refused(R"({"rows": [["alloc", 1, -1, 0]]})", "rows[0]: -1 is not a size");
  refused(R"({"rows": [["alloc", 18446744073709551615, 1, 0]]})", "is not an address");
  refused(R"({"rows": [["alloc", 1, 1]]})", "rows[0]: expected [action");
  refused(R"({"rows": [["aloc", 1, 1, 0]]})", "rows[0]: unknown action \"aloc\"; allowed: alloc, ");
  refused(R"({"rows": [["aloc", 1, 1, 0]]})", "did you mean \"alloc\"?");
  refused(R"({"rows": [["alloc", 1, 1, 0], ["alloc", 1, 1, 0]]})", "rows[1]: address 1 is allocated already");
  refused(R"({"rows": [], "marks": [0, 1, 2]})", "marks: expected ascending numbers of 0 rows");
  refused(R"({"rows": [], "end": {"alloc": "x"}})", "end.alloc: expected bytes, found \"x\"");
  refused(R"({"rows": [], "end": {"alloc": 1}})", "end.reserved: is missing");
  refused(R"({"device_traces": [[]]})", "rows: is missing: this is a snapshot of torch.cuda.memory; a recording has");
  refused("\x80\x04\x95", "a Python pickle");
  refused(R"([1])", "rows");
  refused("{", "not a JSON document");
}

TEST_CASE("more than any device holds does not fit, with and without expandable segments") {
  for (const char* conf : {"", "expandable_segments:True"}) {
    memory::Allocator allocator(memory::parse_allocator_config(conf, {}));
    CHECK_FALSE(allocator.allocate(std::int64_t{1} << 62));
    CHECK_FALSE(allocator.allocate(INT64_MAX));
    CHECK(allocator.allocate(std::int64_t{1} << 46));
    std::int64_t given = 1;
    while (allocator.allocate(std::int64_t{1} << 47)) ++given;
    CHECK(allocator.allocated() == (std::int64_t{1} << 46) + (given - 1) * (std::int64_t{1} << 47));
    CHECK(allocator.reserved() >= allocator.allocated());
  }
}

TEST_CASE("many thousand holes cost no more than their number") {
  // Every second block is freed, so that nothing merges: 100,000 free blocks of different sizes.
  memory::Allocator allocator;
  std::vector<std::uint32_t> handles;
  constexpr std::int64_t n = 200'000;
  for (std::int64_t i = 0; i < n; ++i) handles.push_back(*allocator.allocate(512 * (1 + i * 7919 % 1900)));
  std::int64_t freed = 0;
  for (std::size_t i = 0; i < handles.size(); i += 2) {
    freed += memory::block_bytes(512 * (1 + static_cast<std::int64_t>(i) * 7919 % 1900));
    allocator.free(handles[i]);
  }
  CHECK(allocator.peak_allocated() - allocator.allocated() == freed);
  for (std::size_t i = 0; i < handles.size(); i += 2)
    handles[i] = *allocator.allocate(512 * (1 + static_cast<std::int64_t>(i) * 7919 % 1900));
  CHECK(allocator.allocated() == allocator.peak_allocated());
  CHECK(allocator.reserved() < allocator.allocated() * 102 / 100);  // holes are found again
}

}  // namespace hostile_test
