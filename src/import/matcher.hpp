// The state of one matching; match.hpp has the picture. What it does stands in match.cpp (streams, units, landmarks),
// match_tiles.cpp, match_gaps.cpp (what is between landmarks) and match_beside.cpp (other streams).
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "match.hpp"

namespace pipewright::traces {

/// A kernel with its helpers.
struct Unit {
  std::uint32_t main;
  std::vector<std::uint32_t> activities;
  const Meaning* meaning;
  std::string landmark;  ///< its operation, if it is one
};

/// A row of `size` units that is one landmark (runs are many kernels).
struct Landmark {
  std::size_t first, size;
  const std::string* operation;
};

class Matcher {
 public:
  Matcher(const Trace& trace, const std::vector<std::string>& kinds, const std::vector<Pattern>& patterns,
          const Order& order);
  Mapping run();

 private:
  static constexpr std::int64_t none = INT64_MIN;

  struct Tile {
    const Pattern* pattern;
    std::size_t first;  ///< landmark
  };

  /// An operation that is not where its tile expects it.
  struct Lost {
    const Expected* expected;
    const Pattern* pattern;
    std::size_t instance;
  };

  /// What stands between two landmarks of the trace, and the operations that the tiles expect there.
  struct Gap {
    struct Wanted {
      const Expected* expected;
      const Tile* tile;
      std::size_t instance;
    };
    std::vector<Wanted> wanted;
    std::vector<std::size_t> units;
  };

  // match.cpp
  /// Compute: the busiest with norms or attention. Beside it, with expert-parallel overlap, the one of all-to-alls.
  /// Grouped GEMMs: those that run nothing but matrix products. Parts of a layer: products or attention, no norms.
  void find_streams();
  /// One stream against its patterns.
  void walk(std::int64_t stream, bool beside);
  bool is_of_stream(std::size_t activity) const;
  /// What a kernel is; a matrix product on a stream of its own is an expert's, where there are any (else userbuffers').
  const Meaning& meaning(const Activity& a);
  std::string landmark_of(const Meaning& meaning) const;
  void gather_units();
  /// The last operation of a helper's stream; nullptr: helpers of another one wait there.
  Unit* helped_by(std::uint32_t activity, const std::vector<std::uint32_t>& waiting);
  void gather_groups();
  void gather_landmarks();
  bool can_be(const Unit& unit, const std::string& operation) const;

  // match_tiles.cpp
  bool fits(const Pattern& pattern, std::size_t at) const;
  /// Forward and backward nodes are launched by different threads.
  bool same_side(const Pattern& pattern, std::size_t at) const;
  /// covered[i]: most landmarks from i on that tiles can cover; of equal coverings the one with the fewest tiles.
  void tile();
  bool alike(const Pattern& a, const Pattern& b) const;
  /// Tiles of patterns alike have the first of them so far: a chunk's pieces run in its order, backward the other way.
  void tell_twins_apart();
  /// Tiles of one pass (and node), which are whole runs of chunks, but for the first and the last.
  void put_in_order(const std::vector<Tile*>& tiles, const std::vector<std::vector<const Pattern*>>& runs);
  [[noreturn]] void refuse() const;

  // match_gaps.cpp
  /// Operations of a tile that ran behind a landmark of it that the model has behind them, or the next tile's first.
  void find_late(std::size_t first_instance);
  void map(const Expected& expected, const Tile& tile, std::size_t instance, std::span<const std::size_t> units);
  void align();
  void close(Gap& gap);
  /// Operations and units of a gap in order; what is left is aligned again, because autograd may swap neighbours.
  void align(Gap gap);
  /// Mamba-2's operations are measured apart and launched one among another (mamba_ssm ops/triton/ssd_combined.py):
  /// each takes the kernels of its name, and ATen's behind them up to the next one's.
  void take_scan(Gap& gap);
  /// Casts made expert by expert: each takes kernels of its name, as many as there are experts, in whatever order.
  void take_casts(Gap& gap);
  /// Neighbouring copies of a pass (a CUDA graph's gradients) may come in another order: the longer is the larger.
  void sort_copies(std::size_t first);
  /// Whether a kernel of those mapped from `first` on does the operation along with the one before it.
  bool join(const Gap::Wanted& wanted, std::size_t first);
  /// Maps the longest common subsequence of expected operations and units, where a run takes several units in a row,
  /// and removes it from the gap. False: nothing in common.
  bool align_in_order(Gap& gap);
  /// Kernels that an operation has if `unit` is the first; 0: as many as there are of a run, most_of() others.
  std::size_t whole_of(const Expected& expected, const Unit& unit) const;
  /// Of an operation that is no run: as many as the model has it launch, of those that eager code launches one by one.
  static std::size_t most_of(const Expected& expected);
  /// A run does not go from the forward thread to autograd's.
  bool same_thread(std::size_t a, std::size_t b) const;

  // match_beside.cpp
  /// Copies and collectives that go beside the compute stream: by operation and order. They are told only where the
  /// streams' numbers of them are exactly what the tiles expect.
  void map_other_streams();
  /// AccumulateGrad of an embedding runs on the stream on which DDP made it, too: the stream's longest sums are those
  /// of the largest table, a whole number a pass (two, where the head's gradient of a tied table is added, too).
  void find_accumulations();
  /// What else a backward pass has run on another stream (sums of all gradients, what Megatron-FSDP does around its
  /// reductions), by size, where a stream has as many kernels of an operation as are looked for, or few more.
  void find_by_number();
  /// Neighbouring exchanges of a tile may come in either order: the longer is the larger.
  void sort_exchanges();
  void collect_unmapped();
  void name_first_unplaced();

  const Trace& trace_;
  const std::vector<std::string>& kinds_;
  const std::vector<Pattern>& patterns_;
  const Order& order_;
  std::vector<Meaning> meanings_;
  std::vector<bool> iterated_, eager_;        ///< by name
  std::map<std::uint32_t, Meaning> experts_;  ///< by name: of kernels on streams of grouped GEMMs
  std::set<std::int64_t> grouped_;
  std::set<std::int64_t> parallel_;  ///< parts of a layer: shared experts beside the dispatcher, every second ring step
  std::set<std::int64_t> copying_;   ///< of compute: Transformer Engine puts heads in order beside the next exchange
  std::size_t group_ = 1;            ///< GEMMs of a grouped one
  bool has_experts_ = false;
  std::int64_t beside_ = none, stream_ = 0, forward_thread_ = -1;
  bool on_beside_ = false;
  std::vector<Unit> units_;
  std::vector<Landmark> landmarks_;
  std::vector<Tile> tiles_;
  std::vector<Lost> lost_;
  std::set<std::size_t> spare_;  ///< units without an operation
  Mapping result_;
};

}  // namespace pipewright::traces
