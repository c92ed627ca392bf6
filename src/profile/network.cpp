// Collectives over several NVLink domains, and token dispatchers.
//
// NCCL (NVIDIA/nccl 2.30.7, 5067397c): ncclTopoGetAlgoTime takes   t = latency + moved / bandwidth   and the best of
// the protocols and algorithms (src/graph/tuning.cc:653). Rings of n ranks in d domains pass every byte through all
// ranks: of n edges d cross the network, and as many rings run as there are cards, so that each rank of a domain sends
// moved x d/n through its own card. An all-to-all sends its own domain's part over NVLink and the rest through the
// card, at once; with PXN a message first goes over NVLink to the GPU on whose card it leaves.
//
// DeepEP and HybridEP send a token once to each domain that one of its experts lives in, and from there over NVLink to
// every GPU that has one. Three things bound them: the card, NVLink, and the multiprocessors that copy.
#include "pipewright/network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "interpolate.hpp"

namespace pipewright::profile {
namespace {

using Kind = Exchange::Kind;
using Library = Exchange::Library;

std::int64_t over(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Ranks of a group among `gpus` neighbours.
std::int64_t ranks_among(std::int64_t gpus, const Exchange& e) {
  return std::clamp<std::int64_t>(gpus / e.stride, 1, e.ranks);
}

/// ... below one switch of the height `level`.
std::int64_t ranks_below(const Topology& topology, const Exchange& e, std::size_t level) {
  const auto room = ranks_among(topology.switches[level].gpus, e);
  const auto fewest = level < e.fewest_below.size() ? e.fewest_below[level] : 0;
  return fewest > 0 ? std::min(fewest, room) : room;
}

double passes(Kind kind) { return kind == Kind::all_reduce ? 2 : 1; }

/// What every rank of a ring passes on.
double moved(const Exchange& e) {
  const auto n = static_cast<double>(e.ranks);
  return passes(e.kind) * (n - 1) / n * e.bytes;
}

// ---- NCCL's model of rings and trees between nodes, src/graph/tuning.cc

/// Protocols LL, LL128, Simple. Base latencies and those of a step, us (:151-174); a step over NVLink costs no less
/// than the network's own overhead (Intel hosts: 1 us, three times that with Simple, :228-233 and :404-412).
constexpr std::size_t protocols = 3;
struct Algorithm {
  std::array<double, protocols> base, inside, network, share;  ///< share: of the bus bandwidth (:327-336)
};
constexpr double simple_step_us = 14;  ///< what `latency_us` of a link or a cluster stands for
constexpr Algorithm ring = {{6.6, 14, 8.4}, {1, 1.9, 3.4}, {2.7, 4.0, simple_step_us}, {0.5, 0.92, 1}};
constexpr Algorithm tree = {{6.8, 14, 8.4}, {0.6, 1.25, 4.0}, {5, 8.5, simple_step_us}, {1 / 3.8, 0.92, 0.92}};

double nccl_ns(const Exchange& e, double latency_us, double domains, double bus) {
  const auto n = static_cast<double>(e.ranks);
  const double slower = latency_us / simple_step_us;  // than the network that NCCL's figures stand for
  // A step over the network is none faster than one inside.
  const auto step = [&](const Algorithm& a, std::size_t p) { return std::max(a.inside[p], a.network[p] * slower); };
  double best = std::numeric_limits<double>::max();
  for (std::size_t p = 0; p < protocols; ++p) {
    const double ring_us =
        ring.base[p] + passes(e.kind) * ((n - domains) * ring.inside[p] + (domains - 1) * step(ring, p));
    best = std::min(best, ring_us * 1e3 + moved(e) / (bus * ring.share[p]));
    if (e.kind != Kind::all_reduce) continue;
    const double tree_us = tree.base[p] + 2 * ((n / domains - 1) * tree.inside[p] + std::log2(domains) * step(tree, p));
    best = std::min(best, tree_us * 1e3 + 2 * e.bytes / (bus * tree.share[p]));
  }
  return best;
}

/// Peers of an all-to-all are served eight at a time (src/include/device.h:391), each batch a network step behind the
/// one before.
double batches(std::int64_t ranks) { return static_cast<double>(over(ranks, 8)); }

// ---- Dispatchers

/// GB/s of one multiprocessor are of rows written (a token's copies, one each GPU); shares are of what the profile's
/// links move. By direction: dispatch, combine.
struct DispatcherRates {
  std::array<double, 2> multiprocessor, multiprocessor_alone, nvlink;  ///< alone: in one domain
  double nic;
  double start_us;  ///< barrier and counts before the copies
};
// ai-dynamo/aiconfigurator 095f58a, systems/data/h100_sxm/comm/sglang/0.5.6.post2/wideep_deepep_normal_perf.parquet:
// 4096 tokens of 7168, 8 of 256 experts, dispatch FP8 with scales (7392 B a row), combine bf16. 2 nodes, 20 SMs, 844
// and 2099 us for 26.9e3 rows: 11.8 and 9.2 GB/s an SM (4 to 24 SMs: time x SMs is constant to 12 %). 4 nodes from 16
// SMs on: 45.4 GB/s of the card in combine, whose line the profile takes as 47. One node, 8 SMs: 18.8; from 20 SMs on
// 281 GB/s over NVLink (of 369). notify kernels: 56, 50, 62, 119 us, mean 72.
constexpr DispatcherRates deepep = {{11.8, 9.2}, {18.8, 18.8}, {0.76, 0.76}, 0.966, 72};
// deepseek-ai/DeepEP 5fbafce, docs/README_Hybrid-EP.md, H100, kernel only, bf16, 4096 tokens of 7168, 8 experts a GPU,
// "algorithm bandwidth" (the own node's copy counted). 16 GPUs with 4 SMs: 44.4 and 52.0 GB/s, 36.7 and 42.9 an SM;
// with 8 and 16: 214 and 189 GB/s over NVLink, while the card moves 37 and 33 of the 44 that it moves from four nodes
// on: 32 GPUs with 16 SMs and 64 with 8 and 16, 43.7 +- 0.5 GB/s. One domain (B200, GB200, 16 SMs): an SM copies no
// less than a 16th of 735 GB/s, and in combine no less than between nodes.
constexpr DispatcherRates hybridep = {{36.7, 42.9}, {45.9, 42.9}, {0.58, 0.51}, 0.93, 0};

/// HybridEP in one domain, which falls with its ranks: the same README's GB200 (41cad94), kernel only, bf16, with 16
/// and 32 SMs; "algorithm bandwidth" times (ranks - 1) / ranks goes over NVLink.
struct OneDomain {
  double ranks;
  std::array<double, 2> with_16, with_32;  ///< GB/s: dispatch, combine
};
constexpr std::array<OneDomain, 5> hybridep_gb200 = {{{8, {750.15, 684.27}, {764.03, 737.13}},
                                                      {16, {661.93, 600.75}, {706.95, 666.26}},
                                                      {24, {637.80, 565.53}, {665.97, 639.80}},
                                                      {32, {629.79, 547.25}, {642.23, 605.15}},
                                                      {36, {612.85, 543.27}, {632.31, 596.99}}}};
/// Of NVLink's line, what NCCL takes a link to carry: SM90_NVLINK_BW of 25 GB/s, src/graph/topo.h (SM100's: 40.1 of
/// 50). That is what a profile's link is, too: its send/recv between two GPUs.
constexpr double nccl_of_the_line = 20.6 / 25;

/// Of what a profile's NVLink carries, what a dispatcher reaches in one domain of `ranks`. Times are linear in 1/SMs
/// and in the ranks' logarithm.
double share_alone(const Exchange& e, std::size_t way) {
  if (e.library == Library::deepep) return deepep.nvlink[way];
  const auto& table = hybridep_gb200;
  const double ranks = std::clamp(static_cast<double>(e.ranks), table.front().ranks, table.back().ranks);
  const double sms = std::clamp(static_cast<double>(e.multiprocessors), 16.0, 32.0);
  const auto a_byte = [&](const OneDomain& row) {  // over NVLink
    const double few = 1 / row.with_16[way], many = 1 / row.with_32[way];
    return (many + (few - many) * (32 / sms - 1)) * row.ranks / (row.ranks - 1);
  };
  std::size_t above = 1;
  while (table.at(above).ranks < ranks) ++above;
  const OneDomain &lower = table.at(above - 1), &upper = table.at(above);
  const double part = std::log(ranks / lower.ranks) / std::log(upper.ranks / lower.ranks);
  const double link = nccl_of_the_line * data_sheet("gb200-nvl72").nvlink_gbytes_per_s.value;
  return 1 / (std::lerp(a_byte(lower), a_byte(upper), part) * link);
}

struct Bound {
  double ns = 0, gbytes_per_s = 0;
  std::string_view by;
};
Bound dispatcher_bound(const Exchange& e, const Network& network, const Traffic& t, double nvlink, bool one_domain) {
  const DispatcherRates& rates = e.library == Library::deepep ? deepep : hybridep;
  const std::size_t way = e.kind == Kind::dispatch ? 0 : 1;
  // The busiest rank copies and receives more; the cards of its domain share what comes for it.
  const double here = static_cast<double>(ranks_in_domain(network.topology, e));
  const double busiest_card = 1 + (e.busiest - 1) / here;
  const double copied = e.bytes * e.gpus_a_token * e.busiest;
  const double an_sm = (one_domain ? rates.multiprocessor_alone : rates.multiprocessor)[way];
  const double share = one_domain ? share_alone(e, way) : rates.nvlink[way];
  Bound longest;
  const auto takes = [&](double bytes, double rate, std::string_view by) {
    if (bytes / rate > longest.ns) longest = {bytes / rate, rate, by};
  };
  takes(copied, an_sm * static_cast<double>(std::max<std::int64_t>(1, e.multiprocessors)), "multiprocessors");
  takes(t.bytes[0] * e.busiest, share * nvlink, "NVLink");
  takes(t.bytes[1] * busiest_card, rates.nic * network.nic_gbytes_per_s, "card");
  for (std::size_t up = 2; up < t.bytes.size(); ++up)
    takes(t.bytes[up] * busiest_card, network.nic_gbytes_per_s / network.topology.switches[up - 2].oversubscription,
          "switches");
  longest.ns += rates.start_us * 1e3 + (one_domain ? 0 : network.latency_us * 1e3);
  return longest;
}

/// Of the numbers of ranks that a profile measured this family with, the nearest one by ratio; 0: none.
std::int64_t nearest_measured(const Profiles& profiles, const std::string& family, std::int64_t ranks) {
  std::int64_t nearest = 0;
  const auto apart = [&](std::int64_t n) {
    return std::abs(std::log(static_cast<double>(n) / static_cast<double>(ranks)));
  };
  for (const Profile& p : profiles.all()) {
    const auto found = p.samples.find(family);
    if (found == p.samples.end()) continue;
    for (const Sample& s : found->second)
      if (nearest == 0 || apart(s.dims[0]) < apart(nearest)) nearest = s.dims[0];
  }
  return nearest;
}

/// The network that the profile's samples between domains were taken on: its link's figures, whatever a cluster states.
Network as_measured(const Topology& topology, const Profiles& profiles) {
  Topology there;
  there.gpus_per_node = topology.gpus_per_node;
  there.domain = topology.domain;
  there.inside = topology.inside;
  there.between = topology.between;
  if (const auto domain = profiles.link(topology.between).nvlink_domain; domain > 0)
    there.gpus_per_node = there.domain = domain;
  return network(there, profiles);
}

Key in_family(Kind kind, const std::string& link, std::int64_t ranks, double bytes) {
  return {std::string(name(kind)) + "." + link, {ranks, std::llround(bytes)}};
}

}  // namespace

std::string_view name(Exchange::Kind kind) {
  constexpr std::array<std::string_view, 7> names = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                                     "dispatch",   "combine",        "send_recv"};
  return names.at(static_cast<std::size_t>(kind));
}

Network network(const Topology& topology, const Profiles& profiles) {
  const Link& link = profiles.link(topology.between);
  constexpr double line_gbits = 400, bits = 8;  // of the cards that a link class without a figure stands for
  const auto gpus = static_cast<double>(topology.gpus_per_node);
  Network n;
  n.topology = topology;
  n.card_gbytes_per_s = link.gbytes_per_s;
  // A line carries 46 to 48 GB/s of its 50 (NVIDIA/nccl-tests issue 290): the link's figure, or 0.94 of the stated
  // line.
  constexpr double of_the_line = 47 / (line_gbits / bits);
  if (topology.nic_gbits) n.card_gbytes_per_s = *topology.nic_gbits / bits * of_the_line;
  if (topology.gbytes_per_s) n.card_gbytes_per_s = *topology.gbytes_per_s;
  const double cards = topology.nics_per_node ? static_cast<double>(*topology.nics_per_node)
                                              : gpus / static_cast<double>(link.gpus_per_port);
  n.nic_gbytes_per_s = n.card_gbytes_per_s * cards / gpus;
  n.latency_us = topology.latency_us.value_or(link.latency_us);
  return n;
}

std::int64_t ranks_in_domain(const Topology& topology, const Exchange& e) {
  const auto room = ranks_among(topology.domain, e);
  return e.fewest_together > 0 ? std::min(e.fewest_together, room) : room;
}

std::int64_t domains(const Topology& topology, const Exchange& e) {
  return over(e.ranks, ranks_in_domain(topology, e));
}

Traffic traffic(const Topology& topology, const Exchange& e) {
  const std::int64_t here = ranks_in_domain(topology, e);
  const auto n = static_cast<double>(e.ranks), m = static_cast<double>(here);
  const auto d = static_cast<double>(domains(topology, e));
  Traffic t;
  t.bytes.assign(2 + topology.switches.size(), 0);
  if (e.ranks < 2) return t;
  // Of what crosses the cards, the part that goes beyond a switch with `k` of the group's ranks.
  const auto beyond = [&](const auto& part) {
    for (std::size_t s = 0; s < topology.switches.size(); ++s) {
      const auto k = std::max(here, ranks_below(topology, e, s));
      if (d > 1 && k < e.ranks) t.bytes[2 + s] = part(static_cast<double>(k));
    }
  };
  switch (e.kind) {
    case Kind::all_gather:
    case Kind::reduce_scatter:
    case Kind::all_reduce: {
      const double crossing = d > 1 ? n / m : 0;  // edges of the ring over the cards of the fewest
      t.bytes[0] = moved(e) * (n - crossing) / n;
      t.bytes[1] = moved(e) * crossing / n;
      beyond([&](double k) { return moved(e) * std::ceil(n / k) / n; });
      return t;
    }
    case Kind::all_to_all:
      t.bytes[0] = e.bytes * (m - 1) / n;
      t.bytes[1] = e.bytes * (n - m) / n;
      t.relayed = t.bytes[1] * (m - 1) / m;
      beyond([&](double k) { return e.bytes * (n - std::max(k, m)) / n; });
      return t;
    case Kind::send_recv:
      t.bytes[d > 1 ? 1 : 0] = e.bytes;
      return t;
    case Kind::dispatch:
    case Kind::combine:
      t.bytes[1] = e.bytes * e.domains_a_token * (d - 1) / d;
      t.bytes[0] = e.bytes * e.gpus_a_token * (m - 1) / m;
      beyond([&](double k) { return d > 1 ? t.bytes[1] * (d - std::max(1.0, k / m)) / (d - 1) : 0; });
      return t;
  }
  throw InternalError("kind of exchange out of range");
}

namespace {

Timing model_time(const Profiles& profiles, const Network& network, const Exchange& e) {
  const Topology& topology = network.topology;
  const std::int64_t here = ranks_in_domain(topology, e), d = domains(topology, e);
  const bool dispatches = e.kind == Kind::dispatch || e.kind == Kind::combine;
  const Traffic t = traffic(topology, e);
  const double nvlink = profiles.link(topology.inside).gbytes_per_s;
  // The slowest level of a ring bounds what it moves; each carries the part of the edges that it has.
  double slowest = 0;
  for (std::size_t up = 1; up < t.bytes.size(); ++up) {
    const double less = up == 1 ? 1 : topology.switches[up - 2].oversubscription;
    slowest = std::max(slowest, t.bytes[up] * less / network.nic_gbytes_per_s);
  }
  Timing result;
  result.spread = untested_error;
  result.origin = Origin::derived;
  result.profile = profiles.first().name;
  if (dispatches) {
    const Bound bound = dispatcher_bound(e, network, t, nvlink, d == 1);
    result.ns = bound.ns;
    result.note = fmt::format(
        "{} by its published rates: {:.0f} MB over NVLink, {:.0f} MB through the card, {} SMs; {} at {:.1f} GB/s "
        "longest",
        e.library == Library::deepep ? "DeepEP" : "HybridEP", t.bytes[0] / 1e6, t.bytes[1] / 1e6, e.multiprocessors,
        bound.by, bound.gbytes_per_s);
    return result;
  }
  result.note = fmt::format("NCCL's model over {} domains of {}: {:.0f} MB over NVLink, {:.0f} MB through the card", d,
                            here, (t.bytes[0] + t.relayed) / 1e6, t.bytes[1] / 1e6);
  const auto inside_ns = [&](std::int64_t ranks, double bytes) {
    return profiles.time(in_family(e.kind, topology.inside, ranks, bytes)).ns;
  };
  if (e.kind == Kind::all_to_all) {
    const double steps = batches(e.ranks) * network.latency_us * 1e3;
    double inside = t.relayed / nvlink;
    if (here > 1) inside += inside_ns(here, e.bytes * static_cast<double>(here) / static_cast<double>(e.ranks));
    result.ns = std::max(inside, ring.base[protocols - 1] * 1e3 + steps + slowest);
  } else {
    double bus = slowest > 0 ? moved(e) / slowest : std::numeric_limits<double>::max();
    if (here >
        1) {  // rings pass everything over NVLink, at the rate that they reach inside a domain, without latencies
      constexpr double large = 256 << 20;
      Exchange inside = e;
      inside.ranks = here;
      inside.bytes = large;
      bus = std::min(bus, moved(inside) / (inside_ns(here, 2 * large) - inside_ns(here, large)));
    }
    result.ns = nccl_ns(e, network.latency_us, static_cast<double>(d), bus);
  }
  // No network makes an exchange faster than one domain does.
  result.ns = std::max(result.ns, inside_ns(e.ranks, e.bytes));
  return result;
}

/// Of `gpus` neighbours that send to the GPU `distance` on: the most that share a switch of `unit` GPUs and send beyond
/// it.
std::int64_t most_leaving(std::int64_t unit, std::int64_t first_gpu, std::int64_t gpus, std::int64_t distance) {
  std::int64_t most = 0;
  for (std::int64_t start = first_gpu / unit * unit; start < first_gpu + gpus; start += unit) {
    std::int64_t from = std::max(start, first_gpu), before = std::min(start + unit, first_gpu + gpus);
    if (distance > 0)
      from = std::max(from, start + unit - distance);
    else
      before = std::min(before, start - distance);
    most = std::max(most, before - from);
  }
  return most;
}

/// The slowest of a ring's senders: those at the end of a domain or below the highest switch that the ring leaves, as
/// many at once as there are rings beside it.
Timing ring_step(const Profiles& profiles, const Network& network, const Exchange& e) {
  const Topology& topology = network.topology;
  const auto bytes = std::llround(e.bytes);
  if (domains(topology, e) == 1) return profiles.time({"send_recv." + topology.inside, {bytes}});
  std::int64_t leaves = topology.domain;
  Network shared = network;
  for (std::size_t s = 0; s < topology.switches.size(); ++s) {
    if (ranks_below(topology, e, s) < e.ranks) leaves = std::max(leaves, topology.switches[s].gpus);
    // Of rings across its end two leave it, one on its way and one on its way back.
    if (s < e.fewest_below.size() && e.fewest_below[s] > 0) shared.topology.switches[s].oversubscription *= 2;
  }
  return transfer_time(profiles, shared, std::max<std::int64_t>(0, leaves - e.stride), e.stride, e.stride, bytes);
}

}  // namespace

Timing time(const Profiles& profiles, const Network& network, const Exchange& e) {
  const Topology& topology = network.topology;
  const bool dispatches = e.kind == Kind::dispatch || e.kind == Kind::combine;
  if (dispatches) return model_time(profiles, network, e);
  if (e.kind == Kind::send_recv) return ring_step(profiles, network, e);
  if (domains(topology, e) == 1) return profiles.time(in_family(e.kind, topology.inside, e.ranks, e.bytes));
  if (e.stride != 1 || e.fewest_together > 0 || e.ranks % topology.domain != 0) return model_time(profiles, network, e);
  const std::string family = fmt::format("{}.{}", name(e.kind), topology.between);
  const std::int64_t nearest = nearest_measured(profiles, family, e.ranks);
  Timing result = model_time(profiles, network, e);
  if (nearest == 0) return result;
  const Network there = as_measured(topology, profiles);
  Exchange measured = e;
  measured.ranks = nearest;
  const Timing known = profiles.time({family, {nearest, std::llround(e.bytes)}});
  const double modelled = model_time(profiles, there, measured).ns;
  if (nearest == e.ranks && there.topology.domain == topology.domain && modelled == result.ns) return known;
  const double off = known.ns / modelled;
  result.ns *= off;
  result.note += fmt::format(", times {:.2f}: what {} ranks were measured to take over it", off, nearest);
  return result;
}

std::optional<double> step_latency_us(const Topology& topology, const Exchange& e, double ns) {
  const double d = static_cast<double>(domains(topology, e));
  const auto at = [&](double us) {
    if (e.kind == Kind::all_to_all) return ring.base[protocols - 1] * 1e3 + batches(e.ranks) * us * 1e3;
    Exchange empty = e;
    empty.bytes = 0;
    return nccl_ns(empty, us, d, 1);
  };
  double low = 0, high = 1e4;  // us
  if (d < 2 || at(low) >= ns || at(high) <= ns) return std::nullopt;
  for (int halvings = 0; halvings < 60; ++halvings) (at((low + high) / 2) < ns ? low : high) = (low + high) / 2;
  return low;
}

Timing transfer_time(const Profiles& profiles, const Network& network, std::int64_t first_gpu, std::int64_t gpus,
                     std::int64_t distance, std::int64_t bytes) {
  const Topology& topology = network.topology;
  const auto crosses = [&](std::int64_t size) {  // does a GPU of the stage have its peer beyond a group of this size?
    for (std::int64_t gpu = first_gpu; gpu < first_gpu + gpus; ++gpu)
      if (gpu / size != (gpu + distance) / size) return true;
    return false;
  };
  const Timing inside = profiles.time({"send_recv." + topology.inside, {bytes}});
  if (!crosses(topology.domain)) return inside;
  // All GPUs of the stage send at once: those of a node share its cards, those below a switch its way up.
  const double sharers =
      std::clamp(network.card_gbytes_per_s / network.nic_gbytes_per_s, 1.0,
                 static_cast<double>(std::max<std::int64_t>(1, std::min(gpus, topology.gpus_per_node))));
  double slower = sharers;
  // A switch's way up is sized by the cards of all GPUs below it, however many of these send beyond it.
  for (const Switches& s : topology.switches) {
    const double senders = static_cast<double>(most_leaving(s.gpus, first_gpu, gpus, distance));
    slower = std::max(slower, network.card_gbytes_per_s / network.nic_gbytes_per_s * s.oversubscription * senders /
                                  static_cast<double>(s.gpus));
  }
  Timing t = profiles.time({"send_recv." + topology.between, {bytes}});
  const Link& link = profiles.link(topology.between);
  // Of a measured time the wire's part is as fast as it was measured, the link's latency and the rest stay.
  const double wire = std::clamp(t.ns - us_to_ns(link.latency_us), 0.0, static_cast<double>(bytes) / link.gbytes_per_s);
  t.ns += us_to_ns(network.latency_us - link.latency_us) +
          wire * (slower * link.gbytes_per_s / network.card_gbytes_per_s - 1);
  t.ns = std::max(t.ns, inside.ns);  // as above: no network is faster than a domain
  return t;
}

}  // namespace pipewright::profile
