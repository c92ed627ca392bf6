// Word embedding (VocabParallelEmbedding) and the head: final norm, output layer, loss. Sequences of allocations from
// the recorded events of core_r0.19.0; formulas in reference 5.4.
//
//   head forward:   norm -> n [2 S h];  GEMM -> logits bf16 [2 S V];  cast -> fp32 [4 S V], exponentiated in place and
//   kept head backward:  gradient in place in fp32, cast to bf16 [2 S V];  dgrad -> dn;  wgrad;  norm backward
#include "ends.hpp"

#include "linear.hpp"

namespace pipewright::model {
namespace {

/// ATen's embedding_dense_backward_cuda sorts the token ids and sums partial segments of at most 10 rows in fp32
/// (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu, NROWS_PER_THREAD).
constexpr Int rows_per_segment = 10;

std::string loss_family(const scenario::Scenario& s) {
  if (!s.settings.cross_entropy_loss_fusion) return "cross_entropy.unfused";
  return s.settings.cross_entropy_fusion_impl == "te" ? "cross_entropy.te" : "cross_entropy.native";
}

}  // namespace

profile::Key head_wgrad(const Dimensions& d) {
  return {d.gradient_bytes == 4 ? "gemm.bf16.nt.acc_f32" : "gemm.bf16.nt.acc_bf16", {d.h, d.vocab, d.tokens}};
}

Piece embedding_piece(Owners& owners, const Dimensions& d, const scenario::Scenario& s) {
  PieceBuilder w(owners, "embedding");
  w.border(Piece::output, "layer input", d.boundary_bytes());
  w.border(Piece::output_gradient, "gradient of the residual stream", d.boundary_bytes());
  const Int full = 2 * d.tokens * d.h;
  const bool learned = s.model.position_embedding_type == "learned_absolute";

  w.to_forward();
  std::uint32_t ids = no_tensor;
  if (d.t > 1) {
    ids = w.allocate("embedding.token_ids", 8 * d.tokens);
    w.launch("embedding mask", {"small", {}});
  }
  // The gathered rows are [b, s, h]; [s, b, h] is a copy unless b = 1, where it is a view. With sequence parallelism
  // the scattered part is cloned so that the whole can go (clone_scatter_output_in_embedding).
  const bool copies = d.b > 1 || learned;
  auto rows = d.t == 1 && !copies ? Piece::output : w.tensor("embedding.rows", full);
  w.allocate(rows);
  w.launch("embedding forward", {"embedding.forward", {d.tokens, d.h}});
  if (d.t > 1) w.launch("embedding mask", {"add", {d.tokens * d.h / 2}});  // masked_fill: half of an add's traffic
  if (learned) w.launch("position embedding", {"embedding.forward", {d.tokens, d.h}});
  if (copies) {
    const auto gathered = rows;
    rows = d.t == 1 ? Piece::output : w.tensor("embedding.rows", full);
    w.allocate(rows);
    w.launch("embedding transpose", {"copy.d2d", {full}});
    w.free(gathered);
  }
  if (d.sp) {
    const auto scattered = w.allocate("embedding.rows", d.boundary_bytes());
    w.collective(Purpose::tp, "embedding reduce-scatter", "reduce_scatter", d.t, full, d.tp_link);
    w.allocate(Piece::output);
    w.launch("embedding clone", {"copy.d2d", {d.boundary_bytes()}});
    w.free({scattered, rows});
  } else if (d.t > 1) {
    w.collective(Purpose::tp, "embedding all-reduce", "all_reduce", d.t, full, d.tp_link);
    w.allocate(Piece::output);
    w.launch("embedding clone", {"copy.d2d", {full}});
    w.free(rows);
  }
  if (d.hidden_dropout > 0) {
    w.launch("embedding dropout", {"dropout.forward", {d.local * d.h}});
  }

  w.to_backward();
  std::uint32_t gathered = no_tensor;
  if (d.sp) {
    gathered = w.allocate("embedding.rows_gradient", full);
    w.collective(Purpose::tp, "embedding all-gather in backward", "all_gather", d.t, full, d.tp_link);
  }
  const Int sorted = 8 * d.tokens;
  const auto keys = w.allocate("embedding.sorted_ids", sorted), order = w.allocate("embedding.sorted_ids", sorted);
  const auto gradient = w.allocate("weight gradients", 2 * d.vocab * d.h);
  const Int segments = d.tokens / rows_per_segment + std::min(d.tokens, d.vocab);
  const auto offsets = w.allocate("workspace", 8 * segments);
  w.transient("workspace", 4 * segments * d.h);
  w.launch("embedding backward", {"embedding.backward", {d.tokens, d.h, d.vocab}});
  w.free({offsets, order, keys, Piece::output_gradient, gathered, ids});
  w.launch("embedding gradient accumulation", {"add.f32", {d.vocab * d.h}});
  w.free(gradient);
  return d.ep_overlap ? w.take_as_node(schedule::Node::Name::embed) : w.take();
}

Piece head_piece(Owners& owners, const Dimensions& d, const scenario::Scenario& s, bool normed_before) {
  PieceBuilder w(owners, "head");
  w.border(Piece::input, "layer input", d.boundary_bytes());
  w.border(Piece::input_gradient, "gradient of the residual stream", d.boundary_bytes());
  LinearWriter linear(w, d);
  const Int logits_count = d.tokens * d.vocab, full = 2 * d.tokens * d.h;
  const std::string loss = loss_family(s);
  const bool te_loss = loss == "cross_entropy.te";

  w.to_forward();
  auto statistics = no_tensor, normed = Piece::input;
  if (!normed_before) {
    statistics = w.allocate("head.norm_statistics", linear.norm_statistics(d.local));
    normed = w.allocate("head.norm_output", d.boundary_bytes());
    linear.norm("head norm", true, d.local, d.h);
  }
  // Sequence parallelism: the gathered input lies in Megatron's persistent global memory buffer (state.cpp).
  if (d.sp) w.collective(Purpose::tp, "head all-gather", "all_gather", d.t, full, d.tp_link);
  const auto logits = w.allocate("head.logits", 2 * logits_count);
  w.launch("head forward", {"gemm.bf16.tn", {d.vocab, d.tokens, d.h}});
  std::uint32_t softmax = no_tensor;
  if (!te_loss) softmax = w.allocate("head.softmax", 4 * logits_count);
  const auto mask = w.allocate("head.target_mask", d.tokens), target = w.allocate("head.target", 8 * d.tokens);
  // A row's maximum, its index, the target's logit twice.
  const auto maximum = w.allocate("head.loss_rows", 4 * d.tokens), index = w.allocate("head.loss_rows", 8 * d.tokens),
             predicted = w.allocate("head.loss_rows", 2 * 4 * d.tokens);
  for (int i = 0; d.t > 1 && i < 3; ++i) {  // maximum, predicted logits, sum of exponentials
    w.collective(Purpose::tp, "loss all-reduce", "all_reduce", d.t, 4 * d.tokens, d.tp_link);
  }
  w.launch("loss forward", {loss + ".forward", {d.tokens, d.vocab}});
  w.free({maximum, index, predicted});
  if (!te_loss) w.free(logits);

  w.to_backward();
  auto dlogits = logits;
  if (!te_loss) dlogits = w.allocate("head.logits_gradient", 2 * logits_count);
  w.launch("loss backward", {loss + ".backward", {d.tokens, d.vocab}});
  w.free({softmax, mask, target});
  if (d.sp && !d.deferred_head_wgrad) {
    w.collective(Purpose::tp, "head all-gather in backward", "all_gather", d.t, full, d.tp_link, Stream::communication);
  }
  const auto norm_gradient = [&](Int bytes) {
    if (!normed_before) return w.allocate("head.norm_output_gradient", bytes);
    w.allocate(Piece::input_gradient);
    return std::uint32_t{Piece::input_gradient};
  };
  auto dnormed = d.sp ? w.allocate("head.norm_output_gradient", full) : norm_gradient(full);
  w.launch("head dgrad", {"gemm.bf16.nn", {d.h, d.tokens, d.vocab}});
  std::uint32_t whole = no_tensor;
  if (d.sp) {
    if (!d.deferred_head_wgrad) w.wait(Stream::communication);
    whole = dnormed;
    dnormed = norm_gradient(d.boundary_bytes());
    w.collective(Purpose::tp, "head reduce-scatter", "reduce_scatter", d.t, full, d.tp_link, Stream::communication);
  } else if (d.t > 1) {
    w.collective(Purpose::tp, "head all-reduce", "all_reduce", d.t, full, d.tp_link, Stream::communication);
  }
  if (d.deferred_head_wgrad) {
    // finish_embedding_wgrad_compute launches it after the last backward (state.cpp).
  } else if (d.fused_gradients) {
    w.launch("head wgrad", head_wgrad(d));
  } else {
    const auto gradient = w.allocate("weight gradients", 2 * d.h * d.vocab);
    w.launch("head wgrad", {"gemm.bf16.nt", {d.h, d.vocab, d.tokens}});
    w.launch("head gradient accumulation", {"add.f32", {d.h * d.vocab}});
    w.free(gradient);
  }
  if (d.t > 1) w.wait(Stream::communication);
  if (!d.deferred_head_wgrad) w.free({dlogits, normed});
  w.free(whole);
  if (!normed_before) {
    w.allocate(Piece::input_gradient);
    const auto dgamma = w.allocate("weight gradients", 2 * d.h * (d.rms_norm ? 1 : 2));
    linear.norm("head norm", false, d.local, d.h);
    w.launch("head norm gradient accumulation", {"small", {}});
    w.free({statistics, dnormed, Piece::input, dgamma});
  }
  if (d.deferred_head_wgrad) {
    w.to_weight_gradient();
    w.free({normed, dlogits});
  }
  if (!d.ep_overlap) return w.take();
  // Logits and the loss of every token are one node; `loss` is the mean that the training loop takes of it.
  auto piece = w.take_as_node(schedule::Node::Name::logits);
  piece.nodes.push_back({schedule::Node::Name::loss, {}, {}, {}});
  return piece;
}

}  // namespace pipewright::model
