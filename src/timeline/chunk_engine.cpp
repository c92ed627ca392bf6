// The chunk-level engine: the time of a step without a node for every kernel. What a rank issues between two places of
// its program is one max-plus map a piece (collapse.hpp); transfers join ranks as in the exact engine
// (chunk_transfers.hpp), and both follow the same reading of the program (pipewright/follow.hpp).
//
// In the steady state every rank repeats the same instructions with every group of microbatches (N with interleaving, 1
// without), so the program is run for as many microbatches as warm-up, some groups and cool-down need, and for more
// until all ranks keep one pace: each further group adds what the last one did (rhythm.hpp). The clock follows the load
// in the window before a piece (evaluated for the middle of it); NCCL kernels beside a piece are those of the round
// before.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>

#include "chunk_transfers.hpp"
#include "chunk_use.hpp"
#include "collapse.hpp"
#include "lines.hpp"
#include "pace.hpp"
#include "pipewright/follow.hpp"
#include "pipewright/timeline.hpp"
#include "rhythm.hpp"

namespace pipewright::timeline {
namespace {

bool expressible(const scenario::Scenario& scenario, const schedule::Config& config, const model::Stages& stages) {
  if (config.ep_overlap && config.layers.empty()) return false;  // combined calls that are not written out
  if (exchanges_shapes(scenario)) return false;                  // and synchronises before every transfer
  return std::ranges::none_of(stages.pieces, [](const model::Piece& piece) {
    return !piece.groups.empty();  // reloads are started by other pieces
  });
}

/// A piece's lines for each stretch of microbatches that run the same steps.
struct PieceLines {
  struct Stretch {
    int from = 0;  ///< its first microbatch
    std::vector<Line> forward, backward;
    std::vector<std::array<std::vector<Line>, 3>> nodes;  ///< of expert-parallel overlap, by pass
  };
  std::vector<Stretch> stretches;

