// Numbering of nodes, see weaver.hpp.
#include "weaver.hpp"

#include <algorithm>

namespace pipewright::timeline {

void Weaver::reserve(std::size_t nodes, std::size_t words) {
  graph_.duration_ns.reserve(nodes);
  graph_.loads.reserve(nodes);
  graph_.labels.reserve(nodes);
  graph_.edges.reserve(nodes, words);
}

std::uint32_t Weaver::number(const Label& label, std::int64_t ns, profile::Load load) {
  const auto node = static_cast<std::uint32_t>(graph_.duration_ns.size());
  if (node >= Edges::most_nodes) throw UsageError("the step has more than 2^31 operations");
  graph_.duration_ns.push_back(ns);
  graph_.loads.push_back(load);
  graph_.labels.push_back(label);
  graph_.edges.end_row();
  return node;
}

Handle Weaver::add(const Label& label, std::int64_t ns, profile::Load load, const Arc* begin, const Arc* end) {
  std::size_t missing = 0;
  for (const Arc* arc = begin; arc != end; ++arc) {
    if (arc->from == none) continue;
    const Handle from = resolve(arc->from);
    if ((from & waits) != 0)
      ++missing;
    else
      edge(from, arc->lag_ns);
  }
  if (missing == 0) return number(label, ns, load);

  graph_.edges.drop_row();
  const std::uint32_t slot = new_slot(Slot::State::waiting);
  ++waiting_;
  Pending& entry = pending(slot);
  entry.label = label;
  entry.ns = ns;
  entry.load = load;
  entry.missing = missing;
  for (const Arc* arc = begin; arc != end; ++arc) {
    if (arc->from == none) continue;
    const Handle from = resolve(arc->from);
    entry.arcs.push_back({from, arc->lag_ns});
    if ((from & waits) != 0) pending(from).waiters.push_back(slot);
  }
  return slot | waits;
}

Handle Weaver::promise() { return new_slot(Slot::State::promised) | waits; }

void Weaver::fulfil(Handle promise, Handle node) {
  node = resolve(node);
  const std::uint32_t slot = promise & ~waits;
  if ((node & waits) == 0) {
    settle(slot, node);
    wake();
    return;
  }
  Pending& entry = pending(promise);
  auto& waiters = pending(node).waiters;
  waiters.insert(waiters.end(), entry.waiters.begin(), entry.waiters.end());
  entry.waiters.clear();
  free_.push_back(slots_[slot].value);
  slots_[slot] = {Slot::State::forwarded, node};
}

std::uint32_t Weaver::new_slot(Slot::State state) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(pool_.size()));
    pool_.emplace_back();
  }
  slots_.push_back({state, free_.back()});
  free_.pop_back();
  return static_cast<std::uint32_t>(slots_.size() - 1);
}

// The slot has its number: who waited for it waits for one less.
void Weaver::settle(std::uint32_t slot, std::uint32_t number) {
  Pending& entry = pool_[slots_[slot].value];
  for (const std::uint32_t waiter : entry.waiters)
    if (--pending(waiter).missing == 0) ready_.push_back(waiter);
  entry.waiters.clear();
  entry.arcs.clear();
  free_.push_back(slots_[slot].value);
  slots_[slot] = {Slot::State::numbered, number};
}

void Weaver::wake() {
  for (std::size_t next = 0; next < ready_.size(); ++next) {
    const std::uint32_t slot = ready_[next];
    const Pending& entry = pending(slot);
    for (const Arc& arc : entry.arcs) edge(resolve(arc.from), arc.lag_ns);
    --waiting_;
    settle(slot, number(entry.label, entry.ns, entry.load));
  }
  ready_.clear();
}

std::vector<Label> Weaver::cycle() {
  std::vector<bool> seen(slots_.size(), false);
  std::uint32_t slot = 0;
  while (slots_[slot].state != Slot::State::waiting) ++slot;
  const auto next = [&](std::uint32_t at) {
    for (const Arc& arc : pending(at).arcs) {
      const Handle from = resolve(arc.from);
      if ((from & waits) == 0) continue;
      if (slots_[from & ~waits].state == Slot::State::promised)
        throw InternalError("a transfer or collective that one side does not join");
      return from & ~waits;
    }
    throw InternalError("a node waits for nothing");
  };
  for (; !seen[slot]; slot = next(slot)) seen[slot] = true;
  std::vector<Label> labels;
  for (std::uint32_t at = slot;;) {
    labels.push_back(pending(at).label);
    at = next(at);
    if (at == slot) return labels;
  }
}

}  // namespace pipewright::timeline
