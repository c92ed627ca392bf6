// Clocks and contention, see clockwork.hpp.
#include "clockwork.hpp"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "account.hpp"

namespace pipewright::timeline {
namespace {

// A transfer from the moment it begins to spin; collectives of other streams than compute.
bool occupies(const Label& label) {
  if (label.kind == NodeKind::transfer) return true;
  return label.kind == NodeKind::kernel && label.purpose != model::Purpose::compute &&
         (label.lane == Lane::communication || label.lane == Lane::gradient || label.lane == Lane::parameter ||
          label.lane == Lane::expert);
}

/// Share of the time between two moments that is covered; moments before the step lie at the end of the one before.
double share(const Coverage& coverage, std::int64_t from, std::int64_t to, std::int64_t step, Coverage::Places& near) {
  if (to <= from) return 0;
  const double time = from >= 0
                          ? coverage.between(from, to, near)
                          : coverage.until(to, near.to) - (coverage.until(from + step, near.from) - coverage.total());
  return time / static_cast<double>(to - from);
}

/// std::llround below 2^52, without the call.
std::int64_t nearest(double ns) {
  const auto whole = static_cast<std::int64_t>(ns);
  const double rest = ns - static_cast<double>(whole);
  return whole + static_cast<std::int64_t>(rest >= 0.5) - static_cast<std::int64_t>(rest <= -0.5);
}

}  // namespace

std::int64_t step_of(const Times& times) { return *std::max_element(times.end.begin(), times.end.end()); }

Clockwork::Clockwork(const scenario::Scenario& scenario, const profile::Profiles& profiles)
    : pace_(scenario, profiles), copies_(scenario, profiles) {}

bool Clockwork::computes(const Label& label) {
  return (label.lane == Lane::compute || label.lane == Lane::expert) && label.kind == NodeKind::kernel &&
         label.purpose == model::Purpose::compute;
}

std::vector<std::vector<Clockwork::Occupation>> Clockwork::occupations_of(const Graph& graph) {
  std::vector<std::vector<Occupation>> result(static_cast<std::size_t>(graph.ranks));
  for (std::uint32_t node = 0; node < graph.size(); ++node) {
    const Label& label = graph.labels[node];
    if (occupies(label))
      result[label.rank].push_back({node, label.kind == NodeKind::transfer ? own_start(graph, node) : node});
  }
  return result;
}

std::vector<Clockwork::Role> Clockwork::roles_of(const Graph& graph) const {
  std::vector<Role> roles(graph.size());
  for (std::uint32_t node = 0; node < graph.size(); ++node) {
    const Label& label = graph.labels[node];
    Role& role = roles[node];
    role.load = static_cast<std::uint8_t>(graph.loads[node]) & 7U;
    if (label.kind != NodeKind::kernel) continue;
    role.computes = computes(label);
    role.on_wire = pace_.clocks && is_on_wire(role.what());
    role.exchanges = pace_.slows_exchanges && label.lane == Lane::expert && label.purpose == model::Purpose::ep;
    role.on_compute = label.lane == Lane::compute;
    role.partitioned = label.partitioned;
  }
  return roles;
}

void Clockwork::find_use(const Graph& graph, const std::vector<Role>& roles, const ByRank& nodes, std::size_t rank,
                         const std::vector<Occupation>& occupations, const Times& times, Use& use) const {
  use.compute.clear(nodes.size(rank));
  use.network.clear(occupations.size());
  use.across.clear(occupations.size());
  for (Coverage& kind : use.kinds) kind.clear(0);
  std::array<double, static_cast<std::size_t>(profile::Load::peers) + 1> weights{};
  for (std::size_t load = 0; load < weights.size(); ++load)
    weights[load] = pace_.clocks ? pace_.clocks->weight(static_cast<profile::Load>(load)) : 1;
  nodes.each(rank, [&](std::uint32_t node) {
    const Role role = roles[node];
    // Collectives between kernels: without the wait for the other ranks, which takes hardly any power.
    if (role.computes || (role.on_compute && pace_.clocks))
      use.compute.add(times.start[node], times.end[node], weights[role.load]);
    if (!pace_.slows_exchanges || !role.computes || !role.on_compute) return;
    if (const auto kind = kind_of(role.what())) use.kinds[*kind].add(times.start[node], times.end[node]);
  });
  const auto crosses = [&](const Label& label) {
    if (label.kind != NodeKind::transfer) return false;
    const std::size_t ranks = pace_.crosses.size(), from = to_next(label.part().type) ? rank : rank + ranks - 1;
    return static_cast<bool>(pace_.crosses[from % ranks]);
  };
  for (const auto& [node, starts_with] : occupations) {
    const Label& label = graph.labels[node];
    const std::int64_t start = starts_with == node ? times.start[node] : times.end[starts_with];
    if (crosses(label))
      use.across.add(start, times.end[node], pace_.across);
    else
      use.network.add(start, times.end[node], label.lane == Lane::expert ? pace_.dispatcher : 1);
  }
  use.compute.finish();
  use.network.finish();
  use.across.finish();
  for (Coverage& kind : use.kinds) kind.finish();
}

std::int64_t Clockwork::settle(const Graph& graph, Times& times) const {
  run(graph, times);
  std::int64_t step = std::max<std::int64_t>(1, step_of(times)), before = 0;
  const auto slowed = [&](std::uint32_t node, double factor) {
    return pace_.gap_ns + nearest(static_cast<double>(graph.duration_ns[node] - pace_.gap_ns) * factor);
  };
  const auto occupations = occupations_of(graph);
  const ByRank nodes(graph);
  const std::vector<Role> roles = roles_of(graph);
  tbb::enumerable_thread_specific<Use> uses;              // of one rank after the other: their memory stays near
  std::vector<std::vector<float>> beside(nodes.ranks());  ///< what runs beside adds to the time of each that it slows
  std::vector<double> copies_slower;                      ///< of each
  const auto towards = [](float& more, int round, double now) {
    const auto then = static_cast<double>(more);
    more = static_cast<float>(round == 0 ? now : then + towards_next_round * (now - then));
    return 1 + static_cast<double>(more);
  };
  const auto slow_down_rank = [&](std::size_t rank, int round) {
    if (round == 0) {
      std::size_t slowing = 0;
      nodes.each(rank, [&](std::uint32_t node) { slowing += roles[node].computes || roles[node].exchanges; });
      beside[rank].assign(slowing, 0);
    }
    auto more = beside[rank].begin();
    Use& use = uses.local();
    find_use(graph, roles, nodes, rank, occupations[rank], times, use);
    Coverage::Places computed, covered, far;
    std::array<Coverage::Places, 3> exchanged;
    const auto by_clock = [&](profile::Load load, std::int64_t start) {
      if (!pace_.clocks) return 1.0;
      return pace_.clocks->slowdown(load,
                                    share(use.compute, start - std::min(pace_.window_ns, step), start, step, computed));
    };
    nodes.each(rank, [&](std::uint32_t node) {
      const Role role = roles[node];
      const std::int64_t start = times.start[node], end = times.end[node];
      if (role.exchanges) {
        // The other way round: what the experts' exchange shares with the kernels beside it, memory above all.
        double slower = 0;
        for (std::size_t kind = 0; kind < pace_.beside.size(); ++kind)
          slower += (pace_.beside[kind] - 1) * share(use.kinds[kind], start, end, step, exchanged[kind]);
        const double factor = towards(*more++, round, slower);
        times.end[node] = slowed(node, role.on_wire ? factor * by_clock(role.what(), start) : factor);
        return;
      }
      if (!role.computes) {
        times.end[node] = role.on_wire ? slowed(node, by_clock(role.what(), start)) : graph.duration_ns[node];
        return;
      }
      const profile::Load load = role.what();
      double factor = 1;
      float& beside_this = *more++;
      if (const double slows = (role.partitioned ? pace_.leaving : pace_.contention(load)) - 1;
          slows != 0 && use.network.total() + use.across.total() > 0) {
        const double beside_it =
            share(use.network, start, end, step, covered) + share(use.across, start, end, step, far);
        factor = towards(beside_this, round, slows * beside_it);
      }
      times.end[node] = slowed(node, factor * by_clock(load, start));
    });
  };
  for (int round = 0; round < most_rounds && !settled(static_cast<double>(before), static_cast<double>(step), 1e-4);
       ++round) {
    before = step;
    const auto copies = copies_.slowed(graph, times, pace_.gap_ns, copies_slower);
    tbb::parallel_for(std::size_t{0}, nodes.ranks(), [&](std::size_t rank) { slow_down_rank(rank, round); });
    for (const auto& [node, ns] : copies) times.end[node] = ns;
    step = std::max<std::int64_t>(1, run_lasting(graph, times));
  }
  return step;
}

}  // namespace pipewright::timeline
