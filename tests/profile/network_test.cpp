// Levels of the network: what crosses them is conserved, faster is never slower, one domain is what was measured.
#include "pipewright/network.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <rapidcheck.h>

#include <cmath>
#include <map>
#include <numeric>

#include "fabricate.hpp"

namespace network_test {

using namespace pipewright;
using namespace pipewright::profile;
using Kind = Exchange::Kind;

namespace {

Exchange exchange(Kind kind, std::int64_t ranks, double bytes, std::int64_t stride = 1) {
  Exchange e;
  e.kind = kind;
  e.ranks = ranks;
  e.stride = stride;
  e.bytes = bytes;
  return e;
}

Exchange dispatch(std::int64_t ranks, double domains, double gpus, double bytes, std::int64_t sms = 20) {
  Exchange e = exchange(Kind::dispatch, ranks, bytes);
  e.library = Exchange::Library::deepep;
  e.domains_a_token = domains;
  e.gpus_a_token = gpus;
  e.multiprocessors = sms;
  return e;
}

Topology nodes_of_8() { return {}; }

const Profiles& shipped(const std::string& name = "h200-sxm") {
  static std::map<std::string, Profiles> loaded;
  const auto known = loaded.find(name);
  if (known != loaded.end()) return known->second;
  return loaded
      .emplace(name, Profiles({load(std::string(std::getenv("PROFILES")) + "/" + name + ".json", {"test", 0})}))
      .first->second;
}

double ns(const Exchange& e, const Topology& t = nodes_of_8(), const Profiles& profiles = shipped()) {
  return time(profiles, network(t, profiles), e).ns;
}

Exchange any_exchange() {
  const auto kind = *rc::gen::element(Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::all_to_all);
  const auto ranks = std::int64_t{1} << *rc::gen::inRange(1, 9);
  const auto stride = std::int64_t{1} << *rc::gen::inRange(0, 5);
  return exchange(kind, ranks, std::pow(2.0, *rc::gen::inRange(10, 30)), stride);
}

/// Tokens go to eight of 256 experts.
Exchange with_units(Exchange e, const Topology& t) {
  const auto units = [](std::int64_t u) {
    double missed = 1;
    for (int i = 0; i < 8; ++i) missed *= std::max(0.0, 256.0 - i - 256.0 / static_cast<double>(u)) / (256.0 - i);
    return static_cast<double>(u) * (1 - missed);
  };
  e.domains_a_token = units(domains(t, e));
  e.gpus_a_token = units(e.ranks);
  return e;
}

double over_nvlink(const Topology& t, const Exchange& e) {
  const Traffic moved = traffic(t, e);
  return moved.bytes[0] + moved.relayed;
}

Topology any_topology() {
  Topology t;
  t.domain = 1 << *rc::gen::inRange(2, 7);
  t.nics_per_node = 1 << *rc::gen::inRange(0, 5);
  t.nic_gbits = *rc::gen::element(50.0, 100.0, 200.0, 400.0, 800.0);
  t.latency_us = *rc::gen::element(1.0, 5.0, 14.0, 50.0);
  if (*rc::gen::arbitrary<bool>()) {
    const auto lowest = std::max<std::int64_t>(t.domain * 2, 1 << *rc::gen::inRange(4, 8));
    t.switches = {{lowest, *rc::gen::element(1.0, 2.0, 4.0)}, {lowest * 4, *rc::gen::element(1.0, 2.0, 4.0)}};
  }
  return t;
}

/// Of any kind and library, where tokens go as its domains say.
Exchange any_kind(const Topology& t) {
  Exchange e = any_exchange();
  switch (*rc::gen::inRange(0, 8)) {
    case 0:
      e.kind = Kind::send_recv;
      return e;
    case 1:
    case 2:
      e.library = Exchange::Library::deepep;
      break;
    case 3:
    case 4:
      e.library = Exchange::Library::hybridep;
      break;
    default:
      return e;
  }
  e.kind = *rc::gen::element(Kind::dispatch, Kind::combine);
  e.stride = 1;
  e.busiest = *rc::gen::element(1.0, 1.3, 2.0);
  e.multiprocessors = *rc::gen::element(4, 8, 16, 20, 24, 32);
  return with_units(e, t);
}

}  // namespace

TEST_CASE("what leaves a GPU is shared out over NVLink and card, and switches carry a part of the card's") {
  CHECK(rc::check([] {
    const Exchange e = any_exchange();
    Topology t;
    t.switches = {{64, 1}, {512, 2}};
    const Traffic moved = traffic(t, e);
    const auto n = static_cast<double>(e.ranks);
    const double leaves = (e.kind == Kind::all_reduce ? 2 : 1) * (n - 1) / n * e.bytes;
    RC_ASSERT(std::abs(moved.bytes[0] + moved.bytes[1] - leaves) <= 1e-9 * leaves);
    for (std::size_t level = 2; level < moved.bytes.size(); ++level) {
      RC_ASSERT(moved.bytes[level] >= 0);
      RC_ASSERT(moved.bytes[level] <= moved.bytes[level - 1] * (1 + 1e-9));
    }
    if (e.ranks * e.stride <= t.domain) RC_ASSERT(moved.bytes[1] == 0);
  }));
}

TEST_CASE("one domain takes what was measured there") {
  for (const Kind kind : {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::all_to_all}) {
    const auto e = exchange(kind, 4, 1 << 24);
    CHECK(ns(e) == shipped().time({std::string(name(kind)) + ".nvlink", {4, 1 << 24}}).ns);
  }
}

TEST_CASE("a better network, fewer bytes or less imbalance: no exchange is slower") {
  CHECK(rc::check([] {
    const Topology t = any_topology();
    const Exchange e = any_kind(t);
    const Profiles& profiles = shipped(*rc::gen::element("h200-sxm", "h100-sxm", "gb200-nvl72", "b300-sxm"));
    const double before = ns(e, t, profiles);
    const auto no_slower = [&](const char* what, const Exchange& exchange, const Topology& topology, double than = 1) {
      const double after = ns(exchange, topology, profiles) / before;
      if (after > than * (1 + 1e-9)) RC_FAIL(fmt::format("{} {}: {:.4f} of the time", name(e.kind), what, after));
    };
    Topology better = t;
    *better.nic_gbits *= 2;
    no_slower("through faster cards", e, better);
    better = t;
    *better.nics_per_node *= 2;
    no_slower("through more cards", e, better);
    better = t;
    *better.latency_us /= 2;
    no_slower("with less latency", e, better);
    better = t;
    for (auto& s : better.switches) s.oversubscription = std::max(1.0, s.oversubscription / 2);
    no_slower("with less oversubscription", e, better);
    better = t;
    for (auto& s : better.switches) s.gpus *= 2;
    no_slower("below larger switches", e, better);
    Exchange less = e;
    less.bytes /= 2;
    no_slower("of fewer bytes", less, t);
    less = e;
    less.busiest = 1;
    no_slower("of balanced tokens", less, t);
    less = e;
    less.multiprocessors *= 2;
    no_slower("by more multiprocessors", less, t);
    // A larger domain takes bytes off the cards and puts them on NVLink: where NVLink bounds it, slower by these.
    // NCCL's tree is a chain inside a domain: short messages take longer through a longer one.
    better = t;
    better.domain *= 2;
    const Exchange placed_anew = with_units(e, better);
    const double was = over_nvlink(t, e), is = over_nvlink(better, placed_anew);
    const bool chain = e.kind == Kind::all_reduce && domains(better, e) > 1;
    if (!chain) no_slower("in a larger domain", placed_anew, better, was > 0 ? std::max(1.0, is / was) : 1);
  }));
}

TEST_CASE("rings: a group with one GPU a node has one card, one with all GPUs of its nodes has eight") {
  const double large = 1 << 30;
  const double lone = ns(exchange(Kind::reduce_scatter, 16, large, 8)),
               whole = ns(exchange(Kind::reduce_scatter, 16, large));
  const double card = shipped().link("infiniband").gbytes_per_s;
  CHECK(lone == doctest::Approx(15.0 / 16 * large / card).epsilon(0.02));
  CHECK(whole < lone / 6);
  // 128 GPUs on 16 nodes measured 300 GB/s of bus bandwidth, on 4 nodes 360 (NVIDIA/nccl issue 1229).
  CHECK(127.0 / 128 * large / ns(exchange(Kind::reduce_scatter, 128, large)) == doctest::Approx(300).epsilon(0.2));
  // All-reduce of 8 bytes over 16 nodes: about 62 us (NVIDIA/nccl issue 1469).
  CHECK(ns(exchange(Kind::all_reduce, 128, 8)) / 1e3 == doctest::Approx(62).epsilon(0.25));
}

TEST_CASE("rings over three racks of GB200: each GPU's card at once, NVIDIA/nccl issue 1801") {
  // All-reduce of 16 GiB over four and eight GPUs of each rack, ring without NVLS: bus bandwidths of 196.9 and 393.7
  // GB/s.
  for (const auto& [gpus, gbytes_per_s] : {std::pair{4, 196.9}, {8, 393.7}}) {
    Topology racks;
    racks.domain = racks.gpus_per_node = gpus;
    const double n = 3.0 * gpus, bytes = 16.0 * (1 << 30);
    const double took = ns(exchange(Kind::all_reduce, 3 * gpus, bytes), racks, shipped("gb200-nvl72"));
    CAPTURE(gpus);
    CHECK(2 * (n - 1) / n * bytes / took == doctest::Approx(gbytes_per_s).epsilon(0.06));
  }
}

TEST_CASE("all-to-all: its own node's part over NVLink, the rest through the card") {
  const double bytes = 134e6, card = shipped().link("infiniband").gbytes_per_s;
  const auto e = exchange(Kind::all_to_all, 16, bytes);
  const Traffic moved = traffic(nodes_of_8(), e);
  CHECK(moved.bytes[0] == doctest::Approx(bytes * 7 / 16));
  CHECK(moved.bytes[1] == doctest::Approx(bytes / 2));
  CHECK(ns(e) == doctest::Approx(bytes / 2 / card).epsilon(0.05));
  // 8 MiB among 64 H800: 338 us (NVIDIA/nccl issue 1531); batches of eight peers, a network step each.
  CHECK(ns(exchange(Kind::all_to_all, 64, 8 << 20)) / 1e3 == doctest::Approx(338).epsilon(0.25));
}

TEST_CASE("a ring's step: NVLink inside a domain, else what its last GPUs share, slower with every worse network") {
  const double bytes = 1 << 27, card = shipped().link("infiniband").gbytes_per_s;
  const auto step = [&](std::int64_t ranks, std::int64_t stride) {
    return exchange(Kind::send_recv, ranks, bytes, stride);
  };
  CHECK(ns(step(8, 1)) == shipped().time({"send_recv.nvlink", {1 << 27}}).ns);
  for (const auto& e : {step(16, 1), step(4, 8), step(8, 4)}) {
    Topology t = nodes_of_8();
    const double before = ns(e, t);
    CHECK(before == doctest::Approx(bytes / card).epsilon(0.05));
    t.nic_gbits = 50;
    CHECK(ns(e, t) == doctest::Approx(bytes / (card / 8)).epsilon(0.05));
    t = nodes_of_8();
    t.latency_us = 1000;
    CHECK(ns(e, t) - before == doctest::Approx(1e6).epsilon(0.05));
    t = nodes_of_8();
    t.switches = {{8, 4}};
    CHECK(ns(e, t) >= before);
  }
  // Two cards for eight GPUs: one ring in rank order has its card, eight beside each other share them.
  Topology shared = nodes_of_8();
  shared.nics_per_node = 2;
  CHECK(ns(step(16, 1), shared) == doctest::Approx(bytes / card).epsilon(0.05));
  CHECK(ns(step(4, 8), shared) == doctest::Approx(4 * bytes / card).epsilon(0.05));
}

TEST_CASE("groups that lie across a domain's end: the rank with the fewest beside it decides") {
  const double bytes = 134e6, card = shipped().link("infiniband").gbytes_per_s;
  auto e = exchange(Kind::all_to_all, 6, bytes);
  e.fewest_together = 2;  // GPUs 6 and 7 of one node, 8 to 11 of the next
  CHECK(traffic(nodes_of_8(), e).bytes[1] == doctest::Approx(bytes * 4 / 6));
  CHECK(ns(e) == doctest::Approx(bytes * 4 / 6 / card).epsilon(0.05));
  auto ring = exchange(Kind::all_gather, 6, 1 << 30);
  ring.fewest_together = 2;
  const double through_two_cards = 5.0 / 6 * (1 << 30) / (2 * card);
  CHECK(ns(ring) == doctest::Approx(through_two_cards).epsilon(0.05));
}

TEST_CASE("groups that lie across a switch's end: what its fewest ranks send beyond it") {
  Topology t = nodes_of_8();
  t.switches = {{24, 3}};
  const double bytes = 1 << 30, card = shipped().link("infiniband").gbytes_per_s;
  auto e = exchange(Kind::all_to_all, 16, bytes);
  e.fewest_below = {8};  // GPUs 16 to 23 below one, 24 to 31 below the next
  CHECK(traffic(t, e).bytes[2] == doctest::Approx(bytes / 2));
  CHECK(ns(e, t) == doctest::Approx(3 * bytes / 2 / card).epsilon(0.01));
  e.kind = Kind::reduce_scatter;  // a ring: what all pass on, by eight cards
  CHECK(traffic(t, e).bytes[2] == doctest::Approx(bytes * 15 / 16 / 8));
  e.fewest_below.clear();  // all of it below one
  CHECK(traffic(t, e).bytes[2] == 0);
}

TEST_CASE("a stage's transfers, counted GPU by GPU: those beyond a switch share its way up") {
  const std::int64_t bytes = 1 << 27;
  const double inside = shipped().time({"send_recv.nvlink", {bytes}}).ns;
  CHECK(rc::check([&] {
    Topology t = nodes_of_8();
    const std::int64_t unit = 8 * *rc::gen::inRange(1, 7), stage = *rc::gen::inRange(1, 65);
    const std::int64_t stages = *rc::gen::inRange(2, 7), rank = *rc::gen::inRange<std::int64_t>(0, stages);
    const double less = *rc::gen::element(1.0, 2.0, 5.0);
    t.switches = {{unit, less}};
    const std::int64_t distance = (rank + 1 < stages ? 1 : 1 - stages) * stage;
    std::map<std::int64_t, double> leaving;
    bool crosses = false;
    for (std::int64_t gpu = rank * stage; gpu < (rank + 1) * stage; ++gpu) {
      crosses = crosses || gpu / 8 != (gpu + distance) / 8;
      if (gpu / unit != (gpu + distance) / unit) ++leaving[gpu / unit];
    }
    double slower = 1;
    for (const auto& [below, gpus] : leaving) slower = std::max(slower, less * gpus / static_cast<double>(unit));
    const double card = shipped().link("infiniband").gbytes_per_s;
    const double by_hand = std::max(inside, 14e3 + static_cast<double>(bytes) / card * slower);
    const double told = transfer_time(shipped(), network(t, shipped()), rank * stage, stage, distance, bytes).ns;
    RC_ASSERT(std::abs(told / (crosses ? by_hand : inside) - 1) < 0.01);
  }));
}

TEST_CASE("oversubscription slows what goes beyond the switch, by hand") {
  Topology t;
  const double bytes = 1e9;
  const auto far = exchange(Kind::all_to_all, 64, bytes);
  const double flat = ns(far, t);
  t.switches = {{32, 4}};  // half of the peers are beyond it
  const double card = shipped().link("infiniband").gbytes_per_s;
  CHECK(ns(far, t) - flat == doctest::Approx(bytes * (32.0 / 64 * 4 - 56.0 / 64) / card).epsilon(0.01));
  CHECK(ns(exchange(Kind::all_to_all, 32, bytes), t) == ns(exchange(Kind::all_to_all, 32, bytes)));
}

TEST_CASE("DeepEP against the benchmarks that its figures come from, and against others") {
  // aiconfigurator: 4096 tokens of 7168, 8 of 256 experts, combine bf16, us; units by routing_test's formula.
  const double row = 4096.0 * 7168 * 2;
  const auto combine = [&](std::int64_t ranks, double domains, double gpus, std::int64_t sms) {
    Exchange e = dispatch(ranks, domains, gpus, row, sms);
    e.kind = Kind::combine;
    return ns(e) / 1e3;
  };
  CHECK(combine(8, 1, 5.28, 20) == doctest::Approx(973).epsilon(0.1));
  CHECK(combine(8, 1, 5.28, 8) == doctest::Approx(2031).epsilon(0.1));
  for (const auto& [sms, us] : {std::pair{4, 9394}, {8, 4867}, {16, 2560}, {20, 2099}, {24, 1777}})
    CHECK(combine(16, 1.994, 6.56, sms) == doctest::Approx(us).epsilon(0.13));
  for (const auto& [sms, us] : {std::pair{8, 6078}, {16, 3545}, {20, 3528}, {24, 3522}})
    CHECK(combine(32, 3.629, 7.3, sms) == doctest::Approx(us).epsilon(0.13));
  // DeepEP's own table, 64 H800, four groups: 50 GB/s counting the own node.
  CHECK(combine(64, 3.96, 7.48, 20) == doctest::Approx(row * 3.96 / 50e3).epsilon(0.1));
  // More multiprocessors never slow it; more nodes a token never speed it up.
  CHECK(combine(16, 1.994, 6.56, 32) <= combine(16, 1.994, 6.56, 20));
  CHECK(combine(64, 5.295, 7.68, 20) > combine(64, 3.96, 7.48, 20));
}

TEST_CASE("HybridEP against its README") {
  const double row = 4096.0 * 7168 * 2;
  const auto gbytes = [&](Kind kind, std::int64_t ranks, double domains, double gpus, std::int64_t sms) {
    Exchange e = dispatch(ranks, domains, gpus, row, sms);
    e.kind = kind;
    e.library = Exchange::Library::hybridep;
    return row * domains / ns(e);
  };
  for (const auto& [sms, out, back] : {std::tuple{4, 44.40, 52.0}, {8, 76.8, 68.0}, {16, 71.71, 62.95}}) {
    CHECK(gbytes(Kind::dispatch, 16, 1.994, 6.6, sms) == doctest::Approx(out).epsilon(0.1));
    CHECK(gbytes(Kind::combine, 16, 1.994, 6.6, sms) == doctest::Approx(back).epsilon(0.1));
  }
  for (const auto& [ranks, domains, gpus, out, back] :
       {std::tuple{32, 3.62, 7.24, 57.69, 57.46}, {64, 5.25, 7.6, 49.97, 49.77}}) {
    CHECK(gbytes(Kind::dispatch, ranks, domains, gpus, 16) == doctest::Approx(out).epsilon(0.05));
    CHECK(gbytes(Kind::combine, ranks, domains, gpus, 16) == doctest::Approx(back).epsilon(0.05));
  }
}

TEST_CASE("HybridEP in one domain against its README: GB200, 8 to 36 ranks, 16 and 32 multiprocessors") {
  Topology rack;
  rack.domain = rack.gpus_per_node = 72;
  const double row = 4096.0 * 7168 * 2;
  const auto gbytes = [&](Kind kind, std::int64_t ranks, double gpus, std::int64_t sms) {
    Exchange e = dispatch(ranks, 1, gpus, row, sms);
    e.kind = kind;
    e.library = Exchange::Library::hybridep;
    return row * gpus / ns(e, rack, shipped("gb200-nvl72"));
  };
  struct Row {
    std::int64_t ranks, sms;
    double gpus, out, back;  // eight of 8 x ranks experts
  };
  for (const Row& r : {Row{8, 16, 5.43, 750.15, 684.27},
                       {8, 32, 5.43, 764.03, 737.13},
                       {24, 16, 7.04, 637.80, 565.53},
                       {24, 32, 7.04, 665.97, 639.80},
                       {36, 16, 7.35, 612.85, 543.27},
                       {36, 32, 7.35, 632.31, 596.99}}) {
    CAPTURE(r.ranks);
    CAPTURE(r.sms);
    CHECK(gbytes(Kind::dispatch, r.ranks, r.gpus, r.sms) == doctest::Approx(r.out).epsilon(0.03));
    CHECK(gbytes(Kind::combine, r.ranks, r.gpus, r.sms) == doctest::Approx(r.back).epsilon(0.03));
  }
  // Between and beyond what was timed: no jump, no more than the nearest.
  CHECK(gbytes(Kind::combine, 32, 7.27, 24) == doctest::Approx(575).epsilon(0.03));
  CHECK(gbytes(Kind::combine, 72, 7.68, 32) <= gbytes(Kind::combine, 36, 7.35, 32));
  CHECK(gbytes(Kind::dispatch, 8, 5.43, 64) == doctest::Approx(gbytes(Kind::dispatch, 8, 5.43, 32)));
}

TEST_CASE("NVLink of another speed: what it bounds takes as much less, by hand, what does not stays") {
  const auto with_link = [](const char* name, double factor) {
    Profile p = shipped(name).first();
    for (auto& link : p.links)
      if (link.name == "nvlink") link.gbytes_per_s *= factor;
    return Profiles({p});
  };
  Topology rack;
  rack.domain = rack.gpus_per_node = 72;
  const double row = 4096.0 * 7168 * 2, gpus = 7.35;
  Exchange e = dispatch(36, 1, gpus, row, 32);
  e.library = Exchange::Library::hybridep;
  for (const double factor : {0.25, 0.5, 1.5}) {  // twice as fast, multiprocessors would bound it
    CAPTURE(factor);
    CHECK(ns(e, rack, with_link("gb200-nvl72", factor)) * factor ==
          doctest::Approx(ns(e, rack, shipped("gb200-nvl72"))));
    // 632.31 GB/s "algorithm bandwidth" on a link of 900: half of it on one of 450 (an H100's in so large a domain).
    CHECK(row * gpus / ns(e, rack, with_link("h100-sxm", factor)) ==
          doctest::Approx(factor * 632.31 / 2).epsilon(0.03));
  }
  // What NCCL takes a link to carry of its line is what the profiles' links do.
  for (const char* name : {"h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72"})
    CHECK(shipped(name).link("nvlink").gbytes_per_s / data_sheet(name).nvlink_gbytes_per_s.value ==
          doctest::Approx(20.6 / 25).epsilon(0.01));
  const auto between = exchange(Kind::send_recv, 16, 1 << 27);  // the card's
  CHECK(ns(between, nodes_of_8(), with_link("h100-sxm", 2)) == ns(between, nodes_of_8(), shipped("h100-sxm")));
}

TEST_CASE("a pipeline transfer: NVLink inside, a share of the cards outside, oversubscribed above") {
  const auto ns_of = [](const Topology& t, std::int64_t gpus, std::int64_t bytes) {
    return transfer_time(shipped(), network(t, shipped()), 0, gpus, gpus, bytes).ns;
  };
  const std::int64_t bytes = 64 << 20;
  const double card = shipped().link("infiniband").gbytes_per_s,
               latency = shipped().link("infiniband").latency_us * 1e3;
  CHECK(ns_of({}, 4, bytes) == shipped().time({"send_recv.nvlink", {bytes}}).ns);
  CHECK(ns_of({}, 8, bytes) == doctest::Approx(latency + static_cast<double>(bytes) / card));
  Topology two_cards;
  two_cards.nics_per_node = 2;
  CHECK(ns_of(two_cards, 8, bytes) == doctest::Approx(latency + 4 * static_cast<double>(bytes) / card));
  Topology switches;
  switches.switches = {{32, 4}};  // the eight GPUs below it that send upwards are a quarter: just enough
  CHECK(ns_of(switches, 8, bytes) == doctest::Approx(latency + static_cast<double>(bytes) / card));
  CHECK(ns_of(switches, 32, bytes) == doctest::Approx(latency + 4 * static_cast<double>(bytes) / card));
  // One card for eight GPUs, a thirty-second of it upwards: a lone GPU has that to itself, eight share it.
  Topology narrow;
  narrow.nics_per_node = 1;
  narrow.switches = {{8, 32}};
  const auto lone = transfer_time(shipped(), network(narrow, shipped()), 0, 1, 8, bytes).ns;
  CHECK(lone == doctest::Approx(latency + 32 * static_cast<double>(bytes) / card));
  CHECK(ns_of(narrow, 8, bytes) == doctest::Approx(latency + 8 * 32 * static_cast<double>(bytes) / card));
}

}  // namespace network_test
