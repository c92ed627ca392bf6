// Bounds and quick looks, best first; see searcher.hpp.
#include "searcher.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <utility>

namespace pipewright::plan {

namespace {

/// Variants of offload that are looked at.
constexpr std::int64_t most_offload = 2000;

}  // namespace

Searcher::Searcher(const Scenario& scenario, const Options& options, const std::vector<Dimension>& dimensions,
                   LeftOut& left_out)
    : objective_(scenario.search.objective),
      options_(options),
      quick_(options.floor && options.estimate && options.scout),
      space_(scenario, dimensions, left_out),
      spread_bounds_(space_, options, objective_),
      arena_(options.threads > 0 ? options.threads : tbb::task_arena::automatic),
      spreads_(space_.spreads()),
      known_spreads_(spreads_.size()) {}

void Searcher::run() {
  predict_given();
  if (quick_) {
    bound_spreads();
    begin("looking", false);
    do look_closer();
    while (!interrupted_ && (confirm_finalists() || take_up_again()));
    if (interrupted_) {
      const auto until = Clock::now() + std::chrono::seconds(1);  // for whoever stopped it
      confirm_something(until);
      confirm_alternatives(until);
      return;
    }
    confirm_ties();
    if (fastest_exact() >= never / 2) pass_over_illegal();
    return;
  }
  for (std::size_t i = 0; i < spreads_.size(); ++i)
    if (!known_spreads_[i].open) add(i, {space_.open(spreads_[i]), {}});
  for (std::size_t i = 0; i < structures_.size(); ++i) {
    const auto before = space_.enumerated;
    known_[i].expanded = true;
    add_trials(space_.candidates(structures_[i]), i, 0, 0);
    known_[i].candidates += space_.enumerated - before;
  }
  std::vector<std::size_t> all(trials_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  begin("predicting", true);
  confirm(all);
}

// ---- Work on all cores; results lie at their index, so their order does not depend on the threads

void Searcher::in_parallel(std::size_t count, const std::function<void(std::size_t)>& function) {
  if (progress_.total > 0)
    progress_.total = std::max(progress_.total, progress_.done + static_cast<std::int64_t>(count));
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
            report_progress();
          }
        },
        tbb::simple_partitioner());
  });
}

/// A phase whose length is not known has no total.
void Searcher::begin(const char* phase, bool known_length) {
  progress_.phase = phase;
  progress_.done = 0;
  progress_.total = known_length ? 1 : 0;
}

void Searcher::report_progress() {
  const std::scoped_lock lock(mutex_);
  ++progress_.done;
  if (options_.progress) options_.progress(progress_);
}

// ---- Best first

std::vector<Searcher::Node> Searcher::next_nodes(double limit, const Only& only) {
  constexpr std::size_t batch = 16;
  std::vector<Node> nodes;
  for (auto at = open_.begin(); at != open_.end() && nodes.size() < batch && at->cost < limit;) {
    const bool offloads = at->kind == Node::Kind::most_offload || at->kind == Node::Kind::offload;
    const bool moving = at->kind == Node::Kind::trial && trials_[at->index].without;
    const bool others =
        !only.structures.empty() && (at->kind == Node::Kind::spread || !only.structures.contains(at->structure));
    if (others || (offloads && !only.offload) || (moving && !only.moving) ||
        (at->kind == Node::Kind::step && !only.steps)) {
      ++at;
      continue;
    }
    nodes.push_back(*at);
    at = open_.erase(at);
  }
  return nodes;
}

/// Until nothing that is left can be faster than the fastest that may fit by more than a tie.
void Searcher::look_closer() {
  constexpr int between_dives = 12;
  constexpr std::int64_t least_wait = 64;
  std::int64_t wait = least_wait, next_climb = 0, next_dive = 0;  // in effort
  for (int round = 1; !interrupted_ && look(fastest() * (1 - tie_share)); ++round) {
    if (round % between_dives == between_dives / 4 && effort() >= next_dive) {
      const auto begun = effort();
      dive();
      next_dive = 2 * effort() - begun;
    }
    if (effort() < next_climb) continue;
    const double before = fastest();
    const auto begun = effort();
    climb();
    // Bounds, which end the search, get as much as climbs do, and more where these find nothing; not before something
    // fits.
    const double now = fastest();
    if (now >= never / 2)
      wait = least_wait;
    else
      wait = now < before ? std::max(least_wait, effort() - begun) : 2 * wait;
    next_climb = effort() + wait;
  }
}

