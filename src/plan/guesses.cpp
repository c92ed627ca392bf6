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
  for (std::size_t n = 0; n < structures.size() && !interrupted_; ++n) open_ahead(structures[n], likely[n]);
}

/// Trials that were just opened.
void Searcher::follow(const std::vector<std::size_t>& fresh) {
  in_parallel(fresh.size(), [&](std::size_t n) { floor_of(fresh[n]); });
  for (const auto i : fresh) settle(i);
}

void Searcher::open_ahead(std::size_t structure, const std::vector<std::size_t>& steps) {
  std::vector<std::size_t> fresh;
  for (const auto step : steps) {
    Known& known = known_[structure];
    Node node{known.cost, Node::Kind::step, structure, step};
    if (step >= known.opened.size() || (known.opened[step] && open_.erase(node) == 0)) continue;
    known.opened[step] = true;
    node.cost = least_of_step(structure, step);
    std::ranges::copy(opened(node), std::back_inserter(fresh));
  }
  follow(fresh);
}

/// The same with what is moved, of what does not fit without.
void Searcher::move_ahead(const std::vector<std::size_t>& structures) {
  std::vector<std::vector<LikelyMove>> likely(structures.size());
  in_parallel(structures.size(), [&](std::size_t n) { likely[n] = likely_moves(structures[n]); });
  struct Move {
    std::size_t trial;
    Bytes spare;
  };
  std::vector<Move> moves;
  for (std::size_t n = 0; n < structures.size() && !interrupted_; ++n)
    for (const auto& move : likely[n]) {
      open_ahead(structures[n], {move.step});
      for (std::size_t i = 0; i < trials_.size(); ++i) {
        const Trial& trial = trials_[i];
        if (trial.structure != structures[n] || trial.step != move.step || trial.without || trial.refused ||
            !leads(i) || trial.given)
          continue;
        if (!offload_.contains(i)) offload_[i] = space_.offload_steps(trial);
        moves.push_back({i, move.spare});
        break;
      }
    }
  std::vector<std::size_t> unbounded;
  for (const auto& move : moves)
    if (!trials_[move.trial].offload_bounded && std::ranges::find(unbounded, move.trial) == unbounded.end())
      unbounded.push_back(move.trial);
  in_parallel(unbounded.size(), [&](std::size_t n) { bound_offload(unbounded[n]); });
  std::vector<std::optional<std::size_t>> offloads(moves.size());
  in_parallel(moves.size(), [&](std::size_t n) { offloads[n] = likely_offload(moves[n].trial, moves[n].spare); });
  std::vector<std::size_t> fresh;
  for (std::size_t n = 0; n < moves.size(); ++n) {
    const auto trial = moves[n].trial;
    const double least = std::max(trials_[trial].least, trials_[trial].with_offload);
    if (!offloads[n] || least >= fastest() * (1 - tie_share)) continue;  // its turn comes
    if (!moved_ahead_.emplace(trial, *offloads[n]).second) continue;
    std::ranges::copy(opened({least, Node::Kind::offload, trials_[trial].structure, trial, *offloads[n]}),
                      std::back_inserter(fresh));
  }
  follow(fresh);
}

