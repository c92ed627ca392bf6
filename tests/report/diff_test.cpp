// Two predictions beside each other, also those that are none.
#include "pipewright/diff.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "fixture.hpp"
#include "pipewright/report.hpp"

namespace diff_test {

using namespace pipewright;
using namespace pipewright::report;
using Json = nlohmann::json;

namespace {

/// As the command does it, once with itself.
void compare(const std::string& json) {
  const auto read = read_prediction(json, "p.json");
  if (!read) return;
  diff_text(diff_json({"a", read->prediction, nullptr, {}}, {"b", read->prediction, nullptr, {}}));
}

/// Each value anywhere in a JSON in turn becomes something else, or is not there.
template <class Each>
void each_changed(const Json& whole, const Each& body) {
  const Json flat = whole.flatten();
  for (const auto& [pointer, ignored] : flat.items())
    for (auto at = Json::json_pointer(pointer); !at.empty(); at = at.parent_pointer()) {
      for (const Json& other : {Json(), Json(7), Json(-1.5), Json(1e300), Json(18446744073709551615U), Json(0),
                                Json("x"), Json(true), Json::array(), Json::object(), Json::array({Json::object()})}) {
        Json changed = whole;
        changed[at] = other;
        body(changed);
      }
      if (Json changed = whole; changed[at.parent_pointer()].is_object()) {
        changed[at.parent_pointer()].erase(at.back());
        body(changed);
      }
    }
}

}  // namespace

TEST_CASE("whatever stands in a prediction or a plan, it is compared or refused with file and key") {
  const Json prediction = Json::parse(simulate_json(small_prediction()));
  const Json plan = {{"searched", 3}, {"best", {{"prediction", prediction}, {"scenario", "scenario: 1"}}}};
  for (const Json& whole : {prediction, plan}) {
    CHECK_NOTHROW(compare(whole.dump()));
    int refused = 0;
    each_changed(whole, [&](const Json& changed) {
      try {
        compare(changed.dump());
      } catch (const UsageError& error) {
        ++refused;
        CHECK(error.where().file == "p.json");
      } catch (const std::exception& error) {
        FAIL_CHECK(error.what() << " of " << changed.dump());
      }
    });
    CHECK(refused > 200);
  }
  Json bad = prediction;
  bad["ranks"][1]["peak_owners"][0]["bytes"] = "x";
  CHECK_THROWS_WITH_AS(compare(bad.dump()),
                       "p.json: ranks[1].peak_owners[0].bytes: expected a whole number, 0 to 2^62, found \"x\"",
                       UsageError);
  CHECK_THROWS_WITH_AS(compare(R"({"searched": 1, "best": {}})"), "p.json: best.prediction: missing", UsageError);
}

}  // namespace diff_test
