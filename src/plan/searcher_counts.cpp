// What a search covered, and what it left: counts by what excluded, the least that something may still cost.
#include <algorithm>

#include "searcher.hpp"

namespace pipewright::plan {

Searched Searcher::counts(double fastest) const {
  Searched s;
  s.structures = std::ssize(structures_);
  s.simulated = simulated_;
  s.estimated = estimated_;
  s.bounded = bounded_;
  s.pruned = space_.duplicates;
  s.illegal = space_.illegal;
  s.not_modelled = space_.not_modelled;
  s.legal = std::ssize(trials_);
  s.interrupted = interrupted_;
  enum By : std::size_t {
    any_split,
    of_structure,
    estimate_of_structure,
    less_work,
    less_saved,
    of_candidate,
    estimate,
    walk
  };
  s.bounds = {{"kernels however they are split"},
              {"floor of the structure"},
              {"estimate of the structure"},
              {"more work than one that fits"},
              {"less recompute or offload than what does not fit"},
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
  // Offload beside a choice that the model refuses is not opened: where nothing fits, it is refused like that one.
  std::vector<bool> refuses(structures_.size(), false), fits(structures_.size(), false);
  for (const Trial& trial : trials_) {
    if (trial.refused) refuses[trial.structure] = true;
    if (trial.done ? trial.candidate.prediction.fits : waits(trial)) fits[trial.structure] = true;
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
    else if (known.expanded && refuses[i] && !fits[i])
      s.not_modelled += left;
    else if (known.expanded && !fits[i] && least[i] == never)
      by_memory(less_saved, left);
    else
      by_time(known.expanded  ? less_work
              : known.sharp   ? estimate_of_structure
              : known.bounded ? of_structure
                              : any_split,
              left);
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
