// Bounds and quick looks, best first; see searcher.hpp.
#include "searcher.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>

#include "pipewright/bounds.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::plan {

namespace {

/// What quick looks by the exact engine may cost in one search, in microbatches times layers: some ten seconds' work.
constexpr std::int64_t most_costly_work = 300'000;

/// Variants of offload that are looked at.
constexpr std::int64_t most_offload = 2000;

/// What the chunk-level engine does not express: estimate() then runs the exact one on a shortened schedule.
bool costly(const Scenario& s) { return s.settings.fine_grained_activation_offloading || s.settings.cpu_offloading; }

bool timed(const Trial& trial) { return trial.quick && trial.quick->step_ns > 0; }

/// Two runs of a few groups of microbatches.
std::int64_t costly_work(const Scenario& s) {
  const auto few = 4 * s.settings.pipeline_model_parallel_size + 12;
  return 2 * std::min(scenario::num_microbatches(s), few) * s.model.num_layers;
}

}  // namespace

Searcher::Searcher(const Scenario& scenario, const Options& options, const std::vector<Dimension>& dimensions,
                   LeftOut& left_out)
    : objective_(scenario.search.objective),
      options_(options),
      quick_(options.floor && options.estimate && options.scout),
      space_(scenario, dimensions, left_out),
      arena_(options.threads > 0 ? options.threads : tbb::task_arena::automatic),
      spreads_(space_.spreads()),
      known_spreads_(spreads_.size()),
      costly_left_(most_costly_work) {}

void Searcher::run() {
  predict_given();
  if (quick_) {
    bound_spreads();
    begin("looking", false);
    do look_closer();
    while (!interrupted_ && confirm_finalists());
    if (interrupted_) return confirm_something();
    confirm_ties();
    return;
  }
  for (std::size_t i = 0; i < spreads_.size(); ++i)
    if (!known_spreads_[i].open) add(i, open(i));
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

// ---- Structures

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
    add(i, open(i));
  }
  const auto home = static_cast<std::size_t>(std::ranges::find_if(structures_, same) - structures_.begin());
  if (home == structures_.size()) {  // lists of values that leave out what is given
    std::vector<Value> chosen;
    for (const auto& choice : given->candidate.choices)
      if (chosen.size() < space_.structural()) chosen.push_back({choice, {}, {}});
    structures_.push_back({given->candidate.scenario, std::move(chosen), given->candidate.label, 0});
    known_.emplace_back().bounded = known_.back().expanded = true;
  }
  begin("predicting the given", false);
  std::vector<Trial> alone;
  alone.push_back(std::move(*given));
  ++known_[home].candidates;
  const auto added = add_trials(std::move(alone), home, 0, 0);
  given_ = added.front();
  confirm(added);
}

