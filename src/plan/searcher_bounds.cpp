// What the search knows before it looks closer: the given, spreads and structures with their floors.
#include <algorithm>
#include <utility>

#include "pipewright/bounds.hpp"
#include "searcher.hpp"

namespace pipewright::plan {
namespace {

/// What a bound rises by at most where the next one is asked for in the same turn.
constexpr double little_raised = 0.01;

/// What the rank that lacks most lacks if it holds what `held` says; none: all have enough.
template <class Held>
Bytes lacking_with(const predict::Prediction& p, Held held) {
  Bytes most;
  for (const auto& rank : p.ranks)
    most = std::max(most, held(rank) + rank.outside_allocator + p.memory_margin - p.memory_limit);
  return most;
}

}  // namespace

/// The scenario as it stands sets the mark, and is an answer whatever comes.
void Searcher::predict_given() {
  if (!options_.has_baseline) return;
  auto given = space_.given();
  if (!given) return;
  const auto same = [&](const auto& one) {
    for (std::size_t d = 0; d < one.chosen.size(); ++d)
      if (one.chosen[d].label != given->candidate.choices[d]) return false;
    return true;
  };
  if (const auto spread = std::ranges::find_if(spreads_, same); spread != spreads_.end()) {
    const auto i = static_cast<std::size_t>(spread - spreads_.begin());
    add(i, {space_.open(spreads_[i]), {}});
  }
  const auto home = static_cast<std::size_t>(std::ranges::find_if(structures_, same) - structures_.begin());
  if (home == structures_.size()) {  // lists of values that leave out what is given
    std::vector<Value> chosen;
    for (const auto& choice : given->candidate.choices)
      if (chosen.size() < space_.structural()) chosen.push_back({choice, {}, {}});
    structures_.push_back({given->candidate.scenario, std::move(chosen), given->candidate.label, 0});
    Known& as_it_is = known_.emplace_back();
    as_it_is.bounded = as_it_is.expanded = true;
  }
  begin("predicting the given", false);
  std::vector<Trial> alone;
  alone.push_back(std::move(*given));
  ++known_[home].candidates;
  const auto added = add_trials(std::move(alone), home, unplaced, 0);
  given_ = added.front();
  confirm(added);
  if (interrupted_) predict_one(*given_, nullptr);
}

/// What a structure lacks by the least that any of its candidates keeps; none: it may fit.
Bytes Searcher::lacking(const Scenario& partial) const {
  const auto of_state =
      lacking_with(options_.floor(space_.bare(partial)), [](const auto& rank) { return rank.walk.static_bytes; });
  if (of_state > Bytes(0)) return of_state;
  std::optional<Bytes> least;
  for (const Scenario& kept : least_kept(partial)) {
    try {
      const auto p = options_.floor(with_required_environment(kept));
      if (p.fits) return Bytes(0);
      const auto more = std::max(Bytes(1), lacking_with(p, [](const auto& rank) { return rank.walk.peak_reserved; }));
      least = std::min(least.value_or(more), more);
    } catch (const UsageError&) {
      return Bytes(0);  // no bound: its candidates say why
    }
  }
  return least.value_or(Bytes(0));
}

/// Work a GPU has is the same whatever the pipeline's size, so spreads that differ only in that share a first bound.
void Searcher::bound_spreads() {
  begin("bounding", true);
  if (options_.spread_floor)
    in_parallel(spreads_.size(), [&](std::size_t i) {
      KnownSpread& known = known_spreads_[i];
      if (known.open) return;
      known.lacking = std::max(Bytes(0), spread_bounds_.of_state(spreads_[i]));
      known.impossible = known.lacking > Bytes(0);
    });
  std::map<std::string, std::vector<std::size_t>> alike;  // the shortest pipeline first
  if (options_.floor_of_any_split)
    for (std::size_t i = 0; i < spreads_.size(); ++i)
      if (!known_spreads_[i].open && !known_spreads_[i].impossible) alike[space_.work_of(spreads_[i])].push_back(i);
  std::vector<const std::vector<std::size_t>*> groups;
  for (const auto& [key, group] : alike) groups.push_back(&group);
  in_parallel(groups.size(), [&](std::size_t n) {
    const auto floors = floors_of_any_split(groups[n]->front(), true);
    std::optional<double> least;
    RisingBound by_overlap;
    for (const Overlap overlap : all_overlaps) {
      const auto& floor = floors[static_cast<std::size_t>(overlap)];
      if (!floor) continue;
      by_overlap.start(overlap, cost(*floor, objective_));
      least = std::min(least.value_or(never), cost(*floor, objective_));
    }
    for (const auto i : *groups[n])
      known_spreads_[i].cost = least.value_or(0), known_spreads_[i].by_overlap = by_overlap;
  });
  for (std::size_t i = 0; i < spreads_.size(); ++i)
    if (!known_spreads_[i].open && !known_spreads_[i].impossible)
      open_.insert({known_spreads_[i].cost, Node::Kind::spread, i});
  // Those of the given.
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < structures_.size(); ++i)
    if (open_.erase({known_[i].cost, Node::Kind::structure, i}) > 0) waiting.push_back(i);
  bound_structures(waiting);
  for (const auto i : waiting)
    if (!known_[i].impossible) open_.insert({known_[i].cost, Node::Kind::structure, i});
}

