// `explain`: who owns the bytes of a peak; what an op did and what its compute stream waited for.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "format.hpp"
#include "nodes.hpp"
#include "pipewright/report.hpp"
#include "pressure_text.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

using schedule::Kind;
using timeline::NodeKind;

const predict::RankPrediction& rank_of(const predict::Prediction& p, int rank) {
  if (rank < 0 || rank >= static_cast<int>(p.ranks.size())) {
    throw UsageError({"--rank", 0}, {}, fmt::format("pipeline ranks are 0 to {}, not {}", p.ranks.size() - 1, rank));
  }
  return p.ranks[static_cast<std::size_t>(rank)];
}

/// A stretch in which the compute stream stood still before a node of the op.
struct Wait {
  std::int64_t ns = 0;
  std::string before, cause;
};
struct Launched {
  std::string name;
  std::int64_t start = 0, ns = 0;
  bool recompute = false;
};
struct Op {
  std::string name;
  std::int64_t start = 0, end = 0, busy = 0;
  std::vector<Wait> waits;
  std::vector<Launched> kernels;
};

/// "F 3.1": a forward or backward of one microbatch through one chunk.
struct Wanted {
  bool forward = true;
  int microbatch = -1, chunk = 0;

  /// One instruction, or with expert-parallel overlap all its nodes.
  bool is(const schedule::Instruction& i) const {
    if (i.microbatch != microbatch || i.chunk != chunk) return false;
    if (i.kind == Kind::node) return forward == (i.node.pass == schedule::Node::Pass::forward);
    return i.kind == (forward ? Kind::forward : Kind::backward);
  }
};

Wanted find(const predict::Run& run, int rank, const std::string& op) {
  std::string text;
  for (const char c : op) {
    if (c != ' ') text += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  Wanted wanted;
  const auto* end = text.data() + text.size();
  if (text.size() > 1 && (text[0] == 'F' || text[0] == 'B')) {
    wanted.forward = text[0] == 'F';
    const auto first = std::from_chars(text.data() + 1, end, wanted.microbatch);
    if (first.ec != std::errc()) wanted.microbatch = -1;
    if (first.ptr != end) {
      const auto second = *first.ptr == '.' ? std::from_chars(first.ptr + 1, end, wanted.chunk) : first;
      if (second.ec != std::errc() || second.ptr != end) wanted.microbatch = -1;
    }
  }
  if (wanted.microbatch < 0) {
    throw UsageError({"--op", 0}, {},
                     fmt::format("\"{}\" is no op: write F or B, microbatch.chunk, like \"F 3.1\"", op));
  }
  const auto& instructions = run.program.ranks[static_cast<std::size_t>(rank)].instructions;
  if (std::any_of(instructions.begin(), instructions.end(), [&](const auto& i) { return wanted.is(i); })) return wanted;
  const auto& config = run.program.config;
  throw UsageError({"--op", 0}, {},
                   fmt::format("rank {} has no op \"{}\": microbatches 0 to {}, chunks 0 to {}", rank, op,
                               config.microbatches - 1, config.chunks.value_or(1) - 1));
}

class Explainer {
 public:
  explicit Explainer(const predict::Run& run) : run_(run), nodes_(run) {}

  Op op(int rank, const std::string& name) const {
    const Wanted wanted = find(run_, rank, name);
    const auto& instructions = run_.program.ranks[static_cast<std::size_t>(rank)].instructions;
    const auto& labels = run_.timeline.graph.labels;
    const auto& times = run_.timeline.times;
    Op out;
    std::int64_t reached = 0;  // end of the compute stream's last kernel
    for (const auto node : nodes_.of_rank(rank)) {
      const auto& label = labels[node];
      const bool computes = label.lane == timeline::Lane::compute;
      if ((!computes && label.lane != timeline::Lane::expert) || label.kind != NodeKind::kernel) continue;
      if (label.phase == 0 && label.instruction != timeline::Label::none &&
          wanted.is(instructions[label.instruction])) {
        if (out.kernels.empty()) {
          out.name = nodes_.op(label);
          out.start = times.start[node];
        }
        if (computes && times.start[node] > reached) {
          out.waits.push_back({times.start[node] - reached, nodes_.what(label), cause(node)});
        }
        const auto* kernel = nodes_.kernel(label);
        out.kernels.push_back(
            {kernel->name, times.start[node], times.end[node] - times.start[node], kernel->recompute});
        out.busy += times.end[node] - times.start[node];
        out.end = std::max(out.end, times.end[node]);
      }
      if (computes) reached = std::max(reached, times.end[node]);
    }
    return out;
  }

 private:
  /// "receive of F 3.1": a transfer named by its posting.
  std::string transfer(const timeline::Label& label) const {
    return fmt::format("{} of {}", timeline::sends(label.part().type) ? "send" : "receive", nodes_.op(label));
  }

  /// Follows what held the node up through waits to something that has a name.
  std::string cause(std::uint32_t node) const {
    const auto& labels = run_.timeline.graph.labels;
    const auto& times = run_.timeline.times;
    std::optional<std::uint32_t> at = nodes_.binding(node);
    while (at && labels[*at].kind == NodeKind::wait) at = nodes_.binding(*at);
    if (!at) return "the start of the step";
    const auto& label = labels[*at];
    if (label.kind == NodeKind::host) return "its host";
    if (label.kind == NodeKind::transfer_start && label.phase == 0) {
      // CUDA_DEVICE_MAX_CONNECTIONS=1: compute queues behind transfers that cannot start yet.
      return fmt::format("the {} posted before it in the same queue, which waited for {}", transfer(label), cause(*at));
    }
    if (label.kind != NodeKind::transfer) return fmt::format("{} ({})", nodes_.what(label), nodes_.op(label));
    const auto other = nodes_.other_side(*at);
    const std::int64_t own = nodes_.posted(*at), peer = other ? nodes_.posted(*other) : own;
    return fmt::format("{}: posted here at {} ms, by rank {} at {} ms, across at {} ms", nodes_.what(label), ms(own),
                       nodes_.peer(label), ms(peer), ms(times.end[*at]));
  }

  const predict::Run& run_;
  Nodes nodes_;
};

Op explained(const predict::Run& run, int rank, const std::string& op) {
  if (rank < 0 || rank >= run.timeline.graph.ranks) {
    throw UsageError({"--rank", 0}, {},
                     fmt::format("pipeline ranks are 0 to {}, not {}", run.timeline.graph.ranks - 1, rank));
  }
  return Explainer(run).op(rank, op);
}

}  // namespace

