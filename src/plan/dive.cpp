// Good answers early. Bounds alone come to what is good last, and what is good excludes most: so now and then the
// search follows something to a candidate before its turn. The neighbours of the best so far, nearest first, as an
// expert would turn one knob at a time; and what looks best of a parallelism that was not tried.
#include <algorithm>
#include <cmath>
#include <functional>

#include "pipewright/scenario/derived.hpp"
#include "searcher.hpp"

namespace pipewright::plan {

namespace {

/// A glance, an estimate, a step, its floor, glance, estimate and walk; some recompute.
constexpr int most_looks = 14;

double doublings(std::int64_t a, std::int64_t b) {
  return std::abs(
      std::log2(static_cast<double>(std::max<std::int64_t>(1, a)) / static_cast<double>(std::max<std::int64_t>(1, b))));
}

/// Turns of a knob between two ways to spread a model: a size doubled or halved.
double spread_turns(const Scenario& a, const Scenario& b) {
  const auto &s = a.settings, &o = b.settings;
  return doublings(s.tensor_model_parallel_size, o.tensor_model_parallel_size) +
         doublings(s.context_parallel_size, o.context_parallel_size) +
         doublings(s.pipeline_model_parallel_size, o.pipeline_model_parallel_size) +
         doublings(s.expert_model_parallel_size, o.expert_model_parallel_size) +
         doublings(s.micro_batch_size, o.micro_batch_size);
}

/// "layout Et|(tt|)*4L" and another written layout are alike.
std::string_view kind_of(std::string_view label) { return label.substr(0, label.find(' ')); }

/// ... between two structures, more turns of the spread's apart.
double structure_turns(const Structure& a, const Structure& b) {
  const auto &s = a.partial.settings, &o = b.partial.settings;
  double turns = doublings(scenario::num_chunks(a.partial), scenario::num_chunks(b.partial));
  turns += s.overlap_moe_expert_parallel_comm != o.overlap_moe_expert_parallel_comm ? 1 : 0;
  turns += s.delay_wgrad_compute != o.delay_wgrad_compute ? 1 : 0;
  const auto group = [](const auto& x) {
    return static_cast<double>(x.microbatch_group_size_per_vp_stage.value_or(x.pipeline_model_parallel_size)) /
           static_cast<double>(x.pipeline_model_parallel_size);
  };
  turns += std::abs(std::log2(group(s) / group(o)));
  for (std::size_t d = 0; d < std::min(a.chosen.size(), b.chosen.size()); ++d)
    turns +=
        a.chosen[d].label != b.chosen[d].label && kind_of(a.chosen[d].label) != kind_of(b.chosen[d].label) ? 0.5 : 0;
  return turns;
}

/// Something that was not tried yet: how far it is, and the least that it costs.
struct Near {
  double turns, cost;
  bool spread;
  std::size_t index;
  auto operator<=>(const Near&) const = default;
};

constexpr std::size_t most_at_once = 8;

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

Scenario without_offload_search(Scenario s) {
  s.search.offload = "keep";
  return s;
}

void nearest(std::vector<Near>& near, std::size_t most) {
  most = std::min(most, near.size());
  std::ranges::partial_sort(near, near.begin() + static_cast<std::ptrdiff_t>(most));
  near.resize(most);
}

}  // namespace

/// The fastest of a structure that may fit, as far as is known.
std::optional<std::size_t> Searcher::fastest_of(std::size_t structure) const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    const Trial& trial = trials_[i];
    if (structure != any_structure && trial.structure != structure) continue;
    if (!(trial.done ? trial.candidate.prediction.fits : waits(trial))) continue;
    if (!found || best_cost(trial) < best_cost(trials_[*found])) found = i;
  }
  return found;
}

/// ... looks for one.
std::optional<std::size_t> Searcher::representative(std::size_t structure, int looks_at_most) {
  for (int looks = 0; looks <= looks_at_most && !interrupted_; ++looks) {
    const auto found = fastest_of(structure);
    if (found || !look(never / 2, {{structure}})) return found;
  }
  return std::nullopt;
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
  in_parallel(group.size(), [&](std::size_t n) {
    Trial& one = trials_[group[n]];
    if (!waits(one)) return;
    try {
      one.may_fit = fullest_ranks_fit(one);
    } catch (const UsageError& error) {
      refuse(group[n], error);
    }
  });
  if (std::ranges::any_of(group, [&](std::size_t i) { return waits(trials_[i]); })) return true;
  give_up_on(group.front());
  return false;
}

