// Plans of activation offload, by hand for small programs and as properties of many.
//
// A hook's actions are written as the host meets them: "out 1.0 a0" copies module a of layer 0 of microbatch 1, chunk 0
// to the host, "in" back, "wait" and "wait out" are the compute stream's, "keep" leaves the group on the device.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "pipewright/offload.hpp"

namespace plan_test {

using namespace pipewright;
using model::Step;
using offload::Action;
using Kind = Action::Kind;

namespace {

constexpr std::int64_t group_bytes = 2 << 20;

/// A layer whose modules are offloaded one after another, each with one tensor.
model::Piece layer(const std::vector<std::string>& modules) {
  model::Piece piece;
  piece.name = "layer";
  piece.tensors.resize(4);
  for (std::uint32_t g = 0; g < modules.size(); ++g) {
    piece.tensors.push_back({0, Bytes(group_bytes)});
    const auto tensor = static_cast<std::uint32_t>(piece.tensors.size() - 1);
    piece.groups.push_back({modules[g], {{tensor, tensor, 0, 0, true, model::OffloadGroup::none, {}}}, {}});
    piece.forward.push_back({Step::Kind::offload_begin, g});
    piece.forward.push_back({Step::Kind::offload_commit, g});
  }
  for (auto g = static_cast<std::uint32_t>(modules.size()); g-- > 0;) {
    piece.backward.push_back({Step::Kind::reload_wait, g});
    piece.backward.push_back({Step::Kind::reload_hook, g});
  }
  return piece;
}

struct Case {
  schedule::Config config;
  int layers = 2;
  std::vector<std::string> modules = {"a"};
  scenario::Scenario scenario;
  bool stash = false;  ///< paged stash instead: 256 rows expected in a layer, 300 there