  const Stretch& of(int microbatch) const {
    std::size_t at = stretches.size() - 1;
    while (stretches[at].from > microbatch) --at;
    return stretches[at];
  }
};

/// Kernels of a rank cut where all pipeline ranks meet.
struct Joined {
  std::vector<Line> between;  ///< one more than joints
  std::vector<Line> joints;   ///< the collectives over the pipeline
  std::vector<double> calls;  ///< the host's time before each
};
struct RankLines {
  std::vector<std::vector<Line>> buckets;  ///< by chunk
  std::vector<Line> parameter_gather;      ///< by chunk
  Joined finalize, optimizer;
};

/// Everything that is made once for all rounds.
struct Machine {
  const scenario::Scenario& scenario;
  const model::Stages& stages;
  const schedule::Program& program;
  const Collapser& collapser;
  const std::vector<PieceLines>& pieces;
  const std::vector<RankLines>& ranks;
  ChunkTransfers& transfers;
  bool one_queue = false;
  double p2p_call = 0, synchronize = 0, forward_begin = 0, forward_end = 0, backward_begin = 0, backward_end = 0;
  double forward_node = 0, backward_node = 0;
};

/// What a round leaves for the next one. Spans: of every line run, by stream.
struct Before {
  std::array<std::vector<std::pair<double, double>>, 2> spans;
  std::vector<std::pair<double, double>> network;
  std::array<std::vector<double>, 2> contended;  ///< what it was run with
  std::vector<double> exchanged;
  ChunkUse use;
  double step = 0;
};

/// One rank following its program.
class ChunkRank : public model::Visitor {
 public:
  ChunkRank(const Machine& machine, int rank, Before before)
      : machine_(machine),
        rank_(rank),
        lines_(machine.ranks[rank]),
        instructions_(machine.program.ranks[rank].instructions),
        batched_(machine.program.config.batched),
        overlaps_(machine.program.config.ep_overlap),
        gathered_(lines_.buckets.size(), unknown),
        last_(std::move(before.use)),
        last_step_(before.step),
        follower_(machine.stages, machine.program, rank, *this) {
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
  void network(double from, double to) { network_.emplace_back(from, to); }
  Before leave() {
    return {std::move(spans_),     std::move(network_), std::move(contended_),
            std::move(exchanged_), std::move(use_),     end()};
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
  void gather_parameters(int chunk) {
    work(lines_.parameter_gather[chunk]);
    gathered_[chunk] = at_[queue_of(model::Stream::parameter)];
  }
  void wait_for_parameters(int chunk) {
    if (!lines_.parameter_gather[chunk].empty()) wait_until(gathered_[chunk]);
  }
  void forward(model::Call call, std::size_t position) {
    for (const Line& line : stretch(call, position).forward) work(line);
  }
  void end_forward(model::Call /*call*/) { at_[host_queue] += machine_.forward_end; }
  bool begin_backward(model::Call /*call*/) {
    if (!dequeue()) return false;
    at_[host_queue] += machine_.backward_begin;
    return true;
  }
  void backward(model::Call call, std::size_t position) {
    for (const Line& line : stretch(call, position).backward) work(line);
  }
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
    return machine_.pieces[machine_.stages.ranks[rank_].chunks[call.chunk].pieces[position]].of(call.microbatch);
  }
  std::size_t stream() const { return own_ == expert_queue ? 1 : 0; }
  /// P2P calls inside a combined call come after what their chain of nodes has done so far.
  bool wait_for_chain(const schedule::Part& part) {
    const double event = chain_[goes_forward(part.type) ? forward_chain : backward_chain];
    return !in_combined_ || event == unknown || wait_until(event);
  }
  void slow_down(Before& before);
  Slowdown slowdown(const Line& line);
  void post(const schedule::Instruction& call);
  bool dequeue();
  bool wait_until(double done);
  bool synchronize();

  const Machine& machine_;
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
  std::vector<double> gathered_;                     ///< by chunk: its parameters are there
  Beats beats_;
  ChunkUse use_;
  std::vector<std::pair<double, double>> network_;               ///< NCCL kernels beside computation
  std::array<std::vector<std::pair<double, double>>, 2> spans_;  ///< of every line run, by stream
  std::array<std::vector<double>, 2> contended_;                 ///< share of each span, by the round before
  std::vector<double> exchanged_;                                ///< the same for the second stream's exchanges
  ChunkUse last_;                                                ///< of the round before
  double last_step_;
  model::Follower<ChunkRank> follower_;
};

/// The next compute kernel queues behind P2P kernels launched before it; false: one of them has not begun yet.
bool ChunkRank::dequeue() {
  double latest = at_[compute_queue];
  for (const auto id : queued_) {
    const double start = machine_.transfers.started(id);
    if (start == unknown) return false;
    latest = std::max(latest, start);
  }
  queued_.clear();
  at_[compute_queue] = latest;
  return true;
}

bool ChunkRank::wait_until(double done) {
  if (done == unknown || (own_ == compute_queue && !dequeue())) return false;
  at_[own_] = std::max({at_[own_], at_[host_queue], done});
  return true;
}

bool ChunkRank::synchronize() {
  double last = *std::max_element(at_.begin() + compute_queue, at_.end());
  for (const auto id : p2p_) {
    if (id == nobody) continue;
    const double done = machine_.transfers.done(id);
    if (done == unknown) return false;
    last = std::max(last, done);
  }
  at_[host_queue] = std::max(at_[host_queue], last + machine_.synchronize);
  return true;
}

void ChunkRank::post(const schedule::Instruction& call) {
  std::int32_t start = nobody;
  for (const schedule::Part& part : call.parts) {
    const Lane lane = p2p_lane(machine_.scenario, machine_.program.config.stages, rank_, part, batched_);
    const std::size_t stream = lane == Lane::p2p ? 0 : 1;
    if (start == nobody || !batched_) {
      at_[host_queue] += machine_.p2p_call;
      start = machine_.transfers.start(std::max(at_[host_queue], at_[own_]), p2p_[stream], last_queued_);
      if (machine_.one_queue) queued_.push_back(start), last_queued_ = start;
    }
    p2p_[stream] = machine_.transfers.post(rank_, part, start);
  }
}

bool ChunkRank::transfer(const schedule::Instruction& call, bool synchronous) {
  if (!call.parts.empty() && machine_.transfers.posted(rank_, call.parts.front()) == nobody) {
    if (!wait_for_chain(call.parts.front())) return false;
    post(call);
  }
  if (!synchronous) return true;
  double last = 0;
  for (const schedule::Part& part : call.parts) {
    const double done = machine_.transfers.done(machine_.transfers.posted(rank_, part));
    if (done == unknown) return false;
    last = std::max(last, done);
  }
  if (!call.parts.empty() && !wait_until(last)) return false;
  return !batched_ || !machine_.scenario.settings.batch_p2p_sync || synchronize();
}

/// What ran beside the lines of the round before, some of the way there from what it was run with.
void ChunkRank::slow_down(Before& before) {
  const auto settle = [](std::vector<double>& list, const std::vector<double>& then, double now) {
    const auto n = list.size();
    list.push_back(n < then.size() ? then[n] + towards_next_round * (now - then[n]) : now);
  };
  for (std::size_t stream = 0; stream < before.spans.size(); ++stream) {
    auto& contended = contended_[stream];
    contended.reserve(before.spans[stream].size());
    Covered covered(before.network);
    for (const auto& [from, to] : before.spans[stream]) {
      double share = covered.share(from, to);
      if (overlaps_ && stream == 0)
        share = std::min(1.0, share + machine_.collapser.dispatcher() * last_.exchanges.share(from, to));
      settle(contended, before.contended[stream], share);
    }
  }
  for (const auto& [from, to] : before.spans[1]) {
    double more = 0;
    for (std::size_t kind = 0; kind < last_.kinds.size(); ++kind)
      more += machine_.collapser.beside()[kind] * last_.kinds[kind].share(from, to);
    settle(exchanged_, before.exchanged, more);
  }
}

/// At the clock that the middle of the line will have.
Slowdown ChunkRank::slowdown(const Line& line) {
  Slowdown at;
  const double nominal = line.busy({});
  if (nominal > 0 && machine_.collapser.window() > 0) {
    const double ahead = nominal / 2, start = std::max(at_[own_], at_[host_queue]);
    const double period = last_step_ > 0 ? last_step_ : start + ahead;
    const double window = std::min(static_cast<double>(machine_.collapser.window()), period);
    const double from = start + ahead - window;
    double load = std::min(ahead, window) * line.load({}) / nominal;
    for (std::size_t stream = 0; stream < (overlaps_ ? 2 : 1); ++stream) {
      Computed &now = use_.computed[stream], &before = last_.computed[stream];
      load += now.total() - (from < 0 ? 0 : now.until(from));
      if (from < 0 && last_step_ > 0) load += before.total() - before.until(last_step_ + from);
    }
    at = machine_.collapser.at_duty(std::max(0.0, load) / window);
  }
  const auto& contended = contended_[stream()];
  if (const auto n = spans_[stream()].size(); n < contended.size()) {
    at.contended = contended[n];
    if (own_ == expert_queue) at.exchanged = exchanged_[n];
  }
  return at;
}

/// One piece (or list of kernels).
void ChunkRank::work(const Line& line) {
  if (line.empty()) return;
  const Slowdown at = slowdown(line);
  const double before = at_[own_];
  const QueueTimes then = at_;
  line.apply(at_, at, own_);
  const double after = at_[own_], busy = line.busy(at);
  auto& spans = spans_[stream()];
  const double exchanges = own_ == expert_queue ? line.exchanges() : 0;
  spans.emplace_back(std::max(before, after - std::max(busy + exchanges * (1 + at.exchanged), 1.0)), after);
  const double start = spans.back().first;
  use_.computed[stream()].add(start, after, line.load(at));
  if (own_ == expert_queue)
    use_.exchanges.add(start, after, exchanges * (1 + at.exchanged));
  else if (overlaps_)
    for (std::size_t kind = 0; kind < use_.kinds.size(); ++kind) use_.kinds[kind].add(start, after, line.kinds()[kind]);
  for (const auto side : {model::Stream::gradient, model::Stream::parameter}) {
    const double end = at_[queue_of(side)], began = then[queue_of(side)];
    if (end > began) network_.emplace_back(std::max(began, end - line.beside(side)), end);
  }
}

/// A node waits for the one before it of its chain, on whichever stream that ran (plan:536-548); weight gradients use
/// no event, and the loss runs outside of the call.
void ChunkRank::node(const schedule::Instruction& i, const model::NodePlace& place) {
  using Pass = schedule::Node::Pass;
  at_[host_queue] += i.node.pass == Pass::forward ? machine_.forward_node : machine_.backward_node;
  const auto piece = machine_.stages.ranks[rank_].chunks[i.chunk].pieces[place.position];
  const auto node = static_cast<std::size_t>(place.steps - machine_.stages.pieces[piece].nodes.data());
  const auto& lines = machine_.pieces[piece].of(i.microbatch).nodes[node][static_cast<std::size_t>(i.node.pass)];
  if (i.node.pass == Pass::weight_gradient || !in_combined_) {
    for (const Line& line : lines) work(line);
    return;
  }
  double& event = chain_[i.node.pass == Pass::forward ? forward_chain : backward_chain];
  if (event == unknown) event = at_[compute_queue];
  at_[own_] = std::max(at_[own_], event);
  for (const Line& line : lines) work(line);
  event = at_[own_];
}

class Engine {
 public:
  Engine(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
         const profile::Profiles& profiles, const Prices& prices, const Changes& changes)
      : stages_(stages),
        prices_(prices),
        collapser_(scenario, profiles, changes.host),
        transfers_(scenario, stages, config, profiles, changes),
        machine_{scenario, stages, program_, collapser_, pieces_, rank_lines_, transfers_} {
    const double factor = replayed_host_factor(scenario, profiles);
    const auto ns = [&](const char* name) {
      return changes.host * static_cast<double>(nanoseconds(factor * profiles.scalar(name).value));
    };
    machine_.p2p_call = ns("host.p2p_call_us");
    machine_.synchronize = ns("host.launch_and_synchronize_us");
    machine_.forward_begin = ns("host.forward_begin_us");
    machine_.forward_end = ns("host.forward_end_us");
    machine_.backward_begin = ns("host.backward_begin_us");
    machine_.backward_end = ns("host.backward_end_us");
    // Not every profile has seen expert-parallel overlap.
    const auto optional_ns = [&](const char* name) {
      return changes.host * static_cast<double>(nanoseconds(factor * profiles.find_scalar(name).value_or(0)));
    };
    machine_.forward_node = optional_ns("host.forward_node_us");
    machine_.backward_node = optional_ns("host.backward_node_us");
    machine_.one_queue = one_hardware_queue(scenario);
    collapse(config.microbatches);
  }

