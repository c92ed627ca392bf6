// Sequences of different lengths packed into rows of seq_length tokens (supervised fine-tuning): Megatron-LM's --sft,
// Megatron Bridge's enable_offline_packing. Every row has as many tokens; what differs is attention, in which a query
// sees keys of its own sequence only. Sources: Megatron-Bridge src/megatron/bridge/data/packing/algorithms.py
// (first_fit, first_fit_decreasing, first_fit_shuffle) and gpt_sft.py:191-258 (padding is a sequence of its own, or
// nobody's with context parallelism); Megatron-LM core_r0.19.0 megatron/training/datasets/sft_dataset.py (padding
// belongs to the last sequence, which is also cut where it is too long).
//
//   rows of a step   the rows of all sequences, sorted by their pairs of query and key: one at every
//   global_batch_size-th
//                    part of them, so that a step has the mix of the whole data
//   shuffled         dealt by chance; of many deals the one whose busiest data-parallel rank is the median, and that
//   rank balanced         dealt so that all data-parallel ranks have about the same number of pairs
#pragma once

#include <memory>
#include <vector>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

/// What Transformer Engine is told of a row: entries of cu_seqlens less one, and max_seqlen in tokens. Padding at a
/// row's end is a sequence of its own (Bridge) or part of the last (--sft).
struct Boundaries {
  Int sequences = 1, longest = 1;
};

/// Pairs of query and key of a sequence where a query sees the last `window` tokens, itself included: n (n + 1) / 2 up
/// to the window, then `window` for each.
double pairs_of(double length, double window);

struct Packing {
  /// By microbatch of the simulated pipeline: the length of equal sequences that have as many pairs of query and key as
  /// the row's (a sequence of n tokens has n (n + 1) / 2), in tokens.
  std::vector<double> lengths;
  /// The same of pairs that a sliding window (window_size) leaves; empty: the model has none.
  std::vector<double> windowed;
  /// By microbatch, too. With pad_cu_seqlens those of all rows: one more than the fullest has sequences, and the
  /// longest sequence or what the emptiest row lacks (Megatron-Bridge v0.5.0 data/datasets/sft.py:985-1035).
  std::vector<Boundaries> boundaries;
  double mean_length = 0;  ///< the same of all rows of the step together
  double fill = 1;         ///< tokens of sequences in a row over seq_length
  double busiest = 1;      ///< pairs of the simulated data-parallel rank over the mean of all
  Int sequences = 0, rows = 0;
  Int too_long = 0;  ///< sequences that no row holds: left out (Bridge) or cut (--sft)
};

/// nullptr: nothing is packed, or no lengths are stated. Throws UsageError for lengths that no step can be made of.
std::shared_ptr<const Packing> packing(const Scenario& scenario);

/// Microbatches differ: no steady state.
bool rows_differ(const Scenario& scenario);

}  // namespace pipewright::scenario
