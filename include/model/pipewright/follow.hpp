// One reading of a rank's program. Whoever needs to know what a rank's host does - both engines, the memory walk,
// activation offload - follows the program here and is told, in host order: which pieces run, when parameters are
// gathered and gradient buckets reduced, which weight gradients wait, where the device is synchronised. Sources:
// schedules.py, combined_1f1b.py, model_chunk_schedule_plan.py and distributed/param_and_grad_buffer.py of Megatron
// core_r0.19.0.
//
//   F 0.0     begin_forward [gather_parameters wait_for_parameters] forward(0) [..] forward(1) .. end_forward
//   B 3.0     begin_backward backward(n) [reduce_gradients] .. backward(0) callbacks [reduce_gradients] end_backward
//   { .. }    begin_combined begin_forward.. begin_backward, node .., end_combined, then as after forward and backward
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "pipewright/model.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::model {

/// A chunk's gradient buckets in the order in which its last backward completes them.
struct BucketOrder {
  std::vector<std::uint32_t> buckets;  ///< into Chunk::gradient_sync
  std::vector<std::size_t> complete;   ///< by piece: how many are, once its backward is over
};
BucketOrder bucket_order(const Chunk& chunk);

/// A chunk's parameter gathers in the order in which its first forward needs them.
struct GatherOrder {
  std::vector<std::uint32_t> gathers;  ///< into Chunk::parameter_gather
  std::vector<std::size_t> needed;     ///< by piece: how many there must be before its forward
};
GatherOrder gather_order(const Chunk& chunk);

/// Places in a rank's chunk of what a node of expert-parallel overlap belongs to.
struct NodePlace {
  std::size_t position = 0;          ///< of its piece
  const NodeSteps* steps;            ///< of the node
  bool first = false, last = false;  ///< of the piece, in forward order; the loss, a mean of numbers, does not count
};
NodePlace place_of(const Stages& stages, const Chunk& chunk, const schedule::Node& node);

/// Forward or backward of a chunk for one microbatch.
struct Call {
  int microbatch = 0, chunk = 0;
};

/// What a follower tells; visitors hide what concerns them (there are no virtual calls). Those that return bool are
/// asked before anything else of their instruction happens, false: another rank must come first, ask again.
struct Visitor {
  using Instruction = schedule::Instruction;

  bool begin_forward(Call) { return true; }
  void gather_parameters(int /*chunk*/, std::span<const std::uint32_t> /*gathers*/) {}
  void wait_for_parameters(int /*chunk*/, std::uint32_t /*gather*/) {}
  void forward(Call, std::size_t /*position*/) {}
  void end_forward(Call) {}

  bool begin_backward(Call) { return true; }
  void backward(Call, std::size_t /*position*/) {}
  /// The piece's weight gradient is left for the end of the step (Piece::weight_gradient).
  void defer_weight_gradient(Call, std::size_t /*position*/) {}
  void callbacks(Call) {}  ///< autograd's, at the end of a backward pass
  void reduce_gradients(int /*chunk*/, std::span<const std::uint32_t> /*buckets*/) {}
  void end_backward(Call) {}

  /// Before a node, and before a combined call begins or ends.
  bool ready(const Instruction&) { return true; }
  void begin_combined(const Instruction&) {}
  void node(const Instruction&, const NodePlace&) {}
  void end_combined() {}

  bool transfer(const Instruction&, bool /*synchronous*/) { return true; }
  bool wait(const schedule::Part&) { return true; }
  void deallocate(Call) {}
};

template <class Visits>
class Follower {
 public:
  Follower(const Stages& stages, const schedule::Program& program, int rank, Visits& visitor)
      : stages_(stages),
        rank_(stages.ranks.at(static_cast<std::size_t>(rank))),
        visitor_(visitor),
        gathers_at_once_(program.config.align_param_gather && program.config.chunks),
        gathers_ahead_(!program.config.align_param_gather) {
    for (const Chunk& chunk : rank_.chunks) chunks_.push_back({bucket_order(chunk), gather_order(chunk)});
    for (const auto& i : program.ranks.at(static_cast<std::size_t>(rank)).instructions) {
      if (i.kind == schedule::Kind::backward) ++at(i.chunk).backwards_left;
      if (i.kind == schedule::Kind::combined_begin && i.backward_microbatch != schedule::no_microbatch)
        ++at(i.backward_chunk).backwards_left;
    }
  }

  /// One instruction; false: not now.
  bool follow(const schedule::Instruction& i) {
    switch (i.kind) {
      case schedule::Kind::forward:
        return forward({i.microbatch, i.chunk});
      case schedule::Kind::backward:
        return backward({i.microbatch, i.chunk});
      case schedule::Kind::combined:
        throw InternalError("a combined call that is not written out node by node");
      case schedule::Kind::combined_begin:
        if (!visitor_.ready(i)) return false;
        begin_combined(i);
        break;
      case schedule::Kind::combined_end:
        if (!visitor_.ready(i)) return false;
        end_combined();
        break;
      case schedule::Kind::node:
        if (!visitor_.ready(i)) return false;
        node(i);
        break;
      case schedule::Kind::p2p_async:
        return visitor_.transfer(i, false);
      case schedule::Kind::p2p_sync:
        return visitor_.transfer(i, true);
      case schedule::Kind::wait:
        return visitor_.wait(i.parts.front());
      case schedule::Kind::no_sync_enter:
      case schedule::Kind::no_sync_exit:
        reduces_ = i.kind == schedule::Kind::no_sync_exit;
        break;
      case schedule::Kind::param_sync:
        gather(i.chunk, at(i.chunk).gathers.gathers.size());
        break;
      case schedule::Kind::grad_sync:
        reduce_rest(i.chunk);
        break;
      case schedule::Kind::deallocate:
        visitor_.deallocate({i.microbatch, i.chunk});
        break;
    }
    return true;
  }

