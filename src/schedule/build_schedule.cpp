// Which schedule runs (get_forward_backward_func, schedules.py:48-163), for every rank.
#include "order.hpp"
#include "rank.hpp"

namespace pipewright::schedule {

Program build(const Config& config) {
  check(config);
  Program program{config, std::vector<RankProgram>(static_cast<std::size_t>(config.stages))};
  const Table table(config.microbatches, config.chunks.value_or(1), group_size(config));
  for (int rank = 0; rank < config.stages; ++rank) {
    RankProgram& out = program.ranks[static_cast<std::size_t>(rank)];
    out.warmup = warmup(config, rank);
    out.instructions.reserve(static_cast<std::size_t>(table.total()) * 9);  // F B D, two calls, four waits
    if (config.stages == 1)
      no_pipelining(config, out);
    else if (config.chunks)
      with_interleaving(config, rank, table, out);
    else
      without_interleaving(config, rank, out);
  }
  return program;
}

}  // namespace pipewright::schedule
