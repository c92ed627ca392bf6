// Every nanosecond of a rank's compute stream gets one cause. A gap is explained by the predecessor that ended last
// (the binding one) and, before that one began, by its own binding predecessor, back to where the gap opened:
//
//   compute  |kernel|.......gap........|kernel|        gap = [peer not there: bubble][transfer: p2p][launch: host]
//   p2p             [spin..........][transfer]
#include "account.hpp"

#include <algorithm>
#include <map>

namespace pipewright::timeline {
namespace {

constexpr std::uint32_t none = Label::none;
using Interval = std::pair<std::int64_t, std::int64_t>;

std::int64_t length_of_union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::int64_t total = 0, reached = INT64_MIN;
  for (const auto& [begin, end] : intervals) {
    const std::int64_t from = std::max(begin, reached);
    if (end > from) total += end - from;
    reached = std::max(reached, end);
  }
  return total;
}

class Accountant {
 public:
  Accountant(Result& result, const model::Stages& stages, const schedule::Program& program, std::int64_t gap)
      : result_(result), graph_(result.graph), times_(result.times), stages_(stages), program_(program), gap_(gap) {}

  void account() {
    const int p = graph_.ranks;
    result_.ranks.assign(p, {});
    std::int64_t step = 0;
    for (const auto end : times_.end) step = std::max(step, end);
    collect_boundaries();
    std::vector<std::vector<std::uint32_t>> nodes(p);
    for (std::uint32_t node = 0; node < graph_.size(); ++node) nodes[graph_.labels[node].rank].push_back(node);
    for (int r = 0; r < p; ++r) rank_account(r, nodes[r], step);
    result_.forward_backward = 0;
    for (int r = 0; r < p; ++r)
      if (result_.ranks[r].forward_backward_end > result_.forward_backward) {
        result_.forward_backward = result_.ranks[r].forward_backward_end;
        result_.last_rank = r;
      }
    result_.optimizer = step - result_.forward_backward;
    critical_path();
  }

 private:
  const model::Kernel* kernel_of(const Label& label) const {
    if (label.kind != NodeKind::kernel) return nullptr;
    if (label.piece() != none) return &stages_.pieces[label.piece()].kernels[label.kernel()];
    const model::Rank& rank = stages_.ranks[label.rank];
    if (label.phase == 1) return &rank.finalize[label.kernel()];
    if (label.phase == 2) return &rank.optimizer[label.kernel()];
    return nullptr;
  }

  std::uint32_t binding(std::uint32_t node) const {
    std::uint32_t best = none;
    std::int64_t latest = -1;
    for (std::uint32_t e = graph_.first_edge[node]; e < graph_.first_edge[node + 1]; ++e) {
      const auto& edge = graph_.edges[e];
      const std::int64_t t = times_.end[edge.from] + edge.lag_ns;
      if (t > latest) {
        latest = t;
        best = edge.from;
      }
    }
    return best;
  }

  static void book(Account& account, model::Purpose purpose, std::int64_t ns) {
    switch (purpose) {
      case model::Purpose::compute:
        account.busy += ns;
        break;
      case model::Purpose::tp:
        account.tp += ns;
        break;
      case model::Purpose::cp:
        account.cp += ns;
        break;
      case model::Purpose::ep:
        account.ep += ns;
        break;
      case model::Purpose::dp:
        account.dp += ns;
        break;
      case model::Purpose::offload:
        account.offload += ns;
        break;
    }
  }

  // Explains [from, start(node)) on the compute stream of `node`'s rank.
  void explain(std::uint32_t node, std::int64_t from, Account& account) {
    const Label& waiting = graph_.labels[node];
    std::int64_t until = times_.start[node];
    for (std::uint32_t at = node; until > from;) {
      const std::uint32_t cause = binding(at);
      if (cause == none) {
        account.idle += until - from;
        return;
      }
      const Label& label = graph_.labels[cause];
      if (label.rank != waiting.rank) {
        (waiting.phase == 2 ? account.idle : account.bubble) += until - from;
        return;
      }
      const std::int64_t ended = std::max(from, times_.end[cause]);
      if (until > ended) account.host += until - ended;  // a lag: launches and synchronising calls
      until = std::min(until, ended);
      const std::int64_t began = std::max(from, times_.start[cause]);
      if (until > began) {
        if (label.kind == NodeKind::transfer)
          exposed_transfer(label, waiting, until - began, account);
        else
          book(account, label.purpose, until - began);
        until = began;
      }
      at = cause;
    }
  }

