// A plan: the search (searcher.hpp), its winner against the scenario as given and the nearest alternatives, and what
// was covered.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
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

void predict_baseline(Plan& plan, const Scenario& scenario, const Options& options, const Searcher& searcher) {
  for (const auto& finding : plan::check(scenario)) {
    if (finding.severity != Severity::violation) continue;
    plan.baseline_refused = finding.rule + ": " + with_fix(finding.message, finding.fix);
    return;
  }
  const auto& trials = searcher.trials();
  const auto given = std::ranges::find_if(trials, [](const Trial& trial) { return trial.given && trial.done; });
  if (given != trials.end()) {
    plan.baseline.prediction = given->candidate.prediction;
    plan.baseline.probability = given->probability;
    return;
  }
  try {
    scenario::check(scenario);
    plan.baseline.prediction = options.predict(scenario);
    if (options.probability)
      plan.baseline.probability = options.probability(plan.baseline.prediction).value_or(plan.baseline.probability);
  } catch (const UsageError& error) {
    const auto counts = searcher.counts(never);
    const bool all = counts.predicted + counts.by_memory + counts.by_time + counts.undecided == 0;
    if (all && !trials.empty() && !searcher.interrupted()) throw;  // a profile that lacks something, not a candidate
    plan.baseline_refused = error.what();
  }
}

Scenario without_split(Scenario s) {
  s.settings.num_layers_in_first_pipeline_stage.reset(), s.settings.num_layers_in_last_pipeline_stage.reset();
  s.settings.account_for_embedding_in_pipeline_split = s.settings.account_for_loss_in_pipeline_split = false;
  s.settings.pipeline_model_parallel_layout.reset();
  return s;
}

/// The same layer split in other words: equal to the nanosecond and the byte, one choice apart.
bool same_run(const Candidate& a, const Candidate& b) {
  const auto &p = a.prediction, &q = b.prediction;
  if (p.step_ns != q.step_ns || a.choices.size() != b.choices.size()) return false;
  int apart = 0;
  for (std::size_t d = 0; d < a.choices.size(); ++d) apart += a.choices[d] != b.choices[d];
  const auto reserved = [](const auto& rank) { return rank.walk.peak_reserved; };
  return apart == 1 && std::ranges::equal(p.ranks, q.ranks, {}, reserved, reserved) &&
         without_split(a.scenario).settings == without_split(b.scenario).settings &&
         a.scenario.model == b.scenario.model;
}

/// In order of rank, without the best, without those that only another allocator sets apart and without those that are
/// the same run. First what stands for a line of its own, then what is left.
std::vector<std::size_t> alternatives(const Searcher& searcher, const std::vector<std::size_t>& order, bool has_best,
                                      std::size_t most) {
  const auto& trials = searcher.trials();
  std::set<std::size_t> groups;
  if (has_best) groups.insert(trials[order.front()].time_group);
  std::vector<std::size_t> places;  // in `order`
  std::set<std::size_t> lines;
  for (const auto i : searcher.shown()) lines.insert(trials[i].time_group);
  for (const bool lines_first : {true, false})
    for (std::size_t place = 0; place < order.size() && places.size() < most; ++place) {
      const auto group = trials[order[place]].time_group;
      if (lines_first && !lines.contains(group)) continue;
      const auto of = [&](std::size_t one) -> const Candidate& { return trials[order[one]].candidate; };
      const auto same = [&](std::size_t other) { return same_run(of(place), of(other)); };
      if ((has_best && same(0)) || std::ranges::any_of(places, same)) continue;
      if (groups.insert(group).second) places.push_back(place);
    }
  std::ranges::sort(places);
  std::vector<std::size_t> all;
  for (const auto place : places) all.push_back(order[place]);
  return all;
}

/// The nearest alternatives. How far they are is what both predictions say; how sure that is, what the errors that they
/// do not share leave.
void add_rivals(Plan& plan, const Options& options) {
  constexpr std::size_t most = 3;
  std::vector<const Candidate*> nearest;
  std::vector<const Scenario*> scenarios;
  for (const auto& other : plan.alternatives) {
    if (!other.prediction.fits || nearest.size() == most) continue;
    nearest.push_back(&other);
    scenarios.push_back(&other.scenario);
  }
  const auto comparisons = options.compare(plan.best->scenario, scenarios);
  for (std::size_t n = 0; n < nearest.size(); ++n) {
    const Candidate& other = *nearest[n];
    auto comparison = comparisons[n];
    // What is not known of one of them alone does not cancel.
    if (comparison.spread_ns <= 0 || other.prediction.ignored != plan.best->prediction.ignored) continue;
    const auto exact = static_cast<double>(other.prediction.step_ns - plan.best->prediction.step_ns);
    if (comparison.difference_ns != 0) comparison.error_to_turn *= exact / comparison.difference_ns;
    if (comparison.difference_ns == 0 || std::abs(comparison.error_to_turn) >= 1) comparison.family.clear();
    comparison.difference_ns = exact;
    plan.rivals.push_back({beside(plan.best->choices, other.choices), comparison});
  }
}

