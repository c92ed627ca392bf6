// The least that a rank's peak can be, without a walk:
//
//   state + what every chunk keeps for its backward, for all forwards that come before the first backward
//
// Kept by a piece: what its forward allocates and does not free, and its input where its backward is what frees it.
#include <algorithm>
#include <set>

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

std::int64_t kept_by(const Piece& piece) {
  constexpr std::uint32_t own = Piece::input_gradient + 1;
  std::set<std::uint32_t> moved;
  for (const auto& group : piece.groups)
    for (const auto& move : group.moves) moved.insert(move.tensor);
  std::int64_t bytes = left_by(piece.forward, piece, moved, own);
  bool frees_input = false;
  const auto look = [&](const std::vector<Step>& backward) {
    for (const Step& step : backward)
      frees_input = frees_input || (step.kind == Step::Kind::free && step.index == Piece::input);
  };
  look(piece.backward);
  for (const auto& node : piece.nodes) {
    bytes += left_by(node.forward, piece, moved, own);
    look(node.backward);
    look(node.weight_gradient);
  }
  const auto& input = piece.tensors[Piece::input];
  if (frees_input && input.bytes.value > 0 && counts(input) && !moved.contains(Piece::input))
    bytes += block_bytes(input.bytes.value);
  return bytes;
}

/// Forwards of each chunk before the first backward (schedules.py:962-989, get_schedule_table).
std::vector<int> in_flight(const schedule::Config& config, int pp_rank) {
  const int chunks = config.chunks.value_or(1), group = schedule::group_size(config);
  int left = schedule::warmup(config, pp_rank);
  // The combined call of expert-parallel overlap runs its backward beside the next forward.
  if (!config.ep_overlap || config.stages == 1) ++left;
  std::vector<int> count(static_cast<std::size_t>(chunks), 0);
  for (int first = 0; first < config.microbatches && left > 0; first += group)
    for (int& of_chunk : count) {
      const int now = std::min({group, config.microbatches - first, left});
      of_chunk += now;
      left -= now;
    }
  return count;
}

}  // namespace

Scout floor(const model::Stages& stages, const schedule::Config& config, int pp_rank) {
  const auto& rank = stages.ranks.at(static_cast<std::size_t>(pp_rank));
  Scout result;
  result.static_bytes = Bytes(left_by(rank.construction.forward, rank.construction, {}, 0));
  result.state_bytes = result.static_bytes;
  for (const auto* tensors : {&rank.since_first_step, &rank.optimizer_state})
    for (const auto& tensor : *tensors) result.state_bytes += Bytes(block_bytes(tensor.bytes.value));
  result.peak_allocated = result.state_bytes;
  const auto flights = in_flight(config, pp_rank);
  for (std::size_t c = 0; c < rank.chunks.size(); ++c)
    for (const auto piece : rank.chunks[c].pieces)
      result.peak_allocated += Bytes(flights[c] * kept_by(stages.pieces[piece]));
  return result;
}

}  // namespace pipewright::memory
