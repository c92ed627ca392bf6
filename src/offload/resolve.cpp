// Walks a rank's program in host order and asks the kind of offload in force what happens at every hook.
#include <algorithm>
#include <bit>
#include <memory>

#include "fine_grained.hpp"
#include "whole_layer.hpp"

namespace pipewright::offload {

using model::Step;
using schedule::Instruction;
using schedule::Node;

std::uint32_t Recorder::unit(const Unit& unit) {
  const auto [it, fresh] = numbers_.try_emplace({unit.microbatch, unit.chunk, unit.position, unit.group},
                                                static_cast<std::uint32_t>(units_.size()));
  if (fresh) units_.push_back(unit);
  return it->second;
}

namespace {

class Host {
 public:
  Host(const model::Stages& stages, const model::Rank& rank, const schedule::RankProgram& program, Recorder& recorder,
       Manager& manager)
      : stages_(stages), rank_(rank), program_(program), recorder_(recorder), manager_(manager) {}

  Iteration run() {
    for (const auto& instruction : program_.instructions) issue(instruction);
    manager_.end_iteration();
    return recorder_.take();
  }

 private:
  const model::Piece& piece(int chunk, std::size_t position) const {
    return stages_.pieces[rank_.chunks[static_cast<std::size_t>(chunk)].pieces[position]];
  }
  std::size_t pieces(int chunk) const { return rank_.chunks[static_cast<std::size_t>(chunk)].pieces.size(); }

  void steps(const std::vector<Step>& list, int microbatch, int chunk, std::size_t position) {
    for (const auto& step : list) {
      if (!is_hook(step.kind)) continue;
      Unit unit{microbatch,
                chunk,
                static_cast<std::uint32_t>(position),
                rank_.chunks[static_cast<std::size_t>(chunk)].pieces[position],
                step.index,
                Bytes(0)};
      const auto& owner = piece(chunk, position);
      for (const auto& move : owner.groups[step.index].moves) unit.bytes += owner.tensors[move.tensor].bytes;
      manager_.hook(step.kind, recorder_.unit(unit));
      recorder_.end_hook();
    }
  }

  void issue(const Instruction& i) {
    switch (i.kind) {
      case schedule::Kind::forward:
        manager_.begin_forward(i.microbatch, i.chunk);
        for (std::size_t at = 0; at < pieces(i.chunk); ++at)
          steps(piece(i.chunk, at).forward, i.microbatch, i.chunk, at);
        break;
      case schedule::Kind::backward:
        for (std::size_t at = pieces(i.chunk); at-- > 0;) steps(piece(i.chunk, at).backward, i.microbatch, i.chunk, at);
        end_backward(i.microbatch, i.chunk);
        break;
      case schedule::Kind::combined_begin:
        if (i.microbatch != schedule::no_microbatch) manager_.begin_forward(i.microbatch, i.chunk);
        backward_microbatch_ = i.backward_microbatch;
        backward_chunk_ = i.backward_chunk;
        break;
      case schedule::Kind::node:
        node(i);
        break;
      case schedule::Kind::combined_end:
        if (backward_microbatch_ != schedule::no_microbatch) end_backward(backward_microbatch_, backward_chunk_);
        break;
      default:
        break;
    }
  }

  /// A node of a layer under expert-parallel overlap; embedding and head have no hooks.
  void node(const Instruction& i) {
    if (i.node.layer < 0) return;
    const auto at = layer_position(rank_.chunks[static_cast<std::size_t>(i.chunk)], i.node.layer);
    for (const auto& node : piece(i.chunk, at).nodes) {
      if (node.name != i.node.name) continue;
      const auto pass = i.node.pass;
      steps(pass == Node::Pass::forward    ? node.forward
            : pass == Node::Pass::backward ? node.backward
                                           : node.weight_gradient,
            i.microbatch, i.chunk, at);
    }
  }

  static std::size_t layer_position(const model::Chunk& chunk, int layer) {
    for (std::size_t at = 0; at < chunk.layers.size(); ++at)
      if (chunk.layers[at] >= 0 && layer-- == 0) return at;
    throw InternalError("offload: a node of a layer that the chunk lacks");
  }

  void end_backward(int microbatch, int chunk) {
    manager_.end_backward(microbatch, chunk);
    recorder_.end_hook();
  }

  const model::Stages& stages_;
  const model::Rank& rank_;
  const schedule::RankProgram& program_;
  Recorder& recorder_;
  Manager& manager_;
  int backward_microbatch_ = schedule::no_microbatch, backward_chunk_ = 0;
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

}  // namespace

Plan resolve(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
             int pp_rank) {
  Plan plan;
  const auto& settings = scenario.settings;
  plan.whole_layer = settings.cpu_offloading;
  if (!settings.cpu_offloading && !settings.fine_grained_activation_offloading) return plan;
  const auto at = static_cast<std::size_t>(pp_rank);
  Recorder recorder(stages);
  const auto manager = manager_of(scenario, stages.ranks.at(at), pp_rank, recorder);
  Host host(stages, stages.ranks.at(at), program.ranks.at(at), recorder, *manager);
  plan.first = host.run();
  plan.later = host.run();
  plan.units = recorder.units();
  summarise(plan, stages);
  return plan;
}

}  // namespace pipewright::offload