 private:
  struct OfChunk {
    BucketOrder order;
    GatherOrder gathers;
    int backwards_left = 0;
    std::size_t reduced = 0;                         ///< of order.buckets
    std::size_t gathered = 0, awaited = 0;           ///< of gathers.gathers
    std::vector<std::optional<NodePlace>> places{};  ///< of the nodes that came so far, by layer and name
  };

  OfChunk& at(int chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }
  const std::vector<std::uint32_t>& pieces(int chunk) const {
    return rank_.chunks[static_cast<std::size_t>(chunk)].pieces;
  }

  bool forward(Call call) {
    if (!visitor_.begin_forward(call)) return false;
    for (std::size_t position = 0; position < pieces(call.chunk).size(); ++position) {
      parameters(call, position);
      visitor_.forward(call, position);
    }
    visitor_.end_forward(call);
    return true;
  }

  /// The hook of a module in a chunk's first forward waits for its bucket, gathered now where it was not yet, and has
  /// the next one gathered (finish_param_sync). align_param_gather has none gathered ahead; the interleaved schedule
  /// then gathers all at once, the first bucket last (start_param_sync), other schedules do not.
  void parameters(Call call, std::size_t position) {
    if (call.microbatch != 0) return;
    OfChunk& of = at(call.chunk);
    const std::size_t all = of.gathers.gathers.size();
    const std::size_t needed = gathers_at_once_ ? all : of.gathers.needed[position];
    if (needed <= of.awaited) return;
    gather(call.chunk, needed);
    visitor_.wait_for_parameters(call.chunk, of.gathers.gathers[needed - 1]);
    of.awaited = needed;
    if (needed == all || !gathers_ahead_) return;
    const auto next = std::ranges::upper_bound(of.gathers.needed, needed);
    gather(call.chunk, next == of.gathers.needed.end() ? all : *next);
  }
  void gather(int chunk, std::size_t until) {
    OfChunk& of = at(chunk);
    if (until <= of.gathered) return;
    visitor_.gather_parameters(chunk, std::span(of.gathers.gathers).subspan(of.gathered, until - of.gathered));
    of.gathered = until;
  }

  bool backward(Call call) {
    if (!visitor_.begin_backward(call)) return false;
    for (std::size_t position = pieces(call.chunk).size(); position-- > 0;) {
      visitor_.backward(call, position);
      defer(call, position);
      if (position > 0 && reduces_now(call.chunk)) reduce(call.chunk, at(call.chunk).order.complete[position]);
    }
    end_backward(call);
    return true;
  }

  void defer(Call call, std::size_t position) {
    const auto& steps = stages_.pieces[pieces(call.chunk)[position]].weight_gradient;
    if (!steps.empty() && steps.front().runs(call.microbatch)) visitor_.defer_weight_gradient(call, position);
  }

  /// The hooks of a chunk's parameters reduce in its last backward, unless align_grad_reduce has its own place for it.
  bool reduces_now(int chunk) { return at(chunk).backwards_left == 1 && reduces_; }
  void end_backward(Call call) {
    visitor_.callbacks(call);
    if (reduces_now(call.chunk)) reduce_rest(call.chunk);
    --at(call.chunk).backwards_left;
    visitor_.end_backward(call);
  }
  void reduce_rest(int chunk) { reduce(chunk, at(chunk).order.buckets.size()); }
  void reduce(int chunk, std::size_t until) {
    OfChunk& of = at(chunk);
    if (until <= of.reduced) return;
    visitor_.reduce_gradients(chunk, std::span(of.order.buckets).subspan(of.reduced, until - of.reduced));
    of.reduced = until;
  }

  const NodePlace& place_in(int chunk, const schedule::Node& node) {
    constexpr auto names = static_cast<std::size_t>(schedule::Node::Name::loss) + 1;
    auto& places = at(chunk).places;
    const auto index = static_cast<std::size_t>(node.layer + 1) * names + static_cast<std::size_t>(node.name);
    if (places.size() <= index) places.resize(index + 1);
    if (!places[index]) places[index] = place_of(stages_, rank_.chunks[static_cast<std::size_t>(chunk)], node);
    return *places[index];
  }
  void begin_combined(const schedule::Instruction& i) {
    combined_ = i;
    visitor_.begin_combined(i);
    if (i.microbatch != schedule::no_microbatch) {
      const Call call{i.microbatch, i.chunk};
      visitor_.begin_forward(call);
    }
    if (i.backward_microbatch != schedule::no_microbatch)
      visitor_.begin_backward({i.backward_microbatch, i.backward_chunk});
  }
  void node(const schedule::Instruction& i) {
    const NodePlace place = place_in(i.chunk, i.node);
    if (i.node.pass == schedule::Node::Pass::forward) parameters({i.microbatch, i.chunk}, place.position);
    visitor_.node(i, place);
    if (i.node.pass == schedule::Node::Pass::backward && place.first) defer({i.microbatch, i.chunk}, place.position);
  }
  void end_combined() {
    visitor_.end_combined();
    if (combined_.microbatch != schedule::no_microbatch) visitor_.end_forward({combined_.microbatch, combined_.chunk});
    if (combined_.backward_microbatch != schedule::no_microbatch)
      end_backward({combined_.backward_microbatch, combined_.backward_chunk});
  }

  const Stages& stages_;
  const Rank& rank_;
  Visits& visitor_;
  std::vector<OfChunk> chunks_;
  bool gathers_at_once_, gathers_ahead_;
  bool reduces_ = true;  ///< not inside no_sync
  schedule::Instruction combined_;
};

}  // namespace pipewright::model
