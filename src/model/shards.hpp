// Which shards of the parameters a data-parallel rank's optimizer owns, and the bytes of an element of its state.
#pragma once

#include <vector>

#include "dimensions.hpp"
#include "muon.hpp"

namespace pipewright::model {

/// Bytes of an element of the optimizer's state; `second` 0: it has one moment only.
struct OptimizerTypes {
  Int main = 4, first = 4, second = 4;
  /// TE's FusedAdam holds the main parameters, made in its first step, reads bf16 gradients and writes the parameters
  /// itself (optimizer_config.py:404, use_precision_aware_optimizer_no_fp8_or_ds_fp8).
  bool in_adam = false;
  bool remainders = false;  ///< main parameters are the low 16 bits beside the bf16 parameter (store_param_remainders)
  /// Of main parameter and moments, those that FusedAdam makes fp32 for its kernel and back again: fp16 and FP8, bf16
  /// but where both moments are and its kernel knows them (TE 2.13, pull request 2632).
  bool widens_main = false, widens_first = false, widens_second = false;
  Int widened() const { return widens_main + widens_first + widens_second; }

  /// Bytes that the optimizer's kernel moves for an element: gradient, and in and out main parameter and moments.
  Int traffic(Int gradient) const {
    const Int parameter = !in_adam ? 0 : remainders ? 2 * 2 : 2;
    const auto in_kernel = [](Int bytes, bool widens) { return widens ? 4 : bytes; };
    return (in_adam ? gradient : 4) + parameter +
           2 * (in_kernel(main, widens_main) + in_kernel(first, widens_first) + in_kernel(second, widens_second));
  }
  /// The bytes that TE's fp32 Adam, whose 28 it moves, would move in the time of these types' kernel. Moments in 16
  /// bits and main parameters as remainders take more instructions for an element: such kernels are not bound by
  /// memory. One H100, TE 2.20.2, FusedAdam.step of 2^26 and 2^28 elements against fp32's 737 and 2924 us: moments in
  /// bf16 735 and 2947, remainders 979 and 3917 (bf16 gradients 965 and 3848), both 828 and 3670, fp32 main parameters
  /// beside bf16 ones 796 and 3160, with bf16 moments 719 and 2786.
  Int equivalent_traffic(Int gradient) const {
    const bool halves = first == 2 && second == 2 && widened() == 0;
    if (second == 0 || (!halves && !remainders)) return traffic(gradient);
    if (remainders) return halves ? 33 : 37;
    return in_adam ? 27 : 28;
  }
};
OptimizerTypes optimizer_types(const scenario::Scenario& scenario);

/// One of the optimizers that ChainedOptimizer steps: parameters reduced over the same ranks.
struct ShardedOptimizer {
  Int ranks;  ///< over which gradients are reduced and the optimizer's state is sharded
  Way link;
  struct Shard {
    Int elements;
    bool fp8;
    /// With overlap_param_gather_with_optimizer_step the first chunk has an optimizer of its own
    /// (optimizer/__init__.py, get_megatron_optimizer).
    bool first_chunk;
    Matrix matrix = {};  ///< that Muon updates; no elements: Adam does
    bool decays = true;  ///< weight decay: not of norms and biases, which are a group of their own
  };
  std::vector<std::vector<Shard>> owned;  ///< [data-parallel rank]
  /// What one rank owns so far is dealt to all, matrices before the rest (layer_wise_optimizer.py, ping-pong).
  void deal();
  Int elements() const;                                     ///< of the rank that owns most
  Int adam_elements() const;                                ///< the same, of those that Adam updates
  Int fp8_elements() const;                                 ///< of the rank that owns most, kept in FP8
  std::vector<Matrix> matrices(const Dimensions& d) const;  ///< of the rank whose take longest, as it updates them
  int shards() const;                                       ///< of the rank that owns most
  std::vector<Int> heaviest() const;                        ///< of the rank that owns most, those that decay first
};

/// Of a rank's shards; those kept in FP8.
Int elements_of(const std::vector<ShardedOptimizer::Shard>& shards);
Int fp8_elements_of(const std::vector<ShardedOptimizer::Shard>& shards);

}  // namespace pipewright::model
