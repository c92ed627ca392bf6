// A rank of the chunk-level engine: follows its program, line by line instead of kernel by kernel.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "chunk_copies.hpp"
#include "chunk_lines.hpp"
#include "chunk_transfers.hpp"
#include "chunk_use.hpp"
#include "pipewright/follow.hpp"
#include "rhythm.hpp"

namespace pipewright::timeline {

/// Everything that is made once for all rounds.
struct ChunkMachine {
  const scenario::Scenario& scenario;
  const model::Stages& stages;
  const schedule::Program& program;
  const Collapser& collapser;
  const ChunkLines& lines;
  const std::vector<CopyPlan>& copies;  ///< by rank
  ChunkTransfers& transfers;
  bool one_queue = false;
  double p2p_call = 0, synchronize = 0, forward_begin = 0, forward_end = 0, backward_begin = 0, backward_end = 0;
  double forward_node = 0, backward_node = 0;
};

/// What a round leaves for the next one. Spans: of every line run, by stream.
struct ChunkBefore {
  std::array<std::vector<std::pair<double, double>>, 2> spans;
  std::vector<std::pair<double, double>> network, across;
  std::array<std::vector<double>, 2> contended;  ///< what it was run with
  std::vector<double> exchanged;
  ChunkUse use;
  double step = 0;
  CopySpans copies;
  CopySlowdowns copies_slower;
};

/// One rank following its program.
class ChunkRank : public model::Visitor {
 public:
  ChunkRank(const ChunkMachine& machine, int rank, ChunkBefore before)
      : machine_(machine),
        rank_(rank),
        lines_(machine.lines.ranks[rank]),
        instructions_(machine.program.ranks[rank].instructions),
        batched_(machine.program.config.batched),
        overlaps_(machine.program.config.ep_overlap),
        last_(std::move(before.use)),
        last_step_(before.step),
        copies_(machine.copies[rank], std::move(before.copies_slower)),
        follower_(machine.stages, machine.program, rank, *this) {
    for (const auto& gathers : lines_.parameter_gather) gathered_.emplace_back(gathers.size(), unknown);
    slow_down(before);
  }
  ChunkRank(const ChunkRank&) = delete;  // its follower knows where it is

  /// One instruction; false: it must wait for another rank first, or there is none left.
  bool step() {
    if (finished()) return false;
    own_ = instructions_[next_].on_communication_stream ? expert_queue : compute_queue;
    if (!follower_.follow(instructions_[next_])) return false;
    ++next_;
    return true;
  }
  bool finished() const { return next_ == instructions_.size(); }

  /// The schedule is over: the gradients' stream is waited for.
  void drain() {
    own_ = compute_queue;
    dequeue();
    if (const double gradient = at_[queue_of(model::Stream::gradient)]; gradient > 0) wait_until(gradient);
  }
  double synchronize_device() {
    synchronize();
    return at_[host_queue];
  }
  void work(const Line& line);
  double arrival(double call) const { return std::max(at_[compute_queue], at_[host_queue] + call); }
  void meet(double last) { at_[compute_queue] = std::max(at_[compute_queue], last); }
  double end() const { return *std::ranges::max_element(at_); }
  std::int64_t operations() const { return std::ssize(spans_[0]) + std::ssize(spans_[1]); }
  const Beats& beats() const { return beats_; }
  void network(double from, double to, bool crosses) { (crosses ? across_ : network_).emplace_back(from, to); }
  ChunkBefore leave() {
    return {std::move(spans_),
            std::move(network_),
            std::move(across_),
            std::move(contended_),
            std::move(exchanged_),
            std::move(use_),
            end(),
            copies_.leave(),
            copies_.slowdowns()};
  }

