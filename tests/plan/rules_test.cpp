// Every rule of the table fires where it should and stays quiet where it should not (rule_rows.hpp).
#include "../../src/plan/rules.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "bases.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/predict.hpp"
#include "rule_rows.hpp"

namespace rules_test {

using namespace pipewright;

namespace {

std::vector<std::string> fired(const scenario::Scenario& s) {
  std::vector<std::string> ids;
  for (const auto& finding : plan::check(s)) ids.push_back(finding.rule);
  return ids;
}

bool contains(const std::vector<std::string>& ids, const std::string& id) {
  return std::ranges::find(ids, id) != ids.end();
}

bool broken(const scenario::Scenario& s) {
  return std::ranges::any_of(plan::check(s), [](const auto& f) { return f.severity == plan::Severity::violation; });
}

}  // namespace

TEST_CASE("the bases break no rule") {
  for (const auto* base : {"dense", "tensor", "single", "moe"}) {
    CAPTURE(base);
    CHECK(fired(test::scenario(base, "")).empty());
  }
}

TEST_CASE("every rule fires where it should and only there") {
  for (const auto& row : test::rule_rows) {
    CAPTURE(std::string(row.rule));
    CAPTURE(std::string(row.base));
    CHECK(contains(fired(test::scenario(row.base, row.fires)), row.rule));
    CHECK_FALSE(contains(fired(test::scenario(row.base, row.quiet)), row.rule));
  }
}

TEST_CASE("a plan recommends nothing that breaks a rule, whatever the scenario as given breaks") {
  plan::Options options;
  options.predict = [](const scenario::Scenario& s) {
    predict::Prediction p;
    p.forward_backward_ns = p.step_ns = 1'000'000'000 - (s.settings.recompute_granularity.has_value() ? 0 : 1);
    p.memory_limit = Bytes(std::int64_t{80} << 30);
    p.ranks.resize(static_cast<std::size_t>(s.settings.pipeline_model_parallel_size));
    return p;
  };
  options.threads = 1;
  int mended = 0;
  for (const test::RuleRow& row : test::rule_rows) {
    CAPTURE(row.rule);
    auto s = test::scenario(row.base, row.fires);
    if (!broken(s)) continue;
    for (const char* open : {"search.recompute=auto", "search.allocator=auto"}) scenario::set(s, open);
    std::optional<plan::Plan> plan;
    try {
      plan = plan::search(s, options);
    } catch (const UsageError&) {  // nothing can be predicted at all
      continue;
    }
    CHECK_FALSE(plan->baseline_refused.empty());
    for (const auto& candidate : plan->alternatives) CHECK_FALSE(broken(candidate.scenario));
    if (!plan->best) continue;
    ++mended;
    CHECK_FALSE(broken(plan->best->scenario));
  }
  CHECK(mended > 5);  // recompute that is open mends what was wrong with it
}

TEST_CASE("what has no effect moves neither time nor memory") {
  const profile::Profiles profiles({profile::load(SOURCE_ROOT "/profiles/h200-sxm.json", {"test", 0})});
  int compared = 0;
  for (const auto& row : test::rule_rows) {
    if (!std::string_view(row.rule).starts_with("no-effect.")) continue;
    CAPTURE(std::string(row.rule));
    const auto s = test::scenario(row.base, row.fires), without = plan::without_idle_settings(s);
    const auto told = [&](const scenario::Scenario& one) -> std::optional<predict::Prediction> {
      try {
        return predict::predict(one, profiles);
      } catch (const UsageError&) {
        return std::nullopt;  // not modelled
      }
    };
    const auto with = told(s), then = told(without);
    if (!with || !then) continue;
    ++compared;
    CHECK(with->step_ns == then->step_ns);
    REQUIRE(with->ranks.size() == then->ranks.size());
    for (std::size_t r = 0; r < with->ranks.size(); ++r) {
      CHECK(with->ranks[r].walk.peak_allocated == then->ranks[r].walk.peak_allocated);
      CHECK(with->ranks[r].walk.peak_reserved == then->ranks[r].walk.peak_reserved);
    }
  }
  CHECK(compared > 15);
}

TEST_CASE("every rule has a row and a complete text") {
  std::set<std::string> tested;
  for (const auto& row : test::rule_rows) tested.insert(row.rule);
  std::set<std::string> known;
  for (const auto& rule : plan::rules()) {
    CAPTURE(rule.id);
    CHECK(tested.contains(rule.id));
    CHECK(known.insert(rule.id).second);
    CHECK_FALSE(rule.message.empty());
    CHECK_FALSE(rule.fix.empty());
    CHECK_FALSE(rule.versions.empty());
    CHECK(rule.source.find(".py") != std::string::npos);
    CHECK_FALSE(rule.settings.empty());
    const auto told = plan::with_fix(rule.message, rule.fix);  // one full stop each, whether the texts have theirs
    const auto fix = told.find(" Fix: ");
    REQUIRE(fix != std::string::npos);
    for (const auto& sentence : {told.substr(0, fix), told}) {
      CHECK(std::string_view(".!?").find(sentence.back()) != std::string_view::npos);
      CHECK(std::string_view(".!?").find(sentence[sentence.size() - 2]) == std::string_view::npos);
    }
  }
  CHECK(known.size() == tested.size());
}

TEST_CASE("texts carry the values, sources the line of the version") {
  const auto findings = plan::check(test::scenario("tensor", "num_query_groups=3"));
  const auto at = std::ranges::find(findings, "parallel.query-groups", &plan::Finding::rule);
  REQUIRE(at != findings.end());
  CHECK(at->message == "num_query_groups (3) must be a multiple or divisor of tensor_model_parallel_size (2).");
  CHECK(at->source == "megatron/core/transformer/transformer_config.py:1343 (core_r0.19.0)");

  const auto older = plan::check(test::scenario("tensor", "megatron_core=0.17.0; num_query_groups=3"));
  const auto then = std::ranges::find(older, "parallel.query-groups", &plan::Finding::rule);
  REQUIRE(then != older.end());
  CHECK(then->source.ends_with("(core_r0.17.0)"));
  CHECK(then->source != at->source);
}

TEST_CASE("versions of a rule are those whose source has it") {
  const auto table = plan::rules();
  const auto at = std::ranges::find(table, "overlap.no-full-recompute", &plan::RuleInfo::id);
  REQUIRE(at != table.end());
  CHECK(at->versions == "0.16-0.19, main, pr-4268");
}

TEST_CASE("a rule holds in the versions that have a line of it, and in no other") {
  using scenario::Version;
  for (const auto& rule : plan::all_rules()) {
    const auto lines = plan::cited_versions();
    const auto has_line = [&](Version version) { return plan::line_in(rule, version) != 0; };
    if (std::ranges::none_of(lines, has_line)) continue;  // about what a version lacks
    for (const auto version : lines) {
      CAPTURE(rule.id);
      CAPTURE(scenario::info(version).name);
      CHECK(rule.versions.has(version) == has_line(version));
    }
  }
}

TEST_CASE("symptoms: likeliest cause first") {
  using plan::Symptom;
  const auto first = [](const char* base, const char* changes, Symptom symptom, const char* text = "") {
    const auto causes = plan::diagnose(test::scenario(base, changes), symptom, text);
    return causes.empty() ? std::string() : causes.front().rule;
  };
  CHECK(first("dense", "", Symptom::out_of_memory) == "symptom.fragmentation");
  CHECK(first("dense", "$PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", Symptom::out_of_memory) !=
        "symptom.fragmentation");
  CHECK(first("dense", SELECTIVE "[mlp]", Symptom::slow) == "symptom.mlp");
  CHECK(first("dense", SELECTIVE "[mlp, core_attn]", Symptom::slow) == "symptom.mlp-and-core-attn");
  CHECK(first("dense", "", Symptom::assertion,
              "AssertionError: full recompute is only supported with full iteration CUDA graph.") ==
        "graphs.full-recompute");
  CHECK(first("dense", "", Symptom::assertion,
              "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading") ==
        "offload.no-pipeline");
}

TEST_CASE("symptoms: a text that no rule has, and one of a rule that this configuration does not break") {
  const auto causes = [](const char* text) {
    return plan::diagnose(test::scenario("dense", ""), plan::Symptom::assertion, text);
  };
  for (const char* text : {"AssertionError: 20 should be divisible by 5", "RuntimeError: CUDA error", ""}) {
    CAPTURE(text);
    const auto found = causes(text);
    REQUIRE(found.size() == 1);
    CHECK(found.front().rule == "symptom.no-rule");
    CHECK(found.front().severity == plan::Severity::trap);
  }
  for (const auto& finding :
       causes("ValueError: Currently there is no support for Pipeline parallelism with CPU offloading"))
    CHECK(finding.severity != plan::Severity::violation);
}

}  // namespace rules_test
