// The catalogue of modules against everything that is made of it: whoever adds a row learns here what it lacks.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "../../src/plan/rules.hpp"
#include "../on_h200.hpp"
#include "bases.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/model.hpp"
#include "pipewright/modules.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"

namespace catalogue_test {

using namespace pipewright;

namespace {

/// Models of every kind of layer that modules lie in.
std::vector<scenario::Scenario> bases() {
  constexpr const char* latent =
      "multi_latent_attention=true; num_query_groups=none; q_lora_rank=1536; kv_lora_rank=512; qk_head_dim=128; "
      "qk_pos_emb_head_dim=64; v_head_dim=128; rope_type=rope";
  return {
      test::scenario("dense", ""), test::scenario("dense", latent),
      test::scenario("dense", "experimental_attention_variant=gated_delta_net; linear_attention_freq=4"),
      test::scenario("moe", "moe_shared_expert_intermediate_size=4096"),
      test::scenario("moe",
                     "use_transformer_engine_op_fuser=true; moe_mlp_glu_interleave_size=32; fp8=e4m3; "
                     "fp8_recipe=mxfp8; fp8_param=true; fp8_param_gather=true; reuse_grad_buf_for_mxfp8_param_ag=true; "
                     "$NVTE_CUTEDSL_FUSED_GROUPED_MLP=1; cluster.profile=gb200-nvl72")};
}

scenario::Scenario with(scenario::Scenario s, const scenario::RecomputeRow& row) {
  s.settings.recompute_granularity = "selective";
  s.settings.recompute_modules = {std::string(row.name)};
  return s;
}
scenario::Scenario with(scenario::Scenario s, const scenario::OffloadRow& row) {
  s.settings.fine_grained_activation_offloading = true;
  s.settings.offload_modules = {std::string(row.name)};
  if (row.beside) s.settings.offload_modules.emplace_back(scenario::name(*row.beside));
  s.environment["NVTE_CPU_OFFLOAD_V1"] = "1";
  return s;
}

bool fires(const scenario::Scenario& s, std::string_view rule) {
  return std::ranges::any_of(plan::check(s), [&](const plan::Finding& finding) { return finding.rule == rule; });
}
bool legal(const scenario::Scenario& s) {
  return std::ranges::none_of(
      plan::check(s), [](const plan::Finding& finding) { return finding.severity == plan::Severity::violation; });
}
bool modelled(const scenario::Scenario& s) {
  try {
    scenario::refuse_unmodelled(s);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}
template <typename Row>
bool idle(const scenario::Scenario& s, const Row& row) {
  return row.idle.when != nullptr && row.idle.when(s);
}

std::int64_t replayed(const model::Stages& stages) {
  std::int64_t kernels = 0;
  for (const auto& piece : stages.pieces) kernels += std::ranges::count(piece.kernels, true, &model::Kernel::recompute);
  return kernels;
}
model::Stages build(const scenario::Scenario& s) {
  return model::build(s, profile::data_sheet(s.cluster.profile).device);
}

bool moves(const model::Stages& stages, std::string_view module) {
  return std::ranges::any_of(stages.pieces, [&](const model::Piece& piece) {
    return std::ranges::any_of(piece.groups, [&](const auto& g) { return g.name == module && !g.moves.empty(); });
  });
}

/// Each name once, each place once; what the search offers is described.
template <typename Rows>
void check_rows(const Rows& rows) {
  std::set<std::string_view> names;
  std::set<int> searched, quoted;
  for (const auto& row : rows) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK_FALSE(row.versions.empty());
    if (row.searched > 0) {
      CHECK(searched.insert(row.searched).second);
      CHECK_FALSE(row.what.empty());
    }
    if (row.quoted > 0) CHECK(quoted.insert(row.quoted).second);
    if (row.idle.when != nullptr) {
      const auto rules = plan::rules();
      CHECK(std::ranges::count(rules, row.idle.rule, &plan::RuleInfo::id) == 1);
      CHECK_FALSE(row.idle.reason.empty());
      CHECK_FALSE(row.idle.fix.empty());
    }
  }
}

}  // namespace

TEST_CASE("rows are whole") {
  check_rows(scenario::recompute_catalogue());
  check_rows(scenario::offload_catalogue());
}

TEST_CASE("a name is legal in the versions of its row and in no other") {
  const auto check = [](const auto& rows, const char* rule) {
    for (const auto& row : rows) {
      for (const auto& version : scenario::versions()) {
        auto s = with(test::scenario("moe", ""), row);
        s.software.megatron_core = scenario::stated_names(version.version).front();
        CAPTURE(row.name);
        CAPTURE(s.software.megatron_core);
        CHECK(fires(s, rule) != row.versions.has(version.version));
      }
    }
  };
  check(scenario::recompute_catalogue(), "recompute.modules");
  check(scenario::offload_catalogue(), "offload.modules");
}

TEST_CASE("a name can be stated as a setting") {
  for (const auto& field : scenario::fields()) {
    if (field.name == "recompute_modules") CHECK(field.allowed == scenario::recompute_names());
    if (field.name == "offload_modules") CHECK(field.allowed == scenario::offload_names());
  }
}

TEST_CASE("what the search offers acts in a model: recompute replays kernels, offload moves tensors") {
  for (const auto& row : scenario::recompute_catalogue()) {
    if (row.searched == 0) continue;
    CAPTURE(row.name);
    int acting = 0;
    for (const auto& base : bases()) {
      const auto s = with(base, row);
      if (!legal(s) || idle(s, row) || !modelled(s)) continue;
      ++acting;
      CHECK(replayed(build(s)) > replayed(build(base)));
    }
    CHECK(acting > 0);
  }
  for (const auto& row : scenario::offload_catalogue()) {
    if (row.searched == 0) continue;
    CAPTURE(row.name);
    int acting = 0;
    for (const auto& base : bases()) {
      const auto s = with(base, row);
      const bool lacks = row.part == scenario::OffloadRow::Part::experts && !scenario::has_moe_layer(s);
      if (!legal(s) || !modelled(s) || idle(s, row) || lacks || (row.offered != nullptr && !row.offered(s))) continue;
      ++acting;
      CHECK(moves(build(s), row.name));
    }
    CHECK(acting > 0);
  }
}

TEST_CASE("where a module is idle the rule of its row says so, and its remedy takes the module out") {
  const auto check = [](const auto& rows) {
    for (const auto& row : rows) {
      for (const auto& base : bases()) {
        const auto s = with(base, row);
        CAPTURE(row.name);
        if (!idle(s, row)) continue;
        CHECK(fires(s, row.idle.rule));
        CHECK(plan::without_idle_settings(s).settings == plan::without_idle_settings(base).settings);
      }
    }
  };
  check(scenario::recompute_catalogue());
  check(scenario::offload_catalogue());
}

TEST_CASE("every version's sources were read for the lines of rules") {
  std::vector<scenario::Version> known;
  for (const auto& row : scenario::versions()) known.push_back(row.version);
  CHECK(std::ranges::equal(plan::cited_versions(), known));  // else: src/plan/rule_lines.py
}

}  // namespace catalogue_test