bool Searcher::look(double limit, const Only& only) {
  mark_ = fastest() * (1 - tie_share);
  const auto nodes = next_nodes(limit, only);
  // What is opened anew gets its floor in the same round as the others their next look.
  std::vector<std::size_t> fresh;
  std::vector<Node> looks;
  for (const Node& node : nodes) {
    if (node.kind == Node::Kind::trial || node.kind == Node::Kind::spread ||
        (node.kind == Node::Kind::structure && !known_[node.structure].sharp) ||
        (node.kind == Node::Kind::most_offload && !trials_[node.index].offload_bounded) || wants_bound(node))
      looks.push_back(node);
    else
      for (const auto i : opened(node)) fresh.push_back(i);
  }
  std::vector<std::optional<Opened>> spreads(looks.size());
  std::vector<SpreadBound> moves(looks.size());
  in_parallel(looks.size() + fresh.size(), [&](std::size_t n) {
    if (n >= looks.size())
      floor_of(fresh[n - looks.size()]);
    else if (looks[n].kind == Node::Kind::spread && !known_spreads_[looks[n].structure].bounded)
      bound(looks[n].structure);
    else if (looks[n].kind == Node::Kind::spread)
      spreads[n] = open(looks[n].structure, false);
    else if (looks[n].kind == Node::Kind::structure && !known_[looks[n].structure].bounded)
      bound_structure(looks[n].structure);
    else if (looks[n].kind == Node::Kind::structure)
      sharpen(looks[n].structure);
    else if (looks[n].kind == Node::Kind::most_offload)
      bound_offload(looks[n].index);
    else if (looks[n].kind == Node::Kind::offload)
      moves[n] = bound_choice(looks[n]);
    else
      advance(looks[n].index);
  });
  for (std::size_t n = 0; n < looks.size(); ++n) {
    const Node& node = looks[n];
    const KnownSpread* spread = node.kind == Node::Kind::spread ? &known_spreads_[node.structure] : nullptr;
    if (spread != nullptr && spreads[n])
      add(node.structure, std::move(*spreads[n]));
    else if (spread != nullptr && !spread->impossible)
      open_.insert({spread->cost, node.kind, node.structure});
    else if (node.kind == Node::Kind::structure && !known_[node.structure].impossible)
      open_.insert({known_[node.structure].cost, node.kind, node.structure});
    else if (node.kind == Node::Kind::most_offload && trials_[node.index].with_offload < never)
      open_.insert({std::max(node.cost, trials_[node.index].with_offload), node.kind, node.structure, node.index});
    else if (node.kind == Node::Kind::trial)
      settle(node.index);
    else if (node.kind == Node::Kind::offload)
      settle_choice(node, moves[n]);
  }
  for (const auto i : fresh) settle(i);
  return !nodes.empty();
}

