// Packed sequences as attention sees them.
#pragma once

#include "dimensions.hpp"

namespace pipewright::model {

/// Microbatches of about the same attention together, most attention last; empty: nothing is packed. `tokens`: that a
/// kernel sees, of a row that a ring of context parallelism splits into so many parts.
std::vector<PackedRows> packed_rows(const scenario::Scenario& scenario, Int tokens, Int parts);

}  // namespace pipewright::model
