// The table of kernel families: names, formulas, and its copy in FORMAT.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "pipewright/profile.hpp"

namespace families_test {

using namespace pipewright;
using namespace pipewright::profile;

TEST_CASE("names are unique and links have a family of their own") {
  std::set<std::string> names;
  for (const auto& f : families()) CHECK_MESSAGE(names.insert(f.name).second, f.name);
  CHECK(family("all_gather.shared host memory").name == "all_gather.<link>");
  CHECK(family("send_recv.infiniband").dims == std::vector<std::string>{"bytes"});
  CHECK(find_family("send_recv.") == nullptr);
  CHECK(find_family("gemm.bf16.xx") == nullptr);
  CHECK_THROWS_AS(family("gemm"), InternalError);
}

TEST_CASE("work and traffic of a matrix product") {
  CHECK(family("gemm.bf16.tn").flop({2, 3, 5}) == 60);
  CHECK(family("gemm.bf16.tn").bytes({2, 3, 5}) == 2 * (2 * 5 + 3 * 5) + 2 * 6);
  CHECK(family("gemm.bf16.nt.acc_f32").bytes({2, 3, 5}) == 2 * (2 * 5 + 3 * 5) + 2 * 4 * 6);  // C is read and written
  CHECK(family("gemm.fp8.tn").bytes({2, 3, 5}) == 25 + 2 * 6);
}

TEST_CASE("causal attention counts the pairs below the diagonal") {
  // 4 queries, 4 keys: 10 pairs; 2 matmuls x 2 FLOP x 8 wide x 3 heads.
  CHECK(family("attention.forward.bf16").flop({1, 4, 4, 3, 1, 8}) == 2 * 2 * 8 * 3 * 10);
  CHECK(family("attention.backward.bf16").flop({1, 4, 4, 3, 1, 8}) == 2.5 * 2 * 2 * 8 * 3 * 10);
  // 2 queries at the end of 4 keys: 3 + 4 pairs.
  CHECK(family("attention.forward.bf16").flop({1, 2, 4, 1, 1, 1}) == 4 * 7);
  // q and o of 3 heads, k and v of one.
  CHECK(family("attention.forward.bf16").bytes({1, 4, 4, 3, 1, 8}) == 2 * (2 * 4 * 8 * 3 + 2 * 4 * 8));
}

TEST_CASE("collectives move (n-1)/n of the buffer, an all-reduce twice") {
  CHECK(family("all_gather.nvlink").bytes({4, 1000}) == 750);
  CHECK(family("all_reduce.nvlink").bytes({4, 1000}) == 1500);
  CHECK(family("send_recv.nvlink").bytes({1000}) == 1000);
}

TEST_CASE("a window counts the pairs of its band; one that sees all is none") {
  for (const std::int64_t queries : {1, 5, 64}) {
    for (const std::int64_t before : {0, 3, 40}) {
      const std::int64_t keys = queries + before;
      for (std::int64_t window = 1; window <= keys + 2; ++window) {
        double pairs = 0;
        for (std::int64_t q = 0; q < queries; ++q) pairs += static_cast<double>(std::min(window, before + q + 1));
        CAPTURE(queries);
        CAPTURE(before);
        CAPTURE(window);
        CHECK(family("attention.window.forward.bf16").flop({1, queries, keys, 1, 1, 1, window}) == 4.0 * pairs);
        CHECK(family("attention.sink.backward.bf16").flop({1, queries, keys, 1, 1, 1, window}) == 10.0 * pairs);
        if (window >= keys) CHECK(family("attention.forward.bf16").flop({1, queries, keys, 1, 1, 1}) == 4.0 * pairs);
      }
    }
  }
}

TEST_CASE("FORMAT.md lists every family with its dimensions and meaning") {
  const std::string text = read_file(std::getenv("FORMAT_MD"));
  const char* const loads[] = {"matrix", "attention", "memory", "network", "none"};
  for (const auto& f : families()) {
    std::string dims;
    for (const auto& d : f.dims) dims += (dims.empty() ? "" : ", ") + d;
    const std::string row = "| `" + f.name + "` | " + (dims.empty() ? "-" : dims) + " | " +
                            loads[static_cast<std::size_t>(f.load)] + " | " + f.what + " |\n";
    CHECK_MESSAGE(text.find(row) != std::string::npos, row);
  }
}

}  // namespace families_test
