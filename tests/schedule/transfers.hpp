// A small world in which the programs of all ranks run: a P2P call posts its parts, a wait (and a synchronous call)
// blocks its rank until the peer has posted the other side. As with NCCL, what two ranks post to one channel is paired
// in the order of posting:
//   isend/irecv, p > 2   one channel for each pair of neighbours, both directions in one queue
//   p = 2, or batches    one channel for each direction
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "pipewright/schedule.hpp"

namespace pipewright::schedule {

class World {
 public:
  explicit World(const Program& program) : program_(program), next_(program.ranks.size()), waiting_(next_.size()) {}

  /// Empty if every rank comes to its end and every transfer is paired with its own other side; else what is wrong.
  std::string run() {
    for (bool moved = true; moved && wrong_.empty();) {
      moved = false;
      for (std::size_t rank = 0; rank < next_.size() && wrong_.empty(); ++rank)
        while (wrong_.empty() && step(rank)) moved = true;
    }
    if (!wrong_.empty()) return wrong_;
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      if (next_[rank] < program_.ranks[rank].instructions.size())
        return fmt::format("rank {} hangs at instruction {}", rank, next_[rank]);
    for (const auto& [key, channel] : channels_)
      if (channel.posted[0].size() != channel.posted[1].size()) return "a transfer has no other side";
    return {};
  }

 private:
  using Tensor = std::tuple<bool, int, int>;  ///< forward, microbatch, virtual stage that made it
  struct Channel {
    std::vector<Tensor> posted[2];
  };
  struct Posted {
    const Channel* channel;
    std::size_t ordinal;
    bool complete() const { return ordinal < channel->posted[0].size() && ordinal < channel->posted[1].size(); }
  };
  using PartKey = std::tuple<std::size_t, int, int, int>;
  static PartKey key(std::size_t rank, const Part& p) {
    return {rank, static_cast<int>(p.type), p.microbatch, p.chunk};
  }

  bool step(std::size_t rank) {
    const auto& instructions = program_.ranks[rank].instructions;
    if (next_[rank] == instructions.size()) return false;
    const Instruction& i = instructions[next_[rank]];
    const bool call = i.kind == Kind::p2p_sync || i.kind == Kind::p2p_async;
    if (call && !waiting_[rank])
      for (const Part& part : i.parts) post(rank, part);
    if (i.kind == Kind::p2p_sync || i.kind == Kind::wait) {
      bool complete = true;
      for (const Part& part : i.parts) {
        const auto found = posted_.find(key(rank, part));
        if (found == posted_.end()) return wrong_ = fmt::format("rank {} waits for nothing", rank), false;
        complete = complete && found->second.complete();
      }
      const bool news = call && !waiting_[rank];
      waiting_[rank] = call && !complete;
      if (!complete) return news;
    }
    ++next_[rank];
    return true;
  }

  void post(std::size_t rank, const Part& part) {
    const int p = program_.config.stages, r = static_cast<int>(rank);
    const bool next = part.type == Part::Type::send_next || part.type == Part::Type::recv_next;
    const bool sends = part.type == Part::Type::send_next || part.type == Part::Type::send_prev;
    const bool forward = part.type == Part::Type::send_next || part.type == Part::Type::recv_prev;
    const int peer = (r + (next ? 1 : p - 1)) % p;
    const int stage = part.chunk * p + r + (sends ? 0 : forward ? -1 : 1);

    const bool one_queue = !program_.config.batched && p > 2;
    const std::tuple<int, int> id = one_queue || sends ? std::tuple(r, peer) : std::tuple(peer, r);
    Channel& channel = channels_[one_queue ? std::tuple(std::min(r, peer), std::max(r, peer)) : id];
    auto& mine = channel.posted[one_queue ? (r < peer ? 0 : 1) : (sends ? 0 : 1)];
    const auto& theirs = channel.posted[&mine == &channel.posted[0] ? 1 : 0];
    mine.emplace_back(forward, part.microbatch, stage);
    const std::size_t ordinal = mine.size() - 1;
    if (ordinal < theirs.size() && theirs[ordinal] != mine[ordinal])
      wrong_ = fmt::format("rank {}: part {}.{} is paired with another tensor", rank, part.microbatch, part.chunk);
    if (!posted_.emplace(key(rank, part), Posted{&channel, ordinal}).second)
      wrong_ = fmt::format("rank {}: part {}.{} is posted twice", rank, part.microbatch, part.chunk);
  }

  const Program& program_;
  std::vector<std::size_t> next_;
  std::vector<bool> waiting_;
  std::map<std::tuple<int, int>, Channel> channels_;
  std::map<PartKey, Posted> posted_;
  std::string wrong_;
};

}  // namespace pipewright::schedule
