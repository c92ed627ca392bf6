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
// dK and dV of all query heads are summed over the heads of a group. A sliding window of w keys is a second mask, key +
// w > query, as cudnn-frontend's sliding_window_mask orders them. A sink is one more score of every row that takes part
// in m and l only; its gradient is the sum of exp(sink - stats) D over rows. Dropout multiplies P by a mask M of random
// bits, drawn again in the backward pass, and by 1 / (1 - p); there D is multiplied by 1 - p, and
// dS = scale / (1 - p) · P ∘ (dP ∘ M - (1 - p) D), as cudnn-frontend's scaled_dot_product_flash_attention.h orders
// them.
#include <fmt/format.h>

#include <algorithm>
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
  std::int64_t window = 0;                                       ///< keys that a query sees; 0: all before it
  bool sink = false;
  bool dropout = false;

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

/// What masks and sinks need beside q, k and v; ids of what is absent are 0.
struct Extras {
  std::int64_t lowest = 0, window = 0, sink = 0, sink_gradient = 0, seed = 0, offset = 0, kept_scale = 0;
};

constexpr float kDropped = 0.1f;  ///< Megatron's default; no kernel's time depends on it

/// The random mask of all scores; `kept_scale` is what multiplies the kept ones.
struct Dropout {
  Tensor mask, kept_scale;
};

Dropout drawn(Graph& g, const Shape& s, Extras& extras) {
  const auto number = [&] { return g.tensor(CUDNN_DATA_INT64, {1, 1, 1, 1}, {1, 1, 1, 1}); };
  const auto seed = number(), offset = number();
  Dropout d{g.intermediate(CUDNN_DATA_FLOAT, s.scores()), scalar(g)};
  g.bernoulli(seed, offset, 1 - kDropped, d.mask);
  extras.seed = seed.id, extras.offset = offset.id, extras.kept_scale = d.kept_scale.id;
  return d;
}

/// x without what is dropped.
Tensor without_dropped(Graph& g, const Tensor& x, const Shape& s, const Tensor& mask) {
  const auto y = g.intermediate(CUDNN_DATA_FLOAT, s.scores());
  g.pointwise(CUDNN_POINTWISE_MUL, x, mask, y);
  return y;
}

// Scores with everything above the diagonal set to `lowest`, and everything left of the window.
Tensor masked(Graph& g, const Tensor& x, const Shape& s, Extras& extras) {
  const auto lowest = scalar(g);
  extras.lowest = lowest.id;
  const auto kept = [&](const Tensor& scores, cudnnPointwiseMode_t mode, const Tensor& a, const Tensor& b) {
    const auto keep = g.intermediate(CUDNN_DATA_BOOLEAN, s.scores());
    const auto y = g.intermediate(CUDNN_DATA_FLOAT, s.scores());
    g.compare(mode, a, b, keep);
    g.select(scores, lowest, keep, y);
    return y;
  };
  const auto index = [&](const Tensor& scores, std::int64_t axis) {
    const auto y = g.intermediate(CUDNN_DATA_INT32, s.scores());
    g.index(scores, axis, y);
    return y;
  };
  const auto row = index(x, 2), column = index(x, 3);
  const auto causal = kept(x, CUDNN_POINTWISE_CMP_GE, row, column);
  if (s.window == 0) return causal;
  const auto window = scalar(g);
  extras.window = window.id;
  const auto query = index(causal, 2), key = index(causal, 3);
  const auto end = g.intermediate(CUDNN_DATA_FLOAT, s.scores());
  g.pointwise(CUDNN_POINTWISE_ADD, key, window, end);
  return kept(causal, CUDNN_POINTWISE_CMP_GT, end, query);
}

/// One number a head.
Tensor of_heads(Graph& g, const Shape& s) { return g.tensor(CUDNN_DATA_FLOAT, {1, s.heads, 1, 1}, {s.heads, 1, 1, 1}); }

struct Forward {
  Graph graph;
  std::int64_t q = 0, k = 0, v = 0, o = 0, stats = 0, scale = 0;
  Extras extras = {};
};

