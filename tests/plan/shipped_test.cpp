// The scenarios that come with the program: each is legal for its versions and has a step time.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "../on_h200.hpp"
#include "pipewright/plan.hpp"

using namespace pipewright;

TEST_CASE("shipped scenarios: read, legal, estimated") {
  const std::string root = SOURCE_ROOT;
  const profile::Profiles profiles({profile::load(root + "/profiles/h100-sxm.json", {"test", 0})});
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(root + "/scenarios")) {
    if (file.path().extension() != ".yaml") continue;
    const auto s = scenario::read(file.path().string());
    CAPTURE(s.name);
    ++count;
    CHECK_NOTHROW(scenario::check(s));
    for (const auto& finding : plan::check(s)) {
      CAPTURE(finding.rule);
      CAPTURE(finding.message);
      CHECK(finding.severity != plan::Severity::violation);
    }
    CHECK_FALSE(test::build(s).pieces.empty());
    const auto quick = predict::estimate(s, profiles);
    CHECK(quick.tflops_per_gpu > 100);
    CHECK(quick.tflops_per_gpu < 1000);
  }
  CHECK(count >= 8);
}
