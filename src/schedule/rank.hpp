// The three schedules of Megatron, one rank at a time.
#pragma once

#include "order.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::schedule {

void no_pipelining(const Config& config, RankProgram& program);
void without_interleaving(const Config& config, int rank, RankProgram& program);
void with_interleaving(const Config& config, int rank, const Table& table, RankProgram& program);

}  // namespace pipewright::schedule
