// Multi-token prediction in host order, core_r0.19.0 transformer/multi_token_prediction.py. Depth k, from the hidden
// states H(k-1) of the depth before (the decoder's, normed, for k = 1) and the token ids shifted once more:
//
//   ids -embedding-> E -enorm-> ┐
//                               ├ cat [L,2h] -eh_proj [2h -> h/t]-> -all-gather, scatter-> X -layer-> Y -norm-> H(k)
//   H(k-1)           -hnorm-> --┘
//
// The piece's output is H(0), ..., H(D) in one tensor. Under full recompute with method uniform a checkpoint keeps E
// and H(k-1) only; method block does not recompute these layers. Beside adapters nothing of E needs a gradient.
#include "mtp.hpp"

#include <deque>
#include <utility>

#include "embedding.hpp"
#include "layer_nodes.hpp"
#include "layer_writer.hpp"
#include "norm.hpp"
#include "packed_rows.hpp"

namespace pipewright::model {
namespace {

/// What stands before a depth's layer.
class DepthInput {
 public:
  DepthInput(PieceBuilder& builder, const Dimensions& d, const scenario::Scenario& s)
      : w_(builder),
        d_(d),
        linear_(builder, d),
        embedding_(builder, d, s),
        enorm_(builder, d, "mtp.enorm"),
        hnorm_(builder, d, "mtp.hnorm"),
        eh_proj_(column_parallel(d, d.precision_of_mtp(), "mtp.eh_proj", "eh_proj", 2 * d.h, d.h / d.t)) {}

  void embed();
  /// Returns X.
  std::uint32_t project(bool grad);
  /// Frees the gradient of X; returns that of H(k-1). The first depth is the last to go back.
  std::uint32_t backward(std::uint32_t gradient, bool first);
  void weight_gradients() { linear_.weight_gradients.run(); }

 private:
  std::uint32_t whole_width(std::uint32_t part);
  std::uint32_t projection_backward(std::uint32_t gradient);

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;
  EmbeddingWriter embedding_;
  Norm enorm_, hnorm_;
  Linear eh_proj_;
  Operand projected_input_;
  std::uint32_t ids_ = no_tensor, embedded_ = no_tensor, joined_ = no_tensor;
};

/// One depth.
class Depth {
 public:
  Depth(PieceBuilder& builder, const Dimensions& d, const scenario::Scenario& s, const std::vector<LayerKind>& kinds)
      : w_(builder),
        d_(d),
        checkpointed_(kinds.front().checkpointed > 0),
        input_(builder, d, s),
        final_norm_(builder, d, "mtp.final_norm") {
    for (const auto& kind : kinds) {
      layers_.emplace_back(builder, d, kind);
      homes_.push_back(graphed_parts(d, kind).ends ? Tensor::Home::view : Tensor::Home::allocator);
    }
  }

  /// Returns H(k).
  std::uint32_t forward();
  /// Frees `gradient`; returns that of H(k-1).
  std::uint32_t backward(std::uint32_t gradient, bool first);

 private:
  void run(bool grad);