  Rhythm rhythm(double same) const {
    std::vector<Beats> beats;
    for (const ChunkRank& rank : ranks_) beats.push_back(rank.beats());
    return timeline::rhythm(program_.config, beats, same);
  }

  /// The first round of a schedule runs without anything beside; false: it deadlocks.
  bool begin(const schedule::Config& config) {
    program_ = schedule::build(config);
    ranks_.clear();
    return one_round();
  }
  /// Further rounds, until nothing changes.
  bool settle() {
    double before = 0;
    for (int round = 0; round < most_rounds && !settled(before, end_, 3e-4); ++round) {
      before = end_;
      if (!one_round()) return false;
    }
    return true;
  }
  Estimate estimate() const { return {std::llround(schedule_end_), std::llround(end_ - schedule_end_), operations_}; }

 private:
  /// First microbatches of the stretches that run the same steps of a piece.
  static std::vector<int> stretches(const model::Piece& piece, int microbatches) {
    std::vector<int> begins = {0};
    const auto look = [&](const std::vector<model::Step>& steps) {
      for (const model::Step& step : steps)
        for (const int bound : {step.from_microbatch, step.before_microbatch})
          if (bound > 0 && bound < microbatches) begins.push_back(bound);
    };
    look(piece.forward), look(piece.backward);
    for (const auto& node : piece.nodes) look(node.forward), look(node.backward), look(node.weight_gradient);
    std::ranges::sort(begins);
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    return begins;
  }

