// The allocator's list of free blocks against a sorted set, over drawn changes.
#include "../../src/memory/free_list.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <vector>

namespace free_list_test {

using pipewright::memory::FreeList;
using Entry = FreeList::Entry;

namespace {

bool same(const Entry& a, const Entry& b) {
  return a.stream == b.stream && a.size == b.size && a.address == b.address && a.block == b.block;
}

void compare(const FreeList& list, const std::set<Entry>& all) {
  auto at = list.begin();
  for (const Entry& entry : all) {
    REQUIRE(at != list.end());
    REQUIRE(same(*at, entry));
    ++at;
  }
  REQUIRE(at == list.end());
}

}  // namespace

TEST_CASE("order, best fit and neighbours are those of a sorted set") {
  // Few sizes make long runs of equal ones, many make short ones; a full list is emptied and filled again.
  for (const int sizes : {1, 7, 100000}) {
    CAPTURE(sizes);
    std::mt19937 draw(7);
    FreeList list;
    std::set<Entry> all;
    std::vector<Entry> held;
    const auto drawn = [&](int below) { return static_cast<int>(draw() % static_cast<unsigned>(below)); };
    std::uint32_t block = 0;
    for (int round = 0; round < 4; ++round) {
      for (const bool grow : {true, false}) {
        for (int i = 0; i < 1500; ++i) {
          if (held.empty() || drawn(4) < (grow ? 3 : 1)) {
            const Entry entry{512LL * (1 + drawn(sizes)), 512LL * drawn(1 << 30), drawn(3) - 1, block++};
            if (!all.insert(entry).second) continue;
            list.insert(entry);
            held.push_back(entry);
          } else if (drawn(3) == 0) {
            Entry& old = held[static_cast<std::size_t>(drawn(static_cast<int>(held.size())))];
            // Mostly a little larger or smaller than what it takes the place of, as holes that shrink and grow are.
            Entry fresh = old;
            fresh.size = std::max<std::int64_t>(512, old.size + 512LL * (drawn(5) - 2));
            fresh.address = 512LL * drawn(1 << 30);
            if (drawn(4) == 0) fresh.size = 512LL * (1 + drawn(sizes)), fresh.stream = drawn(3) - 1;
            if (all.contains(fresh)) continue;
            list.replace(old, fresh);
            all.erase(old);
            all.insert(fresh);
            old = fresh;
          } else {
            std::swap(held[static_cast<std::size_t>(drawn(static_cast<int>(held.size())))], held.back());
            // By its place the first of its size goes, which may be another.
            const auto place = list.lower_bound(held.back().stream, held.back().size);
            const Entry gone = i % 2 == 0 ? *place : held.back();
            if (i % 2 == 0)
              list.erase(place);
            else
              list.erase(gone);
            all.erase(gone);
            std::erase_if(held, [&](const Entry& one) { return same(one, gone); });
          }
          const std::int32_t stream = drawn(4) - 1;
          const std::int64_t size = 512LL * drawn(sizes + 2);
          const auto found = list.lower_bound(stream, size);
          const auto expected = all.lower_bound(Entry{size, 0, stream, 0});
          REQUIRE((found == list.end()) == (expected == all.end()));
          if (expected == all.end()) continue;
          REQUIRE(same(*found, *expected));
          if (expected == all.begin()) continue;
          auto before = found;
          --before;
          REQUIRE(same(*before, *std::prev(expected)));
        }
        compare(list, all);
      }
    }
    const FreeList copy = list;
    for (const Entry& entry : held) list.erase(entry);
    CHECK(list.begin() == list.end());
    compare(copy, all);
  }
}

}  // namespace free_list_test
