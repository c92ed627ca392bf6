// The search against a predictor whose answers are known: what it enumerates, rejects, prefers and says.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "../../src/plan/space.hpp"
#include "../draws.hpp"
#include "bases.hpp"
#include "pipewright/bounds.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/modules.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/context.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace search_test {

using namespace pipewright;

namespace {

constexpr std::int64_t gibibyte = std::int64_t{1} << 30;
constexpr std::int64_t millisecond = 1'000'000;

bool expandable(const scenario::Scenario& s) {
  return scenario::variable(s, "PYTORCH_CUDA_ALLOC_CONF").find("expandable_segments:True") != std::string::npos;
}

/// Time: 1000 ms of compute, a bubble of (p - 1) / (m v), recompute by module. Memory: 40 GiB plus 2 GiB a chunk, less
/// what recompute frees; the default allocator reserves 8 GiB more than the peak, expandable segments 1 GiB.
predict::Prediction machine(const scenario::Scenario& s, std::int64_t limit = 80 * gibibyte) {
  std::int64_t recompute = 0, freed = 0;
  if (scenario::recomputes(s, scenario::Recompute::core_attn)) recompute += 24, freed -= gibibyte;
  if (scenario::recomputes(s, scenario::Recompute::mlp)) recompute += 160, freed += 6 * gibibyte;
  if (s.settings.recompute_granularity == "full") recompute += 300, freed += 12 * gibibyte;
  const auto chunks = scenario::num_chunks(s);
  const auto bubble = 1000 * (s.settings.pipeline_model_parallel_size - 1) / (16 * chunks);
  predict::Prediction p;
  p.forward_backward_ns = p.step_ns = (1000 + recompute + bubble) * millisecond;
  p.tokens_per_s_per_gpu = 1e12 / static_cast<double>(p.step_ns);
  p.memory_limit = Bytes(limit);
  for (int rank = 0; rank < s.settings.pipeline_model_parallel_size; ++rank) {
    predict::RankPrediction r;
    r.pp_rank = rank;
    r.account.busy = (1000 + recompute) * millisecond;
    r.account.recompute = recompute * millisecond;
    r.account.bubble = bubble * millisecond;
    r.walk.peak_allocated = Bytes((40 - rank) * gibibyte + 2 * gibibyte * chunks - freed);
    r.walk.peak_reserved = r.walk.peak_allocated + Bytes((expandable(s) ? 1 : 8) * gibibyte);
    r.outside_allocator = Bytes(5 * gibibyte);
    r.fits = (r.walk.peak_reserved + r.outside_allocator).value <= limit;
    p.fits = p.fits && r.fits;
    p.ranks.push_back(r);
  }
  return p;
}

plan::Options options(std::int64_t limit = 80 * gibibyte) {
  plan::Options o;
  o.predict = [limit](const scenario::Scenario& s) { return machine(s, limit); };
  o.threads = 2;
  o.top = 1000;
  return o;
}

scenario::Scenario searching(const char* base, const char* open, const char* changes = "") {
  auto s = test::scenario(base, changes);
  std::string_view rest = open;
  while (!rest.empty()) {
    const auto end = rest.find(' ');
    scenario::set(s, "search." + std::string(rest.substr(0, end)) + "=auto");
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return s;
}

std::vector<std::string> labels(const plan::Plan& plan) {
  std::vector<std::string> all;
  if (plan.best) all.push_back(plan.best->label);
  for (const auto& candidate : plan.alternatives) all.push_back(candidate.label);
  return all;
}

/// Every candidate has one fate.
void check_counts(const plan::Searched& s) {
  CHECK(s.candidates == s.illegal + s.pruned + s.by_memory + s.by_time + s.not_modelled + s.undecided + s.predicted);
  CHECK(s.excluded == s.by_memory + s.by_time);
  std::int64_t memory = 0, time = 0;
  for (const auto& bound : s.bounds) memory += bound.memory, time += bound.time;
  CHECK(memory == s.by_memory);
  CHECK(time == s.by_time);
}

bool says(const plan::Plan& plan, std::string_view text) {
  return std::ranges::any_of(plan.why, [&](const std::string& w) { return w.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("recompute: every legal set, every full n; idle and illegal modules once") {
  const auto plan = plan::search(searching("single", "recompute"), options());
  // 8 layers in one chunk: {}, core_attn, mlp, both; uniform 1..8; block 1..7.
  CHECK(plan.searched.candidates == 4 + 8 + 7);
  CHECK(plan.searched.legal == plan.searched.candidates);
  CHECK(plan.searched.proved_optimal);
  REQUIRE(plan.best);
  CHECK(plan.best->label == "no recompute");
  CHECK(plan.alternatives.size() == 18);
  check_counts(plan.searched);
  CHECK(says(plan, "no-effect.layernorm"));
  CHECK(std::ranges::any_of(plan.rejected, [](const auto& r) { return r.rule == "recompute.mla-up-proj-needs-mla"; }));
  CHECK(std::ranges::count(plan.rejected, "recompute.moe-act-needs-grouped-gemm", &plan::Rejected::rule) == 1);
}

TEST_CASE("MoE: the modules of its layers, moe not beside what it contains") {
  auto s = searching("moe", "recompute", "moe_shared_expert_intermediate_size=1024");
  const auto plan = plan::search(s, options());
  const auto all = labels(plan);
  const auto has = [&](const char* label) { return std::ranges::find(all, label) != all.end(); };
  CHECK(has("recompute core_attn, layernorm, moe_act, shared_experts"));
  CHECK(has("recompute moe"));
  CHECK_FALSE(has("recompute moe_act, moe"));
  CHECK_FALSE(has("recompute mlp"));
}

TEST_CASE("graphs of single modules reject full recompute by their rule") {
  const auto plan = plan::search(
      searching("dense", "recompute", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[mlp]"), options());
  CHECK(plan.searched.legal == 4);
  CHECK(std::ranges::count(plan.rejected, "graphs.full-recompute", &plan::Rejected::rule) ==
        plan.searched.candidates - plan.searched.legal);
  CHECK_FALSE(plan.rejected.back().reason.empty());
  const auto groups = plan::rejected_by_reason(plan);
  const auto full = std::ranges::find_if(groups, [](const auto& g) { return g.first.rule == "graphs.full-recompute"; });
  REQUIRE(full != groups.end());
  CHECK(full->second == plan.searched.candidates - plan.searched.legal);
}

TEST_CASE("interleaving: the divisors of a rank's layers, with what hangs on them") {
  const auto plan = plan::search(searching("dense", "pipeline"), options());
  // 2 layers a rank: none, VPP 2, and VPP 2 with N twice the pipeline size.
  CHECK(plan.searched.legal == 3);
  REQUIRE(plan.best);
  CHECK(plan.best->label == "VPP 2");
  REQUIRE(plan.alternatives.size() == 2);
  CHECK(plan.alternatives[0].label == "VPP 2, N 8");
  const auto& plain = plan.alternatives[1].scenario;
  CHECK_FALSE(plain.settings.virtual_pipeline_model_parallel_size);
  CHECK_FALSE(plain.settings.overlap_p2p_comm);
  CHECK(plan.baseline.settings == plan::Assignments{{"virtual_pipeline_model_parallel_size", "2"},
                                                    {"overlap_p2p_comm", "true"},
                                                    {"microbatch_group_size_per_vp_stage", "none"}});
}

TEST_CASE("a hybrid's pipes are moved: virtual stages where Megatron builds them, layers kept in order") {
  const std::string pattern = "M-M-M-M*-M-M-";
  const auto hybrid = [&](const std::string& changes) {
    return searching("dense", "pipeline layout",
                     ("num_layers=13; hybrid_layer_pattern=" + pattern +
                      "; virtual_pipeline_model_parallel_size=none; overlap_p2p_comm=false; num_layers_in_first_"
                      "pipeline_stage=4; " +
                      changes)
                         .c_str());
  };
  const auto segments = [](const plan::Candidate& c) { return scenario::hybrid_segments(c.scenario).size(); };
  const auto plan = plan::search(hybrid("pipeline_model_parallel_size=4"), options());
  REQUIRE(plan.best);
  CHECK(segments(*plan.best) == 12);  // a layer at least in each: three chunks a rank at most
  std::set<std::size_t> seen;
  for (const auto& candidate : plan.alternatives) {
    CHECK(scenario::hybrid_layers(candidate.scenario) == pattern);
    CHECK_FALSE(candidate.scenario.settings.pipeline_model_parallel_layout);
    for (const auto& segment : scenario::hybrid_segments(candidate.scenario)) CHECK_FALSE(segment.empty());
    seen.insert(segments(candidate));
  }
  CHECK(seen == std::set<std::size_t>{1, 4, 8, 12});  // one: as given, by the first stage's layers
  for (const char* older : {"megatron_bridge=0.7.0", "megatron_core=0.16.0"}) {
    CAPTURE(std::string(older));
    const auto few = plan::search(hybrid(std::string("pipeline_model_parallel_size=4; ") + older), options());
    REQUIRE(few.best);
    for (const auto& candidate : few.alternatives) CHECK(segments(candidate) <= (older[9] == 'b' ? 4U : 1U));
  }
}

TEST_CASE("a layer split in two ways to say it is no alternative to itself") {
  const auto plan = plan::search(
      searching("dense", "layout", "num_layers=6; virtual_pipeline_model_parallel_size=none; overlap_p2p_comm=false"),
      options());
  REQUIRE(plan.best);
  CHECK(plan.searched.predicted == 2);  // embedding and loss count as layers; a layout
  CHECK(plan.alternatives.empty());
}

TEST_CASE("ties: memory decides only while it is not sure that both fit") {
  auto o = options();
  std::atomic<int> simulated = 0, repredicted = 0;
  o.predict = [&](const scenario::Scenario& s) { return ++simulated, machine(s); };
  o.repredict_reserved = [&](const scenario::Scenario& s, const predict::Prediction&) {
    return ++repredicted, machine(s);
  };
  const auto plan = plan::search(searching("dense", "recompute allocator"), o);
  REQUIRE(plan.best);
  // Both allocators fit for sure: what is given stays.
  CHECK(plan.best->given);
  CHECK(plan.best->label == "no recompute, default allocator");
  CHECK(says(plan, "nothing is faster than the scenario as given"));
  // Time is simulated once for both allocator settings.
  CHECK(plan.searched.simulated == simulated);
  CHECK(plan.searched.predicted == 2 * plan.searched.simulated);
  // Variants of the allocator are one line.
  CHECK(std::ssize(plan.alternatives) == plan.searched.simulated - 1);
  // The winner against the others, with what is replayed and what is freed.
  CHECK(says(plan, "recompute mlp: +14."));
  CHECK(says(plan, "replays norm, fc1, activation and fc2 of every dense layer: 160.0 ms"));
  CHECK(says(plan, "frees 6.00 GiB on rank 0, which is not needed"));
  CHECK(says(plan, "needs 1.00 GiB more on rank 0"));
  o.probability = [](const predict::Prediction& p) {
    return p.ranks.front().walk.peak_reserved > Bytes(50 * gibibyte) ? 0.8 : 0.98;
  };
  const auto unsure = plan::search(searching("dense", "recompute allocator"), o);
  REQUIRE(unsure.best);
  CHECK(unsure.best->label == "no recompute, expandable segments");
  CHECK(unsure.best->environment == plan::Assignments{{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}});
  CHECK(says(unsure, "fragmentation on rank 0: expandable segments: 45.00 GiB reserved for a peak of 44.00 GiB"));
}

TEST_CASE("ties: fewest changes, then speed; no recompute for memory that nobody needs") {
  auto o = options();
  o.predict = [](const scenario::Scenario& s) {
    auto p = machine(s);
    p.step_ns = 1000 * millisecond;
    if (scenario::num_chunks(s) != 2) p.step_ns -= 3 * millisecond;  // a tie
    if (s.settings.recompute_granularity) p.step_ns += millisecond;
    if (scenario::recomputes(s, scenario::Recompute::core_attn))
      p.step_ns -= 2 * millisecond;  // faster, but a change more
    return p;
  };
  const auto stays = plan::search(searching("dense", "recompute pipeline"), o);
  REQUIRE(stays.best);
  CHECK(stays.best->given);
  o.predict = [&](const scenario::Scenario& s) {
    auto p = machine(s);
    p.step_ns = (scenario::num_chunks(s) == 2 ? 1100 : 1000) * millisecond;
    if (scenario::recomputes(s, scenario::Recompute::core_attn)) p.step_ns -= millisecond;
    return p;
  };
  const auto changed = plan::search(searching("dense", "recompute pipeline"), o);
  REQUIRE(changed.best);
  CHECK(changed.best->label == "no interleaving, no recompute");
}

TEST_CASE("fragmentation decides what fits") {
  const auto plan = plan::search(searching("dense", "allocator"), options(52 * gibibyte));
  REQUIRE(plan.best);
  CHECK(plan.best->label == "expandable segments");
  CHECK(says(plan, "expandable segments is what makes it fit"));
  CHECK_FALSE(plan.baseline.prediction.fits);
  CHECK(says(plan, "does not fit"));
}

TEST_CASE("a slower candidate that fits beats a faster one that does not") {
  const auto plan = plan::search(searching("dense", "recompute"), options(52 * gibibyte));
  REQUIRE(plan.best);
  CHECK(plan.best->label == "recompute mlp");
  CHECK(plan.best->prediction.fits);
  CHECK(std::ranges::any_of(plan.alternatives, [](const auto& c) { return !c.prediction.fits; }));
}

TEST_CASE("nothing fits: no best, and the reason") {
  const auto plan = plan::search(searching("dense", "recompute allocator"), options(10 * gibibyte));
  CHECK_FALSE(plan.best);
  CHECK(plan.searched.by_time == 0);
  CHECK(says(plan, "nothing fits"));
  CHECK_FALSE(plan.alternatives.empty());
}

TEST_CASE("the fewest GPUs are the fewest of all numbers of copies that Megatron takes") {
  for (const int parallel : {1, 4, 8})
    for (const int needed : {1, 3, 5, 12, 20, 24}) {
      auto s = searching("moe", "recompute",
                         "pipeline_model_parallel_size=1; virtual_pipeline_model_parallel_size=none; num_gpus=24; "
                         "global_batch_size=24; micro_batch_size=1");
      scenario::set(s, "expert_model_parallel_size=" + std::to_string(parallel));
      auto o = options();
      o.repredict_reserved = [&](const scenario::Scenario& one, const predict::Prediction& same) {
        auto p = same;
        p.fits = scenario::data_parallel_size(one) >= needed;
        return p;
      };
      const auto plan = plan::search(s, o);
      REQUIRE(plan.best);
      const auto each = scenario::model_parallel_size(plan.best->scenario);
      std::int64_t fewest = plan.best->scenario.cluster.num_gpus;
      for (std::int64_t copies = 24 / each; copies >= 1; --copies)
        if (24 % copies == 0 && copies * each % parallel == 0 && copies >= needed) fewest = copies * each;
      CAPTURE(parallel);
      CAPTURE(needed);
      CHECK(plan.fewest_gpus == fewest);
    }
}

TEST_CASE("where nothing fits and nothing was given: the fewest times as many GPUs on which something would") {
  const auto s = searching("dense", "recompute allocator", "global_batch_size=4096; micro_batch_size=1");
  const auto gpus = s.cluster.num_gpus;
  for (const std::int64_t times : {2, 3, 4, 16, 17}) {
    auto o = options();
    o.has_baseline = false;
    o.predict = [&](const scenario::Scenario& one) {
      auto p = machine(one);
      p.fits = one.cluster.num_gpus >= times * gpus;
      p.memory_margin = Bytes(gibibyte);
      for (auto& rank : p.ranks) {
        rank.walk.peak_reserved = Bytes(70 * gibibyte);
        rank.outside_allocator = Bytes(5 * gibibyte);
      }
      return p;
    };
    const auto plan = plan::search(s, o);
    std::int64_t least = 2;
    while (least < times) least *= 2;
    CAPTURE(times);
    CHECK_FALSE(plan.best);
    CHECK(says(plan, "would fit: " + std::to_string(least * gpus) + " GPUs") == (least <= 16));
    CHECK(says(plan, "would fit") == (least <= 16));
    CHECK(says(plan, "(4.00 GiB to spare on rank 0") == (least <= 16));  // of 80 GiB, without the margin
  }
}

TEST_CASE("TE graphs with expandable segments bring NCCL_GRAPH_REGISTER=0") {
  const auto plan =
      plan::search(searching("dense", "allocator", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[mlp]"),
                   options(52 * gibibyte));
  REQUIRE(plan.best);
  CHECK(plan.best->scenario.environment.at("NCCL_GRAPH_REGISTER") == "0");
  CHECK(plan.searched.legal == 2);
}

TEST_CASE("other allocator options stay") {
  const auto plan = plan::search(
      searching("dense", "allocator", "$PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512,expandable_segments:False"),
      options(52 * gibibyte));
  REQUIRE(plan.best);
  CHECK(plan.best->scenario.environment.at("PYTORCH_CUDA_ALLOC_CONF") ==
        "max_split_size_mb:512,expandable_segments:True");
}

TEST_CASE("the order does not depend on the threads") {
  auto one = options(), four = options();
  one.threads = 1;
  four.threads = 4;
  const auto s = searching("dense", "recompute pipeline allocator");
  const auto a = plan::search(s, one), b = plan::search(s, four);
  CHECK(labels(a) == labels(b));
  CHECK(a.why == b.why);
  CHECK(a.pareto.size() == b.pareto.size());
}

TEST_CASE("the front has no dominated point and is sorted") {
  const auto plan = plan::search(searching("dense", "recompute pipeline"), options());
  REQUIRE(plan.pareto.size() > 1);
  for (std::size_t i = 1; i < plan.pareto.size(); ++i) {
    CHECK(plan.pareto[i].step_ns > plan.pareto[i - 1].step_ns);
    CHECK(plan.pareto[i].peak < plan.pareto[i - 1].peak);
  }
}

TEST_CASE("explicit values of a field") {
  auto s = test::scenario("dense", "");
  scenario::set(s, "search.micro_batch_size=[1, 2, 3]");
  const auto plan = plan::search(s, options());
  CHECK(plan.searched.candidates == 3);
  CHECK(plan.searched.legal == 2);
  CHECK(std::ranges::count(plan.rejected, "batch.global", &plan::Rejected::rule) == 1);
}

TEST_CASE("what the model refuses is rejected with its reason and leaves the proof open") {
  auto o = options();
  o.predict = [](const scenario::Scenario& s) {
    if (s.settings.recompute_granularity == "full") throw UsageError("full recompute is not modelled");
    return machine(s);
  };
  const auto plan = plan::search(searching("dense", "recompute"), o);
  REQUIRE(plan.best);
  CHECK(std::ranges::count(plan.rejected, "model", &plan::Rejected::rule) == 1);
  CHECK_FALSE(plan.searched.proved_optimal);
}

TEST_CASE("what refuses every candidate and the scenario itself is the input's fault") {
  auto o = options();
  o.predict = [](const scenario::Scenario&) -> predict::Prediction { throw UsageError("the profile lacks gemm"); };
  CHECK_THROWS_WITH_AS(plan::search(searching("dense", "recompute"), o), doctest::Contains("the profile lacks gemm"),
                       UsageError);
}

TEST_CASE("what is not modelled whatever is recomputed or offloaded is refused with its structure, not one by one") {
  int refused = 0;
  for (const char* missing : {"moe_router_dtype=fp64; moe_router_fusion=true", "moe_apply_probs_on_input=true",
                              "$CUDA_LAUNCH_BLOCKING=1", "fp8=hybrid; moe_apply_probs_on_input=true"}) {
    CAPTURE(missing);
    auto s = test::scenario("moe", missing);
    for (const auto* open : {"parallelism", "recompute", "offload", "allocator"})
      scenario::set(s, "search." + std::string(open) + "=auto");
    if (scenario::unmodelled(s).empty()) continue;
    ++refused;
    std::atomic<int> asked{0};
    auto o = options();
    o.has_baseline = false;
    o.predict = [&](const scenario::Scenario& candidate) {
      ++asked;
      scenario::refuse_unmodelled(candidate);
      return machine(candidate);
    };
    const auto plan = plan::search(s, o);
    check_counts(plan.searched);
    CHECK(plan.searched.not_modelled > 100);
    CHECK_FALSE(plan.searched.proved_optimal);
    CHECK(asked <= plan.searched.predicted + 1);
    for (const auto& candidate : plan.alternatives) CHECK(scenario::unmodelled(candidate.scenario).empty());
  }
  CHECK(refused > 1);
}

TEST_CASE("what is refused without recompute, offload and allocator is refused with them") {
  for (const char* base : {"dense", "tensor", "single", "moe"})
    for (const char* missing : {"moe_apply_probs_on_input=true", "fp8=hybrid; moe_apply_probs_on_input=true",
                                "cp_comm_type=[all_gather]; context_parallel_size=1", "fp4=e2m1; fp4_recipe=nvfp4"})
      for (const char* work : {"recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1",
                               "recompute_granularity=selective; recompute_modules=[core_attn]",
                               "recompute_granularity=selective; recompute_modules=[mlp, moe_act]",
                               "cpu_offloading=true; cpu_offloading_num_layers=1",
                               "fine_grained_activation_offloading=true; offload_modules=[qkv_linear]"}) {
        CAPTURE(missing);
        CAPTURE(work);
        auto without = test::scenario(base, missing), with = without;
        test::change(with, work);
        const auto beside = scenario::unmodelled(with);
        for (const auto& one : scenario::unmodelled(without))
          CHECK(std::ranges::find(beside, one.name, &scenario::Unmodelled::name) != beside.end());
      }
}

TEST_CASE("an internal error is not swallowed") {
  auto o = options();
  o.predict = [](const scenario::Scenario&) -> predict::Prediction { throw InternalError("bug"); };
  CHECK_THROWS_AS(plan::search(searching("dense", "recompute"), o), InternalError);
}

TEST_CASE("progress counts up; a stop gives the best so far") {
  auto o = options();
  std::stop_source source;
  std::int64_t last = 0;
  o.threads = 1;
  o.stop = source.get_token();
  o.progress = [&](const plan::Progress& now) {
    if (std::string_view(now.phase) != "predicting") return;
    CHECK(now.done == last + 1);
    CHECK(now.done <= now.total);
    last = now.done;
    if (now.done == 3) source.request_stop();
  };
  const auto plan = plan::search(searching("single", "recompute"), o);
  CHECK(plan.searched.interrupted);
  CHECK_FALSE(plan.searched.proved_optimal);
  CHECK(plan.searched.simulated == 3);  // the given was first
  REQUIRE(plan.best);
  CHECK(says(plan, "interrupted"));
  check_counts(plan.searched);
}

TEST_CASE("a baseline outside the searched values is predicted by itself") {
  const auto plan = plan::search(
      searching("dense", "recompute", "recompute_granularity=selective; recompute_modules=[core_attn]"), options());
  CHECK(plan.baseline.prediction.step_ns > 0);
  CHECK(plan.baseline.settings.front() == std::pair<std::string, std::string>{"recompute_granularity", "selective"});
  CHECK(says(plan, "against the scenario as given"));
}

TEST_CASE("quick looks lead to the same winner, with fewer exact predictions") {
  for (const std::int64_t limit : {80 * gibibyte, 52 * gibibyte}) {
    CAPTURE(limit);
    const auto s = searching("dense", "recompute pipeline allocator");
    auto quick = options(limit);
    quick.top = 2;
    quick.estimate = [&](const scenario::Scenario& one) {
      auto p = machine(one, limit);
      p.ranks.clear();
      return p;
    };
    quick.floor = [&](const scenario::Scenario& one) {
      auto p = machine(one, limit);
      p.step_ns = p.step_ns * 9 / 10;
      p.fits = true;
      return p;
    };
    quick.scout = [&](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) {
      into = machine(one, limit);
      into.fits = true;
      for (auto& rank : into.ranks) {
        rank.walk.peak_reserved = rank.walk.peak_allocated;
        rank.fits = (rank.walk.peak_allocated + rank.outside_allocator).value <= limit;
        into.fits = into.fits && rank.fits;
      }
    };
    const auto all = plan::search(s, options(limit)), led = plan::search(s, quick);
    REQUIRE(all.best);
    REQUIRE(led.best);
    CHECK(led.best->label == all.best->label);
    CHECK(led.best->prediction.step_ns == all.best->prediction.step_ns);
    CHECK(led.searched.simulated <= all.searched.simulated);
    check_counts(all.searched);
    check_counts(led.searched);
    CHECK(led.searched.proved_optimal);
    CHECK(led.searched.gap == 0);
    quick.threads = 1;
    CHECK(labels(plan::search(s, quick)) == labels(led));
  }
}

TEST_CASE("what is looked at for the answer alone takes nothing back of what was proved") {
  // What fits by what it allocates and not by what it reserves stays excluded, whatever low estimates say of its time.
  for (const std::int64_t limit : {49, 52, 55, 58, 80})
    for (const std::int64_t percent : {90, 97, 99}) {
      CAPTURE(limit);
      CAPTURE(percent);
      const auto s = searching("dense", "recompute pipeline");
      const auto bytes = limit * gibibyte;
      auto quick = options(bytes);
      quick.top = 4;
      quick.floor = quick.estimate = [percent, bytes](const scenario::Scenario& one) {
        auto p = machine(one, bytes);
        p.step_ns = p.step_ns * percent / 100;
        p.fits = true;
        return p;
      };
      quick.scout = [bytes](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) {
        const auto step_ns = into.step_ns;
        into = machine(one, bytes);
        into.step_ns = step_ns;
        into.fits = true;
        for (auto& rank : into.ranks) {
          rank.walk.peak_reserved = rank.walk.peak_allocated;
          into.fits = into.fits && (rank.walk.peak_allocated + rank.outside_allocator).value <= bytes;
        }
      };
      quick.repredict_reserved = [bytes](const scenario::Scenario& one, const predict::Prediction& same) {
        auto p = machine(one, bytes);
        p.step_ns = same.step_ns;
        return p;
      };
      const auto all = plan::search(s, options(bytes)), led = plan::search(s, quick);
      REQUIRE(all.best);
      REQUIRE(led.best);
      check_counts(led.searched);
      CHECK(led.best->label == all.best->label);
      CHECK(led.searched.proved_optimal);
    }
}

TEST_CASE("parallelism: legal spreads only, structures that cannot fit are excluded as a whole") {
  auto o = options();
  o.estimate = [](const scenario::Scenario& one) { return machine(one); };
  o.floor = [](const scenario::Scenario& one) {
    auto p = machine(one);
    p.fits = one.settings.pipeline_model_parallel_size >= 4;
    return p;
  };
  o.scout = [](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) {
    into = machine(one);
    into.fits = one.settings.pipeline_model_parallel_size >= 4;
  };
  const auto plan = plan::search(searching("dense", "parallelism recompute"), o);
  REQUIRE(plan.best);
  CHECK(plan.best->scenario.settings.pipeline_model_parallel_size >= 4);
  check_counts(plan.searched);
  CHECK(plan.searched.excluded > 0);
  CHECK(plan.searched.too_large > 0);
  for (const auto& candidate : plan.alternatives) CHECK_NOTHROW(scenario::check(candidate.scenario));
}

TEST_CASE("a stop while structures are still bounded gives a candidate that fits all the same") {
  for (const std::int64_t stop_after : {0, 1, 2, 8}) {
    CAPTURE(stop_after);
    auto o = options();
    std::stop_source source;
    if (stop_after == 0) source.request_stop();  // before anything began
    o.threads = 1;
    o.stop = source.get_token();
    o.estimate = o.floor = [](const scenario::Scenario& one) { return machine(one); };
    o.scout = [](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) { into = machine(one); };
    o.progress = [&, seen = std::int64_t{0}](const plan::Progress&) mutable {
      if (++seen == stop_after) source.request_stop();
    };
    const auto plan = plan::search(searching("dense", "parallelism recompute"), o);
    CHECK(plan.searched.interrupted);
    CHECK_FALSE(plan.searched.proved_optimal);
    check_counts(plan.searched);
    CHECK(plan.searched.simulated > 0);
    REQUIRE(plan.best);
    CHECK(plan.best->prediction.fits);
    if (stop_after == 0) CHECK(plan.best->given);
  }
}

// Bounds that say nothing: only what is near the given leads up.
TEST_CASE("a search that is stopped early has climbed over neighbours of the given") {
  const auto squared = [](double x) { return x * x; };
  const auto bowl = [&](const scenario::Scenario& one) {
    const auto& s = one.settings;
    const auto log = [](std::int64_t n) { return std::log2(static_cast<double>(n)); };
    auto p = machine(one);
    const double off = 0.08 * squared(log(s.tensor_model_parallel_size) - 2) +
                       0.1 * squared(log(s.pipeline_model_parallel_size) - 1) +
                       0.06 * squared(log(s.micro_batch_size) - 2) + 0.05 * squared(log(scenario::num_chunks(one)) - 1);
    p.step_ns = static_cast<std::int64_t>(1e9 * (1 + off)) + p.ranks.front().account.recompute;
    return p;
  };
  auto s = searching("dense", "parallelism microbatch recompute", "global_batch_size=512");
  scenario::set(s, "cluster.num_gpus=256");
  auto o = options();
  std::stop_source source;
  o.threads = 1;
  int calls = 0;
  const auto counted = [&](predict::Prediction p) {
    constexpr int stop_at = 500;
    if (++calls == stop_at) source.request_stop();
    return p;
  };
  o.stop = source.get_token();
  o.predict = bowl;
  o.estimate = [&](const scenario::Scenario& one) { return counted(bowl(one)); };
  o.floor = [&](const scenario::Scenario& one) {
    auto p = bowl(one);
    p.step_ns /= 4;
    return counted(p);
  };
  o.floor_of_any_split = [&](const scenario::Scenario& one, bool) {
    auto p = machine(one);
    p.step_ns = 1;
    return counted(p);
  };
  o.scout = [&](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) { into = bowl(one); };
  const auto plan = plan::search(s, o);
  CHECK(plan.searched.interrupted);
  CHECK(plan.searched.gap > 0.5);  // the bounds have not led it
  check_counts(plan.searched);
  REQUIRE(plan.best);
  const auto& best = plan.best->scenario.settings;
  CHECK(best.tensor_model_parallel_size == 4);
  CHECK(best.pipeline_model_parallel_size == 2);
  CHECK(best.micro_batch_size == 4);
  CHECK(plan.best->prediction.step_ns < plan.baseline.prediction.step_ns * 7 / 10);
  // Beside it stands what only waited for the exact engine, one line for each parallelism.
  std::set<std::string> lines = {plan.best->choices.front()};
  for (const auto& other : plan.alternatives) {
    CHECK(other.prediction.step_ns == bowl(other.scenario).step_ns);
    if (other.prediction.fits && !other.given) lines.insert(other.choices.front());
  }
  CHECK(lines.size() > 1);
}

TEST_CASE("whenever a stop comes, hardly anything is begun after it") {
  // Asked for within the nth call of what the search calls.
  for (int stop_at = 1; stop_at < 400; stop_at += stop_at < 40 ? 1 : 23) {
    CAPTURE(stop_at);
    auto o = options();
    std::stop_source source;
    o.threads = 1;
    o.stop = source.get_token();
    int calls = 0, quick_after = 0, predicted_after = 0;
    const auto counted = [&](int& after) {
      if (source.stop_requested()) ++after;
      if (++calls == stop_at) source.request_stop();
    };
    o.predict = [&](const scenario::Scenario& one) {
      counted(predicted_after);
      return machine(one);
    };
    o.repredict_reserved = [&](const scenario::Scenario& one, const predict::Prediction&) {
      counted(predicted_after);
      return machine(one);
    };
    o.estimate = o.floor = o.glance = [&](const scenario::Scenario& one) {
      counted(quick_after);
      return machine(one);
    };
    o.floor_of_any_split = [&](const scenario::Scenario& one, bool) {
      counted(quick_after);
      auto p = machine(one);
      p.step_ns /= 4;
      return p;
    };
    o.scout = [&](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) {
      counted(quick_after);
      into = machine(one);
    };
    const auto plan = plan::search(searching("dense", "parallelism recompute"), o);
    if (calls < stop_at) break;    // the search is over before
    CHECK(predicted_after <= 10);  // of the best and of three beside it: two ranks and all
    CHECK(quick_after <= 100);
    check_counts(plan.searched);
    REQUIRE(plan.best);
    CHECK(plan.best->prediction.fits);
    if (!plan.searched.interrupted) continue;
    CHECK_FALSE(plan.searched.proved_optimal);
    CHECK(plan.searched.gap >= 0);
  }
}

// A shortage is the least that a structure has, whichever of its floors says it.
TEST_CASE("where no spread fits, the closest lacks the least that any of its kernels' floors lacks") {
  const std::int64_t limit = 20 * gibibyte;
  auto o = options(limit);
  o.has_baseline = false;
  o.estimate = o.floor = [&](const scenario::Scenario& one) { return machine(one, limit); };
  o.scout = [&](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) {
    into = machine(one, limit);
  };
  // With expert overlap, which is looked at last, more is lacking than without.
  const auto lacks = [&](Bytes more) {
    predict::Prediction p = machine(test::scenario("moe", ""), limit);
    p.ranks.resize(1);
    p.memory_limit = Bytes(limit);
    p.ranks[0].outside_allocator = Bytes();
    p.ranks[0].walk.peak_reserved = p.memory_limit - p.memory_margin + more;
    p.fits = false;
    return p;
  };
  o.floor_of_any_split = [&](const scenario::Scenario& one, bool) {
    return lacks(one.settings.overlap_moe_expert_parallel_comm ? Bytes(9 * gibibyte) : Bytes(3 * gibibyte));
  };
  const auto plan = plan::search(searching("moe", "parallelism wgrad_delay"), o);
  REQUIRE(!plan.best);
  REQUIRE(plan.closest);
  CHECK(plan.closest->lacking == Bytes(3 * gibibyte));
}

TEST_CASE("a best that needs a pull request comes with the best that does not") {
  auto o = options();
  o.predict = [](const scenario::Scenario& s) {
    auto p = machine(s);
    if (s.settings.overlap_moe_expert_parallel_comm) p.step_ns -= 10 * millisecond;
    if (s.settings.overlap_p2p_backward_on_comm_stream) p.step_ns -= 50 * millisecond;
    return p;
  };
  const auto plan = plan::search(searching("moe", "wgrad_delay", "megatron_core=pr-4268"), o);
  REQUIRE(plan.best);
  CHECK(plan.best->scenario.settings.overlap_p2p_backward_on_comm_stream);
  REQUIRE(plan.released);
  CHECK(plan.released->scenario.settings.overlap_moe_expert_parallel_comm);
  CHECK_FALSE(plan.released->scenario.settings.overlap_p2p_backward_on_comm_stream);
  CHECK_FALSE(plan::search(searching("moe", "wgrad_delay"), o).released);
}

TEST_CASE("expert overlap is searched where it can run; offload only for what does not fit without") {
  const auto plan = plan::search(searching("moe", "wgrad_delay"), options());
  const auto all = labels(plan);
  CHECK(std::ranges::count(all, "expert overlap, delayed weight gradients") == 1);
  CHECK(std::ranges::count(all, "no expert overlap") == 1);
  CHECK(plan::search(searching("moe", "wgrad_delay",
                               "moe_shared_expert_intermediate_size=1024; "
                               "moe_shared_expert_overlap=true"),
                     options())
            .searched.legal == 1);
  for (const std::int64_t limit : {80 * gibibyte, 46 * gibibyte}) {
    auto o = options(limit);
    const auto offloaded = [limit](const scenario::Scenario& s) {
      auto p = machine(s, limit);
      p.fits = true;
      for (auto& rank : p.ranks) {
        if (s.settings.fine_grained_activation_offloading) rank.walk.peak_allocated -= Bytes(8 * gibibyte);
        rank.walk.peak_reserved = rank.walk.peak_allocated;
        rank.fits = (rank.walk.peak_reserved + rank.outside_allocator).value <= limit;
        p.fits = p.fits && rank.fits;
      }
      return p;
    };
    o.predict = o.estimate = o.floor = offloaded;
    o.scout = [offloaded](const scenario::Scenario& s, predict::Depth, predict::Prediction& into) {
      into = offloaded(s);
    };
    const auto searched = plan::search(searching("dense", "offload"), o);
    REQUIRE(searched.best);
    CHECK(searched.best->scenario.settings.fine_grained_activation_offloading == (limit < 80 * gibibyte));
  }
}

TEST_CASE("with time, what was too dear to predict is predicted") {
  // Only what offloads fits, and all of it is slower than its floor says: by how much a look tells.
  const auto moved = [](const scenario::Scenario& s, std::int64_t milliseconds) {
    auto p = machine(s);
    p.fits = s.settings.fine_grained_activation_offloading;
    p.forward_backward_ns = p.step_ns = milliseconds * millisecond;
    for (auto& rank : p.ranks) {
      rank.walk.peak_allocated = rank.walk.peak_reserved = Bytes((p.fits ? 40 : 100) * gibibyte);
      rank.fits = p.fits;
    }
    return p;
  };
  auto o = options();
  o.floor = [&](const scenario::Scenario& s) { return moved(s, 1000); };
  o.predict = o.estimate = [&](const scenario::Scenario& s) {
    return moved(s, s.settings.fine_grained_activation_offloading ? 1100 + scenario::num_chunks(s) : 1000);
  };
  o.scout = [&](const scenario::Scenario& s, predict::Depth, predict::Prediction& into) {
    auto walked = moved(s, 1000);
    walked.forward_backward_ns = walked.step_ns = into.step_ns;
    into = walked;
  };
  const auto s = searching("dense", "recompute offload pipeline",
                           "num_layers=96; pipeline_model_parallel_size=4; global_batch_size=256");
  const auto hurried = plan::search(s, o);
  o.until_stopped = true;
  const auto patient = plan::search(s, o);
  for (const auto* plan : {&hurried, &patient}) {
    check_counts(plan->searched);
    REQUIRE(plan->best);
  }
  // What is left may be faster by what an estimate may be too long, for want of predictions; time brings those until it
  // is below a hundredth.
  CHECK(hurried.searched.gap > 0.01);
  CHECK(hurried.searched.gap <= predict::estimate_bounds(s).over);
  CHECK(patient.searched.gap < 0.01 + 0.005);  // of the fastest, and a tie that the best may be above it
  CHECK(patient.searched.undecided < hurried.searched.undecided);
  CHECK(patient.best->prediction.step_ns <= hurried.best->prediction.step_ns);
}

TEST_CASE("opening adds and closes nothing; a name that is none is the input's fault") {
  auto s = searching("dense", "recompute");
  s = plan::opened(std::move(s), {"parallelism"});
  CHECK(s.search.recompute == "auto");
  CHECK(s.search.parallelism == "auto");
  CHECK(s.search.offload == "keep");
  CHECK(plan::opened(s, {"all"}).search.offload == "auto");
  CHECK_THROWS_WITH_AS(plan::opened(s, {"recompte"}), doctest::Contains("did you mean \"recompute\""), UsageError);
  CHECK_FALSE(plan::opens_something(test::scenario("dense", "")));
  const auto all = plan::opened(test::scenario("dense", ""));
  CHECK(all.search.offload == "auto");
  CHECK(all.search.parallelism == "keep");
}

TEST_CASE("the given is a candidate, also where no dimension would propose it") {
  auto o = options();
  // EP 4 in one node, TP 4 over nodes of one GPU: nothing of the kind is proposed.
  const auto s = searching("tensor", "parallelism", "gpus_per_node=1");
  const auto plan = plan::search(s, o);
  REQUIRE(plan.best);
  CHECK(plan.baseline_refused.empty());
  auto labels_of_all = labels(plan);
  CHECK(std::ranges::any_of(labels_of_all, [](const auto& label) { return label.starts_with("TP 2 PP 2"); }));
}

TEST_CASE("cp_comm_type: what the ranks of every group can do, each once, and what stands without a change") {
  const auto values = [](const scenario::Scenario& s) {
    plan::LeftOut left_out;
    return plan::context_values(s, left_out);
  };
  std::vector<std::string> kinds;
  for (const auto& value :
       values(test::scenario("dense", "num_gpus=64; context_parallel_size=16; gpus_per_node=8; seq_length=65536")))
    kinds.push_back(value.label);
  CHECK(kinds ==
        std::vector<std::string>{"cp_comm_type p2p", "cp_comm_type all_gather", "cp_comm_type a2a+p2p [8, 2]"});
  std::size_t exchanging = 0, two_levels = 0;
  for (const std::string heads : {"32", "24", "8"})
    for (const std::string groups : {"8", "4", "2"})
      for (const std::string tp : {"1", "2", "4", "8"})
        for (const std::string cp : {"1", "2", "4", "8", "16"})
          for (const std::string given : {"[p2p]", "[a2a]", "[all_gather]", "[a2a+p2p]"}) {
            auto s = test::scenario("dense", ("num_gpus=256; gpus_per_node=8; seq_length=65536; kv_channels=128; "
                                              "sequence_parallel=true; num_attention_heads=" +
                                              heads + "; num_query_groups=" + groups + "; context_parallel_size=" + cp +
                                              "; tensor_model_parallel_size=" + tp + "; cp_comm_type=" + given)
                                                 .c_str());
            if (given == "[a2a+p2p]") scenario::set(s, "hierarchical_context_parallel_sizes=[2, 2]");
            INFO(heads << " " << groups << " TP " << tp << " CP " << cp << " " << given);
            if (std::stoi(tp) > std::stoi(groups)) continue;
            const auto stated = scenario::context_sharing(s);
            std::size_t same = 0;
            std::set<std::tuple<std::int64_t, std::int64_t, bool>> different;
            for (const auto& value : values(s)) {
              auto with = s;
              plan::apply(value, with);
              const auto sharing = scenario::context_sharing(with);
              REQUIRE(sharing);
              CHECK(different.emplace(sharing->heads, sharing->ring, sharing->gathers).second);
              CHECK(std::stoi(heads) / std::stoi(tp) % sharing->heads == 0);
              CHECK(std::stoi(groups) / std::stoi(tp) % sharing->heads == 0);
              CHECK(scenario::unmodelled(with).empty());
              for (const auto& finding : plan::check(with)) CHECK_FALSE(finding.rule.starts_with("parallel.context-"));
              same += plan::changes_nothing(value, s) ? 1 : 0;
              exchanging += sharing->heads > 1 && sharing->ring == 1;
              two_levels += sharing->heads > 1 && sharing->ring > 1;
            }
            if (cp == "1") CHECK(different.size() == (given == "[a2a+p2p]" ? 1 : 0));
            if (cp != "1")
              CHECK(same == (stated && std::stoi(groups) / std::stoi(tp) % stated->heads == 0 &&
                                     std::stoi(heads) / std::stoi(tp) % stated->heads == 0
                                 ? 1
                                 : 0));
          }
  CHECK(exchanging > 10);
  CHECK(two_levels > 10);
  // Windows are modelled with an exchange of heads alone, latent attention with a ring.
  const auto only = [&](const char* base, const char* changes) {
    const auto all = values(test::scenario(base, changes));
    return all.size() == 1 ? all.front().label : std::to_string(all.size());
  };
  CHECK(only("dense", "context_parallel_size=2; num_gpus=8; window_size=[511, 0]") == "cp_comm_type a2a");
  CHECK(only("dense", "context_parallel_size=2; num_gpus=8; attention_backend=unfused") == "cp_comm_type p2p");
}

TEST_CASE("the fastest cp_comm_type wins where parallelism is open, and is in the flags") {
  auto o = options();
  o.predict = [](const scenario::Scenario& s) {
    auto p = machine(s);
    const auto sharing = scenario::context_sharing(s);
    const bool exchanges = sharing && sharing->heads == 4;
    p.step_ns = p.forward_backward_ns = (exchanges ? 500 : 1000) * millisecond;
    return p;
  };
  const auto s = searching("dense", "parallelism", "seq_length=32768; num_gpus=16");
  const auto found = plan::search(s, o);
  REQUIRE(found.best);
  CHECK(found.best->scenario.settings.cp_comm_type == scenario::Strings{"a2a"});
  CHECK(found.best->label.find("cp_comm_type a2a") != std::string::npos);
  check_counts(found.searched);
  // A list of values of its own closes the dimension.
  auto stated = s;
  stated.search.values["cp_comm_type"] = {"[p2p]"};
  CHECK(std::ranges::none_of(plan::dimensions(stated),
                             [](const auto& dimension) { return dimension.what == plan::Decides::context; }));
}

TEST_CASE("a best without an interval wins no tie, and the best with one stands beside it") {
  const auto searched = [](std::int64_t gained_ms) {
    auto o = options();
    o.predict = [gained_ms](const scenario::Scenario& s) {
      auto p = machine(s);
      const auto sharing = scenario::context_sharing(s);
      p.step_ns = p.forward_backward_ns = (sharing && sharing->gathers ? 1000 - gained_ms : 1000) * millisecond;
      if (sharing && sharing->gathers) p.ignored = {"what is not known of it"};
      return p;
    };
    return plan::search(searching("dense", "parallelism",
                                  "seq_length=32768; num_gpus=16; context_parallel_size=4; "
                                  "search.tensor_model_parallel_size=[1]; search.context_parallel_size=[4]; "
                                  "search.pipeline_model_parallel_size=[2]; search.cp_comm_type=[[p2p],[all_gather]]"),
                        o);
  };
  const auto tied = searched(3), won = searched(30);
  REQUIRE(tied.best);
  CHECK(tied.best->prediction.ignored.empty());
  CHECK_FALSE(tied.bounded);
  REQUIRE(won.best);
  CHECK(won.best->scenario.settings.cp_comm_type == scenario::Strings{"all_gather"});
  REQUIRE(won.bounded);
  CHECK_FALSE(scenario::context_sharing(won.bounded->scenario)->gathers);
  CHECK(won.bounded->prediction.step_ns == 1000 * millisecond);
  CHECK(won.bounded->prediction.ignored.empty());
}

TEST_CASE("beside a best without an interval only what an estimate finds worth it is simulated") {
  const auto searched = [](std::int64_t ring_ms, int& simulated) {
    const auto step = [ring_ms](const scenario::Scenario& s) {
      auto p = machine(s);
      const auto sharing = scenario::context_sharing(s);
      const bool gathers = sharing && sharing->gathers, other = s.settings.tensor_model_parallel_size == 2;
      p.step_ns = p.forward_backward_ns = (gathers ? 970 : other ? ring_ms : 1000) * millisecond;
      if (gathers) p.ignored = {"what is not known of it"};
      return p;
    };
    auto o = options();
    o.estimate = step;
    o.predict = [step, &simulated](const scenario::Scenario& s) {
      const auto p = step(s);
      if (p.ignored.empty() && s.settings.tensor_model_parallel_size == 2) ++simulated;
      return p;
    };
    return plan::search(searching("dense", "parallelism",
                                  "seq_length=32768; num_gpus=16; tensor_model_parallel_size=1; "
                                  "context_parallel_size=4; search.tensor_model_parallel_size=[2]; "
                                  "search.context_parallel_size=[4]; search.pipeline_model_parallel_size=[2]; "
                                  "search.cp_comm_type=[[all_gather]]"),
                        o);
  };
  for (const std::int64_t ring_ms : {1100, 985}) {
    CAPTURE(ring_ms);
    int simulated = 0;
    const auto plan = searched(ring_ms, simulated);
    REQUIRE(plan.best);
    CHECK(plan.best->prediction.step_ns == 970 * millisecond);
    REQUIRE(plan.bounded);
    CHECK(plan.bounded->given == (ring_ms > 1000));
    CHECK(plan.bounded->prediction.step_ns == std::min<std::int64_t>(ring_ms, 1000) * millisecond);
    CHECK(simulated == (ring_ms > 1000 ? 0 : 1));
  }
}

TEST_CASE("nothing fits: what comes nearest, and whether that is proved") {
  auto o = options(10 * gibibyte);
  o.estimate = [](const scenario::Scenario& one) { return machine(one, 10 * gibibyte); };
  o.floor = o.estimate;
  o.scout = [](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) {
    into = machine(one, 10 * gibibyte);
  };
  const auto plan = plan::search(searching("dense", "recompute allocator"), o);
  CHECK_FALSE(plan.best);
  REQUIRE(plan.closest);
  CHECK(plan.closest->proved);
  CHECK(plan.closest->lacking > Bytes(20 * gibibyte));
  check_counts(plan.searched);
}

TEST_CASE("structural rules do not look at what is decided below a structure") {
  const std::vector<const char*> below = {
      "recompute_granularity=selective; recompute_modules=[core_attn]",
      "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1",
      "recompute_granularity=full; recompute_method=block; recompute_num_layers=1",
      "fine_grained_activation_offloading=true; offload_modules=[core_attn]",
      "cpu_offloading=true; cpu_offloading_num_layers=1",
      "$PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"};
  for (const char* base : {"dense", "tensor", "single", "moe"})
    for (const char* more : {"", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]",
                             "overlap_moe_expert_parallel_comm=true", "fp8=hybrid", "micro_batch_size=3"})
      for (const char* change : below) {
        const auto before = plan::check(test::scenario(base, more));
        std::string all = more;
        all += (all.empty() ? "" : "; ") + std::string(change);
        const auto after = plan::check(test::scenario(base, all));
        for (const auto& rule : plan::all_rules()) {
          if (rule.severity != plan::Severity::violation || !plan::judges_structures(rule)) continue;
          CAPTURE(rule.id);
          CAPTURE(all);
          const auto fires = [&](const auto& findings) {
            return std::ranges::any_of(findings, [&](const auto& f) { return f.rule == rule.id; });
          };
          CHECK(fires(before) == fires(after));
        }
      }
}

// What the exact engine refused left its allocators' variants waiting, whose estimates nothing could beat: "nothing is
// legal" was the answer for Gemma 2.
TEST_CASE("what only the exact engine refuses excludes nothing else") {
  auto s = searching("single", "parallelism microbatch recompute allocator", "global_batch_size=32");
  for (int seed = 5; seed >= 0; --seed) {  // the last refuses most
    if (!test::taken(static_cast<std::size_t>(5 - seed))) continue;
    CAPTURE(seed);
    const auto time = [seed](const scenario::Scenario& one) {
      const auto& t = one.settings;
      auto p = machine(one);
      p.step_ns += millisecond * ((t.tensor_model_parallel_size * 37 + t.pipeline_model_parallel_size * 101 +
                                   t.context_parallel_size * 53 + t.micro_batch_size * 17) *
                                  (seed + 3) % 997);
      return p;
    };
    auto o = options();
    o.predict = [&](const scenario::Scenario& one) {
      const auto& t = one.settings;
      const auto which = t.tensor_model_parallel_size + 3 * t.pipeline_model_parallel_size + 5 * t.micro_batch_size;
      if ((which + seed) % 7 < seed % 6) throw UsageError("not modelled");
      return time(one);
    };
    const auto all = plan::search(s, o);
    o.floor = o.estimate = time;
    o.scout = [&](const scenario::Scenario& one, predict::Depth, predict::Prediction& into) { into = time(one); };
    const auto led = plan::search(s, o);
    check_counts(led.searched);
    REQUIRE(all.best);
    REQUIRE(led.best);
    CHECK(static_cast<double>(led.best->prediction.step_ns) <=
          1.005 * static_cast<double>(all.best->prediction.step_ns));
    CHECK(led.searched.gap < 0.01);
  }
}

// A list beside an open parallelism was a dimension of its own, which parallelism overrode or which closed it.
TEST_CASE("lists of sizes narrow an open parallelism to just those of its ways that have them") {
  using Sizes = std::array<std::int64_t, 4>;  // as plan names them
  const std::array fields = {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
                             "expert_model_parallel_size"};
  const auto sizes = [](const scenario::Scenario& s) {
    const auto& t = s.settings;
    return Sizes{t.tensor_model_parallel_size, t.pipeline_model_parallel_size, t.context_parallel_size,
                 t.expert_model_parallel_size};
  };
  const auto seen = [&](const scenario::Scenario& s) {
    std::set<Sizes> all;
    auto o = options();
    o.threads = 1;
    o.predict = [&](const scenario::Scenario& one) {
      if (sizes(one) != sizes(s)) all.insert(sizes(one));  // the given is predicted whatever is listed
      CHECK(one.settings.sequence_parallel == (one.settings.tensor_model_parallel_size > 1));
      return machine(one);
    };
    const auto plan = plan::search(s, o);
    check_counts(plan.searched);
    return all;
  };
  for (const char* base : {"tensor", "moe"}) {
    const auto open = searching(base, "parallelism", "vpp=none; overlap_p2p_comm=false; seq_length=16384");
    const auto every = seen(open);
    REQUIRE(every.size() > 10);
    std::size_t nth = 0;
    for (std::size_t first = 0; first < fields.size(); ++first)
      for (std::size_t second = first; second < fields.size(); ++second)
        for (const std::vector<std::int64_t>& list : {std::vector<std::int64_t>{1}, {2}, {2, 4}, {1, 2, 4, 8}}) {
          if (!test::taken(nth++)) continue;
          auto s = open;
          std::set<Sizes> wanted = every;
          for (const auto field : {first, second}) {
            std::string text;
            for (const auto size : list) text += (text.empty() ? "" : ", ") + std::to_string(size);
            CAPTURE(fields[field]);
            CAPTURE(text);
            scenario::set(s, std::string("search.") + fields[field] + "=[" + text + "]");
            std::erase_if(wanted, [&](const Sizes& one) { return std::ranges::find(list, one[field]) == list.end(); });
          }
          std::set<Sizes> found;
          try {
            found = seen(s);
          } catch (const UsageError& error) {
            CHECK(std::string(error.what()).find("no way to spread") != std::string::npos);
          }
          CHECK(found == wanted);
        }
  }
}

TEST_CASE("sweep: what is not modelled is not called illegal") {
  auto o = options();
  o.predict = [](const scenario::Scenario& one) {
    scenario::refuse_unmodelled(one);
    return machine(one);
  };
  const auto sweep =
      plan::sweep(test::scenario("dense", ""),
                  {{"optimizer", {"adam", "sgd"}}, {"recompute_modules", {"[mlp]", "[mla_up_proj]"}}}, o);
  REQUIRE(sweep.rows.size() == 4);
  for (const auto& row : sweep.rows) {
    const bool modelled = row.settings.front().second == "adam", legal = row.settings[1].second == "[mlp]";
    CHECK(row.legal == legal);
    CHECK(row.prediction.has_value() == (legal && modelled));
    CHECK((row.rule == "model") == (legal && !modelled));
  }
}

TEST_CASE("sweep: rows in order, illegal ones with their rule") {
  const auto s = test::scenario("dense", "");
  const auto swept =
      plan::sweep(s, {{"recompute_modules", {"[mlp]", "[mla_up_proj]"}}, {"micro_batch_size", {"1", "2"}}}, options());
  REQUIRE(swept.rows.size() == 4);
  CHECK(swept.rows[0].legal);
  CHECK(swept.rows[0].settings == plan::Assignments{{"recompute_modules", "[mlp]"}, {"micro_batch_size", "1"}});
  CHECK(swept.rows[0].relative == doctest::Approx(160.0 / 1093).epsilon(0.01));
  CHECK_FALSE(swept.rows[2].legal);
  CHECK(swept.rows[2].rule == "recompute.mla-up-proj-needs-mla");
  const auto layers = plan::sweep(test::scenario("single", ""), {{"cpu_offloading_num_layers", {"0", "2"}}}, options());
  CHECK(layers.notes == std::vector<std::string>{"cpu_offloading_num_layers also sets cpu_offloading"});
  const auto sets = plan::sweep(s, {{"recompute_modules", {}}}, options());
  CHECK(sets.rows.size() == 4);
  const auto twice =
      plan::sweep(s, {{"micro_batch_size", {"1", "2", "1"}}, {"recompute_modules", {"[mlp]", "[mlp]"}}}, options());
  CHECK(twice.rows.size() == 2);
  CHECK(twice.combinations == 2);
  CHECK_THROWS_AS(plan::sweep(s, {{"micro_batch_size", {}}}, options()), UsageError);
}

}  // namespace search_test
