// A hunt for points that the search should have found: random legal points of what a scenario leaves open, by the
// estimate; the best of them by the exact engine. None may beat a best by more than the stated gap, nor may
// what is shown beside it. And what opens more finds nothing worse.
//
// PIPEWRIGHT_LONG=1 hunts with 500 points a case, and over scenarios that come with the program, too;
// PIPEWRIGHT_HUNT=N with N.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <stop_token>
#include <tuple>

#include "../../src/plan/rules.hpp"
#include "../../src/plan/search_dimensions.hpp"
#include "../../src/plan/space.hpp"
#include "../draws.hpp"
#include "bases.hpp"
#include "kinds.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/split_floor.hpp"
#include "rule_rows.hpp"

namespace hunt_test {

using namespace pipewright;

namespace {

/// Steps of two predictions that differ by less are ties (src/plan/candidates.hpp).
constexpr double tie = 0.005;

std::size_t points() {
  constexpr std::size_t long_form = 500;
  const char* wanted = std::getenv("PIPEWRIGHT_HUNT");
  if (wanted != nullptr) return static_cast<std::size_t>(std::atoi(wanted));
  return std::getenv("PIPEWRIGHT_LONG") != nullptr ? long_form : 0;
}

const profile::Profiles& profiles() {
  static const profile::Profiles all({profile::load(SOURCE_ROOT "/profiles/h100-sxm.json", {"test", 0})});
  return all;
}

plan::Options real() {
  plan::Options o;
  o.predict = [](const scenario::Scenario& s) { return predict::predict(s, profiles()); };
  o.repredict_reserved = [](const scenario::Scenario& s, const predict::Prediction& same) {
    return predict::predict_memory(s, profiles(), same);
  };
  o.floor = [](const scenario::Scenario& s) { return predict::floor(s, profiles()); };
  o.fits_by_floor = [](const scenario::Scenario& s, const std::vector<Bytes>& state) {
    return predict::fits_by_floor(s, profiles(), state);
  };
  o.layers = [](const scenario::Scenario& s) { return predict::LayersDraft(s, profiles()); };
  o.spread_floor = [](const scenario::Scenario& s) { return std::make_shared<predict::SpreadFloor>(s, profiles()); };
  o.split = [splits = std::make_shared<predict::Splits>(profiles())](const scenario::Scenario& s) {
    return splits->of(s);
  };
  o.least_memory = [](const scenario::Scenario& s) { return predict::LeastMemory(s, profiles()); };
  o.estimate = [](const scenario::Scenario& s) { return predict::estimate(s, profiles()); };
  o.glance = [](const scenario::Scenario& s) { return predict::glance(s, profiles()); };
  o.floor_of_any_split = [](const scenario::Scenario& s, bool any_size) {
    return predict::floor_of_any_split(s, profiles(), any_size);
  };
  o.scout = [](const scenario::Scenario& s, predict::Depth depth, predict::Prediction& into) {
    predict::scout_memory(s, profiles(), depth, into);
  };
  o.probability = [](const predict::Prediction& p) { return predict::probability_to_fit(p, profiles()); };
  o.threads = 2;
  o.top = 3;
  return o;
}

/// A value of every dimension at random; none where a rule refuses them together.
std::optional<scenario::Scenario> drawn(const scenario::Scenario& s, const std::vector<plan::Dimension>& dimensions,
                                        std::mt19937& random) {
  plan::LeftOut ignored;
  scenario::Scenario point = s;
  for (const auto& dimension : dimensions) {
    const auto values = dimension.values(point, ignored);
    if (!values.empty()) plan::apply(values[random() % values.size()], point);
  }
  point = plan::with_required_environment(point);
  for (const auto& finding : plan::check(point))
    if (finding.severity == plan::Severity::violation) return std::nullopt;
  try {
    scenario::check(point);
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return point;
}

void hunt(const scenario::Scenario& s, std::size_t wanted, unsigned seed) {
  CAPTURE(s.name);
  const auto plan = plan::search(s, real());
  const auto& c = plan.searched;
  CHECK(c.candidates == c.illegal + c.pruned + c.by_memory + c.by_time + c.not_modelled + c.undecided + c.predicted);
  if (plan.best)
    CHECK(plan.best->prediction.fits);
  else
    CHECK(c.by_time == 0);  // slower than what?
  // Else what is faster? What is left may be a tie faster than the fastest, and the best a tie slower.
  if (plan.best && c.undecided == 0) CHECK(c.gap <= 2 * tie);
  for (const auto& point : plan.pareto) {
    auto same = s;
    for (const auto& [name, value] : point.settings) scenario::set(same, name + "=" + value);
    for (const auto& [name, value] : point.environment) scenario::set_env(same, name + "=" + value);
    INFO(point.label);
    const auto exact = predict::predict(same, profiles());
    CHECK(point.peak ==
          std::ranges::max(exact.ranks, {}, [](const auto& r) { return r.walk.peak_allocated; }).walk.peak_allocated);
  }
  for (const auto& other : plan.alternatives) {
    INFO(other.label);
    if (other.prediction.fits)
      CHECK(static_cast<double>(other.prediction.step_ns) >=
            static_cast<double>(plan.best->prediction.step_ns) * (1 - c.gap) - 1);
  }
  std::mt19937 random(seed);
  const auto dimensions = plan::dimensions(s);
  std::vector<std::pair<std::int64_t, scenario::Scenario>> found;
  for (std::size_t tries = 0; tries < 40 * wanted && found.size() < wanted; ++tries) {
    const auto point = drawn(s, dimensions, random);
    if (!point) continue;
    try {
      found.emplace_back(predict::estimate(*point, profiles()).step_ns, *point);
    } catch (const UsageError&) {
      // not modelled
    }
  }
  std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
  const std::size_t exactly = std::max<std::size_t>(3, wanted / 100);
  std::size_t looked = 0;
  for (const auto& [estimate, point] : found) {
    if (looked == exactly) break;
    const auto floor = predict::floor(point, profiles());
    CHECK(floor.step_ns <= static_cast<std::int64_t>(1.04 * static_cast<double>(estimate)));
    if (!floor.fits) continue;
    ++looked;
    const auto exact = predict::predict(point, profiles());
    CHECK(floor.step_ns <= exact.step_ns);
    if (!exact.fits) continue;
    INFO(scenario::write(point));
    REQUIRE(plan.best);  // else "nothing fits" was false
    const auto best = static_cast<double>(plan.best->prediction.step_ns);
    CHECK(static_cast<double>(exact.step_ns) >= best * (1 - c.gap) - 1);  // a gap is meant as it is printed
  }
}

scenario::Scenario opened(scenario::Scenario s, const std::vector<std::string>& names) {
  return plan::opened(std::move(s), names);
}

/// Small enough for minutes, large enough that memory matters under `limit`.
scenario::Scenario small(const char* base, const char* limit) {
  auto s = test::scenario(base, "global_batch_size=32");
  s.name = base;
  scenario::set(s, std::string("search.memory_limit=") + limit);
  return s;
}

/// Two searches of one space from different given points: neither best beats the other by more than was left open.
void agree(const plan::Plan& first, const plan::Plan& other) {
  REQUIRE(first.best.has_value() == other.best.has_value());
  if (!first.best) return;
  const auto of_first = static_cast<double>(first.best->prediction.step_ns);
  const auto of_other = static_cast<double>(other.best->prediction.step_ns);
  CHECK(of_other * (1 - other.searched.gap) <= of_first + 1);
  CHECK(of_first * (1 - first.searched.gap) <= of_other + 1);
}

/// Stops a search after so many looks, counted from where everything has a bound.
struct StopAfter {
  StopAfter(std::int64_t looks, plan::Options& options) : left(looks) {
    options.stop = source.get_token();
    options.progress = [this](const plan::Progress& p) {
      const std::string phase = p.phase;
      bounded = bounded || (phase != "bounding" && phase != "predicting the given");
      if (bounded && --left == 0) source.request_stop();
    };
  }
  std::atomic<std::int64_t> left;
  std::stop_source source;
  bool bounded = false;
};

}  // namespace

TEST_CASE("no random legal point beats a best by more than its gap") {
  const auto wanted = std::max<std::size_t>(points(), 40);
  hunt(opened(small("dense", "24GiB"), {"recompute", "pipeline", "layout", "allocator"}), wanted, 1);
  if (test::few()) return;
  hunt(opened(small("dense", "18GiB"), {"parallelism", "microbatch", "recompute", "allocator"}), wanted, 2);
  hunt(opened(small("moe", "40GiB"), {"recompute", "pipeline", "allocator"}), wanted, 3);
  hunt(opened(small("dense", "14GiB"), {"recompute", "offload", "allocator"}), wanted, 6);
  hunt(opened(small("single", "26GiB"), {"recompute", "offload", "allocator"}), wanted, 9);
  hunt(opened(small("moe", "36GiB"), {"recompute", "wgrad_delay", "pipeline"}), wanted, 7);
  if (points() == 0) return;
  hunt(opened(small("tensor", "20GiB"), {"parallelism", "recompute", "offload"}), wanted, 8);
  hunt(opened(small("moe", "40GiB"), {"all"}), wanted, 4);
  for (const char* file : {"llama3-8b-pretrain-8xh100", "llama3-70b-sft-32xh100", "mixtral-8x7b-pretrain-32xh100",
                           "qwen3-30b-a3b-pretrain-16xh100", "llama3-70b-pretrain-64xh100"})
    hunt(opened(scenario::read(std::string(SOURCE_ROOT "/scenarios/") + file + ".yaml"),
                {"parallelism", "microbatch", "recompute", "allocator"}),
         wanted, 5);
}

TEST_CASE("opening more never makes the best worse") {
  const std::vector<std::string> names = {"recompute", "pipeline", "layout", "allocator", "parallelism", "microbatch"};
  std::mt19937 random(7);
  const std::size_t rounds = points() > 0 ? 12 : test::draws(2);
  for (std::size_t round = 0; round < rounds; ++round) {
    // A subset, and the same with more.
    std::vector<std::string> some, more;
    for (const auto& name : names) {
      const auto draw = random() % 3;
      if (draw == 0) some.push_back(name);
      if (draw <= 1) more.push_back(name);
    }
    if (some.empty()) some = {"recompute"}, more.emplace_back("recompute");
    const auto base = small(round % 2 == 0 ? "dense" : "tensor", round % 3 == 0 ? "22GiB" : "30GiB");
    const auto less = plan::search(opened(base, some), real()), all = plan::search(opened(base, more), real());
    CAPTURE(round);
    if (!less.best) continue;
    REQUIRE(all.best);
    CHECK(static_cast<double>(all.best->prediction.step_ns) * (1 - all.searched.gap) <=
          static_cast<double>(less.best->prediction.step_ns) + 1);
  }
}

TEST_CASE("which point of what is open is given decides nothing but ties") {
  std::mt19937 random(11);
  const std::vector<std::string> offload = {"recompute", "offload", "allocator"};
  std::size_t nth = 0;
  for (const auto& [base, memory, open] :
       {std::tuple("single", "22GiB", offload), std::tuple("single", "26GiB", offload),
        std::tuple("dense", "14GiB", std::vector<std::string>{"recompute", "offload", "pipeline"}),
        std::tuple("moe", "36GiB", std::vector<std::string>{"recompute", "wgrad_delay", "pipeline"})}) {
    if (!test::taken(nth++)) continue;
    CAPTURE(base);
    CAPTURE(memory);
    const auto s = opened(small(base, memory), open);
    const auto first = plan::search(s, real());
    std::vector<scenario::Scenario> given;
    for (const char* change : {"cpu_offloading=true; cpu_offloading_num_layers=3",
                               "fine_grained_activation_offloading=true; offload_modules=[core_attn]",
                               "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1"}) {
      auto changed = s;
      test::change(changed, change);
      if (std::string(base) == "single") given.push_back(plan::with_required_environment(changed));
    }
    const std::size_t wanted = points() > 0 ? 12 : test::draws(4);
    const auto dimensions = plan::dimensions(s);
    for (std::size_t tries = 0; tries < 200 && given.size() < wanted; ++tries)
      if (auto point = drawn(s, dimensions, random)) given.push_back(std::move(*point));
    for (const auto& point : given) {
      INFO(scenario::write(point));
      const auto other = plan::search(point, real());
      agree(first, other);
    }
  }
}

TEST_CASE("whenever a search is stopped, nothing known of its space beats its best by more than its gap") {
  std::mt19937 random(13);
  const std::vector<std::vector<std::string>> spaces = {{"recompute", "offload"},
                                                        {"recompute", "offload", "allocator"},
                                                        {"recompute", "wgrad_delay", "pipeline", "offload"},
                                                        {"parallelism", "recompute", "offload", "wgrad_delay"},
                                                        {"parallelism", "microbatch", "recompute"}};
  const unsigned rounds = points() > 0 ? 40 : test::draws(6);
  for (unsigned round = 0; round < rounds; ++round) {
    const auto& open = spaces[round % spaces.size()];
    const auto* const base = std::array{"dense", "moe", "moe", "single", "tensor"}[random() % 5];
    auto s = opened(small(base, "device"), open);
    // From what hardly anything fits in to what everything does.
    const auto none = predict::predict(s, profiles());
    Bytes most;
    for (const auto& rank : none.ranks) most = std::max(most, rank.walk.peak_reserved + rank.outside_allocator);
    const double share = 0.7 + 0.35 * static_cast<double>(random() % 100) / 100;
    const auto limit = std::to_string(static_cast<std::int64_t>(share * static_cast<double>(most.value)));
    scenario::set(s, "search.memory_limit=" + limit);
    CAPTURE(round);
    CAPTURE(base);
    CAPTURE(limit);
    std::vector<plan::Plan> plans;
    const auto stopped_after = [&](std::int64_t looks) {
      auto o = real();
      o.has_baseline = random() % 2 == 0;
      StopAfter stop(looks, o);
      plans.push_back(plan::search(s, o));
      const auto& c = plans.back().searched;
      CHECK(c.candidates ==
            c.illegal + c.pruned + c.by_memory + c.by_time + c.not_modelled + c.undecided + c.predicted);
      if (plans.back().best && stop.bounded) CHECK(c.gap < 1);  // whatever is left has a bound
    };
    stopped_after(INT64_MAX);
    const auto looks = plans.front().searched.bounded + plans.front().searched.estimated;
    for (int stop = 0; stop < 5; ++stop)
      stopped_after(1 + static_cast<std::int64_t>(random()) % std::max<std::int64_t>(2, looks));
    double fastest = std::numeric_limits<double>::max();
    for (const auto& plan : plans)
      if (plan.best) fastest = std::min(fastest, static_cast<double>(plan.best->prediction.step_ns));
    for (const auto& plan : plans) {
      if (!plan.best) continue;
      CAPTURE(plan.searched.interrupted);
      CAPTURE(plan.searched.gap);
      CHECK(fastest >= static_cast<double>(plan.best->prediction.step_ns) * (1 - plan.searched.gap) - 1);
    }
  }
}

TEST_CASE(
    "of a space that is predicted whole nothing that fits beats a best by more than its gap, whatever the limit") {
  std::mt19937 random(17);
  std::vector<const char*> bases = {"dense", "moe"};
  bases.resize(test::draws(2));
  if (points() > 0) bases.insert(bases.end(), {"tensor", "single"});
  for (const char* base : bases) {
    CAPTURE(base);
    auto s = opened(small(base, "device"), {"recompute", "offload"});
    scenario::set(s, "global_batch_size=16");
    s.search.memory_margin = scenario::Margin{};
    s.search.memory_limit = Bytes(std::int64_t{1} << 50);
    struct Known {
      Bytes needed;
      double step;
    };
    std::vector<Known> all;
    {
      const auto dimensions = plan::dimensions(s);
      plan::LeftOut ignored;
      plan::Space space(s, dimensions, ignored);
      for (const auto& structure : space.structures())
        for (const auto& trial : space.candidates(structure)) {
          try {
            const auto p = predict::predict(trial.candidate.scenario, profiles());
            Bytes needed;
            for (const auto& rank : p.ranks)
              needed = std::max(needed, rank.walk.most_reserved() + rank.outside_allocator);
            all.push_back({needed, static_cast<double>(p.step_ns)});
          } catch (const UsageError&) {
            // not modelled
          }
        }
    }
    REQUIRE(all.size() > 50);
    for (unsigned draw = 0; draw < (points() > 0 ? 40 : test::draws(4)); ++draw) {
      // Just enough for one of them: with a byte less another would be the best.
      s.search.memory_limit = all[random() % all.size()].needed;
      CAPTURE(s.search.memory_limit->value);
      auto o = real();
      o.has_baseline = draw % 2 == 0;
      const auto plan = plan::search(s, o);
      REQUIRE(plan.best);
      double fastest = std::numeric_limits<double>::max();
      for (const auto& one : all)
        if (one.needed <= *s.search.memory_limit) fastest = std::min(fastest, one.step);
      const auto best = static_cast<double>(plan.best->prediction.step_ns);
      CAPTURE(best);
      CHECK(fastest >= best * (1 - plan.searched.gap) - 1);
      if (plan.searched.proved_optimal) CHECK(fastest >= best * (1 - 2 * tie));
    }
  }
}

TEST_CASE("what a given that fits recomputes bounds nothing but what does more than it") {
  const std::vector<std::string> open = {"recompute"};
  std::size_t nth = 0;
  for (const char* base : {"single", "tensor", "dense"}) {
    const auto none = predict::predict(small(base, "device"), profiles());
    Bytes most;
    for (const auto& rank : none.ranks) most = std::max(most, rank.walk.peak_reserved + rank.outside_allocator);
    for (const double share : {0.8, 0.9, 0.96, 0.99}) {
      if (!test::taken(nth++)) continue;
      const auto limit = std::to_string(static_cast<std::int64_t>(share * static_cast<double>(most.value)));
      CAPTURE(base);
      CAPTURE(limit);
      const auto s = opened(small(base, limit.c_str()), open);
      const auto first = plan::search(s, real());
      for (const char* change : {"recompute_granularity=selective; recompute_modules=[mlp, core_attn]",
                                 "recompute_granularity=selective; recompute_modules=[core_attn, mlp]",
                                 "recompute_granularity=selective; recompute_modules=[mlp]",
                                 "recompute_granularity=full; recompute_method=block; recompute_num_layers=2",
                                 "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1"}) {
        CAPTURE(change);
        auto point = s;
        test::change(point, change);
        const auto other = plan::search(point, real());
        agree(first, other);
      }
    }
  }
}

TEST_CASE(
    "small spaces are decided to the end: what does not fit is looked into once, also where it is shown beside the "
    "best") {
  const std::vector<std::string> names = {"recompute", "offload", "wgrad_delay", "pipeline", "layout", "allocator"};
  auto whole_layers = scenario::read(SOURCE_ROOT "/tests/measured/w_off4.yaml");
  for (const char* limit : {"27GiB", "29GiB", "34GiB"}) {
    scenario::set(whole_layers, std::string("search.memory_limit=") + limit);
    for (const auto& s :
         {opened(whole_layers, names), opened(small("single", limit), names), opened(small("dense", limit), names)}) {
      CAPTURE(s.name);
      CAPTURE(limit);
      const auto plan = plan::search(s, real());
      CHECK(plan.searched.undecided == 0);
      CHECK(plan.searched.gap <= 2 * tie);
    }
  }
}

TEST_CASE("opening the rest brings no more than was said, also where parallelism is open") {
  std::size_t nth = 0;
  for (const auto& [base, memory, open] :
       {std::tuple("dense", "18GiB", "parallelism"), std::tuple("moe", "36GiB", "parallelism"),
        std::tuple("dense", "18GiB", "microbatch"), std::tuple("dense", "22GiB", "allocator")}) {
    if (!test::taken(nth++)) continue;
    CAPTURE(base);
    CAPTURE(open);
    const auto s = small(base, memory);
    const auto less = plan::search(opened(s, {open}), real());
    const auto all = plan::search(
        opened(s, {open, "recompute", "offload", "wgrad_delay", "pipeline", "layout", "allocator"}), real());
    if (!less.best) continue;
    REQUIRE(all.best);
    REQUIRE(less.searched.rest);
    CHECK(static_cast<double>(all.best->prediction.step_ns) >=
          static_cast<double>(less.best->prediction.step_ns) * (1 - *less.searched.rest) - 1);
  }
}

TEST_CASE("where nothing fits, what comes nearest breaks no rule; what a rule refuses all of is not called too large") {
  int refused = 0, too_large = 0;
  std::size_t nth = 0;
  for (const test::RuleRow& row : test::rule_rows) {
    if (!test::taken(nth++)) continue;
    auto s = test::scenario(row.base, row.fires);
    if (std::ranges::none_of(plan::check(s), [](const auto& f) { return f.severity == plan::Severity::violation; }))
      continue;
    CAPTURE(row.rule);
    s = opened(s, {"parallelism", "allocator"});
    s.search.memory_limit = Bytes(std::int64_t{1} << 30);
    plan::LeftOut ignored;
    try {
      const auto dimensions = plan::dimensions(s);
      plan::Space space(s, dimensions, ignored);
      const auto legal = space.structures();
      const auto plan = plan::search(s, real());
      CHECK_FALSE(plan.best);
      if (legal.empty()) {
        ++refused;
        CHECK_FALSE(plan.closest);
        CHECK(plan.searched.by_memory == 0);
      } else if (plan.closest && plan.closest->label != "the scenario as given") {
        ++too_large;
        const auto& nearest = plan.closest->label;
        CAPTURE(nearest);
        CHECK(std::ranges::any_of(legal, [&](const plan::Structure& structure) {
          return structure.label.starts_with(nearest) || nearest.starts_with(structure.label);
        }));
      }
    } catch (const UsageError&) {  // nothing can be predicted at all
    }
  }
  CHECK(refused > 0);
  CHECK(too_large > 0);
}

TEST_CASE("where the model refuses every candidate, none is called illegal or slower than another") {
  for (const char* base : {"dense", "moe"}) {
    CAPTURE(base);
    auto s = opened(small(base, "30GiB"), {"recompute", "offload", "wgrad_delay", "pipeline", "allocator"});
    s.settings.bf16 = false;           // fp32
    s.settings.cpu_offloading = true;  // beside a pipeline: the given itself is not legal
    s.settings.cpu_offloading_num_layers = 1;
    const auto plan = plan::search(s, real());
    CHECK_FALSE(plan.best);
    CHECK(plan.searched.not_modelled > 0);
    CHECK(plan.searched.by_time == 0);
    CHECK(plan.searched.by_memory == 0);
    CHECK(std::ranges::any_of(
        plan.why, [](const std::string& why) { return why.starts_with("no candidate that is legal is modelled"); }));
  }
}

TEST_CASE("of every kind of model: whatever is open, given and stopped, no best is beaten by more than its gap") {
  // Two of the usual found faults: what does more than what a stopped search simulated last was dropped (289); larger
  // groups of full recompute were taken to be no faster than smaller ones (323). PIPEWRIGHT_KINDS=N draws N spaces from
  // the seed PIPEWRIGHT_SEED on.
  std::vector<unsigned> seeds = {289, 323};
  const char* from = std::getenv("PIPEWRIGHT_SEED");
  const unsigned first = from == nullptr ? 0 : static_cast<unsigned>(std::atoi(from));
  const unsigned more_seeds = test::draws(points() > 0 ? 3 * std::size(test::kinds) : 2, "PIPEWRIGHT_KINDS");
  if (test::few()) seeds = {2, 3};  // small spaces of other kinds
  if (from != nullptr) seeds.clear();
  for (unsigned seed = first; seed < first + more_seeds; ++seed) seeds.push_back(seed);
  unsigned searched = 0;
  for (const unsigned round : seeds) {
    std::mt19937 random(round);
    const auto& kind = test::kinds[round % test::kinds.size()];
    auto s = test::drawn_kind(kind, random);
    CAPTURE(round);
    CAPTURE(s.name);
    std::vector<std::string> names = {"recompute"}, more;
    for (const char* name :
         {"offload", "wgrad_delay", "pipeline", "layout", "allocator", "parallelism", "microbatch"}) {
      const auto draw = random() % 4;
      if (draw == 0) names.emplace_back(name);
      if (draw == 1) more.emplace_back(name);
    }
    try {
      plan::opened(s, names);
      const auto none = predict::predict(s, profiles());
      Bytes most;
      for (const auto& rank : none.ranks) most = std::max(most, rank.walk.peak_reserved + rank.outside_allocator);
      const double share = 0.65 + 0.4 * static_cast<double>(random() % 100) / 100;
      s.search.memory_limit = Bytes(std::llround(share * static_cast<double>(most.value)));
    } catch (const UsageError& error) {
      MESSAGE(kind.name, ": ", error.what());
      continue;
    }
    if (*kind.choices != '\0' && random() % 2 == 0) scenario::set(s, std::string("search.") + kind.choices);
    const auto open = opened(s, names);
    std::ranges::copy(names, std::back_inserter(more));
    const auto open_more = opened(s, more);
    INFO(scenario::write(open));
    std::vector<plan::Plan> plans;
    const auto searched_until = [&](const scenario::Scenario& space, std::int64_t looks) {
      auto o = real();
      if (looks != INT64_MAX) o.threads = 1, o.until_stopped = random() % 2 == 0;  // the same wherever it is drawn
      const StopAfter stop(looks, o);
      plans.push_back(plan::search(space, o));
      const auto& c = plans.back().searched;
      CHECK(c.candidates ==
            c.illegal + c.pruned + c.by_memory + c.by_time + c.not_modelled + c.undecided + c.predicted);
      if (plans.back().best) CHECK(plans.back().best->prediction.fits);
      if (!plans.back().best && !c.interrupted) CHECK(c.by_time == 0);
      if (plans.back().best && !c.interrupted && c.undecided == 0) CHECK(c.gap <= 2 * tie);
    };
    searched_until(open, INT64_MAX);
    searched_until(open_more, INT64_MAX);
    const auto looks = plans.front().searched.bounded + plans.front().searched.estimated;
    constexpr std::int64_t quick = 100;
    for (int stop = 0; stop < (looks < quick && !test::few() ? 12 : 3); ++stop)
      searched_until(open, 1 + static_cast<std::int64_t>(random()) % std::max<std::int64_t>(2, looks));
    ++searched;
    const auto known = [&](double step, const plan::Plan& plan) {
      if (!plan.best) {
        CHECK((plan.searched.interrupted || !plan.closest || !plan.closest->proved));  // else "nothing fits" was false
        return;
      }
      CAPTURE(plan.searched.interrupted);
      CAPTURE(plan.searched.gap);
      CAPTURE(plan.best->label);
      CHECK(step >= static_cast<double>(plan.best->prediction.step_ns) * (1 - plan.searched.gap) - 1);
    };
    for (std::size_t of = 0; of < plans.size(); ++of) {
      if (!plans[of].best) continue;
      INFO(plans[of].best->label);
      for (std::size_t n = 0; n < plans.size(); ++n)
        if (n == 1 || of != 1) known(static_cast<double>(plans[of].best->prediction.step_ns), plans[n]);
    }
    // Random points, the best of them by the estimate.
    const auto dimensions = plan::dimensions(open);
    std::vector<std::pair<std::int64_t, scenario::Scenario>> found;
    for (int tries = 0; tries < 400 && found.size() < 40; ++tries) {
      const auto point = drawn(open, dimensions, random);
      if (!point) continue;
      try {
        found.emplace_back(predict::estimate(*point, profiles()).step_ns, *point);
      } catch (const UsageError&) {
        // not modelled
      }
    }
    std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
    int looked = 0;
    for (const auto& [estimate, point] : found) {
      if (looked == 6) break;
      try {
        const auto floor = predict::floor(point, profiles());
        const auto exact = predict::predict(point, profiles());
        INFO(scenario::write(point));
        CHECK(floor.step_ns <= exact.step_ns);
        CHECK((floor.fits || !exact.fits));
        if (!exact.fits) continue;
        ++looked;
        for (const auto& plan : plans) known(static_cast<double>(exact.step_ns), plan);
      } catch (const UsageError&) {
        // not modelled
      }
    }
  }
  CHECK(searched > 0);
}

TEST_CASE("stopped early, a search to which nothing is given has something that fits") {
  // Limits at which what is fastest by its bounds does not fit, and looks after which a search from those found
  // nothing.
  const std::tuple<const char*, const char*, std::int64_t> cases[] = {
      {"moe", "26GiB", 900}, {"moe", "28GiB", 300}, {"moe", "22GiB", 150}, {"moe", "22GiB", 600}};
  std::size_t nth = 0;
  for (const auto& [base, limit, looks] : cases) {
    if (!test::taken(nth++)) continue;
    CAPTURE(base);
    CAPTURE(limit);
    auto o = real();
    o.has_baseline = false;
    o.threads = 1;
    const StopAfter stop(looks, o);
    const auto plan = plan::search(opened(small(base, limit), {"recompute", "offload", "allocator", "pipeline",
                                                               "layout", "wgrad_delay", "parallelism", "microbatch"}),
                                   o);
    REQUIRE(plan.best);
    CHECK(plan.best->prediction.fits);
  }
}

}  // namespace hunt_test
