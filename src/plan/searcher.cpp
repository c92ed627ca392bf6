// Bounds and quick looks, best first; see searcher.hpp.
#include "searcher.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>

namespace pipewright::plan {

namespace {

/// What quick looks by the exact engine may cost in one search, in microbatches times layers: some ten seconds' work.
constexpr std::int64_t most_costly_work = 300'000;

/// Candidates whose offload variants are looked at.
constexpr std::size_t most_opened = 64;

/// What the chunk-level engine does not express: estimate() then runs the exact one on a shortened schedule.
bool costly(const Scenario& s) {
  return s.settings.overlap_moe_expert_parallel_comm || s.settings.fine_grained_activation_offloading ||
         s.settings.cpu_offloading;
}

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
      space_(scenario, dimensions, left_out),
      arena_(options.threads > 0 ? options.threads : tbb::task_arena::automatic),
      structures_(space_.structures()),
      bounds_(structures_.size()),
      costly_left_(most_costly_work) {}

void Searcher::run() {
  if (options_.floor && options_.estimate && options_.scout) {
    bound_structures();
    do {
      look_closer();
      look_wider();
    } while (confirm_finalists() && !interrupted_);
    if (interrupted_) confirm_best_so_far();
  } else {
    for (std::size_t i = 0; i < structures_.size(); ++i) {
      bounds_[i].expanded = true;
      bounds_[i].candidates = structures_[i].holds;
      add_trials(space_.candidates(structures_[i]), i);
    }
    std::vector<std::size_t> all(trials_.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    confirm(all);
  }
}

// ---- Work on all cores; results lie at their index, so their order does not depend on the threads

void Searcher::in_parallel(std::size_t count, const std::function<void(std::size_t)>& function) {
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

void Searcher::report_progress() {
  const std::scoped_lock lock(mutex_);
  ++done_;
  if (options_.progress) options_.progress(done_, std::max(done_, total_));
}

// ---- Structures

/// With the least that any candidate of the structure keeps.
bool Searcher::can_fit(const Scenario& partial, const predict::Prediction& floor) const {
  const auto holds = [&](const predict::RankPrediction& rank) {
    return rank.static_bytes + rank.outside_allocator + floor.memory_margin <= floor.memory_limit;
  };
  if (!std::ranges::all_of(floor.ranks, holds)) return false;
  return std::ranges::any_of(least_kept(partial), [&](const Scenario& least) {
    return options_.floor(with_required_environment(least)).fits;
  });
}

void Searcher::bound_structures() {
  in_parallel(structures_.size(), [&](std::size_t i) {
    Bound& bound = bounds_[i];
    const auto bare = with_required_environment(stripped(structures_[i].partial));
    try {
      const auto floor = options_.floor(bare);
      bound.cost = cost(floor, objective_);
      bound.impossible = !floor.fits && !can_fit(structures_[i].partial, floor);
      ++bounded_;
    } catch (const UsageError&) {
      bound.sharp = true;  // its candidates say why
    }
    report_progress();
  });
  // Costly ones come once something cheap sets the mark, the most promising first; the others count in the gap.
  for (std::size_t i = 0; i < structures_.size(); ++i)
    if (!bounds_[i].impossible)
      (costly(stripped(structures_[i].partial)) ? later_ : open_).insert({bounds_[i].cost, Node::Kind::structure, i});
}

void Searcher::sharpen(std::size_t structure) {
  Bound& bound = bounds_[structure];
  bound.sharp = true;
  const auto bare = with_required_environment(stripped(structures_[structure].partial));
  if (costly(bare)) return;
  try {
    bound.cost = std::max(bound.cost, cost(options_.estimate(bare), objective_) / (1 + engines_differ));
    ++estimated_;
  } catch (const UsageError&) {
    // its candidates say why
  }
}

// ---- Best first

std::vector<Searcher::Node> Searcher::next_nodes(double limit) {
  constexpr std::size_t batch = 16;
  std::vector<Node> nodes;
  while (nodes.size() < batch && !open_.empty() && open_.begin()->cost <= limit) {
    nodes.push_back(*open_.begin());
    open_.erase(open_.begin());
  }
  return nodes;
}

/// Until nothing that is left can be faster than the fastest that may fit.
void Searcher::look_closer() {
  do {
    while (!interrupted_ && look(fastest() * (1 + engines_differ))) {
    }
    constexpr std::size_t most_costly = 200;
    for (std::size_t n = 0; n < most_costly && !later_.empty(); ++n) open_.insert(later_.extract(later_.begin()));
    later_.clear();
    while (!interrupted_ && look(fastest() * (1 + engines_differ))) {
    }
  } while (!interrupted_ && open_offload());
}

/// A little further, so that there are alternatives to show.
void Searcher::look_wider() {
  constexpr double shown = 0.1;
  constexpr int most_looks = 8;
  for (int looks = 0; looks < most_looks && !interrupted_; ++looks)
    if (known_to_fit() > static_cast<std::size_t>(options_.top) + 1 || !look(fastest() * (1 + shown))) return;
}

bool Searcher::look(double limit) {
  std::vector<Node> looks;
  bool any = false;
  for (const Node& node : next_nodes(limit)) {
    any = true;
    if (node.kind == Node::Kind::offload || (node.kind == Node::Kind::structure && bounds_[node.index].sharp))
      expand(node);
    else
      looks.push_back(node);
  }
  in_parallel(looks.size(), [&](std::size_t n) {
    looks[n].kind == Node::Kind::structure ? sharpen(looks[n].index) : advance(looks[n].index);
    report_progress();
  });
  for (const Node& node : looks) {
    if (node.kind == Node::Kind::structure)
      open_.insert({bounds_[node.index].cost, node.kind, node.index});
    else
      settle(node.index);
  }
  return any;
}

void Searcher::expand(const Node& node) {
  const auto first = trials_.size();
  const auto structure = node.kind == Node::Kind::structure ? node.index : trials_[node.index].structure;
  const auto before = space_.enumerated;
  add_trials(node.kind == Node::Kind::structure ? space_.without_offload(structures_[structure])
                                                : space_.with_offload(structures_[structure], trials_[node.index]),
             structure);
  bounds_[structure].expanded = true;
  bounds_[structure].candidates += space_.enumerated - before;
  floor_from(first);
}

void Searcher::add_trials(std::vector<Trial> trials, std::size_t structure) {
  for (auto& trial : trials) {
    trial.structure = structure;
    const auto [at, fresh] = time_groups_.emplace(identity_of_time(trial.candidate.scenario), groups_.size());
    if (fresh) groups_.emplace_back();
    trial.time_group = at->second;
    groups_[at->second].push_back(trials_.size());
    trials_.push_back(std::move(trial));
    refusals_.emplace_back();
  }
}

void Searcher::floor_from(std::size_t first) {
  std::vector<std::size_t> leaders;
  for (std::size_t i = first; i < trials_.size(); ++i)
    if (leads(i)) leaders.push_back(i);
  in_parallel(leaders.size(), [&](std::size_t n) {
    Trial& trial = trials_[leaders[n]];
    try {
      trial.floor = options_.floor(trial.candidate.scenario);
      trial.may_fit = trial.floor->fits;
      ++bounded_;
    } catch (const UsageError& error) {
      refuse(leaders[n], error);
    }
    report_progress();
  });
  for (const auto i : leaders) {
    share_with_group(i);
    settle(i);
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
  if (trial.refused) return;
  if (!trial.may_fit) return;
  if (timed(trial) && trial.scouted) return;
  const auto& s = trial.candidate.scenario;
  if (trial.scouted && costly(s)) {
    if (const auto work = costly_work(s); work <= costly_left_)
      costly_left_ -= work;
    else
      return;  // its floor counts in the gap
  }
  open_.insert({best_cost(trial), Node::Kind::trial, index});
}

/// Offload is worth a look for what does not fit without, fastest first: once the best without offload is known, and a
/// few at a time, since each has hundreds of variants. False: nothing that may win is left.
bool Searcher::open_offload() {
  if (!space_.searches_offload()) return false;
  constexpr std::size_t most = 4;
  std::size_t opened = 0;
  const double limit = fastest();
  for (const auto i : by_cost()) {
    const Trial& trial = trials_[i];
    if (best_cost(trial) > limit || opened == most) break;
    const auto& settings = trial.candidate.scenario.settings;
    const bool offloads = settings.fine_grained_activation_offloading || settings.cpu_offloading;
    const bool fits = trial.done ? trial.candidate.prediction.fits : trial.may_fit;
    if (fits || offloads || !leads(i) || !with_offload_.insert(i).second) continue;
    open_.insert({best_cost(trial), Node::Kind::offload, i});
    ++opened;
  }
  return opened > 0 && with_offload_.size() <= most_opened;
}

std::size_t Searcher::known_to_fit() const {
  return static_cast<std::size_t>(std::ranges::count_if(trials_, [](const Trial& trial) {
    return trial.done ? trial.candidate.prediction.fits : timed(trial) && trial.scouted && trial.may_fit;
  }));
}

/// Cost of the fastest candidate that fits, as far as is known.
double Searcher::fastest() const {
  double least = never / 2;
  for (const Trial& trial : trials_)
    if (trial.done ? trial.candidate.prediction.fits : timed(trial) && trial.scouted && trial.may_fit)
      least = std::min(least, best_cost(trial));
  return least;
}

double Searcher::best_cost(const Trial& trial) const {
  if (trial.done) return cost(trial.candidate.prediction, objective_);
  if (timed(trial)) return cost(*trial.quick, objective_);
  return trial.floor ? cost(*trial.floor, objective_) : 0;
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
    if (i == leader) continue;
    Trial& trial = trials_[i];
    trial.floor = from.floor;
    trial.quick = from.quick;
    trial.may_fit = from.may_fit;
    trial.scouted = from.scouted;
    trial.every_rank = from.every_rank;
    trial.refused = from.refused;
    refusals_[i] = refusals_[leader];
  }
}

void Searcher::scout_structure_of(std::size_t winner) {
  if (!options_.scout) return;
  std::vector<std::size_t> same;
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    const Trial& trial = trials_[i];
    if (trial.structure == trials_[winner].structure && !trial.done && !trial.refused && leads(i) &&
        (timed(trial) || !costly(trial.candidate.scenario)))
      same.push_back(i);
  }
  in_parallel(same.size(), [&](std::size_t n) {
    Trial& trial = trials_[same[n]];
    try {
      if (!timed(trial)) estimate(trial);
      if (!trial.every_rank) scout(trial, predict::Depth::ranks);
    } catch (const UsageError& error) {
      refuse(same[n], error);
    }
    report_progress();
  });
  for (const auto i : same) share_with_group(i);
}

std::vector<predict::Prediction> Searcher::exact_memory(const std::vector<const Trial*>& some) {
  std::vector<predict::Prediction> predictions(some.size());
  in_parallel(some.size(), [&](std::size_t n) {
    const auto& s = some[n]->candidate.scenario;
    predictions[n] =
        options_.repredict_reserved ? options_.repredict_reserved(s, *some[n]->quick) : options_.predict(s);
    report_progress();
  });
  return predictions;
}

// ---- What was covered

Searched Searcher::counts() const {
  Searched s;
  s.structures = std::ssize(structures_);
  s.simulated = simulated_;
  s.estimated = estimated_;
  s.bounded = bounded_;
  for (std::size_t i = 0; i < structures_.size(); ++i) {
    const auto all = std::max(structures_[i].holds, bounds_[i].candidates);
    s.candidates += all;
    s.excluded += all - bounds_[i].candidates;
    if (bounds_[i].impossible) s.too_large += all;
  }
  for (const Trial& trial : trials_)
    if (!trial.done && !timed(trial) && !trial.refused) ++s.excluded;
  return s;
}

double Searcher::lower_bound() const {
  double least = never;
  for (std::size_t i = 0; i < structures_.size(); ++i)
    if (!bounds_[i].expanded && !bounds_[i].impossible) least = std::min(least, bounds_[i].cost);
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    const Trial& trial = trials_[i];
    if (trial.done || trial.refused || !trial.may_fit) continue;
    least = std::min(least, best_cost(trial) / (timed(trial) ? 1 + engines_differ : 1));
  }
  if (space_.searches_offload())
    for (std::size_t i = 0; i < trials_.size(); ++i)  // what offload might make of the others that do not fit
      if (!trials_[i].may_fit && !trials_[i].refused && leads(i) && !with_offload_.contains(i))
        least = std::min(least, best_cost(trials_[i]));
  return least;
}

}  // namespace pipewright::plan
