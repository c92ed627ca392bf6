// A rank's host thread following its program, one instruction at a time.
//
// Expert-parallel overlap (reference 2.2): the nodes of a chunk's forward, or backward, form a serial chain over two
// streams, held together by one event. A node waits for the event on its own stream, runs, records it:
//
//   compute  |pre_dispatch|        |mlp|           F chain and B chain meet only in the FIFO order of the streams
//   expert                |dispatch|   |combine|
#pragma once

#include <array>
#include <vector>

#include "exchange.hpp"
#include "lines.hpp"
#include "offload.hpp"
#include "streams.hpp"

namespace pipewright::timeline {

/// A collective over several pipeline ranks starts on each of them and ends when the last one has come to it.
class Joins {
 public:
  explicit Joins(const model::Stages& stages);
  /// The arrivals of the other ranks at the rank's `ordinal`-th joint collective of a phase, once this one is there.
  std::vector<Handle> arrive(Weaver& weaver, int rank, std::uint8_t phase, std::size_t ordinal, Handle arrival);

 private:
  std::array<std::vector<std::size_t>, 3> count_;             ///< [phase][rank]
  std::array<std::vector<std::vector<Handle>>, 3> arrivals_;  ///< [phase][ordinal][rank]
};

/// What all hosts share.
struct Shared {
  const scenario::Scenario& scenario;
  const model::Stages& stages;
  const schedule::Program& program;
  Weaver& weaver;
  Exchange& exchange;
  Joins& joins;
  const std::vector<HostPiece>& pieces;
  const Prices& prices;
  std::int64_t gap = 0, synchronize = 0, forward_begin = 0, forward_end = 0, backward_begin = 0, backward_end = 0;
  std::int64_t forward_node = 0, backward_node = 0;  ///< to enter a node of expert-parallel overlap
};

class Host {
 public:
  Host(const Shared& shared, int rank);
  bool finished() const { return finished_; }
  /// What it would do next waits for another rank.
  bool blocked() const { return !shared_.weaver.numbered(streams_.tail(Lane::compute)); }
  void next();

 private:
  struct ChunkLines {
    HostLines gradient_sync, parameter_gather;
    std::vector<int> ordinals;          ///< of its pieces: layer within the chunk, -1 the embedding
    std::vector<std::uint32_t> layers;  ///< pieces that are layers of expert-parallel overlap
  };

  void follow(const schedule::Instruction& instruction);
  void forward_begins(int microbatch, int chunk);
  void backward_ends(int chunk);
  void forward(int microbatch, int chunk);
  void backward(int microbatch, int chunk);
  void transfer(const schedule::Instruction& call, bool synchronous);
  void combined_begin(const schedule::Instruction& call);
  void combined_end();
  void node(const schedule::Instruction& instruction);
  void wait_for_chain(const schedule::Part& part);
  void gather_parameters(int chunk);
  /// Reduces the buckets that are complete once the backward of a layer is over.
  void reduce_gradients(int chunk, int layer = -1);
  void step_end();

  void run(const HostLines& lines, bool first_microbatch);
  Handle launch(const HostLine& line);
  const HostNode& lines_of(const schedule::Instruction& instruction) const;

  const Shared& shared_;
  const int rank_;
  const std::vector<schedule::Instruction>& program_;
  const model::Rank& model_;
  std::vector<ChunkLines> chunks_;
  HostLines finalize_, optimizer_;
  Streams streams_;
  OffloadCopies offload_;
  std::uint32_t at_ = 0;
  bool finished_ = false;

  bool reduces_ = true;               ///< not inside no_sync
  std::vector<int> backwards_left_;   ///< by chunk
  std::vector<std::size_t> reduced_;  ///< by chunk: of gradient_sync
  std::vector<Handle> gathered_;      ///< by chunk: its parameters are there
  std::size_t joined_ = 0;            ///< joint collectives so far in this phase
  bool in_combined_ = false;
  schedule::Instruction combined_;
  std::array<Handle, 2> chain_;  ///< events of the forward and the backward chain
};

}  // namespace pipewright::timeline
