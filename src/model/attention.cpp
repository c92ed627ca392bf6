// Grouped-query attention in host order, as Megatron Core's SelfAttention with Transformer Engine modules runs it.
// Sequence of allocations and launches: recorded allocator events and kernel traces of core_r0.19.0 with TE 2.20
// (S tokens, bf16):
//
//   X -norm-> n1 -qkv GEMM-> QKV -copy-> q0 -rope-> q,k  -copy-> v  -attention-> O,lse -proj-> P
//
// Saved for backward: statistics, n1, q, k, v, O, lse (reference 5.1). QKV and q0 go when the projection's output
// exists. Backward frees each when its gradient is done.
#include "attention.hpp"

#include "linear.hpp"

namespace pipewright::model {
namespace {

class GroupedQueryAttention : public Attention {
 public:
  GroupedQueryAttention(PieceBuilder& builder, const Dimensions& dimensions, bool fp8)
      : w_(builder),
        d_(dimensions),
        linear_(builder, dimensions),
        qkv_{"attention.qkv", d_.h, d_.qkv(), fp8},
        proj_{"attention.proj", d_.q, d_.h, fp8} {}

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward() override;

 private:
  void core_attention(bool grad);
  void attention_kernel(const std::string& name, const char* family);

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;
  Linear qkv_, proj_;