  PieceBuilder& w_;
  const Dimensions& d_;
  const bool checkpointed_;
  DepthInput input_;
  Norm final_norm_;
  std::deque<LayerWriter> layers_;
  std::vector<Tensor::Home> homes_;     ///< of their outputs
  std::vector<std::uint32_t> between_;  ///< the first layer's input, then every output
};

/// The layer's input is a view of the gathered whole where sequence parallelism scatters it, so the whole stays.
std::uint32_t DepthInput::whole_width(std::uint32_t part) {
  if (d_.t == 1) return part;
  const Int bytes = 2 * d_.tokens * d_.h;
  const auto parts = w_.allocate("mtp.projection", bytes);
  w_.collective(Purpose::tp, "mtp.eh_proj output all-gather", "all_gather", d_.t, bytes, d_.tp_link);
  const auto whole = w_.allocate("mtp.projection", bytes);
  w_.launch("mtp.eh_proj parts joined", {"cat", {d_.tokens, d_.h}});
  w_.free({parts, part});
  return whole;
}

void DepthInput::embed() {
  ids_ = w_.allocate("mtp.token_ids", 8 * d_.tokens);
  if (d_.packed.empty()) {
    w_.launch("mtp.token_ids shifted", {"small", {}});
  } else {
    roll_packed(w_, d_, "mtp.token_ids", 8 * d_.tokens);
    roll_packed(w_, d_, "mtp.position_ids", 8 * d_.tokens);
  }
  embedded_ = w_.tensor("mtp.embedding", d_.boundary_bytes());
  embedding_.forward(embedded_, !d_.frozen());
}

std::uint32_t DepthInput::project(bool grad) {
  enorm_.forward(grad && !d_.frozen());
  if (grad && d_.frozen() && !w_.recomputes()) w_.release(embedded_);  // a checkpoint keeps it
  hnorm_.forward(grad);
  joined_ = w_.allocate("mtp.joined", 2 * d_.local * 2 * d_.h);
  w_.launch("mtp.embedding and hidden states joined", {"cat", {d_.local, 2 * d_.h}});
  hnorm_.leave(false);
  const auto x = whole_width(linear_.column_linear(eh_proj_, "mtp.projection", projected_input_, grad));
  enorm_.leave(false);
  if (!grad || eh_proj_.fp8() || eh_proj_.frozen) w_.release(joined_);
  return x;
}

void Depth::run(bool grad) {
  between_ = {input_.project(grad)};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    w_.layer_input(between_.back());
    between_.push_back(w_.tensor("layer input", d_.boundary_bytes(), homes_[i]));
    layers_[i].forward(between_.back(), grad);
    if (!grad) w_.release(between_[between_.size() - 2]);
  }
  final_norm_.forward(grad);
  if (!grad) w_.release(between_.back());
}

std::uint32_t Depth::forward() {
  input_.embed();
  run(!checkpointed_);
  return final_norm_.give();
}

/// From the gradient of the layer's input to that of the joined embedding and hidden states.
std::uint32_t DepthInput::projection_backward(std::uint32_t gradient) {
  if (d_.sp) {
    const auto whole = w_.allocate("mtp.projection_gradient", 2 * d_.tokens * d_.h);
    w_.collective(Purpose::tp, "mtp.eh_proj output all-gather in backward", "all_gather", d_.t, 2 * d_.tokens * d_.h,
                  d_.tp_link);
    w_.free(std::exchange(gradient, whole));
  }
  if (d_.t > 1) {
    const auto part = w_.allocate("mtp.projection_gradient", 2 * d_.tokens * eh_proj_.out);
    w_.launch("mtp.eh_proj own part of gradient", {"copy.strided", {d_.tokens, eh_proj_.out}});
    w_.free(std::exchange(gradient, part));
  }
  const auto djoined = linear_.column_backward(eh_proj_, projected_input_);
  linear_.weight_gradients.put([this, gradient, joined = std::exchange(joined_, no_tensor)] {
    w_.free({gradient, joined});
  });
  return djoined;
}

// Without a pipeline the model's own embedding, further back, has the same table.
std::uint32_t DepthInput::backward(std::uint32_t gradient, bool first) {
  const auto djoined = projection_backward(gradient);
  const auto half = [&](Norm& norm, const std::string& name) {
    const auto dnorm = w_.allocate(name + "_output_gradient", d_.boundary_bytes());
    w_.launch(name + " gradient copy", {"copy.strided", {d_.local, d_.h}});
    return norm.backward(dnorm);
  };
  const auto dhidden = half(hnorm_, "mtp.hnorm");
  const auto dembedded = d_.frozen() ? no_tensor : half(enorm_, "mtp.enorm");
  w_.free({djoined, std::exchange(embedded_, no_tensor)});
  embedding_.backward(dembedded, d_.pp > 1 && first ? std::optional(d_.mtp_layers - 1) : std::nullopt);
  w_.release(ids_);
  return dhidden;
}

std::uint32_t Depth::backward(std::uint32_t gradient, bool first) {
  if (checkpointed_) {
    w_.recomputing(true);
    run(true);
    w_.recomputing(false);
    w_.free(final_norm_.give());
  }
  auto dx = final_norm_.backward(gradient);
  w_.release(between_.back());
  for (std::size_t i = layers_.size(); i-- > 0;)
    dx = layers_[i].backward(std::exchange(between_[i], no_tensor), dx, false, true);
  return input_.backward(dx, first);
}

}  // namespace

Piece final_norm_piece(Owners& owners, const Dimensions& d) {
  PieceBuilder w(owners, "final norm");
  w.border(Piece::input, "layer input", d.boundary_bytes());
  w.border(Piece::output, "final_norm.output", d.boundary_bytes());
  w.border(Piece::output_gradient, "gradient of the residual stream", d.boundary_bytes());
  w.border(Piece::input_gradient, "gradient of the residual stream", d.boundary_bytes());
  Norm norm(w, d, "final_norm");
  w.to_forward();
  norm.forward(true, Piece::output);
  norm.give();
  w.to_backward();
  norm.backward(Piece::output_gradient, Piece::input_gradient);
  w.free(Piece::input);
  return w.take();
}

