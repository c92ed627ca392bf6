// Kinds of models and runs that few scenarios have, small enough for whole searches in seconds: changes to the bases.
#pragma once

#include <array>
#include <random>
#include <string>

#include "bases.hpp"

namespace pipewright::test {

struct Kind {
  const char *name, *base, *changes;
  const char* choices = "";  ///< lists for `search:` that a draw may open
};

inline constexpr const char* hybrid_model =
    "hidden_size=2688; ffn_hidden_size=1856; num_query_groups=2; kv_channels=128; gated_linear_unit=false; "
    "activation_func=squared_relu; position_embedding_type=none; mamba_num_heads=64; bias_activation_fusion=false; "
    "bias_dropout_fusion=false; moe_permute_fusion=true; ";

inline constexpr std::array kinds = {
    Kind{"hybrid of Mamba-2, attention and experts", "single",
         "num_moe_experts=16; moe_router_topk=4; moe_ffn_hidden_size=1856; moe_shared_expert_intermediate_size=3712; "
         "hybrid_layer_pattern=MEM*EMEM; expert_model_parallel_size=4; expert_tensor_parallel_size=1; "
         "moe_token_dispatcher_type=alltoall; moe_grouped_gemm=true; use_fused_weighted_squared_relu=true"},
    Kind{"hybrid with a pipeline", "single", "hybrid_layer_pattern=M-M*|-M-M; pipeline_model_parallel_size=2"},
    Kind{"Megatron-FSDP", "single",
         "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params; "
         "gradient_accumulation_fusion=false; overlap_grad_reduce=true; overlap_param_gather=true; "
         "$CUDA_DEVICE_MAX_CONNECTIONS=8"},
    Kind{"LoRA", "dense", "lora_target_modules=[linear_qkv]; lora_dim=16; megatron_bridge=0.5.0"},
    Kind{"LoRA of all linear layers", "tensor",
         "lora_target_modules=[linear_qkv, linear_proj, linear_fc1, linear_fc2]; lora_dim=16; megatron_bridge=0.5.0"},
    Kind{"packed sequences", "dense",
         "sft=true; sequence_lengths=[512+512+1024+1024, 4096, 100*40, 2048+1000]; cudnn=9.14"},
    Kind{"CUDA graphs", "dense", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]",
         "cuda_graph_modules=[[attn], [mlp], [attn, mlp]]"},
    Kind{"CUDA graphs of a mixture", "moe", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn, moe_router]",
         "cuda_graph_modules=[[attn], [attn, moe_router]]"},
    Kind{"GPT-OSS", "moe",
         "hidden_size=2880; ffn_hidden_size=2880; num_attention_heads=64; num_query_groups=8; kv_channels=64; "
         "add_bias_linear=true; activation_func=quick_gelu; activation_func_clamp_value=7.0; glu_linear_offset=1.0; "
         "position_embedding_type=yarn; window_size=[127, 0]; window_attn_skip_freq=[2]; softmax_type=learnable; "
         "moe_router_topk=4; moe_ffn_hidden_size=2880; moe_permute_fusion=true; moe_router_fusion=true"},
    Kind{"delta nets", "single",
         "hidden_size=2048; ffn_hidden_size=5120; num_attention_heads=16; num_query_groups=2; kv_channels=256; "
         "rotary_percent=0.25; layernorm_zero_centered_gamma=true; qk_layernorm=true; attention_output_gate=true; "
         "experimental_attention_variant=gated_delta_net; linear_attention_freq=[4]; num_moe_experts=64; "
         "moe_router_topk=8; moe_ffn_hidden_size=512; expert_model_parallel_size=4; expert_tensor_parallel_size=1; "
         "moe_token_dispatcher_type=alltoall; moe_grouped_gemm=true; moe_permute_fusion=true"},
    Kind{"latent attention and multi-token prediction", "moe",
         "multi_latent_attention=true; kv_lora_rank=128; qk_head_dim=64; qk_pos_emb_head_dim=32; v_head_dim=64; "
         "mtp_num_layers=1; moe_shared_expert_intermediate_size=4096"},
    Kind{"multi-token prediction", "dense", "mtp_num_layers=1"},
    Kind{"tensor, context and expert parallelism", "moe",
         "tensor_model_parallel_size=2; sequence_parallel=true; context_parallel_size=2; num_gpus=16; "
         "$CUDA_DEVICE_MAX_CONNECTIONS=1; moe_permute_fusion=true"},
    Kind{"expert overlap in FP8", "moe",
         "fp8=hybrid; fp8_recipe=tensorwise; overlap_moe_expert_parallel_comm=true; moe_permute_fusion=true; "
         "$CUDA_DEVICE_MAX_CONNECTIONS=8"},
};

/// One of them, with a drawn number of microbatches, sequence length and weight of buckets.
inline scenario::Scenario drawn_kind(const Kind& kind, std::mt19937& random) {
  std::string changes = kind.changes;
  if (std::string_view(kind.name).starts_with("hybrid")) changes = hybrid_model + changes;
  auto s = scenario(kind.base, changes);
  s.name = kind.name;
  const auto draw = [&](const std::string& field, std::initializer_list<const char*> values) {
    scenario::set(s, field + "=" + values.begin()[random() % values.size()]);
  };
  draw("global_batch_size", {"8", "16", "32", "48"});
  if (s.settings.sequence_lengths.empty()) draw("seq_length", {"2048", "4096", "8192"});
  draw("overlap_grad_reduce", {"true", "false"});
  if (s.settings.overlap_grad_reduce || s.settings.use_megatron_fsdp) {
    draw("overlap_grad_reduce", {"true"});
    draw("bucket_size", {"4000000", "40000000", "400000000"});
  }
  return s;
}

}  // namespace pipewright::test
