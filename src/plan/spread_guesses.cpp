// What a spread or a candidate may come to: no bounds, but what is worth a look first.
#include <algorithm>
#include <limits>
#include <set>

#include "spread_bounds.hpp"

namespace pipewright::plan {

using predict::Layers;
using predict::Replay;

/// Copies without which a split lacks what it does: of every byte, as if all that may move were enough.
double SpreadBounds::ns_per_byte(const predict::SpreadFloor& floor, predict::Split split, const Replay& all,
                                 const Replay& moved) const {
  const auto missing = std::max(Bytes(0), floor.lacking(split, moved));
  for (auto& rank : split.ranks) rank.available += missing;
  const auto lacking = static_cast<double>(floor.lacking(split, all).value);
  if (lacking <= 0) return 0;
  const auto copies = floor.moving(split, all, moved);
  return copies ? cost(*copies, objective_) / lacking : 0;
}

std::optional<Guess> SpreadBounds::guess(const Spread& spread, const Structure& structure, const Scenario& candidate) {
  const auto known = kernels(spread, overlap_of(candidate));
  if (!known || known->of_state > Bytes(0)) return std::nullopt;
  try {
    const auto& s = candidate.settings;
    const Choices& choices = this->choices(spread, *known);
    const auto choice = std::ranges::find_if(choices.all, [&](const Choice& one) {
      return one.kind == Choice::Kind::modules && one.with.settings.recompute_modules == s.recompute_modules &&
             one.with.settings.recompute_granularity == s.recompute_granularity;
    });
    const Layers* layers = choice == choices.all.end() ? nullptr : timed(choices, *choice);
    if (layers == nullptr) return std::nullopt;
    const auto& floor = *known->floor;
    const auto split = options_.split(Space::without_work(structure.partial));
    const Replay all{layers}, moved{kept(choices, *choice)};
    return Guess{cost(floor.least(split, layers), objective_), static_cast<double>(floor.lacking(split, all).value),
                 static_cast<double>(floor.lacking(split, moved).value), ns_per_byte(floor, split, all, moved),
                 static_cast<double>(split.ranks.front().available.value)};
  } catch (const UsageError&) {
    return std::nullopt;  // the candidate says why
  }
}

std::optional<Bytes> SpreadBounds::lacking(const Spread& spread, const Structure& structure,
                                           const Scenario& candidate) {
  const auto overlap = overlap_of(candidate);
  const auto known = is_full(candidate) ? nullptr : kernels(spread, overlap);
  if (!known) return std::nullopt;
  try {
    const auto layers = offloaded(spread, candidate);
    return known->floor->lacking(options_.split(Space::without_work(structure.partial)), Replay{layers.get()});
  } catch (const UsageError&) {
    return std::nullopt;  // the candidate says why
  }
}

double SpreadBounds::promise(const Spread& spread) {
  double promise = std::numeric_limits<double>::max();
  for (const Overlap overlap : all_overlaps) {
    const auto known = kernels(spread, overlap);
    if (!known || known->of_state > Bytes(0)) continue;
    try {
      const auto& floor = *known->floor;
      const auto split = options_.split(Space::without_work(known->example));
      const double bare = std::max(known->bare, cost(floor.least(split), objective_));
      if (bare >= promise) continue;
      const Choices& choices = this->choices(spread, *known);
      const auto of = [&](const Replay& replay) { return static_cast<double>(floor.lacking(split, replay).value); };
      const Replay none{choices.bare.get()}, none_moved{choices.bare_kept.get()};
      const double lacking = of(none), moved = of(none_moved);
      if (lacking <= 0) {
        promise = bare;
        continue;
      }
      const double copies = space_.searches_offload() ? ns_per_byte(floor, split, none, none_moved) : 0;
      std::set<std::size_t> parts;  // of another choice, which frees more
      for (const Choice& choice : choices.all) parts.insert(choice.within.begin(), choice.within.end());
      for (std::size_t i = 0; i < choices.all.size(); ++i) {
        const Choice& choice = choices.all[i];
        const Layers* layers = parts.contains(i) ? nullptr : timed(choices, choice);
        if (layers == nullptr) continue;
        const bool modules = choice.kind == Choice::Kind::modules, groups = choice.kind == Choice::Kind::groups;
        const int all_layers = groups ? 0 : longest_chunk(split);
        const double lacks = of(modules ? Replay{layers} : Replay{choices.bare.get(), layers, all_layers, groups});
        const double lacks_moved = modules ? of(Replay{kept(choices, choice)}) : lacks;  // beside it nothing moves
        const double more = std::max(0.0, cost(floor.least(split, layers), objective_) - bare);
        constexpr int parts_of_it = 16;
        for (int part = 0; part <= parts_of_it; ++part) {
          const double share = part / double{parts_of_it};
          const double time = bare + share * more, still = lacking + share * (lacks - lacking);
          if (still <= 0)
            promise = std::min(promise, time);
          else if (copies > 0 && moved + share * (lacks_moved - moved) <= 0)
            promise = std::min(promise, std::max(time, copies * still));
        }
      }
    } catch (const UsageError&) {
      // nothing is guessed of it
    }
  }
  return promise;
}

}  // namespace pipewright::plan