// Expert-parallel overlap allows one depth (models/common/fine_grained_callables.py, build_mtp_layer_callables): what
// stands before the layer joins its first node, the norm and the joined output are a node of their own.
Piece mtp_nodes(Owners& owners, const Dimensions& d, const scenario::Scenario& s, const LayerKind& kind) {
  using Name = schedule::Node::Name;
  using Pass = schedule::Node::Pass;
  PieceBuilder w(owners, "mtp");
  w.border(Piece::input, "final_norm.output", d.boundary_bytes());
  w.border(Piece::output, "mtp.hidden_states", 2 * d.boundary_bytes());
  w.border(Piece::output_gradient, "gradient of the residual stream", 2 * d.boundary_bytes());
  w.border(Piece::input_gradient, "gradient of the residual stream", d.boundary_bytes());
  DepthInput input(w, d, s);
  Norm final_norm(w, d, "mtp.final_norm");
  const auto y = w.tensor("layer input", d.boundary_bytes());
  const auto dy = w.tensor("gradient of the residual stream", d.boundary_bytes());
  const auto dx = w.tensor("gradient of the residual stream", d.boundary_bytes(),
                           graphed_parts(d, kind).begins ? Tensor::Home::graph_gradient : Tensor::Home::allocator);

  w.to_node(Name::pre_dispatch_computation, Pass::forward);
  input.embed();
  const auto x = input.project(true);
  LayerNodes layer(w, d, kind, {x, y, dy, dx});
  layer.forward();
  w.to_node(Name::mtp_post_process, Pass::forward);
  final_norm.forward(true);
  w.allocate(Piece::output);
  w.launch("mtp.hidden_states joined", {"cat", {2 * d.local, d.h}});
  w.free(final_norm.give());

  w.to_node(Name::mtp_post_process, Pass::backward);
  w.allocate(Piece::input_gradient);
  w.launch("mtp.hidden_states gradient", {"copy.d2d", {d.boundary_bytes()}});
  final_norm.backward(no_tensor, dy);
  w.free({y, Piece::output_gradient});
  layer.backward();
  const auto dhidden = input.backward(dx, true);
  w.launch("gradient accumulation", {"add", {d.local * d.h}});
  w.free({dhidden, Piece::input});
  layer.weight_gradients();
  input.weight_gradients();
  return w.take();
}

Piece mtp_piece(Owners& owners, const Dimensions& d, const scenario::Scenario& s, const std::vector<LayerKind>& kinds) {
  PieceBuilder w(owners, "mtp");
  const Int parts = 1 + d.mtp_layers;
  w.border(Piece::input, "final_norm.output", d.boundary_bytes());
  w.border(Piece::output, "mtp.hidden_states", parts * d.boundary_bytes());
  w.border(Piece::output_gradient, "gradient of the residual stream", parts * d.boundary_bytes());
  w.border(Piece::input_gradient, "gradient of the residual stream", d.boundary_bytes());
  std::deque<Depth> depths;
  for (Int i = 0; i < d.mtp_layers; ++i) depths.emplace_back(w, d, s, kinds);

  w.to_forward();
  std::vector<std::uint32_t> hidden;
  for (auto& depth : depths) hidden.push_back(depth.forward());
  w.allocate(Piece::output);
  w.launch("mtp.hidden_states joined", {"cat", {parts * d.local, d.h}});
  w.free(hidden.back());  // the others are what the next depth's norm reads again

  // Parts of the output's gradient are views of it, to which the gradient from the next depth cannot be added in place.
  w.to_backward();
  std::uint32_t from_next = no_tensor;
  for (std::size_t k = depths.size(); k-- > 0;) {
    auto gradient = no_tensor;
    if (from_next != no_tensor) {
      gradient = w.allocate("mtp.hidden_states_gradient", d.boundary_bytes());
      w.launch("gradient accumulation", {"add", {d.local * d.h}});
      w.free(from_next);
    }
    from_next = depths[k].backward(gradient, k == 0);
    if (k > 0) w.free(hidden[k - 1]);
  }
  w.allocate(Piece::input_gradient);
  w.launch("gradient accumulation", {"add", {d.local * d.h}});
  w.free({from_next, Piece::output_gradient, Piece::input});
  return w.take();
}

}  // namespace pipewright::model
