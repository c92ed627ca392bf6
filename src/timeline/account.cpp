// Every nanosecond of a rank's compute stream gets one cause. A gap is explained by the predecessor that ended last
// (the binding one) and, before that one began, by its own binding predecessor, back to where the gap opened:
//
//   compute  |kernel|.......gap........|kernel|        gap = [peer not there: bubble][transfer: p2p][launch: host]
//   p2p             [spin..........][transfer]
#include "account.hpp"

#include <tbb/parallel_invoke.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "by_rank.hpp"
#include "coverage.hpp"
#include "critical_path.hpp"
#include "pipewright/reading.hpp"

namespace pipewright::timeline {
namespace {

using model::Purpose;
using schedule::Kind;

/// What a profiler would call a node.
enum class Traced : std::uint8_t { comp, p2p, ep, coll, d2h, h2d };
constexpr std::array<const char*, 6> traced_names = {"comp", "p2p", "ep", "coll", "d2h", "h2d"};

Traced traced_as(const Label& label) {
  if (label.kind == NodeKind::transfer) return Traced::p2p;
  if (label.joins_pipeline) return Traced::coll;
  if (label.lane == Lane::d2h) return Traced::d2h;
  if (label.lane == Lane::h2d) return Traced::h2d;
  switch (label.purpose) {
    case Purpose::ep:
      return Traced::ep;
    case Purpose::tp:
    case Purpose::cp:
    case Purpose::dp:
      return Traced::coll;
    default:
      return Traced::comp;
  }
}

/// What one rank has done so far, in node order.
struct Running {
  std::int64_t reached = 0;
  std::unordered_map<const model::Kernel*, Communication> communication;
};

class Accountant {
 public:
  /// Reads `of`, writes to `result` (the same, or another) and, where it is given, `gaps`.
  Accountant(Result& result, const Result& of, const model::Stages& stages, const schedule::Program& program,
             profile::Topology topology, std::int64_t gap, std::vector<Gap>* gaps = nullptr)
      : result_(result),
        graph_(of.graph),
        times_(of.times),
        stages_(stages),
        topology_(std::move(topology)),
        ops_(program),
        gap_(gap),
        gaps_(gaps) {
    for (const auto& rank : program.ranks) bounds_.push_back(phase_bounds(rank));
  }

  void account() {
    result_.ranks.assign(graph_.ranks, {});
    std::int64_t step = 0;
    for (const auto end : times_.end) step = std::max(step, end);
    tbb::parallel_invoke(
        [&] {
          collect_boundaries();
          running_.assign(graph_.ranks, {});
          for (std::uint32_t node = 0; node < graph_.size(); ++node) add(node, running_[graph_.labels[node].rank]);
          for (int r = 0; r < graph_.ranks; ++r) finish(r, running_[r], step);
        },
        [&] { trace(); }, [&] { result_.critical_path = critical_path(graph_, times_, ops_); });
    result_.forward_backward = 0;
    for (int r = 0; r < graph_.ranks; ++r)
      if (result_.ranks[r].forward_backward_end > result_.forward_backward) {
        result_.forward_backward = result_.ranks[r].forward_backward_end;
        result_.last_rank = r;
      }
    result_.optimizer = step - result_.forward_backward;
  }

 private:
  Phase phase_of(const Label& label) const {
    if (label.phase != 0 || label.instruction == Label::none) return Phase::end;
    const PhaseBounds& bounds = bounds_[label.rank];
    if (label.instruction < bounds.steady) return Phase::warmup;
    return label.instruction < bounds.cooldown ? Phase::steady : Phase::cooldown;
  }

  static std::int64_t& share_of(Split& split, Purpose purpose) {
    switch (purpose) {
      case Purpose::tp:
        return split.tp;
      case Purpose::cp:
        return split.cp;
      case Purpose::ep:
        return split.ep;
      case Purpose::dp:
        return split.dp;
      case Purpose::offload:
        return split.offload;
      default:
        return split.busy;
    }
  }

  Communication* communication(const Label& label) {
    if (label.kind != NodeKind::kernel || label.purpose == Purpose::compute || label.purpose == Purpose::offload)
      return nullptr;
    return &running_[label.rank].communication[kernel_of(stages_, label)];
  }

  // The compute stream does this kernel, or waits for it.
  void exposed(const Label& label, Phase phase, std::int64_t ns, Split& split) {
    share_of(split, label.purpose) += ns;
    if (Communication* own = communication(label)) own->exposed[static_cast<std::size_t>(phase)] += ns;
  }

