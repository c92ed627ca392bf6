// Megatron-FSDP, data_parallel_sharding_strategy optim_grads_params: parameters, gradients and optimizer states are a
// data-parallel rank's share. A unit is a transformer layer; embedding and output layer with the final norm are none:
// they are gathered once a step and stay. Sources (core_r0.19.0, core/distributed/fsdp/src/megatron_fsdp):
// megatron_fsdp.py (_register_fsdp_hooks, suggested sizes), param_and_grad_buffer.py (AllGatherPipeline,
// GradReducePipeline, _get_parameter_groups).
//
//   forward    gather |g0|g1|g2|..|     of the unit ahead, beside the layer; released after the layer
//   compute           |  |layer 0|layer 1|layer 2| ...
//   backward   gather |..|gL|             again, downwards, a window before the last layer, which comes last in it;
//                                        reduce-scatter of each unit of every microbatch:
//   reduce                  |rL|..|r0|re|   compute waits for the last before the next microbatch
//
// FP8 parameters (fp8_param_gather) are bytes in a bucket of their own beside the norms' and biases', gathered with it
// in one call, row-wise in both passes; gradients stay in 16 bits, main parameters fp32. transpose_weight_buffer is
// MXFP8's alone: of scales by tensor Hopper's second operand is made by a transpose in each pass, by the linear layer
// in forward, for the whole unit in backward, and dropped with the unit (mixed_precision.py, fp8_need_transpose_data,
// fp8_create_transpose_cache, fp8_discard_transpose_cache; TE pytorch/module/base.py, quantize_weight).
#pragma once

#include <vector>

#include "builder.hpp"
#include "layer.hpp"
#include "parameters.hpp"

namespace pipewright::model {

/// Where the units of a chunk stand, set in each of its `kinds` (one for each layer).
void place_units(const Dimensions& dimensions, const scenario::Scenario& scenario, const ChunkShape& shape,
                 std::vector<LayerKind>& kinds);

/// Gathers, reduce-scatters and their buffers around what a piece does.
void shard_layer(Piece& piece, Owners& owners, const Dimensions& dimensions, const Unit& unit);
/// Of embedding (`first`: its reduction ends a microbatch) and of output layer with final norm.
void shard_end(Piece& piece, Owners& owners, const Dimensions& dimensions, const scenario::Scenario& scenario,
               const ChunkShape& shape, bool first);

/// Of a chunk, from the first step on: embedding and output layer, gathered once a step; fsdp_double_buffer's buffers
/// of the largest unit.
std::vector<Tensor> gathered_for_good(const std::vector<Parameter>& parameters, int layers, Owners& owners,
                                      const Dimensions& dimensions);

/// A chunk's parameters in buffers of a bucket for each unit and each end; those in FP8 and experts apart.
std::vector<Buffer> unit_buffers(const std::vector<Parameter>& parameters, Int dense_ranks, Int expert_ranks);

}  // namespace pipewright::model