std::shared_ptr<Forward> build_forward(cudnnHandle_t handle, const Shape& s) {
  auto f = std::make_shared<Forward>(Forward{Graph(handle)});
  Graph& g = f->graph;
  const auto q = sbhd(g, s.batch, s.queries, s.heads, s.dim), kt = sbhd(g, s.batch, s.keys, s.groups, s.dim, true),
             v = sbhd(g, s.batch, s.keys, s.groups, s.v_dim), o = sbhd(g, s.batch, s.queries, s.heads, s.v_dim);
  const auto stats = g.tensor(CUDNN_DATA_FLOAT, s.rows(), {s.heads * s.queries, s.queries, 1, 1});
  const auto scale = scalar(g);
  const auto product = g.intermediate(CUDNN_DATA_FLOAT, s.scores()),
             scaled = g.intermediate(CUDNN_DATA_FLOAT, s.scores());
  g.matmul(q, kt, product);
  g.pointwise(CUDNN_POINTWISE_MUL, product, scale, scaled);
  const auto x = masked(g, scaled, s, f->extras);
  const auto row = [&] { return g.intermediate(CUDNN_DATA_FLOAT, s.rows()); };
  const auto most = row(), sum = row(), log = row();
  const auto shifted = g.intermediate(CUDNN_DATA_FLOAT, s.scores()), e = g.intermediate(CUDNN_DATA_FLOAT, s.scores()),
             p = g.intermediate(CUDNN_DATA_BFLOAT16, s.scores());
  if (s.sink) {
    const auto sink = of_heads(g, s), scores_most = row(), sink_shifted = row(), sink_e = row(), scores_sum = row();
    f->extras.sink = sink.id;
    g.reduce(CUDNN_REDUCE_TENSOR_MAX, x, scores_most);
    g.pointwise(CUDNN_POINTWISE_MAX, scores_most, sink, most);
    g.pointwise(CUDNN_POINTWISE_SUB, x, most, shifted);
    g.pointwise(CUDNN_POINTWISE_EXP, shifted, e);
    g.pointwise(CUDNN_POINTWISE_SUB, sink, most, sink_shifted);
    g.pointwise(CUDNN_POINTWISE_EXP, sink_shifted, sink_e);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, scores_sum);
    g.pointwise(CUDNN_POINTWISE_ADD, scores_sum, sink_e, sum);
  } else {
    g.reduce(CUDNN_REDUCE_TENSOR_MAX, x, most);
    g.pointwise(CUDNN_POINTWISE_SUB, x, most, shifted);
    g.pointwise(CUDNN_POINTWISE_EXP, shifted, e);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  }
  g.pointwise(CUDNN_POINTWISE_LOG, sum, log);
  g.pointwise(CUDNN_POINTWISE_ADD, most, log, stats);
  if (s.dropout) {
    const auto undropped = g.intermediate(CUDNN_DATA_FLOAT, s.scores());
    g.pointwise(CUDNN_POINTWISE_DIV, e, sum, undropped);
    const auto drop = drawn(g, s, f->extras);
    g.pointwise(CUDNN_POINTWISE_MUL, without_dropped(g, undropped, s, drop.mask), drop.kept_scale, p);
  } else {
    g.pointwise(CUDNN_POINTWISE_DIV, e, sum, p);
  }
  g.matmul(p, v, o);
  f->q = q.id, f->k = kt.id, f->v = v.id, f->o = o.id, f->stats = stats.id, f->scale = scale.id;
  return g.build() ? f : nullptr;
}

struct Backward {
  Graph graph;
  std::int64_t q = 0, k = 0, v = 0, o = 0, stats = 0, d_o = 0, dq = 0, dk = 0, dv = 0, row_sums = 0, dq_sums = 0,
               scale = 0, one = 0;
  Extras extras = {};
};

