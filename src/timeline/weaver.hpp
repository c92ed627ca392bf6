// Numbers nodes in topological order while they are being made. The hosts of all ranks are followed in turn; a node
// whose predecessors have their numbers gets the next one, another waits in a pool until they have. So the graph is
// written once, in its final order, and only what waits for another rank is ever stored twice.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// A node that may not have its number yet.
using Handle = std::uint32_t;

class Weaver {
 public:
  static constexpr Handle none = Label::none;
  struct Arc {
    Handle from;  ///< none: no such predecessor
    std::int64_t lag_ns = 0;
  };

  explicit Weaver(Graph& graph) : graph_(graph) {}
  void reserve(std::size_t nodes, std::size_t words);

  Handle add(const Label& label, std::int64_t ns, profile::Load load, const Arc* begin, const Arc* end);

  /// A node that somebody will make later: it can be waited for before it exists.
  Handle promise();
  void fulfil(Handle promise, Handle node);

  bool numbered(Handle handle) const { return handle == none || (resolve(handle) & waits) == 0; }
  bool all_numbered() const { return waiting_ == 0; }
  /// Nodes that wait for each other in a circle, each for the next.
  std::vector<Label> cycle();

 private:
  static constexpr Handle waits = 0x80000000;  ///< the rest is a slot, not a number

  /// What became of a handle without a number.
  struct Slot {
    enum class State : std::uint8_t { waiting, promised, forwarded, numbered } state;
    std::uint32_t value;  ///< index into pool_, pool_, another handle, the number
  };
  struct Pending {
    Label label;
    std::int64_t ns = 0;
    profile::Load load = profile::Load::none;
    std::size_t missing = 0;
    std::vector<Arc> arcs;
    std::vector<std::uint32_t> waiters;  ///< slots
  };

  Handle resolve(Handle handle) const {
    while ((handle & waits) != 0 && handle != none) {
      const Slot& slot = slots_[handle & ~waits];
      if (slot.state == Slot::State::numbered) return slot.value;
      if (slot.state != Slot::State::forwarded) return handle;
      handle = slot.value;
    }
    return handle;
  }
  Pending& pending(Handle handle) { return pool_[slots_[handle & ~waits].value]; }
  std::uint32_t number(const Label& label, std::int64_t ns, profile::Load load);
  void edge(Handle from, std::int64_t lag_ns) { graph_.edges.add({from, static_cast<std::int32_t>(lag_ns)}); }
  std::uint32_t new_slot(Slot::State state);
  void settle(std::uint32_t slot, std::uint32_t number);
  void wake();

  Graph& graph_;
  std::vector<Slot> slots_;
  std::deque<Pending> pool_;
  std::vector<std::uint32_t> free_;   ///< of pool_
  std::vector<std::uint32_t> ready_;  ///< slots all of whose predecessors have numbers
  std::size_t waiting_ = 0;
};

}  // namespace pipewright::timeline
