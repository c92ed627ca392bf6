// What `validate` prints.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "../validate/fixture.hpp"
#include "fixture.hpp"
#include "golden.hpp"
#include "pipewright/report.hpp"

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

TEST_CASE("nothing measured, nothing divided by") {
  Validation v;
  v.mode = "cold";
  CHECK_NOTHROW(nlohmann::json::parse(validate_json(v)));
}