  // Explains [from, start(node)) on the compute stream of `node`'s rank.
  void explain(std::uint32_t node, std::int64_t from, Account& account) {
    const Label& waiting = graph_.labels[node];
    Split& split = account.by_phase[static_cast<std::size_t>(phase_of(waiting))];
    std::int64_t until = times_.start[node];
    // The first transfer on the way is waited for; those before it were in its way.
    bool queued = false, synchronized = false;
    for (std::uint32_t at = node; until > from;) {
      const std::uint32_t cause = binding(graph_, times_, at);
      if (cause == Label::none) {
        split.idle += until - from;
        note(node, cause, Cause::idle, from, until);
        return;
      }
      const Label& label = graph_.labels[cause];
      if (label.rank != waiting.rank) {
        (waiting.phase == 2 ? split.idle : split.bubble) += until - from;
        note(node, cause, waiting.phase == 2 ? Cause::idle : Cause::bubble, from, until);
        return;
      }
      const std::int64_t ended = std::max(from, times_.end[cause]);
      if (until > ended) {  // a lag: launches and synchronising calls
        split.host += until - ended;
        note(node, cause, Cause::host, ended, until);
      }
      until = std::min(until, ended);
      const std::int64_t began = std::max(from, times_.start[cause]);
      synchronized = synchronized || label.kind == NodeKind::host;
      if (until > began) {
        if (label.kind == NodeKind::transfer)
          exposed_transfer(label, waiting, until - began, split, queued, synchronized);
        else
          exposed(label, phase_of(waiting), until - began, split);
        note(node, cause, label.kind == NodeKind::transfer ? Cause::p2p : cause_of(label.purpose), began, until);
        until = began;
      }
      queued = queued || label.kind == NodeKind::transfer;
      at = cause;
    }
  }

  void note(std::uint32_t node, std::uint32_t by, Cause cause, std::int64_t start, std::int64_t end) {
    if (gaps_ != nullptr && end > start) gaps_->push_back({node, by, graph_.labels[node].rank, cause, start, end});
  }

  void exposed_transfer(const Label& transfer, const Label& waiting, std::int64_t ns, Split& split, bool queued,
                        bool synchronized) {
    split.p2p += ns;
    const auto cause = queued                        ? TransferCause::queue
                       : synchronized                ? TransferCause::synchronization
                       : sends(transfer.part().type) ? TransferCause::send
                                                     : TransferCause::receive;
    Boundary& boundary = result_.boundaries[boundary_of(transfer)];
    boundary.exposed += ns;
    boundary.by_phase[static_cast<std::size_t>(phase_of(waiting))][static_cast<std::size_t>(cause)] += ns;
    if (ns > boundary.longest) {
      boundary.longest = ns;
      boundary.longest_wait = ops_.name(waiting.rank, ops_.from(waiting));
    }
  }

  std::size_t boundary_of(const Label& transfer) const {
    const int own = transfer.rank, peer = other_end(graph_.ranks, own, transfer.part()).rank;
    const bool out = sends(transfer.part().type), forward = goes_forward(transfer.part().type);
    return boundary_index_.at({out ? own : peer, out ? peer : own, forward});
  }

  void collect_boundaries() {
    std::map<std::tuple<int, int, bool>, int> transfers;
    for (const Label& label : graph_.labels) {
      if (label.kind != NodeKind::transfer || label.shapes || !sends(label.part().type)) continue;
      const int peer = other_end(graph_.ranks, label.rank, label.part()).rank;
      ++transfers[{label.rank, peer, goes_forward(label.part().type)}];
    }
    result_.boundaries.clear();
    for (const auto& [key, count] : transfers) {
      boundary_index_[key] = result_.boundaries.size();
      Boundary boundary;
      std::tie(boundary.from, boundary.to, boundary.forward) = key;
      boundary.bytes = stages_.boundary_bytes;
      boundary.transfers = count;
      result_.boundaries.push_back(boundary);
    }
  }

