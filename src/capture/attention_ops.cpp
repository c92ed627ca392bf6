// cuDNN's fused attention, causal, grouped queries or MLA (q and k wider than v), bf16, as Transformer Engine's fused
// attention runs it on layout [sequence, batch, head, dim]. The graph of the forward pass (Flash Attention 2, arXiv
// 2307.08691):
//
//   Q Kᵀ ─ × scale ─ causal mask ─┬─ row max m ─ exp(S - m) ─┬─ row sum l ─ P = exp / l ─ P V = O
//                                 └────────── stats = m + log l ┘
//
// and of the backward pass, with D = rowsum(dO ∘ O) and P = exp(S - stats):
//
//   dV = Pᵀ dO     dP = dO Vᵀ     dS = scale · P ∘ (dP - D)     dQ = dS K (through fp32)     dK = dSᵀ Q
//
// dK and dV of all query heads are summed over the heads of a group.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cudnn_graph.hpp"
#include "ops.hpp"

namespace pipewright::capture {
namespace {

using Graph = CudnnGraph;
using Tensor = CudnnGraph::Tensor;

struct Shape {
  std::int64_t batch, queries, keys, heads, groups, dim, v_dim;  ///< MLA: dim of q and k, v_dim of v and the output

  std::int64_t q_elements() const { return batch * queries * heads * dim; }
  std::int64_t k_elements() const { return batch * keys * groups * dim; }
  std::int64_t v_elements() const { return batch * keys * groups * v_dim; }
  std::int64_t o_elements() const { return batch * queries * heads * v_dim; }
  Graph::Dims scores() const { return {batch, heads, queries, keys}; }
  Graph::Dims rows() const { return {batch, heads, queries, 1}; }
};

// [sequence, batch, head, dim] in memory, seen as [batch, head, sequence, dim]; `transposed` swaps the last two.
Tensor sbhd(Graph& g, std::int64_t batch, std::int64_t sequence, std::int64_t heads, std::int64_t dim,
            bool transposed = false) {
  if (transposed)
    return g.tensor(CUDNN_DATA_BFLOAT16, {batch, heads, dim, sequence}, {heads * dim, dim, 1, batch * heads * dim});
  return g.tensor(CUDNN_DATA_BFLOAT16, {batch, heads, sequence, dim}, {heads * dim, dim, batch * heads * dim, 1});
}

Tensor scalar(Graph& g) { return g.tensor(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, true); }

// Scores with everything above the diagonal set to `lowest`.
Tensor masked(Graph& g, const Tensor& x, const Tensor& lowest, const Shape& s) {
  const auto row = g.intermediate(CUDNN_DATA_INT32, s.scores()), column = g.intermediate(CUDNN_DATA_INT32, s.scores());
  const auto keep = g.intermediate(CUDNN_DATA_BOOLEAN, s.scores());
  const auto y = g.intermediate(CUDNN_DATA_FLOAT, s.scores());
  g.index(x, 2, row);
  g.index(x, 3, column);
  g.compare(CUDNN_POINTWISE_CMP_GE, row, column, keep);
  g.select(x, lowest, keep, y);
  return y;
}

struct Forward {
  Graph graph;
  std::int64_t q, k, v, o, stats, scale, lowest;
};

std::shared_ptr<Forward> build_forward(cudnnHandle_t handle, const Shape& s) {
  auto f = std::make_shared<Forward>(Forward{Graph(handle), 0, 0, 0, 0, 0, 0, 0});
  Graph& g = f->graph;
  const auto q = sbhd(g, s.batch, s.queries, s.heads, s.dim), kt = sbhd(g, s.batch, s.keys, s.groups, s.dim, true),
             v = sbhd(g, s.batch, s.keys, s.groups, s.v_dim), o = sbhd(g, s.batch, s.queries, s.heads, s.v_dim);
  const auto stats = g.tensor(CUDNN_DATA_FLOAT, s.rows(), {s.heads * s.queries, s.queries, 1, 1});
  const auto scale = scalar(g), lowest = scalar(g);
  const auto product = g.intermediate(CUDNN_DATA_FLOAT, s.scores()),
             scaled = g.intermediate(CUDNN_DATA_FLOAT, s.scores());
  g.matmul(q, kt, product);
  g.pointwise(CUDNN_POINTWISE_MUL, product, scale, scaled);
  const auto x = masked(g, scaled, lowest, s);
  const auto most = g.intermediate(CUDNN_DATA_FLOAT, s.rows()), sum = g.intermediate(CUDNN_DATA_FLOAT, s.rows()),
             log = g.intermediate(CUDNN_DATA_FLOAT, s.rows());
  const auto shifted = g.intermediate(CUDNN_DATA_FLOAT, s.scores()), e = g.intermediate(CUDNN_DATA_FLOAT, s.scores()),
             p = g.intermediate(CUDNN_DATA_BFLOAT16, s.scores());
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, x, most);
  g.pointwise(CUDNN_POINTWISE_SUB, x, most, shifted);
  g.pointwise(CUDNN_POINTWISE_EXP, shifted, e);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  g.pointwise(CUDNN_POINTWISE_LOG, sum, log);
  g.pointwise(CUDNN_POINTWISE_ADD, most, log, stats);
  g.pointwise(CUDNN_POINTWISE_DIV, e, sum, p);
  g.matmul(p, v, o);
  f->q = q.id, f->k = kt.id, f->v = v.id, f->o = o.id, f->stats = stats.id, f->scale = scale.id, f->lowest = lowest.id;
  return g.build() ? f : nullptr;
}

struct Backward {
  Graph graph;
  std::int64_t q, k, v, o, stats, d_o, dq, dk, dv, row_sums, dq_sums, scale, lowest, one;
};

std::shared_ptr<Backward> build_backward(cudnnHandle_t handle, const Shape& s) {
  auto f = std::make_shared<Backward>(Backward{Graph(handle), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  Graph& g = f->graph;
  const auto q = sbhd(g, s.batch, s.queries, s.heads, s.dim), o = sbhd(g, s.batch, s.queries, s.heads, s.v_dim),
             d_o = sbhd(g, s.batch, s.queries, s.heads, s.v_dim), dq = sbhd(g, s.batch, s.queries, s.heads, s.dim),
             kt = sbhd(g, s.batch, s.keys, s.groups, s.dim, true),
             vt = sbhd(g, s.batch, s.keys, s.groups, s.v_dim, true), dk = sbhd(g, s.batch, s.keys, s.groups, s.dim),
             dv = sbhd(g, s.batch, s.keys, s.groups, s.v_dim);
  const Graph::Dims row_strides = {s.heads * s.queries, s.queries, 1, 1};
  const auto stats = g.tensor(CUDNN_DATA_FLOAT, s.rows(), row_strides);
  const auto row_sums = g.tensor(CUDNN_DATA_FLOAT, s.rows(), row_strides);
  const auto dq_sums = g.tensor(CUDNN_DATA_FLOAT, {s.batch, s.heads, s.queries, s.dim},
                                {s.heads * s.queries * s.dim, s.queries * s.dim, s.dim, 1});
  const auto scale = scalar(g), lowest = scalar(g), one = scalar(g);
  const auto scores = [&] { return g.intermediate(CUDNN_DATA_FLOAT, s.scores()); };
  const auto transposed_scores = [&] {
    return g.intermediate(CUDNN_DATA_BFLOAT16, {s.batch, s.heads, s.keys, s.queries},
                          {s.heads * s.queries * s.keys, s.queries * s.keys, 1, s.keys});
  };
  const auto all_heads = [&](std::int64_t dim) {
    return g.intermediate(CUDNN_DATA_BFLOAT16, {s.batch, s.heads, s.keys, dim});
  };

  const auto products = g.intermediate(CUDNN_DATA_FLOAT, {s.batch, s.heads, s.queries, s.v_dim},
                                       {s.heads * s.queries * s.v_dim, s.queries * s.v_dim, s.heads * s.v_dim, 1});
  const auto dots = g.intermediate(CUDNN_DATA_FLOAT, s.rows());
  g.pointwise(CUDNN_POINTWISE_MUL, d_o, o, products);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, products, dots);
  g.pointwise(CUDNN_POINTWISE_MUL, dots, one, row_sums);

  const auto product = scores(), scaled = scores(), shifted = scores(), p = scores();
  g.matmul(q, kt, product);
  g.pointwise(CUDNN_POINTWISE_MUL, product, scale, scaled);
  g.pointwise(CUDNN_POINTWISE_SUB, scaled, stats, shifted);
  const auto x = masked(g, shifted, lowest, s);
  g.pointwise(CUDNN_POINTWISE_EXP, x, p);
  const auto pt = transposed_scores();
  g.reshape(p, pt);
  if (s.heads == s.groups) {
    g.matmul(pt, d_o, dv);
  } else {
    const auto full = all_heads(s.v_dim);
    g.matmul(pt, d_o, full);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, full, dv);
  }

  const auto dp = scores(), centred = scores(), weighted = scores(), ds = scores();
  g.matmul(d_o, vt, dp);
  g.pointwise(CUDNN_POINTWISE_SUB, dp, row_sums, centred);
  g.pointwise(CUDNN_POINTWISE_MUL, centred, p, weighted);
  g.pointwise(CUDNN_POINTWISE_MUL, weighted, scale, ds);
  const auto dst = transposed_scores();
  g.reshape(ds, dst);
  if (s.heads == s.groups) {
    g.matmul(dst, q, dk);
  } else {
    const auto full = all_heads(s.dim);
    g.matmul(dst, q, full);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, full, dk);
  }
  const auto k = g.intermediate(CUDNN_DATA_BFLOAT16, {s.batch, s.groups, s.keys, s.dim},
                                {s.groups * s.dim, s.dim, s.batch * s.groups * s.dim, 1});
  g.reshape(kt, k);
  g.matmul(ds, k, dq_sums);
  g.pointwise(CUDNN_POINTWISE_IDENTITY, dq_sums, dq);