/// Of what was predicted that which lacks least; else the structure of the least floor.
std::optional<Closest> closest(const Searcher& searcher, const Plan& plan) {
  std::optional<Closest> nearest;
  const auto look = [&](const std::string& label, const predict::Prediction& p) {
    const auto lacking = p.memory_margin - reserved_margin(p);
    if (!nearest || lacking < nearest->lacking) nearest = {label, tightest_rank(p), lacking, true, true};
  };
  for (const Trial& trial : searcher.trials())
    if (trial.done) look(trial.given ? "the scenario as given" : trial.candidate.label, trial.candidate.prediction);
  if (!nearest && plan.has_baseline && plan.baseline_refused.empty())
    look("the scenario as given", plan.baseline.prediction);
  if (const auto structure = searcher.nearest_structure();
      structure && (!nearest || structure->second < nearest->lacking))
    nearest = {structure->first, 0, structure->second, false, true};
  return nearest;
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

/// The fastest whose step has an interval, where what the best chooses leaves it without: of what was simulated and the
/// best itself with the ring, which was measured.
std::optional<Candidate> bounded(const Plan& plan, const std::vector<Trial>& trials,
                                 const std::vector<std::size_t>& order, const Options& options,
                                 const std::string& objective) {
  const auto serves = [](const Candidate& c) { return c.prediction.fits && c.prediction.ignored.empty(); };
  if (!plan.best || serves(*plan.best) || !plan.best->scenario.ignore.empty()) return std::nullopt;
  std::optional<Candidate> found;
  for (const auto i : order) {
    if (!serves(trials[i].candidate)) continue;
    found = trials[i].candidate;
    found->given = trials[i].given;
    found->probability = trials[i].probability;
    break;
  }
  Candidate same = *plan.best;
  const Assignments ring = {{"cp_comm_type", "[p2p]"}, {"hierarchical_context_parallel_sizes", "[]"}};
  for (const auto& [name, value] : ring) scenario::set(same.scenario, name + "=" + value);
  merge(same.settings, ring);
  for (auto& choice : same.choices)
    if (choice.starts_with("cp_comm_type ")) choice = "cp_comm_type p2p";
  same.label = beside({}, same.choices);
  const auto known = [&](const Trial& t) { return t.done && t.candidate.scenario.settings == same.scenario.settings; };
  if (std::ranges::any_of(trials, known)) return found;
  try {
    if (found && options.estimate) {  // what both estimates get wrong alike cancels
      const auto estimated = [&](const Scenario& scenario) { return cost(options.estimate(scenario), objective); };
      const double expected =
          cost(plan.best->prediction, objective) * estimated(same.scenario) / estimated(plan.best->scenario);
      if (cost(found->prediction, objective) <= expected * (1 + tie_share)) return found;
    }
    same.prediction = options.predict(same.scenario);
    if (options.probability) same.probability = options.probability(same.prediction).value_or(1);
  } catch (const UsageError&) {
    return found;
  }
  const auto ties = [&] {
    return cost(found->prediction, objective) <= cost(same.prediction, objective) * (1 + tie_share);
  };
  if (!serves(same) || (found && ties())) return found;
  return same;
}

/// What the best is slower than the least that any structure costs with all open that moves no parameter, and what was
/// open besides: a bound.
std::optional<double> rest_at_most(const Scenario& scenario, const Options& options, double fastest) {
  if (!options.floor || !options.estimate) return std::nullopt;
  auto all = opened(scenario, {"recompute", "offload", "wgrad_delay", "pipeline", "layout", "allocator"});
  LeftOut ignored;
  const auto dimensions_of_all = dimensions(all);
  const auto least = Searcher(all, options, dimensions_of_all, ignored).least_of_structures();
  if (!least) return std::nullopt;
  return 1 - std::min(*least, fastest) / fastest;
}

}  // namespace

