// The chunk-level engine: the time of a step without a node for every kernel. What a rank issues between two
// instructions of its program is one max-plus map a piece (collapse.hpp); transfers join ranks as in build.cpp:
//
//   rank 0   [F 0.0][post]........[F 1.0][post]          a post starts when its stream and the compute stream have come
//   rank 1          [post -> wait][F 0.0][post]          to it; a transfer ends when both sides have started, + bytes
//
// In the steady state every rank repeats the same instructions with every group of microbatches (N with interleaving, 1
// without), so the program is run for as many microbatches as warm-up, two groups and cool-down need; each further
// group adds what the last one of the steady state added. The clock follows the load in the window before a piece
// (evaluated for the middle of it); NCCL kernels beside a piece are those of the round before.
#include <algorithm>
#include <cmath>
#include <limits>

#include "collapse.hpp"
#include "pipewright/timeline.hpp"
#include "transfers.hpp"

namespace pipewright::timeline {
namespace {

using schedule::Kind;
using schedule::Part;

constexpr double unknown = -1;
constexpr std::int32_t nobody = -1;

bool expressible(const scenario::Scenario& scenario, const schedule::Config& config, const model::Stages& stages) {
  if (config.ep_overlap) return false;           // two streams take turns inside a call
  if (exchanges_shapes(scenario)) return false;  // and synchronises before every transfer
  return std::ranges::none_of(stages.pieces, [](const model::Piece& piece) {
    return !piece.groups.empty() || !piece.nodes.empty();  // reloads are started by other pieces
  });
}

/// Microbatches after which every rank does the same again.
int period_of(const schedule::Config& config) { return config.chunks ? config.group_size.value_or(config.stages) : 1; }

/// Time computed up to a moment, each kind of kernel by its power: linear between the ends of pieces.
class Computed {
 public:
  void add(double start, double end, double busy) {
    if (end <= start) return;
    if (start > times_.back()) push(start, total_.back());
    push(end, total_.back() + busy);
  }
  double until(double t) {
    if (t <= 0) return 0;
    if (t >= times_.back()) return total_.back();
    if (times_[cursor_] > t) cursor_ = 0;
    while (times_[cursor_ + 1] <= t) ++cursor_;
    const double share = (t - times_[cursor_]) / (times_[cursor_ + 1] - times_[cursor_]);
    return total_[cursor_] + share * (total_[cursor_ + 1] - total_[cursor_]);
  }
  double total() const { return total_.back(); }

 private:
  void push(double t, double total) {
    times_.push_back(t);
    total_.push_back(total);
  }
  std::vector<double> times_ = {0}, total_ = {0};
  std::size_t cursor_ = 0;
};

/// Union of intervals, asked for ranges in ascending order.
class Covered {
 public:
  explicit Covered(std::vector<std::pair<double, double>> intervals) {
    std::ranges::sort(intervals);
    for (const auto& next : intervals) {
      if (!merged_.empty() && next.first <= merged_.back().second)
        merged_.back().second = std::max(merged_.back().second, next.second);
      else if (next.second > next.first)
        merged_.push_back(next);
    }
  }
  double share(double from, double to) {
    if (to <= from) return 0;
    while (first_ < merged_.size() && merged_[first_].second <= from) ++first_;
    double covered = 0;
    for (auto i = first_; i < merged_.size() && merged_[i].first < to; ++i)
      covered += std::min(to, merged_[i].second) - std::max(from, merged_[i].first);
    return covered / (to - from);
  }

