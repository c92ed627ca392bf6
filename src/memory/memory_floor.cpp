// The least that a rank's peak can be, without a walk:
//
//   state + what every chunk keeps for its backward, for all forwards that come before the first backward, or at a
//           later moment: those in flight are then of other chunks
//         + what the next backward makes before it has freed as much; under expert-parallel overlap what the next
//           combined call does, in which a forward grows beside the backward
//
// Kept by a piece: what its forward allocates and does not free, and its input where its backward is what frees it.
#include <algorithm>
#include <map>
#include <optional>
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

/// Bytes beside those that were kept, while passes go through pieces: what activation offload may move is there from
/// where it is made, or must be back, until it may go. `moves_some`: as if of that some stayed, whichever makes it
/// less.
class Beside {
 public:
  explicit Beside(bool moves_some = false) : moves_some_(moves_some) {}

  /// The first microbatch goes back through pieces from the last on.
  void backward(const Piece& piece) {
    Pass pass(piece);
    run(pass, piece.backward, 0, true);
    // Weight gradients may come later, when more is there: what they free may be free already, what they make not yet.
    for (auto node = piece.nodes.rbegin(); node != piece.nodes.rend(); ++node) {
      run(pass, node->backward, 0, true);
      run(pass, node->weight_gradient, 0, false);
    }
  }
  /// Nodes of layers take turns, none in the first microbatch.
  void in_turns(const Piece* forward, const Piece* backward, const schedule::Config& config) {
    using Name = schedule::Node::Name;
    using Turn = schedule::Node::Pass;
    std::optional<Pass> f, b;
    if (forward != nullptr && keeps_input(*f.emplace(*forward).piece, f->moved))
      add(block_bytes(forward->tensors[Piece::input].bytes.value));
    if (backward != nullptr) b.emplace(*backward);
    schedule::in_turns(config.ep_overlap_early_attn_memory_release, config.from_0_18, [&](Turn turn, Name name) {
      auto& pass = turn == Turn::forward ? f : b;
      if (!pass) return;
      for (const auto& node : pass->piece->nodes)
        if (node.name == name)
          run(*pass,
              turn == Turn::forward    ? node.forward
              : turn == Turn::backward ? node.backward
                                       : node.weight_gradient,
              1, turn != Turn::weight_gradient);
    });
  }
  std::int64_t most() const { return most_; }

 private:
  struct Pass {
    explicit Pass(const Piece& of) : piece(&of), moved(moved_by(of)), input(keeps_input(of, moved)) {}
    const Piece* piece;
    std::set<std::uint32_t> moved;
    bool input;
    std::set<std::uint32_t> here;  ///< of what may be moved: made, or back
  };

  void add(std::int64_t bytes) {
    beside_ += bytes;
    most_ = std::max(most_, beside_);
  }
  void run(Pass& pass, const std::vector<Step>& list, int microbatch, bool grows) {
    const Piece& piece = *pass.piece;
    const auto block = [&](std::uint32_t index) { return block_bytes(piece.tensors[index].bytes.value); };
    for (const Step& step : list) {
      if (!step.runs(microbatch)) continue;
      if (step.kind == Step::Kind::reload_wait || step.kind == Step::Kind::offload_commit) {
        for (const auto& move : piece.groups[step.index].moves) {
          if (!move.releases || move.packed.value > 0) continue;
          if (step.kind == Step::Kind::offload_commit) {
            if (pass.here.erase(move.tensor) > 0) add(-block(move.tensor));
          } else if (!moves_some_ && grows && counts(piece.tensors[move.back]) && pass.here.insert(move.back).second) {
            add(block(move.back));
          }
        }
        continue;
      }
      const bool frees = step.kind == Step::Kind::free;
      if (!frees && step.kind != Step::Kind::allocate) continue;
      if (pass.moved.contains(step.index)) {
        if (!counts(piece.tensors[step.index])) continue;
        if (!frees && grows && step.index >= own && may_go(piece, step.index) && pass.here.insert(step.index).second)
          add(block(step.index));
        else if (frees && (pass.here.erase(step.index) > 0 || moves_some_))
          add(-block(step.index));
        continue;
      }
      // Borders are made and freed by neighbours: only what frees them counts.
      const bool is_input = step.index == Piece::input;
      if (is_input ? !(frees && pass.input) : step.index < own || !counts(piece.tensors[step.index])) continue;
      if (frees || grows) add(frees ? -block(step.index) : block(step.index));
    }
  }
  /// Of a paged stash another copy goes.
  static bool may_go(const Piece& piece, std::uint32_t tensor) {
    return std::ranges::any_of(piece.groups, [&](const auto& group) {
      return std::ranges::any_of(group.moves, [&](const auto& move) {
        return move.tensor == tensor && move.releases && move.packed.value == 0;
      });
    });
  }

