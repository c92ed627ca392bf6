// Muon: matrices of the layers are updated by their orthogonalised momentum, all else by Adam. Sources: core_r0.19.0
// optimizer/emerging_optimizers.py (TensorParallelMuon), optimizer/layer_wise_optimizer.py, optimizer/__init__.py
// (_get_megatron_emerging_optimizer); NVIDIA-NeMo/Emerging-Optimizers fd77292 orthogonalized_optimizers/muon_utils.py
// (newton_schulz) and orthogonalized_optimizer.py (step).
#pragma once

#include <vector>

#include "parameters.hpp"
#include "pipewright/model.hpp"
#include "update_builder.hpp"

namespace pipewright::model {

/// A weight that a rank updates as a whole.
struct Matrix {
  Int rows = 0, cols = 0;
  bool qkv = false;  ///< queries, keys and values are orthogonalised apart (muon_split_qkv)
  Int elements() const { return rows * cols; }
};

/// Multiply-adds x 2 of its Newton-Schulz steps.
double orthogonalization_flop(const Dimensions& dimensions, const Matrix& matrix);

/// The kernels of a rank's matrices, those of one shape as one.
std::vector<Kernel> orthogonalization(const Dimensions& dimensions, const std::vector<Matrix>& matrices);

/// What is made and dropped while these are updated one after the other.
void orthogonalize(const Dimensions& dimensions, const std::vector<Matrix>& matrices, UpdateBuilder& update);

/// Who updates each of these parameters, given their elements: sorted by size, dealt to the ranks forwards and
/// backwards in turn (_shard_params_ping_pong).
std::vector<Int> dealt(const std::vector<Int>& elements, Int ranks);

/// The buffer that keeps matrices whole on one data-parallel rank (_compute_per_buffer_param_layout): in each bucket
/// the largest first, each to the rank with the least; all shards as large as the largest. Fills elements, buckets,
/// last_layers, parameters, of and owners for these parameters (indices, in reverse module order).
void lay_out_whole(Buffer& buffer, const std::vector<Parameter>& parameters, const std::vector<std::size_t>& which,
                   Int bucket_size, Int ranks, Int divisor);

}  // namespace pipewright::model
