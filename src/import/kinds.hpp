// What kind of work each activity of a trace is.
#pragma once

#include <string>
#include <vector>

#include "pipewright/import.hpp"

namespace pipewright::traces {

/// For every activity: "comp", "p2p", "ep" (all-to-all), "coll", "d2h" or "h2d".
std::vector<std::string> kinds(const Trace& trace, bool expert_parallel);

}  // namespace pipewright::traces
