// Word and position embedding in host order, from recorded events and core_r0.19.0 models/common/embeddings/
// language_model_embedding.py, tensor_parallel/layers.py (VocabParallelEmbedding):
//
//   ids -rows-> [b,s,h] -mask, t > 1-> (+ positions) -transpose, a view where b = 1-> [s,b,h] -reduce-scatter (SP) or
//   all-reduce-> -clone (SP)-> -dropout->
//
// Learned positions are added to whole sequences: the rows are all-reduced before, and scattered as a view after.
#include "embedding.hpp"

#include <algorithm>
#include <utility>

namespace pipewright::model {
namespace {

/// ATen's embedding_dense_backward_cuda sorts the token ids and sums partial segments of at most 10 rows in fp32
/// (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu, NROWS_PER_THREAD).
constexpr Int rows_per_segment = 10;

}  // namespace

std::uint32_t EmbeddingWriter::last(bool is_last, std::uint32_t out, Int bytes) {
  const auto tensor = is_last ? out : w_.tensor("embedding.rows", bytes);
  w_.allocate(tensor);
  return tensor;
}

void EmbeddingWriter::forward(std::uint32_t out, bool grad) {
  const Int full = 2 * d_.tokens * d_.h, count = d_.tokens * d_.h;
  const bool scales = d_.scales_embeddings, dropped = d_.hidden_dropout > 0, split = d_.t > 1;
  const bool goes_on = dropped || scales;
  if (split) {
    ids_ = w_.allocate("embedding.token_ids", 8 * d_.tokens);
    w_.launch("embedding mask", {"small", {}});
  }
  const bool transposes = d_.b > 1;
  auto rows = last(!learned_ && !transposes && !d_.sp && !goes_on, out, full);
  w_.launch("embedding forward", {"embedding.forward", {d_.tokens, d_.h}});
  if (split) {
    w_.launch("embedding mask", {"add", {count / 2}});  // masked_fill: half of an add's traffic
    w_.eager();
  }
  const auto next = [&](bool is_last, const std::string& name, profile::Key key, Int bytes) {
    const auto made = last(is_last, out, bytes);
    w_.launch(name, std::move(key));
    w_.free(std::exchange(rows, made));
  };
  if (learned_) {
    if (split) w_.collective(Purpose::tp, "embedding all-reduce", "all_reduce", d_.t, full, d_.tp_link);
    const auto positions = w_.allocate("embedding.rows", full);
    w_.launch("position embedding", {"embedding.forward", {d_.tokens, d_.h}});
    next(!transposes && !d_.sp && !goes_on, "position embedding added", {"add", {count}}, full);
    w_.eager();
    w_.free(positions);
  }
  if (transposes) next(!d_.sp && !goes_on, "embedding transpose", {"copy.strided", {d_.tokens, d_.h}}, full);
  if (d_.sp) {
    if (!learned_) {
      const auto scattered = w_.allocate("embedding.rows", d_.boundary_bytes());
      w_.collective(Purpose::tp, "embedding reduce-scatter", "reduce_scatter", d_.t, full, d_.tp_link);
      w_.free(std::exchange(rows, scattered));
    }
    // The scattered part is cloned so that the whole can go (clone_scatter_output_in_embedding).
    next(!goes_on, "embedding clone", {"copy.d2d", {d_.boundary_bytes()}}, d_.boundary_bytes());
  } else if (split && !learned_) {
    w_.collective(Purpose::tp, "embedding all-reduce", "all_reduce", d_.t, full, d_.tp_link);
  }
  if (dropped) {
    if (grad) mask_ = w_.allocate("dropout_mask", d_.local * d_.h);
    next(!scales, "embedding dropout", {"dropout.forward", {d_.local * d_.h}}, d_.boundary_bytes());
  }
  if (scales) next(true, "embedding scale", {"copy.d2d", {d_.boundary_bytes()}}, d_.boundary_bytes());
  if (!grad) w_.release(ids_);
}

/// The gradient of a table of `rows` rows, and its addition to the main gradient. A sum with others is a new tensor: an
/// output layer's stand-in is kept for the next microbatch (torch/csrc/autograd/input_buffer.cpp, accumulate).
void EmbeddingWriter::lookup_backward(const std::string& name, std::uint32_t gradient, Int rows,
                                      std::optional<Int> others) {
  const Int sorted = 8 * d_.tokens;
  const auto keys = w_.allocate("embedding.sorted_ids", sorted), order = w_.allocate("embedding.sorted_ids", sorted);
  auto table = w_.allocate_gradient(2 * rows * d_.h);
  const Int segments = d_.tokens / rows_per_segment + std::min(d_.tokens, rows);
  const auto offsets = w_.allocate("workspace", 8 * segments);
  w_.transient("workspace", 4 * segments * d_.h);
  w_.launch(name + " backward", {"embedding.backward", {d_.tokens, d_.h, rows}});
  w_.free({offsets, order, keys, gradient});
  if (others.value_or(0) > 0) {
    const auto sum = w_.allocate_gradient(2 * rows * d_.h);
    for (Int i = 0; i < *others; ++i) {
      w_.launch(name + " gradients of one table joined", {"add", {rows * d_.h}});
      w_.eager();
    }
    w_.free(std::exchange(table, sum));
  }
  if (others) w_.launch(name + " gradient accumulation", accumulation(d_, rows * d_.h));
  w_.free(table);
}

void EmbeddingWriter::backward(std::uint32_t gradient, std::optional<Int> others) {
  if (d_.frozen()) return w_.free({gradient, std::exchange(ids_, no_tensor), std::exchange(mask_, no_tensor)});
  if (d_.scales_embeddings) {
    const auto unscaled = w_.allocate("embedding.rows_gradient", d_.boundary_bytes());
    w_.launch("embedding scale backward", {"copy.d2d", {d_.boundary_bytes()}});
    w_.free(std::exchange(gradient, unscaled));
  }
  if (mask_ != no_tensor) {
    const auto undropped = w_.allocate("embedding.rows_gradient", d_.boundary_bytes());
    w_.launch("embedding dropout backward", {"dropout.backward", {d_.local * d_.h}});
    w_.free({std::exchange(gradient, undropped), std::exchange(mask_, no_tensor)});
  }
  if (d_.sp) {
    const auto gathered = w_.allocate("embedding.rows_gradient", 2 * d_.tokens * d_.h);
    w_.collective(Purpose::tp, "embedding all-gather in backward", "all_gather", d_.t, 2 * d_.tokens * d_.h,
                  d_.tp_link);
    w_.free(std::exchange(gradient, gathered));
  }
  if (learned_) lookup_backward("position embedding", no_tensor, positions_, 0);
  lookup_backward("embedding", gradient, d_.vocab, others);
  w_.release(ids_);
}

}  // namespace pipewright::model
