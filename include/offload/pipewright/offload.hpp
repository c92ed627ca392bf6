// Activation offload resolved: what happens at every hook of a rank's program, in host order. The memory walk and the
// timeline read the same plan, so that they cannot disagree about what moves and when.
//
// Fine-grained: Megatron-LM core_r0.19.0 megatron/core/pipeline_parallel/fine_grained_activation_offload.py,
// PipelineOffloadManager. Whole layers: Transformer Engine 2.19 pytorch/cpu_offload.py, DefaultOffloadSynchronizer.
// Paged stash: megatron/core/transformer/moe/paged_stash.py, PagedStashManager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/model.hpp"
#include "pipewright/scenario/types.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::offload {

/// A group of one piece in one microbatch: what is copied together.
struct Unit {
  std::int32_t microbatch = 0, chunk = 0;
  std::uint32_t position = 0;  ///< of the piece in its chunk
  std::uint32_t piece = 0, group = 0;
  Bytes bytes;
};

struct Action {
  enum class Kind : std::uint8_t {
    copy_out,    ///< D2H starts, once what is copied is there
    keep,        ///< the group stays on the device
    wait_out,    ///< the compute stream waits for the unit's D2H
    release,     ///< the host lets go of the copied tensors
    copy_in,     ///< H2D starts: new tensors are allocated
    wait_in,     ///< the compute stream waits for the unit's H2D
    let_go,      ///< whole layer: the host no longer names the reloaded tensors
    reload_now,  ///< H2D on the compute stream itself: its reload was missed
    pack,        ///< paged stash, first step: tensors are replaced by their rows that are tokens
    unpack       ///< and padded again
  } kind;
  std::uint32_t unit;
};

/// One training step: a hook's actions stand in [first[h], first[h+1]).
struct Iteration {
  std::vector<Action> actions;
  std::vector<std::uint32_t> first{0};

  std::span<const Action> at(std::size_t hook) const {
    return {actions.data() + first[hook], actions.data() + first[hook + 1]};
  }
  std::size_t hooks() const { return first.size() - 1; }
};

/// What a rank's step moves.
struct Moved {
  std::string module;
  int groups = 0, kept = 0, missed = 0;  ///< missed: reloaded by the compute stream itself
  Bytes bytes;                           ///< to the host and back
};

struct Plan {
  bool whole_layer = false;
  bool stash = false;                        ///< paged stash: copies on the device, both ways on one stream
  std::vector<model::Tensor> stash_buffers;  ///< made when the second step begins
  std::vector<Unit> units;
  Iteration first;  ///< fine-grained offload learns the order of backward passes and offloads everything
  Iteration later;
  std::vector<Moved> moved;           ///< of a later step
  Bytes pinned;                       ///< host memory that the tensors of a later step take at most at once
  std::shared_ptr<const Plan> eager;  ///< of Stages::eager

  bool empty() const { return units.empty(); }
  const model::OffloadGroup& group(const model::Stages& stages, std::uint32_t unit) const {
    return stages.pieces[units[unit].piece].groups[units[unit].group];
  }
};

constexpr bool is_hook(model::Step::Kind kind) { return kind >= model::Step::Kind::offload_begin; }

/// Whether fine-grained offload is sure to end with the assertion "Chunk mismatch" on a rank, without following its
/// program: the first backward pass keeps the last group of each name, and a chunk whose first group is kept counts as
/// finished before its second one begins (finish_all_groups).
bool loses_track(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config);
inline constexpr const char* chunk_mismatch =
    "settings.fine_grained_activation_offloading: backward passes come in another order than the one that Megatron's "
    "offload manager expects (assertion \"Chunk mismatch\")";

/// Hooks are, in host order, the offload steps of the pieces and the end of every backward pass of a chunk.
/// `times_only`: what later iterations do; the first one and sums over a step are left out.
Plan resolve(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
             int pp_rank, bool times_only = false);

}  // namespace pipewright::offload
