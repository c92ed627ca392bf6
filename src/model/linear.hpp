// Linear layers of Transformer Engine: GEMMs, what is saved for the weight gradient, FP8 casts, and the collectives of
// tensor parallelism around them (TE pytorch/module/linear.py, layernorm_linear.py).
//
//   column-parallel, sequence parallel:  x[S/t] --all-gather--> X[S] --GEMM--> y[S]      dX --reduce-scatter--> dx[S/t]
//   row-parallel, sequence parallel:     x[S] --GEMM--> Y[S] --reduce-scatter--> y[S/t]  dy[S/t] --all-gather--> dY[S]
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "builder.hpp"

namespace pipewright::model {

/// Which product of a linear layer: its output, or its input's gradient.
enum class Product : std::uint8_t { forward, dgrad, wgrad };
inline const char* suffix(Product product) { return product == Product::forward ? " forward" : " dgrad"; }

struct Linear {
  std::string name;          ///< "attention.qkv"
  Int in, out;               ///< features of a tensor-parallel rank
  Precision precision = {};  ///< of its products
  /// The whole weight on every tensor-parallel rank, which multiplies its own tokens (parallel_mode "duplicated").
  bool duplicated = false;
  bool row = false;          ///< row-parallel
  bool frozen = false;       ///< its weight has no gradient
  Int rank = 0;              ///< of its adapter; 0: none
  Int rows = 0;              ///< that it multiplies, of experts on one tensor-parallel rank; 0: the tokens
  bool ends = false;         ///< its input needs no gradient: nothing before it trains
  bool bf16_weight = false;  ///< its parameter stays in 16 bits beside FP8 parameters
  bool fp8() const { return precision.quantized(); }
};

/// A layer in the precision of its module (Dimensions::precision_of), frozen where the base model is. `rank`: of its
/// adapter.
inline Linear column_parallel(const Dimensions& d, LayerPrecision layer, std::string name, const std::string& module,
                              Int in, Int out, Int rank = 0, bool ends = false) {
  return {.name = std::move(name),
          .in = in,
          .out = out,
          .precision = d.precision_of(layer, module),
          .frozen = d.frozen(),
          .rank = rank,
          .ends = ends};
}
inline Linear row_parallel(const Dimensions& d, LayerPrecision layer, std::string name, const std::string& module,
                           Int in, Int out, Int rank = 0, bool ends = false) {
  Linear linear = column_parallel(d, layer, std::move(name), module, in, out, rank, ends);
  linear.row = true;
  return linear;
}
inline Linear duplicated(const Dimensions& d, LayerPrecision layer, std::string name, const std::string& module, Int in,
                         Int out, Int rank = 0, bool ends = false) {
  Linear linear = column_parallel(d, layer, std::move(name), module, in, out, rank, ends);
  linear.duplicated = true;
  return linear;
}

/// What an adapter keeps for its backward pass.
struct Adapted {
  std::uint32_t input = no_tensor;  ///< none: the caller's tensor
  std::uint32_t low = no_tensor;
  bool gathers = false;  ///< the input by a collective of its own, whose backward scatters its gradient
};

/// A GEMM operand: its row-wise copy and, where the recipe needs one, the transposed or column-wise (precision.hpp).
struct Operand {
  std::uint32_t data = no_tensor, transpose = no_tensor;
};

/// The input of a column-parallel linear layer with its fused norm.
struct Normed {
  std::uint32_t statistics = no_tensor;
  Operand out;
  Adapted adapted;
};

/// Weight gradients that delay_wgrad_compute puts off until backward_dw (TE WeightGradStore); else they run at once.
class WeightGradients {
 public:
  explicit WeightGradients(bool delays) : delays_(delays) {}
  bool delays() const { return delays_; }
  void put(std::function<void()> compute) {
    if (delays_) {
      waiting_.push_back(std::move(compute));
    } else {
      compute();
    }
  }
  void run(bool latest_first = false) {
    if (latest_first) std::reverse(waiting_.begin(), waiting_.end());
    for (const auto& compute : waiting_) compute();
    waiting_.clear();
  }

 private:
  bool delays_;
  std::vector<std::function<void()>> waiting_;
};

class LinearWriter {
 public:
  LinearWriter(PieceBuilder& builder, const Dimensions& dimensions)
      : weight_gradients(dimensions.delayed_wgrad), w_(builder), d_(dimensions) {}

  WeightGradients weight_gradients;

