#include "critical_path.hpp"

#include <algorithm>
#include <array>

#include "account.hpp"

namespace pipewright::timeline {
namespace {

using model::Purpose;
using schedule::Kind;

bool is_compute_op(const schedule::Instruction& i) {
  return i.kind == Kind::forward || i.kind == Kind::backward || i.kind == Kind::combined_begin || i.kind == Kind::node;
}

// Where the path stays: the end of a step, or one op of a rank.
struct Stay {
  int rank;
  std::uint8_t phase;
  bool start;
  std::uint32_t op;
  std::array<std::int64_t, whys> reasons{};
  bool same_place(const Stay& other) const {
    return rank == other.rank && phase == other.phase && start == other.start && op == other.op;
  }
};

Why why_of(const Label& label) {
  if (label.kind == NodeKind::transfer) return Why::transfer;
  if (label.kind == NodeKind::host) return Why::host;
  if (label.kind != NodeKind::kernel) return Why::wait;
  switch (label.purpose) {
    case Purpose::tp:
      return Why::tp;
    case Purpose::cp:
      return Why::cp;
    case Purpose::ep:
      return Why::ep;
    case Purpose::dp:
      return Why::dp;
    case Purpose::offload:
      return Why::offload;
    default:
      return Why::compute;
  }
}

}  // namespace

std::uint32_t OpNames::from(const Label& label) const {
  const auto& instructions = program_.ranks[label.rank].instructions;
  for (std::uint32_t i = label.instruction; i < instructions.size(); ++i)
    if (is_compute_op(instructions[i])) return i;
  return Label::none;
}

std::string OpNames::name(int rank, std::uint32_t instruction) const {
  if (instruction == Label::none) return "end of the schedule";
  const auto& i = program_.ranks[rank].instructions[instruction];
  const auto letter_of = [](const char* letter, int microbatch, int chunk) {
    return letter + std::to_string(microbatch) + "." + std::to_string(chunk);
  };
  if (i.kind == Kind::combined_begin) {
    const bool forward = i.microbatch != schedule::no_microbatch;
    const bool both = forward && i.backward_microbatch != schedule::no_microbatch;
    return (forward ? letter_of("F ", i.microbatch, i.chunk) : "") + (both ? " | " : "") +
           (!forward || both ? letter_of("B ", i.backward_microbatch, i.backward_chunk) : "");
  }
  const bool forward =
      i.kind == Kind::forward || (i.kind == Kind::node && i.node.pass == schedule::Node::Pass::forward);
  return letter_of(forward ? "F " : "B ", i.microbatch, i.chunk);
}

std::vector<CriticalStep> critical_path(const Graph& graph, const Times& times, const OpNames& ops) {
  std::vector<Stay> stays;
  const auto add = [&](const Label& label, std::int64_t ns, Why why) {
    if (ns <= 0) return;
    const bool start = label.phase == 0 && label.instruction == Label::none;
    const Stay stay{label.rank, label.phase, start, label.phase == 0 && !start ? ops.from(label) : Label::none, {}};
    if (stays.empty() || !stays.back().same_place(stay)) stays.push_back(stay);
    stays.back().reasons[static_cast<std::size_t>(why)] += ns;
  };
  std::uint32_t node = last_node(times);
  std::int64_t until = times.end[node];
  while (node != Label::none) {
    const Label& label = graph.labels[node];
    add(label, until - times.start[node], why_of(label));
    until = times.start[node];
    const std::uint32_t cause = binding(graph, times, node);
    if (cause != Label::none) {
      add(label, until - times.end[cause], Why::host);
      until = std::min(until, times.end[cause]);
    }
    node = cause;
  }
  const auto name_of = [&](const Stay& stay) {
    const std::string rank = "rank " + std::to_string(stay.rank) + " ";
    if (stay.phase == 1) return rank + "gradient finalisation";
    if (stay.phase == 2) return rank + "optimizer";
    return rank + (stay.start ? "start" : ops.name(stay.rank, stay.op));
  };
  std::vector<CriticalStep> path;
  for (auto stay = stays.rbegin(); stay != stays.rend(); ++stay)
    for (std::size_t why = 0; why < whys; ++why)
      if (stay->reasons[why] > 0) path.push_back({name_of(*stay), stay->reasons[why], static_cast<Why>(why)});
  return path;
}

const char* name(Why why) {
  constexpr std::array<const char*, whys> names = {"compute",
                                                   "tensor-parallel communication",
                                                   "context-parallel communication",
                                                   "expert-parallel communication",
                                                   "data-parallel communication",
                                                   "offload",
                                                   "transfer",
                                                   "host",
                                                   "wait"};
  return names[static_cast<std::size_t>(why)];
}

}  // namespace pipewright::timeline