std::shared_ptr<Backward> build_backward(cudnnHandle_t handle, const Shape& s) {
  auto f = std::make_shared<Backward>(Backward{Graph(handle)});
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
  const auto scale = scalar(g), one = scalar(g);
  const auto scores = [&] { return g.intermediate(CUDNN_DATA_FLOAT, s.scores()); };
  const auto transposed_scores = [&] {
    return g.intermediate(CUDNN_DATA_BFLOAT16, {s.batch, s.heads, s.keys, s.queries},
                          {s.heads * s.queries * s.keys, s.queries * s.keys, 1, s.keys});
  };
  /// A product of every head, summed over the heads of a group.
  const auto of_groups = [&](const auto& a, const auto& b, std::int64_t dim, const auto& sum) {
    if (s.heads == s.groups) return g.matmul(a, b, sum);
    const auto all_heads = g.intermediate(CUDNN_DATA_BFLOAT16, {s.batch, s.heads, s.keys, dim});
    g.matmul(a, b, all_heads);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, all_heads, sum);
  };

  const auto drop = s.dropout ? std::optional(drawn(g, s, f->extras)) : std::nullopt;
  const auto products = g.intermediate(CUDNN_DATA_FLOAT, {s.batch, s.heads, s.queries, s.v_dim},
                                       {s.heads * s.queries * s.v_dim, s.queries * s.v_dim, s.heads * s.v_dim, 1});
  const auto dots = g.intermediate(CUDNN_DATA_FLOAT, s.rows());
  g.pointwise(CUDNN_POINTWISE_MUL, d_o, o, products);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, products, dots);
  if (s.sink) {
    const auto sink = of_heads(g, s), gradient = of_heads(g, s);
    const auto row = [&] { return g.intermediate(CUDNN_DATA_FLOAT, s.rows()); };
    const auto sink_shifted = row(), sink_e = row(), parts = row();
    f->extras.sink = sink.id, f->extras.sink_gradient = gradient.id;
    g.pointwise(CUDNN_POINTWISE_SUB, sink, stats, sink_shifted);
    g.pointwise(CUDNN_POINTWISE_EXP, sink_shifted, sink_e);
    g.pointwise(CUDNN_POINTWISE_MUL, sink_e, dots, parts);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, parts, gradient);
  }
  g.pointwise(CUDNN_POINTWISE_MUL, dots, one, row_sums);

  const auto product = scores(), scaled = scores(), shifted = scores(), p = scores();
  g.matmul(q, kt, product);
  g.pointwise(CUDNN_POINTWISE_MUL, product, scale, scaled);
  g.pointwise(CUDNN_POINTWISE_SUB, scaled, stats, shifted);
  const auto x = masked(g, shifted, s, f->extras);
  g.pointwise(CUDNN_POINTWISE_EXP, x, p);
  const auto pt = transposed_scores();
  if (drop) {
    const auto kept = scores();
    g.pointwise(CUDNN_POINTWISE_MUL, without_dropped(g, p, s, drop->mask), drop->kept_scale, kept);
    g.reshape(kept, pt);
  } else {
    g.reshape(p, pt);
  }
  of_groups(pt, d_o, s.v_dim, dv);

  const auto dp = scores(), centred = scores(), weighted = scores(), ds = scores();
  g.matmul(d_o, vt, dp);
  g.pointwise(CUDNN_POINTWISE_SUB, drop ? without_dropped(g, dp, s, drop->mask) : dp, row_sums, centred);
  g.pointwise(CUDNN_POINTWISE_MUL, centred, p, weighted);
  if (drop) {
    const auto kept = scores();
    g.pointwise(CUDNN_POINTWISE_MUL, weighted, drop->kept_scale, kept);
    g.pointwise(CUDNN_POINTWISE_MUL, kept, scale, ds);
  } else {
    g.pointwise(CUDNN_POINTWISE_MUL, weighted, scale, ds);
  }
  const auto dst = transposed_scores();
  g.reshape(ds, dst);
  of_groups(dst, q, s.dim, dk);
  const auto k = g.intermediate(CUDNN_DATA_BFLOAT16, {s.batch, s.groups, s.keys, s.dim},
                                {s.groups * s.dim, s.dim, s.batch * s.groups * s.dim, 1});
  g.reshape(kt, k);
  g.matmul(ds, k, dq_sums);
  g.pointwise(CUDNN_POINTWISE_IDENTITY, dq_sums, dq);

  f->q = q.id, f->k = kt.id, f->v = vt.id, f->o = o.id, f->stats = stats.id, f->d_o = d_o.id, f->dq = dq.id;
  f->dk = dk.id, f->dv = dv.id, f->row_sums = row_sums.id, f->dq_sums = dq_sums.id;
  f->scale = scale.id, f->one = one.id;
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