/// What a node holds, as nodes of its own or as trials: those that want a floor.
std::vector<std::size_t> Searcher::opened(const Node& node) {
  const auto before = space_.enumerated;
  std::vector<Trial> trials;
  std::size_t step = node.index;
  switch (node.kind) {
    case Node::Kind::spread:
      add(node.structure, open(node.structure, true));
      return {};
    case Node::Kind::structure:
      expand(node.structure);
      return {};
    case Node::Kind::step:
      trials = space_.without_offload(structures_[node.structure], known_[node.structure].steps[node.index]);
      if (is_given(node)) {
        trials_[*given_].step = node.index;
        const auto& given = trials_[*given_];
        if (trials.empty() && !(given.done && given.candidate.prediction.fits)) give_up_on(*given_);
      } else if (trials.empty()) {
        open_steps(node.structure, node.index, node.cost);
      }
      break;
    case Node::Kind::most_offload:
      offload_[node.index] = space_.offload_steps(trials_[node.index]);
      open_offload(node.index, {}, node.cost);
      return {};
    case Node::Kind::offload: {
      if (++offload_opened_ > most_offload) {
        shelved_.insert(node);
        return {};
      }
      step = trials_[node.index].step;
      trials = space_.with_offload(structures_[node.structure], known_[node.structure].steps[step],
                                   offload_[node.index]->at(node.offload));
      for (Trial& trial : trials) trial.without = node.index, trial.offload = node.offload;
      if (trials.empty()) open_offload(node.index, node.offload, node.cost);
      break;
    }
    case Node::Kind::trial:
      break;
  }
  known_[node.structure].candidates += space_.enumerated - before;
  std::vector<std::size_t> fresh;
  for (const auto i : add_trials(std::move(trials), node.structure, step, node.cost)) {
    const Trial& leader = trials_[groups_[trials_[i].time_group].front()];
    if (leads(i)) {
      fresh.push_back(i);
    } else if (leader.refused) {
      refusals_[i] = refusals_[groups_[trials_[i].time_group].front()];
      trials_[i].refused = true;
    } else if (leader.done) {  // only the allocator's setting is new: it waits for the exact engine
      Trial& trial = trials_[i];
      trial.quick = std::make_shared<predict::Prediction>(leader.candidate.prediction);
      trial.scouted = trial.every_rank = true;
      trial.least = std::max(trial.least, best_cost(leader));
    }
  }
  return fresh;
}

bool Searcher::is_given(const Node& step) const {
  if (!given_ || trials_[*given_].structure != step.structure) return false;
  const auto& choices = trials_[*given_].candidate.choices;
  const auto& label = known_[step.structure].steps[step.index].value.label;
  return label.empty() || choices[structures_[step.structure].chosen.size()] == label;
}

void Searcher::expand(std::size_t structure) {
  Known& known = known_[structure];
  known.expanded = true;
  if (known.glance || known.estimate) known.of_time = identity(space_.bare(structures_[structure].partial)).of_time;
  known.steps = space_.steps(structures_[structure]);
  known.opened.assign(known.steps.size(), false);
  open_steps(structure, {}, known.cost);
}

/// Those that come after a step; without one: those that come after none.
void Searcher::open_steps(std::size_t structure, std::optional<std::size_t> after, double cost) {
  Known& known = known_[structure];
  for (std::size_t i = 0; i < known.steps.size(); ++i) {
    if (known.steps[i].after != after || known.opened[i]) continue;
    known.opened[i] = true;
    open_.insert({std::max(cost, known.cost), Node::Kind::step, structure, i});
  }
}

void Searcher::open_offload(std::size_t trial, std::optional<std::size_t> after, double cost) {
  const auto& steps = *offload_[trial];
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].after == after && !moved_ahead_.contains({trial, i}))
      open_.insert({cost, Node::Kind::offload, trials_[trial].structure, trial, i});
}

std::vector<std::size_t> Searcher::add_trials(std::vector<Trial> trials, std::size_t structure, std::size_t step,
                                              double least) {
  std::vector<std::size_t> added;
  for (auto& trial : trials) {
    trial.structure = structure;
    trial.step = step;
    trial.least = least;
    trial.bare = !trial.of_time.empty() && trial.of_time == known_[structure].of_time;
    const auto [at, fresh] = time_groups_.emplace(std::exchange(trial.of_time, {}), groups_.size());
    if (fresh) groups_.emplace_back();
    trial.time_group = at->second;
    groups_[at->second].push_back(trials_.size());
    added.push_back(trials_.size());
    trials_.push_back(std::move(trial));
    refusals_.emplace_back();
  }
  return added;
}

void Searcher::floor_of(std::size_t index) {
  Trial& trial = trials_[index];
  try {
    const auto& s = trial.candidate.scenario;
    ++bounded_;
    const auto& structure = structures_[trial.structure];
    if (options_.spread_floor && !offloads(trial) && !trial.given) {
      const auto found = spread_bounds_.of_candidate(spreads_[structure.spread], structure, s);
      trial.least = std::max(trial.least, found.cost);
      trial.may_fit = found.lacking <= Bytes(0);
    } else if (options_.spread_floor && trial.without) {
      const auto lacking = spread_bounds_.lacking(spreads_[structure.spread], structure, s);
      trial.may_fit = !lacking || *lacking <= Bytes(0);
    }
    trial.may_fit = trial.may_fit && may_fit(s, known_[trial.structure].state);
    if (trial.may_fit && trial.least < mark_) {
      const auto floor = options_.floor(s);
      trial.may_fit = trial.may_fit && floor.fits;
      trial.least = std::max(trial.least, cost(floor, objective_));
    }
    trial.fits_by_floor = trial.may_fit;
  } catch (const UsageError& error) {
    refuse(index, error);
  }
}

