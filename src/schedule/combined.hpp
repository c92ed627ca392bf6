// One combined call of expert-parallel overlap: the forward of one chunk and the backward of another, layer by layer,
// so that the all-to-alls of either hide behind the computation of the other (combined_1f1b.py:281-512,
// model_chunk_schedule_plan.py:236-303,500-630; the options of pull request 4268 as in its head 7d69fbb8a7).
//
//   communication: | combine.bwd      | dispatch.fwd   dispatch.bwd | combine.fwd      |
//   computation:   | pre_dispatch.fwd | mlp.bwd (mlp.dw)   mlp.fwd  | pre_dispatch.bwd | (pre_dispatch.dw)
#pragma once

#include <functional>
#include <optional>

#include "host_order.hpp"
#include "order.hpp"

namespace pipewright::schedule {

/// What the pipeline has to say inside the call, in the steady phase with overlapped P2P.
struct Callbacks {
  std::function<void()> pre_forward{}, pre_backward{}, post_forward{}, post_backward{};
};

class CombinedCall {
 public:
  CombinedCall(const Config& config, Place place, Host& host) : config_(config), place_(place), host_(host) {}
  void run(std::optional<Op> forward, std::optional<Op> backward, const Callbacks& callbacks = {});

 private:
  const std::vector<Layer>& layers(Op op) const;
  void layers(std::optional<Op> forward, std::optional<Op> backward, bool attention_done);
  void layer_pair(const Op* forward, int forward_layer, const Op* backward, int backward_layer, bool attention_done);
  void deferred_weight_gradients(Op backward);
  void node(Op op, Node::Pass pass, Node::Name name, int layer = -1);
  bool written_out() const { return !config_.layers.empty(); }
  /// Does this layer's weight gradient wait until the backward P2P call is posted?
  bool deferred(int layer) const { return layer < config_.overlap_p2p_wgrad_delayed_layer_number; }

  const Config& config_;
  Place place_;
  Host& host_;
};

}  // namespace pipewright::schedule
