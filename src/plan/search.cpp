// The search. Small spaces are predicted as a whole. With quick looks (Options::estimate, scout) it is branch and
// bound:
//
//   structures  --bound-->  ascending  --expand-->  candidates  --estimate, scout-->  finalists  --predict-->  ranking
//
// A structure's state (parameters, gradients, optimizer) that does not fit rules out all of it; its time without
// recompute and offload bounds all of it from below: once that exceeds the fastest candidate that fits by more than the
// engines differ, nothing that is left can win. The exact engine decides among what is nearer than that.
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>

#include "candidates.hpp"
#include "pipewright/plan.hpp"
#include "space.hpp"

namespace pipewright::plan {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double never = std::numeric_limits<double>::max();

/// Bound of the difference between the engines (tests/predict/engines_test.cpp).
constexpr double engines_differ = 0.01;

/// What the exact engine may be asked for in one search, in microbatches times layers: a few seconds' work. The first
/// few finalists are always confirmed.
constexpr std::int64_t most_exact_work = 24'000;
constexpr std::size_t always_confirmed = 2;

std::int64_t exact_work(const Scenario& s) { return scenario::num_microbatches(s) * s.model.num_layers; }

class Searcher {
 public:
  Searcher(const Scenario& scenario, const Options& options, const std::vector<Dimension>& dimensions,
           LeftOut& left_out)
      : objective_(scenario.search.objective),
        options_(options),
        space_(scenario, dimensions, left_out),
        arena_(options.threads > 0 ? options.threads : tbb::task_arena::automatic),
        structures_(space_.structures()) {}

  void run() {
    if (options_.estimate && options_.scout) {
      bound_structures();
      do {
        expand_promising();
      } while (confirm_finalists() && !interrupted_);
    } else {
      for (auto& structure : structures_) add_candidates(structure);
      next_structure_ = structures_.size();
      std::vector<std::size_t> all(trials_.size());
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
      confirm(all);
    }
  }

  /// Peaks of every candidate of the winner's structure, for the front and the ladder.
  void scout_structure_of(std::size_t winner) {
    if (!options_.scout) return;
    std::vector<std::size_t> same;
    for (std::size_t i = 0; i < trials_.size(); ++i)
      if (trials_[i].structure == trials_[winner].structure && !trials_[i].done && trials_[i].quick) same.push_back(i);
    scout(same, true);
  }

  std::vector<Trial>& trials() { return trials_; }
  Space& space() { return space_; }
  const std::vector<std::string>& refusals() const { return refusals_; }
  std::int64_t simulated() const { return simulated_; }
  std::int64_t estimated() const { return estimated_; }
  bool interrupted() const { return interrupted_; }

  std::int64_t excluded() const {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < structures_.size(); ++i)
      if (structures_[i].impossible || i >= next_structure_) ++count;
    return count;
  }

  std::int64_t too_large() const { return std::ranges::count(structures_, true, &Structure::impossible); }

  /// The least cost that something not predicted exactly may still have; `never` if nothing is left.
  double lower_bound() const {
    double least = never;
    for (std::size_t i = next_structure_; i < structures_.size(); ++i)
      if (!structures_[i].impossible) least = std::min(least, bound(structures_[i]));
    for (const Trial& trial : trials_)
      if (!trial.done && !trial.refused && trial.may_fit) least = std::min(least, quick_cost(trial));
    return least == never ? never : least / (1 + engines_differ);
  }

 private:
  // ---- Work on all cores; results lie at their index, so their order does not depend on the threads

  template <typename Function>
  void in_parallel(std::size_t count, const Function& function) {
    total_ += static_cast<std::int64_t>(count);
    arena_.execute([&] {
      tbb::parallel_for(
          tbb::blocked_range<std::size_t>(0, count, 1),
          [&](const auto& range) {
            for (std::size_t i = range.begin(); i < range.end(); ++i) {
              if (options_.stop.stop_requested()) {
                interrupted_ = true;
                return;
              }
              function(i);
            }
          },
          tbb::simple_partitioner());
    });
  }

  void report_progress() {
    const std::scoped_lock lock(mutex_);
    ++done_;
    if (options_.progress) options_.progress(done_, std::max(done_, total_));
  }

  // ---- Structures

