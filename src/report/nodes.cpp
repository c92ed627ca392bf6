// Nodes of the timeline in words.
#include "nodes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "format.hpp"

namespace pipewright::report {
namespace {

using schedule::Kind;
using schedule::Part;
using timeline::Label;
using timeline::NodeKind;

/// Rank, direction, microbatch and chunk of a transfer's end in one sortable number.
std::uint64_t packed(std::uint32_t rank, const Part& part, bool shapes) {
  return (static_cast<std::uint64_t>(shapes) << 63U) | (static_cast<std::uint64_t>(rank) << 48U) |
         (static_cast<std::uint64_t>(part.type) << 44U) | (static_cast<std::uint64_t>(part.microbatch) << 16U) |
         static_cast<std::uint64_t>(part.chunk);
}

}  // namespace

const char* lane_name(timeline::Lane lane) {
  using timeline::Lane;
  switch (lane) {
    case Lane::host:
      return "host";
    case Lane::compute:
      return "compute";
    case Lane::communication:
      return "communication";
    case Lane::gradient:
      return "gradient reduction";
    case Lane::parameter:
      return "parameter gather";
    case Lane::d2h:
      return "copies to host";
    case Lane::h2d:
      return "copies from host";
    case Lane::p2p:
      return "pipeline transfers";
    case Lane::p2p_second:
      return "pipeline transfers, second";
    case Lane::p2p_group:
      return "pipeline transfers, shapes";
    case Lane::expert:
      return "expert-parallel communication";
  }
  throw InternalError("lane without a name");
}

Nodes::Nodes(const predict::Run& run) : run_(run), by_rank_(static_cast<std::size_t>(run.timeline.graph.ranks)) {
  const auto& labels = run.timeline.graph.labels;
  for (std::uint32_t node = 0; node < labels.size(); ++node) {
    by_rank_[labels[node].rank].push_back(node);
    if (labels[node].kind == NodeKind::transfer)
      transfers_.emplace_back(packed(labels[node].rank, labels[node].part(), labels[node].shapes), node);
  }
  std::sort(transfers_.begin(), transfers_.end());
  const auto& start = run.timeline.times.start;
  for (auto& nodes : by_rank_) {
    std::stable_sort(nodes.begin(), nodes.end(), [&](auto a, auto b) { return start[a] < start[b]; });
  }
}

const model::Kernel* Nodes::kernel(const Label& label) const { return timeline::kernel_of(run_.stages, label); }

std::string Nodes::op(const Label& label) const {
  if (label.kind == NodeKind::transfer || label.kind == NodeKind::transfer_start) {
    if (label.phase != 0) return "optimizer";
    return op_name(timeline::goes_forward(label.part().type) ? "F" : "B", label.part().microbatch, label.part().chunk);
  }
  if (label.phase == 1) return "gradient finalisation";
  if (label.phase == 2) return "optimizer";
  if (label.instruction == Label::none) return "";
  const auto& i = run_.program.ranks[label.rank].instructions[label.instruction];
  switch (i.kind) {
    case Kind::forward:
      return op_name("F", i.microbatch, i.chunk);
    case Kind::backward:
      return op_name("B", i.microbatch, i.chunk);
    case Kind::combined:
      return op_name("F", i.microbatch, i.chunk) + " | " + op_name("B", i.backward_microbatch, i.backward_chunk);
    case Kind::node:
      return op_name(i.node.pass == schedule::Node::Pass::forward ? "F" : "B", i.microbatch, i.chunk);
    default:
      return "";
  }
}

bool Nodes::backward(const Label& label) const {
  if (label.instruction == Label::none) return false;
  const auto& i = run_.program.ranks[label.rank].instructions[label.instruction];
  return i.kind == Kind::backward || (i.kind == Kind::node && i.node.pass != schedule::Node::Pass::forward);
}

std::string Nodes::what(const Label& label) const {
  if (const auto* k = kernel(label)) return k->name;
  if (label.kind == NodeKind::transfer) {
    const bool send = timeline::sends(label.part().type);
    return fmt::format("{} {}{} {} rank {}", send ? "send" : "receive", label.shapes ? "shape of " : "", op(label),
                       send ? "to" : "from", peer(label));
  }
  if (label.kind == NodeKind::transfer_start)
    return label.phase == 2 ? "collective over the pipeline" : "transfer posted";
  if (label.kind == NodeKind::host) return "host";
  return "wait";
}

int Nodes::peer(const Label& label) const {
  return timeline::other_end(run_.timeline.graph.ranks, label.rank, label.part()).rank;
}

std::int64_t Nodes::posted(std::uint32_t transfer) const {
  const auto& [graph, times] = std::tie(run_.timeline.graph, run_.timeline.times);
  for (const auto [from, lag] : graph.edges.of(transfer)) {
    if (graph.labels[from].kind == NodeKind::transfer_start && graph.labels[from].rank == graph.labels[transfer].rank) {
      return times.start[from];
    }
  }
  return times.start[transfer];
}

std::optional<std::uint32_t> Nodes::other_side(std::uint32_t transfer) const {
  const Label& label = run_.timeline.graph.labels[transfer];
  const auto end = timeline::other_end(run_.timeline.graph.ranks, label.rank, label.part());
  const auto key = packed(static_cast<std::uint32_t>(end.rank), end.part, label.shapes);
  const auto found = std::lower_bound(transfers_.begin(), transfers_.end(), std::pair(key, std::uint32_t{0}));
  if (found == transfers_.end() || found->first != key) return std::nullopt;
  return found->second;
}

std::optional<std::uint32_t> Nodes::binding(std::uint32_t node) const {
  const auto& graph = run_.timeline.graph;
  const auto& end = run_.timeline.times.end;
  std::optional<std::uint32_t> latest;
  std::int64_t at = 0;
  for (const timeline::Edge edge : graph.edges.of(node)) {
    if (!latest || end[edge.from] + edge.lag_ns > at) {
      latest = edge.from;
      at = end[edge.from] + edge.lag_ns;
    }
  }
  return latest;
}

std::vector<Block> Nodes::blocks(int rank) const {
  const auto& [graph, times] = std::tie(run_.timeline.graph, run_.timeline.times);
  std::vector<Block> out;
  for (const auto node : of_rank(rank)) {
    const Label& label = graph.labels[node];
    if (label.lane != timeline::Lane::compute || label.kind != NodeKind::kernel) continue;
    // A launch gap inside an op is no interruption; waiting for another rank is.
    constexpr std::int64_t gap_ns = 20'000;
    if (!out.empty() && out.back().instruction == label.instruction && out.back().phase == label.phase &&
        times.start[node] - out.back().end <= gap_ns) {
      out.back().end = std::max(out.back().end, times.end[node]);
    } else {
      out.push_back({label.instruction, label.phase, times.start[node], times.end[node]});
    }
  }
  return out;
}

}  // namespace pipewright::report
