// Packed sequences as attention sees them.
#pragma once

#include <functional>
#include <string>

#include "builder.hpp"
#include "dimensions.hpp"

namespace pipewright::model {

/// Microbatches of about the same attention together, most attention last; empty: nothing is packed. `tokens`: that a
/// kernel sees, of a row that a ring of context parallelism splits into so many parts.
std::vector<PackedRows> packed_rows(const scenario::Scenario& scenario, Int tokens, Int parts);

/// `kernel` as each kind of packed rows changes it; once where none differs.
void launch_of_rows(PieceBuilder& builder, const Dimensions& dimensions, const Kernel& kernel,
                    const std::function<void(Kernel&, const PackedRows&)>& change);

/// A tensor of multi-token prediction, `bytes` a row, moved on by one token within every sequence
/// (multi_token_prediction.py, _roll_tensor_packed_seq): a copy of the row, then for each sequence torch.roll of its
/// slice, a zero at its end and a copy into the row. Both slices take their ends from cu_seqlens on the GPU: four
/// values that the host waits for. Last the row's sum.
void roll_packed(PieceBuilder& builder, const Dimensions& dimensions, const std::string& name, Int bytes);

}  // namespace pipewright::model