/// By the kernels of its structures, which expert overlap alone sets apart.
ByOverlap<std::optional<predict::Prediction>> Searcher::floors_of_any_split(std::size_t spread, bool any_size) {
  ByOverlap<std::optional<predict::Prediction>> floors;
  for (const Overlap overlap : all_overlaps)
    space_.example(spreads_[spread], overlap, [&](const Scenario& example) {
      try {
        floors[static_cast<std::size_t>(overlap)] = options_.floor_of_any_split(Space::without_work(example), any_size);
        ++bounded_;
        return true;
      } catch (const UsageError&) {
        return false;  // another one says as much
      }
    });
  return floors;
}

/// A spread is asked for more as long as that raises it little: its kernels are at hand, and would have to be made
/// again at its next turn.
void Searcher::bound(std::size_t spread) {
  KnownSpread& known = known_spreads_[spread];
  if (options_.spread_floor) {
    const double enough = std::min(mark_, known.cost * (1 + little_raised));
    auto& rising = known.by_overlap;
    while (!rising.whole()) {
      rising.raise(spread_bounds_, spreads_[spread], mark_);
      ++bounded_;
      known.lacking = rising.lacking();
      known.impossible = known.lacking > Bytes(0);
      known.cost = std::max(known.cost, rising.cost());
      if (known.impossible || known.cost >= enough) break;
    }
    known.bounded = rising.whole();
    return;
  }
  known.bounded = true;
  if (!options_.floor_of_any_split) return;
  const auto floors = floors_of_any_split(spread, false);
  double least = never;
  Bytes lacking(INT64_MAX);
  for (const auto& floor : floors) {
    if (!floor) continue;
    least = std::min(least, cost(*floor, objective_));
    lacking = std::min(lacking, lacking_with(*floor, [](const auto& rank) { return rank.walk.peak_reserved; }));
  }
  if (least == never) return;
  known.lacking = lacking;
  known.impossible = lacking > Bytes(0);
  known.cost = std::max(known.cost, least);
}

Searcher::Opened Searcher::open(std::size_t spread, bool bounds) {
  Opened opened{space_.open(spreads_[spread]), {}};
  if (!options_.spread_floor || !bounds) return opened;
  for (const auto& structure : opened.structures)
    opened.bounds.push_back(spread_bounds_.of_structure(spreads_[spread], structure, mark_));
  return opened;
}

/// Its structures cost no less than the spread with their overlap; what else is known of them comes with their turn.
void Searcher::add(std::size_t spread, Opened opened) {
  known_spreads_[spread].open = true;
  space_.add(opened);
  for (std::size_t n = 0; n < opened.structures.size(); ++n) {
    auto& structure = opened.structures[n];
    Known known;
    known.cost = known_spreads_[spread].cost;
    const auto& of_overlap = known_spreads_[spread].by_overlap.of(overlap_of(structure.partial));
    take({of_overlap.cost, of_overlap.lacking, true}, known);
    known.of_split = !opened.bounds.empty();
    if (known.of_split) take(opened.bounds[n], known);
    known.bounded = !quick_;
    if (quick_ && !known.impossible) open_.insert({known.cost, Node::Kind::structure, structures_.size()});
    structure.spread = spread;
    structures_.push_back(std::move(structure));
    known_.push_back(std::move(known));
  }
}

/// Spreads are found too large before their rules are asked: the nearest of them that is told is one that is legal.
void Searcher::pass_over_illegal() {
  std::vector<std::size_t> too_large;
  for (std::size_t i = 0; i < spreads_.size(); ++i)
    if (!known_spreads_[i].open && known_spreads_[i].impossible) too_large.push_back(i);
  std::ranges::stable_sort(too_large, {}, [&](std::size_t i) { return known_spreads_[i].lacking; });
  for (const auto i : too_large) {
    auto opened = space_.open(spreads_[i]);
    if (!opened.structures.empty()) return;
    add(i, {std::move(opened), {}});
  }
}

void Searcher::take(const SpreadBound& found, Known& known) {
  if (!found.known) return;
  known.cost = std::max(known.cost, found.cost);
  known.lacking = found.lacking;
  known.impossible = found.lacking > Bytes(0);
}

/// What makes its split fit, of the spread's kernels; then, where that raises it little, its own floor.
void Searcher::bound_structure(std::size_t structure) {
  Known& known = known_[structure];
  if (options_.spread_floor && !std::exchange(known.of_split, true)) {
    const double enough = std::min(mark_, known.cost * (1 + little_raised));
    take(spread_bounds_.of_structure(spreads_[structures_[structure].spread], structures_[structure], mark_), known);
    if (known.impossible || known.cost >= enough) return;
  }
  known.bounded = true;
  try {
    const auto floor = options_.floor(space_.bare(structures_[structure].partial));
    known.cost = std::max(known.cost, cost(floor, objective_));
    known.tight = !floor.fits;
    // With offload, times decide of what does not fit which is worth a look first.
    if (known.tight && !space_.searches_offload()) known.state = state_below(structures_[structure].partial, floor);
    ++bounded_;
  } catch (const UsageError&) {
    known.sharp = true;  // its candidates say why
  }
}

