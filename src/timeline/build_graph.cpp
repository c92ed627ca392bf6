// From a program and its stages to the graph: the hosts of all ranks are followed in turn, each as far as it comes
// without the others.
#include <deque>

#include "host_clock.hpp"

namespace pipewright::timeline {
namespace {

std::string describe(const Label& label, const schedule::Program& program) {
  const std::string rank = "rank " + std::to_string(label.rank) + " ";
  if (label.instruction == Label::none) return rank + "end of the step";
  schedule::RankProgram one;
  one.instructions.push_back(program.ranks[label.rank].instructions[label.instruction]);
  const auto words = schedule::text(one, true, true);
  return rank + (words.empty() ? "?" : words.front());
}

[[noreturn]] void report_deadlock(Weaver& weaver, const schedule::Program& program) {
  std::string cycle, last;
  for (const Label& label : weaver.cycle()) {
    const std::string word = describe(label, program);
    if (word != last) cycle += (cycle.empty() ? "" : " waits for ") + word;
    last = word;
  }
  throw UsageError("the schedule deadlocks: " + cycle + ", which waits for the first");
}

std::size_t most_nodes(const std::vector<HostPiece>& pieces, const model::Chunk& chunk, schedule::Kind kind) {
  std::size_t nodes = 0;
  for (const auto piece : chunk.pieces) {
    const HostPiece& lines = pieces[piece];
    if (kind == schedule::Kind::forward)
      nodes += count(lines.forward);
    else
      nodes += count(lines.backward);
  }
  return nodes;
}

/// About how many nodes there will be, so that arrays need not grow.
std::size_t expected_nodes(const Shared& shared) {
  std::size_t nodes = 0;
  for (std::size_t r = 0; r < shared.program.ranks.size(); ++r)
    for (const auto& i : shared.program.ranks[r].instructions) {
      nodes += 2 + 2 * i.parts.size();
      if (i.kind == schedule::Kind::forward || i.kind == schedule::Kind::backward)
        nodes += most_nodes(shared.pieces, shared.stages.ranks[r].chunks[static_cast<std::size_t>(i.chunk)], i.kind);
    }
  return nodes;
}

// Round after round; when everybody waits for somebody, all go on by one instruction: what they issue next may be what
// the others wait for.
void follow_all(std::deque<Host>& hosts) {
  for (bool all_finished = false, forced = false; !all_finished;) {
    bool moved = false;
    all_finished = true;
    for (Host& host : hosts) {
      if (forced && !host.finished()) host.next();
      while (!host.finished() && !host.blocked()) {
        host.next();
        moved = true;
      }
      all_finished = all_finished && host.finished();
    }
    forced = !moved;
  }
}

}  // namespace

Graph build(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
            const profile::Profiles& profiles, const Prices& prices) {
  const double factor = replayed_host_factor(scenario, profiles);
  const auto us = [&](const char* name) { return nanoseconds(factor * profiles.scalar(name).value); };
  // Not every profile has seen expert-parallel overlap.
  const auto optional_us = [&](const char* name) {
    return nanoseconds(factor * profiles.find_scalar(name).value_or(0));
  };
  const std::int64_t gap = nanoseconds(profiles.scalar("host.kernel_gap_us").value);  // the GPU's
  Graph graph;
  graph.ranks = static_cast<int>(program.ranks.size());
  Weaver weaver(graph);
  Exchange exchange(scenario, stages, program.config, profiles, weaver);
  Joins joins(stages);
  const auto pieces = lines_of_pieces(stages, prices, gap);
  const Shared shared{scenario,
                      stages,
                      program,
                      weaver,
                      exchange,
                      joins,
                      pieces,
                      prices,
                      gap,
                      us("host.launch_and_synchronize_us"),
                      us("host.forward_begin_us"),
                      us("host.forward_end_us"),
                      us("host.backward_begin_us"),
                      us("host.backward_end_us"),
                      optional_us("host.forward_node_us"),
                      optional_us("host.backward_node_us")};
  const std::size_t nodes = expected_nodes(shared);
  weaver.reserve(nodes, 4 * nodes);  // what is not written takes no memory
  std::deque<Host> hosts;
  for (int rank = 0; rank < graph.ranks; ++rank) hosts.emplace_back(shared, rank);
  follow_all(hosts);
  if (!weaver.all_numbered()) report_deadlock(weaver, program);
  return graph;
}

}  // namespace pipewright::timeline