/// What was put aside for its price, where there is time and it may be faster by more than a good gap. False: there is
/// nothing.
bool Searcher::take_up_again() {
  if (!options_.until_stopped) return false;
  const double mark = fastest() * (1 - good_gap);
  bool any = std::exchange(finalists_left_, false);
  exact_work_ = 0, offload_opened_ = 0;
  while (!shelved_.empty() && shelved_.begin()->cost < mark) {
    open_.insert(shelved_.extract(shelved_.begin()));
    any = true;
  }
  return any;
}

/// The next quick look at a trial. What offloads is near the limit, and its times take several walks' time.
void Searcher::advance(std::size_t index) {
  Trial& trial = trials_[index];
  try {
    if (options_.glance && !trial.glanced && !timed(trial))
      glance(trial);
    else if (!timed(trial) && (trial.scouted || !offloads(trial)))
      estimate(trial);
    else
      scout(trial, predict::Depth::ends);
  } catch (const UsageError& error) {
    refuse(index, error);
  }
}

/// What is left to do with a trial after a look at it.
void Searcher::settle(std::size_t index) {
  share_with_group(index);
  const Trial& trial = trials_[index];
  if (trial.refused || !trial.may_fit) return give_up_on(index);
  if (trial.done || (timed(trial) && trial.scouted)) return;
  open_.insert({trial.least, Node::Kind::trial, trial.structure, index});
}

/// A choice of offload whose bound is known: where it does not fit, those that move more.
void Searcher::settle_choice(Node offload, const SpreadBound& bound) {
  bounded_moves_.emplace(offload.index, offload.offload);
  if (bound.lacking > Bytes(0)) return open_offload(offload.index, offload.offload, offload.cost);
  offload.cost = std::max(offload.cost, bound.cost);
  open_.insert(offload);
}

/// It does not fit: more recompute and offload are worth a look, once, whoever finds out again that it does not.
void Searcher::give_up_on(std::size_t index) {
  Trial& trial = trials_[index];
  if (trial.step == unplaced || trial.followed) return;  // the given: its turn comes
  for (const auto i : groups_[trial.time_group])         // with another allocator
    if (trials_[i].structure == trial.structure && trials_[i].step == trial.step && trials_[i].offload == trial.offload)
      trials_[i].followed = true;
  if (trial.without) return open_offload(*trial.without, trial.offload, trial.least);
  open_steps(trial.structure, trial.step, trial.least);
  if (space_.searches_offload() && !trial.refused)
    open_.insert({trial.least, Node::Kind::most_offload, trial.structure, index});
}

/// Cost of the fastest candidate that fits, as far as is known.
double Searcher::fastest() const {
  double least = never / 2;
  for (const Trial& trial : trials_)
    if (trial.done ? trial.candidate.prediction.fits : waits(trial)) least = std::min(least, best_cost(trial));
  return least;
}

double Searcher::fastest_exact() const {
  double least = never / 2;
  for (const Trial& trial : trials_)
    if (trial.done && trial.candidate.prediction.fits) least = std::min(least, best_cost(trial));
  return least;
}

/// For the exact engine, which decides.
bool Searcher::waits(const Trial& trial) const {
  return !trial.done && !trial.refused && trial.may_fit && trial.scouted && timed(trial);
}

double Searcher::best_cost(const Trial& trial) const {
  if (trial.done) return cost(trial.candidate.prediction, objective_);
  return timed(trial) ? cost(*trial.quick, objective_) : trial.least;
}

std::vector<std::size_t> Searcher::by_cost() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < trials_.size(); ++i)
    if (!trials_[i].refused) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return best_cost(trials_[i]); });
  return order;
}

}  // namespace pipewright::plan