/// By more than an estimate may be wrong. False: it is not, or there is no time for it.
bool Searcher::confirm_if_better(std::size_t trial) {
  if (!waits(trials_[trial]) || best_cost(trials_[trial]) >= fastest_exact() * (1 - 2 * good_gap)) return false;
  if (!may_be_confirmed(trial) || interrupted_) return true;
  const auto& group = groups_[trials_[trial].time_group];
  const auto first = *std::ranges::find_if(group, [&](std::size_t i) { return waits(trials_[i]); });
  if (!take_work(trials_[first], most_exact_work)) return false;
  confirm({first});
  return true;
}

/// What looks best of another spread is followed to a candidate.
void Searcher::dive() {
  const double fast = fastest() * (1 - tie_share);
  const auto home = [&](std::size_t i) {
    const auto& chosen = structures_[i].chosen;
    return chosen.empty() ? std::string() : chosen.front().label;
  };
  std::optional<std::size_t> found;
  const auto rank = [&](std::size_t i) { return std::pair(dives_[home(i)], known_[i].cost); };
  for (std::size_t i = 0; i < structures_.size(); ++i) {
    const Known& known = known_[i];
    if (known.impossible || !known.bounded || known.dived || known.cost >= fast) continue;
    if (!found || rank(i) < rank(*found)) found = i;
  }
  if (!found) return;
  known_[*found].dived = true;
  ++dives_[home(*found)];
  if (const auto trial = representative(*found, most_looks)) confirm_if_better(*trial);
}

/// Opens spreads, and finds in each what is nearest.
void Searcher::open_nearest(const std::vector<std::size_t>& spreads, std::size_t centre, double limit,
                            std::vector<std::size_t>& found) {
  for (const auto i : spreads) open_.erase({known_spreads_[i].cost, Node::Kind::spread, i});
  std::vector<std::optional<Space::Opened>> opened(spreads.size());
  in_parallel(spreads.size(), [&](std::size_t n) {
    if (!known_spreads_[spreads[n]].bounded) bound(spreads[n]);
    if (const auto& known = known_spreads_[spreads[n]]; !known.impossible && known.cost < limit)
      opened[n] = space_.open(spreads_[spreads[n]]);
  });
  for (std::size_t n = 0; n < spreads.size(); ++n) {
    const auto& known = known_spreads_[spreads[n]];
    if (!opened[n]) {
      if (!known.impossible) open_.insert({known.cost, Node::Kind::spread, spreads[n]});
      continue;
    }
    const auto first = structures_.size();
    add(spreads[n], std::move(*opened[n]));
    // What keeps least in flight; what is nearest without and with overlap.
    const auto add_nearest = [&](const auto& wanted) {
      std::optional<std::size_t> nearest;
      double least = never;
      for (auto i = first; i < structures_.size(); ++i) {
        const double turns = structure_turns(structures_[centre], structures_[i]);
        if (wanted(structures_[i].partial) && turns < least) least = turns, nearest = i;
      }
      if (nearest && std::ranges::find(found, *nearest) == found.end()) found.push_back(*nearest);
    };
    const auto overlaps = [](const Scenario& s) { return s.settings.overlap_moe_expert_parallel_comm; };
    add_nearest([&](const Scenario& s) { return !scenario::interleaved(s); });
    add_nearest([&](const Scenario& s) { return !overlaps(s); });
    add_nearest(overlaps);
  }
}

/// The nearest of what was not tried, of a spread that is not open what is nearest in it.
std::vector<std::size_t> Searcher::neighbours(std::size_t centre, double limit) {
  std::vector<Near> near;
  const Structure& at = structures_[centre];
  for (std::size_t i = 0; i < spreads_.size(); ++i) {
    const KnownSpread& known = known_spreads_[i];
    if (!known.open && !known.impossible && known.cost < limit)
      near.push_back({spread_turns(at.partial, spreads_[i].partial), known.cost, true, i});
  }
  for (std::size_t i = 0; i < structures_.size(); ++i) {
    const Known& known = known_[i];
    if (!known.climbed && !known.impossible && known.cost < limit)
      near.push_back({spread_turns(at.partial, structures_[i].partial) + structure_turns(at, structures_[i]),
                      known.cost, false, i});
  }
  nearest(near, most_at_once);
  std::vector<std::size_t> spreads, found;
  for (const Near& one : near) (one.spread ? spreads : found).push_back(one.index);
  open_nearest(spreads, centre, limit, found);
  return found;
}