  void exposed_transfer(const Label& transfer, const Label& waiting, std::int64_t ns, Account& account) {
    account.p2p += ns;
    Boundary& boundary = result_.boundaries[boundary_of(transfer)];
    boundary.exposed += ns;
    if (ns > boundary.longest) {
      boundary.longest = ns;
      boundary.longest_wait = op_from(waiting);
    }
  }

  // The compute op that waits: the instruction itself or the next forward or backward after it.
  std::string op_from(const Label& label) const {
    const auto& instructions = program_.ranks[label.rank].instructions;
    for (std::size_t i = label.instruction; i < instructions.size(); ++i) {
      const auto& at = instructions[i];
      const char* letter = at.kind == schedule::Kind::forward    ? "F "
                           : at.kind == schedule::Kind::backward ? "B "
                                                                 : nullptr;
      if (letter) return letter + std::to_string(at.microbatch) + "." + std::to_string(at.chunk);
    }
    return "end of the schedule";
  }

  std::size_t boundary_of(const Label& transfer) const {
    const int own = transfer.rank, peer = other_end(graph_.ranks, own, transfer.part()).rank;
    const bool out = sends(transfer.part().type), forward = goes_forward(transfer.part().type);
    return boundary_index_.at({out ? own : peer, out ? peer : own, forward});
  }

  void collect_boundaries() {
    for (const Label& label : graph_.labels) {
      if (label.kind != NodeKind::transfer || label.shapes || !sends(label.part().type)) continue;
      const int peer = other_end(graph_.ranks, label.rank, label.part()).rank;
      ++transfers_[{label.rank, peer, goes_forward(label.part().type)}];
    }
    result_.boundaries.clear();
    for (const auto& [key, count] : transfers_) {
      boundary_index_[key] = result_.boundaries.size();
      Boundary boundary;
      std::tie(boundary.from, boundary.to, boundary.forward) = key;
      boundary.bytes = stages_.boundary_bytes;
      boundary.transfers = count;
      result_.boundaries.push_back(boundary);
    }
  }

  void rank_account(int r, const std::vector<std::uint32_t>& nodes, std::int64_t step) {
    Account& account = result_.ranks[r];
    std::map<std::string, std::vector<Interval>> traced;
    std::int64_t reached = 0;
    std::int64_t arrival = -1;
    for (const std::uint32_t node : nodes) {
      const Label& label = graph_.labels[node];
      const std::int64_t start = times_.start[node], end = times_.end[node];
      if (label.kind == NodeKind::host && label.phase == 1) account.forward_backward_end = end;
      if (label.kind == NodeKind::transfer) traced["p2p"].push_back({times_.start[own_start(graph_, node)], end});
      if (label.kind == NodeKind::transfer_start && label.phase != 0) arrival = start;
      if (label.kind == NodeKind::kernel) {
        const model::Kernel* kernel = kernel_of(label);
        const bool joins = kernel && kernel->joins_pipeline;
        traced[traced_kind(label, joins)].push_back({joins ? arrival : start, std::max(start, end - gap_)});
      }
      if (label.lane != Lane::compute) continue;
      if (start > reached) explain(node, reached, account);
      if (label.kind == NodeKind::kernel) {
        book(account, label.purpose, end - start);
        const model::Kernel* kernel = kernel_of(label);
        if (kernel && kernel->recompute) account.recompute += end - start;
      }
      reached = std::max(reached, end);
    }
    account.end = reached;
    account.idle += step - reached;
    for (const auto& [kind, intervals] : traced) {
      account.traced_busy[kind] = length_of_union(intervals);
      if (kind == "comp") continue;
      auto with_compute = traced["comp"];
      const std::int64_t compute = length_of_union(with_compute);
      with_compute.insert(with_compute.end(), intervals.begin(), intervals.end());
      account.traced_exposed[kind] = length_of_union(with_compute) - compute;
    }
  }

