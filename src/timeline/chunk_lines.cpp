#include "chunk_lines.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace pipewright::timeline {

namespace {

/// First microbatches of the stretches that run the same steps of a piece.
std::vector<int> stretches(const model::Piece& piece, int microbatches) {
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
std::vector<Ran> steps_that_run(const model::Piece& piece, int microbatch) {
  std::vector<Ran> runs;
  const auto look = [&](const std::vector<model::Step>& steps) {
    for (const model::Step& step : steps)
      if (step.runs(microbatch)) runs.emplace_back(step.kind, step.index);
  };
  look(piece.forward), look(piece.backward);
  for (const auto& node : piece.nodes) look(node.forward), look(node.backward), look(node.weight_gradient);
  return runs;
}

/// Lines of kernels on their own. Buckets are of few sizes, and each is collapsed once.
class Alone {
 public:
  explicit Alone(const Collapser& collapser) : collapser_(collapser) {}
  std::vector<Line> lines(const std::vector<model::Kernel>& kernels, const Prices::List& prices) {
    std::vector<Line> result;
    result.reserve(kernels.size());
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      const auto known = std::ranges::find_if(
          known_, [&](const Known& one) { return same(*one.kernel, kernels[k]) && same(*one.price, prices[k]); });
      if (known != known_.end()) {
        result.push_back(known->line);
        continue;
      }
      result.push_back(collapser_.line(kernels, prices, k, k + 1));
      known_.push_back({&kernels[k], &prices[k], result.back()});
    }
    return result;
  }

 private:
  struct Known {
    const model::Kernel* kernel;
    const Price* price;
    Line line;
  };
  /// In all that a line is made of (Collapser::event).
  static bool same(const model::Kernel& a, const model::Kernel& b) {
    return a.key.family.empty() == b.key.family.empty() && a.stream == b.stream && a.purpose == b.purpose &&
           a.sm_share == b.sm_share && a.read_by_host == b.read_by_host;
  }
  static bool same(const Price& a, const Price& b) {
    return a.time.ns == b.time.ns && a.host_us == b.host_us && a.load == b.load;
  }

  const Collapser& collapser_;
  std::vector<Known> known_;
};

Joined joined(const Collapser& collapser, const std::vector<model::Kernel>& kernels, const Prices::List& prices) {
  Joined result;
  std::size_t from = 0;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    if (!kernels[k].joins_pipeline) continue;
    result.between.push_back(collapser.line(kernels, prices, from, k));
    result.joints.push_back(collapser.line(kernels, prices, k, k + 1));
    result.calls.push_back(static_cast<double>(nanoseconds(prices[k].host_us)));
    from = k + 1;
  }
  result.between.push_back(collapser.line(kernels, prices, from, kernels.size()));
  return result;
}

}  // namespace

ChunkLines collapse(const model::Stages& stages, const Prices& prices, const Collapser& collapser, int microbatches) {
  ChunkLines result;
  for (std::size_t i = 0; i < stages.pieces.size(); ++i) {
    const model::Piece& piece = stages.pieces[i];
    PieceLines& lines = result.pieces.emplace_back();
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
        return collapser.passages(steps, piece, prices.pieces[i], begin, second);
      };
      auto& stretch =
          lines.stretches.emplace_back(PieceLines::Stretch{begin, of(piece.forward), of(piece.backward), {}});
      for (const auto& node : piece.nodes) {
        const bool second = schedule::Node::communicates(node.name);
        stretch.nodes.push_back(
            {of(node.forward, second), of(node.backward, second), of(node.weight_gradient, second)});
      }
    }
  }
  Alone alone(collapser);
  for (std::size_t r = 0; r < stages.ranks.size(); ++r) {
    const model::Rank& rank = stages.ranks[r];
    RankLines& lines = result.ranks.emplace_back();
    for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
      lines.buckets.push_back(alone.lines(rank.chunks[c].gradient_sync, prices.gradient_sync[r][c]));
      lines.parameter_gather.push_back(alone.lines(rank.chunks[c].parameter_gather, prices.parameter_gather[r][c]));
    }
    lines.finalize = joined(collapser, rank.finalize, prices.finalize[r]);
    lines.optimizer = joined(collapser, rank.optimizer, prices.optimizer[r]);
  }
  return result;
}

}  // namespace pipewright::timeline
