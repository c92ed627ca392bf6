// The exact engine's part of the search: it decides among the finalists.
#include <algorithm>

#include "searcher.hpp"

namespace pipewright::plan {

namespace {

/// What the exact engine may be asked for in one search, in microbatches times layers: some ten seconds' work. The
/// first few finalists are always confirmed.
constexpr std::int64_t most_exact_work = 100'000;
constexpr std::size_t always_confirmed = 2;

std::int64_t exact_work(const Scenario& s) { return scenario::num_microbatches(s) * s.model.num_layers; }

bool looked_at(const Trial& trial) { return trial.scouted && trial.may_fit && trial.quick && trial.quick->step_ns > 0; }

}  // namespace

std::vector<std::size_t> Searcher::by_cost() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < trials_.size(); ++i)
    if (!trials_[i].refused) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return best_cost(trials_[i]); });
  return order;
}

/// Confirms what may be best, what is shown beside it, and its neighbours. False: there was nothing new.
bool Searcher::confirm_finalists() {
  const auto order = by_cost();
  std::vector<std::size_t> finalists;
  std::int64_t left = most_exact_work;
  std::set<std::size_t> confirmed, groups;
  for (const Trial& trial : trials_)
    if (trial.done && confirmed.insert(trial.time_group).second) left -= exact_work(trial.candidate.scenario);
  const bool any_fits =
      std::ranges::any_of(trials_, [](const Trial& t) { return t.done && t.candidate.prediction.fits; });
  const std::size_t fewest = any_fits ? 0 : always_confirmed;
  const auto take = [&](std::size_t i) {
    const Trial& trial = trials_[i];
    if (trial.done || std::ranges::find(finalists, i) != finalists.end()) return true;
    if (!groups.contains(trial.time_group)) {
      const auto work = exact_work(trial.candidate.scenario);
      // Until something fits the search goes on, a few at a time.
      if (work > left && groups.size() >= fewest) return false;
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
    if (trial.done ? !trial.candidate.prediction.fits : !looked_at(trial)) continue;
    if (!best) best = i;
    const bool may_win = best_cost(trial) <= best_cost(trials_[*best]) * (1 + engines_differ);
    if (!may_win && shown > static_cast<std::size_t>(options_.top)) break;
    if (!take(i)) break;
    ++shown;
  }
  if (best) {
    constexpr std::size_t most_neighbours = 5;
    for (std::size_t d = 0; d < trials_[*best].candidate.choices.size(); ++d) {
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

/// Structures by their least cost, with floors of some of their candidates, until a few of those may fit.
void Searcher::open_likely_structures() {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < structures_.size(); ++i)
    if (bounds_[i].cost > 0 && !bounds_[i].impossible) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return bounds_[i].cost; });
  constexpr std::size_t most_candidates = 512, wanted = 8;
  std::size_t fit = 0;
  for (const auto structure : order) {
    const std::size_t first = trials_.size();
    if (fit >= wanted || first >= most_candidates) return;
    add_trials(space_.without_offload(structures_[structure]), structure);
    for (std::size_t i = first; i < trials_.size(); ++i) {
      Trial& trial = trials_[i];
      trial.may_fit = false;
      if (!leads(i) || fit >= wanted) continue;
      try {
        trial.floor = options_.floor(trial.candidate.scenario);
        trial.may_fit = trial.floor->fits;
        fit += trial.may_fit ? 1 : 0;
      } catch (const UsageError& error) {
        refuse(i, error);
      }
    }
  }
}

/// Interrupted before anything was simulated: the fastest that may fit, as far as it is known, so that there is an
/// answer.
void Searcher::confirm_best_so_far() {
  const auto fits = [](const Trial& t) { return t.done && t.candidate.prediction.fits; };
  if (std::ranges::any_of(trials_, fits)) return;
  if (std::ranges::none_of(trials_, looked_at)) open_likely_structures();
  constexpr int most_tries = 4;
  int tries = 0;
  for (const bool known : {true, false}) {
    for (const auto i : by_cost()) {
      const Trial& trial = trials_[i];
      if (trial.done || trial.refused || (known ? !looked_at(trial) : !trial.may_fit || !trial.floor)) continue;
      predict_group({i});
      if (++tries == most_tries || fits(trials_[i])) return;
    }
  }
}

/// Every rank of the first few that may fit, until enough are left that pass.
void Searcher::scout_finalists(const std::vector<std::size_t>& order) {
  std::size_t passed = 0;
  const auto wanted = static_cast<std::size_t>(options_.top) / 2;
  for (std::size_t at = 0; at < order.size() && passed < wanted && !interrupted_;) {
    constexpr std::size_t batch = 8;
    std::vector<std::size_t> some;
    for (; at < order.size() && some.size() < batch; ++at) {
      const Trial& trial = trials_[order[at]];
      if (trial.done || (trial.scouted && trial.every_rank))
        passed += (trial.done ? trial.candidate.prediction.fits : trial.may_fit) ? 1 : 0;
      else if (looked_at(trial) && leads(order[at]))
        some.push_back(order[at]);
    }
    in_parallel(some.size(), [&](std::size_t n) {
      try {
        scout(trials_[some[n]], predict::Depth::ranks);
      } catch (const UsageError& error) {
        refuse(some[n], error);
      }
      report_progress();
    });
    for (const auto i : some) {
      share_with_group(i);
      passed += trials_[i].may_fit ? 1 : 0;
    }
  }
}

/// Predicts trials in groups of equal time. The first of a group is simulated, the others only where they differ.
void Searcher::confirm(const std::vector<std::size_t>& which) {
  std::map<std::size_t, std::vector<std::size_t>> by_group;
  for (const auto i : which) by_group[trials_[i].time_group].push_back(i);
  std::vector<const std::vector<std::size_t>*> groups;
  for (const auto& [group, members] : by_group) groups.push_back(&members);
  total_ += static_cast<std::int64_t>(which.size()) - std::ssize(groups);
  in_parallel(groups.size(), [&](std::size_t n) { predict_group(*groups[n]); });
}

void Searcher::predict_group(const std::vector<std::size_t>& members) {
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
      refuse(i, error);
    }
    report_progress();
  }
}

}  // namespace pipewright::plan