/// What a structure lacks by the least that any of its candidates keeps; none: it may fit.
Bytes Searcher::lacking(const Scenario& partial) const {
  const auto over = [](const predict::Prediction& p, auto held) {
    Bytes most;
    for (const auto& rank : p.ranks)
      most = std::max(most, held(rank) + rank.outside_allocator + p.memory_margin - p.memory_limit);
    return most;
  };
  const auto of_state = over(options_.floor(space_.bare(partial)), [](const auto& r) { return r.walk.static_bytes; });
  if (of_state > Bytes(0)) return of_state;
  std::optional<Bytes> least;
  for (const Scenario& kept : least_kept(partial)) {
    try {
      const auto p = options_.floor(with_required_environment(kept));
      if (p.fits) return Bytes(0);
      const auto more =
          std::max(Bytes(1), over(p, [](const auto& rank) { return rank.walk.peak_allocated + rank.walk.graph_pool; }));
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
  std::map<std::string, std::vector<std::size_t>> alike;  // the shortest pipeline first
  if (options_.floor_of_any_split)
    for (std::size_t i = 0; i < spreads_.size(); ++i)
      if (!known_spreads_[i].open) alike[space_.work_of(spreads_[i])].push_back(i);
  std::vector<const std::vector<std::size_t>*> groups;
  for (const auto& [key, group] : alike) groups.push_back(&group);
  in_parallel(groups.size(), [&](std::size_t n) {
    const auto floors = floors_of_any_split(groups[n]->front(), true);
    double least = floors.empty() ? 0 : never;
    for (const auto& floor : floors) least = std::min(least, cost(floor, objective_));
    for (const auto i : *groups[n]) known_spreads_[i].cost = least;
  });
  for (std::size_t i = 0; i < spreads_.size(); ++i)
    if (!known_spreads_[i].open) open_.insert({known_spreads_[i].cost, Node::Kind::spread, i});
}

/// By the kernels of its structures, which are those with or without expert overlap.
std::vector<predict::Prediction> Searcher::floors_of_any_split(std::size_t spread, bool any_size) {
  std::vector<predict::Prediction> floors;
  for (const bool overlap : {false, true})
    space_.example(spreads_[spread], overlap, [&](const Scenario& example) {
      try {
        floors.push_back(options_.floor_of_any_split(example, any_size));
        ++bounded_;
        return true;
      } catch (const UsageError&) {
        return false;  // another one says as much
      }
    });
  return floors;
}

void Searcher::bound(std::size_t spread) {
  KnownSpread& known = known_spreads_[spread];
  known.bounded = true;
  if (!options_.floor_of_any_split) return;
  const auto floors = floors_of_any_split(spread, false);
  if (floors.empty()) return;
  double least = never;
  known.impossible = true;
  for (const auto& floor : floors) {
    least = std::min(least, cost(floor, objective_));
    known.impossible = known.impossible && !floor.fits;
    for (const auto& rank : floor.ranks)
      known.lacking = rank.walk.peak_allocated + rank.outside_allocator + floor.memory_margin - floor.memory_limit;
  }
  known.cost = std::max(known.cost, least);
}

Searcher::Fresh Searcher::open(std::size_t spread) {
  Fresh fresh{space_.open(spreads_[spread]), {}};
  for (const auto& structure : fresh.opened.structures) fresh.known.push_back(floor_of(structure));
  return fresh;
}

Searcher::Known Searcher::floor_of(const Structure& structure) {
  Known known;
  known.bounded = true;
  if (!quick_) return known;
  try {
    const auto floor = options_.floor(space_.bare(structure.partial));
    known.cost = cost(floor, objective_);
    known.tight = !floor.fits;
    ++bounded_;
  } catch (const UsageError&) {
    known.sharp = true;  // its candidates say why
  }
  return known;
}

void Searcher::add(std::size_t spread, Fresh fresh) {
  known_spreads_[spread].open = true;
  space_.add(fresh.opened);
  for (std::size_t n = 0; n < fresh.known.size(); ++n) {
    fresh.known[n].cost = std::max(fresh.known[n].cost, known_spreads_[spread].cost);
    if (quick_) open_.insert({fresh.known[n].cost, Node::Kind::structure, structures_.size()});
    structures_.push_back(std::move(fresh.opened.structures[n]));
    known_.push_back(std::move(fresh.known[n]));
  }
}

void Searcher::sharpen(std::size_t structure) {
  Known& known = known_[structure];
  known.sharp = true;
  if (known.tight) known.lacking = lacking(structures_[structure].partial);
  known.impossible = known.lacking > Bytes(0);
  if (known.impossible) return;
  const auto bare = space_.bare(structures_[structure].partial);
  if (costly(bare)) return;
  try {
    const auto estimated = cost(options_.estimate(bare), objective_);
    known.cost = std::max(known.cost, predict::estimate_bounds(bare).least(estimated));
    ++estimated_;
  } catch (const UsageError&) {
    // its candidates say why
  }
}

// ---- Best first

std::vector<Searcher::Node> Searcher::next_nodes(double limit, std::size_t structure) {
  constexpr std::size_t batch = 16;
  std::vector<Node> nodes;
  for (auto at = open_.begin(); at != open_.end() && nodes.size() < batch && at->cost < limit;) {
    if (structure != any_structure && (at->kind == Node::Kind::spread || at->structure != structure)) {
      ++at;
      continue;
    }
    nodes.push_back(*at);
    at = open_.erase(at);
  }
  return nodes;
}

/// Until nothing that is left can be faster than the fastest that may fit.
void Searcher::look_closer() {
  while (!interrupted_ && look(fastest())) {
  }
}

bool Searcher::look(double limit, std::size_t structure) {
  const auto nodes = next_nodes(limit, structure);
  // What is opened anew gets its floor in the same round as the others their next look.
  std::vector<std::size_t> fresh;
  std::vector<Node> looks;
  for (const Node& node : nodes) {
    if (node.kind == Node::Kind::trial || node.kind == Node::Kind::spread ||
        (node.kind == Node::Kind::structure && !known_[node.structure].sharp))
      looks.push_back(node);
    else
      for (const auto i : opened(node)) fresh.push_back(i);
  }
  std::vector<std::optional<Fresh>> spreads(looks.size());
  in_parallel(looks.size() + fresh.size(), [&](std::size_t n) {
    if (n >= looks.size())
      floor_of(fresh[n - looks.size()]);
    else if (looks[n].kind == Node::Kind::spread && !known_spreads_[looks[n].structure].bounded)
      bound(looks[n].structure);
    else if (looks[n].kind == Node::Kind::spread)
      spreads[n] = open(looks[n].structure);
    else if (looks[n].kind == Node::Kind::structure)
      sharpen(looks[n].structure);
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
    else if (node.kind == Node::Kind::trial)
      settle(node.index);
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
      add(node.structure, open(node.structure));
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
                                   offload_[node.index][node.offload]);
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
    } else if (leader.done) {  // only the allocator's setting is new: it waits for the exact engine
      Trial& trial = trials_[i];
      trial.quick = leader.candidate.prediction;
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
  const auto& steps = offload_[trial];
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].after == after) open_.insert({cost, Node::Kind::offload, trials_[trial].structure, trial, i});
}

std::vector<std::size_t> Searcher::add_trials(std::vector<Trial> trials, std::size_t structure, std::size_t step,
                                              double least) {
  std::vector<std::size_t> added;
  for (auto& trial : trials) {
    trial.structure = structure;
    trial.step = step;
    trial.least = least;
    const auto [at, fresh] = time_groups_.emplace(identity_of_time(trial.candidate.scenario), groups_.size());
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
    trial.floor = options_.floor(trial.candidate.scenario);
    trial.may_fit = trial.floor->fits;
    trial.least = std::max(trial.least, cost(*trial.floor, objective_));
    ++bounded_;
  } catch (const UsageError& error) {
    refuse(index, error);
  }
}

/// The next quick look at a trial. The dearer one comes last.
void Searcher::advance(std::size_t index) {
  Trial& trial = trials_[index];
  try {
    if (costly(trial.candidate.scenario) ? trial.scouted : !timed(trial))
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
  const auto& s = trial.candidate.scenario;
  if (trial.scouted && costly(s)) {
    if (const auto work = costly_work(s); work <= costly_left_) {
      costly_left_ -= work;
    } else {
      trials_[index].given_up = true;
      return;
    }
  }
  open_.insert({trial.least, Node::Kind::trial, trial.structure, index});
}

/// It does not fit: more recompute and offload are worth a look.
void Searcher::give_up_on(std::size_t index) {
  const Trial& trial = trials_[index];
  if (trial.without) return open_offload(*trial.without, trial.offload, trial.least);
  if (!known_[trial.structure].expanded) return;  // the given: its structure's turn comes
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

// ---- Quick looks

void Searcher::estimate(Trial& trial) {
  auto times = options_.estimate(trial.candidate.scenario);
  if (trial.quick) {
    times.ranks = std::move(trial.quick->ranks);
    times.fits = trial.quick->fits;
    times.memory_limit = trial.quick->memory_limit;
    times.memory_margin = trial.quick->memory_margin;
  }
  trial.quick = std::move(times);
  const auto bounds = predict::estimate_bounds(trial.candidate.scenario);
  trial.least = std::max(trial.least, bounds.least(cost(*trial.quick, objective_)));
  ++estimated_;
}

void Searcher::scout(Trial& trial, predict::Depth depth) {
  predict::Prediction seen = trial.quick.value_or(predict::Prediction{});
  options_.scout(trial.candidate.scenario, depth, seen);
  trial.may_fit = seen.fits;
  trial.scouted = true;
  trial.every_rank = depth == predict::Depth::ranks;
  trial.quick = std::move(seen);
}

void Searcher::refuse(std::size_t trial, const UsageError& error) {
  refusals_[trial] = error.what();
  trials_[trial].refused = true;
}

void Searcher::share_with_group(std::size_t leader) {
  const Trial& from = trials_[leader];
  for (const auto i : groups_[from.time_group]) {
    if (i == leader || trials_[i].done) continue;
    Trial& trial = trials_[i];
    trial.floor = from.floor;
    trial.quick = from.quick;
    trial.least = std::max(trial.least, from.least);
    trial.may_fit = from.may_fit;
    trial.scouted = from.scouted;
    trial.every_rank = from.every_rank;
    trial.refused = from.refused;
    trial.given_up = from.given_up;
    refusals_[i] = refusals_[leader];
  }
}

// ---- What was covered

Searched Searcher::counts(double fastest) const {
  Searched s;
  s.structures = std::ssize(structures_);
  s.simulated = simulated_;
  s.estimated = estimated_;
  s.bounded = bounded_;
  s.pruned = space_.duplicates;
  s.illegal = space_.illegal;
  s.legal = std::ssize(trials_);
  s.interrupted = interrupted_;
  enum By : std::size_t { any_split, of_structure, estimate_of_structure, less_work, of_candidate, estimate, walk };
  s.bounds = {{"kernels however they are split"},
              {"floor of the structure"},
              {"estimate of the structure"},
              {"more work than one that fits"},
              {"floor"},
              {"estimate"},
              {"walk of allocated memory"}};
  const auto by_memory = [&](By by, std::int64_t count) { s.by_memory += count, s.bounds[by].memory += count; };
  const auto by_time = [&](By by, std::int64_t count) { s.by_time += count, s.bounds[by].time += count; };
  // What was not enumerated counts by the least that its structure still holds.
  std::vector<double> least(structures_.size(), never);
  for (const auto* nodes : {&open_, &shelved_})
    for (const Node& node : *nodes)
      if (node.kind != Node::Kind::spread) least[node.structure] = std::min(least[node.structure], node.cost);
  for (const Trial& trial : trials_) {
    if (trial.done) {
      ++s.predicted;
    } else if (trial.refused) {
      ++s.not_modelled;
    } else if (!trial.may_fit) {
      by_memory(trial.scouted ? walk : of_candidate, 1);
    } else {
      if (trial.least < fastest)
        ++s.undecided;
      else
        by_time(timed(trial) ? estimate : of_candidate, 1);
      least[trial.structure] = std::min(least[trial.structure], trial.least);
    }
  }
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < structures_.size(); ++i) {
    const auto& known = known_[i];
    const auto left = std::max<std::int64_t>(0, structures_[i].holds - known.candidates);
    seen += known.candidates;
    s.candidates += left;
    if (known.impossible)
      by_memory(of_structure, left), s.too_large += left;
    else if (least[i] < fastest)
      s.undecided += left;
    else
      by_time(known.expanded ? less_work : known.sharp ? estimate_of_structure : of_structure, left);
  }
  for (std::size_t i = 0; i < spreads_.size(); ++i) {
    const auto& known = known_spreads_[i];
    if (known.open) continue;
    s.structures += spreads_[i].structures;
    s.candidates += spreads_[i].holds;
    if (known.impossible)
      by_memory(any_split, spreads_[i].holds), s.too_large += spreads_[i].holds;
    else if (known.cost < fastest)
      s.undecided += spreads_[i].holds;
    else
      by_time(any_split, spreads_[i].holds);
  }
  s.candidates += space_.enumerated;
  s.excluded = s.by_memory + s.by_time;
  return s;
}

double Searcher::lower_bound() const {
  double least = never;
  for (const auto* nodes : {&open_, &shelved_})
    if (!nodes->empty()) least = std::min(least, nodes->begin()->cost);
  for (const Trial& trial : trials_)
    if (!trial.done && !trial.refused && trial.may_fit) least = std::min(least, trial.least);
  return least;
}

std::optional<std::pair<std::string, Bytes>> Searcher::nearest_structure() const {
  std::optional<std::size_t> nearest;
  for (std::size_t i = 0; i < structures_.size(); ++i)
    if (known_[i].impossible && (!nearest || known_[i].lacking < known_[*nearest].lacking)) nearest = i;
  std::optional<std::pair<std::string, Bytes>> found;
  if (nearest) found = {structures_[*nearest].label, known_[*nearest].lacking};
  for (std::size_t i = 0; i < spreads_.size(); ++i) {
    const auto& known = known_spreads_[i];
    if (!known.open && known.impossible && (!found || known.lacking < found->second))
      found = {spreads_[i].label, known.lacking};
  }
  return found;
}

}  // namespace pipewright::plan
