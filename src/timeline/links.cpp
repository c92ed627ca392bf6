// Which GPUs a pipeline transfer joins, and over what.
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

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