  Normed norm_;
  Operand proj_input_;
  std::uint32_t mixed_ = no_tensor, q_ = no_tensor, k_ = no_tensor, v_ = no_tensor, o_ = no_tensor, lse_ = no_tensor,
                rng_ = no_tensor, q_raw_ = no_tensor, k_raw_ = no_tensor, qk_statistics_ = no_tensor;
};

void GroupedQueryAttention::attention_kernel(const std::string& name, const char* family) {
  // Context parallelism (ring): each of cp steps computes queries of this rank against the keys of one rank. With the
  // load-balanced split all but the first cover half of the square, as the causal one does.
  for (Int step = 0; step < d_.cp; ++step) {
    w_.launch(name, {family, {d_.b, d_.s, d_.s, d_.heads, d_.groups, d_.head_dim}});
    if (step + 1 < d_.cp) {
      w_.launch_on(Stream::communication, Purpose::cp, name + " key and value exchange",
                   {"send_recv." + d_.cp_link, {2 * 2 * d_.tokens * d_.kv}}, d_.cp_link);
      w_.wait(Stream::communication);
    }
  }
}

/// What a core attention checkpoint replays: v made contiguous, output, softmax statistics.
void GroupedQueryAttention::core_attention(bool grad) {
  v_ = w_.allocate("attention.v", 2 * d_.tokens * d_.kv);
  w_.launch("attention.v copy", {"copy.strided", {d_.tokens, d_.kv}});
  o_ = w_.allocate("attention.core_output", 2 * d_.tokens * d_.q);
  rng_ = w_.allocate("attention.rng_state", 16);
  lse_ = w_.allocate("attention.softmax_lse", 4 * d_.tokens * d_.heads);
  attention_kernel("attention.core forward", "attention.forward.bf16");
  if (!grad) {
    w_.free({rng_, lse_, v_});
    rng_ = lse_ = v_ = no_tensor;
  }
}

std::uint32_t GroupedQueryAttention::forward(bool grad) {
  mixed_ = linear_.norm_linear(qkv_, "attention.qkv", norm_, grad);
  q_raw_ = w_.allocate("attention.q_contiguous", 2 * d_.tokens * d_.q);
  w_.launch("attention.q copy", {"copy.strided", {d_.tokens, d_.q}});
  if (d_.qk_norm) {
    // The norms make their inputs contiguous and save them.
    k_raw_ = w_.allocate("attention.k_contiguous", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k copy", {"copy.strided", {d_.tokens, d_.kv}});
    qk_statistics_ = w_.allocate("attention.qk_norm_statistics", 4 * d_.tokens * (d_.heads + d_.groups));
  }
  std::uint32_t q_normed = no_tensor, k_normed = no_tensor;
  if (d_.qk_norm) {
    q_normed = w_.allocate("attention.q_normed", 2 * d_.tokens * d_.q);
    linear_.norm("attention.q norm", true, d_.tokens * d_.heads, d_.head_dim);
    k_normed = w_.allocate("attention.k_normed", 2 * d_.tokens * d_.kv);
    linear_.norm("attention.k norm", true, d_.tokens * d_.groups, d_.head_dim);
  }
  const bool rotates = d_.rope;
  if (rotates) {
    q_ = w_.allocate("attention.q", 2 * d_.tokens * d_.q);
    w_.launch("attention.q rope", {"rope.forward", {d_.tokens, d_.heads, d_.head_dim}});
    k_ = w_.allocate("attention.k", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k rope", {"rope.forward", {d_.tokens, d_.groups, d_.head_dim}});
  } else {
    q_ = d_.qk_norm ? q_normed : q_raw_;
    if (d_.qk_norm) {
      k_ = k_normed;
    } else {
      k_ = w_.allocate("attention.k", 2 * d_.tokens * d_.kv);
      w_.launch("attention.k copy", {"copy.strided", {d_.tokens, d_.kv}});
    }
  }
  core_attention(grad && !d_.recompute_attention);
  const auto out = linear_.row_linear(proj_, "attention.proj_output", proj_input_, grad, d_.recipe != Recipe::delayed);
  // Frames return: copies that only the forward pass needed go. A core attention checkpoint saved v as a view of the
  // whole projection output, which therefore stays.
  if (rotates) w_.free({q_normed, k_normed});
  const bool keep_raw = grad && d_.qk_norm;
  if (!keep_raw) {
    if (rotates || d_.qk_norm) w_.free(q_raw_);
    w_.free({k_raw_, qk_statistics_});
    q_raw_ = k_raw_ = qk_statistics_ = no_tensor;
  }
  if (!grad) w_.free(k_);
  if (!grad || !d_.recompute_attention) {
    w_.free(mixed_);
    mixed_ = no_tensor;
  }
  if (!grad) {
    w_.free({q_, o_});
    q_ = k_ = o_ = no_tensor;
  }
  return out;
}

std::uint32_t GroupedQueryAttention::backward() {
  const auto dout = linear_.row_backward(proj_, proj_input_, d_.recipe != Recipe::delayed);
  if (d_.recompute_attention) {
    w_.free(o_);  // only the projection had saved it
    w_.recomputing(true);
    core_attention(true);
    w_.recomputing(false);
  }
  const auto dq = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
  const auto dk = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
  const auto dv = w_.allocate("attention.v_gradient", 2 * d_.tokens * d_.kv);
  // cuDNN: dq in fp32; dk and dv of every query head before they are summed over a group; row sums of dO x O.
  const Int expanded = d_.groups < d_.heads ? 2 * 2 * d_.tokens * d_.q : 0;
  w_.transient("workspace", 4 * d_.tokens * d_.q + expanded + 4 * d_.tokens * d_.heads + 256);
  attention_kernel("attention.core backward", "attention.backward.bf16");
  w_.free({dout, q_, k_, v_, o_, lse_, rng_, mixed_});
  q_ = k_ = v_ = o_ = lse_ = rng_ = mixed_ = no_tensor;

  auto dk_raw = dk, dq_raw = dq;
  if (d_.rope) {
    dk_raw = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
    w_.launch("attention.k rope backward", {"rope.backward", {d_.tokens, d_.groups, d_.head_dim}});
    w_.free(dk);
    dq_raw = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
    w_.launch("attention.q rope backward", {"rope.backward", {d_.tokens, d_.heads, d_.head_dim}});
    w_.free(dq);
  }
  if (d_.qk_norm) {
    const auto dk_normed = dk_raw, dq_normed = dq_raw;
    dk_raw = w_.allocate("attention.k_gradient", 2 * d_.tokens * d_.kv);
    linear_.norm("attention.k norm", false, d_.tokens * d_.groups, d_.head_dim);
    w_.free({dk_normed, k_raw_});
    dq_raw = w_.allocate("attention.q_gradient", 2 * d_.tokens * d_.q);
    linear_.norm("attention.q norm", false, d_.tokens * d_.heads, d_.head_dim);
    w_.free({dq_normed, q_raw_, qk_statistics_});
    q_raw_ = k_raw_ = qk_statistics_ = no_tensor;
  }
  const auto dmixed = w_.allocate("attention.qkv_gradient", 2 * d_.tokens * d_.qkv());
  w_.launch("attention.qkv gradient", {"cat", {d_.tokens, d_.qkv()}});
  w_.free({dq_raw, dk_raw, dv});
  return linear_.norm_linear_backward(qkv_, norm_, dmixed);
}

}  // namespace

std::unique_ptr<Attention> grouped_query_attention(PieceBuilder& builder, const Dimensions& dimensions, bool fp8) {
  return std::make_unique<GroupedQueryAttention>(builder, dimensions, fp8);
}

}  // namespace pipewright::model
