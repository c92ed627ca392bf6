// Walks a rank's program in host order and asks the kind of offload in force what happens at every hook.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>

#include "fine_grained.hpp"
#include "paged_stash.hpp"
#include "pipewright/follow.hpp"
#include "whole_layer.hpp"

namespace pipewright::offload {

using model::Step;

Recorder::Recorder(const model::Stages& stages, const model::Rank& rank) : stages_(stages), rank_(rank) {
  std::vector<std::string> names;
  for (const auto& piece : stages.pieces) {
    auto& groups = known_.emplace_back();
    for (const auto& group : piece.groups) {
      auto name = std::ranges::find(names, group.name);
      if (name == names.end()) name = names.insert(name, group.name);
      Known& known = groups.emplace_back();
      known.name = static_cast<int>(name - names.begin());
      for (const auto& move : group.moves) known.bytes += piece.tensors[move.tensor].bytes;
    }
  }
  for (const auto& chunk : rank.chunks) {
    auto& first = first_.emplace_back();
    for (const auto piece : chunk.pieces) {
      first.push_back(groups_);
      groups_ += stages.pieces[piece].groups.size();
    }
  }
}

std::uint32_t Recorder::unit(model::Call call, std::size_t position, std::uint32_t group) {
  const auto chunk = static_cast<std::size_t>(call.chunk);
  const auto at = static_cast<std::size_t>(call.microbatch) * groups_ + first_[chunk][position] + group;
  if (at >= numbers_.size()) numbers_.resize((static_cast<std::size_t>(call.microbatch) + 1) * groups_, fresh);
  if (numbers_[at] == fresh) {
    numbers_[at] = static_cast<std::uint32_t>(units_.size());
    const auto piece = rank_.chunks[chunk].pieces[position];
    units_.push_back(
        {call.microbatch, call.chunk, static_cast<std::uint32_t>(position), piece, group, known_[piece][group].bytes});
  }
  return numbers_[at];
}

namespace {

/// The hooks of a piece: all that offload reads of its steps.
struct PieceHooks {
  using List = std::vector<Step>;
  template <class Counts>
  PieceHooks(const model::Piece& piece, const Counts& counts) {
    const auto of = [&](const std::vector<Step>& steps) {
      List hooks;
      std::ranges::copy_if(steps, std::back_inserter(hooks),
                           [&](const Step& step) { return is_hook(step.kind) && counts(step.kind); });
      return hooks;
    };
    forward = of(piece.forward);
    backward = of(piece.backward);
    for (const auto& node : piece.nodes)
      nodes.push_back({of(node.forward), of(node.backward), of(node.weight_gradient)});
  }
  List forward, backward;
  std::vector<std::array<List, 3>> nodes;  ///< by pass
};

/// A step's hooks in the order in which the host comes to them.
class Hooks : public model::Visitor {
 public:
  Hooks(const model::Stages& stages, const std::vector<PieceHooks>& pieces, const schedule::Program& program, int rank,
        Recorder& recorder, Manager& manager)
      : stages_(stages),
        pieces_(pieces),
        rank_(stages.ranks.at(static_cast<std::size_t>(rank))),
        recorder_(recorder),
        manager_(manager) {
    model::Follower<Hooks> follower(stages, program, rank, *this);
    for (const auto& instruction : program.ranks.at(static_cast<std::size_t>(rank)).instructions)
      follower.follow(instruction);
    manager_.end_iteration();
  }

  bool begin_forward(model::Call call) {
    manager_.begin_forward(call.microbatch, call.chunk);
    return true;
  }
  void forward(model::Call call, std::size_t position) {
    hooks(pieces_[index(call, position)].forward, call, position);
  }
  void backward(model::Call call, std::size_t position) {
    hooks(pieces_[index(call, position)].backward, call, position);
  }
  void node(const schedule::Instruction& i, const model::NodePlace& at) {
    const model::Call call{i.microbatch, i.chunk};
    const auto piece = index(call, at.position);
    const auto node = static_cast<std::size_t>(at.steps - stages_.pieces[piece].nodes.data());
    hooks(pieces_[piece].nodes[node][static_cast<std::size_t>(i.node.pass)], call, at.position);
  }
  void callbacks(model::Call call) {
    manager_.end_backward(call.microbatch, call.chunk);
    recorder_.end_hook();
  }

 private:
  std::uint32_t index(model::Call call, std::size_t position) const {
    return rank_.chunks[static_cast<std::size_t>(call.chunk)].pieces[position];
  }
  void hooks(const PieceHooks::List& list, model::Call call, std::size_t position) {
    for (const Step& step : list) {
      manager_.hook(step.kind, recorder_.unit(call, position, step.index));
      recorder_.end_hook();
    }
  }