std::string explain_peak_text(const predict::Prediction& p, int rank) {
  const auto& r = rank_of(p, rank);
  Table table({"owner", "bytes", "GiB", "share"});
  for (const auto& [owner, bytes] : r.walk.peak_owners) {
    table.add(
        {owner, fmt::format("{}", bytes.value), gibibytes(bytes), share(bytes.value, r.walk.peak_allocated.value)});
  }
  table.add({"in all", fmt::format("{}", r.walk.peak_allocated.value), gibibytes(r.walk.peak_allocated), ""});
  return fmt::format("rank {}: {} allocated at its peak, in {}; {} reserved, {} outside the allocator\n{}", rank,
                     format_bytes(r.walk.peak_allocated), r.walk.peak_at, format_bytes(r.walk.peak_reserved),
                     format_bytes(r.outside_allocator), table.text()) +
         fragmentation_text(r);
}

std::string explain_peak_json(const predict::Prediction& p, int rank, const Stamp* stamp) {
  const auto& r = rank_of(p, rank);
  Json owners = Json::array();
  for (const auto& [owner, bytes] : r.walk.peak_owners) owners.push_back({{"owner", owner}, {"bytes", bytes.value}});
  Json json = {{"pp_rank", r.pp_rank},
               {"peak_at", r.walk.peak_at},
               {"static_bytes", r.walk.static_bytes.value},
               {"peak_allocated_bytes", r.walk.peak_allocated.value},
               {"peak_reserved_bytes", r.walk.peak_reserved.value},
               {"outside_allocator_bytes", r.outside_allocator.value},
               {"peak_owners", owners}};
  if (r.pressure) json["pressure"] = pressure_json(p, r);
  return dumped(json, stamp);
}

std::string explain_op_text(const predict::Run& run, int rank, const std::string& name) {
  const Op op = explained(run, rank, name);
  std::string out =
      fmt::format("rank {} {}: from {} to {} ms, {} ms busy\n", rank, op.name, ms(op.start), ms(op.end), ms(op.busy));
  out += op.waits.empty() ? "its compute stream waited for nothing\n" : "its compute stream waited\n";
  for (const auto& wait : op.waits) {
    out += wrapped(fmt::format("- {} ms before {}, for {}", ms(wait.ns), wait.before, wait.cause)) + "\n";
  }
  Table table({"kernel", "start ms", "us", ""});
  for (const auto& kernel : op.kernels) {
    table.add({kernel.name, fmt::format("{:.3f}", ns_to_ms(kernel.start)), fmt::format("{:.1f}", ns_to_us(kernel.ns)),
               kernel.recompute ? "recompute" : ""});
  }
  return out + "\n" + table.text();
}

std::string explain_op_json(const predict::Run& run, int rank, const std::string& name, const Stamp* stamp) {
  const Op op = explained(run, rank, name);
  Json waits = Json::array(), kernels = Json::array();
  for (const auto& wait : op.waits) {
    waits.push_back({{"before", wait.before}, {"ms", ns_to_ms(wait.ns)}, {"for", wait.cause}});
  }
  for (const auto& kernel : op.kernels) {
    kernels.push_back({{"name", kernel.name},
                       {"start_ms", ns_to_ms(kernel.start)},
                       {"ms", ns_to_ms(kernel.ns)},
                       {"recompute", kernel.recompute}});
  }
  return dumped({{"pp_rank", rank},
                 {"op", op.name},
                 {"start_ms", ns_to_ms(op.start)},
                 {"end_ms", ns_to_ms(op.end)},
                 {"busy_ms", ns_to_ms(op.busy)},
                 {"waited", waits},
                 {"kernels", kernels}},
                stamp);
}

}  // namespace pipewright::report
