#include "shards.hpp"

#include <algorithm>
#include <numeric>

namespace pipewright::model {
namespace {

Int type_bytes(const std::string& type) {
  if (type == "fp32") return 4;
  return type == "fp8" ? 1 : 2;
}

}  // namespace

OptimizerTypes optimizer_types(const scenario::Scenario& s) {
  const auto& o = s.settings;
  OptimizerTypes types;
  if (o.optimizer != "adam" && o.optimizer != "muon" && o.optimizer != "dist_muon")
    types.second = 0;  // momentum alone (torch SGD, Lion)
  if (!o.use_precision_aware_optimizer) return types;
  types.first = type_bytes(o.exp_avg_dtype);
  if (types.second > 0) types.second = type_bytes(o.exp_avg_sq_dtype);
  // use_precision_aware_optimizer_no_fp8_or_ds_fp8 (optimizer_config.py) asks for the recipe, not whether layers are in
  // FP8: Bridge names tensorwise where nobody does, beside bf16 and NVFP4, too.
  const bool scaled_elsewhere = o.fp8_recipe.value_or("delayed") != "delayed";
  types.in_adam = o.main_params_dtype != "fp32" || !scaled_elsewhere || o.optimizer_cpu_offload;
  types.remainders = types.in_adam && o.main_params_dtype == "fp32" && o.store_param_remainders && !o.fp16;
  types.main = types.remainders ? 2 : type_bytes(o.main_params_dtype);
  const bool fused =
      o.exp_avg_dtype == "bf16" && o.exp_avg_sq_dtype == "bf16" && scenario::te_version(s.software).at_least(2, 13);
  types.widens_first = !fused && o.exp_avg_dtype != "fp32";
  types.widens_second = !fused && o.exp_avg_sq_dtype != "fp32" && types.second > 0;
  types.widens_main = types.in_adam && o.main_params_dtype != "fp32";
  return types;
}

int ShardedOptimizer::shards() const {
  std::size_t most = 0;
  for (const auto& list : owned) most = std::max(most, list.size());
  return static_cast<int>(most);
}

std::vector<Int> ShardedOptimizer::heaviest() const {
  std::vector<Int> most;
  for (const auto& rank : owned) {
    std::vector<Int> list;
    for (const bool decays : {true, false})
      for (const auto& shard : rank)
        if (shard.decays == decays) list.push_back(shard.elements);
    if (std::accumulate(list.begin(), list.end(), Int{0}) > std::accumulate(most.begin(), most.end(), Int{0}))
      most = std::move(list);
  }
  return most;
}

Int elements_of(const std::vector<ShardedOptimizer::Shard>& shards) {
  return std::accumulate(shards.begin(), shards.end(), Int{0},
                         [](Int sum, const auto& shard) { return sum + shard.elements; });
}

Int fp8_elements_of(const std::vector<ShardedOptimizer::Shard>& shards) {
  return std::accumulate(shards.begin(), shards.end(), Int{0},
                         [](Int sum, const auto& shard) { return sum + (shard.fp8 ? shard.elements : 0); });
}

void ShardedOptimizer::deal() {
  auto all = std::move(owned.front());
  std::ranges::stable_partition(all, [](const Shard& shard) { return shard.matrix.elements() > 0; });
  std::vector<Int> sizes;
  for (const auto& shard : all) sizes.push_back(shard.elements);
  const auto owners = dealt(sizes, ranks);
  owned.assign(static_cast<std::size_t>(ranks), {});
  for (std::size_t i = 0; i < all.size(); ++i) owned[static_cast<std::size_t>(owners[i])].push_back(all[i]);
}

Int ShardedOptimizer::elements() const {
  Int most = 0;
  for (const auto& rank : owned) most = std::max(most, elements_of(rank));
  return most;
}

Int ShardedOptimizer::fp8_elements() const {
  const auto most = std::ranges::max_element(owned, {}, [](const auto& rank) { return elements_of(rank); });
  return most == owned.end() ? 0 : fp8_elements_of(*most);
}

Int ShardedOptimizer::adam_elements() const {
  Int most = 0;
  for (const auto& rank : owned) {
    Int sum = 0;
    for (const auto& shard : rank) sum += shard.matrix.elements() > 0 ? 0 : shard.elements;
    most = std::max(most, sum);
  }
  return most;
}

std::vector<Matrix> ShardedOptimizer::matrices(const Dimensions& d) const {
  std::vector<Matrix> busiest;
  double most = 0;
  for (const auto& rank : owned) {
    std::vector<Matrix> list;
    double flop = 0;
    for (const auto& shard : rank) {
      if (shard.matrix.elements() == 0) continue;
      list.push_back(shard.matrix);
      flop += orthogonalization_flop(d, shard.matrix);
    }
    if (flop > most) most = flop, busiest = std::move(list);
  }
  if (d.muon_dealt)
    std::ranges::stable_sort(busiest, std::less(), &Matrix::elements);
  else
    std::ranges::reverse(busiest);  // buffers begin with the last module
  return busiest;
}

}  // namespace pipewright::model
