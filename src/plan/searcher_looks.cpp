// One quick look at a trial: glance, estimate, walk of its memory; what a look at one tells of those of equal time.
#include <algorithm>
#include <utility>

#include "pipewright/bounds.hpp"
#include "searcher.hpp"

namespace pipewright::plan {

predict::Prediction Searcher::seen(const Trial& trial, const std::optional<predict::Prediction>& of_structure,
                                   const std::function<predict::Prediction(const Scenario&)>& look) const {
  return trial.bare && of_structure ? *of_structure : look(trial.candidate.scenario);
}

void Searcher::estimate(Trial& trial) {
  auto times = seen(trial, known_[trial.structure].estimate, options_.estimate);
  if (trial.quick) {
    times.ranks = trial.quick->ranks;
    times.fits = trial.quick->fits;
    times.memory_limit = trial.quick->memory_limit;
    times.memory_margin = trial.quick->memory_margin;
  }
  trial.quick = std::make_shared<predict::Prediction>(std::move(times));
  const auto bounds = predict::estimate_bounds(trial.candidate.scenario);
  trial.least = std::max(trial.least, bounds.least(cost(*trial.quick, objective_)));
  if (trial.bare && known_[trial.structure].estimate) return;
  ++estimated_;
  walked_ += exact_work(trial.candidate.scenario) / estimates_of_a_simulation;
}

void Searcher::glance(Trial& trial) {
  trial.glanced = true;
  const auto quick = seen(trial, known_[trial.structure].glance, options_.glance);
  if (quick.step_ns == 0) return;
  const auto bounds = predict::estimate_bounds(trial.candidate.scenario);
  trial.least = std::max(trial.least, bounds.least(cost(quick, objective_)));
}

void Searcher::scout(Trial& trial, predict::Depth depth) {
  predict::Prediction seen = trial.quick ? *trial.quick : predict::Prediction{};
  options_.scout(trial.candidate.scenario, depth, seen);
  seen.ranks.shrink_to_fit();
  if (!seen.fits) seen.ranks = {};  // of many; nobody asks for them
  trial.may_fit = trial.may_fit && seen.fits;
  trial.scouted = true;
  trial.every_rank = depth == predict::Depth::ranks;
  trial.quick = std::make_shared<predict::Prediction>(std::move(seen));
}

void Searcher::refuse(std::size_t trial, const UsageError& error) {
  refusals_[trial] = error.what();
  trials_[trial].refused = true;
}

void Searcher::share_with_group(std::size_t leader) {
  const Trial& from = trials_[leader];
  // What is reserved is each allocator's own matter.
  const bool fits_by_looks = from.fits_by_floor.value_or(true) && (!from.scouted || from.quick->fits);
  for (const auto i : groups_[from.time_group]) {
    if (i == leader || trials_[i].done) continue;
    Trial& trial = trials_[i];
    trial.fits_by_floor = from.fits_by_floor;
    trial.quick = from.quick;
    trial.least = std::max(trial.least, from.least);
    trial.may_fit = trial.may_fit && fits_by_looks;
    trial.glanced = from.glanced;
    trial.scouted = from.scouted;
    trial.every_rank = from.every_rank;
    trial.refused = from.refused;
    refusals_[i] = refusals_[leader];
  }
}

}  // namespace pipewright::plan
