// What Transformer Engine's recipes make of an operand: which copies, of how many bytes, by which kernels.
//
//   per tensor   Hopper multiplies FP8 in TN only: a row-wise copy and a transposed one, FP8 gathered and transposed
//                after. Blackwell multiplies every layout: one copy.
//   blockwise    row-wise and transposed copy with fp32 scales, Hopper
//   mxfp8        scales run along the product's inner dimension, so the forward's copy (row-wise) cannot serve the
//                weight gradient: a column-wise copy beside it, made by the same kernel, gathered as it is
//   nvfp4        as mxfp8; the column-wise copy is transposed, its tokens mixed by a random Hadamard transform
//
// cuBLAS takes scales of blocks in an order of its own. Where a cast does not write them so, kernels order them anew
// before every product (TE common/swizzle): those of activations and gradients until TE 2.12 (NVFP4: 2.17), of weights
// until TE 2.18, of weights that are kept quantized always (optimize_for_gemm and _enable_weight_preswizzle of
// pytorch/module/*.py).
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::model {

using Int = scenario::Int;

/// What linear layers compute in: bf16, or one of Transformer Engine's recipes (reference 5.1).
enum class Recipe : std::uint8_t { bf16, tensorwise, delayed, blockwise, mxfp8, nvfp4 };

/// Throws UsageError where Transformer Engine refuses the recipe on this GPU, or where it is not modelled.
Recipe recipe_of(const scenario::Scenario& scenario, const profile::Device& gpu);
/// By its name in Megatron, or "bf16", which the setting `key` asks for.
Recipe recipe_named(const scenario::Scenario& scenario, const profile::Device& gpu, const std::string& name,
                    const std::string& key);

/// Elements of a weight that share a scale in NVFP4: 16 rows of 16 (TE's 2D quantization).
constexpr Int nvfp4_block = 256;

/// The context that a layer opens around its modules (fp8_autocast).
struct LayerPrecision {
  bool quantized =
      false;         ///< else its linear layers are in 16 bits, whatever their own recipe (first_last_layers_bf16)
  bool mtp = false;  ///< of multi-token prediction: its modules' names begin otherwise
  friend auto operator<=>(const LayerPrecision&, const LayerPrecision&) = default;
};

struct Precision {
  Recipe recipe = Recipe::bf16;
  bool tn_only = true;           ///< the tensor cores take FP8 operands in one layout
  bool casts_order = false;      ///< scales of activations and gradients, for cuBLAS
  bool weights_ordered = false;  ///< scales of weights are, by their casts
  friend bool operator==(const Precision&, const Precision&) = default;
  bool quantized() const { return recipe != Recipe::bf16; }
  bool per_tensor() const { return recipe == Recipe::tensorwise || recipe == Recipe::delayed; }
  /// Scales along the inner dimension: a column-wise copy is made with the row-wise one.
  bool scaled_by_block() const { return recipe == Recipe::mxfp8 || recipe == Recipe::nvfp4; }
  /// Elements along a row that share a scale. Precondition: scaled_by_block().
  Int scale_block() const { return recipe == Recipe::mxfp8 ? 32 : 16; }
  /// The maximum of a sequence-parallel tensor is taken over all its parts, before the cast.
  bool shares_maximum() const { return recipe == Recipe::tensorwise || recipe == Recipe::nvfp4; }
  /// A second copy is needed for the weight gradient (and of weights for dgrad).
  bool two_copies() const { return !per_tensor() || tn_only; }
  /// It can be made before a sequence-parallel gather; else it is made of what was gathered.
  bool gathers_second_copy() const { return scaled_by_block(); }
  /// What was gathered of it are transposed parts one below the other: a copy puts them side by side.
  bool joins_gathered_second_copy() const { return recipe == Recipe::nvfp4; }
  /// Bytes of a copy of a rows x cols matrix with its scales.
  Int copy_bytes(Int rows, Int cols, bool columnwise) const;
  /// Of a weight: by blocks of 128 x 128 its scales are none to speak of.
  Int weight_bytes(Int rows, Int cols, bool columnwise) const {
    return recipe == Recipe::blockwise ? rows * cols : copy_bytes(rows, cols, columnwise);
  }
  /// MXFP8 parameters stay outside the distributed optimizer's buffers: bf16 is gathered into the gradients' buffer and
  /// quantized from there (Megatron core/distributed/param_and_grad_buffer.py, shared_buffer, _post_param_sync).
  bool parameters_outside_buffers() const { return recipe == Recipe::mxfp8; }
  /// Of so many parameters in those buffers. NVFP4 packs two into a byte; scales and column-wise copies stay outside
  /// (_compute_nvfp4_packed_layout).
  Int buffered_bytes(Int elements, bool stored_quantized) const {
    if (!stored_quantized || parameters_outside_buffers()) return 2 * elements;
    return recipe == Recipe::nvfp4 ? elements / 2 : elements;
  }
};

/// Family of a quantized product, after `prefix` ("gemm." or "gemm.grouped."). Per-tensor recipes accumulate fast in
/// the forward pass only (TE common/recipe, MMParams); scaled by blocks, forward and dgrad are the same product.
std::string product_family(Recipe recipe, const char* prefix, bool fast);

/// Rows of an expert are padded to a multiple of this.
Int row_alignment(const scenario::Scenario& scenario, Recipe recipe);

/// Rows and columns of a tensor that a tuned cast with a transpose takes come in multiples of this (TE
/// common/transpose/cast_transpose.cu: THREADS_PER_WARP).
constexpr Int tile_of_casts = 32;

}  // namespace pipewright::model
