// Transfers and collectives that were not measured: another number of ranks, or a link known by two figures only.
//
// A ring of n ranks moves passes x (n-1)/n of the buffer through every GPU in passes x (n-1) steps (passes: 2 for an
// all-reduce, else 1), so that    t(n, bytes) = a + (n-1) b + (n-1)/n x w(bytes).
// The formula is that of nccl-tests, doc/PERFORMANCE.md. From measurements over other numbers of ranks: a + (n-1) b is
// the time of the smallest buffer, w(bytes) what a larger one takes longer. From a link: b = passes x latency, a = 0,
// w = passes x bytes / bandwidth.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "interpolate.hpp"

namespace pipewright::profile {
namespace {

double shares(double ranks) { return (ranks - 1) / ranks; }

std::optional<Found> from_other_ranks(const Profile& profile, const Key& key, const Family& f,
                                      const std::vector<Sample>& samples) {
  std::map<std::int64_t, std::int64_t> smallest;  // by ranks: bytes of the smallest buffer
  for (const auto& s : samples) {
    const auto [at, added] = smallest.try_emplace(s.dims[0], s.dims[1]);
    if (!added) at->second = std::min(at->second, s.dims[1]);
  }
  const auto time = [&](std::int64_t ranks, std::int64_t bytes) { return estimate(f, samples, {ranks, bytes})->ns; };
  const auto [most, most_smallest] = *smallest.rbegin();
  const auto [least, least_smallest] = *smallest.begin();
  const auto n = static_cast<double>(key.dims[0]), n_most = static_cast<double>(most);
  if (n_most < 2) return std::nullopt;
  const double floor_most = time(most, most_smallest), floor_least = time(least, least_smallest);
  const double step = most == least ? floor_most / (n_most - 1)
                                    : std::max(0.0, (floor_most - floor_least) / static_cast<double>(most - least));
  const double transfer = std::max(0.0, time(most, key.dims[1]) - floor_most) / shares(n_most);
  double floor = std::max(floor_most + (n - n_most) * step, step);
  // More ranks than measured reduce in the switch (NVLS), whatever their number: 25 us (NCCL 5067397c
  // src/graph/tuning.cc:163 and :428).
  if (n > n_most && key.family == "all_reduce.nvlink") floor = std::min(floor, std::max(floor_most, 25e3));
  Timing t;
  t.ns = floor + shares(n) * transfer;
  t.spread = untested_error;
  t.origin = Origin::derived;
  t.profile = profile.name;
  t.note = fmt::format("{} ranks from the measurements over {}: same bytes/s a GPU, latency by steps of the ring",
                       key.dims[0], most == least ? fmt::format("{}", most) : fmt::format("{} and {}", least, most));
  return Found{std::move(t), Match::formula};
}

}  // namespace

std::optional<Found> derive_network(const Profile& profile, const Key& key) {
  const Family& f = family(key.family);
  const auto samples = profile.samples.find(key.family);
  if (samples != profile.samples.end() && !samples->second.empty()) {
    return from_other_ranks(profile, key, f, samples->second);
  }
  const Link* link = profile.link(key.family.substr(key.family.find('.') + 1));
  if (link == nullptr) return std::nullopt;
  const double moved = f.bytes(key.dims);
  double steps = 1;
  if (key.dims.size() == 2) {
    const auto ranks = static_cast<double>(key.dims[0]), bytes = static_cast<double>(key.dims[1]);
    steps = ranks > 1 ? moved / (shares(ranks) * bytes) * (ranks - 1) : 0;
  }
  Timing t;
  t.ns = steps * us_to_ns(link->latency_us) + moved / link->gbytes_per_s;  // B / (GB/s) = ns
  t.spread = untested_error;
  t.origin = Origin::derived;
  t.profile = profile.name;
  t.note = fmt::format("{} x {} us latency and {} GB/s of the link \"{}\"", steps, link->latency_us, link->gbytes_per_s,
                       link->name);
  return Found{std::move(t), Match::formula};
}

const std::vector<Link>& published_links() {
  static const std::vector<Link> links = [] {
    Link infiniband;
    infiniband.name = "infiniband";
    infiniband.latency_us = 14;    // a network step of NCCL's ring with the Simple protocol
    infiniband.gbytes_per_s = 47;  // of the line's 50: "you should see 46-48 GB/s per NIC"
    infiniband.origin = Origin::derived;
    infiniband.source =
        "400 Gb/s NDR, one port a GPU: latency of a network step, NCCL 5067397c src/graph/tuning.cc:171; bandwidth "
        "46-48 GB/s a NIC, NVIDIA/nccl-tests issue 290";
    return std::vector<Link>{infiniband};
  }();
  return links;
}

}  // namespace pipewright::profile