  const model::Stages& stages_;
  const std::vector<PieceHooks>& pieces_;
  const model::Rank& rank_;
  Recorder& recorder_;
  Manager& manager_;
};

std::unique_ptr<Manager> manager_of(const scenario::Scenario& s, const model::Rank& rank, int pp_rank,
                                    Recorder& recorder) {
  const auto& o = s.settings;
  if (o.cpu_offloading) {
    return std::make_unique<WholeLayer>(static_cast<int>(s.model.num_layers),
                                        static_cast<int>(o.cpu_offloading_num_layers), recorder);
  }
  Rules rules;
  rules.pp_rank = pp_rank;
  rules.chunks = static_cast<int>(rank.chunks.size());
  rules.fraction = o.activation_offload_fraction;
  rules.delta = o.delta_offload_bytes_across_pp_ranks;
  rules.inflight = o.fine_grained_offloading_max_inflight_offloads;
  return std::make_unique<FineGrained>(rules, recorder);
}

/// torch's pinned allocator hands out powers of two (aten/src/ATen/core/CachingHostAllocator.h).
std::int64_t pinned_bytes(const model::Piece& piece, const model::OffloadGroup& group) {
  std::int64_t sum = 0;
  for (const auto& move : group.moves)
    sum += static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(piece.tensors[move.tensor].bytes.value)));
  return sum;
}

void summarise(Plan& plan, const model::Stages& stages) {
  std::int64_t pinned = 0;
  for (const auto& action : plan.later.actions) {
    const auto& unit = plan.units[action.unit];
    const auto& group = plan.group(stages, action.unit);
    auto moved =
        std::find_if(plan.moved.begin(), plan.moved.end(), [&](const Moved& m) { return m.module == group.name; });
    if (moved == plan.moved.end()) {
      moved = plan.moved.insert(plan.moved.end(), Moved{});
      moved->module = group.name;
    }
    const auto held = pinned_bytes(stages.pieces[unit.piece], group);
    switch (action.kind) {
      case Action::Kind::copy_out:
        ++moved->groups;
        moved->bytes += unit.bytes;
        pinned += held;
        break;
      case Action::Kind::keep:
        ++moved->kept;
        break;
      case Action::Kind::reload_now:
        ++moved->missed;
        pinned -= held;
        break;
      case Action::Kind::copy_in:
        if (!plan.whole_layer) pinned -= held;
        break;
      case Action::Kind::let_go:
        pinned -= held;
        break;
      default:
        break;
    }
    plan.pinned = std::max(plan.pinned, Bytes(pinned));
  }
}

/// PagedStashManager.allocate_stash_buffers: one buffer of whole pages for each type and width.
void add_buffers(const scenario::Scenario& s, const std::vector<PageUse>& use, Plan& plan) {
  const auto page = s.settings.moe_paged_stash_page_size;
  const auto bytes = [&](const PageUse& one, double factor) {
    const auto most = static_cast<double>(factor < 0 ? one.most_rows : one.most_expected);
    const auto rows = static_cast<std::int64_t>(most * std::abs(factor));
    return Bytes((rows + page - 1) / page * page * one.kind.row_bytes);
  };
  for (const PageUse& one : use) {
    plan.stash_buffers.push_back({one.kind.owner, bytes(one, s.settings.moe_paged_stash_buffer_size_factor_cuda)});
    plan.pinned += bytes(one, s.settings.moe_paged_stash_buffer_size_factor_cpu);
  }
}

/// Paged stash: what a rank copies into pages in a step.
void summarise_stash(Plan& plan, const model::Stages& stages) {
  Moved moved;
  for (const auto& action : plan.later.actions) {
    if (action.kind == Action::Kind::keep) ++moved.kept;
    if (action.kind != Action::Kind::copy_out) continue;
    const auto& group = plan.group(stages, action.unit);
    moved.module = group.name;
    ++moved.groups;
    for (const auto& move : group.moves) moved.bytes += move.packed;
  }
  if (moved.groups > 0) plan.moved.push_back(std::move(moved));
}

}  // namespace

Plan resolve(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
             int pp_rank, bool times_only) {
  Plan plan;
  const auto& settings = scenario.settings;
  if (stages.eager && !times_only)
    plan.eager = std::make_shared<Plan>(resolve(scenario, *stages.eager, program, pp_rank));
  plan.whole_layer = settings.cpu_offloading;
  const auto at = static_cast<std::size_t>(pp_rank);
  Recorder recorder(stages, stages.ranks.at(at));
  const auto follow = [&](Manager& manager) {
    for (auto* iteration : {&plan.first, &plan.later}) {
      const bool all = !times_only || iteration == &plan.later;
      std::vector<PieceHooks> pieces;
      for (const auto& piece : stages.pieces)
        pieces.emplace_back(piece, [&](Step::Kind kind) { return all || manager.learns_from(kind); });
      Hooks(stages, pieces, program, pp_rank, recorder, manager);
      *iteration = recorder.take();
    }
    plan.units = recorder.units();
  };
  if (stages.paged_stash) {
    PagedStash manager(recorder);
    follow(manager);
    plan.stash = true;
    add_buffers(scenario, manager.use(), plan);
    summarise_stash(plan, stages);
  } else if (settings.cpu_offloading || settings.fine_grained_activation_offloading) {
    follow(*manager_of(scenario, stages.ranks.at(at), pp_rank, recorder));
    if (!times_only) summarise(plan, stages);
  }
  if (times_only) plan.first = {};
  return plan;
}

}  // namespace pipewright::offload
