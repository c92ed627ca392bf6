// Pieces of a model made ready for the timeline: of every host line only what takes time, with its price, its stream
// and its label, so that following a program looks nothing up.
#pragma once

#include <array>
#include <vector>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

struct HostLine {
  model::Step::Kind kind = model::Step::Kind::launch;
  bool own_stream = false;  ///< runs on the current stream (compute, or that of its node)
  bool on_gpu = true;       ///< false: takes the host's time only
  bool read_by_host = false;
  profile::Load load = profile::Load::none;
  std::int32_t from_microbatch = 0, before_microbatch = INT32_MAX;
  std::uint32_t index = 0;  ///< launch: Piece::kernels; offload_*, reload_*: Piece::groups
  std::uint32_t piece = Label::none;
  Label label;  ///< wait, synchronize: its lane is the stream waited for
  std::int64_t ns = 0, host_ns = 0;
};
using HostLines = std::vector<HostLine>;

struct HostNode {
  schedule::Node::Name name;
  std::array<HostLines, 3> passes;  ///< by Node::Pass
};
struct HostPiece {
  HostLines forward, backward;
  std::vector<HostNode> nodes;
  const HostNode* node(schedule::Node::Name name) const;
};

/// `gap_ns`: the launch gap that every kernel's time on its stream contains.
std::vector<HostPiece> lines_of_pieces(const model::Stages& stages, const Prices& prices, std::int64_t gap_ns);
/// Kernels beside the pieces: collectives, gradient finalisation, optimizer.
HostLines lines_of(const std::vector<model::Kernel>& kernels, const Prices::List& prices, std::int64_t gap_ns,
                   std::uint32_t chunk = 0);

/// Nodes that the lines make, at most.
std::size_t count(const HostLines& lines);

/// A cost of the host, or the launch gap, as a duration of a node.
constexpr std::int64_t nanoseconds(double us) { return whole_ns(us_to_ns(us)); }

}  // namespace pipewright::timeline
