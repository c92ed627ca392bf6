// What activation offload adds to a layer: groups of saved tensors, their hooks and copies.
#pragma once

#include <map>

#include "builder.hpp"

namespace pipewright::model {

/// Regions of fine_grained_activation_offloading (reference 4.2). Nothing happens for a module that is not offloaded.
class OffloadWriter {
 public:
  OffloadWriter(PieceBuilder& builder, const Dimensions& dimensions) : w_(builder), d_(dimensions) {}

  void begin(Offload module, bool grad);  ///< without `grad` autograd saves nothing
  void saves(Offload module, const std::vector<std::uint32_t>& tensors);
  /// A tensor that others hold too: it stays. Returns the one that the region's backward uses and must free.
  std::uint32_t saves_held(Offload module, std::uint32_t tensor);
  /// Is a tensor that the region saves copied to the host?
  bool moves(Offload module, std::uint32_t tensor) const;
  void commit(Offload module) { hook(module, Step::Kind::offload_commit); }
  void needed(Offload module) { hook(module, Step::Kind::reload_wait); }
  void done(Offload module) { hook(module, Step::Kind::reload_hook); }

 private:
  void hook(Offload module, Step::Kind kind);
  void save(Offload module, std::uint32_t tensor, std::uint32_t back, bool releases);

  PieceBuilder& w_;
  const Dimensions& d_;
  std::map<Offload, std::uint32_t> groups_;
};

/// The region of moe_paged_stash around a layer's experts (experts.py, paged_stash_group_start and _commit). Nothing
/// happens without it.
class StashWriter {
 public:
  StashWriter(PieceBuilder& builder, const Dimensions& dimensions) : w_(builder), d_(dimensions) {}

  void begin(bool grad);
  /// A tensor whose first dimension is the rows of the budget, and the pages that it fills.
  void saves(std::uint32_t tensor, const std::vector<OffloadGroup::Pages>& pages);
  void commit() { hook(Step::Kind::offload_commit); }
  void needed() { hook(Step::Kind::reload_wait); }
  void done() { hook(Step::Kind::reload_hook); }

 private:
  void hook(Step::Kind kind);

  PieceBuilder& w_;
  const Dimensions& d_;
  std::uint32_t group_ = OffloadGroup::none;
};

/// Whole-layer offload (cpu_offloading) of a finished layer: all that it saved is one group. `saved_again`: tensors
/// that two autograd nodes saved as objects of their own; each is copied.
void offload_whole_layer(Piece& layer, const std::vector<std::uint32_t>& saved_again);

}  // namespace pipewright::model