  const bool moves_some_;
  std::int64_t beside_ = 0, most_ = 0;
};

bool is_end(const Piece& piece, schedule::Node::Name name) {
  return !piece.nodes.empty() && piece.nodes.front().name == name;
}

/// A call's layers in order, embedding and output layer.
struct CallPieces {
  std::vector<std::uint32_t> layers;
  std::optional<std::uint32_t> embedding, head;
};

CallPieces pieces_of(const model::Stages& stages, const model::Chunk& chunk) {
  CallPieces found;
  for (const auto piece : chunk.pieces) {
    if (is_end(stages.pieces[piece], schedule::Node::Name::embed))
      found.embedding = piece;
    else if (is_end(stages.pieces[piece], schedule::Node::Name::logits))
      found.head = piece;
    else if (!stages.pieces[piece].nodes.empty())
      found.layers.push_back(piece);
  }
  return found;
}

}  // namespace

std::int64_t kept_by(const Piece& piece) {
  const auto moved = moved_by(piece);
  std::int64_t bytes = left_by(piece.forward, piece, moved, own);
  for (const auto& node : piece.nodes) bytes += left_by(node.forward, piece, moved, own);
  if (keeps_input(piece, moved)) bytes += block_bytes(piece.tensors[Piece::input].bytes.value);
  return bytes;
}

std::int64_t added_by_backward(const Piece& piece) {
  Beside beside;
  beside.backward(piece);
  return beside.most();
}

Grown grown_in_turns(const Piece* forward, const Piece* backward, const schedule::Config& config) {
  Beside all;
  all.in_turns(forward, backward, config);
  const auto moves = [](const Piece* piece) { return piece != nullptr && !piece->groups.empty(); };
  if (!moves(forward) && !moves(backward)) return {all.most(), all.most()};
  Beside some(true);
  some.in_turns(forward, backward, config);
  return {all.most(), some.most()};
}

std::vector<schedule::Moment> moments(const schedule::Config& config, int pp_rank) {
  const int chunks = config.chunks.value_or(1), group = schedule::group_size(config);
  std::vector<int> order;  // of forwards: their chunks; backwards have them counted from the last
  for (int first = 0; first < config.microbatches; first += group)
    for (int chunk = 0; chunk < chunks; ++chunk)
      order.insert(order.end(), static_cast<std::size_t>(std::min(group, config.microbatches - first)), chunk);
  // The combined call of expert-parallel overlap runs its backward beside the next forward.
  const bool combined = config.ep_overlap && config.stages > 1;
  std::size_t ahead = static_cast<std::size_t>(schedule::warmup(config, pp_rank));
  if (!combined) ++ahead;
  ahead = std::min(ahead, order.size());
  schedule::Moment now{std::vector<int>(static_cast<std::size_t>(chunks), 0)};
  for (std::size_t k = 0; k < ahead; ++k) ++now.in_flight[static_cast<std::size_t>(order[k])];
  const auto backward = [&](std::size_t k) { return chunks - 1 - order[k]; };
  const auto call = [&](std::size_t k) {
    if (!config.ep_overlap) return;
    now.forward = ahead + k < order.size() ? order[ahead + k] : -1;
    now.backward = backward(k);
  };
  call(0);
  std::vector<schedule::Moment> moments = {now};
  if (config.stages == 1 || (chunks == 1 && !combined)) return moments;
  // The first period may still have its ends in it.
  const std::size_t most = 2 * static_cast<std::size_t>(schedule::period(config) * chunks);
  std::set<schedule::Moment> seen = {now};
  for (std::size_t k = 0; k < most && ahead + k < order.size(); ++k) {
    --now.in_flight[static_cast<std::size_t>(backward(k))];
    ++now.in_flight[static_cast<std::size_t>(order[ahead + k])];
    if (k + 1 < order.size()) call(k + 1);
    if (seen.insert(now).second) moments.push_back(now);
  }
  return moments;
}

