// From a program and its stages to the graph.
//
//   host      |launch|launch|...|sync ------------------|launch ...        every launch ends a bit of host time
//   compute      [kernel][kernel][wait ....][kernel]                       FIFO; starts not before its launch
//   p2p                        [start: spins ....][transfer]               starts when its stream and the compute
//   peer's p2p                          [start ..][transfer]               stream as of the call have come to it
//
// Rules and their sources: reference of Megatron core_r0.19.0 schedules.py and p2p_communication.py; PyTorch's
// ProcessGroupNCCL: a P2P kernel waits for the stream that was current when it was called, work.wait() makes the
// current stream wait for it; batch_p2p_comm with batch_p2p_sync synchronises device and host
// (p2p_communication.py:421-424). A send that fits the channels' buffers completes without its receiver; the next one
// must find them drained. CUDA_DEVICE_MAX_CONNECTIONS=1: one hardware queue, so a compute kernel starts after every P2P
// kernel launched before.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "pipewright/timeline.hpp"
#include "transfers.hpp"

namespace pipewright::timeline {
namespace {

using schedule::Kind;
using schedule::Part;
constexpr std::uint32_t none = Label::none;

std::int64_t nanoseconds(double microseconds) { return static_cast<std::int64_t>(microseconds * 1e3 + 0.5); }

struct Draft {
  std::vector<std::int64_t> duration;
  std::vector<profile::Load> loads;
  std::vector<Label> labels;
  struct Arc {
    std::uint32_t from, to;
    std::int32_t lag;
  };
  std::vector<Arc> arcs;

  std::uint32_t add(const Label& label, std::int64_t ns, profile::Load load = profile::Load::none) {
    duration.push_back(ns);
    loads.push_back(load);
    labels.push_back(label);
    return static_cast<std::uint32_t>(duration.size() - 1);
  }
  void arc(std::uint32_t from, std::uint32_t to, std::int64_t lag = 0) {
    if (from != none) arcs.push_back({from, to, static_cast<std::int32_t>(lag)});
  }
};

/// One side of a transfer, as the other side needs it.
struct Post {
  std::uint32_t start = none, done = none;
};

class Builder {
 public:
  Builder(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
          const profile::Profiles& profiles, const Prices& prices)
      : scenario_(scenario), stages_(stages), program_(program), profiles_(profiles), prices_(prices) {
    const auto us = [&](const char* name) { return nanoseconds(profiles_.scalar(name).value); };
    gap_ = us("host.kernel_gap_us");
    p2p_call_ = us("host.p2p_call_us");
    synchronize_ = us("host.launch_and_synchronize_us");
    forward_begin_ = us("host.forward_begin_us");
    forward_end_ = us("host.forward_end_us");
    backward_begin_ = us("host.backward_begin_us");
    backward_end_ = us("host.backward_end_us");
    const auto connections = scenario_.environment.find("CUDA_DEVICE_MAX_CONNECTIONS");
    one_queue_ = connections != scenario_.environment.end() && connections->second == "1";
    ranks_.resize(program_.ranks.size());
  }

  Graph build() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) schedule_rank(static_cast<int>(r));
    match_transfers();
    optimizer();
    return sorted();
  }

 private:
  static constexpr std::size_t lanes = static_cast<std::size_t>(Lane::p2p_second) + 1;

  struct RankState {
    std::uint32_t anchor = none;            // host node from which launches are counted
    std::int64_t host = 0;                  // host time since the anchor
    std::array<std::uint32_t, lanes> tail;  // last node of every lane
    std::vector<std::uint32_t> unqueued;    // P2P kernels that the next compute kernel queues behind
    std::map<std::tuple<int, int, int>, std::uint32_t> transfers;  // (type, microbatch, chunk) -> transfer
    std::vector<int> backwards_left;                               // by chunk
    RankState() { tail.fill(none); }
  };

  struct Transfer {
    std::uint32_t node;
    int peer;
    Part::Type peer_type;
    int microbatch, peer_chunk;
    std::uint32_t own_start;
  };

  std::uint32_t& tail(RankState& rank, Lane lane) { return rank.tail[static_cast<std::size_t>(lane)]; }

  Label label(int r, Lane lane, NodeKind kind, std::uint32_t instruction) const {
    Label result;
    result.rank = static_cast<std::uint16_t>(r);
    result.lane = lane;
    result.kind = kind;
    result.instruction = instruction;
    result.phase = phase_;
    return result;
  }

