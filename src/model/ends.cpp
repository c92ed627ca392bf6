#include "ends.hpp"

#include "embedding.hpp"
#include "norm.hpp"

namespace pipewright::model {
namespace {

/// pretrain_gpt.py, loss_func: rerun_state_machine.validate_result asks of every loss whether it is NaN, then whether
/// it is infinite; each time the host waits for the answer.
void check_loss(Piece& piece, std::vector<Step>& steps) {
  for (const char* name : {"loss is NaN", "loss is infinite"}) {
    Kernel kernel;
    kernel.name = name;
    kernel.key = {"small", {}};
    kernel.host_family = "check";
    steps.push_back({Step::Kind::launch, static_cast<std::uint32_t>(piece.kernels.size())});
    piece.kernels.push_back(std::move(kernel));
    steps.push_back({Step::Kind::synchronize, static_cast<std::uint32_t>(Stream::compute)});
  }
}

/// pretrain_gpt.py, get_batch, in every forward pass of a chunk that embeds or ends with the loss: the data loader's
/// next microbatch, its tensors copied to the GPU and broadcast over TP, to itself alone too. Small enough to take no
/// time there, but for a mask of all pairs, which crosses PCIe on the compute stream. The broadcast moves what an
/// all-gather of N n / (n - 1) bytes does over each link; context-parallel ranks select their rows
/// (core/utils.py, get_batch_on_this_tp_rank, get_batch_on_this_cp_rank).
void fetch_batch(PieceBuilder& w, const Dimensions& d) {
  w.launch(host_work("microbatch fetched", "batch"));
  if (d.mask_bytes == 0) return;
  w.launch("attention mask to GPU", {"copy.h2d", {d.mask_bytes}});
  w.within_call(1);
  if (d.t > 1) {
    w.collective(Purpose::tp, "attention mask broadcast", "all_gather", d.t, d.mask_bytes * d.t / (d.t - 1), d.tp_link);
    w.within_call(1);
  }
  if (d.cp > 1) {
    w.launch("attention mask's own rows", {"copy.d2d", {d.mask_bytes / d.cp}});
    w.within_call(1);
  }
}

/// Logits and the loss of every token are one node; `loss` is the mean that the training loop takes of it.
Piece take_head(PieceBuilder& w, const Dimensions& d) {
  if (!d.ep_overlap) {
    Piece piece = w.take();
    if (d.checks_for_nan) check_loss(piece, piece.forward);
    return piece;
  }
  auto piece = w.take_as_node(schedule::Node::Name::logits);
  piece.nodes.push_back({schedule::Node::Name::loss, {}, {}, {}});
  if (d.checks_for_nan) check_loss(piece, piece.nodes.back().forward);
  return piece;
}

}  // namespace

Piece embedding_piece(Owners& owners, const Dimensions& d, const scenario::Scenario& s) {
  PieceBuilder w(owners, "embedding");
  w.border(Piece::output, "layer input", d.boundary_bytes());
  w.border(Piece::output_gradient, "gradient of the residual stream", d.boundary_bytes());
  EmbeddingWriter embedding(w, d, s);
  w.to_forward();
  fetch_batch(w, d);
  embedding.forward(Piece::output);
  w.to_backward();
  embedding.backward(Piece::output_gradient, d.pp > 1 ? 0 : d.mtp_layers + (d.one_table ? 1 : 0));
  return d.ep_overlap ? w.take_as_node(schedule::Node::Name::embed) : w.take();
}

// With multi-token prediction (gpt_model.py, _postprocess; multi_token_prediction.py, process_mtp_loss) every depth's
// loss comes before the main one, and all are kept: the backward pass runs the main one first. The gradients of the
// parts of the input are then joined.
Piece head_piece(Owners& owners, const Dimensions& d, const scenario::Scenario& s, bool normed, bool embeds) {
  PieceBuilder w(owners, "head");
  const Int parts = 1 + d.mtp_layers;
  w.border(Piece::input, "layer input", parts * d.boundary_bytes());
  w.border(Piece::input_gradient, "gradient of the residual stream", parts * d.boundary_bytes());
  Norm norm(w, d, "head.norm");
  std::vector<OutputLayer> depths;
  for (Int i = 0; i < d.mtp_layers; ++i) depths.emplace_back(w, d, s, "mtp.head");
  OutputLayer output(w, d, s, "head");
  const auto part = [&](const char* owner) { return w.tensor(owner, d.boundary_bytes()); };

  w.to_forward();
  if (!embeds) fetch_batch(w, d);
  if (!normed) norm.forward(true);
  for (auto& depth : depths) {
    depth.forward_of_depth();
    if (d.packed.empty()) continue;
    roll_packed(w, d, "mtp.labels", 8 * d.tokens);
    roll_packed(w, d, "mtp.loss_mask", 4 * d.tokens);
  }
  output.forward();
  if (d.frozen() && !normed) w.free(norm.give());  // layers.py, linear_with_frozen_weight keeps no input

  w.to_backward();
  if (depths.empty()) {
    const auto dnormed = normed ? std::uint32_t{Piece::input_gradient} : part("head.norm_output_gradient");
    output.backward(dnormed);
    const auto read_again = normed ? std::uint32_t{Piece::input} : d.deferred_head_wgrads > 0 ? norm.give() : no_tensor;
    output.done_with(read_again);
    if (!normed) {
      norm.backward(dnormed, Piece::input_gradient);
      w.free(Piece::input);
    }
    return take_head(w, d);
  }
  std::vector<std::uint32_t> gradients = {part("head.input_gradient")};
  output.backward(gradients[0]);
  for (auto depth = depths.rbegin(); depth != depths.rend(); ++depth) {
    gradients.push_back(part("mtp.head.input_gradient"));
    depth->backward(gradients.back());
  }
  w.allocate(Piece::input_gradient);
  w.launch("head input gradients joined", {"cat", {parts * d.local, d.h}});
  for (const auto gradient : gradients) w.free(gradient);
  output.done_with(Piece::input);
  return take_head(w, d);
}

}  // namespace pipewright::model
