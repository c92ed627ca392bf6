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
#include "offload_copies.hpp"
#include "pipewright/follow.hpp"
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

class Host : public model::Visitor {
 public:
  Host(const Shared& shared, int rank);
  Host(const Host&) = delete;  // its follower knows where it is

  bool finished() const { return finished_; }
  /// What it would do next waits for another rank.
  bool blocked() const { return !shared_.weaver.numbered(streams_.tail(Lane::compute)); }
  void next();

  bool begin_forward(model::Call call);
  void gather_parameters(int chunk, std::span<const std::uint32_t> gathers);
  void wait_for_parameters(int chunk, std::uint32_t gather);
  void forward(model::Call call, std::size_t position);
  void end_forward(model::Call call);
  bool begin_backward(model::Call call);
  void backward(model::Call call, std::size_t position);
  void callbacks(model::Call call);
  void reduce_gradients(int chunk, std::span<const std::uint32_t> buckets);
  void end_backward(model::Call call);
  void begin_combined(const schedule::Instruction& call);
  void node(const schedule::Instruction& instruction, const model::NodePlace& place);
  void end_combined();
  bool transfer(const schedule::Instruction& call, bool synchronous);
  bool wait(const schedule::Part& part);

 private:
  struct ChunkLines {
    HostLines gradient_sync, parameter_gather;
  };

  void wait_for_chain(const schedule::Part& part);
  void step_end();
  void run(const HostLines& lines, int microbatch);
  Handle launch(const HostLine& line);
  const HostPiece& piece(int chunk, std::size_t position) const;

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

  std::vector<std::vector<Handle>> gathered_;  ///< by chunk and gather: the parameters are there
  std::size_t joined_ = 0;                     ///< joint collectives so far in this phase
  bool in_combined_ = false;
  std::array<Handle, 2> chain_;  ///< events of the forward and the backward chain
  model::Follower<Host> follower_;
};

}  // namespace pipewright::timeline
