// Rounds of a rank's program: of the steady phase each does what the one before it did, for later microbatches. Where
// the walk comes to a state that it has been in, up to the names of microbatches and blocks, all that lies between
// would only repeat, and so the walk goes on as many rounds later as are alike.
//
//   .. | 0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15 | ..      microbatches of forwards, groups of 4
//      r         r+1  same state        r+2: goes on here, microbatches renamed
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipewright/follow.hpp"

namespace pipewright::memory {

/// Rounds after which rows of routing are drawn no more, but those of the last one again.
constexpr int drawn_rounds = 4;
/// Which draw a microbatch has: one of its own in these rounds, then that of its place in a round of `period`.
constexpr int draw_of(int microbatch, int period) {
  const int drawn = drawn_rounds * period;
  return microbatch < drawn ? microbatch : drawn + microbatch % period;
}

class Rounds {
 public:
  Rounds(const model::Stages& stages, const schedule::Config& config, const schedule::RankProgram& program,
         std::size_t chunks, bool draws);

  /// The round that this instruction begins.
  std::optional<std::size_t> at(std::size_t instruction) const;
  std::size_t first_of(std::size_t round) const { return begins_[round]; }
  /// Rounds from this one up to here are alike.
  std::size_t alike_until(std::size_t round) const { return alike_until_[round]; }
  /// By which forwards of a round and of the next one differ.
  int microbatches() const { return shift_; }
  /// Passes of a microbatch through a chunk, as Walker numbers them, that came before a round and go on in it or later.
  bool in_use(std::size_t flight, std::size_t round) const {
    return first_use_[flight] < begins_[round] && begins_[round] <= last_use_[flight];
  }
  std::size_t flights() const { return first_use_.size(); }
  /// Whether those of both rounds are the same, but for their microbatches.
  bool same_in_use(std::size_t round, std::size_t later) const;

 private:
  std::size_t chunks_;
  int shift_;
  std::vector<std::size_t> begins_;  ///< instructions; the last one ends all
  std::vector<std::size_t> alike_until_;
  std::vector<std::size_t> first_use_, last_use_;  ///< instructions that name it
};

}  // namespace pipewright::memory
