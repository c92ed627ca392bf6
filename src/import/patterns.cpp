// The model's operations of a pipeline rank as patterns: pieces forward and backward, gradient finalisation with the
// optimizer step.
#include <set>

#include "match.hpp"

namespace pipewright::traces {
namespace {

void expect(Pattern& pattern, const model::Kernel& kernel) {
  if (kernel.key.family.empty()) return;
  Expected expected{&kernel, operation_of(kernel.key.family)};
  if (kernel.stream != model::Stream::compute) {
    pattern.elsewhere.push_back(std::move(expected));
    return;
  }
  if (is_landmark(expected.operation)) pattern.landmarks.push_back(pattern.compute.size());
  pattern.compute.push_back(std::move(expected));
}

Pattern pattern_of(const model::Stages& stages, std::uint32_t piece, Pass pass) {
  const model::Piece& p = stages.pieces[piece];
  const bool forward = pass == Pass::forward, backward = pass == Pass::backward;
  Pattern pattern;
  pattern.name = p.name + (forward ? " forward" : backward ? " backward" : " weight gradient");
  pattern.pass = pass;
  pattern.piece = piece;
  for (const model::Step& step : forward ? p.forward : backward ? p.backward : p.weight_gradient) {
    // What only the first microbatch runs is no part of the pattern; it stays unmapped.
    if (step.kind == model::Step::Kind::launch && !step.first_microbatch_only) expect(pattern, p.kernels[step.index]);
  }
  return pattern;
}

}  // namespace

std::vector<Pattern> patterns_of(const model::Stages& stages, std::size_t pp_rank) {
  std::vector<Pattern> result;
  std::set<std::uint32_t> pieces;
  const model::Rank& rank = stages.ranks.at(pp_rank);
  for (const auto& chunk : rank.chunks) pieces.insert(chunk.pieces.begin(), chunk.pieces.end());
  for (const std::uint32_t piece : pieces) {
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::weight_gradient}) {
      result.push_back(pattern_of(stages, piece, pass));
    }
  }
  Pattern step;
  step.name = "optimizer step";
  step.pass = Pass::step;
  for (const auto* list : {&rank.finalize, &rank.optimizer}) {
    for (const auto& kernel : *list) expect(step, kernel);
  }
  for (const auto& chunk : rank.chunks) {
    for (const auto* list : {&chunk.gradient_sync, &chunk.parameter_gather}) {
      for (const auto& kernel : *list) expect(step, kernel);
    }
  }
  result.push_back(std::move(step));
  std::erase_if(result, [](const Pattern& p) { return p.landmarks.empty(); });
  return result;
}

}  // namespace pipewright::traces