Plan search(const Scenario& scenario, const Options& options) {
  const auto begin = Clock::now();
  if (!options.predict) throw InternalError("search without a predictor");
  constexpr std::size_t most = 50'000;  // lists of search: multiply, and every combination is a structure in memory
  std::size_t combinations = 1;
  for (const auto& [name, values] : scenario.search.values) {
    if (values.size() > most / combinations)
      throw UsageError(scenario::position(scenario, "search." + name), "search." + name,
                       "the lists of search: have more than " + std::to_string(most) + " combinations");
    combinations *= std::max<std::size_t>(1, values.size());
  }
  Plan plan;
  LeftOut left_out;
  const auto& objective = scenario.search.objective;
  const auto opened = dimensions(scenario);
  Searcher searcher(scenario, options, opened, left_out);
  searcher.run();
  const auto& trials = searcher.trials();
  auto order = ranking(trials, objective);
  const auto any_fits = [&] { return !order.empty() && trials[order.front()].candidate.prediction.fits; };
  if (any_fits() && !searcher.in_haste()) {
    searcher.scout_structure_of(order.front());
    searcher.look_beside(order.front());
    order = ranking(trials, objective);
  }
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

  const auto candidate = [&](std::size_t i) {
    Candidate c = trials[i].candidate;
    c.given = trials[i].given;
    c.probability = trials[i].probability;
    return c;
  };
  if (any_fits()) plan.best = candidate(order.front());
  if (!searcher.in_haste()) plan.released = released(plan, trials, order, options);
  plan.bounded = bounded(plan, trials, order, options, objective);
  if (plan.best && !searcher.in_haste())
    plan.ladder = ladder(trials, order.front(),
                         [&](const std::vector<const Trial*>& some) { return searcher.exact_memory(some); });
  plan.pareto = pareto_front(trials, plan.ladder);
  const auto others = alternatives(searcher, order, plan.best.has_value(), static_cast<std::size_t>(options.top));
  for (const auto i : others) plan.alternatives.push_back(candidate(i));
  if (plan.best && options.compare && !searcher.in_haste()) add_rivals(plan, options);

  double fastest = never;
  for (const Trial& trial : trials)
    if (trial.done && trial.candidate.prediction.fits)
      fastest = std::min(fastest, cost(trial.candidate.prediction, objective));
  auto& s = plan.searched;
  s = searcher.counts(fastest * (1 - tie_share));
  // Ties may have put something slower in the first place: the gap is the best's own, and counts what was simulated,
  // too.
  const double least = std::min(searcher.lower_bound(), fastest);
  s.gap = plan.best ? std::max(0.0, 1 - least / cost(plan.best->prediction, objective)) : 0;
  s.proved_optimal = plan.best && all_predicted && s.not_modelled == 0 && !s.interrupted && left_out.notes.empty() &&
                     1 - least / fastest <= tie_share;
  std::tie(s.open, s.closed) = open_and_closed(scenario);
  const auto moves = [](const std::string& name) {
    return name == "parallelism" || name == "microbatch" ||
           std::ranges::find(parallel_sizes, name) != parallel_sizes.end();
  };
  if (plan.best && !std::ranges::all_of(s.closed, moves)) s.rest = rest_at_most(scenario, options, fastest);
  if (!plan.best) {
    plan.closest = closest(searcher, plan);
    if (plan.closest) plan.closest->proved = s.undecided == 0 && s.not_modelled == 0 && !s.interrupted;
  }
  plan.why = explain(plan, trials, order, others, opened, left_out);
  if (!plan.best && !searcher.in_haste())
    std::ranges::move(plan.has_baseline ? what_would_fit(scenario, options) : fits_on_more_gpus(scenario, options),
                      std::back_inserter(plan.why));
  // Fewer copies walk through more microbatches each: where that is quick.
  constexpr std::int64_t most_work = 20'000;
  if (plan.best && !searcher.in_haste() &&
      scenario::num_microbatches(plan.best->scenario) * scenario.model.num_layers <= most_work) {
    plan.fewest_gpus = fewest_gpus(*plan.best, options);
    if (*plan.fewest_gpus < plan.best->scenario.cluster.num_gpus)
      plan.why.push_back("the best fits on " + std::to_string(*plan.fewest_gpus) +
                         " GPUs, too, with fewer copies of it");
  }
  s.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
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