 private:
  std::vector<std::pair<double, double>> merged_;
  std::size_t first_ = 0;
};

/// The lines of one piece; the first microbatch may have more to do.
struct PieceLines {
  std::vector<Line> forward, first_forward, backward, first_backward;
};
struct RankLines {
  std::vector<Line> gradient_sync, parameter_gather;  ///< by chunk
  Line finalize;
  std::vector<Line> optimizer;  ///< between the collectives over the pipeline
  std::vector<Line> joints;     ///< those collectives
};

class Engine {
 public:
  Engine(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
         const profile::Profiles& profiles, const Prices& prices)
      : scenario_(scenario),
        stages_(stages),
        profiles_(profiles),
        prices_(prices),
        collapser_(scenario, profiles),
        p_(config.stages),
        v_(config.chunks.value_or(1)),
        batched_(config.batched) {
    const double factor = host_time_factor(scenario, profiles);
    const auto ns = [&](const char* name) { return std::floor(factor * profiles.scalar(name).value * 1e3 + 0.5); };
    p2p_call_ = ns("host.p2p_call_us");
    synchronize_ = ns("host.launch_and_synchronize_us");
    forward_begin_ = ns("host.forward_begin_us");
    forward_end_ = ns("host.forward_end_us");
    backward_begin_ = ns("host.backward_begin_us");
    backward_end_ = ns("host.backward_end_us");
    one_queue_ = scenario::variable(scenario, "CUDA_DEVICE_MAX_CONNECTIONS") == "1";
    collapse();
    shorten(config);
    find_links();
  }

  std::optional<Estimate> run() {
    Estimate result;
    double before = 0;
    constexpr int most_rounds = 3;  // further ones move a step by less than 0.1 %
    for (int round = 0; round < most_rounds; ++round) {
      if (!one_round()) return std::nullopt;
      const double step = end_of_step();
      if (std::abs(step - before) * 5000 < step) break;  // 0.02 %
      before = step;
    }
    const double further = repeated_ * slope_;
    double schedule_end = 0;
    for (const Rank& rank : ranks_) schedule_end = std::max(schedule_end, rank.schedule_end);
    result.forward_backward = std::llround(schedule_end + further);
    result.optimizer = std::llround(end_of_step() - schedule_end);
    result.operations = operations_;
    return result;
  }

 private:
  struct Start {  // a P2P kernel reaches the head of its stream
    double base = 0;
    std::int32_t previous = nobody;  // transfer before it on its stream
    std::int32_t queued = nobody;    // start before it in the one hardware queue
    double at = unknown;
  };
  struct Transfer {
    std::int32_t start = nobody, peer = nobody;  // own start; the other side's transfer
    std::int32_t drained = nobody;               // eager send: the receive that must have emptied the buffers
    double ns = 0, done = unknown;
    bool eager = false;
    int rank = 0;
  };
  struct Rank {
    QueueTimes at{};
    std::size_t next = 0;              // instruction
    std::vector<std::int32_t> queued;  // starts that the next compute kernel queues behind
    std::int32_t last_queued = nobody;
    std::array<std::int32_t, 2> p2p{nobody, nobody};  // last transfer of each communicator
    std::vector<int> backwards_left;                  // by chunk
    std::vector<double> backward_ends;                // of every backward
    bool reduces = true;                              // not inside no_sync
    std::vector<double> gathered;                     // by chunk: its parameters are there
    Computed computed;
    double schedule_end = 0, end = 0;
    std::vector<std::pair<double, double>> network;  // other NCCL kernels than transfers
    std::vector<std::pair<double, double>> spans;    // of every piece run
    std::vector<double> contended;                   // share of each span in the round before
    double last_total = 0, last_step = 0;            // of the round before
    Computed last_computed;
  };

  // ---- Preparation

  void collapse() {
    for (std::size_t i = 0; i < stages_.pieces.size(); ++i) {
      const model::Piece& piece = stages_.pieces[i];
      auto backward = piece.backward;
      backward.insert(backward.end(), piece.weight_gradient.begin(), piece.weight_gradient.end());
      const auto line = [&](const std::vector<model::Step>& steps, bool first) {
        return collapser_.lines(steps, piece, prices_.pieces[i], first);
      };
      pieces_.push_back(
          {line(piece.forward, false), line(piece.forward, true), line(backward, false), line(backward, true)});
    }
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      const model::Rank& rank = stages_.ranks[r];
      RankLines lines;
      const auto all = [&](const std::vector<model::Kernel>& kernels, const Prices::List& list) {
        return collapser_.line(kernels, list, 0, kernels.size());
      };
      for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
        lines.gradient_sync.push_back(all(rank.chunks[c].gradient_sync, prices_.gradient_sync[r][c]));
        lines.parameter_gather.push_back(all(rank.chunks[c].parameter_gather, prices_.parameter_gather[r][c]));
      }
      lines.finalize = all(rank.finalize, prices_.finalize[r]);
      std::size_t from = 0;
      for (std::size_t k = 0; k < rank.optimizer.size(); ++k) {
        if (!rank.optimizer[k].joins_pipeline) continue;
        lines.optimizer.push_back(collapser_.line(rank.optimizer, prices_.optimizer[r], from, k));
        lines.joints.push_back(collapser_.line(rank.optimizer, prices_.optimizer[r], k, k + 1));
        from = k + 1;
      }
      lines.optimizer.push_back(collapser_.line(rank.optimizer, prices_.optimizer[r], from, rank.optimizer.size()));
      rank_lines_.push_back(std::move(lines));
    }
  }

