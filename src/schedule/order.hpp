// Which chunk of which microbatch a rank works on, and when its pipeline is full.
//
// Virtual microbatches are numbered in the order of the forward pass; for p = 2, v = 2, N = 3, m = 5:
//   virtual microbatch | 0 1 2 3 4 5 6 7 8 9
//   microbatch         | 0 1 2 0 1 2 3 4 3 4
//   chunk              | 0 0 0 1 1 1 0 0 1 1
// Backward k takes the same row k with its chunk counted from the last one.
#pragma once

#include <vector>

#include "pipewright/schedule.hpp"

namespace pipewright::schedule {

/// Forward or backward of one chunk for one microbatch.
struct Op {
  int microbatch = 0, chunk = 0;
};

enum class Pass { forward, backward };

/// schedules.py:962-989, get_schedule_table.
class Table {
 public:
  Table(int microbatches, int chunks, int group_size);
  int total() const { return static_cast<int>(rows_.size()); }
  int chunks() const { return chunks_; }
  /// Rows repeat after the last one, as get_model_chunk_id counts modulo the total.
  Op at(int virtual_microbatch, Pass pass) const;

 private:
  int chunks_;
  std::vector<Op> rows_;
};

/// Where a rank stands among the stages.
struct Place {
  int rank = 0, stages = 1, chunks = 1;
  bool first_rank() const { return rank == 0; }
  bool last_rank() const { return rank == stages - 1; }
  bool first_stage(Op op) const { return first_rank() && op.chunk == 0; }
  bool last_stage(Op op) const { return last_rank() && op.chunk == chunks - 1; }
};

}  // namespace pipewright::schedule