  double bound(const Structure& structure) const { return structure.bound ? cost(*structure.bound, objective_) : 0; }

  /// Parameters, gradients and optimizer state; where recompute is searched, also the activations that full recompute
  /// of every layer leaves, the fewest of all choices.
  bool can_fit(Scenario bare) const {
    predict::Prediction seen;
    options_.scout(bare, predict::Depth::state, seen);
    if (!seen.fits || bare.search.recompute != "auto" || graphs(bare)) return seen.fits;
    bare.settings.recompute_granularity = "full";
    bare.settings.recompute_method = "uniform";
    bare.settings.recompute_num_layers = 1;
    options_.scout(bare, predict::Depth::ends, seen);
    return seen.fits;
  }

  void bound_structures() {
    in_parallel(structures_.size(), [&](std::size_t i) {
      auto& structure = structures_[i];
      const auto bare = with_required_environment(stripped(structure.partial));
      try {
        structure.impossible = !can_fit(bare);
        if (!structure.impossible) structure.bound = options_.estimate(bare);
      } catch (const UsageError&) {
        // No bound: its candidates say why.
      }
      report_progress();
    });
    std::ranges::stable_sort(structures_, [&](const Structure& a, const Structure& b) { return bound(a) < bound(b); });
  }

  void add_candidates(const Structure& structure) {
    for (auto& trial : space_.candidates(structure)) {
      trial.structure = structure.label;
      const auto time = identity_of_time(trial.candidate.scenario);
      const auto [at, fresh] = time_groups_.emplace(time, groups_.size());
      if (fresh) groups_.emplace_back();
      trial.time_group = at->second;
      groups_[at->second].push_back(trials_.size());
      trials_.push_back(std::move(trial));
      refusals_.emplace_back();
    }
  }

  /// Structures in ascending order of their bound, as long as one of them may hold something that wins.
  void expand_promising() {
    constexpr std::size_t batch = 8;
    while (next_structure_ < structures_.size() && !interrupted_) {
      const auto first = trials_.size();
      std::size_t taken = 0;
      while (taken < batch && next_structure_ < structures_.size() &&
             bound(structures_[next_structure_]) <= fastest() * (1 + engines_differ)) {
        if (const auto& structure = structures_[next_structure_++]; !structure.impossible)
          add_candidates(structure), ++taken;
      }
      if (trials_.size() == first && taken == 0) break;
      estimate_from(first);
      scout_promising();
    }
  }

  /// Cost of the fastest candidate that fits, as far as is known.
  double fastest() const {
    double least = never / 2;
    for (const Trial& trial : trials_)
      if (trial.done ? trial.candidate.prediction.fits : trial.scouted && trial.may_fit)
        least = std::min(least, best_cost(trial));
    return least;
  }

  // ---- Quick looks

  double quick_cost(const Trial& trial) const { return trial.quick ? cost(*trial.quick, objective_) : 0; }
  double best_cost(const Trial& trial) const {
    return trial.done ? cost(trial.candidate.prediction, objective_) : quick_cost(trial);
  }

  void estimate_from(std::size_t first) {
    std::vector<std::size_t> leaders;
    for (std::size_t i = first; i < trials_.size(); ++i)
      if (groups_[trials_[i].time_group].front() == i) leaders.push_back(i);
    in_parallel(leaders.size(), [&](std::size_t n) {
      Trial& trial = trials_[leaders[n]];
      try {
        trial.quick = options_.estimate(trial.candidate.scenario);
        ++estimated_;
      } catch (const UsageError& error) {
        refusals_[leaders[n]] = error.what();
        trial.refused = true;
      }
      report_progress();
    });
    for (const auto leader : leaders)
      for (const auto i : groups_[trials_[leader].time_group]) {
        trials_[i].quick = trials_[leader].quick;
        trials_[i].refused = trials_[leader].refused;
        refusals_[i] = refusals_[leader];
      }
  }

