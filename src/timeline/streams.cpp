// Streams of a rank, see streams.hpp.
#include "streams.hpp"

#include <algorithm>

namespace pipewright::timeline {

Streams::Streams(Weaver& weaver, int rank, std::int64_t synchronize_ns)
    : weaver_(weaver), rank_(rank), synchronize_(synchronize_ns) {
  tail_.fill(Weaver::none);
  host_comes_to(Label::none);
}

Label Streams::label(Lane lane, NodeKind kind, std::uint32_t instruction) const {
  Label result;
  result.kind = kind;
  place(result, lane, instruction);
  return result;
}

void Streams::place(Label& label, Lane lane, std::uint32_t instruction) const {
  label.instruction = instruction;
  label.rank = static_cast<std::uint16_t>(rank_);
  label.lane = lane;
  label.phase = phase & 3U;
}

// A host node after the arcs collected so far: launches count from it.
void Streams::host_comes_to(std::uint32_t instruction) {
  arcs_.push_back({anchor_, host_});
  anchor_ = weaver_.add(label(Lane::host, NodeKind::host, instruction), 0, profile::Load::none, arcs_.data(),
                        arcs_.data() + arcs_.size());
  host_ = 0;
  arcs_.clear();
}

void Streams::host_spends(std::int64_t ns) {
  host_ += ns;
  constexpr std::int64_t far = 1'000'000'000;  // lags are 32 bit
  if (host_ >= far) host_comes_to(Label::none);
}

Handle Streams::launch(const Label& what, std::int64_t ns, profile::Load load, std::span<const Handle> also_after) {
  arcs_.push_back({tail(what.lane), 0});
  arcs_.push_back({anchor_, host_});
  if (what.lane != current) arcs_.push_back({tail(current), 0});
  return join(what, ns, load, also_after);
}

Handle Streams::launch_after(const Label& what, std::int64_t ns, profile::Load load, std::span<const Handle> after) {
  arcs_.push_back({tail(what.lane), 0});
  arcs_.push_back({anchor_, host_});
  return join(what, ns, load, after);
}

// The node joins its stream, after the arcs collected so far and these.
Handle Streams::join(const Label& what, std::int64_t ns, profile::Load load, std::span<const Handle> after) {
  if (what.lane == Lane::compute) {
    for (const Handle start : unqueued_) arcs_.push_back({start, 0});
    unqueued_.clear();
  }
  for (const Handle node : after) arcs_.push_back({node, 0});
  const Handle node = weaver_.add(what, ns, load, arcs_.data(), arcs_.data() + arcs_.size());
  arcs_.clear();
  set_tail(what.lane, node);
  return node;
}

void Streams::wait(Lane lane, const std::vector<Handle>& nodes, std::uint32_t instruction, const schedule::Part& part) {
  Label what = label(lane, NodeKind::wait, instruction);
  what.set_part(part);
  for (const Handle node : nodes) arcs_.push_back({node, 0});
  launch(what, 0, profile::Load::none);
}

void Streams::wait(Lane lane, Handle node, std::uint32_t instruction) {
  if (node == Weaver::none || node == tail(lane)) return;
  arcs_.push_back({node, 0});
  launch(label(lane, NodeKind::wait, instruction), 0, profile::Load::none);
}

void Streams::synchronize(Lane lane, std::uint32_t instruction) {
  arcs_.push_back({tail(lane), synchronize_});
  host_comes_to(instruction);
}

void Streams::synchronize(std::uint32_t instruction) {
  for (const Handle last : tail_) arcs_.push_back({last, synchronize_});
  host_comes_to(instruction);
}

}  // namespace pipewright::timeline