  static std::string traced_kind(const Label& label, bool joins) {
    if (joins) return "coll";
    if (label.lane == Lane::d2h) return "d2h";
    if (label.lane == Lane::h2d) return "h2d";
    switch (label.purpose) {
      case model::Purpose::ep:
        return "ep";
      case model::Purpose::tp:
      case model::Purpose::cp:
      case model::Purpose::dp:
        return "coll";
      default:
        return "comp";
    }
  }

  void critical_path() {
    std::uint32_t node = 0;
    for (std::uint32_t i = 1; i < graph_.size(); ++i)
      if (times_.end[i] > times_.end[node]) node = i;
    // An op's stay on the path is given by reason, not launch by launch.
    struct Stay {
      std::string what;
      std::map<std::string, std::int64_t> reasons;
    };
    std::vector<Stay> stays;
    std::int64_t until = times_.end[node];
    const auto add = [&](const std::string& what, std::int64_t ns, const std::string& why) {
      if (ns <= 0) return;
      if (stays.empty() || stays.back().what != what) stays.push_back({what, {}});
      stays.back().reasons[why] += ns;
    };
    while (node != none) {
      const Label& label = graph_.labels[node];
      add(name_of(label), until - times_.start[node], why_of(label));
      until = times_.start[node];
      const std::uint32_t cause = binding(node);
      if (cause != none) {
        add(name_of(label), until - times_.end[cause], "host");
        until = std::min(until, times_.end[cause]);
      }
      node = cause;
    }
    result_.critical_path.clear();
    for (auto stay = stays.rbegin(); stay != stays.rend(); ++stay)
      for (const auto& [why, ns] : stay->reasons) result_.critical_path.push_back({stay->what, ns, why});
  }

  std::string name_of(const Label& label) const {
    const std::string rank = "rank " + std::to_string(label.rank) + " ";
    if (label.phase == 1) return rank + "gradient finalisation";
    if (label.phase == 2) return rank + "optimizer";
    if (label.instruction == none) return rank + "start";
    return rank + op_from(label);
  }

  static std::string why_of(const Label& label) {
    switch (label.kind) {
      case NodeKind::transfer:
        return "transfer";
      case NodeKind::host:
        return "host";
      case NodeKind::kernel:
        switch (label.purpose) {
          case model::Purpose::compute:
            return "compute";
          case model::Purpose::tp:
            return "tensor-parallel communication";
          case model::Purpose::cp:
            return "context-parallel communication";
          case model::Purpose::ep:
            return "expert-parallel communication";
          case model::Purpose::dp:
            return "data-parallel communication";
          case model::Purpose::offload:
            return "offload";
        }
        [[fallthrough]];
      default:
        return "wait";
    }
  }

  Result& result_;
  const Graph& graph_;
  const Times& times_;
  const model::Stages& stages_;
  const schedule::Program& program_;
  const std::int64_t gap_;
  std::map<std::tuple<int, int, bool>, int> transfers_;
  std::map<std::tuple<int, int, bool>, std::size_t> boundary_index_;
};

}  // namespace

std::uint32_t own_start(const Graph& graph, std::uint32_t transfer) {
  for (std::uint32_t e = graph.first_edge[transfer]; e < graph.first_edge[transfer + 1]; ++e) {
    const std::uint32_t from = graph.edges[e].from;
    const Label& label = graph.labels[from];
    if (label.kind == NodeKind::transfer_start && label.rank == graph.labels[transfer].rank) return from;
  }
  throw InternalError("a transfer without a start");
}

void account(Result& result, const model::Stages& stages, const schedule::Program& program, std::int64_t gap_ns) {
  Accountant(result, stages, program, gap_ns).account();
}

}  // namespace pipewright::timeline
