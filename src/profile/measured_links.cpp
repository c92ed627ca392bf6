// Benchmarks of exchanges as families and links. Rates are what the collective's own traffic through the cards
// (network.hpp) took; the latency of a network step is the one at which NCCL's model takes as long as the smallest
// message did.
#include "pipewright/measured_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace pipewright::profile {
namespace {

constexpr std::int64_t small_bytes = 4096;     // a step's latency is all of its time: below NCCL's switch from LL
constexpr std::int64_t large_bytes = 1 << 20;  // rates are read from here on

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string joined(const std::set<std::string>& sources) { return fmt::format("{}", fmt::join(sources, "; ")); }

Exchange exchange(const MeasuredExchange& m) {
  Exchange e;
  for (const auto kind : {Exchange::Kind::all_gather, Exchange::Kind::reduce_scatter, Exchange::Kind::all_reduce,
                          Exchange::Kind::all_to_all}) {
    if (m.operation == name(kind)) e.kind = kind;
  }
  e.ranks = m.ranks;
  e.stride = m.stride;
  e.bytes = static_cast<double>(m.bytes);
  return e;
}

/// Times of one shape: their median; half of what they differ by, if that is more than each says of itself.
void add_samples(Profile& to, const std::map<Key, std::vector<const MeasuredExchange*>>& shapes) {
  for (const auto& [key, times] : shapes) {
    std::vector<double> ns;
    std::set<std::string> sources;
    Sample s;
    for (const auto* m : times) {
      ns.push_back(m->ns);
      sources.insert(m->source);
      s.spread = std::max(s.spread, m->spread);
      s.count += m->count;
    }
    const auto [least, most] = std::minmax_element(ns.begin(), ns.end());
    s.spread = std::max(s.spread, (*most - *least) / (*most + *least));
    s.dims = key.dims;
    s.ns = middle(ns);
    s.source = joined(sources);
    auto& family_samples = to.samples[key.family];
    std::erase_if(family_samples, [&](const Sample& known) { return known.dims == s.dims; });
    family_samples.push_back(std::move(s));
  }
  for (auto& [name, samples] : to.samples) {
    std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.dims < b.dims; });
  }
}

void replace(Profile& in, Link link) {
  std::erase_if(in.links, [&](const Link& l) { return l.name == link.name; });
  in.links.push_back(std::move(link));
}

}  // namespace

const std::vector<std::string>& exchange_operations() {
  static const std::vector<std::string> operations = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                                      "send_recv"};
  return operations;
}

MeasuredNetwork add_exchanges(Profile& to, const Topology& topology, const std::vector<MeasuredExchange>& measured) {
  MeasuredNetwork result;
  std::set<std::string> sources;
  std::map<Key, std::vector<const MeasuredExchange*>> shapes;
  // By operation, ranks and stride: the smallest message between domains.
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, const MeasuredExchange*> smallest;
  Link inside;
  double inside_ns = 0, reduced = 0;
  std::int64_t inside_bytes = 0;
  const auto most = [](std::optional<double>& known, double value) { known = std::max(known.value_or(0), value); };

  for (const auto& m : measured) {
    const bool pair = m.operation == "send_recv";
    sources.insert(m.source);
    const Exchange e = exchange(m);
    const bool crosses = domains(topology, e) > 1;
    const double rate = static_cast<double>(m.bytes) / m.ns;
    if (!crosses || (pair ? m.alone : m.stride == 1 && m.ranks % topology.domain == 0)) {
      const std::string family = m.operation + "." + (crosses ? topology.between : topology.inside);
      shapes[pair ? Key{family, {m.bytes}} : Key{family, {m.ranks, m.bytes}}].push_back(&m);
    } else {
      ++result.without_family;
    }
    if (!crosses) {
      if (!pair) continue;
      inside.gbytes_per_s = std::max(inside.gbytes_per_s, rate);
      if (inside_bytes == 0 || m.bytes < inside_bytes) inside_bytes = m.bytes, inside_ns = m.ns;
      continue;
    }
    auto& least = smallest[{m.operation, m.ranks, m.stride}];
    if (least == nullptr || m.bytes < least->bytes) least = &m;
    if (m.bytes < large_bytes) continue;
    if (pair) {
      most(m.alone ? result.alone_gbytes_per_s : result.gbytes_per_s, rate);
    } else if (e.kind == Exchange::Kind::all_reduce) {
      reduced = std::max(reduced, traffic(topology, e).bytes[1] / m.ns);
    } else {
      most(result.gbytes_per_s, traffic(topology, e).bytes[1] / m.ns);
    }
  }
  // An all-reduce may sum on the way (NVLS, SHARP) and move less than a ring: it counts where nothing else was
  // measured.
  if (!result.gbytes_per_s && reduced > 0) result.gbytes_per_s = reduced;

  // What else a message costs (launches, the GPU's own steps) only adds: the least is nearest to the network's.
  for (const auto& [group, m] : smallest) {
    if (m->bytes > small_bytes) continue;
    const auto us = m->operation == "send_recv" ? ns_to_us(m->ns) : step_latency_us(topology, exchange(*m), m->ns);
    if (us) result.latency_us = std::min(result.latency_us.value_or(*us), *us);
  }

  result.samples = shapes.size();
  add_samples(to, shapes);
  const std::string source = joined(sources);
  if (inside.gbytes_per_s > 0) {
    inside.name = topology.inside;
    inside.latency_us = ns_to_us(inside_ns);
    inside.source = source;
    replace(to, std::move(inside));
  }
  if (result.gbytes_per_s || result.alone_gbytes_per_s) {
    Link between;
    between.name = topology.between;
    between.gbytes_per_s = result.gbytes_per_s.value_or(result.alone_gbytes_per_s.value_or(0));
    if (result.gbytes_per_s && result.alone_gbytes_per_s) {
      result.gpus_per_port = std::max<std::int64_t>(1, std::llround(*result.alone_gbytes_per_s / *result.gbytes_per_s));
      between.gpus_per_port = result.gpus_per_port;
      between.gbytes_per_s *= static_cast<double>(result.gpus_per_port);
    }
    between.latency_us = result.latency_us.value_or(published_links().front().latency_us);
    between.nvlink_domain = topology.domain;
    between.source = result.latency_us ? source : source + "; latency: " + published_links().front().source;
    replace(to, std::move(between));
  }
  return result;
}

}  // namespace pipewright::profile