  void shorten(const schedule::Config& config) {
    const auto few = shortened(config);
    period_ = period_of(config);
    m_ = few.microbatches;
    repeated_ = (config.microbatches - m_) / period_;
    program_ = schedule::build(few);
  }

  void find_links() {
    links_.resize(static_cast<std::size_t>(p_));
    for (int r = 0; p_ > 1 && r < p_; ++r)
      for (const bool next : {true, false}) {
        const std::string name = link_between(scenario_, r, (r + (next ? 1 : p_ - 1)) % p_);
        const double ns = std::floor(profiles_.time({"send_recv." + name, {stages_.boundary_bytes.value}}).ns + 0.5);
        links_[r][next ? 0 : 1] = {ns, stages_.boundary_bytes.value <= profiles_.link(name).eager_bytes};
      }
  }

  // ---- One round

  bool one_round() {
    starts_.clear();
    transfers_.clear();
    posted_.assign(static_cast<std::size_t>(p_) * 4 * static_cast<std::size_t>(m_) * static_cast<std::size_t>(v_),
                   nobody);
    previous_send_.assign(static_cast<std::size_t>(p_) * 2, nobody);
    operations_ = 0;
    std::vector<Rank> before = std::move(ranks_);
    ranks_.assign(static_cast<std::size_t>(p_), {});
    for (int r = 0; r < p_; ++r) {
      Rank& rank = ranks_[r];
      rank.backwards_left.assign(static_cast<std::size_t>(v_), m_);
      rank.gathered.assign(static_cast<std::size_t>(v_), unknown);
      if (before.empty()) continue;
      Rank& old = before[r];
      rank.contended.reserve(old.spans.size());
      Covered covered(std::move(old.network));
      for (const auto& [from, to] : old.spans) rank.contended.push_back(covered.share(from, to));
      rank.last_total = old.computed.total();
      rank.last_step = old.end;
      rank.last_computed = std::move(old.computed);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < p_; ++r)
        while (step(r)) moved = true;
    }
    for (int r = 0; r < p_; ++r)
      if (ranks_[r].next < program_.ranks[r].instructions.size()) return false;  // the exact engine says why
    finish();
    return true;
  }

  double resolve_start(std::int32_t id) {
    Start& start = starts_[id];
    if (start.at != unknown) return start.at;
    double at = start.base;
    if (start.previous != nobody) {
      const double done = resolve(start.previous);
      if (done == unknown) return unknown;
      at = std::max(at, done);
    }
    if (start.queued != nobody) {
      const double queued = resolve_start(start.queued);
      if (queued == unknown) return unknown;
      at = std::max(at, queued);
    }
    return starts_[id].at = at;
  }

  double resolve(std::int32_t id) {
    if (transfers_[id].done != unknown) return transfers_[id].done;
    double at = resolve_start(transfers_[id].start);
    if (at == unknown) return unknown;
    const Transfer& transfer = transfers_[id];
    if (transfer.eager) {
      if (transfer.drained != nobody) {
        const std::int32_t receive = transfers_[transfer.drained].peer;
        const double done = receive == nobody ? unknown : resolve(receive);
        if (done == unknown) return unknown;
        at = std::max(at, done);
      }
    } else {
      if (transfer.peer == nobody) return unknown;
      const double peer = resolve_start(transfers_[transfer.peer].start);
      if (peer == unknown) return unknown;
      at = std::max(at, peer);
    }
    return transfers_[id].done = at + transfers_[id].ns;
  }

  std::int32_t& posted(int rank, const Part& part) {
    return posted_[((static_cast<std::size_t>(rank) * 4 + static_cast<std::size_t>(part.type)) *
                        static_cast<std::size_t>(m_) +
                    static_cast<std::size_t>(part.microbatch)) *
                       static_cast<std::size_t>(v_) +
                   static_cast<std::size_t>(part.chunk)];
  }

  std::int32_t new_start(int r, std::size_t stream) {
    Rank& rank = ranks_[r];
    rank.at[host_queue] += p2p_call_;
    starts_.push_back(
        {std::max(rank.at[host_queue], rank.at[compute_queue]), rank.p2p[stream], rank.last_queued, unknown});
    const auto id = static_cast<std::int32_t>(starts_.size() - 1);
    if (one_queue_) rank.queued.push_back(id), rank.last_queued = id;
    return id;
  }

  void post(int r, const Part& part, std::int32_t start, std::size_t stream) {
    const OtherEnd other = other_end(p_, r, part);
    const auto [ns, eager] = links_[r][to_next(part.type) ? 0 : 1];
    const auto id = static_cast<std::int32_t>(transfers_.size());
    transfers_.push_back({start, posted(other.rank, other.part), nobody, ns, unknown, eager && sends(part.type), r});
    if (transfers_[id].peer != nobody) transfers_[transfers_[id].peer].peer = id;
    posted(r, part) = id;
    if (sends(part.type)) {
      const std::size_t forward = part.type == Part::Type::send_next ? 1 : 0;
      auto& previous = previous_send_[static_cast<std::size_t>(r) * 2 + forward];
      transfers_[id].drained = previous;
      previous = id;
    }
    ranks_[r].p2p[stream] = id;
  }

  void transfer_call(int r, const schedule::Instruction& call) {
    std::int32_t start = nobody;
    for (const Part& part : call.parts) {
      const std::size_t stream = p2p_lane(scenario_, p_, r, part, batched_) == Lane::p2p ? 0 : 1;
      if (start == nobody || !batched_) start = new_start(r, stream);
      post(r, part, start, stream);
    }
  }

  /// The next compute kernel queues behind P2P kernels launched before it; false: one of them has not begun yet.
  bool dequeue(Rank& rank) {
    double latest = rank.at[compute_queue];
    for (const auto id : rank.queued) {
      const double at = resolve_start(id);
      if (at == unknown) return false;
      latest = std::max(latest, at);
    }
    rank.queued.clear();
    rank.at[compute_queue] = latest;
    return true;
  }

  bool wait(Rank& rank, const double done) {
    if (done == unknown || !dequeue(rank)) return false;
    auto& compute = rank.at[compute_queue];
    compute = std::max({compute, rank.at[host_queue], done});
    return true;
  }

  bool synchronize(Rank& rank) {
    double last = rank.at[compute_queue];
    for (std::size_t queue = compute_queue; queue < queues; ++queue) last = std::max(last, rank.at[queue]);
    for (const auto id : rank.p2p) {
      if (id == nobody) continue;
      const double done = resolve(id);
      if (done == unknown) return false;
      last = std::max(last, done);
    }
    rank.at[host_queue] = std::max(rank.at[host_queue], last + synchronize_);
    return true;
  }

  /// One piece (or list of kernels) of a rank, at the clock that its middle will have.
  void work(Rank& rank, const Line& line) {
    if (line.empty()) return;
    const double before = rank.at[compute_queue], nominal = line.busy({});
    Slowdown at;
    if (nominal > 0 && collapser_.window() > 0) {
      const double ahead = nominal / 2, start = std::max(before, rank.at[host_queue]);
      const double period = rank.last_step > 0 ? rank.last_step : start + ahead;
      const double window = std::min(static_cast<double>(collapser_.window()), period);
      const double from = start + ahead - window;
      double load = rank.computed.total() + std::min(ahead, window) * line.load({}) / nominal;
      load -= from < 0 ? 0 : std::min(rank.computed.until(from), load);
      if (from < 0 && rank.last_step > 0) load += rank.last_total - rank.last_computed.until(rank.last_step + from);
      at = collapser_.at_duty(load / window);
    }
    const std::size_t index = rank.spans.size();
    if (index < rank.contended.size()) at.contended = rank.contended[index];
    const double side =
        std::max(rank.at[queue_of(model::Stream::gradient)], rank.at[queue_of(model::Stream::parameter)]);
    line.apply(rank.at, at);
    ++operations_;
    const double after = rank.at[compute_queue], busy = line.busy(at);
    rank.spans.emplace_back(std::max(before, after - std::max(busy, 1.0)), after);
    rank.computed.add(rank.spans.back().first, after, line.load(at));
    const double side_end =
        std::max(rank.at[queue_of(model::Stream::gradient)], rank.at[queue_of(model::Stream::parameter)]);
    if (side_end > side) rank.network.emplace_back(std::max(side, before), side_end);
  }

  bool forward(int r, int microbatch, int c) {
    Rank& rank = ranks_[r];
    if (!dequeue(rank)) return false;
    rank.at[host_queue] += forward_begin_;
    if (microbatch == 0 && !rank_lines_[r].parameter_gather[c].empty()) {
      if (rank.gathered[c] == unknown) gather(r, c);
      wait(rank, rank.gathered[c]);
    }
    for (const auto piece : stages_.ranks[r].chunks[c].pieces)
      for (const Line& line : microbatch == 0 ? pieces_[piece].first_forward : pieces_[piece].forward) work(rank, line);
    rank.at[host_queue] += forward_end_;
    return true;
  }

  void gather(int r, int c) {
    Rank& rank = ranks_[r];
    work(rank, rank_lines_[r].parameter_gather[c]);
    rank.gathered[c] = rank.at[queue_of(model::Stream::parameter)];
  }

  bool backward(int r, int microbatch, int c) {
    Rank& rank = ranks_[r];
    if (!dequeue(rank)) return false;
    rank.at[host_queue] += backward_begin_;
    const auto& chunk = stages_.ranks[r].chunks[c];
    for (auto piece = chunk.pieces.rbegin(); piece != chunk.pieces.rend(); ++piece)
      for (const Line& line : microbatch == 0 ? pieces_[*piece].first_backward : pieces_[*piece].backward)
        work(rank, line);
    rank.backward_ends.push_back(rank.at[compute_queue]);
    if (--rank.backwards_left[c] == 0 && rank.reduces) work(rank, rank_lines_[r].gradient_sync[c]);
    rank.at[host_queue] += backward_end_;
    return true;
  }

  /// One instruction of a rank; false: it must wait for another rank first, or there is none left.
  bool step(int r) {
    Rank& rank = ranks_[r];
    const auto& instructions = program_.ranks[r].instructions;
    if (rank.next == instructions.size()) return false;
    const auto& i = instructions[rank.next];
    switch (i.kind) {
      case Kind::forward:
        if (!forward(r, i.microbatch, i.chunk)) return false;
        break;
      case Kind::backward:
        if (!backward(r, i.microbatch, i.chunk)) return false;
        break;
      case Kind::p2p_async:
        transfer_call(r, i);
        break;
      case Kind::p2p_sync:
        if (!i.parts.empty() && posted(r, i.parts.front()) == nobody) transfer_call(r, i);
        if (!all_done(r, i)) return false;
        if (batched_ && scenario_.settings.batch_p2p_sync && !synchronize(rank)) return false;
        break;
      case Kind::wait:
        if (!wait(rank, resolve(posted(r, i.parts.front())))) return false;
        break;
      case Kind::no_sync_enter:
      case Kind::no_sync_exit:
        rank.reduces = i.kind == Kind::no_sync_exit;
        break;
      case Kind::param_sync:
        gather(r, i.chunk);
        break;
      case Kind::grad_sync:
        work(rank, rank_lines_[r].gradient_sync[i.chunk]);
        break;
      default:
        break;
    }
    ++rank.next;
    return true;
  }

  bool all_done(int r, const schedule::Instruction& call) {
    if (call.parts.empty()) return true;
    double last = 0;
    for (const Part& part : call.parts) {
      const double done = resolve(posted(r, part));
      if (done == unknown) return false;
      last = std::max(last, done);
    }
    return wait(ranks_[r], last);
  }

  /// Gradient finalisation, the growth a group of microbatches brings, and the optimizer.
  void finish() {
    double growth = 0;
    for (int r = 0; r < p_; ++r) {
      Rank& rank = ranks_[r];
      // The last group of the steady state already feels its neighbours' cool-down; the one before it counts.
      const auto& ends = rank.backward_ends;
      const std::ptrdiff_t groups = v_ == 1 ? 4 : 1, apart = groups * period_ * v_;
      const auto steady = static_cast<std::ptrdiff_t>(ends.size()) - program_.ranks[r].warmup - 1 - apart;
      if (repeated_ > 0) growth += (ends.at(steady) - ends.at(steady - apart)) / static_cast<double>(groups);
      dequeue(rank);
      const auto gradient = rank.at[queue_of(model::Stream::gradient)];
      if (gradient > 0) wait(rank, gradient);
      work(rank, rank_lines_[r].finalize);
      synchronize(rank);
      rank.schedule_end = rank.at[host_queue];
    }
    slope_ = growth / p_;
    optimizer();
    collect_network();
  }

  void optimizer() {
    std::size_t joints = 0;
    for (const auto& lines : rank_lines_) joints = std::max(joints, lines.joints.size());
    for (std::size_t j = 0; j <= joints; ++j) {
      double last = 0;
      for (int r = 0; r < p_; ++r) {
        if (j < rank_lines_[r].optimizer.size()) work(ranks_[r], rank_lines_[r].optimizer[j]);
        if (j < rank_lines_[r].joints.size())
          last = std::max({last, ranks_[r].at[compute_queue], ranks_[r].at[host_queue]});
      }
      for (int r = 0; r < p_; ++r) {
        if (j >= rank_lines_[r].joints.size()) continue;
        ranks_[r].at[compute_queue] = std::max(ranks_[r].at[compute_queue], last);
        work(ranks_[r], rank_lines_[r].joints[j]);
      }
    }
    for (Rank& rank : ranks_) rank.end = *std::ranges::max_element(rank.at);
  }

  void collect_network() {
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(transfers_.size()); ++id) {
      const double done = resolve(id);
      if (done != unknown) ranks_[transfers_[id].rank].network.emplace_back(resolve_start(transfers_[id].start), done);
    }
  }

  double end_of_step() const {
    double end = 0;
    for (const Rank& rank : ranks_) end = std::max(end, rank.end);
    return end;
  }

  struct LinkTime {
    double ns = 0;
    bool eager = false;
  };

  const scenario::Scenario& scenario_;
  const model::Stages& stages_;
  const profile::Profiles& profiles_;
  const Prices& prices_;
  Collapser collapser_;
  int p_, v_, m_ = 0, period_ = 1, repeated_ = 0;
  bool batched_, one_queue_ = false;
  double p2p_call_ = 0, synchronize_ = 0, forward_begin_ = 0, forward_end_ = 0, backward_begin_ = 0, backward_end_ = 0;
  schedule::Program program_;
  std::vector<PieceLines> pieces_;
  std::vector<RankLines> rank_lines_;
  std::vector<std::array<LinkTime, 2>> links_;  // [rank][to the next, to the one before]
  std::vector<Rank> ranks_;
  std::vector<Start> starts_;
  std::vector<Transfer> transfers_;
  std::vector<std::int32_t> posted_, previous_send_;
  double slope_ = 0;
  std::int64_t operations_ = 0;
};

}  // namespace

schedule::Config shortened(schedule::Config config) {
  const int p = config.stages, v = config.chunks.value_or(1), n = period_of(config), all = config.microbatches;
  // Warm-up of the first rank: 2 (p - 1) + (v - 1) N chunks; then four groups (1F1B: 12 microbatches).
  const int settled = config.chunks ? (2 * (p - 1) + (v - 1) * n + v - 1) / v + 4 * n : 2 * p + 12;
  if (all > settled) config.microbatches = settled + (all - settled) % n;
  return config;
}

std::optional<Estimate> estimate(const scenario::Scenario& scenario, const model::Stages& stages,
                                 const schedule::Config& config, const profile::Profiles& profiles,
                                 const Prices& prices) {
  if (!expressible(scenario, config, stages)) return std::nullopt;
  return Engine(scenario, stages, config, profiles, prices).run();
}

}  // namespace pipewright::timeline
