// The tables of effects: complete over the fields, one class a name, and reasons that read as such.
#include "pipewright/effects.hpp"

#include <doctest/doctest.h>

#include <set>

#include "../../src/scenario/field_rows.hpp"
#include "pipewright/scenario/io.hpp"

using namespace pipewright;
using scenario::Effect;

TEST_CASE("every field has an effect") {
  for (const auto& field : scenario::table()) {
    if (field.section == std::string_view("search")) continue;  // pipewright's own: what may change
    CAPTURE(field.name);
    CHECK(scenario::effect_of(field.name) != nullptr);
  }
  for (const auto& field : scenario::known_fields()) {
    CAPTURE(field.name);
    CHECK(scenario::effect_of(field.name) != nullptr);
  }
}

TEST_CASE("every row says why") {
  for (const auto& row : scenario::effects()) {
    CAPTURE(row.name);
    CHECK(row.text.size() > 3);
  }
}

TEST_CASE("every move is of a name that can be set") {
  for (const auto& move : scenario::moves()) {
    CAPTURE(std::string(move.name));
    const auto* row = scenario::effect_of(move.name);
    REQUIRE(row != nullptr);
    CHECK(row->effect == Effect::modelled);
    CHECK(std::string_view(move.from) != move.to);
  }
}

TEST_CASE("names: flags, negations, fields and variables") {
  CHECK(scenario::effect_of("--deterministic-mode")->effect == Effect::refused);
  CHECK(scenario::effect_of("--no-save-optim")->effect == Effect::none);
  CHECK(scenario::effect_of("--tensor-model-parallel-size")->effect == Effect::modelled);
  CHECK(scenario::effect_of("NCCL_DEBUG_SUBSYS")->effect == Effect::none);
  CHECK(scenario::effect_of("NCCL_SOMETHING_NEW")->effect == Effect::modelled);
  CHECK(scenario::effect_of("NVTE_SOMETHING_NEW")->effect == Effect::refused);
  CHECK(scenario::effect_of("WANDB_API_KEY") == nullptr);
}

TEST_CASE("ignore takes refused names only, and is written and read") {
  scenario::Scenario s;
  CHECK_THROWS_WITH_AS(scenario::ignore(s, "--lr", {"--ignore", 0}),
                       "--ignore: --lr: nothing to ignore: it is of the class \"no effect\" (numbers change, the work "
                       "does not)",
                       UsageError);
  CHECK_THROWS_AS(scenario::ignore(s, "window_sice", {"--ignore", 0}), UsageError);
  scenario::ignore(s, "--window-size", {"--ignore", 0});
  scenario::ignore(s, "NVTE_FUNNY", {"--ignore", 0});
  scenario::ignore(s, "window_size", {"--ignore", 0});
  CHECK(s.ignore == scenario::Strings{"window_size", "NVTE_FUNNY"});
  const auto text = scenario::write(s);
  CHECK(text.find("ignore: [window_size, NVTE_FUNNY]\n") != std::string::npos);
}
