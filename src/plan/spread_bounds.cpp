#include "spread_bounds.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "pipewright/scenario/derived.hpp"

namespace pipewright::plan {
namespace {

using predict::Layers;
using predict::Replay;

/// Layers of a split that stand among the first so many of their chunk.
std::vector<double> first_of_chunks(const predict::Split& split, std::size_t layers, int block) {
  std::vector<double> part(layers, 0);
  for (const auto& rank : split.ranks)
    for (const auto& chunk : rank.chunks)
      for (int i = 0; i < std::min(block, chunk.layers); ++i) part[static_cast<std::size_t>(chunk.first + i)] = 1;
  return part;
}

std::string name_of(Overlap overlap) { return ", overlap " + std::to_string(static_cast<int>(overlap)); }

}  // namespace

bool SpreadBounds::is_full(const Scenario& s) { return s.settings.recompute_granularity.value_or("") == "full"; }

int SpreadBounds::longest_chunk(const predict::Split& split) {
  int most = 0;
  for (const auto& rank : split.ranks)
    for (const auto& chunk : rank.chunks) most = std::max(most, chunk.layers);
  return most;
}

template <class Memory>
Bytes SpreadBounds::lacking_of_any(const Memory& memory, const predict::Split& split, const Choices& choices) const {
  find_least(choices);
  if (!choices.least) return Bytes(0);
  const auto by_modules = memory.lacking(split, Replay{choices.least.get()});
  if (by_modules <= Bytes(0) || choices.in_full == nullptr) return by_modules;
  return std::min(by_modules, memory.lacking(split, Replay{choices.bare_kept.get(), choices.in_full, 0, true}));
}

std::shared_ptr<const SpreadBounds::Choices> SpreadBounds::choices(const Spread& spread, Overlap overlap,
                                                                   const Scenario& example) {
  const auto key = space_.work_of(spread) + name_of(overlap);
  if (auto known = choices_.find(key)) return known;
  auto made = std::make_shared<Choices>();
  make(*made, example, overlap);
  return choices_.keep(key, std::move(made));
}

const SpreadBounds::Choices& SpreadBounds::choices(const Spread& spread, const Kernels& kernels) {
  std::call_once(kernels.chosen,
                 [&] { kernels.choices = choices(spread, overlap_of(kernels.example), kernels.example); });
  return *kernels.choices;
}

std::shared_ptr<const std::vector<predict::Split>> SpreadBounds::shapes(const Spread& spread, Overlap overlap) {
  const auto key = space_.name_of_spread(spread.chosen) + name_of(overlap);
  if (auto known = shapes_.find(key)) return known;
  auto made = std::make_shared<std::vector<predict::Split>>();
  for (const Scenario& structure : space_.splits(spread, overlap)) {
    try {
      made->push_back(options_.split(Space::without_work(structure)));
    } catch (const UsageError&) {
      // nor has it candidates
    }
  }
  return shapes_.keep(key, std::move(made));
}

std::shared_ptr<const SpreadBounds::Kernels> SpreadBounds::make(const Scenario& example) const {
  auto made = std::make_shared<Kernels>();
  made->example = example;
  made->floor = options_.spread_floor(Space::without_work(example));
  const auto as_it_is = made->floor->least();
  made->bare = cost(as_it_is, objective_);
  made->ns_per_cost = static_cast<double>(as_it_is.step_ns) / made->bare;
  for (const auto& rank : as_it_is.ranks)
    made->of_state = std::max(made->of_state, rank.walk.peak_reserved + rank.outside_allocator +
                                                  as_it_is.memory_margin - as_it_is.memory_limit);
  return made;
}

/// By the first of its structures that can be built, whoever asks; nothing: none can.
std::shared_ptr<const SpreadBounds::Kernels> SpreadBounds::kernels(const Spread& spread, Overlap overlap) {
  const auto key = space_.name_of_spread(spread.chosen) + name_of(overlap);
  auto known = kernels_.find(key);
  if (known) return known;
  space_.example(spread, overlap, [&](const Scenario& example) {
    try {
      known = kernels_.keep(key, make(example));
      return true;
    } catch (const UsageError&) {
      return false;  // another one says as much
    }
  });
  return known;
}

SpreadBound SpreadBounds::with_copies(const predict::SpreadFloor& floor, const predict::Split& split, double time,
                                      const Replay& all, const std::function<Replay()>& moved) const {
  if (floor.lacking(split, all) <= Bytes(0)) return {time, Bytes(0), true};
  const Replay least = moved();
  const auto lacking = floor.lacking(split, least);
  const auto copies = lacking > Bytes(0) ? std::nullopt : floor.moving(split, all, least);
  if (!copies) return {time, std::max(lacking, Bytes(1)), true};
  return {std::max(time, cost(*copies, objective_)), Bytes(0), true};
}

double SpreadBounds::time(const Kernels& kernels, const predict::Split& split, const Layers* layers,
                          const std::vector<double>& part, double enough) const {
  const auto least = kernels.floor->least(split, layers, part, enough * kernels.ns_per_cost);
  return std::max(kernels.bare, cost(least, objective_));
}

void SpreadBounds::follow_order(const Kernels& kernels, OfSplit& one, double enough) const {
  one.bare = std::max(one.bare, time(kernels, *one.split, nullptr, {}, enough));
  one.ordered = true;
}

double SpreadBounds::mean(const Kernels& kernels, const Choice& choice, const Layers& layers) const {
  {
    const std::scoped_lock lock(kernels.mutex);
    if (const auto at = kernels.means.find(&choice); at != kernels.means.end()) return at->second;
  }
  const double mean = cost(kernels.floor->least(layers), objective_);
  const std::scoped_lock lock(kernels.mutex);
  return kernels.means.emplace(&choice, mean).first->second;
}

SpreadBound SpreadBounds::bound(const Spread& spread, const Kernels& kernels, std::vector<OfSplit> splits,
                                double enough) {
  if (kernels.of_state > Bytes(0)) return {kernels.bare, kernels.of_state, true};
  const auto& floor = *kernels.floor;
  double least = enough;  // of what may fit
  bool may_fit = false;
  Bytes lacking(INT64_MAX);
  // May a choice that takes so long still be the least?
  const auto open = [&](const OfSplit& one, double time) {
    const bool better = std::max(one.bare, time) < least;
    may_fit = may_fit || !better;
    return better;
  };
  enum class Fit : std::uint8_t { unknown, no, moved, yes };
  const bool any_open = std::ranges::count_if(splits, [&](const OfSplit& one) { return open(one, kernels.bare); }) > 0;
  static const Choices no_choices;
  const Choices& choices = any_open ? this->choices(spread, kernels) : no_choices;
  // Most that do not fit with one choice fit with none.
  if (any_open) {
    const double of_all = std::ranges::min(splits, {}, &OfSplit::bare).bare;
    std::erase_if(splits, [&](const OfSplit& one) {
      const auto lacks = lacking_of_any(floor, *one.split, choices);
      if (lacks > Bytes(0)) lacking = std::min(lacking, lacks);
      return lacks > Bytes(0);
    });
    if (splits.empty()) return {of_all, lacking, true};
  }
  // Memory is the cheaper question.
  const auto take = [&](OfSplit& one, double time, Fit fit, const Replay& all, const auto& moved, const Layers& layers,
                        const std::vector<double>& part) {
    if (fit == Fit::no || !open(one, time)) return;
    if (fit != Fit::yes) {
      const auto found = with_copies(floor, *one.split, time, all, moved);
      lacking = std::min(lacking, found.lacking);
      if (found.lacking > Bytes(0)) return;
      time = found.cost;
    }
    may_fit = true;
    if (!one.ordered && std::max(one.bare, time) < least) follow_order(kernels, one, least);
    if (&layers != choices.bare.get() && std::max(one.bare, time) < least)
      time = std::max(time, this->time(kernels, *one.split, &layers, part, least));
    least = std::min(least, std::max(one.bare, time));
  };
  struct Seen {
    double least = 0;          ///< however it is split
    std::vector<bool> enough;  ///< by split: it fits as it is, and what does more takes longer
  };
  std::vector<Seen> seen;
  for (const Choice& choice : choices.all) {
    Seen& now = seen.emplace_back(Seen{kernels.bare, std::vector<bool>(splits.size(), false)});
    for (const auto i : choice.within) {
      now.least = std::max(now.least, seen[i].least);
      for (std::size_t n = 0; n < splits.size(); ++n) now.enough[n] = now.enough[n] || seen[i].enough[n];
    }
    const double before = now.least;
    std::vector<std::size_t> asked;  // of these splits
    for (std::size_t n = 0; n < splits.size(); ++n)
      if (!now.enough[n] && open(splits[n], before)) asked.push_back(n);
    if (asked.empty()) continue;
    // Most sets of modules do not fit, which is told before they are priced.
    const bool modules = choice.kind == Choice::Kind::modules;
    std::vector<Fit> fits(splits.size(), Fit::unknown);
    std::optional<bool> some;
    const auto may_any_fit = [&](const Layers& of) {
      if (some) return *some;  // asked when they were built
      some = false;
      for (const auto n : asked) {
        const auto lacks = [&](const Layers* layers) { return floor.lacking(*splits[n].split, Replay{layers}); };
        fits[n] = Fit::yes;
        if (lacks(&of) > Bytes(0)) {
          const auto still = lacks(kept(choices, choice));
          lacking = std::min(lacking, still);
          fits[n] = still > Bytes(0) ? Fit::no : Fit::moved;
        }
        some = *some || fits[n] != Fit::no;
      }
      return *some;
    };
    const Layers* layers = modules ? built(choices, choice, may_any_fit) : timed(choices, choice);
    if (modules && layers != nullptr) {
      if (!may_any_fit(*layers)) continue;
      layers = timed(choices, choice);
    }
    if (layers == nullptr) {  // nothing is known of it: it costs nothing and fits
      may_fit = true;
      for (const auto n : asked) {
        if (!splits[n].ordered) follow_order(kernels, splits[n], least);
        least = std::min(least, splits[n].bare);
      }
      continue;
    }
    const bool bare = layers == choices.bare.get();
    const double mean = bare ? kernels.bare : std::max(before, this->mean(kernels, choice, *layers));
    now.least = mean;
    const bool by_block = choice.kind == Choice::Kind::block || choice.kind == Choice::Kind::any_block;
    for (const auto n : asked) {
      if (!by_block) {
        const bool groups = choice.kind == Choice::Kind::groups;
        const auto moved = [&] {
          const Layers* least_kept = kept(choices, choice);
          return groups ? Replay{choices.bare_kept.get(), least_kept, 0, true} : Replay{least_kept};
        };
        const Replay all = groups ? Replay{choices.bare.get(), layers, 0, true} : Replay{layers};
        take(splits[n], mean, fits[n], all, moved, *layers, {});
        now.enough[n] = fits[n] == Fit::yes;
        continue;
      }
      const bool any = choice.kind == Choice::Kind::any_block;
      const int first = any ? 1 : choice.block, last = any ? longest_chunk(*splits[n].split) : choice.block;
      for (int block = first; block <= last; ++block) {
        const auto part = first_of_chunks(*splits[n].split, layers->kept.size(), block);
        const double mean_of_part = std::max(kernels.bare, cost(floor.least(*layers, part), objective_));
        if (!open(splits[n], mean_of_part)) break;  // more of it costs no less
        const auto moved = [&] { return Replay{choices.bare_kept.get(), kept(choices, choice), block, false}; };
        take(splits[n], mean_of_part, Fit::unknown, Replay{choices.bare.get(), layers, block, false}, moved, *layers,
             part);
      }
    }
  }
  double bare = splits.empty() ? kernels.bare : std::numeric_limits<double>::max();
  for (const OfSplit& one : splits) bare = std::min(bare, one.bare);
  if (may_fit) return {std::max(bare, least), Bytes(0), true};
  return {bare, std::max(lacking, Bytes(1)), true};
}

const std::vector<SpreadBounds::OfSplit>& SpreadBounds::splits(const Spread& spread, const Kernels& kernels,
                                                               double enough) {
  std::call_once(kernels.split, [&] {
    auto& found = kernels.splits;
    for (const predict::Split& split : *shapes(spread, overlap_of(kernels.example))) {
      OfSplit one{std::make_shared<predict::Split>(split)};
      try {
        one.bare = time(kernels, *one.split, nullptr, {}, 0);
        found.push_back(std::move(one));
      } catch (const UsageError&) {
        // nor has it candidates
      }
    }
    std::ranges::stable_sort(found, {}, &OfSplit::bare);
    double least = enough;
    for (OfSplit& one : found) {
      if (one.bare >= least) break;
      follow_order(kernels, one, least);
      least = std::min(least, one.bare);
    }
  });
  return kernels.splits;
}

SpreadBound SpreadBounds::bound(const Spread& spread, const Kernels& known, double enough) {
  if (known.of_state > Bytes(0)) return {known.bare, known.of_state, true};
  if (known.bare >= enough) return {known.bare, Bytes(0), true};
  try {
    const auto& all = splits(spread, known, enough);
    if (all.empty()) return {known.bare, Bytes(1), true};
    return bound(spread, known, all, enough);
  } catch (const UsageError&) {
    return {known.bare, Bytes(0), true};  // its candidates say why
  }
}

/// By the first of its structures with that overlap that can be built.
std::optional<std::pair<predict::LeastMemory, Scenario>> SpreadBounds::memory(const Spread& spread,
                                                                              Overlap overlap) const {
  std::optional<std::pair<predict::LeastMemory, Scenario>> found;
  space_.example(spread, overlap, [&](const Scenario& example) {
    try {
      found.emplace(options_.least_memory(Space::without_work(example)), example);
      return true;
    } catch (const UsageError&) {
      return false;  // another one says as much
    }
  });
  return found;
}

Bytes SpreadBounds::of_state(const Spread& spread) const {
  std::optional<Bytes> least;  // with one kind of overlap or another
  for (const Overlap overlap : all_overlaps) {
    if (least && *least <= Bytes(0)) break;  // another cannot make it known
    if (const auto of = memory(spread, overlap))
      least = std::min(least.value_or(of->first.lacking()), of->first.lacking());
  }
  return least.value_or(Bytes(0));
}

Bytes SpreadBounds::of_memory(const Spread& spread, Overlap overlap) {
  const auto of = memory(spread, overlap);
  if (!of) return Bytes(0);
  const auto& [memory, example] = *of;
  if (memory.lacking() > Bytes(0)) return memory.lacking();
  try {
    const auto choices = this->choices(spread, overlap, example);
    std::optional<Bytes> least;
    for (const auto& split : *shapes(spread, overlap)) {
      const auto lacking = lacking_of_any(memory, split, *choices);
      if (lacking <= Bytes(0)) return Bytes(0);
      least = std::min(least.value_or(lacking), lacking);
    }
    return least.value_or(Bytes(0));
  } catch (const UsageError&) {
    return Bytes(0);  // its candidates say why
  }
}

void SpreadBounds::raise(const Spread& spread, Overlap overlap, double enough, OverlapBound& bound) {
  using By = OverlapBound::By;
  bound.by = By{static_cast<std::uint8_t>(static_cast<int>(bound.by) + 1)};
  if (bound.by == By::memory) {
    bound.lacking = of_memory(spread, overlap);
    return;
  }
  const auto known = kernels(spread, overlap);
  bound.none = known == nullptr;
  if (bound.none) return;
  bound.cost = std::max(bound.cost, known->bare);
  bound.lacking = std::max(Bytes(0), known->of_state);
  if (bound.lacking > Bytes(0) || bound.cost >= enough) return;
  if (bound.by == By::splits) {
    if (const auto& of = splits(spread, *known, enough); !of.empty())
      bound.cost = std::max(bound.cost, std::ranges::min(of, {}, &OfSplit::bare).bare);
  } else if (bound.by == By::fit) {
    const auto found = this->bound(spread, *known, enough);
    bound.cost = std::max(bound.cost, found.cost), bound.lacking = found.lacking;
  }
}

const OverlapBound* RisingBound::least() const {
  const OverlapBound* least = nullptr;
  for (const OverlapBound& one : overlaps_)
    if (!one.none && one.lacking <= Bytes(0) && (least == nullptr || one.cost < least->cost)) least = &one;
  return least;
}

double RisingBound::cost() const {
  const auto* of = least();
  return of == nullptr ? 0 : of->cost;
}

Bytes RisingBound::lacking() const {
  std::optional<Bytes> least;
  for (const OverlapBound& one : overlaps_)
    if (!one.none) least = std::min(least.value_or(one.lacking), one.lacking);
  return least.value_or(Bytes(0));
}

bool RisingBound::whole() const {
  const auto* of = least();
  return of == nullptr || of->by == OverlapBound::By::fit;
}

void RisingBound::raise(SpreadBounds& bounds, const Spread& spread, double enough) {
  const auto at = static_cast<std::size_t>(least() - overlaps_.data());
  bounds.raise(spread, Overlap{static_cast<std::uint8_t>(at)}, enough, overlaps_[at]);
}

SpreadBound SpreadBounds::of_structure(const Spread& spread, const Structure& structure, double enough) {
  const auto known = kernels(spread, overlap_of(structure.partial));
  if (!known) return {};
  try {
    OfSplit one{std::make_shared<predict::Split>(options_.split(Space::without_work(structure.partial)))};
    follow_order(*known, one, std::numeric_limits<double>::max());
    return bound(spread, *known, {std::move(one)}, enough);
  } catch (const UsageError&) {
    return {};  // its candidates say why
  }
}

SpreadBound SpreadBounds::of_candidate(const Spread& spread, const Structure& structure, const Scenario& candidate) {
  const auto known = kernels(spread, overlap_of(candidate));
  if (!known) return {};
  if (known->of_state > Bytes(0)) return {known->bare, known->of_state, true};
  const auto& s = candidate.settings;
  const bool full = is_full(candidate), by_block = full && s.recompute_method.value_or("") == "block";
  const int block = static_cast<int>(s.recompute_num_layers.value_or(1));
  const auto is_its = [&](const Choice& choice) {
    if (!full)
      return choice.kind == Choice::Kind::modules && choice.with.settings.recompute_modules == s.recompute_modules &&
             choice.with.settings.recompute_granularity == s.recompute_granularity;
    if (!by_block) return choice.kind == Choice::Kind::groups;
    return choice.kind == Choice::Kind::any_block || (choice.kind == Choice::Kind::block && choice.block == block);
  };
  try {
    const Choices& choices = this->choices(spread, *known);
    const auto choice = std::ranges::find_if(choices.all, is_its);
    if (choice == choices.all.end()) return {};
    const Layers* layers = timed(choices, *choice);
    if (layers == nullptr) return {};
    const auto& floor = *known->floor;
    const auto split = options_.split(Space::without_work(structure.partial));
    const Replay all = !full      ? Replay{layers}
                       : by_block ? Replay{choices.bare.get(), layers, block, false}
                                  : Replay{choices.bare.get(), layers, 0, true};
    const auto part = by_block ? first_of_chunks(split, layers->kept.size(), block) : std::vector<double>();
    double time = std::max(known->bare, cost(floor.least(split), objective_));
    if (layers != choices.bare.get())
      for (const auto& of_layers : {floor.least(*layers, part), floor.least(split, layers, part)})
        time = std::max(time, cost(of_layers, objective_));
    return {time, floor.lacking(split, all), true};
  } catch (const UsageError&) {
    return {};  // the candidate says why
  }
}

std::shared_ptr<const SpreadBounds::Moved> SpreadBounds::beside_offload(const Spread& spread, const Scenario& without) {
  auto key = space_.work_of(spread) + name_of(overlap_of(without));
  for (const auto& module : without.settings.recompute_modules) key += " " + module;
  if (auto known = moved_.find(key)) return known;
  const auto timed = unpriced(without);
  return moved_.keep(key, std::make_shared<const Moved>(timed, kept(without, timed)));
}

std::shared_ptr<const Layers> SpreadBounds::offloaded(const Spread& spread, const Scenario& candidate) {
  const auto& s = candidate.settings;
  auto key = space_.work_of(spread) + name_of(overlap_of(candidate));
  for (const auto& module : s.recompute_modules) key += " " + module;
  for (const auto& module : s.offload_modules) key += ", " + module;
  if (s.cpu_offloading) key += ", layers " + std::to_string(s.cpu_offloading_num_layers);
  if (auto known = offloaded_.find(key)) return known;
  return offloaded_.keep(key, unpriced(candidate));
}

SpreadBound SpreadBounds::of_offload(const Spread& spread, const Structure& structure, const Scenario& without,
                                     const Scenario* with) {
  const auto overlap = overlap_of(without);
  if (is_full(without)) return {};  // beside it nothing is moved
  const auto known = kernels(spread, overlap);
  if (!known || known->of_state > Bytes(0)) return {};
  try {
    const auto layers = beside_offload(spread, without);
    const auto moved = with == nullptr ? layers->second : offloaded(spread, *with);
    const auto split = options_.split(Space::without_work(structure.partial));
    const double time = std::max(known->bare, cost(known->floor->least(split), objective_));
    return with_copies(*known->floor, split, time, Replay{layers->first.get()}, [&] { return Replay{moved.get()}; });
  } catch (const UsageError&) {
    return {};  // its candidates say why
  }
}

}  // namespace pipewright::plan
