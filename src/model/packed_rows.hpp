// Packed sequences as attention sees them.
#pragma once

#include "dimensions.hpp"

namespace pipewright::model {

/// Microbatches of about the same attention together, most attention last; empty: nothing is packed. `tokens`: of a
/// context-parallel rank.
std::vector<PackedRows> packed_rows(const scenario::Scenario& scenario, Int tokens);

}  // namespace pipewright::model
