// What `plan` and `sweep` show of a handful of candidates.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "fixture.hpp"
#include "golden.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"

namespace plan_test {

using namespace pipewright;
using namespace pipewright::report;
using nlohmann::json;

namespace {

plan::Candidate candidate(const char* modules, double step_ms, bool fits) {
  plan::Candidate c;
  c.label = std::string("recompute ") + modules;
  c.settings = {{"recompute_granularity", "selective"}, {"recompute_modules", modules}};
  c.environment = {{"PYTORCH_CUDA_ALLOC_CONF", fits ? "expandable_segments:True" : ""}};
  auto& m = c.scenario.model;
  m.num_layers = 8;
  m.hidden_size = 4096;
  m.num_attention_heads = 32;
  m.seq_length = 4096;
  m.vocab_size = 32000;
  c.scenario.cluster.num_gpus = 2;
  c.scenario.settings.pipeline_model_parallel_size = 2;
  for (const auto& [name, value] : c.settings) scenario::set(c.scenario, name + "=" + value);
  for (const auto& [name, value] : c.environment) scenario::set_env(c.scenario, name + "=" + value);
  c.prediction = small_prediction();
  c.prediction.step_ns = static_cast<std::int64_t>(step_ms * 1e6);
  c.prediction.fits = fits;
  if (fits) c.prediction.ranks[1].walk.peak_reserved = c.prediction.ranks[0].walk.peak_reserved;
  return c;
}

plan::Plan three() {
  plan::Plan p;
  p.best = candidate("[core_attn]", 100, true);
  p.baseline = candidate("[mlp]", 120, true);
  p.alternatives = {candidate("[mlp]", 120, true), candidate("[layernorm]", 99, false)};
  p.pareto = {{100'000'000, Bytes(30LL << 30), Bytes(32LL << 30), "recompute [core_attn]", p.best->settings,
               p.best->environment}};
  p.why = {"it fits and nothing that fits is faster"};
  p.searched.candidates = 4;
  p.searched.legal = p.searched.simulated = p.searched.predicted = 3;
  p.searched.illegal = 1;
  p.searched.bounds = {{"floor", 0, 1}};
  p.searched.seconds = 0.04;
  p.searched.proved_optimal = true;
  p.ladder = {{110'000'000, Bytes(20LL << 30), Bytes(22LL << 30), "recompute [mlp]", p.best->settings,
               p.best->environment, false}};
  p.rivals = {{"recompute [mlp]", {20e6, 2e6, "gemm.bf16.tn", -0.25, 0.01}}};
  p.rejected = {{"recompute [moe]", {{"recompute_modules", "[moe]"}}, {}, "recompute.moe-dense", "the model is dense"}};
  return p;
}

}  // namespace

TEST_CASE("plan: text") {
  auto p = three();
  check_golden("plan.txt", plan_text(p, {}));
  p.best.reset();
  p.closest = plan::Closest{"recompute [mlp]", 1, Bytes(4LL << 30), true, true};
  const auto text = plan_text(p, {});
  CHECK(text.starts_with("nothing fits\n"));
  CHECK(text.find("Changes") == std::string::npos);
}

TEST_CASE("plan: JSON has the contract's keys and typed settings") {
  const auto out = json::parse(plan_json(three()));
  CHECK(out["best"]["settings"]["recompute_modules"] == json::array({"core_attn"}));
  CHECK(out["best"]["environment"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True");
  CHECK(out["best"]["prediction"]["step_time_ms"] == 100);
  CHECK(out["best"]["configuration"]["pipeline_parallel"] == 2);
  CHECK(out["alternatives"][0]["configuration"]["gpus"] == 2);
  CHECK(out["best"]["assumed"].is_array());
  CHECK(out["searched"]["bounds"][0] == json{{"by", "floor"}, {"memory", 0}, {"time", 1}});
  for (const char* form : {"megatron", "bridge", "harness"}) CHECK(out["best"]["flags"][form].is_array());
  CHECK(out["best"]["flags"]["env"].is_object());
  auto gated = three();
  gated.best->scenario.model.gated_linear_unit = true;
  gated.best->scenario.model.activation_func = "gelu";
  const auto of_gated = json::parse(plan_json(gated));
  for (const char* form : {"megatron", "bridge", "harness"}) {
    const auto remarks = of_gated["best"]["flags"]["remarks"][form].dump();
    CHECK((remarks.find("gated_linear_unit: true has no flag") != std::string::npos) ==
          (form == std::string("megatron")));
  }
  CHECK(out["alternatives"].size() == 2);
  CHECK(out["pareto"][0]["peak_bytes"] == 30LL << 30);
  CHECK(out["searched"]["proved_optimal"] == true);
  CHECK(out["searched"]["seconds"] == 0.04);
  CHECK(out["ladder"][0]["peak_bytes"] == 20LL << 30);
  CHECK(out["sensitivity"][0]["tied"] == false);
  CHECK(out["sensitivity"][0]["error_to_turn"] == -0.25);
  CHECK(out["rejected"][0]["reason"] == "recompute.moe-dense: the model is dense");
  auto none = three();
  none.best.reset();
  CHECK(json::parse(plan_json(none))["best"].is_null());
}

TEST_CASE("sweep: legal and illegal rows") {
  plan::Sweep s;
  s.baseline = small_prediction();
  plan::Row good, bad;
  good.settings = {{"micro_batch_size", "1"}, {"recompute_modules", "[mlp, core_attn]"}};
  good.prediction = small_prediction();
  good.relative = -0.0125;
  bad.settings = {{"micro_batch_size", "3"}, {"recompute_modules", "none"}};
  bad.legal = false;
  bad.rule = "batch.divides";
  bad.reason = "global batch \"4\" does not divide, alas";
  s.rows = {good, bad};
  check_golden("sweep.txt", sweep_text(s));
  check_golden("sweep.csv", sweep_csv(s));
  check_golden("sweep.json", sweep_json(s));
}

}  // namespace plan_test