  void host_spends(int r, std::int64_t ns) {
    RankState& rank = ranks_[r];
    rank.host += ns;
    constexpr std::int64_t far = 1'000'000'000;  // lags are 32 bit
    if (rank.host < far) return;
    const auto node = draft_.add(label(r, Lane::host, NodeKind::host, none), 0);
    draft_.arc(rank.anchor, node, rank.host);
    rank.anchor = node;
    rank.host = 0;
  }

  // A node on a stream: after the stream's last node and after its launch; off the compute stream also after what the
  // compute stream holds now.
  std::uint32_t launch(int r, Lane lane, const Label& what, std::int64_t ns, profile::Load load) {
    RankState& rank = ranks_[r];
    const auto node = draft_.add(what, ns, load);
    draft_.arc(tail(rank, lane), node);
    draft_.arc(rank.anchor, node, rank.host);
    if (lane != Lane::compute) {
      draft_.arc(tail(rank, Lane::compute), node);
    } else {
      for (const auto queued : rank.unqueued) draft_.arc(queued, node);
      rank.unqueued.clear();
    }
    tail(rank, lane) = node;
    return node;
  }

  static Lane lane_of(model::Stream stream) {
    switch (stream) {
      case model::Stream::compute:
        return Lane::compute;
      case model::Stream::communication:
        return Lane::communication;
      case model::Stream::gradient:
        return Lane::gradient;
      case model::Stream::parameter:
        return Lane::parameter;
      case model::Stream::d2h:
        return Lane::d2h;
      case model::Stream::h2d:
        return Lane::h2d;
    }
    throw InternalError("stream without a lane");
  }

  std::uint32_t kernel(int r, const model::Kernel& kernel, const Price& price, std::uint32_t instruction,
                       std::uint32_t piece, std::uint32_t index) {
    host_spends(r, nanoseconds(price.host_us));
    if (kernel.key.family.empty()) return none;
    const Lane lane = lane_of(kernel.stream);
    Label what = label(r, lane, NodeKind::kernel, instruction);
    what.purpose = kernel.purpose;
    what.piece = piece;
    what.kernel = index;
    what.partitioned = kernel.sm_share < 1;
    return launch(r, lane, what, static_cast<std::int64_t>(price.time.ns / kernel.sm_share + 0.5) + gap_,
                  profile::family(kernel.key.family).load);
  }

  void wait(int r, const std::vector<std::uint32_t>& nodes, std::uint32_t instruction, const Part& part) {
    Label what = label(r, Lane::compute, NodeKind::wait, instruction);
    what.part = part;
    const auto node = launch(r, Lane::compute, what, 0, profile::Load::none);
    for (const auto done : nodes) draft_.arc(done, node);
  }

  void steps(int r, const std::vector<model::Step>& list, std::uint32_t piece, bool first_microbatch,
             std::uint32_t instruction) {
    const model::Piece& owner = stages_.pieces[piece];
    for (const model::Step& step : list) {
      if (step.first_microbatch_only && !first_microbatch) continue;
      if (step.kind == model::Step::Kind::launch)
        kernel(r, owner.kernels[step.index], prices_.pieces[piece][step.index], instruction, piece, step.index);
      else if (step.kind == model::Step::Kind::wait)
        wait(r, {tail(ranks_[r], lane_of(static_cast<model::Stream>(step.index)))}, instruction, {});
    }
  }

  void side_kernels(int r, const std::vector<model::Kernel>& kernels, const Prices::List& list,
                    std::uint32_t instruction) {
    for (std::size_t k = 0; k < kernels.size(); ++k)
      kernel(r, kernels[k], list[k], instruction, none, static_cast<std::uint32_t>(k));
  }

  void forward(int r, int microbatch, int c, std::uint32_t instruction) {
    const model::Chunk& chunk = stages_.ranks[r].chunks[c];
    host_spends(r, forward_begin_);
    if (microbatch == 0 && !chunk.parameter_gather.empty()) {
      side_kernels(r, chunk.parameter_gather, prices_.parameter_gather[r][c], instruction);
      wait(r, {tail(ranks_[r], Lane::parameter)}, instruction, {});
    }
    for (const auto piece : chunk.pieces) steps(r, stages_.pieces[piece].forward, piece, microbatch == 0, instruction);
    host_spends(r, forward_end_);
  }