  f->q = q.id, f->k = kt.id, f->v = vt.id, f->o = o.id, f->stats = stats.id, f->d_o = d_o.id, f->dq = dq.id;
  f->dk = dk.id, f->dv = dv.id, f->row_sums = row_sums.id, f->dq_sums = dq_sums.id;
  f->scale = scale.id, f->lowest = lowest.id, f->one = one.id;
  return g.build() ? f : nullptr;
}

}  // namespace

struct Attention::Impl {
  explicit Impl(Lab& in) : lab(in) {
    check(cudnnCreate(&handle), "handle");
    check(cudnnSetStream(handle, lab.stream), "stream");
  }
  ~Impl() {
    if (handle != nullptr) cudnnDestroy(handle);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Lab& lab;
  cudnnHandle_t handle = nullptr;
};

Attention::Attention(Lab& lab) : impl_(std::make_unique<Impl>(lab)) {}
Attention::~Attention() = default;

std::optional<Op> Attention::op(const profile::Key& key) {
  const bool mla = key.family.starts_with("attention.mla.");
  const bool backward = key.family == "attention.backward.bf16" || key.family == "attention.mla.backward.bf16";
  if (!backward && key.family != "attention.forward.bf16" && key.family != "attention.mla.forward.bf16") {
    return std::nullopt;
  }
  const auto& d = key.dims;
  const Shape s = mla ? Shape{d.at(0), d.at(1), d.at(2), d.at(3), d.at(3), d.at(4), d.at(5)}
                      : Shape{d.at(0), d.at(1), d.at(2), d.at(3), d.at(4), d.at(5), d.at(5)};
  Lab& lab = impl_->lab;
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.dim)), lowest = std::numeric_limits<float>::lowest(),
              one = 1;

  const auto q = lab.take(Content::bf16, s.q_elements());
  auto k = lab.take(Content::bf16, s.k_elements()), v = lab.take(Content::bf16, s.v_elements()),
       o = lab.take(Content::scratch, s.o_elements() * 2),
       stats = lab.take(Content::scratch, s.batch * s.heads * s.queries * 4);
  if (!q || !k || !v || !o || !stats) return std::nullopt;
  for (auto* operand : {&k, &v, &o, &stats}) (*operand)->slots = std::min((*operand)->slots, q->slots);
  const auto forward = build_forward(impl_->handle, s);
  if (!forward) return std::nullopt;
  const auto workspace = lab.take(Content::scratch, forward->graph.workspace_bytes() + 512);
  if (!workspace) return std::nullopt;
  const auto run_forward = [=](int slot) {
    std::array<float, 2> values = {scale, lowest};
    forward->graph.execute({{forward->q, q->at(slot)},
                            {forward->k, k->at(slot)},
                            {forward->v, v->at(slot)},
                            {forward->o, o->at(slot)},
                            {forward->stats, stats->at(slot)},
                            {forward->scale, &values[0]},
                            {forward->lowest, &values[1]}},
                           workspace->base);
  };
  Op op;
  op.pause = 1.6;
  if (!backward) {
    op.launch = run_forward;
    return op;
  }
  const auto graph = build_backward(impl_->handle, s);
  if (!graph) return std::nullopt;
  const auto d_o = lab.take(Content::bf16, s.o_elements()), dq = lab.take(Content::scratch, s.q_elements() * 2),
             dk = lab.take(Content::scratch, s.k_elements() * 2), dv = lab.take(Content::scratch, s.v_elements() * 2),
             row_sums = lab.take(Content::scratch, s.batch * s.heads * s.queries * 4),
             dq_sums = lab.take(Content::scratch, s.q_elements() * 4),
             backward_workspace = lab.take(Content::scratch, graph->graph.workspace_bytes() + 512);
  if (!d_o || !dq || !dk || !dv || !row_sums || !dq_sums || !backward_workspace) return std::nullopt;
  // Real statistics of every slot first: exp(S - stats) of random ones would overflow.
  for (int slot = 0; slot < q->slots; ++slot) run_forward(slot);
  op.launch = [=](int slot) {
    std::array<float, 3> values = {scale, lowest, one};
    graph->graph.execute({{graph->q, q->at(slot)},
                          {graph->k, k->at(slot)},
                          {graph->v, v->at(slot)},
                          {graph->o, o->at(slot)},
                          {graph->stats, stats->at(slot)},
                          {graph->d_o, d_o->at(slot)},
                          {graph->dq, dq->at(slot)},
                          {graph->dk, dk->at(slot)},
                          {graph->dv, dv->at(slot)},
                          {graph->row_sums, row_sums->at(slot)},
                          {graph->dq_sums, dq_sums->at(slot)},
                          {graph->scale, &values[0]},
                          {graph->lowest, &values[1]},
                          {graph->one, &values[2]}},
                         backward_workspace->base);
  };
  return op;
}

}  // namespace pipewright::capture
