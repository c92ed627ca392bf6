// Which GPUs a pipeline transfer joins, and over what.
#include "pipewright/scenario/derived.hpp"
#include "transfers.hpp"

namespace pipewright::timeline {

Wire wire_after(const scenario::Scenario& scenario, const profile::Profiles& profiles, int rank, std::int64_t bytes) {
  const auto ranks = static_cast<int>(scenario.settings.pipeline_model_parallel_size);
  const int next = (rank + 1) % ranks;
  const std::int64_t gpus = scenario.cluster.num_gpus / ranks;
  const auto network = profile::network(model::topology(scenario), profiles);
  const auto time = profile::transfer_time(profiles, network, rank * gpus, gpus, (next - rank) * gpus, bytes);
  const std::string link = link_between(scenario, rank, next);
  return {static_cast<std::int64_t>(time.ns + 0.5), bytes <= profiles.link(link).eager_bytes,
          ranks > 1 && link != scenario.cluster.link};
}

std::string link_between(const scenario::Scenario& scenario, int pp_rank, int peer) {
  const auto& settings = scenario.settings;
  const std::int64_t gpus_per_stage = scenario.cluster.num_gpus / settings.pipeline_model_parallel_size;
  const std::int64_t domain = scenario::nvlink_domain(scenario);
  for (std::int64_t member = 0; member < gpus_per_stage; ++member)
    if ((pp_rank * gpus_per_stage + member) / domain != (peer * gpus_per_stage + member) / domain)
      return scenario.cluster.inter_node_link;
  return scenario.cluster.link;
}

}  // namespace pipewright::timeline
