// Which GPUs a pipeline transfer joins, and over what.
#include <algorithm>

#include "transfers.hpp"

namespace pipewright::timeline {
namespace {

/// GPUs of a stage that send through one network port at the same time: it carries what all of them send.
std::int64_t port_sharers(const scenario::Scenario& scenario, const profile::Link& link) {
  const auto& cluster = scenario.cluster;
  const std::int64_t of_stage = cluster.num_gpus / scenario.settings.pipeline_model_parallel_size;
  return std::clamp<std::int64_t>(link.gpus_per_port, 1,
                                  std::max<std::int64_t>(1, std::min(of_stage, cluster.gpus_per_node)));
}

}  // namespace

Wire wire_after(const scenario::Scenario& scenario, const profile::Profiles& profiles, int rank, std::int64_t bytes) {
  const auto ranks = static_cast<int>(scenario.settings.pipeline_model_parallel_size);
  const std::string name = link_between(scenario, rank, (rank + 1) % ranks);
  const profile::Link link = profiles.link(name);
  const double ns = profiles.time({"send_recv." + name, {bytes * port_sharers(scenario, link)}}).ns;
  return {static_cast<std::int64_t>(ns + 0.5), bytes <= link.eager_bytes};
}

std::string link_between(const scenario::Scenario& scenario, int pp_rank, int peer) {
  const auto& settings = scenario.settings;
  const std::int64_t gpus_per_stage = scenario.cluster.num_gpus / settings.pipeline_model_parallel_size;
  const std::int64_t node = scenario.cluster.gpus_per_node;
  for (std::int64_t member = 0; member < gpus_per_stage; ++member)
    if ((pp_rank * gpus_per_stage + member) / node != (peer * gpus_per_stage + member) / node)
      return scenario.cluster.inter_node_link;
  return scenario.cluster.link;
}

}  // namespace pipewright::timeline
