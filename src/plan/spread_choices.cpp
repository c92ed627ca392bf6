// Choices of recompute of a parallelism's layers: built, priced and kept as far as bounds ask; see spread_bounds.hpp.
#include <algorithm>
#include <set>
#include <utility>

#include "spread_bounds.hpp"

namespace pipewright::plan {
namespace {

using predict::Layers;

Scenario every_layer_in_full(Scenario s) {
  s.settings.recompute_granularity = "full";
  s.settings.recompute_method = "uniform";
  s.settings.recompute_num_layers = 1;
  s.settings.recompute_modules.clear();
  return with_required_environment(std::move(s));
}

}  // namespace

std::shared_ptr<const Layers> SpreadBounds::unpriced(const Scenario& with) const {
  return options_.layers(with).layers();
}

std::shared_ptr<const Layers> SpreadBounds::priced(const Scenario& with) const {
  auto draft = options_.layers(with);
  draft.price();
  return draft.layers();
}

/// What is kept where offload is searched, too: as if all that may move had; with whole layers moved: nothing.
std::shared_ptr<const Layers> SpreadBounds::kept(const Scenario& with,
                                                 const std::shared_ptr<const Layers>& timed) const {
  if (with.settings.cpu_offloading) return std::make_shared<Layers>(predict::nothing_kept(with));
  if (!space_.searches_offload()) return timed;
  const auto most = space_.most_offloaded(with);
  if (!most) return std::make_shared<Layers>(predict::nothing_kept(with));
  try {
    return std::make_shared<Layers>(predict::least_of(*timed, *unpriced(*most)));
  } catch (const UsageError&) {
    return std::make_shared<Layers>(predict::nothing_kept(with));  // a smaller set may be modelled
  }
}

void SpreadBounds::make(Choices& choices, const Scenario& example, Overlap overlap) const {
  const Scenario none = space_.none_recomputed(example);
  choices.of_bare = none;
  choices.bare = unpriced(none);  // its times are the kernels' own
  choices.bare_kept = kept(none, choices.bare);
  bool in_full = false;
  const auto add = [&](Choice::Kind kind, Scenario with, int block) {
    Choice& choice = choices.all.emplace_back();
    choice.kind = kind, choice.block = block, choice.with = std::move(with);
  };
  for (const Scenario& with : space_.recomputed(example)) {
    if (!is_full(with)) {
      add(Choice::Kind::modules, with, 0);
      const auto modules_of = [](const Scenario& s) {
        return std::set<std::string>(s.settings.recompute_modules.begin(), s.settings.recompute_modules.end());
      };
      const auto modules = modules_of(with);
      for (std::size_t i = 0; i + 1 < choices.all.size(); ++i)
        if (choices.all[i].kind == Choice::Kind::modules &&
            std::ranges::includes(modules, modules_of(choices.all[i].with)))
          choices.all.back().within.push_back(i);
      continue;
    }
    // Expert-parallel overlap and full recompute exclude each other. How many layers may be searched depends on the
    // split: any number of them stands for all.
    const bool any = space_.searches_recompute();
    if (overlap != Overlap::none || (in_full && any)) continue;
    in_full = true;
    const Scenario all = every_layer_in_full(with);
    const bool block = with.settings.recompute_method.value_or("") == "block";
    if (block || any)
      add(any ? Choice::Kind::any_block : Choice::Kind::block, all,
          static_cast<int>(with.settings.recompute_num_layers.value_or(1)));
    if (!block || any) add(Choice::Kind::groups, all, 0);
  }
}

const Layers* SpreadBounds::built(const Choices& choices, const Choice& choice,
                                  const std::function<bool(const Layers&)>& worth_a_price) const {
  std::call_once(choice.built, [&] {
    try {
      if (choice.with.settings == choices.of_bare.settings) {
        choice.as_built = choices.bare;
        return;
      }
      auto draft = options_.layers(choice.with);
      choice.as_built = draft.layers();
      if (worth_a_price(*choice.as_built)) draft.price();
    } catch (const UsageError&) {
      choice.as_built = nullptr;  // with another split it may be modelled
    }
  });
  return choice.as_built.get();
}

const Layers* SpreadBounds::timed(const Choices& choices, const Choice& choice) const {
  const Layers* layers = built(choices, choice, [](const Layers&) { return true; });
  if (layers == nullptr || layers->works || layers == choices.bare.get()) return layers;
  std::call_once(choice.priced, [&] {
    try {
      choice.as_priced = priced(choice.with);
    } catch (const UsageError&) {
      // with another split it may be modelled
    }
  });
  return choice.as_priced.get();
}

const Layers* SpreadBounds::kept(const Choices& choices, const Choice& choice) const {
  std::call_once(choice.moved, [&] {
    const bool bare = choice.as_built == choices.bare;
    choice.as_moved = bare ? choices.bare_kept : kept(choice.with, choice.as_built);
  });
  return choice.as_moved.get();
}

void SpreadBounds::find_least(const Choices& choices) const {
  std::call_once(choices.least_found, [&] {
    std::set<std::size_t> parts;  // of a larger set, which keeps less
    for (const Choice& choice : choices.all) parts.insert(choice.within.begin(), choice.within.end());
    auto least = choices.bare_kept;  // beside which a backward makes least
    for (std::size_t i = 0; i < choices.all.size(); ++i) {
      const Choice& choice = choices.all[i];
      // Layers in full keep no less one by one than one for a whole chunk.
      if (parts.contains(i) || choice.kind == Choice::Kind::any_block) continue;
      const auto to_be_priced = [](const Layers&) { return false; };
      if (choice.kind == Choice::Kind::block || built(choices, choice, to_be_priced) == nullptr) return;
      if (choice.kind == Choice::Kind::groups)
        choices.in_full = kept(choices, choice);
      else
        least = std::make_shared<Layers>(predict::least_of(*least, *kept(choices, choice)));
    }
    choices.least = least;
  });
}

}  // namespace pipewright::plan
