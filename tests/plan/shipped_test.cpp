// The scenarios that come with the program: each is legal for its versions and has a step time.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "pipewright/model.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/io.hpp"

using namespace pipewright;

TEST_CASE("shipped scenarios: read, legal, estimated") {
  const std::string root = SOURCE_ROOT;
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
    const profile::Profiles profiles({profile::load(root + "/profiles/" + s.cluster.profile + ".json", {"test", 0})});
    CHECK_FALSE(model::build(s, profiles.device()).pieces.empty());
    const auto quick = predict::estimate(s, profiles);
    CHECK(quick.tflops_per_gpu > 100);
    // No more than the tensor cores have in the precision of the products.
    const auto& sheet = profile::data_sheet(s.cluster.profile);
    CHECK(quick.tflops_per_gpu < (s.settings.fp8 ? sheet.fp8_tflops.value : sheet.bf16_tflops.value));
  }
  CHECK(count >= 8);
}
