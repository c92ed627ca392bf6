// What activation offload does to the live blocks: the actions of its plan, hook by hook.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "heap.hpp"
#include "pipewright/offload.hpp"

namespace pipewright::memory {

class Offload {
 public:
  Offload(const offload::Plan& plan, const model::Stages& stages, Heap& heap)
      : plan_(plan), stages_(stages), heap_(heap) {}

  const offload::Plan& plan() const { return plan_; }

  void begin_step(bool first) {
    iteration_ = first ? &plan_.first : &plan_.later;
    next_ = 0;
  }

  /// `blocks_of`: from a unit to the blocks of its piece.
  template <class BlocksOf>
  void hook(const BlocksOf& blocks_of) {
    if (plan_.empty()) return;
    for (const auto& action : iteration_->at(next_++)) act(action, blocks_of(plan_.units[action.unit]));
  }

 private:
  void act(const offload::Action& action, std::uint32_t* blocks) {
    using Kind = offload::Action::Kind;
    const auto& group = plan_.group(stages_, action.unit);
    const auto& tensors = stages_.pieces[plan_.units[action.unit].piece].tensors;
    if (action.kind == Kind::let_go) {
      for (const auto block : std::exchange(reloaded_[action.unit], {})) heap_.drop(block);
      return;
    }
    for (const auto& move : group.moves) {
      auto& block = blocks[move.tensor];
      switch (action.kind) {
        case Kind::copy_out:
          // TE keeps the tensor until a stream wait makes its reuse safe; Megatron lets go of it at once.
          // Of a paged stash, the compute stream waits before it lets go.
          if (fine_grained() && move.releases) heap_.record_stream(block);
          break;
        case Kind::release:
          if (move.releases) heap_.drop(std::exchange(block, none));
          break;
        case Kind::keep:
          if (move.back == move.tensor) break;
          blocks[move.back] = block;
          heap_.hold(block);
          break;
        case Kind::copy_in:
        case Kind::reload_now: {
          auto tensor = tensors[move.back];
          if (action.kind == Kind::copy_in && fine_grained()) tensor.stream = model::Stream::h2d;
          blocks[move.back] = heap_.allocate(tensor);
          if (!plan_.whole_layer) break;
          heap_.hold(blocks[move.back]);
          reloaded_[action.unit].push_back(blocks[move.back]);
          break;
        }
        case Kind::pack:
        case Kind::unpack: {
          auto tensor = tensors[move.tensor];
          if (action.kind == Kind::pack) tensor.bytes = move.packed;
          const auto copy = heap_.allocate(tensor);
          heap_.drop(std::exchange(block, copy));
          break;
        }
        default:
          break;
      }
    }
  }
  bool fine_grained() const { return !plan_.whole_layer && !plan_.stash; }

  const offload::Plan& plan_;
  const model::Stages& stages_;
  Heap& heap_;
  const offload::Iteration* iteration_ = nullptr;
  std::size_t next_ = 0;
  std::map<std::uint32_t, std::vector<std::uint32_t>> reloaded_;  ///< by unit: what the host still names
};

}  // namespace pipewright::memory
