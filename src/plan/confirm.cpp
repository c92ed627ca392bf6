// The exact engine's part of the search: it decides among what quick looks leave, and predicts what stands beside the
// best in the answer.
#include <algorithm>
#include <map>
#include <string>

#include "pipewright/scenario/derived.hpp"
#include "searcher.hpp"

namespace pipewright::plan {

/// Counts the work of a trial that is to be predicted, unless that were too much.
bool Searcher::take_work(const Trial& trial, std::int64_t most) {
  const auto work = exact_work(trial.candidate.scenario);
  if (exact_work_ > 0 && exact_work_ + work > most) return false;
  exact_work_ += work;
  return true;
}

/// Predicts some of those that may be better than the best by more than a tie. False: there is nothing left to predict.
bool Searcher::confirm_finalists() {
  const double best = fastest_exact();
  std::vector<std::size_t> some;
  const auto batch = static_cast<std::size_t>(std::max(2, arena_.max_concurrency()));
  for (const auto i : by_cost()) {
    const Trial& trial = trials_[i];
    if (!waits(trial) || trial.least >= best * (1 - tie_share)) continue;
    // Of equal times one; another only where that does not fit.
    const Trial& leader = trials_[groups_[trial.time_group].front()];
    if (!leads(i) && (!leader.done || leader.candidate.prediction.fits)) continue;
    const bool matters = trial.least < best * (1 - good_gap);
    if (!take_work(trial, matters ? most_exact_work : most_polish)) {
      finalists_left_ = finalists_left_ || matters;
      continue;
    }
    some.push_back(i);
    if (some.size() == batch) break;
  }
  if (some.empty()) return false;
  // A walk over every rank is cheaper than a prediction, and tells most of what does not fit.
  in_parallel(some.size(), [&](std::size_t n) {
    if (trials_[some[n]].every_rank) return;
    try {
      scout(trials_[some[n]], predict::Depth::ranks);
    } catch (const UsageError& error) {
      refuse(some[n], error);
    }
  });
  std::vector<std::size_t> left;
  for (const auto i : some) {
    share_with_group(i);
    if (waits(trials_[i]))
      left.push_back(i);
    else
      settle(i);
  }
  confirm(left);
  return true;
}

/// Of what ties with the best: what changes less, what may have an interval where the best has none, and other
/// allocators where it is not sure that the best fits.
void Searcher::confirm_ties() {
  constexpr std::size_t most = 4;
  const auto order = ranking(trials_, objective_);
  if (order.empty() || !trials_[order.front()].candidate.prediction.fits) return;
  const Trial& best = trials_[order.front()];
  const double limit = fastest_exact() * (1 + tie_share);
  if (best.given && best.probability >= sure_to_fit) return;
  std::vector<std::size_t> some;
  for (const auto i : by_cost()) {
    const Trial& trial = trials_[i];
    if (best_cost(trial) > limit || some.size() == most) break;
    const bool other_exchange =
        trial.candidate.scenario.settings.cp_comm_type != best.candidate.scenario.settings.cp_comm_type;
    const bool may_win = trial.changes < best.changes || best.probability < sure_to_fit ||
                         (other_exchange && !best.candidate.prediction.ignored.empty());
    if (waits(trial) && may_win && (trial.time_group == best.time_group || take_work(trial, most_exact_work)))
      some.push_back(i);
  }
  for (const auto i : groups_[best.time_group])
    if (!trials_[i].done && best.probability < sure_to_fit && std::ranges::find(some, i) == some.end())
      some.push_back(i);
  confirm(some);
}

/// By a walk, and by what its fullest ranks reserve; what the model refuses does not.
bool Searcher::walk_fits(std::size_t index) {
  Trial& trial = trials_[index];
  try {
    if (!trial.scouted) scout(trial, predict::Depth::ends);
    if (trial.may_fit) return fullest_ranks_fit(trial);
  } catch (const UsageError& error) {
    refuse(index, error);
  }
  share_with_group(index);
  conclude(index);
  return false;
}

bool Searcher::in_time(const Trial& trial, Clock::time_point until) const {
  const std::chrono::duration<double> takes(s_of_work_ * static_cast<double>(exact_work(trial.candidate.scenario)));
  return Clock::now() + takes < until;
}

/// Interrupted: what looks faster than all that was simulated, by more than an estimate may be wrong, if it fits.
void Searcher::confirm_likeliest(Clock::time_point until) {
  constexpr int most_tries = 4;  // walks of two ranks; one simulation
  int tries = 0;
  for (const auto i : by_cost()) {
    const Trial& trial = trials_[i];
    if (best_cost(trial) >= fastest_exact() * (1 - 2 * good_gap)) return;
    if (!waits(trial)) continue;
    if (!in_time(trial, until)) return;
    if (walk_fits(i)) return confirm_one(i);
    if (++tries == most_tries) return;
  }
}

/// Interrupted before anything that fits was simulated: the likeliest, so that there is an answer.
void Searcher::confirm_something(Clock::time_point until) {
  if (fastest_exact() < never / 2) return confirm_likeliest(until);
  constexpr int most_tries = 3, most_walks = 24;
  int tries = 0, walks = 0;
  // Nothing was looked at: the structures that cost least, with the recompute that a floor lets fit.
  if (std::ranges::none_of(trials_, [&](const Trial& t) { return waits(t); })) {
    constexpr int most_looks = 64;
    int looks = 0, found = 0;
    while (!open_.empty() && looks < most_looks && found < most_tries) {
      // Down to candidates of one spread before another is opened; of spreads of which nothing is known that whose
      // ranks hold least.
      auto at = std::ranges::find_if(open_, [](const Node& n) { return n.kind != Node::Kind::spread; });
      if (at == open_.end())
        at = std::ranges::max_element(open_, [&](const Node& a, const Node& b) {
          if (a.cost != b.cost) return a.cost > b.cost;
          const auto shared = [&](const Node& n) {
            const auto& s = spreads_[n.structure].partial;
            return scenario::model_parallel_size(s) * s.settings.expert_model_parallel_size;
          };
          return shared(a) < shared(b);
        });
      const Node node = *at;
      open_.erase(at);
      if (node.kind == Node::Kind::structure) known_[node.structure].sharp = true;
      if (node.kind == Node::Kind::trial) {
        ++found;
        continue;
      }
      for (const auto i : opened(node)) {
        ++looks;
        floor_of(i);
        share_with_group(i);
        if (trials_[i].refused || !trials_[i].may_fit)
          give_up_on(i);
        else
          ++found;
      }
    }
  }
  // What was walked likely fits; of what a floor lets fit most does not.
  for (const bool walked : {true, false})
    for (const auto i : by_cost()) {
      const Trial& trial = trials_[i];
      if (trial.done || !trial.may_fit || !leads(i) || waits(trial) != walked || (!walked && !trial.fits_by_floor))
        continue;
      if (walks++ < most_walks && !walk_fits(i)) continue;
      confirm_one(i);
      if (++tries == most_tries || (trials_[i].done && trials_[i].candidate.prediction.fits)) return;
    }
}

/// Interrupted: what stands beside the best in the answer, of what only waits for the exact engine. Of each parallelism
/// the fastest, of the best's own each structure's; as much as takes about a second.
void Searcher::confirm_alternatives(Clock::time_point until) {
  constexpr std::int64_t most_work = 10'000;
  constexpr int most_tries = 3;
  const auto order = ranking(trials_, objective_);
  if (order.empty() || !trials_[order.front()].candidate.prediction.fits) return;
  const auto& home = structures_[trials_[order.front()].structure];
  const auto line_of = [&](const Trial& trial) {
    const auto& structure = structures_[trial.structure];
    return space_.same_spread(structure, home) ? structure.label : space_.name_of_spread(structure.chosen);
  };
  std::set<std::string> lines;
  for (const auto i : order)
    if (trials_[i].candidate.prediction.fits) lines.insert(line_of(trials_[i]));
  std::int64_t left = most_work;
  int tries = 0;
  for (const auto i : by_cost()) {
    if (tries == most_tries) return;
    const Trial& trial = trials_[i];
    const auto work = exact_work(trial.candidate.scenario);
    if (!waits(trial) || !leads(i) || work > left || lines.contains(line_of(trial))) continue;
    if (!in_time(trial, until)) return;
    ++tries;
    if (!walk_fits(i)) continue;
    left -= work;
    confirm_one(i);
    if (!trial.done || !trial.candidate.prediction.fits) continue;
    lines.insert(line_of(trial));
    shown_.insert(i);
  }
}

/// Predicts trials: of those that take equal time one, then the others' memory. Where none of them fits, other
/// allocators' settings may.
void Searcher::confirm(const std::vector<std::size_t>& which) {
  std::vector<std::size_t> first, others;
  std::set<std::size_t> groups;
  for (const auto i : which) (groups.insert(trials_[i].time_group).second ? first : others).push_back(i);
  predict_all(first);
  // What the model refuses it refuses with any allocator: nobody waits for the others then.
  for (const auto i : first)
    if (trials_[i].refused) share_with_group(i);
  const auto fits = [&](std::size_t j) { return trials_[j].done && trials_[j].candidate.prediction.fits; };
  for (const auto i : first) {
    const auto& group = groups_[trials_[i].time_group];
    if (!trials_[i].done || std::ranges::any_of(group, fits)) continue;
    for (const auto j : group)
      if (!trials_[j].done && std::ranges::find(others, j) == others.end()) others.push_back(j);
  }
  predict_all(others);
  for (const auto i : first) conclude(i);
}

/// What a prediction tells of all that take equal time. Where none of them fits, what does more is worth a look.
void Searcher::conclude(std::size_t predicted) {
  const auto& group = groups_[trials_[predicted].time_group];
  if (trials_[predicted].done)
    for (const auto i : group) trials_[i].least = std::max(trials_[i].least, best_cost(trials_[predicted]));
  const auto alive = [&](std::size_t i) {
    return trials_[i].done ? trials_[i].candidate.prediction.fits : trials_[i].may_fit && !trials_[i].refused;
  };
  if (quick_ && std::ranges::none_of(group, alive))
    for (const auto i : group) give_up_on(i);
}

/// One alone, interrupted or not.
void Searcher::confirm_one(std::size_t trial) {
  predict_one(trial, nullptr);
  if (trials_[trial].refused) share_with_group(trial);
  conclude(trial);
}

void Searcher::predict_all(const std::vector<std::size_t>& which) {
  std::vector<const predict::Prediction*> same(which.size(), nullptr);
  for (std::size_t n = 0; n < which.size(); ++n)
    for (const auto i : groups_[trials_[which[n]].time_group])
      if (trials_[i].done) same[n] = &trials_[i].candidate.prediction;
  in_parallel(which.size(), [&](std::size_t n) { predict_one(which[n], same[n]); });
}

/// `same`: of a trial that takes equal time.
void Searcher::predict_one(std::size_t index, const predict::Prediction* same) {
  Trial& trial = trials_[index];
  if (trial.done || trial.refused) return;
  try {
    auto& prediction = trial.candidate.prediction;
    const auto& s = trial.candidate.scenario;
    const bool again = same != nullptr && options_.repredict_reserved;
    const auto begun = Clock::now();
    prediction = again ? options_.repredict_reserved(s, *same) : options_.predict(s);
    if (!again) ++simulated_;
    walked_ += exact_work(s);
    const std::chrono::duration<double> took = Clock::now() - begun;
    s_of_work_ = std::max(s_of_work_.load(), took.count() / static_cast<double>(exact_work(s)));
    trial.probability = options_.probability ? options_.probability(prediction).value_or(1) : 1;
    trial.done = true;
  } catch (const UsageError& error) {
    refuse(index, error);
  }
}

// ---- Beside the best

/// One line for each other parallelism, microbatch, interleaving, layout and overlap, the other choices free; and one
/// without recompute.
void Searcher::look_beside(std::size_t best) {
  if (!options_.estimate) return;
  begin("comparing", false);
  struct Line {
    double cost;
    std::size_t structure;
  };
  const auto home = trials_[best].structure;
  const auto& chosen = structures_[home].chosen;
  std::vector<std::size_t> unbounded;  // other choices of the best's own spread
  for (std::size_t i = 0; i < structures_.size(); ++i)
    if (!known_[i].bounded && !known_[i].impossible && space_.same_spread(structures_[i], structures_[home]))
      unbounded.push_back(i);
  bound_structures(unbounded);
  std::vector<Line> lines;
  for (std::size_t d = 0; d < chosen.size(); ++d) {
    std::map<std::string, Line> by_value;
    for (std::size_t i = 0; i < structures_.size(); ++i) {
      const auto& other = structures_[i].chosen;
      bool same_before = !known_[i].impossible && known_[i].bounded && other[d].label != chosen[d].label;
      for (std::size_t e = 0; e < d && same_before; ++e) same_before = other[e].label == chosen[e].label;
      if (!same_before) continue;
      // N apart, an interleaving is one line.
      const auto name = other[d].label.substr(0, other[d].label.find(", N "));
      const Line line{known_[i].cost, i};
      const auto [at, fresh] = by_value.emplace(name, line);
      if (!fresh && line.cost < at->second.cost) at->second = line;
    }
    constexpr std::size_t most_values = 5;
    std::vector<Line> some;
    for (const auto& [name, line] : by_value) some.push_back(line);
    std::ranges::stable_sort(some, {}, &Line::cost);
    if (some.size() > most_values) some.resize(most_values);
    std::ranges::copy(some, std::back_inserter(lines));
  }
  std::ranges::stable_sort(lines, {}, &Line::cost);
  if (lines.size() > static_cast<std::size_t>(options_.top)) lines.resize(static_cast<std::size_t>(options_.top));
  std::vector<std::size_t> wanted;
  for (const auto& line : lines)
    if (const auto trial = representative(line.structure)) wanted.push_back(*trial);
  // The least recompute and the best's own, without offload: what it costs, or what they would need.
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    const Trial& trial = trials_[i];
    const bool least = trial.step == 0 || trial.step == trials_[best].step;
    if (trial.structure == home && !offloads(trial) && least && leads(i) && !trial.refused && i != best)
      wanted.push_back(i);
  }
  // Where little else is open: the cheapest that frees memory.
  constexpr std::size_t fewest = 2;
  for (const auto i : by_cost())
    if (wanted.size() < fewest && trials_[i].structure == home && leads(i) && waits(trials_[i])) wanted.push_back(i);
  std::int64_t left = most_beside;
  std::vector<std::size_t> some;
  for (const auto i : wanted) {
    shown_.insert(i);
    if (trials_[i].done) continue;
    left -= exact_work(trials_[i].candidate.scenario);
    if (left < 0) break;
    some.push_back(i);
  }
  confirm(some);
}

