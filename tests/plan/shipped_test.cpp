// The scenarios that come with the program: each is legal for its versions and has a step time.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "../../src/plan/search_dimensions.hpp"
#include "../draws.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/model.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/io.hpp"

namespace shipped_test {

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

TEST_CASE("no family is offered context parallelism that is not modelled for it") {
  int with = 0, without = 0;
  std::size_t nth = 0;
  for (const auto& file : std::filesystem::directory_iterator(std::string(SOURCE_ROOT) + "/tests/scenario/data")) {
    scenario::Scenario s;
    try {
      s = scenario::from_hf(file.path().string(), nullptr);
    } catch (const UsageError&) {
      continue;  // one that is wrong on purpose
    }
    if (!test::taken(nth++)) continue;
    CAPTURE(file.path().filename().string());
    for (const char* setting : {"num_gpus=64", "seq_length=16384", "global_batch_size=64"}) scenario::set(s, setting);
    plan::LeftOut left_out;
    bool spread = false;
    for (const auto& value : plan::parallelism_values(plan::proposed(s), left_out)) {
      auto partial = plan::proposed(s);
      plan::apply(value, partial);
      if (partial.settings.context_parallel_size == 1) continue;
      spread = true;
      for (const auto& kind : plan::context_values(partial, left_out)) {
        auto one = partial;
        plan::apply(kind, one);
        CAPTURE(kind.label);
        CAPTURE(value.label);
        auto alone = one;
        alone.settings.context_parallel_size = 1;
        CHECK(scenario::unmodelled(one).size() <= scenario::unmodelled(alone).size());
      }
    }
    CHECK((spread || !left_out.rejected.empty()));
    ++(spread ? with : without);
  }
  CHECK((with > 3 || test::few()));
  CHECK((without > 3 || test::few()));
}

}  // namespace shipped_test