/// All that is to be known of them before a closer look.
void Searcher::bound_structures(const std::vector<std::size_t>& structures) {
  in_parallel(structures.size(), [&](std::size_t n) {
    const Known& known = known_[structures[n]];
    while (!known.bounded && !known.impossible) bound_structure(structures[n]);
  });
}

/// Of a trial that does not fit: what it costs with offload at least; `never`: with that it does not fit either.
void Searcher::bound_offload(std::size_t index) {
  Trial& trial = trials_[index];
  trial.offload_bounded = true;
  trial.with_offload = trial.least;
  if (!options_.spread_floor) return;
  const auto& structure = structures_[trial.structure];
  const auto found = spread_bounds_.of_offload(spreads_[structure.spread], structure, trial.candidate.scenario);
  if (found.known) trial.with_offload = found.lacking > Bytes(0) ? never : std::max(trial.least, found.cost);
}

/// Of one choice of modules: most does not fit, or moves more than it must, which is told before its candidate is made.
bool Searcher::wants_bound(const Node& offload) const {
  if (offload.kind != Node::Kind::offload || !options_.spread_floor) return false;
  return !bounded_moves_.contains({offload.index, offload.offload});
}

SpreadBound Searcher::bound_choice(const Node& offload) {
  const Value& moves = offload_.at(offload.index)->at(offload.offload).value;
  if (moves.setting("offload_modules").empty() || moves.setting("cpu_offloading") == "true") return {};
  const Scenario& without = trials_[offload.index].candidate.scenario;
  Scenario with = without;
  apply(moves, with);
  const auto& structure = structures_[offload.structure];
  with = with_required_environment(std::move(with));
  return spread_bounds_.of_offload(spreads_[structure.spread], structure, without, &with);
}

std::optional<double> Searcher::least_of_structures() {
  bound_spreads();
  while (!open_.empty()) {
    if (interrupted_ || options_.stop.stop_requested()) return std::nullopt;
    const Node node = open_.extract(open_.begin()).value();
    const auto i = node.structure;
    if (node.kind == Node::Kind::spread) {
      KnownSpread& spread = known_spreads_[i];
      if (spread.bounded) {
        add(i, open(i, false));
        continue;
      }
      bound(i);
      if (!spread.impossible) open_.insert({spread.cost, node.kind, i});
      continue;
    }
    if (known_[i].bounded) return node.cost;
    bound_structure(i);
    if (!known_[i].sharp && !known_[i].impossible)
      open_.insert({known_[i].cost, node.kind, i});  // else nothing in it runs, or fits
  }
  return never;
}

/// What ranks hold for good whatever is recomputed and offloaded, from a floor; empty: that is not known.
std::vector<Bytes> Searcher::state_below(const Scenario& partial, const predict::Prediction& floor) {
  return partial.settings.use_megatron_fsdp ? std::vector<Bytes>() : predict::state_of(floor);
}

/// Most of what is tight does not fit with what is tried next either; times cost several times as much.
bool Searcher::may_fit(const Scenario& candidate, const std::vector<Bytes>& state) const {
  return state.empty() || !options_.fits_by_floor || options_.fits_by_floor(candidate, state);
}

/// The next closer look at a structure: a glance, then what its least candidate takes and keeps.
void Searcher::sharpen(std::size_t structure) {
  Known& known = known_[structure];
  const auto bare = space_.bare(structures_[structure].partial);
  const auto raise = [&](const predict::Prediction& quick) {
    if (quick.step_ns > 0)
      known.cost = std::max(known.cost, predict::estimate_bounds(bare).least(cost(quick, objective_)));
  };
  try {
    if (options_.glance && !known.glanced) {
      known.glanced = true;
      known.glance = options_.glance(bare);
      return raise(*known.glance);
    }
  } catch (const UsageError&) {
    // its candidates say why
  }
  known.sharp = true;
  if (known.tight) known.lacking = lacking(structures_[structure].partial);
  known.impossible = known.lacking > Bytes(0);
  // What kernels lose to others beside them excludes only what a glance leaves near the mark; where much else is to be
  // looked at it counts in every bit of that.
  const bool holds_much = known.tight && space_.searches_offload();
  if (known.impossible || (!holds_much && known.glanced && known.cost * (1 + most_beside_kernels) < mark_)) return;
  try {
    known.estimate = options_.estimate(bare);
    raise(*known.estimate);
    ++estimated_;
    walked_ += exact_work(bare) / estimates_of_a_simulation;
  } catch (const UsageError&) {
    // its candidates say why
  }
}

}  // namespace pipewright::plan
