#include "spread_bounds.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "pipewright/scenario/derived.hpp"

namespace pipewright::plan {
namespace {

using predict::Layers;
using predict::Replay;

bool is_full(const Scenario& s) { return s.settings.recompute_granularity.value_or("") == "full"; }

Scenario every_layer_in_full(Scenario s) {
  s.settings.recompute_granularity = "full";
  s.settings.recompute_method = "uniform";
  s.settings.recompute_num_layers = 1;
  s.settings.recompute_modules.clear();
  return with_required_environment(std::move(s));
}

/// Layers of a split that stand among the first so many of their chunk.
std::vector<double> first_of_chunks(const predict::Split& split, std::size_t layers, int block) {
  std::vector<double> part(layers, 0);
  for (const auto& rank : split.ranks)
    for (const auto& chunk : rank.chunks)
      for (int i = 0; i < std::min(block, chunk.layers); ++i) part[static_cast<std::size_t>(chunk.first + i)] = 1;
  return part;
}

int longest_chunk(const predict::Split& split) {
  int most = 0;
  for (const auto& rank : split.ranks)
    for (const auto& chunk : rank.chunks) most = std::max(most, chunk.layers);
  return most;
}

}  // namespace

/// What is kept where offload is searched, too: as if all that may move had; with whole layers moved: nothing.
std::shared_ptr<const Layers> SpreadBounds::kept(const Scenario& with,
                                                 const std::shared_ptr<const Layers>& timed) const {
  if (with.settings.cpu_offloading) return std::make_shared<Layers>(predict::nothing_kept(with));
  if (!space_.searches_offload()) return timed;
  const auto most = space_.most_offloaded(with);
  if (!most) return std::make_shared<Layers>(predict::nothing_kept(with));
  try {
    return std::make_shared<Layers>(predict::least_of(*timed, *options_.layers(*most)));
  } catch (const UsageError&) {
    return std::make_shared<Layers>(predict::nothing_kept(with));  // a smaller set may be modelled
  }
}

SpreadBounds::Choices SpreadBounds::make(const Scenario& example, bool overlap) const {
  Choices choices;
  const Scenario none = space_.none_recomputed(example);
  choices.bare = options_.layers(none);
  choices.bare_kept = kept(none, choices.bare);
  std::optional<Choice> in_full;
  for (const Scenario& with : space_.recomputed(example)) {
    Choice choice;
    try {
      if (!is_full(with)) {
        choice.timed = options_.layers(with);
        choice.kept = kept(with, choice.timed);
        choices.all.push_back(std::move(choice));
        continue;
      }
      // Expert-parallel overlap and full recompute exclude each other. How many layers may be searched depends on the
      // split: any number of them stands for all.
      if (overlap || (in_full && space_.searches_recompute())) continue;
      const Scenario all = every_layer_in_full(with);
      choice.timed = options_.layers(all);
      choice.kept = kept(all, choice.timed);
      in_full = choice;
      const bool block = with.settings.recompute_method.value_or("") == "block";
      if (block || space_.searches_recompute()) {
        in_full->kind = space_.searches_recompute() ? Choice::Kind::any_block : Choice::Kind::block;
        in_full->block = static_cast<int>(with.settings.recompute_num_layers.value_or(1));
        choices.all.push_back(*in_full);
      }
      choice.kind = Choice::Kind::groups;
      if (!block || space_.searches_recompute()) choices.all.push_back(std::move(choice));
    } catch (const UsageError&) {
      choice = {};
      choice.free = true;  // with another split it may be modelled
      choices.all.push_back(std::move(choice));
    }
  }
  return choices;
}

std::shared_ptr<const SpreadBounds::Choices> SpreadBounds::choices(const Spread& spread, const Scenario& example,
                                                                   bool overlap) {
  const auto key = space_.work_of(spread) + (overlap ? " overlap" : "");
  if (auto known = choices_.find(key)) return known;
  return choices_.keep(key, std::make_shared<const Choices>(make(example, overlap)));
}

SpreadBounds::Kernels SpreadBounds::make(const Spread& spread, const Scenario& example, bool overlap) {
  Kernels made;
  made.floor = options_.spread_floor(Space::without_work(example));
  const auto as_it_is = made.floor->least();
  made.bare = cost(as_it_is, objective_);
  for (const auto& rank : as_it_is.ranks)
    made.of_state = std::max(made.of_state, rank.walk.peak_reserved + rank.outside_allocator + as_it_is.memory_margin -
                                                as_it_is.memory_limit);
  if (made.of_state > Bytes(0)) return made;
  made.choices = choices(spread, example, overlap);
  for (const Choice& choice : made.choices->all)
    made.choice.push_back(choice.free ? made.bare
                                      : std::max(made.bare, cost(made.floor->least(*choice.timed), objective_)));
  return made;
}

/// By the first of its structures that can be built, whoever asks; nothing: none can.
std::shared_ptr<const SpreadBounds::Kernels> SpreadBounds::kernels(const Spread& spread, bool overlap) {
  const auto key = space_.name_of_spread(spread.chosen) + (overlap ? " overlap" : "");
  auto known = kernels_.find(key);
  if (known) return known;
  space_.example(spread, overlap, [&](const Scenario& example) {
    try {
      known = kernels_.keep(key, std::make_shared<const Kernels>(make(spread, example, overlap)));
      return true;
    } catch (const UsageError&) {
      return false;  // another one says as much
    }
  });
  return known;
}

std::optional<double> SpreadBounds::with_copies(const predict::SpreadFloor& floor, const predict::Split& split,
                                                double time, const Replay& all, const Replay& moved) const {
  if (floor.lacking(split, all) <= Bytes(0)) return time;
  const auto copies = floor.moving(split, all, moved);
  if (!copies) return std::nullopt;
  return std::max(time, cost(*copies, objective_));
}

SpreadBound SpreadBounds::bound(const Kernels& kernels, const std::vector<predict::Split>& splits) const {
  if (kernels.of_state > Bytes(0)) return {kernels.bare, kernels.of_state, true};
  const auto& floor = *kernels.floor;
  const Choices& choices = *kernels.choices;
  constexpr double none = std::numeric_limits<double>::max();
  Bytes lacking(INT64_MAX);
  double least = none;
  const auto with = [&](const predict::Split& split, double time, const Replay& all, const Replay& moved) {
    const auto lacks = floor.lacking(split, moved);
    lacking = std::min(lacking, lacks);
    if (lacks > Bytes(0)) return none;
    return with_copies(floor, split, time, all, moved).value_or(none);
  };
  for (std::size_t i = 0; i < choices.all.size() && least > kernels.bare; ++i) {
    const Choice& choice = choices.all[i];
    const double time = kernels.choice[i];
    if (choice.free) {
      least = kernels.bare, lacking = Bytes(0);
    } else if (choice.kind == Choice::Kind::modules || choice.kind == Choice::Kind::groups) {
      const bool modules = choice.kind == Choice::Kind::modules;
      const Replay all = modules ? Replay{choice.timed.get()} : Replay{choices.bare.get(), choice.timed.get(), 0, true},
                   moved = modules ? Replay{choice.kept.get()}
                                   : Replay{choices.bare_kept.get(), choice.kept.get(), 0, true};
      for (const auto& split : splits)
        if (time < least) least = std::min(least, with(split, time, all, moved));
    } else {
      for (const auto& split : splits) {
        const bool any = choice.kind == Choice::Kind::any_block;
        const int first = any ? 1 : choice.block, last = any ? longest_chunk(split) : choice.block;
        for (int block = first; block <= last; ++block) {
          const Replay moved{choices.bare_kept.get(), choice.kept.get(), block, false};
          if (floor.lacking(split, moved) > Bytes(0)) {
            lacking = std::min(lacking, floor.lacking(split, moved));
            continue;
          }
          const auto part = first_of_chunks(split, choice.timed->kept.size(), block);
          const double work = std::max(kernels.bare, cost(floor.least(*choice.timed, part), objective_));
          if (work >= least) break;  // more of it costs no less
          least =
              std::min(least, with(split, work, Replay{choices.bare.get(), choice.timed.get(), block, false}, moved));
        }
      }
    }
  }
  if (least < none) return {least, Bytes(0), true};
  return {kernels.bare, std::max(lacking, Bytes(1)), true};
}

SpreadBound SpreadBounds::bound(const Spread& spread, const Kernels& known, bool overlap, double enough) const {
  if (known.of_state > Bytes(0)) return {known.bare, known.of_state, true};
  if (known.bare >= enough) return {known.bare, Bytes(0), true};
  std::vector<predict::Split> splits;
  for (const Scenario& structure : space_.splits(spread, overlap)) {
    try {
      splits.push_back(options_.split(Space::without_work(structure)));
    } catch (const UsageError&) {
      // nor has it candidates
    }
  }
  return bound(known, splits);
}

SpreadBound SpreadBounds::of_structure(const Spread& spread, const Structure& structure) {
  const auto known = kernels(spread, structure.partial.settings.overlap_moe_expert_parallel_comm);
  if (!known) return {};
  try {
    return bound(*known, {options_.split(Space::without_work(structure.partial))});
  } catch (const UsageError&) {
    return {};  // its candidates say why
  }
}

SpreadBound SpreadBounds::of_offload(const Spread& spread, const Structure& structure, const Scenario& without) {
  const bool overlap = without.settings.overlap_moe_expert_parallel_comm;
  if (is_full(without)) return {};  // beside it nothing is moved
  const auto known = kernels(spread, overlap);
  if (!known || known->of_state > Bytes(0)) return {};
  try {
    auto key = space_.name_of_spread(spread.chosen) + (overlap ? " overlap" : "");
    for (const auto& module : without.settings.recompute_modules) key += " " + module;
    auto layers = moved_.find(key);
    if (!layers) {
      const auto timed = options_.layers(without);
      layers = moved_.keep(key, std::make_shared<const Moved>(timed, kept(without, timed)));
    }
    const auto split = options_.split(Space::without_work(structure.partial));
    const Replay all{layers->first.get()}, moved{layers->second.get()};
    const auto lacking = known->floor->lacking(split, moved);
    const auto copies = with_copies(*known->floor, split, known->bare, all, moved);
    if (lacking > Bytes(0) || !copies) return {known->bare, std::max(lacking, Bytes(1)), true};
    return {*copies, Bytes(0), true};
  } catch (const UsageError&) {
    return {};  // its candidates say why
  }
}

SpreadBound SpreadBounds::operator()(const Spread& spread, double enough) {
  SpreadBound all;
  for (const bool overlap : {false, true}) {
    const auto known = kernels(spread, overlap);
    if (!known) continue;
    const auto one = bound(spread, *known, overlap, enough);
    if (!all.known) {
      all = one;
      continue;
    }
    const bool fits = one.lacking <= Bytes(0), fitted = all.lacking <= Bytes(0);
    if (fits == fitted) all.cost = std::min(all.cost, one.cost);
    if (fits && !fitted) all.cost = one.cost;
    all.lacking = std::min(all.lacking, one.lacking);
  }
  return all;
}

}  // namespace pipewright::plan
