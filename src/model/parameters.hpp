// Parameters of a model chunk in module order, and how Megatron's DistributedDataParallel and distributed optimizer lay
// them out: contiguous buffers, buckets, and every data-parallel rank's shard of them.
#pragma once

#include <algorithm>
#include <vector>

#include "dimensions.hpp"
#include "layer.hpp"

namespace pipewright::model {

struct Parameter {
  Int elements;
  bool fp8 = false;                   ///< stored in FP8 (fp8_param_gather)
  Int weight_in = 0, weight_out = 0;  ///< of a weight that a linear layer multiplies by; 0: embedding, norm, bias
  Precision precision = {};           ///< of the linear layer, which multiplies by a copy of it where that is quantized
  /// Whole on every tensor-parallel rank, each with a part of the gradient (sequence_parallel).
  bool replicated = false;
  bool frozen = false;  ///< has no gradient
  bool adapter = false;
  bool expert = false;            ///< reduced over expert data parallel ranks, in a buffer of its own
  Int rows = 0, cols = 0;         ///< of a matrix that is neither embedding nor output layer
  bool qkv = false;               ///< the fused projection of queries, keys and values
  bool shared_embedding = false;  ///< a copy of the embedding, of which another pipeline stage has one, too
  int layer = -1;                 ///< of the chunk; -1: embedding, the number of layers: what comes after them
};

struct LayerShape {
  LayerPrecision precision;
  bool moe = false, linear = false, mamba = false;
  Parts parts = Parts::both;
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

/// Of a layer of the decoder, by its number.
LayerShape shape_of(const scenario::Scenario& scenario, const Dimensions& dimensions, Int layer);
/// Of a depth of multi-token prediction.
std::vector<LayerShape> mtp_shapes(const scenario::Scenario& scenario, const Dimensions& dimensions);

struct ChunkShape {
  std::vector<LayerShape> layers;
  Int mtp_layers = 0;
  bool embedding = false, head = false;
  bool final_norm = false;        ///< with MTP beside the last decoder layer, else with the head
  bool shares_embedding = false;  ///< the output layer's weight is the embedding's
  friend bool operator==(const ChunkShape&, const ChunkShape&) = default;
};

std::vector<Parameter> chunk_parameters(const Dimensions& dimensions, const scenario::Scenario& scenario,
                                        const ChunkShape& shape);

/// A contiguous buffer of parameters of one kind and type with their gradients.
struct Buffer {
  bool fp8 = false, expert = false;
  Int elements = 0;                             ///< padding included
  std::vector<std::pair<Int, Int>> buckets;     ///< [start, end) in elements
  std::vector<int> last_layers;                 ///< of each bucket: the layer whose backward completes it
  std::vector<std::pair<Int, Int>> parameters;  ///< [start, end) in buffer order (reverse module order)
  std::vector<std::size_t> of;                  ///< which parameter each of them is
  std::vector<Int> owners;                      ///< of parameters that are whole on one data-parallel rank: which
};

/// param_layout.py and distrib_optimizer.py `_compute_per_buffer_param_layout`: parameters in reverse order, each start
/// a multiple of 64 elements, each bucket's end a multiple of lcm(ranks, 128), a shared embedding in a bucket of its
/// own. `whole`: matrices in buffers of their own, each on one rank (Muon's layer-wise distributed optimizer).
std::vector<Buffer> layout(const std::vector<Parameter>& parameters, Int bucket_size, Int dense_ranks, Int expert_ranks,
                           bool distributed, bool pad_for_bus_bandwidth, bool whole = false);

/// param_and_grad_buffer.py, partition_buckets: buckets of one group are reduced once the last of them is complete.
/// `one_group`: all dense buckets are one (and all of experts), else those that are not FP8 join the last one in FP8.
void group_buckets(std::vector<Buffer>& buffers, bool one_group);

/// Elements of each parameter (of the buffer, in its order) that every data-parallel rank owns: an equal part of every
/// bucket. own(rank, elements, parameter).
template <class Own>
void for_shards(const Buffer& buffer, Int ranks, const Own& own) {
  std::size_t next = 0;
  for (const auto& [bucket_start, bucket_end] : buffer.buckets) {
    const Int part = (bucket_end - bucket_start) / ranks;
    for (; next < buffer.parameters.size() && buffer.parameters[next].first < bucket_end; ++next) {
      const auto& [start, end] = buffer.parameters[next];
      for (Int rank = (start - bucket_start) / part; rank < ranks; ++rank) {
        const Int from = bucket_start + rank * part;
        if (from >= end) break;
        own(static_cast<std::size_t>(rank), std::min(end, from + part) - std::max(start, from), next);
      }
    }
  }
}

}  // namespace pipewright::model
