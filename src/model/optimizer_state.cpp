#include <algorithm>

#include "host_optimizer.hpp"
#include "state_writer.hpp"

namespace pipewright::model {
/// Main parameters become FP8 through 16 bits: first all of an optimizer's, then one after the other
/// (TE pytorch/tensor/utils.py, cast_master_weights_to_fp8); for NVFP4 maxima and scales of all parameters' blocks are
/// held in fp32 (_cast_master_weights_to_nvfp4_2d). Optimizers step in turn: the one with the most counts.
void StateWriter::add_casts() {
  const bool by_block = d_.precision.recipe == Recipe::nvfp4;
  const auto& lists = by_block ? kept_ : casts_;
  const auto most = std::max_element(lists.begin(), lists.end(),
                                     [&](const auto& a, const auto& b) { return sum_of(a.second) < sum_of(b.second); });
  if (most == lists.end()) return;
  if (by_block) {
    for (int list = 0; list < 2; ++list)
      hold(rank_.after_update, "maxima and scales of parameters' blocks", 4 * sum_of(most->second) / nvfp4_block);
    return;
  }
  for (const Int n : most->second) hold(rank_.after_update, "main parameters in 16 bits", 2 * n);
  if (d_.precision.recipe != Recipe::tensorwise) return;
  hold(rank_.after_update, "parameters cast to FP8", *std::max_element(most->second.begin(), most->second.end()));
}

/// torch.count_nonzero of one gradient after the other (core/optimizer/clip_grads.py, count_zeros_fp32): a bool for
/// each element, and the same as int64, which is summed.
void StateWriter::add_zero_counts() {
  Int largest = 0;
  for (const auto* optimizer : {&dense_, &experts_})
    if (optimizer->elements() > 0)
      for (const Int shard : optimizer->heaviest()) largest = std::max(largest, shard);
  hold(rank_.before_update, "zeros of a gradient", largest);
  hold(rank_.before_update, "zeros of a gradient", 8 * largest);
}

/// The state of the data-parallel rank that owns most.
void StateWriter::add_optimizer_state(const ShardedOptimizer& optimizer) {
  const auto sum = [](const std::vector<ShardedOptimizer::Shard>& list) {
    Int total = 0;
    for (const auto& shard : list)  // main parameter and moments, of which Muon's matrices have one less
      total += (4 * shard.elements + 511) / 512 * 512 * (shard.matrix.elements() > 0 ? 2 : 3);
    return total;
  };
  const auto& owned = optimizer.owned;
  const auto heaviest =
      std::max_element(owned.begin(), owned.end(), [&](const auto& a, const auto& b) { return sum(a) < sum(b); });
  const auto types = optimizer_types(s_);
  std::map<std::pair<bool, bool>, std::vector<Int>> groups;
  for (const auto& [n, fp8, first_chunk, matrix, decays] : *heaviest) {
    groups[{first_chunk, decays}].push_back(n);
    if (types.in_adam) {
      hold(rank_.optimizer_state, "main parameters", n * types.main);
    } else if (!d_.fsdp) {                                            // which has made its own
      const auto copy = construction_.allocate("parameters", 2 * n);  // shard_model_param.clone().float()
      hold_from_start("main parameters", n * types.main);
      construction_.free(copy);
    }
    hold(rank_.optimizer_state, "optimizer moments", n * types.first);
    if (matrix.elements() == 0)
      hold(rank_.optimizer_state, "optimizer moments", n * types.second);  // none of zero bytes
    // bf16 gradients become fp32 ones for the step (distrib_optimizer.py, _copy_model_grads_to_main_grads).
    if (d_.gradient_bytes == 2 && !types.in_adam) {
      hold(rank_.during_optimizer, "fp32 gradients", 4 * n);
    }
    if (fp8 && !d_.precision.parameters_outside_buffers() && !d_.muon_dealt)
      casts_[{&optimizer == &experts_, first_chunk}].push_back(n);
  }
  // Of a group of parameters all at once, one group after the other (fused_adam.py, unscaled_lists).
  for (const auto& [which, shards] : groups)
    if (types.widened * sum_of(shards) > sum_of(widened_)) {
      widened_.clear();
      for (Int state = 0; state < types.widened; ++state) widened_.insert(widened_.end(), shards.begin(), shards.end());
    }
}

/// What FusedAdam's kernel reads in fp32 and is stored otherwise.
void StateWriter::add_widened() {
  for (const Int n : widened_) hold(rank_.in_update, "optimizer states in fp32", 4 * n);
}

/// HybridDeviceOptimizer: the host's shards leave the casts of the copies' way; the GPU's have fp32 parameters from the
/// constructor on, moments and fp32 gradients that stay from one step to the next (zero_grad reaches the bf16 ones).
void StateWriter::add_host_state(const ShardedOptimizer& optimizer) {
  const HostShare share = host_share(optimizer.heaviest(), s_.settings.optimizer_offload_fraction);
  const auto largest = [](const std::vector<Int>& shards) {
    return shards.empty() ? Int{0} : *std::max_element(shards.begin(), shards.end());
  };
  const bool overlaps = s_.settings.overlap_cpu_optimizer_d2h_h2d;
  const auto in_passing = [&](const std::string& owner, Int bytes, Stream stream) {
    if (bytes > 0)
      rank_.during_optimizer.push_back(Tensor{owners_(owner), Bytes(bytes), overlaps ? stream : Stream::compute});
  };
  const HostBytes host = host_bytes(s_, share);
  rank_.pinned += host.pinned;
  rank_.pageable += host.pageable;
  for (const Int n : share.gpu) {
    hold_from_start("main parameters", 4 * n);
    for (int moment = 0; moment < 2; ++moment) hold(rank_.optimizer_state, "optimizer moments", 4 * n);
    hold(rank_.optimizer_state, "fp32 gradients", 4 * n);
  }
  if (d_.gradient_bytes == 2)
    in_passing("fp32 gradients", 4 * std::max(largest(share.host), largest(share.gpu)), Stream::d2h);
  if (overlaps || d_.gradient_bytes == 4) in_passing("parameters in fp32", 4 * largest(share.host), Stream::h2d);
}

}  // namespace pipewright::model