/// A guess, not a bound: what its kernels take if nothing is recomputed, and as much more as the share of full
/// recompute that makes it fit.
double Searcher::promise_of(std::size_t spread) const {
  double promise = never;
  space_.example(spreads_[spread], false, [&](const Scenario& example) {
    try {
      const auto bare = options_.floor(example);
      const double time = std::max(cost(bare, objective_), known_spreads_[spread].cost);
      const double lacking = most_lacking(bare);
      if (lacking <= 0) {
        promise = known_spreads_[spread].cost;  // with expert overlap, maybe
        return true;
      }
      for (const Scenario& kept : least_kept(without_offload_search(example))) {
        const auto least = options_.floor(with_required_environment(kept));
        const double left = most_lacking(least);
        if (left > 0 || left >= lacking) continue;
        const double share = lacking / (lacking - left);
        promise = std::min(promise, time + share * std::max(0.0, cost(least, objective_) - cost(bare, objective_)));
      }
      return true;
    } catch (const UsageError&) {
      return false;  // another one says as much
    }
  });
  return promise;
}

/// Spreads that may be many turns away. What is guessed of them goes by turns from the given, TP and EP counting less:
/// they decide over which links most bytes go; what is opened, by what was guessed.
std::vector<std::size_t> Searcher::promising(std::size_t centre, double limit) {
  constexpr std::size_t most_guesses = 32;
  constexpr double light = 0.25;
  const Scenario& start = given_ ? trials_[*given_].candidate.scenario : structures_[centre].partial;
  std::vector<Near> near;
  for (std::size_t i = 0; i < spreads_.size(); ++i) {
    const KnownSpread& known = known_spreads_[i];
    if (known.open || known.impossible || known.cost >= limit || promises_.contains(i)) continue;
    const Scenario& other = spreads_[i].partial;
    Scenario same = start;
    same.settings.tensor_model_parallel_size = other.settings.tensor_model_parallel_size;
    same.settings.expert_model_parallel_size = other.settings.expert_model_parallel_size;
    const double apart = spread_turns(same, other);
    near.push_back({apart + light * (spread_turns(start, other) - apart), known.cost, true, i});
  }
  nearest(near, most_guesses);
  std::vector<double> guessed(near.size(), never);
  in_parallel(near.size(), [&](std::size_t n) {
    const auto i = near[n].index;
    if (!known_spreads_[i].impossible) guessed[n] = promise_of(i);
  });
  for (std::size_t n = 0; n < near.size(); ++n) promises_.emplace(near[n].index, guessed[n]);
  std::vector<Near> best;
  for (const auto& [i, promise] : promises_) {
    const KnownSpread& known = known_spreads_[i];
    if (!known.open && !known.impossible && std::max(promise, known.cost) < limit)
      best.push_back({promise, known.cost, true, i});
  }
  nearest(best, most_at_once / 2);
  std::vector<std::size_t> spreads, found;
  for (const Near& one : best) spreads.push_back(one.index);
  open_nearest(spreads, centre, limit, found);
  return found;
}

/// Offload takes many looks: after what does without it, and where that does not fit.
std::vector<std::size_t> Searcher::with_offload(std::size_t centre, double limit) {
  if (!space_.searches_offload()) return {};
  std::vector<Near> near;
  const Structure& at = structures_[centre];
  for (std::size_t i = 0; i < structures_.size(); ++i) {
    const Known& known = known_[i];
    if (known.climbed && known.tight && !known.climbed_offload && !known.impossible && known.cost < limit)
      near.push_back({spread_turns(at.partial, structures_[i].partial) + structure_turns(at, structures_[i]),
                      known.cost, false, i});
  }
  nearest(near, most_at_once / 2);
  std::vector<std::size_t> found;
  for (const Near& one : near) found.push_back(one.index);
  return found;
}