  void add(std::uint32_t node, Running& rank) {
    const Label& label = graph_.labels[node];
    Account& account = result_.ranks[label.rank];
    const std::int64_t start = times_.start[node], end = times_.end[node];
    if (label.kind == NodeKind::host && label.phase == 1) account.forward_backward_end = end;
    if (Communication* own = communication(label)) {
      ++own->times;
      own->busy += end - start;
    }
    if (label.lane != Lane::compute) return;
    if (start > rank.reached) explain(node, rank.reached, account);
    if (label.kind == NodeKind::kernel) {
      exposed(label, phase_of(label), end - start, account.by_phase[static_cast<std::size_t>(phase_of(label))]);
      if (label.recompute) account.recompute += end - start;
    }
    rank.reached = std::max(rank.reached, end);
  }

  void count_bytes(Communication& all, const model::Kernel& kernel) const {
    const auto exchange = model::exchange_of(kernel);
    if (!exchange) return;
    profile::Traffic each = profile::traffic(topology_, *exchange);
    each.bytes.front() += each.relayed;
    for (const double bytes : each.bytes) all.bytes.push_back(bytes * all.times);
  }

  // Layers whose kernels have one name are one row.
  std::vector<Communication> by_name(std::unordered_map<const model::Kernel*, Communication>& kernels) const {
    std::map<std::pair<std::string, Purpose>, Communication> rows;
    for (auto& [kernel, one] : kernels) {
      count_bytes(one, *kernel);
      Communication& row = rows[{kernel->name, kernel->purpose}];
      row.what = kernel->name, row.purpose = kernel->purpose;
      row += one;
    }
    std::vector<Communication> sorted;
    for (auto& [name, row] : rows) sorted.push_back(std::move(row));
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.exposed_in_all() > b.exposed_in_all(); });
    return sorted;
  }

  void finish(int r, Running& rank, std::int64_t step) {
    Account& account = result_.ranks[r];
    account.end = rank.reached;
    account.by_phase[static_cast<std::size_t>(Phase::end)].idle += step - rank.reached;
    if (gaps_ != nullptr && step > rank.reached)
      gaps_->push_back({Label::none, Label::none, static_cast<std::uint16_t>(r), Cause::idle, rank.reached, step});
    for (const Split& split : account.by_phase) static_cast<Split&>(account) += split;
    account.communication = by_name(rank.communication);
  }

  /// What a profiler would show of each rank, one after the other: they are soon read, and take memory.
  void trace() {
    const ByRank nodes(graph_);
    std::array<Coverage, traced_names.size()> traced;
    for (std::size_t r = 0; r < nodes.ranks(); ++r) {
      for (Coverage& coverage : traced) coverage.clear(0);
      traced[static_cast<std::size_t>(Traced::comp)].clear(nodes.size(r));
      std::int64_t arrival = 0;
      nodes.each(r, [&](std::uint32_t node) {
        const Label& label = graph_.labels[node];
        const std::int64_t start = times_.start[node], end = times_.end[node];
        if (label.kind == NodeKind::transfer_start && label.phase != 0) arrival = start;
        if (label.kind == NodeKind::transfer)
          traced[static_cast<std::size_t>(Traced::p2p)].add(times_.start[own_start(graph_, node)], end);
        if (label.kind == NodeKind::kernel)
          traced[static_cast<std::size_t>(traced_as(label))].add(label.joins_pipeline ? arrival : start,
                                                                 std::max(start, end - gap_));
      });
      for (Coverage& coverage : traced) coverage.finish();
      Account& account = result_.ranks[r];
      const Coverage& compute = traced[static_cast<std::size_t>(Traced::comp)];
      for (std::size_t kind = 0; kind < traced_names.size(); ++kind) {
        const auto total = static_cast<std::int64_t>(traced[kind].total());
        if (total == 0 && kind != 0) continue;
        account.traced_busy[traced_names[kind]] = total;
        if (kind != 0) account.traced_exposed[traced_names[kind]] = total - traced[kind].shared_with(compute);
      }
    }
  }

  Result& result_;
  const Graph& graph_;
  const Times& times_;
  const model::Stages& stages_;
  const profile::Topology topology_;
  const OpNames ops_;
  const std::int64_t gap_;
  std::vector<Gap>* const gaps_;
  std::vector<PhaseBounds> bounds_;
  std::map<std::tuple<int, int, bool>, std::size_t> boundary_index_;
  std::vector<Running> running_;
};

}  // namespace

Cause cause_of(Purpose purpose) {
  constexpr std::array<Cause, 6> by_purpose = {Cause::compute, Cause::tp, Cause::cp,
                                               Cause::ep,      Cause::dp, Cause::offload};
  return by_purpose[static_cast<std::size_t>(purpose)];
}

