// Memory over the step that sets each rank's peak, see histories.hpp.
#include "pipewright/histories.hpp"

#include <tbb/parallel_for.h>

#include "device.hpp"

namespace pipewright::predict {

std::vector<RankHistory> histories(const Prediction& prediction, const scenario::Scenario& scenario,
                                   const profile::Profiles& profiles, const Run& run) {
  const scenario::Scenario captured = with_device(scenario, profiles);
  std::vector<RankHistory> all(prediction.ranks.size());
  tbb::parallel_for(std::size_t{0}, all.size(), [&](std::size_t r) {
    const auto& rank = prediction.ranks[r];
    std::optional<Bytes> device;
    if (rank.walk.retried && !rank.walk.failure)
      device = prediction.memory_limit - rank.outside_allocator - prediction.memory_margin;
    const auto of = [&](const model::Stages& stages) {
      return memory::history(stages, run.program, captured, rank.pp_rank, device);
    };
    static_cast<memory::History&>(all[r]) = of(run.stages);
    const auto& eager = run.stages.eager;
    if (!eager || all[r].samples[all[r].peak].allocated >= rank.walk.peak_allocated) return;
    all[r] = {of(*eager), true};
  });
  return all;
}

}  // namespace pipewright::predict