/// At least what is known of the steps that do less.
double Searcher::least_of_step(std::size_t structure, std::size_t step) const {
  double least = known_[structure].cost;
  for (auto after = known_[structure].steps[step].after; after; after = known_[structure].steps[*after].after)
    for (const Trial& trial : trials_)
      if (trial.structure == structure && trial.step == *after && !offloads(trial))
        least = std::max(least, trial.least);
  return least;
}

void Searcher::scout_structure_of(std::size_t winner) {
  if (!options_.scout) return;
  const auto home = trials_[winner].structure;
  auto& known = known_[home];
  if (known.expanded) {
    // Of numbers of layers some tell the others; each list of modules is of its own kind.
    constexpr std::size_t most_numbers = 8, most_lists = 16;
    std::map<std::string, std::vector<std::size_t>> by_method;
    for (std::size_t step = 0; step < known.steps.size(); ++step)
      by_method[known.steps[step].value.setting("recompute_method")].push_back(step);
    std::map<std::size_t, Node> waiting;
    for (const Node& node : open_)
      if (node.kind == Node::Kind::step && node.structure == home) waiting.emplace(node.index, node);
    for (const auto& [method, steps] : by_method) {
      const bool numbers = method == "block" || method == "uniform";
      const std::size_t most = numbers ? most_numbers : most_lists, stride = (steps.size() + most - 1) / most;
      for (std::size_t n = 0; n < steps.size(); n += stride) {
        const auto step = steps[n];
        const auto node = waiting.find(step);
        if (known.opened[step] && node == waiting.end()) continue;
        if (node != waiting.end()) open_.erase(node->second);
        known.opened[step] = true;
        opened({least_of_step(home, step), Node::Kind::step, home, step});
      }
    }
  }
  std::vector<std::size_t> same;
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    const Trial& trial = trials_[i];
    if (trial.structure == home && !trial.done && !trial.refused && leads(i)) same.push_back(i);
  }
  in_parallel(same.size(), [&](std::size_t n) {
    Trial& trial = trials_[same[n]];
    try {
      if (!trial.quick || trial.quick->step_ns == 0) estimate(trial);
      if (!trial.every_rank) scout(trial, predict::Depth::ranks);
    } catch (const UsageError& error) {
      refuse(same[n], error);
    }
  });
  for (const auto i : same) share_with_group(i);
}

std::vector<predict::Prediction> Searcher::exact_memory(const std::vector<const Trial*>& some) {
  std::int64_t work = 0;
  for (const Trial* trial : some) work += exact_work(trial->candidate.scenario);
  if (work > most_beside) return {};
  std::vector<predict::Prediction> predictions(some.size());
  in_parallel(some.size(), [&](std::size_t n) {
    const auto& s = some[n]->candidate.scenario;
    predictions[n] =
        options_.repredict_reserved ? options_.repredict_reserved(s, *some[n]->quick) : options_.predict(s);
  });
  return predictions;
}

}  // namespace pipewright::plan
