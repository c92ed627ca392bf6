#include <algorithm>
#include <map>
#include <tuple>

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

namespace {

using Shard = ShardedOptimizer::Shard;

/// Of the data-parallel rank whose state is largest.
const std::vector<Shard>& of_most_state(const ShardedOptimizer& optimizer) {
  const auto sum = [](const std::vector<Shard>& list) {
    Int total = 0;
    for (const auto& shard : list)  // main parameter and moments, of which Muon's matrices have one less
      total += (4 * shard.elements + 511) / 512 * 512 * (shard.matrix.elements() > 0 ? 2 : 3);
    return total;
  };
  return *std::ranges::max_element(optimizer.owned, {}, sum);
}

}  // namespace

/// Groups of parameters in the order in which they are updated: Muon's matrices, an optimizer of the first chunk's own,
/// what decays before norms and biases (optimizer/__init__.py, _get_param_groups). Of a distributed optimizer as its
/// buffers have them, otherwise as the modules have, dealt ones by size (_shard_params_ping_pong).
StateWriter::Groups StateWriter::groups_of(const ShardedOptimizer& optimizer) const {
  std::map<std::tuple<bool, bool, bool>, std::vector<Shard>, std::greater<>> groups;
  for (const Shard& shard : of_most_state(optimizer))
    groups[{shard.matrix.elements() > 0, shard.first_chunk, shard.decays}].push_back(shard);
  const bool as_modules = !s_.settings.use_distributed_optimizer && !d_.fsdp && !d_.muon_dealt;
  Groups result;
  for (auto& [key, shards] : groups) {
    if (as_modules || d_.muon_dealt) std::ranges::reverse(shards);
    if (d_.muon_dealt) std::ranges::stable_sort(shards, {}, &Shard::elements);
    result.push_back(std::move(shards));
  }
  return result;
}

void StateWriter::add_main_parameters(const ShardedOptimizer& optimizer, const Groups& groups) {
  const auto types = optimizer_types(s_);
  for (const auto& group : groups)
    for (const Shard& shard : group) {
      if (!types.in_adam && !d_.fsdp) {  // which has made its own
        const auto copy =
            construction_.allocate("parameters", 2 * shard.elements);  // shard_model_param.clone().float()
        hold_from_start("main parameters", shard.elements * types.main);
        construction_.free(copy);
      }
      // bf16 gradients become fp32 ones for the step (distrib_optimizer.py, _copy_model_grads_to_main_grads).
      if (d_.gradient_bytes == 2 && !types.in_adam) hold(rank_.during_optimizer, "fp32 gradients", 4 * shard.elements);
      if (shard.fp8 && !d_.precision.parameters_outside_buffers() && !d_.muon_dealt)
        casts_[{&optimizer == &experts_, shard.first_chunk}].push_back(shard.elements);
    }
}

/// Muon makes the moments of all matrices before it updates the first one (orthogonalized_optimizer.py, _init_group).
void StateWriter::add_matrices(const ShardedOptimizer& optimizer, const Groups& groups) {
  const Int bytes = optimizer_types(s_).first;
  for (const auto& group : groups)
    for (const Shard& shard : group)
      if (shard.matrix.elements() > 0) update_.make("optimizer moments", bytes * shard.elements);
  orthogonalize(d_, optimizer.matrices(d_), update_);
}

/// TE pytorch/optimizers/fused_adam.py, step: of each parameter the state, then what the kernel reads in fp32 and is
/// stored otherwise. A variable (tensor_lists) keeps that of a group until the next group's kernel is launched.
void StateWriter::add_adam(const Groups& groups) {
  const auto types = optimizer_types(s_);
  std::vector<std::uint32_t> before, widened;
  const auto drop = [&](std::vector<std::uint32_t>& tensors) {
    for (auto& tensor : tensors) update_.release(tensor);
    tensors.clear();
  };
  bool first_chunk = false;
  for (const auto& group : groups) {
    if (group.front().matrix.elements() > 0) continue;
    if (first_chunk && !group.front().first_chunk) drop(before);  // another optimizer's
    first_chunk = group.front().first_chunk;
    for (const Shard& shard : group) {
      const Int n = shard.elements;
      const auto make = [&](const char* owner, Int bytes) {
        const bool dequantizes = bytes > 0 && shard.fp8 && types.in_adam;  // parameters in FP8, for their shape
        auto like = dequantizes ? update_.allocate_first("parameters", 2 * n) : no_tensor;
        update_.make(owner, bytes);
        update_.release(like);
      };
      make("optimizer moments", n * types.first);
      make("optimizer moments", n * types.second);
      if (types.in_adam) {
        make("main parameters", n * types.main);
        if (!types.remainders) {  // local_param.clone().detach().float(), or dequantized and cloned, is copied into it
          auto copy = update_.allocate_first("parameters", (shard.fp8 ? 4 : 2) * n),
               master = update_.allocate_first("optimizer states in fp32", 4 * n);
          update_.release(copy, master);
        }
      }
      for (const bool widens : {types.widens_first, types.widens_second, types.widens_main})
        if (widens) widened.push_back(update_.allocate("optimizer states in fp32", 4 * n));
    }
    drop(before);
    before = std::move(widened);
    widened.clear();
  }
  drop(before);
}

/// HybridDeviceOptimizer: the host's shards leave the casts of the copies' way; the GPU's have fp32 parameters from the
/// constructor on, fp32 copies of bf16 gradients that stay from one step to the next (zero_grad reaches the bf16 ones;
/// hybrid_optimizer.py, _set_sub_optimizer_grads), then moments.
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
  for (const Int n : share.gpu) hold_from_start("main parameters", 4 * n);
  if (d_.gradient_bytes == 2)
    for (const Int n : share.gpu) update_.make("fp32 gradients", 4 * n, overlaps ? Stream::d2h : Stream::compute);
  for (const Int n : share.gpu)
    for (int moment = 0; moment < 2; ++moment) update_.make("optimizer moments", 4 * n);
  if (d_.gradient_bytes == 2)
    in_passing("fp32 gradients", 4 * std::max(largest(share.host), largest(share.gpu)), Stream::d2h);
  if (overlaps || d_.gradient_bytes == 4) in_passing("parameters in fp32", 4 * largest(share.host), Stream::h2d);
}

}  // namespace pipewright::model
