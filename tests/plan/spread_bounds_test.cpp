// No structure of a spread that fits undercuts the spread's bound, and none fits where the bound says that none does:
// random spreads of random scenarios under random memory, in each random candidates, by the exact engine.
// PIPEWRIGHT_BOUNDS=N draws N scenarios.
#include "../../src/plan/spread_bounds.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <random>

#include "../../src/plan/search_dimensions.hpp"
#include "../draws.hpp"
#include "bases.hpp"
#include "pipewright/scenario/io.hpp"

namespace spread_bounds_test {

using namespace pipewright;

namespace {

const profile::Profiles& profiles() {
  static const profile::Profiles all({profile::load(SOURCE_ROOT "/profiles/h100-sxm.json", {"test", 0})});
  return all;
}

plan::Options bounding() {
  plan::Options o;
  o.layers = [](const scenario::Scenario& s) { return predict::LayersDraft(s, profiles()); };
  o.spread_floor = [](const scenario::Scenario& s) { return std::make_shared<predict::SpreadFloor>(s, profiles()); };
  o.split = [splits = std::make_shared<predict::Splits>(profiles())](const scenario::Scenario& s) {
    return splits->of(s);
  };
  o.least_memory = [](const scenario::Scenario& s) { return predict::LeastMemory(s, profiles()); };
  return o;
}

const char* one_of(std::mt19937& random, std::initializer_list<const char*> values) {
  return values.begin()[random() % values.size()];
}

scenario::Scenario drawn(std::mt19937& random) {
  const char* base = one_of(random, {"dense", "tensor", "moe", "moe"});
  auto s = test::scenario(base, "");
  for (const char* change :
       {one_of(random, {"num_layers=8", "num_layers=12", "num_layers=16"}),
        one_of(random, {"global_batch_size=16", "global_batch_size=32"}),
        one_of(random, {"seq_length=4096", "seq_length=2048"}),
        one_of(random, {"grad_reduce_in_fp32=true", "grad_reduce_in_fp32=false"}),
        one_of(random, {"attention_backend=flash", "attention_backend=unfused"}),
        one_of(random, {"cross_entropy_loss_fusion=true", "cross_entropy_loss_fusion=false"}), "search.pipeline=auto",
        "search.parallelism=auto", "search.microbatch=auto",
        one_of(random, {"search.layout=auto", "search.layout=keep"}),
        one_of(random, {"search.recompute=auto", "search.recompute=auto", "search.recompute=keep"}),
        one_of(random, {"search.offload=keep", "search.offload=auto"}),
        one_of(random, {"search.wgrad_delay=keep", "search.wgrad_delay=auto"})})
    scenario::set(s, change);
  if (random() % 3 == 0)
    for (const char* change : {"fp8=hybrid", "fp8_recipe=tensorwise"}) scenario::set(s, change);
  if (random() % 3 == 0 && s.model.num_moe_experts)
    scenario::set(s, "moe_layer_freq=([0]*1+[1]*" + std::to_string(s.model.num_layers - 1) + ")");
  if (s.search.recompute == "keep") switch (random() % 3) {
      case 0:
        for (const char* change : {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"})
          scenario::set(s, change);
        break;
      case 1:
        for (const char* change : {"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=1"})
          scenario::set(s, change);
        break;
      default:
        for (const char* change : {"recompute_granularity=selective", "recompute_modules=[core_attn]"})
          scenario::set(s, change);
    }
  return s;
}

/// A candidate, and the structure that it is one of.
struct Drawn {
  scenario::Scenario point;
  plan::Structure structure;
};

/// A value of every dimension at random that keeps the spread's; none where a rule refuses them together.
std::optional<Drawn> candidate(const plan::Spread& spread, const std::vector<plan::Dimension>& dimensions,
                               std::size_t structural, std::mt19937& random) {
  plan::LeftOut ignored;
  scenario::Scenario point = spread.partial, structure = point;
  for (std::size_t d = spread.chosen.size(); d < dimensions.size(); ++d) {
    if (d == structural) structure = point;
    const auto values = dimensions[d].values(point, ignored);
    if (!values.empty()) plan::apply(values[random() % values.size()], point);
  }
  if (structural >= dimensions.size()) structure = point;
  point = plan::with_required_environment(point);
  for (const auto& finding : plan::check(point))
    if (finding.severity == plan::Severity::violation) return std::nullopt;
  try {
    scenario::check(point);
    predict::floor(point, profiles());
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return Drawn{point, {structure, spread.chosen, {}, 1}};
}

}  // namespace

TEST_CASE("no candidate that fits undercuts its spread's bound, nor its structure's") {
  const unsigned scenarios = test::draws(40, "PIPEWRIGHT_BOUNDS");
  int compared = 0, recomputing = 0, ruled_out = 0, offloading = 0, besides = 0, candidates_known = 0,
      offloads_known = 0, lacking_whatever = 0, memory_of_others = 0;
  const auto options = bounding();
  for (unsigned seed = 0; seed < scenarios; ++seed) {
    std::mt19937 random(seed);
    auto s = drawn(random);
    CAPTURE(seed);
    const auto dimensions = plan::dimensions(s);
    std::size_t structural = 0;
    const auto spreads_of = [&] {
      plan::LeftOut ignored;
      plan::Space space(s, dimensions, ignored);
      structural = space.structural();
      return space.spreads();
    }();
    if (spreads_of.empty()) continue;
    const auto chosen = random() % spreads_of.size();
    std::vector<Drawn> candidates;
    for (int tries = 0; tries < 24 && candidates.size() < 8; ++tries)
      if (auto one = candidate(spreads_of[chosen], dimensions, structural, random))
        candidates.push_back(std::move(*one));
    if (candidates.empty()) continue;
    // Just enough for one of them, and a byte less: the hardest for a bound.
    auto& hardest = candidates[random() % candidates.size()].point;
    hardest.search.memory_margin = scenario::Margin{};
    hardest.search.memory_limit = Bytes(std::int64_t{1} << 50);
    predict::Prediction p;
    try {
      p = predict::predict(hardest, profiles());
    } catch (const UsageError&) {
      continue;
    }
    Bytes needed;
    for (const auto& rank : p.ranks) needed = std::max(needed, rank.walk.peak_reserved + rank.outside_allocator);
    s.search.memory_margin = scenario::Margin{};
    s.search.memory_limit = needed;
    const auto limited = plan::dimensions(s);
    plan::LeftOut ignored;
    plan::Space space(s, limited, ignored);
    plan::SpreadBounds bounds(space, options, "step_time");
    const auto spreads = space.spreads();
    const auto& spread = spreads.at(chosen);
    // What spreads share was made for another one.
    std::vector<plan::Spread> others;  // of the same pipeline, which have splits of the same shape the likeliest
    std::ranges::copy_if(spreads, std::back_inserter(others), [&](const plan::Spread& other) {
      return other.partial.settings.pipeline_model_parallel_size ==
             spread.partial.settings.pipeline_model_parallel_size;
    });
    std::ranges::shuffle(others, random);
    for (std::size_t i = 0; i < std::min<std::size_t>(others.size(), 12); ++i)
      for (const auto overlap : plan::all_overlaps) {
        plan::OverlapBound of_other;
        for (int step = 0; step < 3; ++step) bounds.raise(others[i], overlap, 1e300, of_other);
        memory_of_others += of_other.lacking > Bytes(0);
      }
    plan::SpreadBounds unshared(space, options, "step_time");
    for (const auto overlap : plan::all_overlaps) {
      plan::OverlapBound one, other;
      while (!one.none && one.lacking <= Bytes(0) && one.by != plan::OverlapBound::By::fit) {
        bounds.raise(spread, overlap, 1e300, one);
        unshared.raise(spread, overlap, 1e300, other);
        CHECK(one.lacking == other.lacking);
        CHECK(one.cost == other.cost);
      }
    }
    // With each overlap on its own, step by step, and the least of them; of what is not below `enough`, only that.
    constexpr double any = std::numeric_limits<double>::max();
    const auto steps = [&](double enough) {
      std::vector<plan::RisingBound> rising(1);
      while (!rising.back().whole()) {
        rising.push_back(rising.back());
        rising.back().raise(bounds, spread, enough);
      }
      return rising;
    };
    const auto whole = steps(any);
    if (std::ranges::all_of(plan::all_overlaps, [&](plan::Overlap o) { return whole.back().of(o).none; })) continue;
    CAPTURE(spread.label);
    for (auto& [one, structure] : candidates) {
      one.search.memory_margin = s.search.memory_margin;
      one.search.memory_limit = s.search.memory_limit;
      predict::Prediction exact;
      try {
        exact = predict::predict(one, profiles());
      } catch (const UsageError&) {
        continue;  // the exact engine alone refuses it
      }
      // What a structure lacks whatever is chosen is no more than what any choice lacks.
      structure.partial.search = s.search;
      const auto lacking = bounds.lacking(spread, structure, one);
      const auto whatever = bounds.of_structure(spread, structure, any);
      if (lacking && whatever.lacking > Bytes(0)) {
        CHECK(whatever.lacking <= *lacking);
        ++lacking_whatever;
      }
      if (!exact.fits) {
        ++ruled_out;
        continue;
      }
      INFO(scenario::write(one));
      CHECK(bounds.of_state(spread) <= Bytes(0));
      auto without = one;
      plan::apply(plan::no_offload(one), without);
      const bool chosen_offload = s.search.offload == "auto" && without.settings != one.settings;
      without = plan::with_required_environment(without);
      const auto beside = chosen_offload ? bounds.of_offload(spread, structure, without) : plan::SpreadBound{};
      const auto choice = chosen_offload ? bounds.of_offload(spread, structure, without, &one) : plan::SpreadBound{};
      besides += beside.known;
      const auto itself = chosen_offload ? plan::SpreadBound{} : bounds.of_candidate(spread, structure, one);
      candidates_known += itself.known;
      CHECK(lacking.value_or(Bytes(0)) <= Bytes(0));
      offloads_known += chosen_offload && lacking;
      const auto step = static_cast<double>(exact.step_ns);
      const double enough = step * (random() % 2 == 0 ? 0.95 : 1.05);
      const auto overlap = plan::overlap_of(one);
      plan::OverlapBound own;
      for (bool last = false; !last; last = own.none || own.by == plan::OverlapBound::By::fit) {
        bounds.raise(spread, overlap, enough, own);
        CHECK(own.lacking <= Bytes(0));
        CHECK(own.cost <= step);
      }
      for (const auto& rising : {whole, steps(enough)})
        for (const auto& at : rising) {
          CHECK(at.lacking() <= Bytes(0));
          CHECK(at.cost() <= step);
          CHECK(at.of(overlap).lacking <= Bytes(0));
          CHECK(at.of(overlap).cost <= step);
        }
      for (const auto& least : {whatever, bounds.of_structure(spread, structure, enough), beside, choice, itself}) {
        CHECK(least.lacking <= Bytes(0));
        CHECK(least.cost <= step);
      }
      ++compared;
      offloading += exact.ranks.front().walk.offloaded.empty() ? 0 : 1;
      recomputing += one.settings.recompute_granularity.has_value();
    }
  }
  CHECK(compared > static_cast<int>(scenarios) / 2);
  if (test::few()) return;  // which miss some
  CHECK(recomputing > 0);
  CHECK(ruled_out > 0);
  CHECK(offloading > 0);
  CHECK(besides > 0);
  CHECK(candidates_known > 0);
  CHECK(offloads_known > 0);
  CHECK(lacking_whatever > 0);
  CHECK(memory_of_others > 0);
}

}  // namespace spread_bounds_test