  // The program, see model::Visitor.
  bool begin_forward(model::Call call) {
    if (!dequeue()) return false;
    if (call.chunk == 0) {
      beats_.compute.push_back(at_[compute_queue]);
      beats_.host.push_back(at_[host_queue]);
    }
    at_[host_queue] += machine_.forward_begin;
    return true;
  }
  void gather_parameters(int chunk, std::span<const std::uint32_t> gathers) {
    for (const auto gather : gathers) {
      work(lines_.parameter_gather[chunk][gather]);
      gathered_[chunk][gather] = at_[queue_of(model::Stream::parameter)];
    }
  }
  void wait_for_parameters(int chunk, std::uint32_t gather) { wait_until(gathered_[chunk][gather]); }
  void forward(model::Call call, std::size_t position) {
    copies_.enter(position, at_[compute_queue]);
    work(stretch(call, position).forward);
  }
  void end_forward(model::Call /*call*/) { at_[host_queue] += machine_.forward_end; }
  bool begin_backward(model::Call /*call*/) {
    if (!dequeue()) return false;
    at_[host_queue] += machine_.backward_begin;
    return true;
  }
  void backward(model::Call call, std::size_t position) { work(stretch(call, position).backward); }
  void callbacks(model::Call /*call*/) { copies_.hooks(1, at_, own_); }
  void reduce_gradients(int chunk, std::span<const std::uint32_t> buckets) {
    for (const auto bucket : buckets) work(lines_.buckets[chunk][bucket]);
  }
  void end_backward(model::Call /*call*/) { at_[host_queue] += machine_.backward_end; }
  bool ready(const schedule::Instruction& /*call*/) { return own_ != compute_queue || dequeue(); }
  void begin_combined(const schedule::Instruction& /*call*/) {
    in_combined_ = true;
    chain_.fill(unknown);
  }
  void node(const schedule::Instruction& i, const model::NodePlace& place);
  void end_combined() {
    in_combined_ = false;
    for (const double event : chain_)
      if (event != unknown) at_[compute_queue] = std::max({at_[compute_queue], at_[host_queue], event});
  }
  bool transfer(const schedule::Instruction& call, bool synchronous);
  bool wait(const schedule::Part& part) {
    return wait_for_chain(part) && wait_until(machine_.transfers.done(machine_.transfers.posted(rank_, part)));
  }

 private:
  static constexpr std::size_t forward_chain = 0, backward_chain = 1;
  const PieceLines::Stretch& stretch(model::Call call, std::size_t position) const {
    return machine_.lines.pieces[machine_.stages.ranks[rank_].chunks[call.chunk].pieces[position]].of(call.microbatch);
  }
  std::size_t stream() const { return own_ == expert_queue ? 1 : 0; }
  /// P2P calls inside a combined call come after what their chain of nodes has done so far.
  bool wait_for_chain(const schedule::Part& part) {
    const double event = chain_[goes_forward(part.type) ? forward_chain : backward_chain];
    return !in_combined_ || event == unknown || wait_until(event);
  }
  void work(const std::vector<Passage>& passages);
  template <class Apply>
  void work(const Line& line, const Apply& apply);
  void slow_down(ChunkBefore& before);
  Slowdown slowdown(const Line& line);
  void post(const schedule::Instruction& call);
  bool dequeue();
  bool wait_until(double done);
  bool synchronize();

  const ChunkMachine& machine_;
  const int rank_;
  const RankLines& lines_;
  const std::vector<schedule::Instruction>& instructions_;
  const bool batched_, overlaps_;
  QueueTimes at_{};
  std::size_t own_ = compute_queue;  ///< of the current instruction
  bool in_combined_ = false;
  std::array<double, 2> chain_{unknown, unknown};  ///< events of the forward and the backward chain of nodes
  std::size_t next_ = 0;
  std::vector<std::int32_t> queued_;  ///< starts that the next compute kernel queues behind
  std::int32_t last_queued_ = nobody;
  std::array<std::int32_t, 2> p2p_{nobody, nobody};  ///< last transfer of each communicator
  std::vector<std::vector<double>> gathered_;        ///< by chunk and gather: the parameters are there
  Beats beats_;
  ChunkUse use_;
  std::vector<std::pair<double, double>> network_, across_;      ///< NCCL kernels beside computation; over the network
  std::array<std::vector<std::pair<double, double>>, 2> spans_;  ///< of every line run, by stream
  std::array<std::vector<double>, 2> contended_;                 ///< share of each span, by the round before
  std::vector<double> exchanged_;                                ///< the same for the second stream's exchanges
  ChunkUse last_;                                                ///< of the round before
  double last_step_;
  ChunkCopies copies_;
  model::Follower<ChunkRank> follower_;
};

}  // namespace pipewright::timeline
