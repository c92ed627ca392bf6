// A mixture with large experts as it was measured, and what its layers launch.
#pragma once

#include <string>
#include <vector>

#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace pipewright::model::test {

/// Four GPUs, PP 2 x EP 2, eight large experts of which two are chosen, as measured.
inline scenario::Scenario large_experts() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 8, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8,
  seq_length: 4096, vocab_size: 32000, num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 14336,
  gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {pipeline_model_parallel_size: 2, expert_model_parallel_size: 2, expert_tensor_parallel_size: 1,
  virtual_pipeline_model_parallel_size: 2, micro_batch_size: 1, global_batch_size: 16, bf16: true,
  use_distributed_optimizer: true, grad_reduce_in_fp32: true, gradient_accumulation_fusion: true, hidden_dropout: 0.0,
  attention_dropout: 0.0, apply_rope_fusion: true, overlap_p2p_comm: true, batch_p2p_comm: false,
  moe_token_dispatcher_type: alltoall, moe_grouped_gemm: true, moe_permute_fusion: true, moe_router_dtype: fp32,
  moe_router_force_load_balancing: true, moe_aux_loss_coeff: 0.001, bias_activation_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 4, gpus_per_node: 4, link: nvlink}
)",
                         "large_experts.yaml");
}

inline const Piece& layer(const model::Stages& stages) { return stages.pieces[stages.ranks[1].chunks[0].pieces[0]]; }

/// Kernels that the host launches for operations of a family.
inline int launched(const Piece& piece, const std::vector<Step>& steps, const std::string& family) {
  int count = 0;
  for (const auto& step : steps) {
    if (step.kind != Step::Kind::launch) continue;
    const Kernel& kernel = piece.kernels[step.index];
    if (kernel.key.family.starts_with(family)) count += kernel.launches;
  }
  return count;
}

}  // namespace pipewright::model::test
