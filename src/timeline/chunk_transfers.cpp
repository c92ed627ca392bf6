// Transfers of the chunk-level engine, see chunk_transfers.hpp; their rules are those of exchange.hpp.
#include "chunk_transfers.hpp"

#include <algorithm>

namespace pipewright::timeline {

ChunkTransfers::ChunkTransfers(const scenario::Scenario& scenario, const model::Stages& stages,
                               const schedule::Config& config, const profile::Profiles& profiles,
                               const Changes& changes)
    : ranks_(config.stages), chunks_(config.chunks.value_or(1)) {
  for (int rank = 0; ranks_ > 1 && rank < ranks_; ++rank) {
    const bool changed = link_between(scenario, rank, (rank + 1) % ranks_) == changes.link;
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      Wire wire = wire_after(scenario, profiles, rank, stages.carried(rank, chunk, true).value);
      if (changed) wire.ns = static_cast<std::int64_t>(static_cast<double>(wire.ns) * changes.wires + 0.5);
      wires_.push_back(wire);
    }
  }
}

void ChunkTransfers::reset(int microbatches) {
  microbatches_ = microbatches;
  starts_.clear();
  transfers_.clear();
  posted_.assign(
      static_cast<std::size_t>(ranks_) * 4 * static_cast<std::size_t>(microbatches) * static_cast<std::size_t>(chunks_),
      nobody);
  previous_send_.assign(static_cast<std::size_t>(ranks_) * 2, nobody);
}

std::int32_t ChunkTransfers::start(double base, std::int32_t previous, std::int32_t queued) {
  starts_.push_back({base, previous, queued, unknown});
  return static_cast<std::int32_t>(starts_.size() - 1);
}

std::int32_t ChunkTransfers::post(int rank, const schedule::Part& part, std::int32_t start) {
  const OtherEnd other = other_end(ranks_, rank, part);
  const bool next = to_next(part.type);
  const int from = next ? rank : other.rank, chunk = next ? part.chunk : other.part.chunk;
  const Wire& wire = wires_[static_cast<std::size_t>(from * chunks_ + chunk)];
  const auto id = static_cast<std::int32_t>(transfers_.size());
  const std::int32_t peer = posted_[slot(other.rank, other.part)];
  transfers_.push_back(
      {start, peer, nobody, static_cast<double>(wire.ns), unknown, wire.eager && sends(part.type), rank, wire.crosses});
  if (peer != nobody) transfers_[peer].peer = id;
  posted_[slot(rank, part)] = id;
  if (transfers_[id].eager) {
    auto& previous = previous_send_[static_cast<std::size_t>(rank) * 2 + (next ? 1 : 0)];
    transfers_[id].drained = previous;
    previous = id;
  }
  return id;
}

double ChunkTransfers::started(std::int32_t id) {
  const Start& start = starts_[id];
  if (start.at != unknown) return start.at;
  double at = start.base;
  if (start.previous != nobody) {
    const double over = done(start.previous);
    if (over == unknown) return unknown;
    at = std::max(at, over);
  }
  if (start.queued != nobody) {
    const double queued = started(start.queued);
    if (queued == unknown) return unknown;
    at = std::max(at, queued);
  }
  return starts_[id].at = at;
}

double ChunkTransfers::done(std::int32_t id) {
  const Transfer& transfer = transfers_[id];
  if (transfer.done != unknown) return transfer.done;
  double at = started(transfer.start);
  if (at == unknown) return unknown;
  if (transfer.eager) {
    if (transfer.drained != nobody) {
      const std::int32_t receive = transfers_[transfer.drained].peer;
      const double drained = receive == nobody ? unknown : done(receive);
      if (drained == unknown) return unknown;
      at = std::max(at, drained);
    }
  } else {
    if (transfer.peer == nobody) return unknown;
    const double peer = started(transfers_[transfer.peer].start);
    if (peer == unknown) return unknown;
    at = std::max(at, peer);
  }
  return transfers_[id].done = at + transfer.ns;
}

}  // namespace pipewright::timeline
