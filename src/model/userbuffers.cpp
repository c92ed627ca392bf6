#include "pipewright/userbuffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "pipewright/scenario/overlap_table.hpp"

namespace pipewright::model {
namespace {

struct Tuned {
  const char* name;
  int generation;  ///< of the GPU: compute capability over 10
  std::int64_t hidden;
  bool fp8;
  OverlapMultiprocessors multiprocessors;
};
// Megatron Bridge v0.4.2 src/megatron/bridge/training/comm_overlap.py:
// userbuffers_{bf16,fp8}_{h100,b200}_h{8192,16384}_*, which its pretraining recipes of Llama 3 70B and 405B name
// whatever the tensor parallelism (scripts/performance/configs/llama/llama3_llm_pretrain.py, llama31_llm_pretrain.py);
// its other recipes name none. A ring exchange holds one.
constexpr Tuned tuned[] = {
    {"userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192", 9, 8192, false, {4, 24, 2, 4, 24, 16}},
    {"userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192", 9, 8192, true, {4, 24, 2, 4, 1, 1}},
    {"userbuffers_bf16_b200_h8192_tp2_mbs1_seqlen8192", 10, 8192, false, {16, 24, 2, 4, 32, 16}},
    {"userbuffers_fp8_b200_h8192_tp2_mbs1_seqlen8192", 10, 8192, true, {4, 24, 2, 4, 1, 1}},
    {"userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192", 9, 16384, false, {2, 24, 2, 2, 24, 8}},
    {"userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192", 9, 16384, true, {2, 24, 2, 2, 1, 1}},
    {"userbuffers_bf16_b200_h16384_tp4_cp2_mbs1_seqlen8192", 10, 16384, false, {8, 24, 2, 2, 32, 8}},
    {"userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192", 10, 16384, true, {8, 32, 2, 8, 1, 1}},
};

constexpr const char* own_table = "tp_comm_overlap_cfg";

/// As the scenario's table has it; what it leaves out is Transformer Engine's.
OverlapMultiprocessors stated(const scenario::Scenario& scenario) {
  OverlapMultiprocessors held;
  const auto own = scenario.settings.other.find(own_table);
  if (own == scenario.settings.other.end()) return held;
  const auto products = scenario::overlap_products(own->second);
  if (!products) return held;
  const auto take = [&](const char* product, std::int64_t& multiprocessors) {
    if (const auto found = products->find(product); found != products->end()) multiprocessors = found->second;
  };
  take("qkv_dgrad", held.qkv_dgrad);
  take("qkv_wgrad", held.qkv_wgrad);
  take("fc1_dgrad", held.fc1_dgrad);
  take("fc1_wgrad", held.fc1_wgrad);
  take("proj_fprop", held.proj_forward);
  take("fc2_fprop", held.fc2_forward);
  return held;
}

/// Recipes that name a table: of Bridge, which pretrain a dense model of one of these sizes.
std::vector<Tuned> named(const scenario::Scenario& scenario) {
  const auto& o = scenario.settings;
  std::vector<Tuned> out;
  if (o.other.contains(own_table)) return out;  // none, or one of its own
  if (scenario.software.megatron_bridge && !o.sft && o.lora_target_modules.empty() && !scenario.model.num_moe_experts)
    std::ranges::copy_if(tuned, std::back_inserter(out), [&](const Tuned& t) {
      return t.hidden == scenario.model.hidden_size && t.fp8 == static_cast<bool>(o.fp8);
    });
  return out;
}

}  // namespace

OverlapMultiprocessors overlap_multiprocessors(const scenario::Scenario& scenario, const profile::Device& gpu) {
  for (const Tuned& t : named(scenario))
    if (t.generation == gpu.compute_capability / 10) return t.multiprocessors;
  return stated(scenario);
}

LeftFree left_free(const scenario::Scenario& scenario) {
  const auto of = [&](const char* name) { return std::atoll(scenario::variable(scenario, name, "0").c_str()); };
  constexpr std::int64_t of_a_cluster = 2;
  return {of("NVTE_EXT_MARGIN_SM"), of_a_cluster * of("CUDNNFE_CLUSTER_OVERLAP_MARGIN")};
}

const char* overlap_table(const scenario::Scenario& scenario) {
  const auto& gpu = scenario.cluster.compute_capability;
  for (const Tuned& t : named(scenario))
    if (gpu && t.generation == *gpu / 10) return t.name;
  return nullptr;
}

std::vector<OverlapTable> possible_overlaps(const scenario::Scenario& scenario) {
  std::vector<OverlapTable> out;
  for (const Tuned& t : named(scenario)) out.push_back({t.name, t.multiprocessors});
  if (out.empty()) out.emplace_back();
  return out;
}

}  // namespace pipewright::model
