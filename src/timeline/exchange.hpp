// Pipeline transfers: which communicator carries a part, when its two ends start and end.
//
//   p2p          [start: spins ....][transfer]     starts when its stream and the current stream as of the call have
//   peer's p2p              [start ][transfer]     come to it; a rendezvous begins when both sides have started
//
// Sources: p2p_communication.py of Megatron core_r0.19.0; PyTorch's ProcessGroupNCCL: a P2P kernel waits for the stream
// that was current when it was called, work.wait() makes the current stream wait for it. A send that fits the channels'
// buffers completes without its receiver (NCCL's eager sends); the next one must find them drained.
#pragma once

#include <optional>
#include <vector>

#include "streams.hpp"
#include "transfers.hpp"

namespace pipewright::timeline {

class Exchange {
 public:
  Exchange(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
           const profile::Profiles& profiles, Weaver& weaver);

  /// Issues the parts of a call; returns its transfers.
  std::vector<Handle> call(Streams& streams, int rank, const schedule::Parts& parts, std::uint32_t instruction);
  /// The exchange of shapes before it (variable_seq_lengths, mtp_standalone; p2p_communication.py:231-268).
  std::vector<Handle> call_shapes(Streams& streams, int rank, const schedule::Parts& parts, std::uint32_t instruction);
  bool with_shapes() const { return shapes_.has_value(); }
  /// A transfer posted before.
  Handle posted(int rank, const schedule::Part& part) const;

 private:
  /// One end: its start and its end, or promises of them.
  struct Post {
    Handle start = Weaver::none, done = Weaver::none;
    bool made = false;
  };
  /// Ends of all tensors of one kind, dense: [rank][type][chunk][microbatch].
  class Posts {
   public:
    Posts(int ranks, int chunks, int microbatches);
    Post& at(int rank, const schedule::Part& part);
    const Post& at(int rank, const schedule::Part& part) const { return const_cast<Posts*>(this)->at(rank, part); }

    /// (rank, direction): the receive that holds the channels' buffers of this sender, as its other end.
    std::vector<std::optional<OtherEnd>> in_buffers;

   private:
    std::size_t chunks_, microbatches_;
    std::vector<Post> posts_;
  };
  Handle start(Streams& streams, Lane lane, const schedule::Part& part, std::uint32_t instruction);
  Handle post(Streams& streams, int rank, const schedule::Part& part, Handle start, Lane lane,
              std::uint32_t instruction, bool shape);
  Handle promised(Handle& handle);

  const scenario::Scenario& scenario_;
  Weaver& weaver_;
  const int ranks_;
  const bool batched_, one_communicator_, one_queue_;
  std::int64_t call_ = 0;
  const int chunks_;
  Posts tensors_;
  std::optional<Posts> shapes_;
  std::vector<Wire> wires_;        ///< by rank and chunk: between it and the next stage
  std::vector<Wire> shape_wires_;  ///< by rank: the same for a shape
};

}  // namespace pipewright::timeline
