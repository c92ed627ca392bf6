// What pages show beside the JSON of their command.
#include <algorithm>
#include <array>
#include <map>

#include "format.hpp"
#include "json_value.hpp"
#include "pipewright/page.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

Json parallelism(const scenario::Scenario& s) {
  const auto& o = s.settings;
  return {{"TP", o.tensor_model_parallel_size}, {"PP", o.pipeline_model_parallel_size},
          {"VPP", scenario::num_chunks(s)},     {"CP", o.context_parallel_size},
          {"EP", o.expert_model_parallel_size}, {"DP", scenario::data_parallel_size(s)},
          {"MBS", o.micro_batch_size}};
}

Json candidate_extra(const plan::Plan& plan, const plan::Candidate& candidate) {
  const bool differs = plan.best && !candidate.choices.empty() && candidate.choices != plan.best->choices;
  return {{"beside", differs ? plan::beside(plan.best->choices, candidate.choices) : candidate.label},
          {"needed_bytes", candidate.prediction.most_needed().value},
          {"spare_bytes", spare(candidate.prediction, tightest_rank(candidate.prediction)).value},
          {"parallelism", parallelism(candidate.scenario)}};
}

/// Settings and variables in which the best differs from the scenario as given.
Json changes_of(const plan::Plan& plan) {
  Json rows = Json::array();
  const auto add = [&](const std::string& name, const std::string& given, const std::string& planned) {
    if (given != planned) rows.push_back(Json::array({name, given, planned}));
  };
  const auto variable = [](const plan::Candidate& candidate, const std::string& name) {
    const auto found = candidate.scenario.environment.find(name);
    return found == candidate.scenario.environment.end() ? std::string("(unset)") : found->second;
  };
  for (const auto& [name, value] : plan.best->settings)
    add(name, scenario::get(plan.baseline.scenario, name), scenario::get(plan.best->scenario, name));
  for (const auto& [name, value] : plan.best->environment)
    add(name, variable(plan.baseline, name), variable(*plan.best, name));
  return rows;
}

Json points(const std::vector<plan::Point>& list) {
  Json out = Json::array();
  for (const auto& point : list)
    out.push_back({{"label", point.label}, {"needed_bytes", point.needed.value}, {"exact", point.exact}});
  return out;
}

std::string on_one_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string plan_extra(const plan::Plan& plan) {
  Json alternatives = Json::array(), rejected = Json::array(), flags = Json::object();
  for (const auto& other : plan.alternatives) alternatives.push_back(candidate_extra(plan, other));
  for (const auto& [first, count] : plan::rejected_by_reason(plan))
    rejected.push_back(Json::array({first.label, count, first.rule, first.reason}));
  Json extra = {{"has_baseline", plan.has_baseline && plan.baseline_refused.empty()},
                {"baseline_refused", plan.baseline_refused},
                {"alternatives", alternatives},
                {"pareto", points(plan.pareto)},
                {"ladder", points(plan.ladder)},
                {"rejected", rejected}};
  if (plan.baseline_refused.empty()) extra["baseline"] = candidate_extra(plan, plan.baseline);
  if (!plan.best) return on_one_line(extra);
  extra["best"] = candidate_extra(plan, *plan.best);
  extra["changes"] = plan.has_baseline ? changes_of(plan) : Json::array();
  for (const char* form : {"megatron", "bridge", "harness", "env"})
    flags[form] = flags_text(plan.best->scenario, {form});
  extra["flags"] = flags;
  return on_one_line(extra);
}

std::string validate_extra(const validate::Validation& validation) {
  Json cases = Json::array();
  for (const auto& c : validation.cases) {
    // Of the traced ranks the mean: kind -> measured busy, predicted, measured exposed, predicted; ms.
    std::map<std::string, std::array<double, 5>> kinds;
    for (const auto& t : validate::traced(c)) {
      auto& sum = kinds[t.kind];
      const double values[] = {t.measured_busy_ms, t.predicted_busy_ms, t.measured_exposed_ms, t.predicted_exposed_ms,
                               1};
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    Json shown = Json::object();
    for (const auto& [kind, sum] : kinds) {
      Json row = Json::array();
      for (std::size_t i = 0; i < 4; ++i) row.push_back(rounded(sum[i] / sum[4], 3));
      shown[kind] = row;
    }
    const auto& o = c.scenario.settings;
    cases.push_back({{"traced", shown},
                     {"fp8", o.fp8.has_value()},
                     {"moe", c.scenario.model.num_moe_experts.has_value()},
                     {"offload", o.cpu_offloading || o.fine_grained_activation_offloading},
                     {"notes", c.prediction.notes}});
  }
  return on_one_line({{"cases", cases}});
}

}  // namespace pipewright::report