/// Where no recompute alone seems cheapest: sets of modules to recompute whose time and the copies that move the rest
/// are least, by what each module alone takes, frees and leaves to be moved. Offload may free less than its bound says:
/// once as if `spares` of the device were needed besides.
std::vector<Searcher::LikelyMove> Searcher::likely_moves(std::size_t structure) {
  constexpr double spares[] = {0.03, 0.1};
  constexpr std::size_t sets_each = 2;
  const Known& known = known_[structure];
  const auto& at = structures_[structure];
  if (!options_.spread_floor || !space_.searches_offload() || !known.tight || known.steps.empty()) return {};
  const auto guess = [&](const Step& step) {
    Scenario s = at.partial;
    apply(step.value, s);
    return spread_bounds_.guess(spreads_[at.spread], at, with_required_environment(without_offload(s)));
  };
  const auto bare = guess(known.steps.front());
  if (!bare || bare->lacking <= 0) return {};
  std::map<std::string, Guess> alone;
  std::vector<std::pair<std::size_t, Guess>> sets = {{0, *bare}};
  for (std::size_t i = 1; i < known.steps.size(); ++i) {
    const auto& value = known.steps[i].value;
    if (value.setting("recompute_method") != "none") continue;
    const auto names = names_in(value.setting("recompute_modules"));
    if (names.size() == 1)
      if (const auto one = guess(known.steps[i])) alone.emplace(names.front(), *one);
    Guess sum = *bare;
    bool all = true;
    for (const auto& name : names) {
      const auto one = alone.find(name);
      if (one == alone.end()) {
        all = false;
        continue;
      }
      sum.time += std::max(0.0, one->second.time - bare->time);
      sum.lacking += one->second.lacking - bare->lacking;
      sum.moved += one->second.moved - bare->moved;
    }
    if (all) sets.emplace_back(i, sum);
  }
  std::vector<LikelyMove> found;
  for (const double share : spares) {
    const double spare = share * bare->available;
    std::vector<std::pair<double, LikelyMove>> priced;
    for (const auto& [step, of] : sets) {
      const double lacking = of.lacking + spare;
      if (lacking <= 0 || of.moved + spare > 0) continue;  // nothing needs to move; not enough can
      priced.push_back({std::max(of.time, bare->ns_per_byte * lacking), {step, Bytes(std::llround(spare))}});
    }
    std::ranges::stable_sort(priced, {}, [](const auto& one) { return one.first; });
    for (std::size_t n = 0; n < std::min(sets_each, priced.size()); ++n) found.push_back(priced[n].second);
  }
  return found;
}

/// Of what may be offloaded beside a candidate's recompute, that which moves least and lets it fit, with some to spare,
/// by what each module alone frees; none: it does not seem to fit.
std::optional<std::size_t> Searcher::likely_offload(std::size_t trial, Bytes spare) {
  const auto& steps = *offload_.at(trial);
  const Trial& without = trials_[trial];
  const auto& at = structures_[without.structure];
  const auto lacking = [&](const Value& moves) -> std::optional<double> {
    Scenario s = without.candidate.scenario;
    apply(moves, s);
    const auto bytes = spread_bounds_.lacking(spreads_[at.spread], at, with_required_environment(s));
    return bytes ? std::optional(static_cast<double>(bytes->value)) : std::nullopt;
  };
  const auto bare = lacking({});
  if (!bare) return std::nullopt;
  const auto share_of = [](const Value& moves) {
    const auto text = moves.setting("activation_offload_fraction");
    return text.empty() ? 1 : std::stod(text);
  };
  std::map<std::string, double> frees;  // alone, or beside the module that it is offered with
  for (const Step& step : steps) {
    const auto list = step.value.setting("offload_modules");
    if (list.empty() || share_of(step.value) != 1) continue;
    double others = 0;
    std::vector<std::string> fresh;
    for (const auto& name : names_in(list))
      if (const auto known = frees.find(name); known != frees.end())
        others += known->second;
      else
        fresh.push_back(name);
    if (fresh.size() != 1) continue;
    const auto with = lacking(step.value);
    frees[fresh.front()] = with ? *bare - *with - others : 0;
  }
  std::optional<std::pair<double, std::size_t>> least;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto list = steps[i].value.setting("offload_modules");
    if (list.empty()) continue;
    double freed = 0;
    for (const auto& name : names_in(list)) freed += share_of(steps[i].value) * frees[name];
    if (*bare + static_cast<double>(spare.value) - freed <= 0 && (!least || freed < least->first)) least = {freed, i};
  }
  return least ? std::optional(least->second) : std::nullopt;
}

/// Memory as it is reserved on the ranks that have least to spare: a small part of a prediction, and most of what is
/// near the limit fails it.
bool Searcher::fullest_ranks_fit(const Trial& trial) {
  if (!options_.repredict_reserved) return true;
  constexpr std::size_t most = 2;
  predict::Prediction some = *trial.quick;
  std::ranges::stable_sort(some.ranks, std::greater<>(),
                           [](const auto& rank) { return rank.walk.peak_reserved + rank.outside_allocator; });
  const auto ranks = std::max<std::int64_t>(1, std::ssize(some.ranks));
  if (some.ranks.size() > most) some.ranks.erase(some.ranks.begin() + most, some.ranks.end());
  walked_ += exact_work(trial.candidate.scenario) * std::ssize(some.ranks) / ranks;
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
