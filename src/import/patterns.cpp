// The model's operations of a pipeline rank as patterns: pieces forward and backward, gradient finalisation with the
// optimizer step.
#include <set>
#include <utility>

#include "match.hpp"

namespace pipewright::traces {
namespace {

void expect(Pattern& pattern, const model::Kernel& kernel, bool after_wait = false) {
  if (kernel.key.family.empty() || kernel.host_family == "cuda_graph") return;  // a replay's launch runs no own kernel
  Expected expected{&kernel, operation_of(kernel.key.family), after_wait};
  // An eager operator with another's time: what kernel it is, is not told; a bias gradient has a norm's, one pass over
  // its rows.
  const bool eager = kernel.host_family == "small" || kernel.host_family == "rotation";
  if (eager && expected.operation == "l2norm")
    expected.operation = "bias.gradient";
  else if (eager && is_stand_in(expected.operation))
    expected.operation = eager_operation;
  if (kernel.stream != model::Stream::compute) {
    pattern.elsewhere.push_back(std::move(expected));
    return;
  }
  const auto& operation = expected.operation;
  if (pattern.beside ? is_beside_landmark(operation) : is_landmark(operation)) {
    pattern.landmarks.push_back(pattern.compute.size());
  }
  pattern.compute.push_back(std::move(expected));
}

const char* const pass_names[] = {"forward", "backward", "weight gradient"};

Pattern pattern_of(const model::Piece& p, std::uint32_t piece, const std::string& name, Pass pass,
                   const std::vector<model::Step>& steps, bool beside = false) {
  Pattern pattern;
  pattern.name = name + " " + pass_names[static_cast<std::size_t>(pass)];
  pattern.pass = pass;
  pattern.piece = piece;
  pattern.beside = beside;
  bool waited = false;
  for (const model::Step& step : steps) {
    waited |= step.kind == model::Step::Kind::synchronize;
    // What only the first microbatch runs is no part of the pattern; it stays unmapped.
    if (step.kind != model::Step::Kind::launch || step.before_microbatch == 1) continue;
    expect(pattern, p.kernels[step.index], std::exchange(waited, false));
  }
  return pattern;
}

void add_patterns(std::vector<Pattern>& result, const model::Stages& stages, std::uint32_t piece) {
  const model::Piece& p = stages.pieces[piece];
  const auto add = [&](const std::string& name, const auto& steps, bool beside) {
    result.push_back(pattern_of(p, piece, name, Pass::forward, steps.forward, beside));
    result.push_back(pattern_of(p, piece, name, Pass::backward, steps.backward, beside));
    result.push_back(pattern_of(p, piece, name, Pass::weight_gradient, steps.weight_gradient, beside));
  };
  if (p.nodes.empty()) return add(p.name, p, false);
  for (const auto& node : p.nodes) {
    const bool beside = schedule::Node::communicates(node.name);
    const auto number = std::to_string(static_cast<int>(node.name));
    add(p.name + " node " + number, node, beside);
    for (std::size_t i = result.size() - 3; i < result.size(); ++i) {
      result[i].node = true;
      result[i].part = static_cast<int>(node.name);
      result[i].enters = &node == &p.nodes.front();
    }
  }
}

}  // namespace

std::vector<Pattern> patterns_of(const model::Stages& stages, std::size_t pp_rank) {
  std::vector<Pattern> result;
  std::set<std::uint32_t> pieces;
  const model::Rank& rank = stages.ranks.at(pp_rank);
  for (const auto& chunk : rank.chunks) pieces.insert(chunk.pieces.begin(), chunk.pieces.end());
  for (const std::uint32_t piece : pieces) add_patterns(result, stages, piece);
  Pattern step;
  step.name = "optimizer step";
  step.pass = Pass::step;
  for (const auto* list : {&rank.finalize, &rank.optimizer}) {
    for (const auto& kernel : *list)
      if (kernel.name != "gradients zeroed") expect(step, kernel);  // runs as the next step begins
  }
  // Buckets' kernels run within the last backward passes where they overlap, else with the step; their exchanges have a
  // stream of their own.
  Pattern alone = step;
  for (const auto& chunk : rank.chunks) {
    for (const auto* list : {&chunk.gradient_sync, &chunk.parameter_gather}) {
      for (const auto& kernel : *list) {
        expect(step, kernel);
        if (kernel.stream != model::Stream::compute) expect(alone, kernel);
      }
    }
  }
  if (alone.landmarks.size() < step.landmarks.size()) result.push_back(std::move(alone));
  result.push_back(std::move(step));
  std::erase_if(result, [](const Pattern& p) { return p.landmarks.empty(); });
  return result;
}

Order order_of(const model::Stages& stages, std::size_t pp_rank) {
  Order result;
  for (const auto& chunk : stages.ranks.at(pp_rank).chunks) result.push_back(chunk.pieces);
  return result;
}

}  // namespace pipewright::traces
