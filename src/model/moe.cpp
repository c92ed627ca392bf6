// A mixture-of-experts layer in host order (S tokens, n = S topk routed rows, bf16):
//
//   A -norm-> x -router-> probs   x -permute-> [n] -all-to-all-> [n] -sort-> [n] -experts-> [n] -unsort-> [n]
//     -all-to-all-> [n] -unpermute-> M (+ shared experts of x)
//
// moe_latent_size: x -fc1_latent_proj-> rows that are permuted, sent and combined at that width -fc2_latent_proj-> M.
//
// Kept for backward: statistics, x, what router, experts and shared experts keep, maps of the permutations,
// fc2_latent_proj's input. The sent and the arrived rows live until the layer's function returns, because its variables
// name them.
#include "moe.hpp"

#include <utility>

namespace pipewright::model {

MixtureOfExperts::MixtureOfExperts(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer,
                                   AnyWidth any, bool ends)
    : w_(builder),
      d_(dimensions),
      m_(dimensions.moe),
      ends_(ends),
      norm_(builder, dimensions, "moe.norm",
            dimensions.recomputes(Recompute::layernorm) && !dimensions.graphs.keeps_moe_norm),
      router_(builder, dimensions),
      dispatcher_(builder, dimensions),
      experts_(local_experts(builder, dimensions, layer, ends)),
      shared_(builder, dimensions, layer, any, ends),
      linear_(builder, dimensions),
      down_(duplicated(d_, layer, "moe.fc1_latent_proj", "mlp.fc1_latent_proj", d_.h, m_.width)),
      up_(duplicated(d_, layer, "moe.fc2_latent_proj", "mlp.fc2_latent_proj", m_.width, d_.h)) {}

void MixtureOfExperts::route(bool grad) {
  if (m_.shared > 0 && !m_.shared_overlap)
    shared_output_ = shared_.forward(grad && !d_.recomputes(Recompute::shared_experts));
  router_.forward(grad && !ends_);
  if (graph_ != nullptr && !d_.graphs.preprocess) leave_graph();
  if (m_.latent) project_down(grad && !ends_);
  dispatcher_.preprocess();
  if (dispatcher_.permutes_first()) w_.release(latent_);  // its rows are what is sent
  if (graph_ != nullptr && d_.graphs.preprocess) leave_graph();
}

/// moe_layer.py, preprocess: reads the norm's output, which the router keeps.
void MixtureOfExperts::project_down(bool grad) {
  latent_ = linear_.column_linear(down_, "moe.latent_input", down_input_, grad);
}

/// moe_layer.py, postprocess. Takes over `rows`, one a token.
std::uint32_t MixtureOfExperts::project_up(std::uint32_t rows, bool grad) {
  const auto output = linear_.column_linear(up_, "moe.output", up_input_, grad);
  if (grad && !up_.fp8() && !up_.frozen) {
    latent_output_ = rows;
  } else {
    w_.free(rows);
  }
  return output;
}

void MixtureOfExperts::leave_graph() {
  if (d_.graphs.preprocess) dispatcher_.put_out(*graph_);
  graph_->put_out({&latent_, &shared_output_});
  graph_->leave();
}

/// Of the projected rows; frees `gradient` with its weight's, unless a graph has it.
std::uint32_t MixtureOfExperts::project_down_backward(std::uint32_t gradient, bool frees) {
  const auto projected = linear_.column_backward(down_, down_input_);
  if (frees) linear_.weight_gradients.put([this, gradient] { w_.free(gradient); });
  return projected;
}

/// Copies the gradients of what the graph has put out: rows or hidden states, their probabilities, the shared experts'
/// output. `gradient` is the first; returns that of what the router has read.
std::uint32_t MixtureOfExperts::enter_graph(std::uint32_t gradient, bool frees) {
  const bool rows = d_.graphs.preprocess && dispatcher_.permutes_first();
  const bool latent = m_.latent && d_.graphs.preprocess;  // projected inside
  const Int size = 2 * (latent || rows ? m_.width : d_.h), count = rows ? m_.routed : d_.local;
  const auto given = graph_->copy(frees ? gradient : no_tensor, size * count);
  graph_->copy(no_tensor, m_.router_bytes * (rows ? m_.routed : d_.local * m_.experts));
  if (m_.shared > 0 && !m_.shared_overlap) graph_->copy(no_tensor, d_.boundary_bytes());
  graph_->enter_backward();
  norm_.replay();
  const auto sent = rows ? dispatcher_.preprocess_backward(given) : given;
  if (latent) return project_down_backward(sent, rows);
  if (rows) return sent;
  return w_.allocate("moe.input_gradient", d_.boundary_bytes());  // a static gradient is not added to in place
}

// With moe_shared_expert_overlap communication has its own stream and the shared experts run beside it.
void MixtureOfExperts::dispatch(bool grad) {
  dispatcher_.dispatch();
  if (!m_.shared_overlap) return;
  shared_.forward_fc1(grad);
  w_.wait(Stream::communication);
}

void MixtureOfExperts::compute(bool grad) {
  sent_ = dispatcher_.combine_preprocess(experts_->forward(dispatcher_.postprocess(), grad));
  dispatcher_.give_back(experts_->unneeded());
}

std::uint32_t MixtureOfExperts::communicate_back(bool grad) {
  const auto combined = dispatcher_.combine(sent_);
  if (m_.shared_overlap) {
    shared_output_ = shared_.forward_fc2(grad);
    w_.wait(Stream::communication);
  }
  if (combined == sent_) sent_ = no_tensor;
  return combined;
}

std::uint32_t MixtureOfExperts::finish(std::uint32_t combined, bool grad) {
  auto output = dispatcher_.combine_postprocess(combined);
  if (m_.latent) output = project_up(output, grad);
  if (m_.shared > 0) {
    const auto routed = output;
    output = w_.allocate("moe.output", 2 * d_.local * d_.h);
    w_.launch("moe shared experts added", {"add", {d_.local * d_.h}});
    w_.eager();
    w_.free({routed, std::exchange(shared_output_, no_tensor)});
  }
  return output;
}

std::uint32_t MixtureOfExperts::run(bool grad) {
  route(grad);
  dispatch(grad);
  compute(grad);
  const auto combined = communicate_back(grad);
  release_combined();
  const auto output = finish(combined, grad);
  dispatcher_.release_sent();
  w_.release(latent_);
  dispatcher_.release_arrived();
  if (!grad) dispatcher_.keep_nothing();
  return output;
}

std::uint32_t MixtureOfExperts::forward(bool grad) {
  norm_.forward(grad && !ends_);
  const auto output = run(grad && !d_.recomputes(Recompute::moe));
  // Where nothing else trains, the shared experts' adapter keeps it, unless it has gathered a copy of its own.
  const bool adapted = m_.shared > 0 && !(d_.sp && d_.t > 1);
  norm_.leave(grad && (!ends_ || adapted));
  return output;
}

void MixtureOfExperts::prepare() {
  norm_.forward(true);
  route(true);
}

void MixtureOfExperts::dispatch_node() {
  dispatch(true);
  dispatcher_.release_sent();
  w_.release(latent_);
}

void MixtureOfExperts::compute_node() {
  compute(true);
  dispatcher_.release_arrived();
  norm_.leave(true);
}

std::uint32_t MixtureOfExperts::combine_node() { return finish(communicate_back(true), true); }

/// `from` has served when `to` exists.
std::uint32_t MixtureOfExperts::step(std::uint32_t from, std::uint32_t to) {
  if (from != to) w_.free(from);
  return to;
}

std::uint32_t MixtureOfExperts::combine_backward() {
  auto gradient = no_tensor;
  if (m_.latent) {
    gradient = linear_.column_backward(up_, up_input_);
    linear_.weight_gradients.put([this, rows = std::exchange(latent_output_, no_tensor)] { w_.free(rows); });
  }
  const auto combined = step(gradient, dispatcher_.combine_postprocess_backward(gradient));
  const auto sent = dispatcher_.combine_backward(combined);
  if (m_.shared_overlap) {
    shared_.backward_fc2();
    w_.wait(Stream::communication);
  }
  return step(combined, sent);
}

std::uint32_t MixtureOfExperts::compute_backward(std::uint32_t gradient) {
  if (d_.ep_overlap && graph_ == nullptr) norm_.replay();
  const auto output = dispatcher_.combine_preprocess_backward(gradient);
  if (!d_.ep_overlap) step(gradient, output);
  const auto rows = experts_->backward(output);
  dispatcher_.release_probs();
  const auto arrived = step(rows, dispatcher_.postprocess_backward(rows));
  if (d_.ep_overlap) step(gradient, output);  // the node's output gradient lives as long as the node
  return arrived;
}

std::uint32_t MixtureOfExperts::dispatch_backward(std::uint32_t gradient) {
  const auto sent = dispatcher_.dispatch_backward(gradient);
  if (m_.shared_overlap) {
    shared_gradient_ = shared_.backward_fc1();
    w_.wait(Stream::communication);
  }
  return step(gradient, sent);
}

std::uint32_t MixtureOfExperts::prepare_backward(std::uint32_t gradient) {
  auto input = gradient;
  if (graph_ == nullptr || !d_.graphs.preprocess || !dispatcher_.permutes_first())
    input = dispatcher_.preprocess_backward(gradient);
  if (!d_.ep_overlap) step(gradient, input);
  if (graph_ != nullptr) {
    bool frees = input != gradient || !d_.ep_overlap;
    if (m_.latent && !d_.graphs.preprocess) input = project_down_backward(input, std::exchange(frees, true));
    return inputs_backward(enter_graph(input, frees));
  }
  if (m_.latent) {
    return inputs_backward(project_down_backward(input, input != gradient || !d_.ep_overlap));
  }
  // The node's output gradient lives as long as the node: the sum with the router's part is another tensor.
  if (d_.ep_overlap && input == gradient) input = w_.allocate("moe.input_gradient", 2 * d_.local * d_.h);
  return inputs_backward(input);
}

/// Shared experts, router and norm; adds into `input`.
std::uint32_t MixtureOfExperts::inputs_backward(std::uint32_t input) {
  const auto add = [&](std::uint32_t part) {
    w_.launch("moe input gradient accumulation", {"add", {d_.local * d_.h}});
    w_.free(part);
  };
  add(router_.backward());
  if (m_.shared > 0) {
    if (d_.recomputes(Recompute::shared_experts)) {
      w_.recomputing(true);
      w_.free(shared_.forward(true));
      w_.recomputing(false);
    }
    add(m_.shared_overlap ? std::exchange(shared_gradient_, no_tensor) : shared_.backward());
  }
  if (m_.shared > 0 && d_.delayed_wgrad) shared_.keep(norm_.give());
  return norm_.backward(input);
}

/// Experts and shared experts down to their first adapters.
std::uint32_t MixtureOfExperts::end_backward(std::uint32_t gradient, std::uint32_t dropped) {
  const auto output = step(gradient, dispatcher_.combine_preprocess_backward(gradient));
  experts_->backward(output);
  dispatcher_.keep_nothing();
  if (m_.shared > 0) {
    if (!m_.shared_overlap) shared_.backward_fc2();
    shared_.backward_fc1();
  }
  norm_.drop();
  w_.free(dropped);
  return no_tensor;
}

std::uint32_t MixtureOfExperts::backward(std::uint32_t dropped) {
  auto replayed = no_tensor;
  if (graph_ == nullptr) norm_.replay();
  w_.recomputing(true);
  if (d_.recomputes(Recompute::moe)) replayed = run(true);
  w_.recomputing(false);
  auto gradient = combine_backward();
  if (ends_) return end_backward(gradient, dropped);
  if (m_.shared == 0 && !d_.recomputes(Recompute::moe)) w_.release(dropped);  // else read again, or held
  gradient = dispatch_backward(compute_backward(gradient));
  const auto dx = prepare_backward(gradient);
  w_.free({replayed, dropped});
  return dx;
}

}  // namespace pipewright::model
