// The 90 % interval of a step: the root of the sum of squares of named causes, each with the source of its size.
// Kernels of one family err together (same clock, same interpolation), families apart; those of one public table err
// together whatever their family (same machine, same library). A kernel counts with its time on the rank that finishes
// last. The machine differs from the profiled one as a whole.
//
// Hosts differ by more than that, and not in proportion: a step that hides its host's work waits for a slower one. The
// ends also cover the step with a slower and with a faster host (docs/hosts.md).
#include "interval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/context.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/norms.hpp"

namespace pipewright::predict {
namespace {

/// Collectives under another tuning of NCCL than the profile's: two builds' tables of one machine differed by 1 to 13 %
/// in time (nccl-tests of this profile and of NVIDIA's aiconfigurator, 4 MB and more).
constexpr double untold_tuning = 0.1;
/// Permutation is priced as TE's fused kernels; without moe_permute_fusion a sort, an index and a copy move the rows
/// once more (moe_utils.py permute, unpermute).
constexpr double unfused_permutation = 1.0;

struct FamilyTime {
  double ns = 0;
  double spread_ns = 0;  // sum of time x spread: errors inside a family do not cancel
  profile::Origin origin = profile::Origin::measured;
  std::string profile, note;
};

struct Kernels {
  std::map<std::string, FamilyTime> families;
  double by_origin[4] = {0, 0, 0, 0};  ///< as profile::Origin counts
};

Kernels kernels_of(const Run& run, const timeline::Prices& prices, int rank) {
  Kernels all;
  std::unordered_map<const model::Kernel*, FamilyTime*> families;  // a kernel has many nodes
  const auto& graph = run.timeline.graph;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const timeline::Label& label = graph.labels[i];
    if (label.rank != rank || label.kind != timeline::NodeKind::kernel) continue;
    const model::Kernel* kernel = timeline::kernel_of(run.stages, label);
    const timeline::Price* price = nullptr;
    if (label.piece() != timeline::Label::none) {
      price = &prices.pieces[label.piece()][label.kernel()];
    } else if (label.phase == 1) {
      price = &prices.finalize[rank][label.kernel()];
    } else if (label.phase == 2) {
      price = &prices.optimizer[rank][label.kernel()];
    }
    if (!kernel || !price) continue;  // gradient and parameter collectives beside the schedule: mostly hidden
    FamilyTime*& known = families[kernel];
    if (known == nullptr) known = &all.families[kernel->key.family];
    FamilyTime& family = *known;
    const auto ns = static_cast<double>(graph.duration_ns[i]);
    family.ns += ns;
    family.spread_ns += ns * price->time.spread;
    all.by_origin[static_cast<std::size_t>(price->time.origin)] += ns;
    if (price->time.origin >= family.origin) {
      family.origin = price->time.origin;
      if (family.note != price->time.note) family.note = price->time.note;
    }
    if (family.profile != price->time.profile) family.profile = price->time.profile;
  }
  return all;
}

OriginShares shares_of(const Kernels& kernels) {
  const auto& [measured, interpolated, published, derived] = kernels.by_origin;
  const double all = measured + interpolated + published + derived;
  if (all <= 0) return {1, 0, 0, 0};
  return {measured / all, interpolated / all, published / all, derived / all};
}

bool communicates(const std::string& family) { return profile::family(family).load == profile::Load::network; }

bool permutes(const std::string& family) {
  return family == "moe.row_id_map" || family.starts_with("moe.permute") || family.starts_with("moe.unpermute") ||
         family.starts_with("moe.sort");
}

/// None that was measured is faster than the reference host.
constexpr double fastest_host = 1;

/// The step on other hosts, by the chunk-level engine at a glance: one that just hides its host's work waits for a
/// slower one. As far off as 90 % of them are: one machine from run to run where the host is stated or was measured
/// (host.run_spread), any machine otherwise (host.spread, and at least the slowest that was measured).
struct OtherHosts {
  double longer_ns = 0, shorter_ns = 0;
  double slow_factor = 1, fast_factor = 1;
  bool known = false;
  IntervalPart part() const {
    return {"hosts", shorter_ns, longer_ns,
            fmt::format("the step on hosts {:.2f} to {:.2f} times the reference: {}", fast_factor, slow_factor,
                        known ? "one machine from run to run (host.run_spread)"
                              : "whose host it is was not said (host.spread, host.slowest_factor)")};
  }
};

/// forward-backward and optimizer of the same program (stages are the same on every host) by the chunk-level engine.
double estimated(const scenario::Scenario& scenario, const Run& run, const profile::Profiles& profiles, bool glance) {
  const auto& config = run.program.config;
  const auto quick = timeline::estimate(scenario, run.stages, config, profiles,
                                        timeline::price(scenario, run.stages, profiles), {}, glance);
  const auto step = quick ? *quick : timeline::extrapolate(scenario, run.stages, config, profiles);
  return static_cast<double>(std::max<std::int64_t>(1, step.forward_backward + step.optimizer));
}

OtherHosts other_hosts(const Prediction& prediction, const scenario::Scenario& scenario, const Run& run,
                       const profile::Profiles& profiles) {
  const auto look = [&](double factor) {
    scenario::Scenario with = scenario;
    with.cluster.host_time_factor = factor;
    return estimated(with, run, profiles, true);
  };
  OtherHosts result;
  // A derived profile's factor is a guess.
  const bool measured = profiles.find_scalar("host.time_factor") &&
                        profiles.scalar("host.time_factor").origin == profile::Origin::measured;
  result.known = scenario.cluster.host_time_factor || measured;
  const double strange = profiles.find_scalar("host.spread").value_or(0);
  const double spread = result.known ? profiles.find_scalar("host.run_spread").value_or(strange) : strange;
  const double own = timeline::host_time_factor(scenario, profiles), off = sigmas_of_90_percent * spread;
  double fast = own * std::max(0.0, 1 - off);
  result.slow_factor = own * (1 + off);
  if (!result.known) {
    fast = std::min(own, std::max(fast, fastest_host));
    result.slow_factor = std::max(result.slow_factor, profiles.find_scalar("host.slowest_factor").value_or(0));
  }
  result.fast_factor = std::min(fast, own);
  if (result.slow_factor == own) return result;
  const double reference = look(own), step = static_cast<double>(prediction.step_ns);
  result.longer_ns = std::max(0.0, look(result.slow_factor) / reference - 1) * step;
  if (fast < own) result.shorter_ns = std::max(0.0, 1 - look(fast) / reference) * step;
  return result;
}

/// The step where the copies of a host's GPUs slow each other as on other hosts, which differ more than their cores do
/// (spreads of contention.gpus_N.copy_*). Nothing where no GPU copies beside another or the profile is of this host.
std::optional<IntervalPart> other_copies(const Prediction& prediction, const scenario::Scenario& scenario,
                                         const Run& run, const profile::Profiles& profiles) {
  const auto offloads = [](const RankPrediction& rank) { return !rank.walk.offloaded.empty(); };
  if (std::ranges::none_of(prediction.ranks, offloads) || timeline::copying_at_once(scenario) == 1) return {};
  const auto names = timeline::copy_contention(profiles);
  if (std::ranges::all_of(names, [&](const auto& name) { return profiles.scalar(name).spread == 0; })) return {};
  const auto as_on = [&](double sigmas) {
    auto all = profiles.all();
    for (const auto& name : names) {
      auto scalar = profiles.scalar(name);
      scalar.value = std::max(1.0, scalar.value * (1 + sigmas * scalar.spread));
      all.front().scalars[name] = scalar;
    }
    return profile::Profiles(std::move(all));
  };
  const double own = estimated(scenario, run, profiles, false), step = static_cast<double>(prediction.step_ns);
  const auto change = [&](double sigmas) { return (estimated(scenario, run, as_on(sigmas), false) / own - 1) * step; };
  return IntervalPart{"copies of several GPUs", std::max(0.0, -change(-sigmas_of_90_percent)),
                      std::max(0.0, change(sigmas_of_90_percent)),
                      fmt::format("{}: {}", names.front(), profiles.scalar(names.front()).source)};
}

/// The step where cards that a data sheet says do "up to" their line hang in a fabric of the generation before
/// (published_links()), as they can: nobody said which. Nothing where the network is stated or was measured.
std::optional<IntervalPart> other_network(const Prediction& prediction, const scenario::Scenario& scenario,
                                          const Run& run, const profile::Profiles& profiles) {
  const auto& c = scenario.cluster;
  if (c.nic_gbits || c.network.bandwidth_gbytes_per_s || c.num_gpus <= scenario::nvlink_domain(scenario)) return {};
  const profile::Link& line = profiles.link(c.inter_node_link);
  const auto& all = profile::published_links();
  const auto before = std::ranges::find(all, line.name, &profile::Link::name);
  if (line.origin != profile::Origin::derived || before == all.end() || before->gbytes_per_s >= line.gbytes_per_s)
    return {};
  scenario::Scenario slower = scenario;
  slower.cluster.network.bandwidth_gbytes_per_s = before->gbytes_per_s;
  const double own = estimated(scenario, run, profiles, true), step = static_cast<double>(prediction.step_ns);
  const double longer = std::max(0.0, estimated(slower, run, profiles, true) / own - 1) * step;
  return IntervalPart{"network", 0, longer,
                      fmt::format("cards of {:.0f} GB/s in a fabric of {:.0f}: cluster.nic_gbits was not said ({})",
                                  line.gbytes_per_s, before->gbytes_per_s, line.source)};
}

/// What errs together: a family, or all kernels of one kind that a public table tells.
std::string errs_with(const std::string& name, const FamilyTime& family) {
  if (family.origin != profile::Origin::published) return name;
  return "table " + std::to_string(static_cast<int>(profile::family(name).load));
}

/// What load adds by the law of clocks, by kind of kernel at the rank's mean duty.
double slowed_by_load(const scenario::Scenario& scenario, const Run& run, const Kernels& kernels,
                      const profile::Profiles& profiles) {
  const auto law = timeline::clock_law(scenario, profiles);
  const auto rank = static_cast<std::size_t>(run.timeline.last_rank);
  if (!law || rank >= run.timeline.duty.size()) return 0;
  double ns = 0;
  for (const auto& [name, family] : kernels.families) {
    const auto load = profile::family(name).load;
    if (load != profile::Load::matrix && load != profile::Load::attention && load != profile::Load::memory) continue;
    ns += family.ns * (1 - 1 / std::max(1.0, law->slowdown(load, run.timeline.duty[rank])));
  }
  return ns;
}

/// The causes that widen to both sides alike, each by what holds 90 % of it.
std::vector<IntervalPart> causes(const scenario::Scenario& scenario, const Run& run, const Kernels& kernels,
                                 const profile::Profiles& profiles, double step) {
  std::vector<IntervalPart> parts;
  const auto add = [&](std::string cause, double sigma_ns, std::string source) {
    const double half = sigmas_of_90_percent * sigma_ns;
    if (half > 0) parts.push_back({std::move(cause), half, half, std::move(source)});
  };
  const auto scalar = [&](const char* name) -> std::pair<double, std::string> {
    if (!profiles.find_scalar(name)) return {0, ""};
    const auto& s = profiles.scalar(name);
    return {s.value, std::string(name) + ": " + s.source};
  };
  // By cause: what errs together is added up, what errs apart by squares.
  std::map<std::string, std::map<std::string, double>> together;
  double tuned_ns = 0, unfused_ns = 0;
  for (const auto& [name, family] : kernels.families) {
    const bool exchange = communicates(name);
    together[exchange ? "exchanges" : "kernels, " + std::string(profile::name(family.origin))]
            [errs_with(name, family)] += family.spread_ns;
    if (exchange) tuned_ns += family.ns;
    if (permutes(name)) unfused_ns += family.ns;
  }
  static const std::map<std::string, std::string> sources = {
      {"exchanges", "nccl-tests of the profile; what the network's model tells counts as known to 10 %"},
      {"kernels, measured", "spread of the samples"},
      {"kernels, interpolated", "each sample told from its neighbours: the family's `interpolation`"},
      {"kernels, derived", "the samples' spread: what tables of such kernels were off what was derived"},
      {"kernels, public", "what two tables of one kernel differ by (docs/public-tables.md)"}};
  for (const auto& [cause, groups] : together) {
    double variance = 0;
    for (const auto& [group, ns] : groups) variance += ns * ns;
    add(cause, std::sqrt(variance), sources.at(cause));
  }
  const auto [machine, of_machines] = scalar("machine.spread");
  add("machines and days", machine * step, of_machines);
  const auto [law, of_law] = scalar("clocks.law_spread");
  add("law of clocks", law * slowed_by_load(scenario, run, kernels, profiles), of_law);
  if (!scenario::tunings(scenario).empty())
    add("NCCL's tuning", untold_tuning * std::min(tuned_ns, step),
        "two builds' tables of one machine differed by 1 to 13 % in time");
  if (scenario.model.num_moe_experts && !scenario.settings.moe_permute_fusion)
    add("permutation that is not fused", unfused_permutation * std::min(unfused_ns, step),
        "priced as the fused kernels, which move the rows once less");
  // Without a DeepEP that fuses them Megatron itself falls back to kernels of their own (fused_a2a.py,
  // HybridEPDispatch).
  const auto& o = scenario.settings;
  if (scenario.model.num_moe_experts && o.moe_token_dispatcher_type == "flex" &&
      o.moe_flex_dispatcher_backend == "hybridep" && o.moe_permute_fusion_into_hybridep)
    add("permutation inside HybridEP", std::min(unfused_ns, step),
        "priced as kernels of its own, which is the most that it takes; nobody has published the fused one's time");
  return parts;
}

std::string whole_percent(double share) { return std::to_string(std::llround(100 * share)) + " %"; }

struct LeftOut {
  std::string what, why;
};

/// What is known to be missing, by how much runs differed; docs/fsdp.md, docs/context-parallelism.md and
/// docs/accuracy-published.md have the runs.
std::vector<LeftOut> left_out(const scenario::Scenario& scenario) {
  std::vector<LeftOut> result;
  if (scenario.settings.use_megatron_fsdp)
    result.push_back(
        {"ranks that wait for each other's hosts with Megatron-FSDP",
         "with Megatron-FSDP ranks wait for each other's hosts after every loss, which is not modelled; measured runs "
         "took 6 % (DP 4) and 7 % (DP 2) longer, their peaks were met"});
  if (scenario.settings.attention_backend == "flash" && scenario.settings.transformer_impl == "transformer_engine")
    result.push_back({"how FlashAttention's kernels differ from cuDNN's",
                      "attention_backend flash is priced with cuDNN's kernels: no profile has FlashAttention's"});
  const auto sharing = scenario::ignores(scenario, "cp_comm_type") ? std::nullopt : scenario::context_sharing(scenario);
  if (sharing && sharing->gathers)
    result.push_back({"what context parallelism by all_gather does beside its kernels and exchanges",
                      "measured runs with cp_comm_type all_gather (CP 2 and 4) took 3 and 5 % longer, their peaks were "
                      "met"});
  if (scenario.settings.cuda_graph_impl == "local")
    result.push_back({"what Megatron's own CUDA graphs take beside their kernels and copies",
                      "cuda_graph_impl local follows Megatron's code, its host is that of Transformer Engine's graphs; "
                      "no run with it was recorded"});
  if (scenario::has_linear_attention(scenario) && scenario.settings.cuda_graph_impl == "transformer_engine")
    result.push_back({"what graphs of gated delta nets take beside their kernels and copies",
                      "CUDA graphs of layers with gated delta nets follow Megatron's and Transformer Engine's code, no "
                      "run with them was recorded"});
  if (scenario::norms_in_eager_operations(scenario))
    result.push_back({"what eager norms of queries and keys take beside their kernels",
                      "norms over all heads of a token (MiniMax-M2) follow Megatron Bridge's code, operation by "
                      "operation; no run with them was recorded"});
  if (scenario.model.scale_queries_by_position)
    result.push_back(
        {"what scaled queries take beside their kernels",
         "queries times a factor of their position (Ministral 3) follow Megatron Bridge's code; no run with "
         "them was recorded"});
  if (!scenario.model.pre_layernorm)
    result.push_back({"what linear layers without a norm before them take beside their kernels",
                      "layers without norms before attention and MLP (EXAONE 4) follow Megatron Bridge's code; no run "
                      "with them was recorded"});
  return result;
}

}  // namespace

