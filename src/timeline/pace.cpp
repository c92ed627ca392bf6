#include "pace.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "lines.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/userbuffers.hpp"

namespace pipewright::timeline {

Pace::Pace(const scenario::Scenario& scenario, const profile::Profiles& profiles)
    : gap_ns(nanoseconds(profiles.scalar("host.kernel_gap_us").value)),
      clocks(clock_law(scenario, profiles)),
      matrix(profiles.scalar("contention.matrix").value),
      attention(profiles.scalar("contention.attention").value),
      memory(profiles.scalar("contention.memory").value),
      slows_exchanges(scenario.settings.overlap_moe_expert_parallel_comm) {
  // What a kernel beside loses grows with the multiprocessors that are taken.
  const auto counts = [&](std::int64_t held) {
    const auto all = static_cast<double>(profiles.device().multiprocessors), taken = static_cast<double>(held);
    return taken / std::max(1.0, all - taken) / (matrix - 1);
  };
  if (const auto held = model::dispatcher_multiprocessors(scenario, profiles.device()); held > 0 && matrix > 1)
    dispatcher = counts(held);
  // NCCL gives a peer over the network two channels, each a multiprocessor (src/graph/paths.cc, ncclTopoGetNchannels).
  constexpr std::int64_t channels_of_a_network_peer = 2;
  if (matrix > 1) across = std::min(1.0, counts(channels_of_a_network_peer));
  const auto left = model::left_free(scenario);
  const auto free = left.products == 0        ? left.fused_experts
                    : left.fused_experts == 0 ? left.products
                                              : std::min(left.products, left.fused_experts);
  if (free > 0 && (!scenario.settings.tp_comm_overlap || scenario.model.multi_latent_attention)) {
    const auto all = static_cast<double>(profiles.device().multiprocessors);
    const double share = (all - static_cast<double>(free)) / all;
    leaving = 1 + std::max(0.0, share * (1 + (matrix - 1) * dispatcher) - 1) / dispatcher;
  }
  const auto ranks = static_cast<int>(scenario.settings.pipeline_model_parallel_size);
  const auto& cluster = scenario.cluster;
  for (int rank = 0; rank < ranks; ++rank)
    crosses.push_back(ranks > 1 && cluster.inter_node_link != cluster.link &&
                      link_between(scenario, rank, (rank + 1) % ranks) == cluster.inter_node_link);
  for (const auto& [kind, name] : {std::pair{0, "matrix"}, {1, "attention"}, {2, "memory"}}) {
    const auto found = profiles.find_scalar(std::string("contention.beside_") + name + ".all_to_all");
    beside[static_cast<std::size_t>(kind)] = std::max(1.0, found.value_or(1));
  }
  if (!clocks) return;
  clocks = clocks->among(scenario::lockstep_gpus(scenario), scenario::stage_gpus(scenario));
  window_ns = static_cast<std::int64_t>(ms_to_ns(profiles.scalar("clocks.window_ms").value));
}

double Pace::contention(profile::Load load) const {
  switch (load) {
    case profile::Load::matrix:
      return matrix;
    case profile::Load::attention:
      return attention;
    case profile::Load::memory:
      return memory;
    default:
      return 1;
  }
}

}  // namespace pipewright::timeline
