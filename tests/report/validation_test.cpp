// What `validate` prints.
#include <doctest/doctest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "../validate/fixture.hpp"
#include "fixture.hpp"
#include "golden.hpp"
#include "pipewright/report.hpp"

namespace validation_test {

using namespace pipewright;
using namespace pipewright::report;
using validate::Validation;

namespace {

Validation three() {
  auto v = validate::test::three(small_prediction());
  v.refused = {{"d", "has no section `measured`"}};
  return v;
}

}  // namespace

TEST_CASE("validate: text and JSON") {
  check_golden("validate.txt", validate_text(three()));
  check_golden("validate.json", validate_json(three()));
}

TEST_CASE("one run is not runs") {
  auto v = three();
  CHECK(validate_markdown(v).find(": 3 runs, ") != std::string::npos);
  v.cases.resize(1);
  CHECK(validate_markdown(v).find(": 1 run, ") != std::string::npos);
}

TEST_CASE("a run whose interval does not hold shows none, in text, Markdown and JSON") {
  auto v = three();
  const std::string ends[] = {"171.0 to 189.0", "171 to 189", "171.0"};
  const auto shown = [&] { return std::array{validate_text(v), validate_markdown(v), validate_json(v)}; };
  const auto before = shown();
  v.cases[1].prediction.ignored = {"moe_z_loss_coeff"};
  const auto after = shown();
  for (std::size_t i = 0; i < before.size(); ++i) {
    CAPTURE(after[i]);
    CHECK(before[i].find(ends[i]) != std::string::npos);
    CHECK(after[i].find(ends[i]) == std::string::npos);
  }
  CHECK(after[1].find("| none |") != std::string::npos);
}

TEST_CASE("nothing measured, nothing divided by") {
  Validation v;
  v.mode = "cold";
  const auto json = nlohmann::json::parse(validate_json(v));
  for (const char* key : {"time", "memory", "reserved", "outside"}) CHECK(json.at(key).is_null());
  for (const char* word : {"time:", "memory:", "tau"}) CHECK(validate_text(v, true).find(word) == std::string::npos);
  CHECK(validate_text(v, true).find("no run has a trace_summary") != std::string::npos);
  v = three();
  v.cases.resize(1);
  v.cases[0].cold = true;
  CHECK(validate_text(v).find("tau") == std::string::npos);
  CHECK(validate_text(v).find("cold, as no other run tells the speed of their machine: a\n") != std::string::npos);
  CHECK(nlohmann::json::parse(validate_json(v)).at("time").at("kendall_tau").is_null());
}

}  // namespace validation_test
