// What people and programs are shown of one small step.
#include "pipewright/report.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fixture.hpp"
#include "golden.hpp"
#include "pipewright/trace.hpp"

namespace report_test {

using namespace pipewright;
using namespace pipewright::report;
using nlohmann::json;

TEST_CASE("simulate: text and JSON") {
  const auto p = small_prediction();
  check_golden("simulate.txt", simulate_text(p));
  check_golden("simulate.json", simulate_json(p));
}

TEST_CASE("no line of text is wider than 120 columns") {
  std::istringstream text(simulate_text(small_prediction()));
  for (std::string line; std::getline(text, line);) CHECK_MESSAGE(line.size() <= 120, line);
}

TEST_CASE("a rank's parts add up to the step in the JSON") {
  const auto out = json::parse(simulate_json(small_prediction()));
  for (const auto& rank : out["ranks"]) {
    double sum = rank["busy_ms"].get<double>() + rank["bubble_ms"].get<double>() + rank["idle_ms"].get<double>();
    for (const auto& [cause, ms] : rank["exposed_ms"].items()) sum += ms.get<double>();
    CHECK(sum == doctest::Approx(out["step_time_ms"].get<double>()).epsilon(1e-12));
  }
}

TEST_CASE("text that is not UTF-8 does not stop a report") {
  auto p = small_prediction();
  p.scenario = "caf\xe9";
  CHECK_NOTHROW(json::parse(simulate_json(p)));
  CHECK_NOTHROW(json::parse(trace(p, small_run()).text));
}

TEST_CASE("trace: slices, names and one arrow a transfer") {
  const auto out = json::parse(trace(small_prediction(), small_run()).text);
  int kernels = 0, transfers = 0, ops = 0;
  std::map<int, json> begun;
  for (const auto& event : out["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "X" && event["cat"] == "op") ++ops;
    if (phase == "X" && event["cat"] == "p2p") ++transfers;
    if (phase == "X" && event["args"].contains("shape")) ++kernels;
    if (phase == "s") begun[event["id"]] = event;
    if (phase == "f") {
      const auto& send = begun.at(event["id"]);
      CHECK(send["pid"] != event["pid"]);
      CHECK(send["ts"].get<double>() <= event["ts"].get<double>());
    }
  }
  CHECK(kernels == 10);
  CHECK(transfers == 4);
  CHECK(begun.size() == 2);
  CHECK(ops == 6);  // F, B and optimizer on each rank
}

TEST_CASE("trace: what does not fit is left out by length, over the whole step, and that is said") {
  const auto all = trace(small_prediction(), small_run()), some = trace(small_prediction(), small_run(), {}, false, 4);
  CHECK(all.left_out.empty());
  CHECK(some.left_out.starts_with("kernels shorter than 100.001 us: "));
  const auto out = json::parse(some.text);
  CHECK(out["otherData"]["left out"] == some.left_out);
  double last = 0;
  int kernels = 0, ops = 0;
  for (const auto& event : out["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ops += event["cat"] == "op" ? 1 : 0;
    if (!event["args"].contains("shape")) continue;
    ++kernels;
    CHECK(event["dur"].get<double>() > 100);
    last = std::max(last, event["ts"].get<double>());
  }
  CHECK(kernels == 2);
  CHECK(last == 900);
  CHECK(ops == 6);
}

TEST_CASE("a packed trace holds the same text, and the same bytes every time") {
  const std::string path = (std::filesystem::temp_directory_path() / "pipewright_report_test.json.gz").string();
  const std::string text = trace(small_prediction(), small_run()).text;
  const auto packed = trace(small_prediction(), small_run(), {}, true);
  CHECK(packed.text == trace(small_prediction(), small_run(), {}, true).text);
  write_file(path, packed.text);
  CHECK(read_file(path) == text);
  std::filesystem::remove(path);
}

TEST_CASE("explain an op: what it waited for and its kernels") {
  const auto run = small_run();
  check_golden("explain_op.txt", explain_op_text(run, 1, "F 0.0"));
  const auto out = json::parse(explain_op_json(run, 0, "b0.0"));
  CHECK(out["op"] == "B 0.0");
  REQUIRE(out["waited"].size() == 1);
  CHECK(out["waited"][0]["ms"] == 0.6);
  CHECK(out["waited"][0]["for"] ==
        "receive B 0.0 from rank 1: posted here at 0.26 ms, by rank 1 at 0.75 ms, across at 0.80 ms");
  CHECK(out["kernels"][0]["recompute"] == true);
}

TEST_CASE("explain refuses ops and ranks that do not exist") {
  const auto run = small_run();
  CHECK_THROWS_AS(explain_op_text(run, 2, "F 0.0"), UsageError);
  CHECK_THROWS_AS(explain_op_text(run, -1, "F 0.0"), UsageError);
  for (const char* op : {"F 1.0", "F 0.1", "X 0.0", "F", "F 0.0.0", "F -1", "F 99999999999999999999"}) {
    CHECK_THROWS_AS(explain_op_text(run, 0, op), UsageError);
  }
  CHECK_THROWS_AS(explain_peak_text(small_prediction(), 2), UsageError);
}

TEST_CASE("explain a peak") { check_golden("explain_peak.txt", explain_peak_text(small_prediction(), 0)); }

TEST_CASE("check: text and JSON") {
  const std::vector<plan::Finding> findings = {{"recompute-core-attn",
                                                plan::Severity::trap,
                                                {"recompute_modules"},
                                                "the peak becomes higher",
                                                "drop it",
                                                "x.py:1"}};
  check_golden("check.txt", check_text(findings));
  check_golden("check.json", check_json(findings));
  CHECK(check_text({}) == "no findings\n");
  CHECK(check_json({}) == "{\n \"findings\": []\n}\n");
}

}  // namespace report_test
