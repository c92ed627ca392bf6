// One rank's host thread and the FIFO streams that it issues work to.
//
//   host      |launch|launch|...|sync ------------------|launch ...        every launch ends a bit of host time
//   compute      [kernel][kernel][wait ....][kernel]                       FIFO; starts not before its launch
//   others             [kernel ...]                                        ... nor before what the current stream held
#pragma once

#include <array>
#include <span>
#include <vector>

#include "weaver.hpp"

namespace pipewright::timeline {

class Streams {
 public:
  /// `synchronize_ns`: from the end of what is waited for to the host's next line.
  Streams(Weaver& weaver, int rank, std::int64_t synchronize_ns);

  Label label(Lane lane, NodeKind kind, std::uint32_t instruction) const;
  void place(Label& label, Lane lane, std::uint32_t instruction) const;
  std::uint8_t phase = 0;
  /// torch.cuda.current_stream(): compute, or the communication stream of expert-parallel overlap.
  Lane current = Lane::compute;
  Handle tail(Lane lane) const { return tail_[static_cast<std::size_t>(lane)]; }
  void set_tail(Lane lane, Handle node) { tail_[static_cast<std::size_t>(lane)] = node; }

  void host_spends(std::int64_t ns);
  Handle launch(const Label& what, std::int64_t ns, profile::Load load, std::span<const Handle> also_after = {});
  /// On another stream: after these instead of what the current stream holds.
  Handle launch_after(const Label& what, std::int64_t ns, profile::Load load, std::span<const Handle> after);
  /// The stream waits for all of these; nothing happens if it holds them already.
  void wait(Lane lane, const std::vector<Handle>& nodes, std::uint32_t instruction, const schedule::Part& part = {});
  void wait(Lane lane, Handle node, std::uint32_t instruction);
  /// The host waits for a stream, or for all (torch.cuda.synchronize).
  void synchronize(Lane lane, std::uint32_t instruction);
  void synchronize(std::uint32_t instruction);
  /// CUDA_DEVICE_MAX_CONNECTIONS=1, one hardware queue: compute kernels and transfers launched from now on start after
  /// this one has started.
  void queue_behind(Handle start) {
    unqueued_.push_back(start);
    last_queued_ = start;
  }
  Handle last_queued() const { return last_queued_; }

 private:
  Handle join(const Label& what, std::int64_t ns, profile::Load load, std::span<const Handle> after);
  void host_comes_to(std::uint32_t instruction);

  Weaver& weaver_;
  const int rank_;
  const std::int64_t synchronize_;
  Handle anchor_ = Weaver::none;  // host node from which launches are counted
  std::int64_t host_ = 0;         // host time since the anchor
  std::array<Handle, lanes> tail_;
  std::vector<Handle> unqueued_;
  Handle last_queued_ = Weaver::none;
  std::vector<Weaver::Arc> arcs_;  // of the node being made
};

}  // namespace pipewright::timeline
