// Pipeline transfers, see exchange.hpp.
#include "exchange.hpp"

#include <algorithm>

#include "lines.hpp"
#include "pipewright/scenario/derived.hpp"
#include "transfers.hpp"

namespace pipewright::timeline {

using schedule::Part;

OtherEnd other_end(int ranks, int rank, const Part& part) {
  using Type = Part::Type;
  constexpr std::array mirror{Type::recv_prev, Type::send_next, Type::recv_next, Type::send_prev};
  const bool next = to_next(part.type);
  int chunk = part.chunk;
  if (next && rank == ranks - 1) ++chunk;
  if (!next && rank == 0) --chunk;
  return {(rank + (next ? 1 : ranks - 1)) % ranks,
          {mirror[static_cast<std::size_t>(part.type)], part.microbatch, chunk}};
}

Exchange::Posts::Posts(int ranks, int chunks, int microbatches)
    : in_buffers(2 * static_cast<std::size_t>(ranks)),
      chunks_(static_cast<std::size_t>(chunks)),
      microbatches_(static_cast<std::size_t>(microbatches)),
      posts_(ranks > 1 ? static_cast<std::size_t>(ranks) * 4 * chunks_ * microbatches_ : 0) {}

Exchange::Post& Exchange::Posts::at(int rank, const Part& part) {
  const auto type = static_cast<std::size_t>(part.type), chunk = static_cast<std::size_t>(part.chunk);
  const auto row = (static_cast<std::size_t>(rank) * 4 + type) * chunks_ + chunk;
  return posts_.at(row * microbatches_ + static_cast<std::size_t>(part.microbatch));
}

Exchange::Exchange(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
                   const profile::Profiles& profiles, Weaver& weaver)
    : scenario_(scenario),
      weaver_(weaver),
      ranks_(config.stages),
      batched_(config.batched),
      one_communicator_(scenario.software.process_group_device_id),
      one_queue_(one_hardware_queue(scenario)),
      call_(nanoseconds(replayed_host_factor(scenario, profiles) * profiles.scalar("host.p2p_call_us").value)),
      chunks_(config.chunks.value_or(1)),
      tensors_(config.stages, config.chunks.value_or(1), config.microbatches) {
  if (ranks_ < 2) return;
  constexpr std::int64_t shape_bytes = 3 * 8;  // three int64
  if (scenario::exchanges_shapes(scenario)) shapes_.emplace(ranks_, config.chunks.value_or(1), config.microbatches);
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int chunk = 0; chunk < chunks_; ++chunk)
      wires_.push_back(wire_after(scenario, profiles, rank, stages.carried(rank, chunk, true).value));
    if (shapes_) shape_wires_.push_back(wire_after(scenario, profiles, rank, shape_bytes));
  }
}

Handle Exchange::start(Streams& streams, Lane lane, const Part& part, std::uint32_t instruction) {
  streams.host_spends(call_);
  Label what = streams.label(lane, NodeKind::transfer_start, instruction);
  what.set_part(part);
  if (!one_queue_) return streams.launch(what, 0, profile::Load::none);
  const std::array before{streams.last_queued()};
  const Handle start = streams.launch(what, 0, profile::Load::none, before);
  streams.queue_behind(start);
  return start;
}

Handle Exchange::promised(Handle& handle) {
  if (handle == Weaver::none) handle = weaver_.promise();
  return handle;
}

Handle Exchange::post(Streams& streams, int rank, const Part& part, Handle start, Lane lane, std::uint32_t instruction,
                      bool shape) {
  Posts& posts = shape ? *shapes_ : tensors_;
  const OtherEnd peer = other_end(ranks_, rank, part);
  const bool next = to_next(part.type);
  const int from = next ? rank : peer.rank, chunk = next ? part.chunk : peer.part.chunk;
  const Wire& wire =
      shape ? shape_wires_[static_cast<std::size_t>(from)] : wires_[static_cast<std::size_t>(from * chunks_ + chunk)];

  std::array<Weaver::Arc, 3> arcs{{{start}, {Weaver::none}, {Weaver::none}}};
  if (sends(part.type) && wire.eager) {
    auto& before = posts.in_buffers[2 * static_cast<std::size_t>(rank) + (next ? 0 : 1)];
    if (before) arcs[1].from = promised(posts.at(before->rank, before->part).done);
    before = peer;
  } else {
    arcs[2].from = promised(posts.at(peer.rank, peer.part).start);
  }
  Label what = streams.label(lane, NodeKind::transfer, instruction);
  what.set_part(part);
  what.shapes = shape;
  const Handle done = weaver_.add(what, wire.ns, profile::Load::none, arcs.data(), arcs.data() + arcs.size());
  streams.set_tail(lane, done);

  Post& own = posts.at(rank, part);
  if (own.made) throw InternalError("a tensor is sent or received twice");
  if (own.start != Weaver::none) weaver_.fulfil(own.start, start);
  if (own.done != Weaver::none) weaver_.fulfil(own.done, done);
  own = {start, done, true};
  return done;
}

// A batch is one NCCL kernel, else every part is one of its own, in order.
std::vector<Handle> Exchange::call(Streams& streams, int rank, const schedule::Parts& parts,
                                   std::uint32_t instruction) {
  std::vector<Handle> done;
  Handle batch = Weaver::none;
  for (const Part& part : parts) {
    const Lane lane = p2p_lane(scenario_, ranks_, rank, part, batched_);
    if (!batched_ || batch == Weaver::none) batch = start(streams, lane, part, instruction);
    done.push_back(post(streams, rank, part, batch, lane, instruction, false));
  }
  return done;
}

std::vector<Handle> Exchange::call_shapes(Streams& streams, int rank, const schedule::Parts& parts,
                                          std::uint32_t instruction) {
  std::vector<Handle> done;
  if (parts.empty()) return done;
  const Lane lane = batched_ || one_communicator_ ? Lane::p2p : Lane::p2p_group;
  const Handle batch = start(streams, lane, parts.front(), instruction);
  for (const Part& part : parts) done.push_back(post(streams, rank, part, batch, lane, instruction, true));
  return done;
}

Handle Exchange::posted(int rank, const Part& part) const {
  const Post& post = tensors_.at(rank, part);
  if (!post.made) throw InternalError("the schedule waits for a transfer never posted");
  return post.done;
}

}  // namespace pipewright::timeline