/// No recompute; where that does not fit, the largest set of modules, and as many layers in full as seem to be enough.
std::vector<std::size_t> Searcher::likely_steps(std::size_t structure) const {
  const auto& steps = known_[structure].steps;
  if (steps.empty() || !known_[structure].tight) return {0};
  std::vector<std::size_t> found = {0}, by_layers;  // in full: 1, 2, ... layers of every chunk, then all
  std::optional<std::size_t> largest;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto method = steps[i].value.setting("recompute_method");
    if (method == "block" || (method == "uniform" && steps[i].value.setting("recompute_num_layers") == "1"))
      by_layers.push_back(i);
    else if (method == "none" && i > 0)
      largest = i;
  }
  if (largest) found.push_back(*largest);
  if (by_layers.empty()) return found;
  try {
    Scenario all = structures_[structure].partial;
    const auto bare = most_lacking(options_.floor(space_.bare(all)));
    apply(steps[by_layers.back()].value, all);
    const auto full = most_lacking(options_.floor(with_required_environment(without_offload(all))));
    if (full > 0 || full >= bare) return found;
    const auto count = static_cast<double>(by_layers.size());
    const auto enough = static_cast<std::size_t>(std::clamp(std::ceil(count * bare / (bare - full)), 1.0, count));
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

/// True: something faster was found.
bool Searcher::try_all(const std::vector<std::size_t>& structures, bool offload, double limit) {
  if (structures.empty()) return false;
  for (const auto i : structures) (offload ? known_[i].climbed_offload : known_[i].climbed) = true;
  Only only{{structures.begin(), structures.end()}, offload};
  const auto looks = [&](int most) {
    for (int n = 0; n < most && !interrupted_; ++n)
      if (!look(std::min(limit, fastest() * (1 - tie_share)), only)) break;
  };
  if (offload) {
    looks(most_looks);
    return fastest() < limit;
  }
  // Floor, glance, estimate and steps of each; then floor, glance, estimate and walk of what is opened of those.
  constexpr int until_expanded = 12, after = 12;
  const auto unclear = [&](std::size_t i) {
    const Known& known = known_[i];
    return !known.expanded && !known.impossible && known.cost < limit;
  };
  for (int n = 0; n < until_expanded && !interrupted_ && std::ranges::any_of(structures, unclear); ++n)
    if (!look(std::min(limit, fastest() * (1 - tie_share)), only)) break;
  std::vector<std::size_t> left;
  for (const auto i : structures)
    if (known_[i].expanded && !known_[i].impossible && known_[i].cost < limit) left.push_back(i);
  skip_ahead(left);
  only.steps = false;
  looks(after);
  return fastest() < limit;
}

/// From the best so far upwards; then from elsewhere; where the way ends for now, the exact engine looks.
void Searcher::climb() {
  constexpr int most_steps = 8;
  for (int step = 0; step < most_steps && !interrupted_; ++step) {
    const auto best = fastest_of(any_structure);
    if (!best) return;
    const auto centre = trials_[*best].structure;
    const double limit = best_cost(trials_[*best]) * (1 - tie_share);
    if (!try_all(neighbours(centre, limit), false, limit) && !try_all(promising(centre, limit), false, limit) &&
        !try_all(with_offload(centre, limit), true, limit))
      break;
  }
  confirm_best();
}

/// With less recompute than was tried, if that fits; with more, where it does not.
void Searcher::confirm_best() {
  constexpr int most_tries = 6, most_looks_each = 8;
  for (int tries = 0; tries < most_tries && !interrupted_; ++tries) {
    auto best = fastest_of(any_structure);
    if (!best || best_cost(trials_[*best]) >= fastest_exact() * (1 - 2 * good_gap)) return;
    const Only same{{trials_[*best].structure}, trials_[*best].without.has_value()};
    for (int looks = 0; looks < most_looks_each && !interrupted_; ++looks)
      if (!look(fastest() * (1 - tie_share), same)) break;
    best = fastest_of(any_structure);
    const double before = fastest_exact();
    if (!best || !confirm_if_better(*best) || fastest_exact() < before) return;
  }
}

}  // namespace pipewright::plan
