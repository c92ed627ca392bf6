// Copies of activation offload on the streams of a rank. The plan says at each hook what happens (offload.hpp):
//
//   compute  |layer 0      |layer 1      |...        |wait D2H 0|layer L-n|        fine-grained: D2H after the commit
//   d2h         |a|b|...|D2H of layer 0  |D2H of layer 1 |                         whole layer: each tensor when it is
//   h2d                                     (the same stream for whole layers)     there, once the next layer begins
//
// A paged stash copies on the device: into pages and back on the lane d2h.
#pragma once

#include <vector>

#include "lines.hpp"
#include "pipewright/offload.hpp"
#include "streams.hpp"

namespace pipewright::timeline {

class OffloadCopies {
 public:
  OffloadCopies(const offload::Plan& plan, const model::Stages& stages, const Prices& prices, std::int64_t gap_ns);

  /// The forward pass comes to a piece.
  void enter(std::size_t position, Handle tail);
  /// ... and has launched a kernel of it.
  void launched(std::uint32_t kernel, Handle node);
  /// The next hook.
  void hook(Streams& streams, std::uint32_t instruction);

 private:
  struct Present {
    Handle start = Weaver::none;
    std::vector<Handle> kernels;
  };
  void copy_out(Streams& streams, std::uint32_t unit, std::uint32_t instruction);
  void copy_in(Streams& streams, std::uint32_t unit, std::uint32_t instruction);
  void reload_now(Streams& streams, std::uint32_t unit, std::uint32_t instruction);
  /// `after`: what the copy waits for beside its own stream.
  Handle copy(Streams& streams, Lane lane, std::uint32_t unit, std::uint32_t kernel, std::uint32_t instruction,
              std::vector<Handle> after);

  const offload::Plan plan_;
  const model::Stages& stages_;
  const Prices& prices_;
  const std::int64_t gap_;
  std::size_t next_ = 0;
  std::vector<Handle> out_, in_;  ///< by unit: its last copy
  std::vector<Present> present_;  ///< whole layers: by position, of the current microbatch
  std::size_t position_ = 0;
};

}  // namespace pipewright::timeline