  void backward(int r, int microbatch, int c, std::uint32_t instruction) {
    const model::Chunk& chunk = stages_.ranks[r].chunks[c];
    host_spends(r, backward_begin_);
    for (auto piece = chunk.pieces.rbegin(); piece != chunk.pieces.rend(); ++piece) {
      steps(r, stages_.pieces[*piece].backward, *piece, microbatch == 0, instruction);
      steps(r, stages_.pieces[*piece].weight_gradient, *piece, microbatch == 0, instruction);
    }
    if (--ranks_[r].backwards_left[c] == 0)
      side_kernels(r, chunk.gradient_sync, prices_.gradient_sync[r][c], instruction);
    host_spends(r, backward_end_);
  }

  std::uint32_t post(int r, const Part& part, std::uint32_t start, Lane lane, std::uint32_t instruction) {
    const OtherEnd other = other_end(static_cast<int>(ranks_.size()), r, part);
    Transfer transfer{none, other.rank, other.part.type, other.part.microbatch, other.part.chunk, none};
    Label what = label(r, lane, NodeKind::transfer, instruction);
    what.part = part;
    what.peer = static_cast<std::uint32_t>(transfer.peer);
    const std::int64_t ns = transfer_ns(r, transfer.peer);
    transfer.node = draft_.add(what, ns);
    transfer.own_start = start;
    draft_.arc(start, transfer.node);
    transfers_.push_back(transfer);
    posts_[{r, static_cast<int>(part.type), part.microbatch, part.chunk}] = {start, transfer.node};
    ranks_[r].transfers[{static_cast<int>(part.type), part.microbatch, part.chunk}] = transfer.node;
    return transfer.node;
  }

  std::uint32_t p2p_start(int r, Lane lane, const Part& part, std::uint32_t instruction) {
    host_spends(r, p2p_call_);
    Label what = label(r, lane, NodeKind::transfer_start, instruction);
    what.part = part;
    const auto start = launch(r, lane, what, 0, profile::Load::none);
    if (one_queue_) ranks_[r].unqueued.push_back(start);
    return start;
  }

  std::vector<std::uint32_t> transfer_call(int r, const schedule::Instruction& call, std::uint32_t instruction) {
    std::vector<std::uint32_t> done;
    RankState& rank = ranks_[r];
    if (program_.config.batched) {
      if (call.parts.empty()) return done;
      const auto start = p2p_start(r, Lane::p2p, call.parts.front(), instruction);
      for (const Part& part : call.parts) done.push_back(post(r, part, start, Lane::p2p, instruction));
      tail(rank, Lane::p2p) = done.back();
      return done;
    }
    for (const Part& part : call.parts) {
      const Lane lane = p2p_lane(scenario_, static_cast<int>(ranks_.size()), r, part, false);
      const auto start = p2p_start(r, lane, part, instruction);
      done.push_back(post(r, part, start, lane, instruction));
      tail(rank, lane) = done.back();
    }
    return done;
  }

  void synchronize(int r, std::uint32_t instruction) {
    RankState& rank = ranks_[r];
    const auto node = draft_.add(label(r, Lane::host, NodeKind::host, instruction), 0);
    draft_.arc(rank.anchor, node, rank.host);
    for (const auto last : rank.tail) draft_.arc(last, node, synchronize_);
    rank.anchor = node;
    rank.host = 0;
  }

