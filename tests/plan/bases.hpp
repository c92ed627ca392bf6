// Small scenarios that break no rule, and changes to them written as "name=value; $VARIABLE=value".
#pragma once

#include <string>
#include <string_view>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::test {

inline constexpr std::string_view shared = R"(
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  seq_length: 4096
  vocab_size: 32000
  gated_linear_unit: true
  normalization: RMSNorm
  add_bias_linear: false
  untie_embeddings_and_output_weights: true
  position_embedding_type: rope
)";

/// "dense": PP 4, VPP 2, DP 1... "tensor": TP 2 with sequence parallel; "single": no pipeline; "moe": PP 2, VPP 2,
/// EP 2.
inline std::string base(std::string_view name) {
  std::string model = "scenario: 1\nmodel:\n  num_layers: 8" + std::string(shared);
  std::string settings =
      "settings:\n  bf16: true\n  use_distributed_optimizer: true\n  gradient_accumulation_fusion: true\n"
      "  hidden_dropout: 0.0\n  attention_dropout: 0.0\n  micro_batch_size: 1\n  global_batch_size: 16\n";
  std::string environment;
  if (name == "dense")
    settings +=
        "  pipeline_model_parallel_size: 4\n  virtual_pipeline_model_parallel_size: 2\n  overlap_p2p_comm: true\n";
  if (name == "tensor") {
    settings += "  tensor_model_parallel_size: 2\n  sequence_parallel: true\n  pipeline_model_parallel_size: 2\n";
    environment = "environment:\n  CUDA_DEVICE_MAX_CONNECTIONS: '1'\n";
  }
  if (name == "moe") {
    model += "  num_moe_experts: 8\n  moe_router_topk: 2\n  moe_ffn_hidden_size: 4096\n";
    settings +=
        "  pipeline_model_parallel_size: 2\n  virtual_pipeline_model_parallel_size: 2\n  overlap_p2p_comm: true\n"
        "  expert_model_parallel_size: 2\n  expert_tensor_parallel_size: 1\n  moe_token_dispatcher_type: alltoall\n"
        "  moe_grouped_gemm: true\n";
  }
  return model + settings + environment +
         "cluster:\n  profile: h100-sxm\n  num_gpus: 8\nsoftware:\n  megatron_core: 0.19.0\n"
         "  process_group_device_id: true\n";
}

/// "a=b; $VARIABLE=c; ignore=d", one after the other.
inline void change(scenario::Scenario& s, std::string_view changes) {
  while (!changes.empty()) {
    const auto end = changes.find("; ");
    const std::string_view one = changes.substr(0, end);
    if (one.starts_with("ignore="))
      scenario::ignore(s, one.substr(7), {"test", 0});
    else if (one.starts_with('$'))
      scenario::set_env(s, one.substr(1));
    else if (!one.empty())
      scenario::set(s, one);
    changes.remove_prefix(end == std::string_view::npos ? changes.size() : end + 2);
  }
}

inline scenario::Scenario scenario(std::string_view name, std::string_view changes) {
  auto s = scenario::parse(base(name), std::string(name) + ".yaml");
  change(s, changes);
  return s;
}

}  // namespace pipewright::test