  using Ran = std::pair<model::Step::Kind, std::uint32_t>;
  static std::vector<Ran> steps_that_run(const model::Piece& piece, int microbatch) {
    std::vector<Ran> runs;
    const auto look = [&](const std::vector<model::Step>& steps) {
      for (const model::Step& step : steps)
        if (step.runs(microbatch)) runs.emplace_back(step.kind, step.index);
    };
    look(piece.forward), look(piece.backward);
    for (const auto& node : piece.nodes) look(node.forward), look(node.backward), look(node.weight_gradient);
    return runs;
  }

  void collapse(int microbatches) {
    for (std::size_t i = 0; i < stages_.pieces.size(); ++i) {
      const model::Piece& piece = stages_.pieces[i];
      PieceLines& lines = pieces_.emplace_back();
      std::map<std::vector<Ran>, std::size_t> known;  // stretches that run the same steps have the same lines
      for (const int begin : stretches(piece, microbatches)) {
        const auto [same, fresh] = known.emplace(steps_that_run(piece, begin), lines.stretches.size());
        if (!fresh) {
          PieceLines::Stretch again = lines.stretches[same->second];
          again.from = begin;
          lines.stretches.push_back(std::move(again));
          continue;
        }
        const auto of = [&](const std::vector<model::Step>& steps, bool second = false) {
          return collapser_.lines(steps, piece, prices_.pieces[i], begin, second);
        };
        auto& stretch =
            lines.stretches.emplace_back(PieceLines::Stretch{begin, of(piece.forward), of(piece.backward), {}});
        for (const auto& node : piece.nodes) {
          using Name = schedule::Node::Name;
          const bool second = node.name == Name::moe_dispatch || node.name == Name::moe_combine;
          stretch.nodes.push_back(
              {of(node.forward, second), of(node.backward, second), of(node.weight_gradient, second)});
        }
      }
    }
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      const model::Rank& rank = stages_.ranks[r];
      RankLines& lines = rank_lines_.emplace_back();
      for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
        const auto& sync = rank.chunks[c].gradient_sync;
        const auto& gather = rank.chunks[c].parameter_gather;
        auto& buckets = lines.buckets.emplace_back();
        for (std::size_t k = 0; k < sync.size(); ++k)
          buckets.push_back(collapser_.line(sync, prices_.gradient_sync[r][c], k, k + 1));
        lines.parameter_gather.push_back(collapser_.line(gather, prices_.parameter_gather[r][c], 0, gather.size()));
      }
      lines.finalize = joined(rank.finalize, prices_.finalize[r]);
      lines.optimizer = joined(rank.optimizer, prices_.optimizer[r]);
    }
  }

