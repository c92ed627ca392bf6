// One change at a time, over scenarios drawn at random: a resource that gets worse makes no step shorter, more work
// costs what it must, memory moves where it must, and every prediction adds up. PIPEWRIGHT_LAWS=N draws N scenarios and
// prints the farthest that each law went.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include "../draws.hpp"
#include "drawn.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/scenario/derived.hpp"

namespace one_change_test {

using namespace pipewright;
using predict::Prediction;
using scenario::Scenario;

namespace {

double step(const Prediction& p) { return static_cast<double>(p.step_ns); }
double most(const Prediction& p, Bytes memory::Walk::*bytes) {
  double all = 0;
  for (const auto& rank : p.ranks) all = std::max(all, static_cast<double>((rank.walk.*bytes).value));
  return all;
}
double peak(const Prediction& p) { return most(p, &memory::Walk::peak_allocated); }
double held(const Prediction& p) { return most(p, &memory::Walk::static_bytes); }
double sum(const Prediction& p, std::int64_t timeline::Split::*part) {
  double all = 0;
  for (const auto& rank : p.ranks) all += static_cast<double>(rank.account.*part);
  return all;
}
/// For other ranks or its own host: a host that launches too slowly is met first where it is, then, once the queues of
/// the others are full, by them as a bubble.
double waiting(const Prediction& p) {
  return (sum(p, &timeline::Split::bubble) + sum(p, &timeline::Split::host)) / step(p) /
         static_cast<double>(p.ranks.size());
}
double busy(const Prediction& p) { return sum(p, &timeline::Split::busy); }
double forward_backward(const Prediction& p) { return static_cast<double>(p.forward_backward_ns); }
double expert_exchange(const Prediction& p) {
  double all = 0;
  for (const auto& rank : p.ranks)
    for (const auto& row : rank.account.communication)
      if (row.purpose == model::Purpose::ep) all += static_cast<double>(row.busy);
  return all;
}

/// Quantity after the change over quantity before it is within these. Chips that wait draw less power and clock higher
/// afterwards, kernels that meet no other run faster: what waits longer may win some thousandths back.
struct Law {
  const char* change;  ///< "name=value; name=value", of numbers also "name*2"
  double (*of)(const Prediction&);
  double least, greatest;
  bool (*applies)(const Scenario&) = [](const Scenario&) { return true; };
  const char* setup = "";  ///< changes made to both
};
constexpr double any = 1e9;
constexpr double least_of_more_work = 0.9999;  ///< what the search's "more work than one that fits" goes by
bool interleaves(const Scenario& s) { return s.settings.pipeline_model_parallel_size > 1; }
bool experts(const Scenario& s) { return s.model.num_moe_experts.has_value(); }
bool spreads_experts(const Scenario& s) { return experts(s) && s.settings.expert_model_parallel_size > 1; }
/// Libraries send a token to a rank once: of 8 experts on 2 ranks, 4 a token, each gets 98.6 % of all tokens already,
/// and no imbalance adds more than 1.4 % (as little as 0.1 % to an exchange of a megabyte, which is latency for the
/// most part).
bool may_receive_more(const Scenario& s) {
  if (!spreads_experts(s)) return false;
  const auto all = static_cast<double>(*s.model.num_moe_experts);
  const double here = all / static_cast<double>(s.settings.expert_model_parallel_size);
  double misses = 1;
  for (int i = 0; i < s.model.moe_router_topk; ++i) misses *= std::max(0.0, (all - here - i) / (all - i));
  return 1 / (1 - misses) >= 1.05;
}
bool plain_recompute(const Scenario& s) {
  return !s.settings.recompute_granularity && !s.settings.fine_grained_activation_offloading &&
         !s.settings.cpu_offloading && !s.settings.overlap_moe_expert_parallel_comm;
}
bool moves_nothing(const Scenario& s) {
  return !s.settings.fine_grained_activation_offloading && !s.settings.cpu_offloading;
}
bool no_recompute(const Scenario& s) { return moves_nothing(s) && !s.settings.recompute_granularity; }
/// Without per-token loss each is scaled by a kernel of its own.
bool few_buckets(const Scenario& s) { return s.settings.bucket_size.value_or(40'000'000) >= 40'000'000; }
bool gathers(const Scenario& s) {
  return s.settings.overlap_param_gather && !s.settings.align_param_gather &&
         s.settings.pipeline_model_parallel_size == 1 && !experts(s);
}

const std::vector<Law>& laws() {
  static const std::vector<Law> all = {
      {"host_time_factor=2", step, 0.998, 2.001},
      {"network.bandwidth_gbytes_per_s=10", step, 0.998, any},
      {"network.latency_us=200", step, 0.998, any},
      {"gpus_per_node=2; nvlink_domain=2", step, 0.99, any,
       [](const Scenario& s) { return s.cluster.num_gpus % 2 == 0; }},
      {"global_batch_size*2", step, 1.3, 2.001},
      {"global_batch_size*2", waiting, 0, 1.1, interleaves},
      {"global_batch_size*2", held, 1, 1},
      {"seq_length*2", busy, 1.04, 4.4},
      {"seq_length*2", peak, 1, 2.3},
      {"vocab_size*2", step, 1, 3},
      {"vocab_size*2", held, 1, 3},
      {"num_gpus*2; global_batch_size*2", forward_backward, 0.99, any},
      {"num_gpus*2; global_batch_size*2", held, 0, 1.001},
      {"grad_reduce_in_fp32=true", held, 1, 2},
      {"overlap_param_gather=false", step, 0.998, any, gathers},
      {"recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1", step, 1, 1.6, plain_recompute},
      {"recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1", peak, 0, 1.02, plain_recompute},
      {"recompute_granularity=selective; recompute_modules=[core_attn]", step, least_of_more_work, 1.6, no_recompute},
      {"recompute_granularity=selective; recompute_modules=[layernorm]", step, least_of_more_work, 1.6, no_recompute},
      {"recompute_granularity=selective; recompute_modules=[mlp]", step, least_of_more_work, 1.6, no_recompute},
      {"recompute_granularity=selective; recompute_modules=[moe_act]", step, least_of_more_work, 1.6, no_recompute},
      {"recompute_granularity=selective; recompute_modules=[moe]", step, least_of_more_work, 2, no_recompute},
      {"recompute_granularity=selective; recompute_modules=[mla_up_proj]", step, least_of_more_work, 1.6, no_recompute},
      {"recompute_modules=[layernorm, mlp]", step, least_of_more_work, 1.6, moves_nothing,
       "recompute_granularity=selective; recompute_modules=[layernorm]"},
      {"recompute_modules=[core_attn, layernorm]", step, least_of_more_work, 1.6, moves_nothing,
       "recompute_granularity=selective; recompute_modules=[core_attn]"},
      {"recompute_num_layers=2", step, least_of_more_work, 1.6, moves_nothing,
       "recompute_granularity=full; recompute_method=block; recompute_num_layers=1"},
      {"fine_grained_activation_offloading=true; offload_modules=[core_attn]", step, least_of_more_work, any,
       no_recompute},
      {"fine_grained_activation_offloading=true; offload_modules=[qkv_linear]", step, least_of_more_work, any,
       no_recompute},
      {"moe_load_imbalance=1.5", step, 0.999, 1.5, spreads_experts},
      {"moe_load_imbalance=1.5", peak, 0.999, 1.5, spreads_experts},
      {"moe_load_imbalance=1.5", expert_exchange, 1.02, 1.6,
       [](const Scenario& s) {
         return spreads_experts(s) && s.settings.moe_token_dispatcher_type != "allgather" &&
                !s.settings.moe_expert_capacity_factor;
       }},
      {"moe_load_imbalance=1.5", expert_exchange, 1.002, 1.6, may_receive_more,
       "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep; moe_router_dtype=fp32"},
      {"moe_load_imbalance=1.5", expert_exchange, 1.002, 1.6, may_receive_more,
       "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep; moe_router_dtype=fp32; gpus_per_node=2"},
      {"moe_load_imbalance=1.5", expert_exchange, 0.999, 1.6, spreads_experts,
       "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep; moe_router_dtype=fp32"},
      // Three times the multiprocessors: no exchange slower, none more than three times as fast.
      {"moe_flex_dispatcher_num_sms=24", expert_exchange, 0.333, 1.001, spreads_experts,
       "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep; moe_router_dtype=fp32; "
       "moe_flex_dispatcher_num_sms=8"},
      {"moe_flex_dispatcher_num_sms=24", expert_exchange, 0.333, 1.001, spreads_experts,
       "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep; moe_router_dtype=fp32; gpus_per_node=2; "
       "moe_flex_dispatcher_num_sms=8"},
      // 16 of 132: a product takes 132 / 116 of its time, or what an exchange beside it made of that before.
      {"environment.NVTE_EXT_MARGIN_SM=16", busy, 0.999, 1.145},
      {"environment.NVTE_EXT_MARGIN_SM=16", step, 0.995, 1.145},
      {"calculate_per_token_loss=true", step, 0.995, 1.2, few_buckets},
      {"hidden_dropout=0.1", step, 1, 1.3},
      {"hidden_dropout=0.1", peak, 0.999, 1.3},
  };
  return all;
}

std::optional<Scenario> changed(const std::string& text, std::string_view changes) {
  try {
    auto s = scenario::parse(text, "drawn.yaml");
    while (!changes.empty()) {
      const auto end = changes.find("; ");
      const std::string_view one = changes.substr(0, end);
      if (const auto times = one.find('*'); times != std::string_view::npos) {
        const std::string name(one.substr(0, times));
        const scenario::Int now = name == "num_gpus"     ? s.cluster.num_gpus
                                  : name == "seq_length" ? s.model.seq_length
                                  : name == "vocab_size" ? s.model.vocab_size
                                                         : s.settings.global_batch_size;
        scenario::set(s, name + "=" + std::to_string(now * std::stoi(std::string(one.substr(times + 1)))));
      } else {
        scenario::set(s, one);
      }
      changes.remove_prefix(end == std::string_view::npos ? changes.size() : end + 2);
    }
    scenario::check(s);
    test::build(s);
    return s;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

void check_sums(const Prediction& p) {
  CHECK(p.step_ns == p.forward_backward_ns + p.optimizer_ns);
  CHECK((p.interval_low_ns <= p.step_ns && p.step_ns <= p.interval_high_ns));
  CHECK(p.interval_low_ns > 0);
  for (const auto& rank : p.ranks) {
    const timeline::Account& a = rank.account;
    CHECK(a.busy + a.p2p + a.tp + a.cp + a.ep + a.dp + a.offload + a.host + a.bubble + a.idle == p.step_ns);
    for (const auto part : {a.busy, a.p2p, a.tp, a.cp, a.ep, a.dp, a.offload, a.host, a.bubble, a.idle})
      CHECK(part >= 0);
    CHECK(a.recompute <= a.busy);
    CHECK(rank.walk.static_bytes <= rank.walk.peak_allocated);
    CHECK(rank.walk.peak_allocated <= rank.walk.peak_reserved);
  }
}

struct Seen {
  int times = 0;
  double least = any, greatest = 0;
  unsigned least_at = 0, greatest_at = 0;
};

std::vector<Seen> check_laws(unsigned draws, const std::function<std::string(unsigned seed)>& draw) {
  const profile::Profiles profiles({profile::load(SOURCE_ROOT "/profiles/h200-sxm.json", {"test", 0})});
  std::vector<Seen> seen(laws().size());
  for (unsigned seed = 0; seed < draws; ++seed) {
    std::string text = draw(seed);
    if (!test::accepted(text)) continue;
    CAPTURE(seed);
    CAPTURE(text);
    std::map<std::string, std::optional<Prediction>> known;
    const auto predicted = [&](const std::string& changes) -> const std::optional<Prediction>& {
      auto found = known.find(changes);
      if (found == known.end()) {
        found = known.emplace(changes, std::nullopt).first;
        try {
          if (const auto s = changed(text, changes)) found->second = predict::predict(*s, profiles);
        } catch (const UsageError&) {  // not modelled
        }
        if (found->second) check_sums(*found->second);
      }
      return found->second;
    };
    for (std::size_t n = 0; n < laws().size(); ++n) {
      const Law& law = laws()[n];
      // A third of the laws each, or a ninth where few are drawn, so that many scenarios are seen in the time.
      if (std::getenv("PIPEWRIGHT_LAWS") == nullptr && (n + seed) % (test::few() ? 9 : 3) != 0) continue;
      const auto given = changed(text, law.setup);
      if (!given || !law.applies(*given)) continue;
      const std::string setup = law.setup;
      CAPTURE(setup);
      CAPTURE(std::string(law.change));
      const auto& before = predicted(setup);
      const auto& after = predicted((setup.empty() ? "" : setup + "; ") + law.change);
      if (!before || !after) continue;
      const double from = law.of(*before), to = law.of(*after);
      CAPTURE(n);
      CAPTURE(from);
      CAPTURE(to);
      CHECK(to >= from * law.least);
      CHECK(to <= from * law.greatest);
      Seen& of = seen[n];
      ++of.times;
      if (from > 0 && to / from < of.least) of.least = to / from, of.least_at = seed;
      if (from > 0 && to / from > of.greatest) of.greatest = to / from, of.greatest_at = seed;
    }
  }
  for (std::size_t n = 0; n < seen.size(); ++n)
    if (std::getenv("PIPEWRIGHT_LAWS") != nullptr)
      std::cout << laws()[n].change << ": " << seen[n].times << " times, " << seen[n].least << " (seed "
                << seen[n].least_at << ") to " << seen[n].greatest << " (seed " << seen[n].greatest_at << ")\n";
  return seen;
}

}  // namespace

TEST_CASE("one change at a time moves step and memory the way it must") {
  const auto seen = check_laws(test::draws(60, "PIPEWRIGHT_LAWS"), [](unsigned seed) { return test::drawn(seed); });
  for (std::size_t n = 0; n < seen.size(); ++n) {
    CAPTURE(std::string(laws()[n].change));
    CHECK((seen[n].times > 0 || test::draws(60) < 60));  // a few draws miss some laws
  }
}

TEST_CASE("one change at a time, of every family's config.json") {
  scenario::Strings configs;
  for (const auto& each : std::filesystem::directory_iterator(SOURCE_ROOT "/tests/scenario/data")) {
    try {
      if (each.path().extension() == ".json") scenario::from_hf(each.path().string());
    } catch (const UsageError&) {
      continue;  // broken on purpose
    }
    if (each.path().extension() == ".json") configs.push_back(each.path().string());
  }
  std::ranges::sort(configs);
  REQUIRE(configs.size() > 40);
  const auto count = static_cast<unsigned>(configs.size());
  const bool all = std::getenv("PIPEWRIGHT_LONG") != nullptr;  // a minute; else every third family
  check_laws(test::draws(all ? count : count / 3, "PIPEWRIGHT_LAWS"),
             [&](unsigned seed) { return test::drawn(seed, configs[(all ? seed : 3 * seed) % count]); });
}

}  // namespace one_change_test
