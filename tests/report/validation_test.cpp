// What `validate` prints.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "fixture.hpp"
#include "golden.hpp"
#include "pipewright/report.hpp"

using namespace pipewright;
using namespace pipewright::report;
using validate::Case;
using validate::Validation;

namespace {

/// A run with one measured rank; times in ms, peaks in bytes.
Case run(const char* name, double measured_ms, double predicted_ms, std::int64_t measured_peak, std::int64_t peak) {
  Case c;
  c.scenario.name = name;
  c.scenario.measured.emplace();
  c.scenario.measured->forward_backward_ms = measured_ms;
  scenario::MeasuredRank rank;
  rank.rank = 4;
  rank.pp_rank = 1;
  rank.peak_allocated_bytes = Bytes(measured_peak);
  rank.peak_reserved_bytes = Bytes(measured_peak + 1);
  c.scenario.environment["NAME"] = name;  // three configurations, not three repetitions
  c.scenario.measured->ranks = {rank};
  c.prediction = small_prediction();
  c.prediction.forward_backward_ns = static_cast<std::int64_t>(predicted_ms * 1e6);
  c.prediction.optimizer_ns = 10'000'000;
  c.prediction.interval_low_ns = static_cast<std::int64_t>(predicted_ms * 0.95e6) + 10'000'000;
  c.prediction.interval_high_ns = static_cast<std::int64_t>(predicted_ms * 1.05e6) + 10'000'000;
  c.prediction.ranks[1].peak_allocated = Bytes(peak);
  return c;
}

Validation three() {
  Validation v;
  v.mode = "cold";
  v.cases = {run("a", 100, 102, 1000, 990), run("b", 200, 180, 1000, 1030), run("c", 150, 150, 1000, 1000)};
  v.refused = {{"d", "has no section `measured`"}};
  return v;
}

}  // namespace

TEST_CASE("validate: text and JSON") {
  check_golden("validate.txt", validate_text(three()));
  check_golden("validate.json", validate_json(three()));
}

TEST_CASE("nothing measured, nothing divided by") {
  Validation v;
  v.mode = "cold";
  CHECK_NOTHROW(nlohmann::json::parse(validate_json(v)));
}