  Case() {
    config.batched = false;
    scenario.settings.fine_grained_activation_offloading = true;
  }
  model::Stages stages() const {
    model::Stages stages;
    stages.pieces.push_back(layer(modules));
    stages.paged_stash = stash;
    if (stash)
      for (auto& group : stages.pieces[0].groups)
        group.pages = {{model::OffloadGroup::Pages::Type::bf16, 1000, 0, 256, 300},
                       {model::OffloadGroup::Pages::Type::bytes, 10, 0, 8, 9}};
    for (int r = 0; r < config.stages; ++r) {
      auto& rank = stages.ranks.emplace_back();
      for (int c = 0; c < config.chunks.value_or(1); ++c) {
        auto& chunk = rank.chunks.emplace_back();
        for (int l = 0; l < layers; ++l) chunk.pieces.push_back(0), chunk.layers.push_back(l);
      }
    }
    return stages;
  }
  offload::Plan plan(int rank = 0) const { return offload::resolve(scenario, stages(), schedule::build(config), rank); }
};

std::string name(Kind kind) {
  switch (kind) {
    case Kind::copy_out:
      return "out ";
    case Kind::keep:
      return "keep ";
    case Kind::wait_out:
      return "wait out ";
    case Kind::release:
      return "release ";
    case Kind::copy_in:
      return "in ";
    case Kind::wait_in:
      return "wait ";
    case Kind::let_go:
      return "let go ";
    case Kind::reload_now:
      return "now ";
    case Kind::pack:
      return "pack ";
    case Kind::unpack:
      return "unpack ";
  }
  return "?";
}

/// What happens in an iteration; releases follow their copies and are left out unless asked for.
std::vector<std::string> words(const offload::Plan& plan, const offload::Iteration& iteration, const Case& of,
                               bool releases = false) {
  std::vector<std::string> result;
  for (const auto& action : iteration.actions) {
    if (action.kind == Kind::release && !releases) continue;
    const auto& unit = plan.units[action.unit];
    const auto module = of.scenario.settings.cpu_offloading ? "" : of.modules[unit.group];
    result.push_back(name(action.kind) + std::to_string(unit.microbatch) + "." + std::to_string(unit.chunk) + " " +
                     module + std::to_string(unit.position));
  }
  return result;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("without a pipeline the last group of every microbatch stays: its backward comes next") {
  Case one;
  one.config.microbatches = 2;
  const auto plan = one.plan();
  CHECK(words(plan, plan.later, one) == Words{"out 0.0 a0", "keep 0.0 a1", "in 0.0 a0", "wait 0.0 a0",  //
                                              "out 1.0 a0", "keep 1.0 a1", "in 1.0 a0", "wait 1.0 a0"});
}

TEST_CASE("the first iteration offloads everything and reloads what it missed on the compute stream") {
  Case one;
  one.config.microbatches = 1;
  const auto plan = one.plan();
  // Nobody has started the reload of the first group that backward needs; the hook then finds a group without copies.
  CHECK(words(plan, plan.first, one) == Words{"out 0.0 a0", "out 0.0 a1", "now 0.0 a1", "wait 0.0 a1", "now 0.0 a0"});
}

TEST_CASE("a pipeline's first stage: kept groups of the first backward chunk give every later reload its lead") {
  Case one;
  one.config.stages = 2;
  one.config.microbatches = 2;
  const auto plan = one.plan(0);                                                                        // F0 F1 B0 B1
  CHECK(words(plan, plan.later, one) == Words{"out 0.0 a0", "keep 0.0 a1", "out 1.0 a0", "out 1.0 a1",  //
                                              "in 0.0 a0", "wait 0.0 a0",
                                              "in 1.0 a1",  // the last hook of B0 reaches into B1
                                              "wait 1.0 a1", "in 1.0 a0", "wait 1.0 a0"});
}

TEST_CASE("paged stash: the first step packs, later ones copy but where a layer's own backward comes next") {
  Case one;
  one.stash = true;
  one.config.stages = 2;
  one.config.microbatches = 2;
  const auto first = one.plan(0);  // F0 F1 B0 B1
  CHECK(words(first, first.first, one) == Words{"pack 0.0 a0", "pack 0.0 a1", "pack 1.0 a0", "pack 1.0 a1",  //
                                                "unpack 0.0 a1", "unpack 0.0 a0", "unpack 1.0 a1", "unpack 1.0 a0"});
  CHECK(words(first, first.later, one, true) ==
        Words{"out 0.0 a0",      "wait out 0.0 a0", "release 0.0 a0",               // at the next layer's experts
              "out 0.0 a1",      "wait out 0.0 a1", "release 0.0 a1",               //
              "out 1.0 a0",      "wait out 1.0 a0", "release 1.0 a0",               //
              "out 1.0 a1",      "in 0.0 a1",                                       // the backward that comes next
              "wait out 1.0 a1", "release 1.0 a1",  "wait 0.0 a1",    "in 0.0 a0",  //
              "wait 0.0 a0",     "in 1.0 a1",       "wait 1.0 a1",    "in 1.0 a0", "wait 1.0 a0"});
  const auto last = one.plan(1);  // F0 B0 F1 B1
  CHECK(words(last, last.later, one) == Words{"out 0.0 a0", "wait out 0.0 a0", "keep 0.0 a1", "in 0.0 a0",
                                              "wait 0.0 a0", "out 1.0 a0", "wait out 1.0 a0", "keep 1.0 a1",
                                              "in 1.0 a0", "wait 1.0 a0"});
}

TEST_CASE("pages of a paged stash hold the most rows at once, times the factor, by whole pages") {
  Case one;
  one.stash = true;
  one.config.stages = 2;
  one.config.microbatches = 3;
  auto& o = one.scenario.settings;
  o.moe_paged_stash_page_size = 100;
  o.moe_paged_stash_buffer_size_factor_cuda = 1.2;
  const auto bytes = [&](std::size_t i) { return one.plan(0).stash_buffers.at(i).bytes.value; };
  // Rank 0 runs F0 F1 B0 F2 B1 B2: two microbatches of two layers live at once, 1024 rows; times 1.2, 13 pages.
  CHECK(bytes(0) == 1300 * 1000);
  CHECK(bytes(1) == 100 * 10);  // 32 rows
  o.moe_paged_stash_buffer_size_factor_cuda = -1;
  CHECK(bytes(0) == 1200 * 1000);  // the rows that came
  o.moe_paged_stash_buffer_size_factor_cpu = 0.5;
  CHECK(one.plan(0).pinned.value == 600 * 1000 + 100 * 10);  // 512 expected rows
}

TEST_CASE("activation_offload_fraction keeps the later groups of every chunk") {
  Case one;
  one.config.stages = 2;
  one.config.microbatches = 2;
  one.layers = 4;
  one.scenario.settings.activation_offload_fraction = 0.5;
  const auto plan = one.plan(0);
  std::map<std::string, int> count;
  for (const auto& word : words(plan, plan.later, one)) ++count[word.substr(0, word.find(' '))];
  CHECK(count["out"] == 4);  // microbatch 0: 3 eligible, int(1.5) = 1 kept; microbatch 1: 4 eligible, 2 kept
  CHECK(count["keep"] == 4);
  CHECK(count["in"] == 4);
  CHECK(count["now"] == 0);
}

TEST_CASE("delta_offload_bytes_across_pp_ranks keeps whole chunks, in the order of backward passes") {
  Case one;
  one.config.stages = 4;
  one.config.microbatches = 4;
  one.layers = 1;
  one.scenario.settings.delta_offload_bytes_across_pp_ranks = group_bytes;
  CHECK(one.plan(0).moved.at(0).kept == 1);
  CHECK(one.plan(0).moved.at(0).bytes.value == 3 * group_bytes);
  CHECK(one.plan(1).moved.at(0).kept == 2);
}

TEST_CASE("a chunk whose first group stays ends in the manager's own assertion when more groups follow") {
  Case one;
  one.config.stages = 4;
  one.config.microbatches = 4;
  one.layers = 4;
  one.scenario.settings.delta_offload_bytes_across_pp_ranks = group_bytes;
  CHECK_NOTHROW(one.plan(0));
  CHECK_THROWS_AS(one.plan(1), UsageError);
}

TEST_CASE("plans are those of Megatron's own manager, run on the same programs") {
  std::ifstream file(OFFLOAD_DATA "/manager.json");
  const auto cases = nlohmann::json::parse(file).at("cases");
  REQUIRE(cases.size() > 100);
  for (const auto& c : cases) {
    CAPTURE(c.dump().substr(0, 120));
    Case one;
    one.config.stages = c.at("p");
    one.config.microbatches = c.at("m");
    if (!c.at("v").is_null()) {
      one.config.chunks = c.at("v").get<int>();
      one.config.overlap_p2p = true;
    }
    one.layers = c.at("layers");
    one.modules.clear();
    for (const char module : c.at("modules").get<std::string>()) one.modules.emplace_back(1, module);
    auto& settings = one.scenario.settings;
    settings.activation_offload_fraction = c.at("fraction");
    settings.delta_offload_bytes_across_pp_ranks = c.at("delta").get<int>() * group_bytes;
    if (!c.at("inflight").is_null())
      settings.fine_grained_offloading_max_inflight_offloads = c.at("inflight").get<int>();
    if (c.contains("refused")) {
      CHECK_THROWS_AS(one.plan(c.at("rank")), UsageError);
      continue;
    }
    const auto plan = one.plan(c.at("rank"));
    CHECK(words(plan, plan.first, one) == c.at("first").get<Words>());
    CHECK(words(plan, plan.later, one) == c.at("later").get<Words>());
  }
}

TEST_CASE("fine_grained_offloading_max_inflight_offloads makes the compute stream wait for older copies of the name") {
  Case one;
  one.config.microbatches = 1;
  one.layers = 4;
  one.scenario.settings.fine_grained_offloading_max_inflight_offloads = 1;
  const auto plan = one.plan();
  CHECK(words(plan, plan.later, one) ==
        Words{"out 0.0 a0", "out 0.0 a1", "wait out 0.0 a0", "out 0.0 a2", "wait out 0.0 a1", "keep 0.0 a3",  //
              "in 0.0 a2", "wait 0.0 a2", "in 0.0 a1", "wait 0.0 a1", "in 0.0 a0", "wait 0.0 a0"});
}

TEST_CASE("whole layers: D2H at the next layer, release spread over the rest, reload ahead of its layer") {
  Case one;
  one.config.microbatches = 1;
  one.layers = 5;
  one.modules = {"layer"};
  one.scenario.model.num_layers = 5;
  one.scenario.settings.fine_grained_activation_offloading = false;
  one.scenario.settings.cpu_offloading = true;
  one.scenario.settings.cpu_offloading_num_layers = 2;
  auto stages = one.stages();
  stages.pieces[0].forward = {{Step::Kind::offload_begin, 0}};
  stages.pieces[0].backward = {{Step::Kind::reload_hook, 0}, {Step::Kind::reload_wait, 0}};
  const auto plan = offload::resolve(one.scenario, stages, schedule::build(one.config), 0);
  CHECK(words(plan, plan.later, one, true) == Words{"out 0.0 0", "out 0.0 1", "wait out 0.0 0", "release 0.0 0",
                                                    "wait out 0.0 1", "release 0.0 1",  // forward
                                                    "in 0.0 1", "in 0.0 0", "wait 0.0 1", "let go 0.0 1", "wait 0.0 0",
                                                    "let go 0.0 0"});
}

TEST_CASE("what moves to the host is back before it is used, once, and the moved bytes are counted") {
  CHECK(rc::check([] {
    Case any;
    any.config.stages = *rc::gen::inRange(1, 5);
    any.layers = *rc::gen::inRange(1, 4);
    any.config.microbatches = any.config.stages * *rc::gen::inRange(1, 4);
    if (any.config.stages > 1 && *rc::gen::arbitrary<bool>()) {
      any.config.chunks = *rc::gen::inRange(2, 4);
      any.config.overlap_p2p = true;
    }
    any.modules = *rc::gen::element(Words{"a"}, Words{"a", "b"}, Words{"a", "b", "c"});
    any.scenario.settings.activation_offload_fraction = *rc::gen::element(1.0, 0.5, 0.0);
    any.scenario.settings.delta_offload_bytes_across_pp_ranks = *rc::gen::element<std::int64_t>(0, group_bytes);
    const int rank = *rc::gen::inRange(0, any.config.stages);
    offload::Plan plan;
    try {
      plan = any.plan(rank);
    } catch (const UsageError&) {
      RC_DISCARD("the manager's own assertion");
    }
    RC_ASSERT(plan.first.hooks() == plan.later.hooks());
    for (const auto* iteration : {&plan.first, &plan.later}) {
      std::set<std::uint32_t> away, copying;
      for (const auto& action : iteration->actions) {
        if (action.kind == Kind::copy_out) RC_ASSERT(away.insert(action.unit).second);
        if (action.kind == Kind::keep) RC_ASSERT(!away.contains(action.unit));
        if (action.kind == Kind::copy_in) RC_ASSERT(away.erase(action.unit) && copying.insert(action.unit).second);
        if (action.kind == Kind::reload_now) RC_ASSERT(away.erase(action.unit) == 1);
        if (action.kind == Kind::wait_in) copying.erase(action.unit);
      }
      RC_ASSERT(away.empty());
      RC_ASSERT(copying.empty());
    }
    std::int64_t moved = 0;
    for (const auto& module : plan.moved) moved += module.bytes.value;
    RC_ASSERT(moved == group_bytes * std::count_if(plan.later.actions.begin(), plan.later.actions.end(),
                                                   [](const Action& a) { return a.kind == Kind::copy_out; }));
  }));
}

}  // namespace plan_test
