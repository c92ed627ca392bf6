// Fabricated CUPTI records.
#include "activity.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

namespace activity_test {

using namespace pipewright::capture;

//   launch 1: [memset 0-10] [gemm 12-100]      launch 2: [gemm 130-220]     untagged: [gate 0-300]
TEST_CASE("a span runs from the first activity's start to the last one's end") {
  Batch batch;
  batch.activities = {{"gemm", 12, 100, 2}, {"memset", 0, 10, 1}, {"gate", 0, 300, 9}, {"gemm", 130, 220, 3}};
  batch.tags = {{1, 1}, {2, 1}, {3, 2}};
  const auto result = spans(batch);
  REQUIRE(result.size() == 2);
  CHECK(result.at(1).start_ns == 0);
  CHECK(result.at(1).end_ns == 100);
  CHECK(result.at(1).busy_ns == 98);
  CHECK(result.at(1).activities == 2);
  CHECK(result.at(2).end_ns - result.at(2).start_ns == 90);
}

TEST_CASE("calls without GPU work share the tag of the launch") {
  Batch batch;
  batch.activities = {{"kernel", 5, 9, 41}};
  batch.tags = {{40, 7}, {41, 7}, {42, 7}};  // cudaFuncSetAttribute, the launch, cudaGetLastError
  CHECK(spans(batch).at(7).activities == 1);
}

TEST_CASE("dropped records fail the capture") {
  Batch batch;
  batch.activities = {{"kernel", 0, 1, 1}};
  batch.tags = {{1, 1}};
  batch.dropped = 3;
  CHECK_THROWS_WITH_AS(spans(batch), doctest::Contains("dropped 3"), std::runtime_error);
}

TEST_CASE("a launch without a record, and a record that ends before it starts, fail too") {
  Batch lost;
  lost.tags = {{1, 1}};
  CHECK_THROWS_WITH_AS(spans(lost), doctest::Contains("no record for launch 1"), std::runtime_error);
  Batch backwards;
  backwards.activities = {{"kernel", 10, 4, 1}};
  backwards.tags = {{1, 1}};
  CHECK_THROWS_AS(spans(backwards), std::runtime_error);
}

TEST_CASE("nothing recorded") { CHECK(spans({}).empty()); }

}  // namespace activity_test