namespace {

/// attention[.mla|.window|.sink|.dropout].forward.bf16 or backward; nullopt: another family.
std::optional<Shape> shape_of(const profile::Key& key) {
  const auto& d = key.dims;
  const auto is = [&](const char* kind) {
    return key.family == fmt::format("attention.{}forward.bf16", kind) ||
           key.family == fmt::format("attention.{}backward.bf16", kind);
  };
  if (is("mla.")) return Shape{d.at(0), d.at(1), d.at(2), d.at(3), d.at(3), d.at(4), d.at(5)};
  if (!is("") && !is("window.") && !is("sink.") && !is("dropout.")) return std::nullopt;
  Shape s{d.at(0), d.at(1), d.at(2), d.at(3), d.at(4), d.at(5), d.at(5)};
  if (is("window.") || is("sink.")) s.window = d.at(6) < s.keys ? d.at(6) : 0;
  s.sink = is("sink.");
  s.dropout = is("dropout.");
  return s;
}

}  // namespace

std::optional<Op> Attention::op(const profile::Key& key) {
  const auto shape = shape_of(key);
  if (!shape) return std::nullopt;
  const Shape& s = *shape;
  const bool backward = key.family.ends_with("backward.bf16");
  Lab& lab = impl_->lab;
  struct Numbers {
    float scale, lowest, window, one, kept_scale;
  };
  const Numbers numbers = {1.0f / std::sqrt(static_cast<float>(s.dim)), std::numeric_limits<float>::lowest(),
                           static_cast<float>(s.window), s.dropout ? 1 - kDropped : 1, 1 / (1 - kDropped)};

  const auto q = lab.take(Content::bf16, s.q_elements());
  auto k = lab.take(Content::bf16, s.k_elements()), v = lab.take(Content::bf16, s.v_elements()),
       o = lab.take(Content::scratch, s.o_elements() * 2),
       stats = lab.take(Content::scratch, s.batch * s.heads * s.queries * 4);
  const auto sink = lab.take(Content::f32, s.heads), sink_gradient = lab.take(Content::scratch, s.heads * 4),
             random = lab.take(Content::scratch, 2 * 16);  // seed and offset: any will do
  if (!q || !k || !v || !o || !stats || !sink || !sink_gradient || !random) return std::nullopt;
  for (auto* operand : {&k, &v, &o, &stats}) (*operand)->slots = std::min((*operand)->slots, q->slots);
  const auto forward = build_forward(impl_->handle, s);
  if (!forward) return std::nullopt;
  const auto workspace = lab.take(Content::scratch, forward->graph.workspace_bytes() + 512);
  if (!workspace) return std::nullopt;
  using Bound = std::vector<std::pair<std::int64_t, void*>>;
  const auto bind_extras = [=](Bound& bound, const Extras& extras, Numbers& values) {
    bound.emplace_back(extras.lowest, &values.lowest);
    if (extras.window != 0) bound.emplace_back(extras.window, &values.window);
    if (extras.sink != 0) bound.emplace_back(extras.sink, sink->base);
    if (extras.sink_gradient != 0) bound.emplace_back(extras.sink_gradient, sink_gradient->base);
    if (extras.seed == 0) return;
    bound.emplace_back(extras.seed, random->base);
    bound.emplace_back(extras.offset, random->base + 16);
    bound.emplace_back(extras.kept_scale, &values.kept_scale);
  };
  const auto run_forward = [=](int slot) {
    Numbers values = numbers;
    Bound bound = {{forward->q, q->at(slot)}, {forward->k, k->at(slot)},         {forward->v, v->at(slot)},
                   {forward->o, o->at(slot)}, {forward->stats, stats->at(slot)}, {forward->scale, &values.scale}};
    bind_extras(bound, forward->extras, values);
    forward->graph.execute(bound, workspace->base);
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
    Numbers values = numbers;
    Bound bound = {{graph->q, q->at(slot)},
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
                   {graph->scale, &values.scale},
                   {graph->one, &values.one}};
    bind_extras(bound, graph->extras, values);
    graph->graph.execute(bound, backward_workspace->base);
  };
  return op;
}

}  // namespace pipewright::capture
