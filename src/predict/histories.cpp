// Memory over the step that sets each rank's peak, see histories.hpp.
#include "pipewright/histories.hpp"

#include <tbb/parallel_for.h>

#include "device.hpp"

namespace pipewright::predict {

std::vector<RankHistory> histories(const Prediction& prediction, const scenario::Scenario& scenario,
                                   const profile::Profiles& profiles, const Run& run) {
  const scenario::Scenario captured = with_device(scenario, profiles);
  const bool graphs = captured.settings.cuda_graph_impl != "none";
  scenario::Scenario eager = captured;
  eager.settings.cuda_graph_impl = "none";
  eager.settings.cuda_graph_modules.clear();
  model::Stages stages;
  schedule::Program program;
  if (graphs) {
    stages = model::build(eager, profiles.device());
    program = schedule::build(schedule::config_of(eager, true));
  }
  std::vector<RankHistory> all(prediction.ranks.size());
  tbb::parallel_for(std::size_t{0}, all.size(), [&](std::size_t r) {
    const auto& rank = prediction.ranks[r];
    std::optional<Bytes> device;
    if (rank.walk.retried && !rank.walk.failure)
      device = prediction.memory_limit - rank.outside_allocator - prediction.memory_margin;
    static_cast<memory::History&>(all[r]) =
        memory::history(run.stages, run.program, captured, rank.pp_rank,
                        device ? std::optional(*device - rank.walk.graph_pool) : std::nullopt);
    if (!graphs || all[r].samples[all[r].peak].allocated >= rank.walk.peak_allocated) return;
    all[r] = {memory::history(stages, program, eager, rank.pp_rank, device), true};
  });
  return all;
}

}  // namespace pipewright::predict