namespace {

/// What a rank has at most beside what its forwards left, in calls of two chunks.
class CombinedCalls {
 public:
  CombinedCalls(const model::Stages& stages, const model::Rank& rank, const schedule::Config& config)
      : stages_(stages), config_(config) {
    for (const auto& chunk : rank.chunks) chunks_.push_back(pieces_of(stages, chunk));
  }
  std::int64_t most(const schedule::Moment& moment) {
    const auto [at, fresh] = calls_.emplace(std::pair(moment.forward, moment.backward), 0);
    if (fresh) at->second = call(chunk(moment.forward), chunk(moment.backward));
    return at->second;
  }

 private:
  const CallPieces& chunk(int number) const {
    static const CallPieces none;
    return number < 0 ? none : chunks_[static_cast<std::size_t>(number)];
  }
  std::int64_t kept(std::optional<std::uint32_t> piece) {
    if (!piece) return 0;
    const auto [at, fresh] = kept_.emplace(*piece, 0);
    if (fresh) at->second = kept_by(stages_.pieces[*piece]);
    return at->second;
  }
  std::int64_t call(const CallPieces& f, const CallPieces& b) {
    using Layer = std::optional<std::uint32_t>;
    const auto forward = [&](int i) {
      return static_cast<std::size_t>(i) < f.layers.size() ? Layer(f.layers[static_cast<std::size_t>(i)])
                                                           : std::nullopt;
    };
    const auto backward = [&](int i) {
      const auto n = static_cast<std::size_t>(i);
      return n < b.layers.size() ? Layer(b.layers[b.layers.size() - 1 - n]) : std::nullopt;
    };
    const auto grown = [&](int i) {
      const Layer one = forward(i), other = backward(i);
      const auto [at, fresh] = grown_.emplace(std::pair(one, other), 0);
      const auto piece = [&](Layer layer) { return layer ? &stages_.pieces[*layer] : nullptr; };
      if (fresh) at->second = grown_in_turns(piece(one), piece(other), config_).most;
      return at->second;
    };
    return grown_in_call(static_cast<int>(std::max(f.layers.size(), b.layers.size())), kept(f.embedding) - kept(b.head),
                         grown, [&](int i) { return kept(forward(i)) - kept(backward(i)); });
  }

  const model::Stages& stages_;
  const schedule::Config& config_;
  std::vector<CallPieces> chunks_;
  std::map<std::pair<int, int>, std::int64_t> calls_;
  std::map<std::uint32_t, std::int64_t> kept_;
  std::map<std::pair<std::optional<std::uint32_t>, std::optional<std::uint32_t>>, std::int64_t> grown_;
};

}  // namespace

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
    Beside beside;
    for (auto piece = chunk.pieces.rbegin(); piece != chunk.pieces.rend(); ++piece)
      beside.backward(stages.pieces[*piece]);
    added.push_back(beside.most());
  }
  CombinedCalls calls(stages, rank, config);
  std::int64_t most = 0;
  bool first = true;
  for (const auto& moment : moments(config, pp_rank)) {
    std::int64_t held = std::exchange(first, false) ? added.back() : *std::ranges::min_element(added);
    if (moment.backward >= 0) held = std::max(held, calls.most(moment));
    for (std::size_t c = 0; c < kept.size(); ++c) held += moment.in_flight[c] * kept[c];
    most = std::max(most, held);
  }
  result.peak_allocated = result.state_bytes + Bytes(most);
  return result;
}

}  // namespace pipewright::memory
