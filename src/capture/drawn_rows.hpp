// How many rows each of a layer's local experts gets in one microbatch. Tokens choose their experts independently, so
// an expert's rows are about Poisson distributed around the mean; even splits, most of them powers of two, fill whole
// tiles of a kernel and would be the fastest case (1024 rows are 8 tiles of 128, 1025 to 1152 are 9).
#pragma once

#include <cstdint>
#include <vector>

namespace pipewright::capture {

/// Rows of every expert in each of `draws` microbatches, draws x experts: the same for equal arguments. `tokens`: rows
/// of all experts in the mean of all draws, with the rows that pad an expert's to a multiple of `align`. Every second
/// draw mirrors the one before it at the mean. Experts may get none.
std::vector<std::vector<std::int64_t>> drawn_rows(std::int64_t experts, std::int64_t tokens, std::int64_t align,
                                                  int draws);

}  // namespace pipewright::capture
