// cfg.comm_overlap.tp_comm_overlap_cfg of Megatron Bridge: userbuffers' table.
#pragma once

#include <set>
#include <string>

#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

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
