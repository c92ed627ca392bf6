// Guesses that order what the search follows before its turn (dive.cpp) and exclude nothing: which recompute likely
// fits, and whether a candidate's fullest ranks do. What a parallelism may come to: SpreadBounds::promise.
#include <algorithm>
#include <cmath>

#include "searcher.hpp"

namespace pipewright::plan {

namespace {

/// Of the rank that lacks most: bytes, negative where all have some to spare.
double most_lacking(const predict::Prediction& p) {
  double most = -never;
  for (const auto& rank : p.ranks) {
    const auto needed = rank.walk.peak_reserved + rank.outside_allocator + p.memory_margin;
    most = std::max(most, static_cast<double>((needed - p.memory_limit).value));
  }
  return most;
}

Scenario without_offload(Scenario s) {
  apply(no_offload(s), s);
  return s;
}

}  // namespace

namespace {

/// "[mlp, core_attn]": its names.
std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> names;
  list = list.substr(1, list.size() - 2);
  while (!list.empty()) {
    const auto end = std::min(list.find(", "), list.size());
    names.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 2, list.size()));
  }
  return names;
}

/// What a choice of recompute takes, or adds to a step; what the rank that lacks most lacks, or frees.
struct Price {
  double time = 0, bytes = 0;
};

}  // namespace

/// No recompute; where that does not fit, the sets of modules that seem to be the cheapest to do, by what each frees
/// and takes alone; and as many layers in full as seem to be enough.
std::vector<std::size_t> Searcher::likely_steps(std::size_t structure) {
  constexpr double ample = 1.1;  // a set's modules free less together than alone, and fragmentation takes its part
  const auto& steps = known_[structure].steps;
  if (steps.empty() || !known_[structure].tight) return {0};
  std::vector<std::size_t> found = {0}, by_layers;  // in full: 1, 2, ... layers of every chunk, then all
  try {
    const auto look = [&](const Scenario& s) {
      if (options_.spread_floor) {
        const auto& at = structures_[structure];
        if (const auto seen = spread_bounds_.of_candidate(spreads_[at.spread], at, s); seen.known)
          return Price{seen.cost, static_cast<double>(seen.lacking.value)};
      }
      const auto floor = options_.floor(s);
      return Price{cost(floor, objective_), most_lacking(floor)};
    };
    const auto bare = look(space_.bare(structures_[structure].partial));
    const double lacking = bare.bytes;
    const auto price = [&](std::size_t step) {
      Scenario s = structures_[structure].partial;
      apply(steps[step].value, s);
      const auto with = look(with_required_environment(without_offload(s)));
      return Price{with.time - bare.time, lacking - with.bytes};
    };
    std::map<std::string, Price> alone;
    std::vector<std::pair<std::size_t, Price>> sets;
    for (std::size_t i = 1; i < steps.size(); ++i) {
      const auto& value = steps[i].value;
      const auto method = value.setting("recompute_method");
      if (method == "block" || (method == "uniform" && value.setting("recompute_num_layers") == "1"))
        by_layers.push_back(i);
      if (method != "none") continue;
      const auto names = names_in(value.setting("recompute_modules"));
      if (names.size() == 1) alone.emplace(names.front(), price(i));
      Price sum;
      for (const auto& name : names)
        if (const auto one = alone.find(name); one != alone.end())
          sum.time += one->second.time, sum.bytes += one->second.bytes;
      sets.emplace_back(i, sum);
    }
    for (const double enough : {1.0, ample}) {
      std::optional<std::pair<double, std::size_t>> cheapest;
      for (const auto& [step, sum] : sets)
        if (sum.bytes >= enough * lacking && (!cheapest || sum.time < cheapest->first)) cheapest = {sum.time, step};
      if (cheapest && std::ranges::find(found, cheapest->second) == found.end()) found.push_back(cheapest->second);
    }
    if (found.size() == 1 && !sets.empty()) found.push_back(sets.back().first);
    if (by_layers.empty()) return found;
    const auto all = price(by_layers.back());
    if (all.bytes < lacking) return found;
    const auto count = static_cast<double>(by_layers.size());
    const auto enough = static_cast<std::size_t>(std::clamp(std::ceil(count * lacking / all.bytes), 1.0, count));
    for (const auto n : {enough, std::min(enough + 1, by_layers.size())})
      if (std::ranges::find(found, by_layers[n - 1]) == found.end()) found.push_back(by_layers[n - 1]);
  } catch (const UsageError&) {
    // its candidates say why
  }
  return found;
}

/// Opens what likely fits, before what costs less was tried.
void Searcher::skip_ahead(const std::vector<std::size_t>& structures) {
  std::vector<std::vector<std::size_t>> likely(structures.size());
  in_parallel(structures.size(), [&](std::size_t n) { likely[n] = likely_steps(structures[n]); });
  std::vector<std::size_t> fresh;
  for (std::size_t n = 0; n < structures.size() && !interrupted_; ++n)
    for (const auto step : likely[n]) {
      const auto structure = structures[n];
      Known& known = known_[structure];
      Node node{known.cost, Node::Kind::step, structure, step};
      if (step >= known.opened.size() || (known.opened[step] && open_.erase(node) == 0)) continue;
      known.opened[step] = true;
      node.cost = least_of_step(structure, step);
      std::ranges::copy(opened(node), std::back_inserter(fresh));
    }
  in_parallel(fresh.size(), [&](std::size_t n) { floor_of(fresh[n]); });
  for (const auto i : fresh) settle(i);
}

/// Memory as it is reserved on the ranks that have least to spare: a small part of a prediction, and most of what is
/// near the limit fails it.
bool Searcher::fullest_ranks_fit(const Trial& trial) const {
  if (!options_.repredict_reserved) return true;
  constexpr std::size_t most = 2;
  predict::Prediction some = *trial.quick;
  std::ranges::stable_sort(some.ranks, std::greater<>(),
                           [](const auto& rank) { return rank.walk.peak_reserved + rank.outside_allocator; });
  if (some.ranks.size() > most) some.ranks.erase(some.ranks.begin() + most, some.ranks.end());
  return options_.repredict_reserved(trial.candidate.scenario, some).fits;
}

/// ... by one of the allocator's settings at least. Else more recompute is worth a look.
bool Searcher::may_be_confirmed(std::size_t trial) {
  const auto group = groups_[trials_[trial].time_group];
  for (const auto i : group) {
    Trial& one = trials_[i];
    if (!waits(one)) continue;
    in_parallel(1, [&](std::size_t) {  // its ranks
      try {
        one.may_fit = fullest_ranks_fit(one);
      } catch (const UsageError& error) {
        refuse(i, error);
      }
    });
    if (waits(one)) return true;
  }
  give_up_on(group.front());
  return false;
}

}  // namespace pipewright::plan
