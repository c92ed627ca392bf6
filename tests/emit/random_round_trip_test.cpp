// Scenarios drawn at random, as flags and as Bridge overrides and back: all fields come back or a comment names them,
// and what is in force without being stated - the checks for NaN, the attention mask - stays in force.
#include <doctest/doctest.h>

#include <random>

#include "../../src/emit/emitted.hpp"
#include "../predict/moves.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/derived.hpp"
#include "support.hpp"

namespace random_round_trip_test {

using namespace pipewright;

namespace {

/// A base of scenario::moves() after some of its moves, with what is not stated drawn, too; nothing where that is no
/// scenario that Megatron runs.
std::optional<scenario::Scenario> drawn(std::mt19937& random, std::string& changes) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<std::string> bases = {"dense", "tensor", "single", "moe", "mla", "combined"};
  const std::string base = bases[below(bases.size())];
  changes = base;
  auto s = test::base_of(base);
  const auto apply = [&](const std::string& change) {
    changes += "; " + change;
    test::change(s, change);
  };
  try {
    for (const char* field : {"check_for_nan_in_loss_and_grad", "create_attention_mask_in_dataloader"})
      if (const auto value = below(3); value > 0) apply(std::string(field) + (value == 1 ? "=true" : "=false"));
    apply(below(2) == 0 ? "process_group_device_id=true" : "process_group_device_id=false");
    for (std::size_t left = 1 + below(4), tries = 0; left > 0 && tries < 200; ++tries) {
      const auto& move = scenario::moves()[below(scenario::moves().size())];
      const std::string_view name = move.name;
      if (base != move.base || name.find_first_of("abcdefghijklmnopqrstuvwxyz") == std::string_view::npos) continue;
      if (std::string_view(move.setup).find_first_of('$') != std::string_view::npos) continue;
      if (*move.setup != '\0') apply(move.setup);
      apply(std::string(name) + "=" + (below(2) == 0 ? move.from : move.to));
      --left;
    }
    scenario::check(s);
    for (const auto& finding : plan::check(s))
      if (finding.severity == plan::Severity::violation) return std::nullopt;
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return s;
}

std::string in_force(const scenario::Scenario& s) {
  return std::string(scenario::checks_for_nan(s) ? "checks for NaN" : "no checks") +
         (scenario::creates_attention_mask(s) ? ", a mask" : ", no mask");
}

}  // namespace

TEST_CASE("random scenarios come back from flags and from overrides, with what is in force") {
  std::mt19937 random(7);
  int tried = 0;
  for (int round = 0; round < 1500 && tried < 200; ++round) {
    std::string changes;
    const auto s = drawn(random, changes);
    if (!s) continue;
    ++tried;
    CAPTURE(changes);
    const auto flags = emit::megatron(*s);
    std::string line;
    for (const auto& word : emit::words(flags)) line += emit::quoted(word) + " ";
    const auto from_flags = emit::from_megatron(line, machine_of(*s)).scenario;
    CHECK(unsaid_differences(*s, from_flags, flags) == "");
    const auto comments = emit::comments(flags);
    const bool unsaid = std::ranges::any_of(comments, [](const auto& c) {
      return c.starts_with("check_for_nan_in_loss_and_grad") || c.starts_with("create_attention_mask_in_dataloader");
    });
    if (!unsaid) CHECK(in_force(from_flags) == in_force(*s));

    const auto overrides = emit::bridge(*s);
    const auto from_overrides =
        emit::from_bridge_text(emit::text(overrides, false), "overrides", machine_of(*s)).scenario;
    CHECK(unsaid_differences(*s, from_overrides, overrides) == "");
    CHECK(in_force(from_overrides) == in_force(*s));

    // As it is printed, without a word about versions beside it.
    auto other = *s;
    scenario::set(other, "transformer_engine=" + std::string(tried % 2 == 0 ? "2.14" : "2.18"));
    const auto printed = emit::from_bridge_text(emit::text(emit::bridge(other), false), "overrides",
                                                {other.cluster.num_gpus, other.cluster.gpus_per_node, "h100-sxm", ""})
                             .scenario;
    CHECK(printed.software.transformer_engine == other.software.transformer_engine);
    CHECK(printed.software.megatron_core == other.software.megatron_core);
  }
  CHECK(tried >= 150);
}

}  // namespace random_round_trip_test
