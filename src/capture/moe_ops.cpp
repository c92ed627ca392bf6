// Memory-bound families of mixture-of-experts layers and MLA (kernels/moe_kernels.cu).
// Tokens go to experts evenly. What the families' dimensions leave open: 8 experts where a token has one or two of them
// (Mixtral), else 16 for each (128 and top 8: Qwen3 MoE); rows come from two expert-parallel ranks of 16 experts
// together.
#include <unordered_map>

#include "kernels/moe_kernels.hpp"
#include "setup.hpp"

namespace pipewright::capture {
namespace {

using namespace kernels;

constexpr std::int64_t kSortedChunks = 32;

std::int64_t experts_of(std::int64_t topk) { return topk <= 2 ? 8 : 16 * topk; }

/// The map from tokens to the rows of their copies, of one slot.
struct Routing {
  std::int64_t tokens, experts;
  Operand routing, ids, counts;

  Routing(Setup& s, std::int64_t in_tokens, std::int64_t topk)
      : tokens(in_tokens),
        experts(experts_of(topk)),
        routing(s.out(tokens * experts)),
        ids(s.out(tokens * (2 * experts + 1) * 4)),
        counts(s.out(experts * (tokens / 1024 + 1) * 4)) {
    if (!s.fits()) return;
    balanced_routing(routing.at<unsigned char>(0), tokens, experts, topk, s.stream());
    row_id_maps(routing.at<unsigned char>(0), ids.at<std::int32_t>(0), counts.at<std::int32_t>(0), tokens, experts,
                s.stream());
  }
  const std::int32_t* map() const { return ids.at<std::int32_t>(0); }
};

Launch copy_tokens(Setup& s, const Dims& d) {
  const auto tokens = d.at(0), hidden = d.at(1), topk = d.at(2);
  const Routing routing(s, tokens, topk);
  const auto x = s.bf16(tokens * hidden), y = s.out(tokens * topk * hidden * 2), p = s.f32(tokens * routing.experts),
             q = s.f32(tokens * topk);
  s.just_written(x, tokens * hidden);
  return [=, stream = s.stream()](int i) {
    permute(x.at(i), routing.map(), p.at<float>(i), y.at(i), q.at<float>(i), tokens, hidden, routing.experts, stream);
  };
}

Launch sum_copies(Setup& s, const Dims& d) {
  const auto tokens = d.at(0), hidden = d.at(1), topk = d.at(2);
  const Routing routing(s, tokens, topk);
  const auto x = s.bf16(tokens * topk * hidden), y = s.out(tokens * hidden * 2);
  return [=, stream = s.stream()](int i) {
    unpermute(x.at(i), routing.map(), y.at(i), tokens, hidden, routing.experts, stream);
  };
}

Launch sorted(Setup& s, const Dims& d) {
  const auto rows = d.at(0), cols = d.at(1);
  const auto x = s.bf16(rows * cols), y = s.out(rows * cols * 2), to = s.out(rows * 4);
  if (s.fits())
    for (int i = 0; i < to.slots; ++i) sort_map(to.at<std::int32_t>(i), rows, kSortedChunks, s.stream());
  return [=, stream = s.stream()](int i) { sort_chunks(x.at(i), to.at<std::int32_t>(i), y.at(i), rows, cols, stream); };
}

Launch weighted_swiglu(Setup& s, const Dims& d, bool backward) {
  const auto rows = d.at(0), ffn = d.at(1);
  const auto x = s.bf16(rows * 2 * ffn), p = s.f32(rows), y = s.out(rows * ffn * (backward ? 4 : 2));
  if (!backward) {
    return [=, stream = s.stream()](int i) {
      weighted_swiglu_forward(x.at(i), p.at<float>(i), y.at(i), rows, ffn, stream);
    };
  }
  const auto dy = s.bf16(rows * ffn), dp = s.f32(rows);
  s.just_written(dy, rows * ffn);
  return [=, stream = s.stream()](int i) {
    weighted_swiglu_backward(x.at(i), dy.at(i), p.at<float>(i), y.at(i), dp.at<float>(i), rows, ffn, stream);
  };
}

/// Widths up to 64 are the rotated part of a query's head, in place among 192; wider ones a key and a value, joined
/// with the rotated part.
Factory rope_of(bool backward) {
  return [=](Setup& s, const Dims& d) -> Launch {
    constexpr std::int64_t rotated_width = 64;
    const auto tokens = d.at(0), heads = d.at(1), dim = d.at(2);
    const bool query = dim <= rotated_width;
    const auto stride = query ? 3 * dim : dim, rotated = std::min(dim, rotated_width);
    const auto x = s.take(Content::bf16, tokens * heads * stride, query), angles = s.f32(tokens * rotated),
               y = query ? x : s.out(tokens * heads * stride * 2);
    return [=, stream = s.stream()](int i) {
      rope_mla(backward, x.at(i), angles.at<float>(i), y.at(i), tokens, heads, dim, stride, rotated, stream);
    };
  };
}

const std::unordered_map<std::string, Factory>& factories() {
  static const std::unordered_map<std::string, Factory> table = {
      {"moe.swiglu.forward", [](Setup& s, const Dims& d) { return weighted_swiglu(s, d, false); }},
      {"moe.swiglu.backward", [](Setup& s, const Dims& d) { return weighted_swiglu(s, d, true); }},
      {"moe.permute.forward", copy_tokens},
      {"moe.permute.backward", sum_copies},
      {"moe.unpermute.forward", sum_copies},
      {"moe.unpermute.backward", copy_tokens},
      {"moe.sort_chunks", sorted},
      {"rope.mla.forward", rope_of(false)},
      {"rope.mla.backward", rope_of(true)}};
  return table;
}

}  // namespace

std::optional<Op> moe_op(Lab& lab, const profile::Key& key) {
  const auto factory = factories().find(key.family);
  if (factory == factories().end()) return std::nullopt;
  return set_up(lab, factory->second, key.dims);
}

}  // namespace pipewright::capture
