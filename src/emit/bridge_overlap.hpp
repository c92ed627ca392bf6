// cfg.comm_overlap.tp_comm_overlap_cfg of Megatron Bridge: userbuffers' table.
#pragma once

#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

/// Whether a table that is named or written out is the one that the model takes for such a run.
bool is_known_overlap(const scenario::Scenario& scenario, const Python& table, const Position& where);

}  // namespace pipewright::emit
