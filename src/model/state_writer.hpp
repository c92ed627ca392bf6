// Writes what a rank holds from start to end and the kernels outside the pieces. state.cpp writes modules, buffers and
// what lives as long as the process; optimizer_state.cpp the optimizer's tensors on GPU and host; optimizer_step.cpp
// the kernels after a backward: gradient synchronisation, finalisation, the optimizer's step.
#pragma once

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "builder.hpp"
#include "parameters.hpp"
#include "shards.hpp"
#include "update_builder.hpp"

namespace pipewright::model {

inline Int sum_of(const std::vector<Int>& list) { return std::accumulate(list.begin(), list.end(), Int{0}); }

class StateWriter {
 public:
  StateWriter(const scenario::Scenario& scenario, const Dimensions& dimensions, Int pp_rank, Owners& owners, Rank& rank)
      : s_(scenario),
        d_(dimensions),
        pp_rank_(pp_rank),
        owners_(owners),
        rank_(rank),
        dense_{d_.dp * d_.cp, d_.dp_link, {}},
        experts_{d_.moe.edp, d_.moe.edp_link, {}},
        construction_(owners, "construction"),
        update_(owners, rank) {}

  void run(const std::vector<ChunkShape>& shapes);

 private:
  void hold(std::vector<Tensor>& list, std::string_view owner, Int bytes) {
    if (bytes > 0) list.push_back(Tensor{owners_(owner), Bytes(bytes)});
  }
  void hold_from_start(std::string_view owner, Int bytes) { construction_.allocate(owner, bytes); }
  void hold_gradients(Int bytes) {
    hold_from_start("gradients", bytes);
    gradients_ += bytes;
  }
  static void launch(std::vector<Kernel>& list, const std::string& name, profile::Key key) {
    Kernel kernel;
    kernel.name = name;
    kernel.key = std::move(key);
    list.push_back(std::move(kernel));
  }
  void collective(std::vector<Kernel>& list, const std::string& name, const std::string& kind, Int ranks, Int bytes,
                  const Way& way, Stream stream, Purpose purpose) {
    list.push_back(collective_kernel(purpose, name, kind, ranks, bytes, way, stream));
  }

  void construct_module(const std::vector<Parameter>& parameters);
  void share_parameters(const Buffer& buffer, const std::vector<std::uint32_t>& made, Int ranks);
  bool made_in_shards() const;
  void add_chunk(std::size_t chunk, const std::vector<Parameter>& parameters);
  using Groups = std::vector<std::vector<ShardedOptimizer::Shard>>;
  Groups groups_of(const ShardedOptimizer& optimizer) const;
  void add_main_parameters(const ShardedOptimizer& optimizer, const Groups& groups);
  void add_matrices(const ShardedOptimizer& optimizer, const Groups& groups);
  void add_adam(const Groups& groups);
  void add_host_state(const ShardedOptimizer& optimizer);
  void add_gradient_sync(Chunk& chunk, const Buffer& buffer, const ShardedOptimizer& optimizer);
  void add_casts();
  void add_zero_counts();
  void add_deferred_head();
  std::set<Int> embedding_ranks(bool shares_embedding) const;
  std::vector<Int> rotary_positions() const;
  void add_latent_rotary(Int layers);
  std::vector<Int> gather_dealt();
  /// Float8CurrentScalingQuantizer.update_quantized of `count` parameters of so many elements, each of `bytes`.
  void quantize_dealt(std::vector<Kernel>& list, const std::string& name, Int elements, Int bytes, int count);
  void add_global_buffers(bool head, bool mtp);
  void add_finalize(bool shares_embedding);
  void add_token_scaling();
  /// Those of an optimizer's chunks, joined.
  std::vector<Int> of_optimizer(const std::map<std::pair<bool, bool>, std::vector<Int>>& lists,
                                const ShardedOptimizer& optimizer) const;
  void add_shard_casts(const ShardedOptimizer& optimizer);
  void add_casts_by_block(const ShardedOptimizer& optimizer);
  void add_optimizer_step();
  void add_quantized_parameters();
  void add_zeroed_gradients();
  void add_hooks(std::vector<Kernel>& list, const char* family);

  const scenario::Scenario& s_;
  const Dimensions& d_;
  const Int pp_rank_;
  Owners& owners_;
  Rank& rank_;
  ShardedOptimizer dense_, experts_;
  std::map<std::pair<bool, bool>, std::vector<Int>>
      casts_,  ///< FP8 shards by (experts, first chunk): an optimizer each
      kept_;   ///< elements of the parameters that they are parts of
  PieceBuilder construction_;
  std::vector<std::vector<std::uint32_t>> modules_;  ///< by chunk: parameters as the modules made them
  UpdateBuilder update_;
  std::vector<std::pair<Int, Int>>
      casts_of_chunks_;          ///< rows and columns of parameters that are quantized after a gather
  std::vector<Kernel> gathers_;  ///< of parameters, after an optimizer's step
  std::vector<Int> scaled_;      ///< elements of each gradient buffer
  Int gradients_ = 0;            ///< bytes of all gradient buffers
  Int replicated_elements_ = 0, all_parameters_ = 0;  ///< elements
  int parameters_ = 0;                                ///< of all chunks, one by one
};

}  // namespace pipewright::model
