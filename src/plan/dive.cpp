// Good answers early. Bounds alone come to what is good last, and what is good excludes most: so now and then the
// search follows something to a candidate before its turn. The neighbours of the best so far, nearest first, as an
// expert would turn one knob at a time; and what looks best of a parallelism that was not tried.
#include <algorithm>
#include <cmath>

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

/// Two ways that both have one rank share nothing, whatever they say.
bool same_sharing(const Scenario& a, const Scenario& b) {
  if (a.settings.context_parallel_size == 1 || b.settings.context_parallel_size == 1) return true;
  return a.settings.cp_comm_type == b.settings.cp_comm_type;
}

/// Turns of a knob between two ways to spread a model: a size doubled or halved.
double spread_turns(const Scenario& a, const Scenario& b) {
  const auto &s = a.settings, &o = b.settings;
  return doublings(s.tensor_model_parallel_size, o.tensor_model_parallel_size) +
         doublings(s.context_parallel_size, o.context_parallel_size) +
         doublings(s.pipeline_model_parallel_size, o.pipeline_model_parallel_size) +
         doublings(s.expert_model_parallel_size, o.expert_model_parallel_size) +
         doublings(s.micro_batch_size, o.micro_batch_size) + (same_sharing(a, b) ? 0 : 1);
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

/// Opens spreads, and finds in each what is nearest to a structure; without one what costs least.
void Searcher::open_nearest(const std::vector<std::size_t>& spreads, std::optional<std::size_t> centre, double limit,
                            std::vector<std::size_t>& found) {
  for (const auto i : spreads) open_.erase({known_spreads_[i].cost, Node::Kind::spread, i});
  std::vector<std::optional<Opened>> opened(spreads.size());
  in_parallel(spreads.size(), [&](std::size_t n) {
    if (!known_spreads_[spreads[n]].bounded) bound(spreads[n]);
    if (const auto& known = known_spreads_[spreads[n]]; !known.impossible && known.cost < limit)
      opened[n] = open(spreads[n], true);
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
        const double turns = centre ? structure_turns(structures_[*centre], structures_[i]) : known_[i].cost;
        if (wanted(structures_[i].partial) && turns < least && !known_[i].impossible && known_[i].cost < limit)
          least = turns, nearest = i;
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

/// Spreads that may be many turns away. What is guessed of them goes by turns from the given, else from the best so
/// far, else from what costs least, TP and EP counting less: they decide over which links most bytes go; what is
/// opened, by what was guessed.
std::vector<std::size_t> Searcher::promising(std::optional<std::size_t> centre, double limit) {
  constexpr std::size_t most_guesses = 32;
  constexpr double light = 0.25;
  const auto least = std::ranges::min_element(known_spreads_, {}, [](const KnownSpread& known) {
    return std::pair(known.open || known.impossible, known.cost);
  });
  if (least == known_spreads_.end()) return {};
  const Scenario& start = given_   ? trials_[*given_].candidate.scenario
                          : centre ? structures_[*centre].partial
                                   : spreads_[static_cast<std::size_t>(least - known_spreads_.begin())].partial;
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
    if (!known_spreads_[i].impossible) guessed[n] = options_.spread_floor ? spread_bounds_.promise(spreads_[i]) : 0;
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

/// True: something faster was found.
bool Searcher::try_all(const std::vector<std::size_t>& structures, bool offload, double limit) {
  if (structures.empty()) return false;
  for (const auto i : structures) (offload ? known_[i].climbed_offload : known_[i].climbed) = true;
  Only only{{structures.begin(), structures.end()}, offload};
  const auto look_on = [&](int most) {
    for (int n = 0; n < most && !interrupted_; ++n)
      if (!look(std::min(limit, fastest() * (1 - tie_share)), only)) break;
  };
  if (offload) {
    look_on(most_looks);
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
  move_ahead(left);
  only.steps = false, only.moving = true;
  look_on(after);
  return fastest() < limit;
}

/// From the best so far upwards; then from elsewhere; where the way ends, the exact engine looks. As long as nothing
/// fits, from what is guessed to be the fastest that does. What is left of the way waits until bounds had their share.
void Searcher::climb() {
  constexpr int most_steps = 8;
  constexpr std::int64_t most_effort = 1000;
  const auto begun = effort();
  for (int step = 0; step < most_steps && !interrupted_; ++step) {
    const auto best = fastest_of(any_structure);
    if (best && effort() - begun > most_effort) return;
    if (!best) {
      const auto first = promising({}, never / 2);
      if (first.empty()) return;
      if (!try_all(first, false, never / 2)) try_all(first, true, never / 2);
      continue;
    }
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
