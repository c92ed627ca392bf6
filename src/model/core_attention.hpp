// Core attention: softmax(q k') v over the heads of a tensor-parallel rank.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "linear.hpp"

namespace pipewright::model {

/// Queries, keys and values stay with the caller, forward and backward.
class CoreAttention {
 public:
  /// `window`: keys that a query sees; 0: all before it. `quantized`: of a layer in FP8.
  CoreAttention(PieceBuilder& builder, const Dimensions& dimensions, Int window, bool quantized)
      : w_(builder),
        d_(dimensions),
        window_(window),
        quantizes_(quantized && dimensions.fp8_attention),
        linear_(builder, dimensions) {}

  /// Returns the output, which stays with the caller too; keeps what backward needs.
  std::uint32_t forward(bool grad);
  struct Gradients {
    std::uint32_t q, k, v;
  };
  /// Frees what forward kept, and `until_values` (the output's gradient, what only v keeps alive) once v's gradient
  /// exists.
  Gradients backward(std::initializer_list<std::uint32_t> until_values);
  std::vector<std::uint32_t> saved() const {
    return {ring_keys_, statistics_, later_statistics_, sinks_, keys_, values_, softmax_, probabilities_, mask_};
  }
  /// Unfused: the probabilities that the softmax and the product with the values save as objects of their own, so that
  /// offload brings back two. `reloaded`: the second, from then on this class's.
  std::uint32_t saved_twice() const { return separate() ? no_tensor : probabilities_; }
  void holds(std::uint32_t reloaded) { of_product_ = reloaded; }

  /// It keeps copies of q, k and v; the caller's own serve only a checkpoint.
  bool keeps_copies() const { return quantizes_ || exchanges_heads(); }

  /// It keeps keys and values in one tensor, the caller's own serve only a checkpoint.
  bool joins_keys() const;  ///< a ring of context parallelism

  /// Packed latent attention widens values to the queries' heads and trims the output (multi_latent_attention.py,
  /// _prepare_mla_core_attention_value); it then keeps the wide ones, not the caller's.
  bool pads_values() const { return d_.mla && !d_.packed.empty() && d_.v_dim != d_.head_dim; }

 private:
  void quantize_inputs();  ///< in FP8 (sdpa_figures.hpp)
  void order_scales();
  void release_copies();
  std::uint32_t fused_forward(bool grad);
  std::uint32_t unfused_forward(bool grad);
  Gradients fused_backward();
  std::uint32_t cast_sinks();
  std::uint32_t exchanged_forward(bool grad);
  Gradients exchanged_backward();
  void exchange(const std::string& name, Int bytes);
  std::uint32_t arrived(const char* owner, Int bytes);
  std::uint32_t gathered_forward(bool grad);
  Gradients gathered_backward();
  std::pair<std::uint32_t, std::uint32_t> gather();  ///< keys and values of all ranks, in order
  void chunk_kernel(const std::string& name, const std::string& pass, Int chunks);
  bool exchanges_heads() const { return d_.context.heads > 1; }
  Gradients unfused_backward(std::initializer_list<std::uint32_t> until_values);
  profile::Key fused_key(const std::string& pass) const;
  /// Without latent heads, windows, sinks and caps.
  const char* plain() const { return d_.attention_dropout > 0 ? "attention.dropout." : "attention."; }
  Kernel kernel(const std::string& name, const std::string& pass) const;
  profile::Key packed_key(const EqualSequences& as, const std::string& pass) const;
  std::uint32_t padded(const std::string& name, const char* owner);
  void causal_kernel(const std::string& name, const std::string& pass);
  void fused_kernel(const std::string& name, const std::string& pass);
  Int ring_bytes() const { return 2 * d_.tokens * (d_.kv + d_.v_width()); }  ///< keys and values of a rank
  std::uint32_t ring_forward();
  Gradients ring_backward();
  void ring_corrects();
  void ring_adds(Int step);
  std::uint32_t softmax();
  std::uint32_t softmax_backward(std::uint32_t gradient);
  std::uint32_t scaled_product(const std::string& owner, const std::string& name, const char* family);
  Int scores() const { return d_.b * d_.heads * d_.s * d_.s; }
  bool repeats() const { return d_.groups < d_.heads; }
  bool separate() const { return d_.attention_dropout > 0 || d_.softmax == Softmax::fp32; }
  void product(const std::string& name, const char* family, Int m, Int k);

  PieceBuilder& w_;
  const Dimensions& d_;
  const Int window_;
  const bool quantizes_;
  LinearWriter linear_;
  std::vector<Operand> quantized_;                                                 ///< q, k and v
  std::uint32_t q_ = no_tensor, k_ = no_tensor, v_ = no_tensor, out_ = no_tensor;  ///< a2a: whole sequences; v: padded
  std::uint32_t ring_keys_ = no_tensor;                                            ///< and values: the last that came
  std::uint32_t statistics_ = no_tensor, rng_ = no_tensor, sinks_ = no_tensor;     ///< fused
  std::uint32_t later_statistics_ = no_tensor, later_rng_ = no_tensor;             ///< all_gather: of the second chunk
  std::uint32_t keys_ = no_tensor, values_ = no_tensor, softmax_ = no_tensor, probabilities_ = no_tensor,
                mask_ = no_tensor, of_product_ = no_tensor;  ///< unfused
};

}  // namespace pipewright::model