const char* name(Cause cause) {
  constexpr std::array<const char*, causes> names = {"bubble", "idle", "host", "p2p",     "tp",
                                                     "cp",     "ep",   "dp",   "offload", "compute"};
  return names[static_cast<std::size_t>(cause)];
}

// Warm-up forwards come before the first backward, as many backwards are left to cool-down (schedules.py).
PhaseBounds phase_bounds(const schedule::RankProgram& program) {
  int forwards = 0, backwards = 0, all_backwards = 0;
  const auto forward = [](const schedule::Instruction& i) {
    return i.kind == Kind::forward || (i.kind == Kind::combined_begin && i.microbatch != schedule::no_microbatch);
  };
  const auto backward = [](const schedule::Instruction& i) {
    return i.kind == Kind::backward ||
           (i.kind == Kind::combined_begin && i.backward_microbatch != schedule::no_microbatch);
  };
  for (const auto& i : program.instructions) all_backwards += backward(i) ? 1 : 0;
  const auto size = static_cast<std::uint32_t>(program.instructions.size());
  PhaseBounds bounds{size, size};
  for (std::uint32_t n = 0; n < size; ++n) {
    const auto& i = program.instructions[n];
    if (bounds.steady == size && ((forward(i) && forwards == program.warmup) || backward(i))) bounds.steady = n;
    if (bounds.cooldown == size && backward(i) && backwards == all_backwards - program.warmup) bounds.cooldown = n;
    forwards += forward(i) ? 1 : 0;
    backwards += backward(i) ? 1 : 0;
  }
  // The op's own waits belong to it.
  for (auto* bound : {&bounds.steady, &bounds.cooldown})
    while (*bound > 0 && *bound < size && program.instructions[*bound - 1].kind == Kind::wait &&
           !sends(program.instructions[*bound - 1].parts.front().type))
      --*bound;
  bounds.steady = std::min(bounds.steady, bounds.cooldown);
  return bounds;
}

std::vector<Gap> gaps(const Result& result, const model::Stages& stages, const schedule::Program& program) {
  Result accounts;
  std::vector<Gap> found;
  Accountant(accounts, result, stages, program, {}, 0, &found).account();
  std::stable_sort(found.begin(), found.end(),
                   [](const Gap& a, const Gap& b) { return std::tie(a.rank, a.start) < std::tie(b.rank, b.start); });
  return found;
}

std::int64_t Communication::exposed_in_all() const {
  return std::accumulate(exposed.begin(), exposed.end(), std::int64_t{0});
}

Communication& Communication::operator+=(const Communication& other) {
  times += other.times;
  busy += other.busy;
  for (std::size_t phase = 0; phase < phases; ++phase) exposed[phase] += other.exposed[phase];
  bytes.resize(std::max(bytes.size(), other.bytes.size()));
  for (std::size_t level = 0; level < other.bytes.size(); ++level) bytes[level] += other.bytes[level];
  return *this;
}

Split& operator+=(Split& a, const Split& b) {
  for (const auto member : {&Split::busy, &Split::bubble, &Split::idle, &Split::p2p, &Split::tp, &Split::cp, &Split::ep,
                            &Split::dp, &Split::offload, &Split::host})
    a.*member += b.*member;
  return a;
}

std::uint32_t binding(const Graph& graph, const Times& times, std::uint32_t node) {
  std::uint32_t best = Label::none;
  std::int64_t latest = -1;
  for (const Edge edge : graph.edges.of(node)) {
    const std::int64_t t = times.end[edge.from] + edge.lag_ns;
    if (t > latest) {
      latest = t;
      best = edge.from;
    }
  }
  return best;
}

std::uint32_t last_node(const Times& times) {
  return static_cast<std::uint32_t>(std::max_element(times.end.begin(), times.end.end()) - times.end.begin());
}

std::uint32_t own_start(const Graph& graph, std::uint32_t transfer) {
  for (const auto [from, lag] : graph.edges.of(transfer)) {
    const Label& label = graph.labels[from];
    if (label.kind == NodeKind::transfer_start && label.rank == graph.labels[transfer].rank) return from;
  }
  throw InternalError("a transfer without a start");
}

void account(Result& result, const model::Stages& stages, const schedule::Program& program,
             const profile::Topology& topology, std::int64_t gap_ns) {
  Accountant(result, result, stages, program, topology, gap_ns).account();
}

}  // namespace pipewright::timeline