  void schedule_rank(int r) {
    RankState& rank = ranks_[r];
    rank.anchor = draft_.add(label(r, Lane::host, NodeKind::host, none), 0);
    const auto& instructions = program_.ranks[r].instructions;
    rank.backwards_left.assign(stages_.ranks[r].chunks.size(), 0);
    for (const auto& i : instructions)
      if (i.kind == Kind::backward) ++rank.backwards_left[i.chunk];
    for (std::uint32_t n = 0; n < instructions.size(); ++n) {
      const auto& i = instructions[n];
      switch (i.kind) {
        case Kind::forward:
          forward(r, i.microbatch, i.chunk, n);
          break;
        case Kind::backward:
          backward(r, i.microbatch, i.chunk, n);
          break;
        case Kind::p2p_async:
          transfer_call(r, i, n);
          break;
        case Kind::p2p_sync: {
          const auto done = transfer_call(r, i, n);
          if (!done.empty()) wait(r, done, n, i.parts.front());
          if (program_.config.batched && scenario_.settings.batch_p2p_sync) synchronize(r, n);
          break;
        }
        case Kind::wait: {
          const Part& part = i.parts.front();
          const auto found = rank.transfers.find({static_cast<int>(part.type), part.microbatch, part.chunk});
          if (found == rank.transfers.end()) throw InternalError("the schedule waits for a transfer never posted");
          wait(r, {found->second}, n, part);
          break;
        }
        case Kind::combined:
        case Kind::combined_begin:
        case Kind::combined_end:
        case Kind::node:
          throw InternalError("a combined forward and backward without a model of its nodes");
        case Kind::deallocate:
        case Kind::no_sync_enter:
        case Kind::no_sync_exit:
        case Kind::param_sync:
        case Kind::grad_sync:
          break;
      }
    }
    phase_ = 1;
    if (tail(rank, Lane::gradient) != none) wait(r, {tail(rank, Lane::gradient)}, none, {});
    side_kernels(r, stages_.ranks[r].finalize, prices_.finalize[r], none);
    synchronize(r, none);
    phase_ = 0;
  }

  void match_transfers() {
    std::map<std::tuple<int, int, bool>, Post> previous_receive;  // (from, to, forward): what occupies the buffers
    for (const Transfer& transfer : transfers_) {
      const int r = draft_.labels[transfer.node].rank;
      const auto peer =
          posts_.find({transfer.peer, static_cast<int>(transfer.peer_type), transfer.microbatch, transfer.peer_chunk});
      if (peer == posts_.end()) throw InternalError("a transfer that only one side posts");
      const bool sends = transfer.peer_type == Part::Type::recv_prev || transfer.peer_type == Part::Type::recv_next;
      const profile::Link& link = profiles_.link(link_between(scenario_, r, transfer.peer));
      const bool eager = stages_.boundary_bytes.value <= link.eager_bytes;
      if (!sends || !eager) {
        draft_.arc(peer->second.start, transfer.node);
        continue;
      }
      const bool forward = transfer.peer_type == Part::Type::recv_prev;
      Post& previous = previous_receive[{r, transfer.peer, forward}];
      draft_.arc(previous.done, transfer.node);
      previous = peer->second;
    }
  }

  std::int64_t transfer_ns(int r, int peer) {
    auto [entry, is_new] = transfer_times_.try_emplace({r, peer}, 0);
    if (is_new) {
      const auto time =
          profiles_.time({"send_recv." + link_between(scenario_, r, peer), {stages_.boundary_bytes.value}});
      entry->second = static_cast<std::int64_t>(time.ns + 0.5);
    }
    return entry->second;
  }