  /// Norm and linear layer as one TE module; returns the output. Without `grad` nothing is left but the output.
  std::uint32_t norm_linear(const Linear& linear, const std::string& owner, Normed& saved, bool grad);
  /// Frees what norm_linear saved but the module's input; returns the gradient of the norm's input, before the residual
  /// is added. Frees `dout`.
  std::uint32_t norm_linear_backward(const Linear& linear, Normed& saved, std::uint32_t dout);
  /// Column-parallel or duplicated, without a norm: `input` stays with the caller, as in row_linear.
  std::uint32_t column_linear(const Linear& linear, const std::string& owner, Operand& saved, bool grad,
                              bool keeps_original = false);
  /// Only the weight and input gradient of the linear layer (the norm may be separate); frees what was saved, not
  /// `dout`. Returns `din`, a new one where none is given (not with sequence parallelism).
  std::uint32_t column_backward(const Linear& linear, Operand& saved, bool keeps_original = false,
                                std::uint32_t din = no_tensor);
  /// Norm of `rows` x `cols`, backward; returns `din`, a new one where none is given. Frees statistics and `dout`.
  std::uint32_t norm_backward(const std::string& name, std::uint32_t statistics, std::uint32_t dout, Int rows, Int cols,
                              std::uint32_t din = no_tensor);

  /// `input` stays with the caller; `saved` is what the layer keeps of it in FP8 (nothing in bf16, or when the caller
  /// keeps the original for the backward pass: `keeps_original`).
  std::uint32_t row_linear(const Linear& linear, const std::string& owner, Operand& saved, bool grad,
                           bool keeps_original);
  /// Returns the gradient of the input; `input` is the bf16 tensor where nothing was saved. Frees `saved`.
  std::uint32_t row_backward(const Linear& linear, Operand& saved, bool keeps_original);

  /// y plus the output of the layer's adapter, if it has one; frees y. `normed`: the input of a column-parallel layer,
  /// taken over. The input of a row-parallel one stays with the caller until backward.
  std::uint32_t adapt(const Linear& linear, std::uint32_t y, const std::string& owner, std::uint32_t normed,
                      Adapted& saved, bool grad);
  /// The input's gradient through the adapter; none without one.
  std::uint32_t adapt_backward(const Linear& linear, Adapted& saved);
  /// Adds that to the gradient through the layer itself, in place, and frees it.
  void add_through(const Linear& linear, std::uint32_t through);

  /// What a norm's forward kernel writes: bf16, the same and its largest value (current scaling), or FP8 (delayed).
  enum class NormOutput : std::uint8_t { plain, with_maximum, fp8 };
  profile::Key norm_key(bool forward, Int rows, Int cols) const;  ///< which kernel of Transformer Engine a norm takes
  void norm(const std::string& name, bool forward, Int rows, Int cols, NormOutput output = NormOutput::plain);
  /// A bias that another kernel added: its gradient is PyTorch's sum over the rows of a matrix. Returns it.
  std::uint32_t bias_gradient(const std::string& name, Int rows, Int columns);
  Int norm_statistics(Int rows) const;  ///< bytes of rsigma (and mu)
  /// Of a mixer's small parameter. Its kernels compute it whether it is wanted or not (no ctx.needs_input_grad): beside
  /// adapters it is dropped at once.
  void small_gradient(const std::string& name, Int elements);

  Operand quantize(const Precision& precision, const std::string& name, Int rows, Int cols, bool row, bool transpose,
                   bool with_amax = true, bool shard = false);
  /// Of the rows of several experts, each with a scale of its own.
  Operand quantize_each(const Precision& precision, const std::string& name, Int experts, Int rows, Int cols, bool row,
                        bool transpose);
  void cast_weight(const Linear& linear, Int experts = 1);  ///< of so many experts alike
  void cast_by_block(const Precision& precision, const std::string& name, Int rows, Int cols, bool both) {
    launch_all(casts_by_block(precision, name, rows, cols, both));
  }
  void release(Operand operand);