std::string OriginShares::text() const {
  std::string text;
  for (const auto& [share, name] : {std::pair(measured, "measured"), std::pair(interpolated, "interpolated"),
                                    std::pair(published, "public"), std::pair(derived, "derived")}) {
    if (std::llround(100 * share) > 0) text += (text.empty() ? "" : ", ") + whole_percent(share) + " " + name;
  }
  return text;
}

std::string_view OriginShares::weakest() const {
  constexpr double counts = 1e-3;
  return profile::name(derived > counts        ? profile::Origin::derived
                       : published > counts    ? profile::Origin::published
                       : interpolated > counts ? profile::Origin::interpolated
                                               : profile::Origin::measured);
}

void judge(Prediction& prediction, const scenario::Scenario& scenario, const Run& run,
           const profile::Profiles& profiles) {
  const Kernels kernels = kernels_of(run, run.timeline.prices, run.timeline.last_rank);
  const auto step = static_cast<double>(std::max<std::int64_t>(prediction.step_ns, 1));
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, family] : kernels.families) order.push_back({-family.ns, name});
  std::sort(order.begin(), order.end());
  for (const auto& [ns, name] : order) {
    const FamilyTime& family = kernels.families.at(name);
    std::string text = family.profile + ", " + std::string(profile::name(family.origin));
    if (!family.note.empty()) text += ": " + family.note;
    prediction.time_sources.push_back({name, text});
  }
  auto& parts = prediction.interval_parts;
  parts = causes(scenario, run, kernels, profiles, step);
  double variance = 0;
  for (const auto& part : parts) variance += part.plus_ns * part.plus_ns;
  const double half = std::sqrt(variance);
  const OtherHosts others = other_hosts(prediction, scenario, run, profiles);
  if (others.longer_ns > 0 || others.shorter_ns > 0) parts.push_back(others.part());
  const auto copies = other_copies(prediction, scenario, run, profiles);
  if (copies) parts.push_back(*copies);
  const auto network = other_network(prediction, scenario, run, profiles);
  if (network) parts.push_back(*network);
  const double slower = std::hypot(others.longer_ns, network ? network->plus_ns : 0);
  // Far from what was measured a step may be known to less than itself; none takes less than no time.
  const double shorter = std::hypot(half, others.shorter_ns, copies ? copies->minus_ns : 0);
  prediction.interval_low_ns = std::llround(std::max(0.0, step - shorter));
  prediction.interval_high_ns = std::llround(step + std::hypot(half, slower, copies ? copies->plus_ns : 0));
  prediction.origins = shares_of(kernels);
  prediction.ignored = scenario::let_through(scenario);

  if (prediction.origins.derived > 0.5)
    prediction.notes.push_back(whole_percent(prediction.origins.derived) +
                               " of the kernels' time is derived, not measured on this part: capture it before "
                               "deciding by a few percent");
  if (!others.known && others.longer_ns > half)
    prediction.notes.push_back(
        fmt::format("hosts decide: on one {:.2g} times as slow as the reference host the step takes {} longer; "
                    "cluster.host_time_factor states yours",
                    others.slow_factor, whole_percent(others.longer_ns / step)));
  std::string names;
  for (const auto& name : prediction.ignored) names += (names.empty() ? "" : ", ") + name;
  if (!names.empty()) prediction.notes.push_back("no interval holds: not modelled, and ignored as asked: " + names);
  for (const auto& [what, why] : left_out(scenario)) {
    prediction.ignored.push_back(what);
    prediction.notes.push_back("no interval holds: " + why);
  }
}

}  // namespace pipewright::predict
