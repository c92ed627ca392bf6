// A node of the timeline in words: which kernel, which op of the schedule, which transfer, what held it up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pipewright/predict.hpp"

namespace pipewright::report {

/// A step of the compute stream that belongs together: one forward, backward, finalisation or optimizer.
struct Block {
  std::uint32_t instruction = timeline::Label::none;
  std::uint8_t phase = 0;
  std::int64_t start = 0, end = 0;
};

class Nodes {
 public:
  explicit Nodes(const predict::Run& run);

  /// The kernel behind a node; null for transfers, waits and host nodes.
  const model::Kernel* kernel(const timeline::Label& label) const;
  /// "F 3.1", "B 0.0", "gradient finalisation", "optimizer", ""; of a transfer the op that makes or consumes its
  /// tensor.
  std::string op(const timeline::Label& label) const;
  /// Does the node belong to a backward pass alone?
  bool backward(const timeline::Label& label) const;
  /// "mlp.fc1 forward", "receive F 3.1 from rank 0", "wait for ...".
  std::string what(const timeline::Label& label) const;
  /// The rank at the other end of a transfer.
  int peer(const timeline::Label& label) const;
  /// When the rank's P2P kernel of this transfer began to spin.
  std::int64_t posted(std::uint32_t transfer) const;
  /// The same transfer on the other rank.
  std::optional<std::uint32_t> other_side(std::uint32_t transfer) const;
  /// The predecessor that decided when a node could start; none at the start of the step.
  std::optional<std::uint32_t> binding(std::uint32_t node) const;
  /// Nodes of a rank in order of their start (compute lane first where equal).
  const std::vector<std::uint32_t>& of_rank(int rank) const { return by_rank_.at(static_cast<std::size_t>(rank)); }
  /// What the compute stream of a rank does, one block for each uninterrupted run of kernels of the same op.
  std::vector<Block> blocks(int rank) const;

 private:
  const predict::Run& run_;
  std::vector<std::vector<std::uint32_t>> by_rank_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> transfers_;  ///< (rank, part) packed -> node, sorted
};

const char* lane_name(timeline::Lane lane);

}  // namespace pipewright::report