 private:
  /// The matrix product of a column-parallel layer whose (quantized) input is `saved`; keeps of it what backward needs.
  std::uint32_t column_product(const Linear& linear, const std::string& owner, Operand& saved, bool grad);
  Operand copies(const Precision& precision, const std::string& name, Int rows, Int cols, bool& row, bool& transpose);
  using NamedKey = std::pair<std::string, profile::Key>;
  using Casts = std::vector<NamedKey>;
  /// `off_tiles`: of experts, whose rows are not known one by one; else fills_no_tiles() says it.
  static Casts casts(const Precision& precision, const std::string& name, Int rows, Int cols, bool row, bool transpose,
                     bool off_tiles);
  static Casts casts_by_block(const Precision& precision, const std::string& name, Int rows, Int cols, bool both);
  void launch_all(std::span<const NamedKey> casts);
  static constexpr std::string_view other_experts = " of the other experts";
  void launch_others(std::span<const NamedKey> casts, Int others, std::string_view which);
  void scales(const Linear& linear, Product product, Int rows);
  std::uint32_t joined(const std::string& name, std::uint32_t gathered, const std::string& owner, Int bytes);
  /// Is the second copy of a tensor (a part of a sequence-parallel one: `shard`) made with the first?
  static bool second_copy_now(const Precision& p, bool shard) {
    return p.two_copies() && (!shard || p.gathers_second_copy());
  }
  static bool transposes_gathered(const Precision& p) { return p.two_copies() && !p.gathers_second_copy(); }
  Int gathered_bytes(const Linear& linear, Int width, bool columnwise) const {
    const Precision& p = linear.precision;
    if (!p.quantized()) return 2 * d_.tokens * width;
    if (!linear.row && linear.rank > 0 && !d_.tp_overlap) return 2 * d_.tokens * width;  // TE returns it to the adapter
    // Scales of 128 x 128 or 1 x 128 blocks are few; they travel apart.
    return p.scaled_by_block() ? p.copy_bytes(d_.tokens, width, columnwise) : d_.tokens * width;
  }
  Int rows(const Linear& linear) const {
    return linear.rows > 0 ? linear.rows : linear.duplicated ? d_.local : d_.tokens;
  }
  bool gathers(const Linear& linear) const { return d_.sp && !linear.duplicated; }
  bool reduces(const Linear& linear) const { return d_.t > 1 && !linear.duplicated; }
  void gemm(const Linear& linear, Product product);
  void weight_gradient(const Linear& linear, double sm_share);
  void adapter_wgrad(const Linear& linear, Int in, Int out);
  void into_userbuffers(const std::string& name, Int gathered);
  /// A collective on the compute stream; with tp_comm_overlap all but one chunk of it travels beside the GEMM
  /// (reference 8.17), and its buffer is a userbuffer outside the allocator.
  void gather(const Linear& linear, const std::string& name, Int bytes, Stream stream);  ///< by NCCL
  void gather_before(const Linear& linear, const std::string& name, Int bytes);
  void scatter_after(const std::string& name, Int bytes);
  std::uint32_t gathered_buffer(const std::string& owner, Int bytes);

  /// Userbuffers: how the next matrix product travels with its collective (TE pytorch/module/base.py:336-387): a ring
  /// of t parts, each computed while the next one arrives (qkv, fc1 forward, proj, fc2 dgrad), or 4 parts whose results
  /// are scattered while the next is computed (proj, fc2 forward), or, where that is tuned, t parts that are sent to
  /// the ranks they are for and added there. Bulk overlap (qkv, fc1 backward) splits nothing.
  enum class Overlap : std::uint8_t { none, ring_gather, pipelined_scatter, ring_scatter };
  struct Pending {
    Overlap overlap = Overlap::none;
    std::string name;
    Int bytes = 0;
  };
  static constexpr Int pipelined_parts = 4;
  // What TE launches for a part, in its own loop (launch records of a step with userbuffers, TE 2.20.2): the product
  // and a memset of its workspace; send, receive and the copy of a chunk; the copy into a buffer and the gather.
  static constexpr int launches_of_product = 2, launches_of_transfer = 3, launches_of_bulk_gather = 2;
  /// While it lives, matrix products have only a share of the multiprocessors.
  class Margin {
   public:
    Margin(double& share, double value) : share_(share), before_(std::exchange(share, value)) {}
    ~Margin() { share_ = before_; }
    Margin(const Margin&) = delete;
    Margin& operator=(const Margin&) = delete;

   private:
    double& share_;
    double before_;
  };
  double left_by(Int held) const;
  void gemm_part(const Linear& linear, Product product, Int parts);
  Pending overlap_;

  PieceBuilder& w_;
  const Dimensions& d_;
  double sm_share_ = left_by(0);
};

}  // namespace pipewright::model
