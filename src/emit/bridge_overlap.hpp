// cfg.comm_overlap of Megatron Bridge: what its setup() decides, and userbuffers' table, tp_comm_overlap_cfg.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "bridge_precision.hpp"
#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

/// CommOverlapConfig.setup(): everything it owns is reset, then what the user set on cfg.comm_overlap is applied.
void apply_comm_overlap(scenario::Scenario& scenario, const std::vector<Assignment>& user);

/// Whether a table that is named or written out is the one that the model takes for such a run.
bool is_known_overlap(const scenario::Scenario& scenario, const Python& table, const Position& where);

/// Of a table that a scenario holds in place: Bridge's objects, as CommOverlapConfig takes them, and the classes of
/// these. Without text: the table states what they have no field for.
struct OverlapObjects {
  std::string text;
  std::set<std::string> classes;
};
OverlapObjects overlap_objects(const std::string& table);

/// The other way, of objects or of what Bridge wrote of them. Empty: no table that is modelled.
std::string overlap_in_place(const Python& table, const Position& where);

}  // namespace pipewright::emit
