// Walks a rank's program in host order and asks the kind of offload in force what happens at every hook.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include "fine_grained.hpp"
#include "paged_stash.hpp"
#include "pipewright/follow.hpp"
#include "whole_layer.hpp"

namespace pipewright::offload {

using model::Step;
using schedule::Node;

std::uint32_t Recorder::unit(const Unit& unit) {
  const auto [it, fresh] = numbers_.try_emplace({unit.microbatch, unit.chunk, unit.position, unit.group},
                                                static_cast<std::uint32_t>(units_.size()));
  if (fresh) units_.push_back(unit);
  return it->second;
}

namespace {

/// A step's hooks in the order in which the host comes to them.
class Hooks : public model::Visitor {
 public:
  Hooks(const model::Stages& stages, const schedule::Program& program, int rank, Recorder& recorder, Manager& manager)
      : stages_(stages),
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
  void forward(model::Call call, std::size_t position) { steps(piece(call, position).forward, call, position); }
  void backward(model::Call call, std::size_t position) { steps(piece(call, position).backward, call, position); }
  void node(const schedule::Instruction& i, const model::NodePlace& at) {
    const auto pass = i.node.pass;
    steps(pass == Node::Pass::forward    ? at.steps->forward
          : pass == Node::Pass::backward ? at.steps->backward
                                         : at.steps->weight_gradient,
          {i.microbatch, i.chunk}, at.position);
  }
  void callbacks(model::Call call) {
    manager_.end_backward(call.microbatch, call.chunk);
    recorder_.end_hook();
  }

 private:
  std::uint32_t index(model::Call call, std::size_t position) const {
    return rank_.chunks[static_cast<std::size_t>(call.chunk)].pieces[position];
  }
  const model::Piece& piece(model::Call call, std::size_t position) const {
    return stages_.pieces[index(call, position)];
  }

  void steps(const std::vector<Step>& list, model::Call call, std::size_t position) {
    const auto& owner = piece(call, position);
    for (const auto& step : list) {
      if (!is_hook(step.kind)) continue;
      Unit unit{call.microbatch,       call.chunk, static_cast<std::uint32_t>(position),
                index(call, position), step.index, Bytes(0)};
      for (const auto& move : owner.groups[step.index].moves) unit.bytes += owner.tensors[move.tensor].bytes;
      manager_.hook(step.kind, recorder_.unit(unit));
      recorder_.end_hook();
    }
  }

  const model::Stages& stages_;
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
             int pp_rank) {
  Plan plan;
  const auto& settings = scenario.settings;
  if (stages.eager) plan.eager = std::make_shared<Plan>(resolve(scenario, *stages.eager, program, pp_rank));
  plan.whole_layer = settings.cpu_offloading;
  const auto at = static_cast<std::size_t>(pp_rank);
  Recorder recorder(stages);
  const auto follow = [&](Manager& manager) {
    for (auto* iteration : {&plan.first, &plan.later}) {
      Hooks(stages, program, pp_rank, recorder, manager);
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
    summarise(plan, stages);
  }
  return plan;
}

}  // namespace pipewright::offload