  // A collective over the pipeline starts on every rank and ends when the last one has come to it.
  void optimizer() {
    phase_ = 2;
    std::size_t longest = 0;
    for (const model::Rank& rank : stages_.ranks) longest = std::max(longest, rank.optimizer.size());
    std::map<std::size_t, std::vector<std::uint32_t>> joint;  // ordinal of the collective -> arrivals and kernels
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto& kernels = stages_.ranks[r].optimizer;
      std::size_t ordinal = 0;
      for (std::size_t k = 0; k < kernels.size(); ++k) {
        const int rank = static_cast<int>(r);
        std::uint32_t arrival = none;
        if (kernels[k].joins_pipeline) {
          Label what = label(rank, Lane::compute, NodeKind::transfer_start, none);
          arrival = launch(rank, Lane::compute, what, 0, profile::Load::none);
        }
        const auto node = kernel(rank, kernels[k], prices_.optimizer[r][k], none, none, static_cast<std::uint32_t>(k));
        if (arrival != none) {
          auto& all = joint[ordinal++];
          all.push_back(arrival);
          all.push_back(node);
        }
      }
    }
    for (const auto& [ordinal, nodes] : joint)
      for (std::size_t i = 1; i < nodes.size(); i += 2)
        for (std::size_t j = 0; j < nodes.size(); j += 2)
          if (j + 1 != i) draft_.arc(nodes[j], nodes[i]);
  }

  [[noreturn]] void report_deadlock(const std::vector<std::uint32_t>& missing) const;

  // Kahn's algorithm, first in first out from the lowest id: a deterministic order in which ranks advance together.
  Graph sorted() {
    const std::size_t n = draft_.duration.size();
    std::vector<std::uint32_t> missing(n, 0), first(n + 1, 0), next(draft_.arcs.size());
    for (const auto& arc : draft_.arcs) {
      ++missing[arc.to];
      ++first[arc.from + 1];
    }
    for (std::size_t i = 0; i < n; ++i) first[i + 1] += first[i];
    std::vector<std::uint32_t> place(first.begin(), first.end() - 1);
    for (std::uint32_t a = 0; a < draft_.arcs.size(); ++a) next[place[draft_.arcs[a].from]++] = a;

    std::vector<std::uint32_t> order, unsatisfied = missing;
    order.reserve(n);
    for (std::uint32_t i = 0; i < n; ++i)
      if (missing[i] == 0) order.push_back(i);
    for (std::size_t head = 0; head < order.size(); ++head)
      for (std::uint32_t e = first[order[head]]; e < first[order[head] + 1]; ++e)
        if (--unsatisfied[draft_.arcs[next[e]].to] == 0) order.push_back(draft_.arcs[next[e]].to);
    if (order.size() != n) report_deadlock(unsatisfied);

    Graph graph;
    graph.ranks = static_cast<int>(ranks_.size());
    std::vector<std::uint32_t> number(n);
    for (std::uint32_t i = 0; i < n; ++i) number[order[i]] = i;
    graph.duration_ns.resize(n);
    graph.loads.resize(n);
    graph.labels.resize(n);
    graph.first_edge.assign(n + 1, 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      graph.duration_ns[i] = draft_.duration[order[i]];
      graph.loads[i] = draft_.loads[order[i]];
      graph.labels[i] = draft_.labels[order[i]];
      graph.first_edge[i + 1] = graph.first_edge[i] + missing[order[i]];
    }
    graph.edges.resize(draft_.arcs.size());
    std::vector<std::uint32_t> fill(graph.first_edge.begin(), graph.first_edge.end() - 1);
    for (const auto& arc : draft_.arcs) graph.edges[fill[number[arc.to]]++] = {number[arc.from], arc.lag};
    return graph;
  }

  const scenario::Scenario& scenario_;
  const model::Stages& stages_;
  const schedule::Program& program_;
  const profile::Profiles& profiles_;
  const Prices& prices_;
  Draft draft_;
  std::vector<RankState> ranks_;
  std::vector<Transfer> transfers_;
  std::map<std::tuple<int, int, int, int>, Post> posts_;  // (rank, type, microbatch, chunk)
  std::map<std::pair<int, int>, std::int64_t> transfer_times_;
  std::int64_t gap_ = 0, p2p_call_ = 0, synchronize_ = 0, forward_begin_ = 0, forward_end_ = 0, backward_begin_ = 0,
               backward_end_ = 0;
  bool one_queue_ = false;
  std::uint8_t phase_ = 0;
};

std::string describe(const Label& label, const schedule::Program& program) {
  const std::string rank = "rank " + std::to_string(label.rank) + " ";
  if (label.instruction == none) return rank + "end of the step";
  schedule::RankProgram one;
  one.instructions.push_back(program.ranks[label.rank].instructions[label.instruction]);
  const auto words = schedule::text(one, true, true);
  return rank + (words.empty() ? "?" : words.front());
}

void Builder::report_deadlock(const std::vector<std::uint32_t>& missing) const {
  // Follow unsatisfied predecessors until a node comes up twice: that is the cycle.
  std::vector<std::uint32_t> blocked_by(missing.size(), none);
  for (const auto& arc : draft_.arcs)
    if (missing[arc.from] > 0 && missing[arc.to] > 0) blocked_by[arc.to] = arc.from;
  std::uint32_t node = 0;
  while (missing[node] == 0 || blocked_by[node] == none) ++node;
  std::vector<bool> seen(missing.size(), false);
  for (; !seen[node]; node = blocked_by[node]) seen[node] = true;
  std::string cycle;
  std::string last;
  for (auto at = node;;) {
    const std::string word = describe(draft_.labels[at], program_);
    if (word != last) cycle += (cycle.empty() ? "" : " waits for ") + word;
    last = word;
    at = blocked_by[at];
    if (at == node) break;
  }
  throw UsageError("the schedule deadlocks: " + cycle + ", which waits for the first");
}

}  // namespace

Graph build(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
            const profile::Profiles& profiles, const Prices& prices) {
  return Builder(scenario, stages, program, profiles, prices).build();
}

}  // namespace pipewright::timeline