  Joined joined(const std::vector<model::Kernel>& kernels, const Prices::List& prices) const {
    Joined result;
    std::size_t from = 0;
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      if (!kernels[k].joins_pipeline) continue;
      result.between.push_back(collapser_.line(kernels, prices, from, k));
      result.joints.push_back(collapser_.line(kernels, prices, k, k + 1));
      result.calls.push_back(static_cast<double>(nanoseconds(prices[k].host_us)));
      from = k + 1;
    }
    result.between.push_back(collapser_.line(kernels, prices, from, kernels.size()));
    return result;
  }

  bool one_round() {
    transfers_.reset(program_.config.microbatches);
    std::vector<Before> before(stages_.ranks.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) before[r] = ranks_[r].leave();
    ranks_.clear();
    for (std::size_t r = 0; r < before.size(); ++r)
      ranks_.emplace_back(machine_, static_cast<int>(r), std::move(before[r]));
    for (bool moved = true; moved;) {
      moved = false;
      for (ChunkRank& rank : ranks_)
        while (rank.step()) moved = true;
    }
    for (const ChunkRank& rank : ranks_)
      if (!rank.finished()) return false;  // the exact engine says why
    finish();
    return true;
  }

  /// Gradient finalisation and the optimizer.
  void finish() {
    for (ChunkRank& rank : ranks_) rank.drain();
    run_joined(&RankLines::finalize);
    schedule_end_ = 0;
    for (ChunkRank& rank : ranks_) schedule_end_ = std::max(schedule_end_, rank.synchronize_device());
    run_joined(&RankLines::optimizer);
    transfers_.each([&](int rank, double start, double end) { ranks_[rank].network(start, end); });
    end_ = 0;
    operations_ = 0;
    for (const ChunkRank& rank : ranks_) {
      end_ = std::max(end_, rank.end());
      operations_ += rank.operations();
    }
  }

