// Pipeline transfers of the chunk-level engine, resolved when both sides have come to them:
//
//   rank 0   [F 0.0][post]........[F 1.0][post]          a post starts when its stream and the compute stream have come
//   rank 1          [post -> wait][F 0.0][post]          to it; a transfer ends when both sides have started, + bytes
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "transfers.hpp"

namespace pipewright::timeline {

inline constexpr double unknown = -1;
inline constexpr std::int32_t nobody = -1;

class ChunkTransfers {
 public:
  ChunkTransfers(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
                 const profile::Profiles& profiles, const Changes& changes);

  /// A step of so many microbatches begins.
  void reset(int microbatches);

  /// A P2P kernel is launched: it starts after `base`, the transfer before it on its stream and the start queued before
  /// it.
  std::int32_t start(double base, std::int32_t previous, std::int32_t queued);
  std::int32_t post(int rank, const schedule::Part& part, std::int32_t start);
  std::int32_t posted(int rank, const schedule::Part& part) const { return posted_[slot(rank, part)]; }

  /// When it starts, when it is over; unknown while another rank must come first.
  double started(std::int32_t start);
  double done(std::int32_t transfer);
  /// Calls visit(rank, start, end, crosses) for every transfer.
  template <class Visit>
  void each(const Visit& visit) {
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(transfers_.size()); ++id)
      if (const double end = done(id); end != unknown) {
        const Transfer& t = transfers_[id];
        visit(t.rank, started(t.start), end, t.crosses);
      }
  }

 private:
  struct Start {  // a P2P kernel reaches the head of its stream
    double base = 0;
    std::int32_t previous = nobody;  // transfer before it on its stream
    std::int32_t queued = nobody;    // start before it in the one hardware queue
    double at = unknown;
  };
  struct Transfer {
    std::int32_t start = nobody, peer = nobody;  // own start; the other side's transfer
    std::int32_t drained = nobody;               // eager send: the receive that must have emptied the buffers
    double ns = 0, done = unknown;
    bool eager = false;
    int rank = 0;
    bool crosses = false;
  };
  std::size_t slot(int rank, const schedule::Part& part) const {
    return ((static_cast<std::size_t>(rank) * 4 + static_cast<std::size_t>(part.type)) *
                static_cast<std::size_t>(microbatches_) +
            static_cast<std::size_t>(part.microbatch)) *
               static_cast<std::size_t>(chunks_) +
           static_cast<std::size_t>(part.chunk);
  }

  int ranks_, chunks_, microbatches_ = 0;
  std::vector<Wire> wires_;  ///< by rank and chunk: between it and the next stage
  std::vector<Start> starts_;
  std::vector<Transfer> transfers_;
  std::vector<std::int32_t> posted_, previous_send_;
};

}  // namespace pipewright::timeline
