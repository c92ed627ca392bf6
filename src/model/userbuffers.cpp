#include "userbuffers.hpp"

#include <algorithm>
#include <iterator>

namespace pipewright::model {
namespace {

struct Tuned {
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
    {9, 8192, false, {4, 24, 2, 4, 24, 16}},   {9, 8192, true, {4, 24, 2, 4, 1, 1}},
    {10, 8192, false, {16, 24, 2, 4, 32, 16}}, {10, 8192, true, {4, 24, 2, 4, 1, 1}},
    {9, 16384, false, {2, 24, 2, 2, 24, 8}},   {9, 16384, true, {2, 24, 2, 2, 1, 1}},
    {10, 16384, false, {8, 24, 2, 2, 32, 8}},  {10, 16384, true, {8, 32, 2, 8, 1, 1}},
};

}  // namespace

OverlapMultiprocessors overlap_multiprocessors(const scenario::Scenario& scenario, const profile::Device& gpu) {
  const auto& o = scenario.settings;
  if (!scenario.software.megatron_bridge || o.sft || !o.lora_target_modules.empty() || scenario.model.num_moe_experts)
    return {};
  const auto* found = std::ranges::find_if(tuned, [&](const Tuned& t) {
    return t.generation == gpu.compute_capability / 10 && t.hidden == scenario.model.hidden_size &&
           t.fp8 == static_cast<bool>(o.fp8);
  });
  return found == std::end(tuned) ? OverlapMultiprocessors{} : found->multiprocessors;
}

}  // namespace pipewright::model