  void run_joined(Joined RankLines::*which) {
    std::size_t joints = 0;
    for (const auto& lines : rank_lines_) joints = std::max(joints, (lines.*which).joints.size());
    for (std::size_t j = 0; j <= joints; ++j) {
      double last = 0;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const Joined& lines = rank_lines_[r].*which;
        if (j < lines.between.size()) ranks_[r].work(lines.between[j]);
        if (j < lines.joints.size()) last = std::max(last, ranks_[r].arrival(lines.calls[j]));
      }
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const Joined& lines = rank_lines_[r].*which;
        if (j >= lines.joints.size()) continue;
        ranks_[r].meet(last);
        ranks_[r].work(lines.joints[j]);
      }
    }
  }

  const model::Stages& stages_;
  const Prices& prices_;
  const Collapser collapser_;
  ChunkTransfers transfers_;
  schedule::Program program_;
  std::vector<PieceLines> pieces_;
  std::vector<RankLines> rank_lines_;
  Machine machine_;
  std::deque<ChunkRank> ranks_;
  double schedule_end_ = 0, end_ = 0;
  std::int64_t operations_ = 0;
};

}  // namespace

std::optional<Estimate> estimate(const scenario::Scenario& scenario, const model::Stages& stages,
                                 const schedule::Config& config, const profile::Profiles& profiles,
                                 const Prices& prices, const Changes& changes, bool glance) {
  if (!expressible(scenario, config, stages)) return std::nullopt;
  auto few = shortened(config);
  Engine engine(scenario, stages, config, profiles, prices, changes);
  for (bool glanced = false;;) {
    if (!engine.begin(few)) return std::nullopt;
    const int left = config.microbatches - few.microbatches;
    // Whether the pace is settled shows without what runs beside, too.
    if (!glanced && left > 0 && !engine.rhythm(same_alone).settled) {
      few = prolonged(few, config.microbatches);
      continue;
    }
    glanced = true;
    if (!glance && !engine.settle()) return std::nullopt;
    auto result = engine.estimate();
    if (left == 0) return result;
    if (const auto rhythm = engine.rhythm(same_beside); glance || rhythm.settled) {
      result.forward_backward += std::llround(rhythm.growth * left / rhythm.apart);
      return result;
    }
    few = prolonged(few, config.microbatches);
  }
}

}  // namespace pipewright::timeline
