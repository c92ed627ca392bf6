// The nodes of a combined call in host order.
#include "combined.hpp"

#include <algorithm>

namespace pipewright::schedule {
namespace {

using Name = Node::Name;
using NodePass = Node::Pass;

void call(const std::function<void()>& callback) {
  if (callback) callback();
}

}  // namespace

const std::vector<Layer>& CombinedCall::layers(Op op) const {
  static const std::vector<Layer> none;
  if (!written_out()) return none;
  return config_.layers[static_cast<std::size_t>(place_.rank)][static_cast<std::size_t>(op.chunk)];
}

void CombinedCall::run(std::optional<Op> f, std::optional<Op> b, const Callbacks& callbacks) {
  if (b && place_.last_stage(*b)) node(*b, NodePass::backward, Name::loss);
  if (written_out()) host_.combined_begin(f, b);

  if (f) {
    call(callbacks.pre_forward);
    if (place_.first_stage(*f)) node(*f, NodePass::forward, Name::embed);
  }
  // Pull request 4268: the first attention covers the wait for the gradient, which then travels on the other stream.
  const bool attention_done = f && b && config_.overlap_p2p_backward_on_comm_stream && !layers(*f).empty();
  if (attention_done) node(*f, NodePass::forward, Name::pre_dispatch_computation, 0);
  if (b) {
    call(callbacks.pre_backward);
    if (place_.last_stage(*b)) node(*b, NodePass::backward, Name::logits);
  }

  layers(f, b, attention_done);

  if (f && callbacks.post_forward) {
    const Host::OnCommunicationStream stream(host_);
    callbacks.post_forward();
  }
  if (b && callbacks.post_backward) {
    std::optional<Host::OnCommunicationStream> stream;
    if (config_.overlap_p2p_backward_on_comm_stream) stream.emplace(host_);
    callbacks.post_backward();
  }
  if (b) deferred_weight_gradients(*b);

  if (f && place_.last_stage(*f)) node(*f, NodePass::forward, Name::logits);
  if (b && place_.first_stage(*b)) node(*b, NodePass::backward, Name::embed);
  if (written_out()) host_.combined_end();
  if (f && place_.last_stage(*f)) node(*f, NodePass::forward, Name::loss);
}

void CombinedCall::layers(std::optional<Op> f, std::optional<Op> b, bool attention_done) {
  if (!written_out()) {
    if (f && b)
      host_.combined(*f, *b);
    else if (f)
      host_.forward(*f);
    else
      host_.backward(*b);
    return;
  }
  // Forward layers ascend, backward layers descend; what is left of the longer chunk runs alone. The pull request runs
  // the first attention twice when the backward chunk has no layer to pair it with.
  const int forward_layers = f ? static_cast<int>(layers(*f).size()) : 0;
  const int backward_layers = b ? static_cast<int>(layers(*b).size()) : 0;
  for (int i = 0; i < std::max(forward_layers, backward_layers); ++i)
    layer_pair(i < forward_layers ? &*f : nullptr, i, i < backward_layers ? &*b : nullptr, backward_layers - 1 - i,
               attention_done && i == 0 && i < backward_layers);
}

void CombinedCall::layer_pair(const Op* f, int fl, const Op* b, int bl, bool attention_done) {
  in_turns(config_.ep_overlap_early_attn_memory_release, config_.from_0_18, [&](NodePass pass, Name name) {
    const bool attention = name == Name::pre_dispatch_computation;
    if (pass == NodePass::forward) {
      if (f && !(attention && attention_done)) node(*f, pass, name, fl);
    } else if (pass == NodePass::backward) {
      if (b) node(*b, pass, name, bl);
    } else if (b && config_.delay_wgrad_compute) {
      if (!(deferred(bl) && (attention || config_.overlap_p2p_with_transformer_layer_wgrad))) node(*b, pass, name, bl);
    }
  });
}

void CombinedCall::deferred_weight_gradients(Op b) {
  if (!config_.delay_wgrad_compute) return;
  for (int layer = static_cast<int>(layers(b).size()) - 1; layer >= 0; --layer) {
    if (!deferred(layer)) continue;
    if (config_.overlap_p2p_with_transformer_layer_wgrad) node(b, NodePass::weight_gradient, Name::mlp, layer);
    node(b, NodePass::weight_gradient, Name::pre_dispatch_computation, layer);
  }
}

void CombinedCall::node(Op op, NodePass pass, Name name, int layer) {
  if (!written_out()) return;
  const bool all_to_all = Node::communicates(name);
  if (layer >= 0) {
    const Layer& what = layers(op)[static_cast<std::size_t>(layer)];
    if ((all_to_all && !what.moe) || (name == Name::mtp_post_process && !what.mtp)) return;  // NoopScheduleNode
  }
  host_.node(op, {name, pass, static_cast<std::int16_t>(layer)}, all_to_all);
}

}  // namespace pipewright::schedule
