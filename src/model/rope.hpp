// The rotation of queries and keys before core attention.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "builder.hpp"

namespace pipewright::model {

/// Rotary embedding of [tokens, heads, width]: TE's one kernel, or PyTorch's t * cos + rotate_half(t) * sin
/// (models/common/embeddings/rope_utils.py:92-130), whose products save cos and sin. Packed sequences without the fused
/// kernel: PackedRope.
class Rope {
 public:
  Rope(PieceBuilder& builder, const Dimensions& dimensions, std::string name)
      : w_(builder), d_(dimensions), name_(std::move(name)) {}
  /// The input stays with the caller.
  std::uint32_t forward(Int heads, Int width, bool grad);
  /// Frees `gradient`, and what forward kept.
  std::uint32_t backward(Int heads, Int width, std::uint32_t gradient);

 private:
  // Time over that of a strided copy of as many elements (copy.strided), which also divides indices in every thread:
  // one H100, torch 2.11, 8192 tokens of 32 heads of 128, where that takes 82.8 us. A product with a table that has no
  // heads 97.4 us; halves, one of them strided, joined by cat 138.7 us.
  static constexpr double product = 1.18, halves_joined = 1.67;

  enum class Over : std::uint8_t { row, sequence, row_of_every_sequence };

  void fused_kernel(const char* name, profile::Key key);
  void eager(const char* name, profile::Key key, double share = 1, int launches = 1, Over over = Over::row);
  bool by_sequence() const;
  Over over() const { return by_sequence() ? Over::sequence : Over::row; }
  Int longest() const { return by_sequence() ? std::min(d_.tokens, d_.packed.front().longest) : d_.tokens; }
  std::uint32_t packed_angles(Int width);
  std::uint32_t rotate(Int heads, Int width, std::uint32_t out);
  std::uint32_t rotate_backward(Int heads, Int width, std::uint32_t gradient);
  std::uint32_t table(const char* name, Int width);
  void free_tables();

  PieceBuilder& w_;
  const Dimensions& d_;
  std::string name_;
  std::uint32_t cosines_ = no_tensor, sines_ = no_tensor;
};

/// M-RoPE's angles of all tokens, made once in a chunk's forward pass from three positions each (core_r0.19.0
/// models/common/embeddings/rotary_pos_embedding.py, MultimodalRotaryEmbedding; Megatron Bridge's of Qwen3-VL takes as
/// many steps). They live no longer here than they are made: 4 bytes a token and channel of a head.
void mrope_angles(PieceBuilder& w, const Dimensions& d);

}  // namespace pipewright::model
