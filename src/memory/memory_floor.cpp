// The least that a rank's peak can be, without a walk:
//
//   state + what every chunk keeps for its backward, for all forwards that come before the first backward, or at a
//           later moment: those in flight are then of other chunks
//         + what the next backward makes before it has freed as much
//
// Kept by a piece: what its forward allocates and does not free, and its input where its backward is what frees it.
#include <algorithm>
#include <set>
#include <utility>

#include "pipewright/memory.hpp"

namespace pipewright::memory {
namespace {

using model::Piece;
using model::Step;

bool counts(const model::Tensor& tensor) { return tensor.home == model::Tensor::Home::allocator; }

std::int64_t left_by(const std::vector<Step>& steps, const Piece& piece, const std::set<std::uint32_t>& moved,
                     std::uint32_t from) {
  std::int64_t bytes = 0;
  for (const Step& step : steps) {
    const bool frees = step.kind == Step::Kind::free;
    if (!frees && step.kind != Step::Kind::allocate) continue;
    if (step.index < from || moved.contains(step.index) || !counts(piece.tensors[step.index])) continue;
    const auto block = block_bytes(piece.tensors[step.index].bytes.value);
    bytes += frees ? -block : block;
  }
  return bytes;
}

/// What activation offload may move counts nowhere.
std::set<std::uint32_t> moved_by(const Piece& piece) {
  std::set<std::uint32_t> moved;
  for (const auto& group : piece.groups)
    for (const auto& move : group.moves) moved.insert(move.tensor), moved.insert(move.back);
  return moved;
}

/// Its backward frees its input, which is then counted with what it keeps.
bool keeps_input(const Piece& piece, const std::set<std::uint32_t>& moved) {
  const auto& input = piece.tensors[Piece::input];
  if (input.bytes.value == 0 || !counts(input) || moved.contains(Piece::input)) return false;
  const auto frees = [](const std::vector<Step>& steps) {
    return std::ranges::any_of(
        steps, [](const Step& step) { return step.kind == Step::Kind::free && step.index == Piece::input; });
  };
  return frees(piece.backward) || std::ranges::any_of(piece.nodes, [&](const auto& node) {
           return frees(node.backward) || frees(node.weight_gradient);
         });
}

constexpr std::uint32_t own = Piece::input_gradient + 1;

/// Bytes beside those that were kept, while the first microbatch goes back through pieces from the last on.
class Backward {
 public:
  void run(const Piece& piece) {
    const auto moved = moved_by(piece);
    const bool input = keeps_input(piece, moved);
    const auto steps = [&](const std::vector<Step>& list, bool grows) {
      for (const Step& step : list) {
        const bool frees = step.kind == Step::Kind::free;
        if ((!frees && step.kind != Step::Kind::allocate) || !step.runs(0)) continue;
        const auto& tensor = piece.tensors[step.index];
        // Borders are made and freed by neighbours: only what frees them counts.
        const bool is_input = step.index == Piece::input;
        if (is_input ? !(frees && input) : step.index < own || moved.contains(step.index) || !counts(tensor)) continue;
        if (!frees && !grows) continue;
        beside_ += frees ? -block_bytes(tensor.bytes.value) : block_bytes(tensor.bytes.value);
        most_ = std::max(most_, beside_);
      }
    };
    steps(piece.backward, true);
    // Weight gradients may come later, when more is there: what they free may be free already, what they make not yet.
    for (auto node = piece.nodes.rbegin(); node != piece.nodes.rend(); ++node) {
      steps(node->backward, true);
      steps(node->weight_gradient, false);
    }
  }
  std::int64_t most() const { return most_; }

 private:
  std::int64_t beside_ = 0, most_ = 0;
};

}  // namespace

std::int64_t kept_by(const Piece& piece) {
  const auto moved = moved_by(piece);
  std::int64_t bytes = left_by(piece.forward, piece, moved, own);
  for (const auto& node : piece.nodes) bytes += left_by(node.forward, piece, moved, own);
  if (keeps_input(piece, moved)) bytes += block_bytes(piece.tensors[Piece::input].bytes.value);
  return bytes;
}

std::int64_t added_by_backward(const Piece& piece) {
  Backward backward;
  backward.run(piece);
  return backward.most();
}

std::vector<std::vector<int>> in_flight(const schedule::Config& config, int pp_rank) {
  const int chunks = config.chunks.value_or(1), group = schedule::group_size(config);
  std::vector<int> order;  // of forwards: their chunks; backwards have them counted from the last
  for (int first = 0; first < config.microbatches; first += group)
    for (int chunk = 0; chunk < chunks; ++chunk)
      order.insert(order.end(), static_cast<std::size_t>(std::min(group, config.microbatches - first)), chunk);
  std::size_t ahead = static_cast<std::size_t>(schedule::warmup(config, pp_rank));
  // The combined call of expert-parallel overlap runs its backward beside the next forward.
  if (!config.ep_overlap || config.stages == 1) ++ahead;
  ahead = std::min(ahead, order.size());
  std::vector<int> count(static_cast<std::size_t>(chunks), 0);
  for (std::size_t k = 0; k < ahead; ++k) ++count[static_cast<std::size_t>(order[k])];
  std::vector<std::vector<int>> moments = {count};
  if (chunks == 1 || config.stages == 1) return moments;
  // The first period may still have its ends in it.
  const std::size_t most = 2 * static_cast<std::size_t>(schedule::period(config) * chunks);
  std::set<std::vector<int>> seen = {count};
  for (std::size_t k = 0; k < most && ahead + k < order.size(); ++k) {
    --count[static_cast<std::size_t>(chunks - 1 - order[k])];
    ++count[static_cast<std::size_t>(order[ahead + k])];
    if (seen.insert(count).second) moments.push_back(count);
  }
  return moments;
}

Scout floor(const model::Stages& stages, const schedule::Config& config, int pp_rank) {
  const auto& rank = stages.ranks.at(static_cast<std::size_t>(pp_rank));
  Scout result;
  result.static_bytes = Bytes(left_by(rank.construction.forward, rank.construction, {}, 0));
  result.state_bytes = result.static_bytes;
  for (const auto* tensors : {&rank.since_first_step, &rank.optimizer_state})
    for (const auto& tensor : *tensors) result.state_bytes += Bytes(block_bytes(tensor.bytes.value));
  std::vector<std::int64_t> kept, added;  // by chunk
  for (const auto& chunk : rank.chunks) {
    std::int64_t bytes = 0;
    for (const auto piece : chunk.pieces) bytes += kept_by(stages.pieces[piece]);
    kept.push_back(bytes);
    Backward backward;
    for (auto piece = chunk.pieces.rbegin(); piece != chunk.pieces.rend(); ++piece) backward.run(stages.pieces[*piece]);
    added.push_back(backward.most());
  }
  std::int64_t most = 0;
  bool first = true;
  for (const auto& count : in_flight(config, pp_rank)) {
    std::int64_t held = std::exchange(first, false) ? added.back() : *std::ranges::min_element(added);
    for (std::size_t c = 0; c < kept.size(); ++c) held += count[c] * kept[c];
    most = std::max(most, held);
  }
  result.peak_allocated = result.state_bytes + Bytes(most);
  return result;
}

}  // namespace pipewright::memory
