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
    if (found || !look(never / 2, {structure})) return found;
  }
  return std::nullopt;
}

/// By more than an estimate may be wrong.
bool Searcher::confirm_if_better(std::size_t trial) {
  if (!waits(trials_[trial]) || best_cost(trials_[trial]) >= fastest_exact() * (1 - 2 * good_gap)) return false;
  if (!take_work(trials_[trial], most_exact_work)) return false;
  confirm({trial});
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

/// The nearest of what was not tried, one of each spread that is not open.
std::vector<std::size_t> Searcher::neighbours(std::size_t centre, double limit, std::size_t most) {
  struct Near {
    double turns, cost;
    bool spread;
    std::size_t index;
    auto operator<=>(const Near&) const = default;
  };
  const Structure& at = structures_[centre];
  std::vector<Near> near;
  for (std::size_t i = 0; i < spreads_.size(); ++i) {
    const KnownSpread& known = known_spreads_[i];
    if (!known.open && !known.impossible && known.cost < limit)
      near.push_back({spread_turns(at.partial, spreads_[i].partial), known.cost, true, i});
  }
  for (std::size_t i = 0; i < structures_.size(); ++i) {
    const Known& known = known_[i];
    if (!known.dived && !known.impossible && known.cost < limit && i != centre)
      near.push_back({spread_turns(at.partial, structures_[i].partial) + structure_turns(at, structures_[i]),
                      known.cost, false, i});
  }
  most = std::min(most, near.size());
  std::ranges::partial_sort(near, near.begin() + static_cast<std::ptrdiff_t>(most));
  near.resize(most);
  std::vector<std::size_t> spreads, found;
  for (const Near& one : near) (one.spread ? spreads : found).push_back(one.index);
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
    std::optional<std::size_t> nearest;
    double least = never;
    for (auto i = first; i < structures_.size(); ++i)
      if (const double turns = structure_turns(structures_[centre], structures_[i]); turns < least)
        least = turns, nearest = i;
    if (nearest) found.push_back(*nearest);
  }
  return found;
}

/// True: something faster was found.
bool Searcher::climb() {
  constexpr std::size_t batch = 6;
  const auto best = fastest_of(any_structure);
  if (!best) return false;
  const double before = best_cost(trials_[*best]), limit = before * (1 - tie_share);
  const auto tried = neighbours(trials_[*best].structure, limit, batch);
  if (tried.empty()) return false;
  for (const auto i : tried) known_[i].dived = true;
  const std::set<std::size_t> some(tried.begin(), tried.end());
  for (int looks = 0; looks <= most_looks && !interrupted_; ++looks)
    if (!look(std::min(limit, fastest() * (1 - tie_share)), some)) break;
  return fastest() < limit;
}

}  // namespace pipewright::plan
