// A plan: the search (searcher.hpp), its winner against the scenario as given and the nearest alternatives, and what
// was covered.
#include <algorithm>
#include <chrono>

#include "searcher.hpp"

namespace pipewright::plan {

namespace {

using Clock = std::chrono::steady_clock;

/// The scenario as given, with the values of everything that the search changed elsewhere.
void describe_baseline(Plan& plan, const Scenario& scenario, const std::vector<Trial>& trials) {
  plan.baseline.label = "as given";
  plan.baseline.scenario = scenario;
  for (const auto& trial : trials) {
    for (const auto& [name, value] : trial.candidate.settings)
      merge(plan.baseline.settings, {{name, scenario::get(scenario, name)}});
    for (const auto& [name, value] : trial.candidate.environment)
      merge(plan.baseline.environment, {{name, scenario::variable(scenario, name)}});
  }
}

void predict_baseline(Plan& plan, const Scenario& scenario, const Options& options, Searcher& searcher) {
  const auto& trials = searcher.trials();
  const auto given = identity(scenario);
  const auto same = std::ranges::find_if(
      trials, [&](const Trial& trial) { return trial.done && identity(trial.candidate.scenario) == given; });
  if (same != trials.end()) {
    plan.baseline.prediction = same->candidate.prediction;
    return;
  }
  try {
    scenario::check(scenario);
    plan.baseline.prediction = options.predict(scenario);
  } catch (const UsageError& error) {
    const bool none = std::ranges::none_of(trials, [](const Trial& trial) { return trial.done; });
    if (none && !trials.empty() && !searcher.interrupted()) throw;  // a profile that lacks something, not a candidate
    plan.baseline_refused = error.what();
  }
}

/// The nearest alternatives that differ in more than the allocator.
void add_rivals(Plan& plan, const Options& options) {
  constexpr std::size_t most = 3;
  std::int64_t last = plan.best->prediction.step_ns;
  for (const auto& other : plan.alternatives) {
    if (!other.prediction.fits || other.prediction.step_ns == last || plan.rivals.size() == most) continue;
    last = other.prediction.step_ns;
    const auto comparison = options.compare(plan.best->scenario, other.scenario);
    if (comparison.spread_ns > 0) plan.rivals.push_back({beside(plan.best->choices, other.choices), comparison});
  }
}

/// Settings that only a pull request knows: 4268 of Megatron-LM, 3128 of Transformer Engine.
Scenario without_pull_requests(Scenario scenario) {
  const Scenario released;
  auto& s = scenario.settings;
  s.overlap_p2p_wgrad_delayed_layer_number = released.settings.overlap_p2p_wgrad_delayed_layer_number;
  s.overlap_p2p_backward_on_comm_stream = s.overlap_p2p_with_transformer_layer_wgrad = false;
  s.te_op_offload = {};
  return scenario;
}

/// The best that needs no pull request: among what was simulated, else the best itself without those settings.
std::optional<Candidate> released(const Plan& plan, const std::vector<Trial>& trials,
                                  const std::vector<std::size_t>& order, const Options& options) {
  const auto needs = [](const Scenario& s) { return without_pull_requests(s).settings != s.settings; };
  if (!plan.best || !needs(plan.best->scenario)) return std::nullopt;
  for (const auto i : order)
    if (const auto& c = trials[i].candidate; c.prediction.fits && !needs(c.scenario)) return c;
  Candidate same = *plan.best;
  same.scenario = without_pull_requests(same.scenario);
  same.label += ", without what only a pull request has";
  same.prediction = options.predict(same.scenario);
  return same;
}

}  // namespace

Plan search(const Scenario& scenario, const Options& options) {
  const auto begin = Clock::now();
  if (!options.predict) throw InternalError("search without a predictor");
  Plan plan;
  LeftOut left_out;
  const auto opened = dimensions(scenario);
  Searcher searcher(scenario, options, opened, left_out);
  searcher.run();
  auto& trials = searcher.trials();
  describe_baseline(plan, scenario, trials);
  plan.has_baseline = options.has_baseline;
  if (plan.has_baseline)
    predict_baseline(plan, scenario, options, searcher);
  else
    plan.baseline_refused = "the input states a model, not a run";

  plan.rejected = left_out.rejected;
  std::ranges::move(searcher.space().rejected, std::back_inserter(plan.rejected));
  bool all_predicted = true;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (searcher.refusals()[i].empty()) continue;
    all_predicted = false;
    const auto& c = trials[i].candidate;
    plan.rejected.push_back({c.label, c.settings, c.environment, "model", searcher.refusals()[i]});
  }

  const auto order = ranking(trials, scenario.search.objective);
  if (!order.empty() && trials[order.front()].candidate.prediction.fits) plan.best = trials[order.front()].candidate;
  if (!searcher.interrupted()) plan.released = released(plan, trials, order, options);
  if (!order.empty() && !searcher.interrupted()) searcher.scout_structure_of(order.front());
  plan.pareto = pareto_front(trials);
  if (plan.best && !searcher.interrupted())
    plan.ladder = ladder(trials, order.front(),
                         [&](const std::vector<const Trial*>& some) { return searcher.exact_memory(some); });
  for (std::size_t place = plan.best ? 1 : 0; place < order.size() && std::ssize(plan.alternatives) < options.top;
       ++place)
    plan.alternatives.push_back(trials[order[place]].candidate);
  if (plan.best && options.compare && !searcher.interrupted()) add_rivals(plan, options);

  auto& s = plan.searched;
  s = searcher.counts();
  s.legal = std::ssize(trials);
  s.pruned = searcher.space().duplicates;
  s.interrupted = searcher.interrupted();
  const double least = searcher.lower_bound();
  const double best = plan.best ? cost(plan.best->prediction, scenario.search.objective) : never;
  s.gap = least < best && plan.best ? 1 - least / best : 0;
  s.proved_optimal = all_predicted && !s.interrupted && left_out.notes.empty() && s.gap == 0;
  s.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  plan.why = explain(plan, trials, order, opened, left_out);
  return plan;
}

std::vector<std::pair<Rejected, std::int64_t>> rejected_by_reason(const Plan& plan) {
  std::vector<std::pair<Rejected, std::int64_t>> groups;
  for (const auto& rejected : plan.rejected) {
    const auto same = std::ranges::find_if(groups, [&](const auto& group) {
      return group.first.rule == rejected.rule && group.first.reason == rejected.reason;
    });
    if (same == groups.end())
      groups.emplace_back(rejected, 1);
    else
      ++same->second;
  }
  return groups;
}

}  // namespace pipewright::plan