  std::vector<std::size_t> by_cost() const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < trials_.size(); ++i)
      if (!trials_[i].refused) order.push_back(i);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return best_cost(trials_[i]); });
    return order;
  }

  /// Allocated peaks in ascending order of time, until enough candidates may fit.
  void scout_promising() {
    const auto wanted = static_cast<std::size_t>(options_.top) + 2;
    const auto order = by_cost();
    std::size_t may_fit = 0;
    for (std::size_t at = 0; at < order.size() && may_fit < wanted && !interrupted_;) {
      constexpr std::size_t batch = 8;
      std::vector<std::size_t> some;
      for (; at < order.size() && some.size() < batch; ++at) {
        const Trial& trial = trials_[order[at]];
        if (trial.scouted || trial.done)
          may_fit += trial.may_fit ? 1 : 0;
        else
          some.push_back(order[at]);
      }
      scout(some, false);
      for (const auto i : some) may_fit += trials_[i].may_fit ? 1 : 0;
    }
  }

  void scout(const std::vector<std::size_t>& which, bool every_rank) {
    std::vector<std::size_t> leaders;
    for (const auto i : which)
      if (groups_[trials_[i].time_group].front() == i) leaders.push_back(i);
    in_parallel(leaders.size(), [&](std::size_t n) {
      Trial& trial = trials_[leaders[n]];
      predict::Prediction seen = trial.quick.value_or(predict::Prediction{});
      try {
        options_.scout(trial.candidate.scenario, every_rank ? predict::Depth::ranks : predict::Depth::ends, seen);
        trial.may_fit = seen.fits;
        trial.scouted = true;
        trial.every_rank = every_rank;
        if (trial.quick) trial.quick = std::move(seen);
      } catch (const UsageError& error) {
        refusals_[leaders[n]] = error.what();
        trial.refused = true;
      }
      report_progress();
    });
    for (const auto i : which) {
      const Trial& leader = trials_[groups_[trials_[i].time_group].front()];
      trials_[i].may_fit = leader.may_fit;
      trials_[i].scouted = leader.scouted;
      trials_[i].every_rank = leader.every_rank;
      trials_[i].quick = leader.quick;
    }
  }

  // ---- The exact engine

  /// Confirms what may be best, what is shown beside it, and its neighbours. False: there was nothing new.
  bool confirm_finalists() {
    const auto order = by_cost();
    std::vector<std::size_t> finalists;
    std::int64_t left = most_exact_work;
    for (const Trial& trial : trials_)
      if (trial.done && groups_[trial.time_group].front() == static_cast<std::size_t>(&trial - trials_.data()))
        left -= exact_work(trial.candidate.scenario);
    std::set<std::size_t> groups;
    const bool any_fits =
        std::ranges::any_of(trials_, [](const Trial& t) { return t.done && t.candidate.prediction.fits; });
    const std::size_t confirmed = confirmed_groups(), fewest = any_fits ? 0 : always_confirmed;
    const auto take = [&](std::size_t i) {
      const Trial& trial = trials_[i];
      if (trial.done || std::ranges::find(finalists, i) != finalists.end()) return true;
      if (!groups.contains(trial.time_group)) {
        const auto work = exact_work(trial.candidate.scenario);
        // Until something fits the search goes on, a few at a time.
        if (work > left && (any_fits || confirmed >= always_confirmed) && groups.size() >= fewest) return false;
        left -= work;
        groups.insert(trial.time_group);
      }
      finalists.push_back(i);
      return true;
    };
    scout_finalists(order);
    std::size_t shown = 0;
    std::optional<std::size_t> best;
    for (const auto i : order) {
      const Trial& trial = trials_[i];
      if (trial.done ? !trial.candidate.prediction.fits : !(trial.scouted && trial.may_fit)) continue;
      if (!best) best = i;
      const bool may_win = best_cost(trial) <= best_cost(trials_[*best]) * (1 + engines_differ);
      if (!may_win && shown > static_cast<std::size_t>(options_.top)) break;
      if (!take(i)) break;
      ++shown;
    }
    if (best) {
      constexpr std::size_t most_neighbours = 5;
      for (std::size_t d = 0; d < trials_[*best].choice.size(); ++d) {
        std::size_t neighbours = 0;
        for (const auto i : order)
          if (neighbours < most_neighbours && differs_only_in(trials_[*best], trials_[i], d)) take(i), ++neighbours;
      }
    } else {
      // Nothing may fit: what comes nearest, for the report.
      for (std::size_t n = 0; n < order.size() && n <= static_cast<std::size_t>(options_.top); ++n)
        if (!take(order[n])) break;
    }
    confirm(finalists);
    return !finalists.empty();
  }

  /// Every rank of the first few that may fit, until one is left that passes.
  void scout_finalists(const std::vector<std::size_t>& order) {
    std::size_t passed = 0;
    const auto wanted = static_cast<std::size_t>(options_.top) / 2;
    for (std::size_t at = 0; at < order.size() && passed < wanted && !interrupted_;) {
      constexpr std::size_t batch = 8;
      std::vector<std::size_t> some;
      for (; at < order.size() && some.size() < batch; ++at) {
        const Trial& trial = trials_[order[at]];
        if (trial.done || (trial.scouted && trial.every_rank))
          passed += (trial.done ? trial.candidate.prediction.fits : trial.may_fit) ? 1 : 0;
        else if (trial.scouted && trial.may_fit)
          some.push_back(order[at]);
      }
      scout(some, true);
      for (const auto i : some) passed += trials_[i].may_fit ? 1 : 0;
    }
  }

  std::size_t confirmed_groups() const {
    std::set<std::size_t> groups;
    for (const Trial& trial : trials_)
      if (trial.done) groups.insert(trial.time_group);
    return groups.size();
  }

  /// Predicts trials in groups of equal time. The first of a group is simulated, the others only where they differ.
  void confirm(const std::vector<std::size_t>& which) {
    std::map<std::size_t, std::vector<std::size_t>> by_group;
    for (const auto i : which) by_group[trials_[i].time_group].push_back(i);
    std::vector<const std::vector<std::size_t>*> groups;
    for (const auto& [group, members] : by_group) groups.push_back(&members);
    total_ += static_cast<std::int64_t>(which.size()) - std::ssize(groups);
    in_parallel(groups.size(), [&](std::size_t n) { predict_group(*groups[n]); });
  }

  void predict_group(const std::vector<std::size_t>& members) {
    const predict::Prediction* first = nullptr;
    for (const auto i : groups_[trials_[members.front()].time_group])
      if (trials_[i].done) first = &trials_[i].candidate.prediction;
    for (const auto i : members) {
      Trial& trial = trials_[i];
      try {
        trial.candidate.prediction = first && options_.repredict_reserved
                                         ? options_.repredict_reserved(trial.candidate.scenario, *first)
                                         : options_.predict(trial.candidate.scenario);
        trial.done = true;
        if (!first) ++simulated_;
        if (!first) first = &trial.candidate.prediction;
      } catch (const UsageError& error) {
        refusals_[i] = error.what();
        trial.refused = true;
      }
      report_progress();
    }
  }

  std::string objective_;
  const Options& options_;
  Space space_;
  tbb::task_arena arena_;
  std::vector<Structure> structures_;
  std::size_t next_structure_ = 0;
  std::vector<Trial> trials_;
  std::vector<std::string> refusals_;
  std::map<std::string, std::size_t> time_groups_;
  std::vector<std::vector<std::size_t>> groups_;
  std::atomic<std::int64_t> simulated_ = 0, estimated_ = 0;
  std::atomic<bool> interrupted_ = false;
  std::int64_t done_ = 0, total_ = 0;
  std::mutex mutex_;
};

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
    plan.rivals.push_back({other.label, options.compare(plan.best->scenario, other.scenario)});
  }
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
  predict_baseline(plan, scenario, options, searcher);

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
  if (!order.empty() && !searcher.interrupted()) searcher.scout_structure_of(order.front());
  plan.pareto = pareto_front(trials);
  if (plan.best) plan.ladder = ladder(trials, order.front());
  for (std::size_t place = plan.best ? 1 : 0; place < order.size() && std::ssize(plan.alternatives) < options.top;
       ++place)
    plan.alternatives.push_back(trials[order[place]].candidate);
  if (plan.best && options.compare && !searcher.interrupted()) add_rivals(plan, options);

  auto& s = plan.searched;
  s.candidates = searcher.space().enumerated + searcher.excluded();
  s.legal = std::ssize(trials);
  s.simulated = searcher.simulated();
  s.estimated = searcher.estimated();
  s.excluded = searcher.excluded();
  s.too_large = searcher.too_large();
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
