// model: the architecture. Documentation follows TransformerConfig and MLATransformerConfig of core_r0.19.0.
#include "field_rows.hpp"

namespace pipewright::scenario {

#define MODEL(name, doc) PIPEWRIGHT_FIELD(model, name, doc)

std::vector<Field> model_fields() {
  constexpr double most_count = 1e6, most_width = 0x1p30;
  return {
      MODEL(num_layers, "transformer layers").between(1, most_count),
      MODEL(hidden_size, "width of the hidden state").between(1, most_width),
      MODEL(ffn_hidden_size, "width of the MLP; default 4 x hidden_size").between(1, most_width),
      MODEL(num_attention_heads, "query heads").between(1, most_count),
      MODEL(num_query_groups, "key and value heads; default num_attention_heads").between(1, most_count),
      MODEL(kv_channels, "width of a head; default hidden_size / num_attention_heads").between(1, most_count),
      MODEL(seq_length, "tokens of a sequence").between(1, most_width),
      MODEL(max_position_embeddings, "longest sequence that position embeddings cover").between(1, most_width),
      MODEL(vocab_size, "tokens of the vocabulary, before padding").between(1, most_width),
      MODEL(make_vocab_size_divisible_by, "the vocabulary is padded to a multiple of this x TP").between(1, most_width),
      MODEL(untie_embeddings_and_output_weights, "input embedding and output layer have weights of their own"),
      MODEL(position_embedding_type, "position embedding")
          .in({"learned_absolute", "rope", "mrope", "yarn", "relative", "none"}),
      MODEL(rotary_base, "base of the rotary frequencies").between(1, 1e12),
      MODEL(rotary_percent, "share of a head that rotates").between(0, 1),
      MODEL(rotary_interleaved, "rotary pairs are neighbours instead of halves"),
      MODEL(normalization, "normalisation layers").in({"LayerNorm", "RMSNorm", "L2Norm"}),
      MODEL(layernorm_epsilon, "epsilon of the normalisation").between(0, 1),
      MODEL(layernorm_zero_centered_gamma, "normalisation weights are stored minus 1"),
      MODEL(apply_residual_connection_post_layernorm, "the residual branches off after the normalisation"),
      MODEL(pre_layernorm, "norms before attention and MLP (false: Bridge's EXAONE 4 layers)"),
      MODEL(post_layernorm, "norms on the outputs of attention and MLP (Bridge's Gemma providers)"),
      MODEL(apply_embedding_scaling, "embeddings times sqrt(hidden_size) (Bridge's Gemma providers)"),
      MODEL(attn_logit_softcapping, "attention scores s become c tanh(s / c) (Bridge's Gemma 2)").between(0, 1e6),
      MODEL(final_logit_softcapping, "logits s become c tanh(s / c) (Bridge's Gemma 2)").between(0, 1e6),
      MODEL(attention_chunk_size, "a query sees keys of its own chunk (Llama 4; no Megatron has it)")
          .between(1, most_width),
      MODEL(add_bias_linear, "linear layers have biases"),
      MODEL(add_qkv_bias, "the qkv projection has a bias"),
      MODEL(gated_linear_unit, "the MLP is gated (SwiGLU, GeGLU)"),
      MODEL(activation_func, "activation of the MLP; default silu with gated_linear_unit, else gelu")
          .in({"gelu", "silu", "relu", "squared_relu", "quick_gelu", "fast_gelu"}),
      MODEL(activation_func_clamp_value, "the gate is clamped to this from above, the linear half both ways")
          .between(0, 1e6),
      MODEL(glu_linear_offset, "added to the linear half of a gated activation").between(-1e6, 1e6),
      MODEL(qk_layernorm, "queries and keys are normalised"),
      MODEL(qk_layernorm_whole, "qk_layernorm over all heads of a token together (Bridge's OLMoE provider)"),
      MODEL(scale_queries_by_position, "queries times a factor of their position (Bridge's Ministral 3 provider)"),
      MODEL(qk_l2_norm, "queries and keys are normalised without weights"),
      MODEL(attention_output_gate, "the attention output is gated"),
      MODEL(window_size, "sliding window [left, right]; -1: unlimited").between(-1, most_width),
      MODEL(window_attn_skip_freq, "every n-th layer has full attention, or a pattern")
          .between(0, most_count)
          .or_scalar(),
      MODEL(no_rope_freq, "every n-th layer has no rotary embedding, or a pattern").between(0, most_count).or_scalar(),
      MODEL(softmax_type, "softmax of the attention").in({"vanilla", "off-by-one", "learnable"}),
      MODEL(softmax_scale, "scale of the attention scores; default 1 / sqrt(kv_channels)").between(0, 1e6),

      MODEL(experimental_attention_variant, "attention other than softmax in layers that linear_attention_freq names")
          .in({"gated_delta_net", "gdn", "gdn2", "dsa", "dsv4_hybrid"}),
      MODEL(linear_attention_freq, "every n-th layer has softmax attention, or a pattern of 1 (linear) and 0")
          .between(0, most_count)
          .or_scalar(),
      MODEL(linear_conv_kernel_dim, "width of the causal convolution of linear attention").between(1, 64),
      MODEL(linear_key_head_dim, "width of a head's keys in linear attention").between(1, most_count),
      MODEL(linear_value_head_dim, "width of a head's values in linear attention").between(1, most_count),
      MODEL(linear_num_key_heads, "heads of queries and keys in linear attention").between(1, most_count),
      MODEL(linear_num_value_heads, "heads of values in linear attention").between(1, most_count),

      MODEL(hybrid_layer_pattern,
            "a hybrid's layers: M (Mamba-2), * (attention), - (MLP), E (experts); | between stages, / before the "
            "layers of every depth of "
            "multi-token prediction"),
      MODEL(mamba_state_dim, "state of a Mamba-2 head, for each of its channels").between(1, most_count),
      MODEL(mamba_head_dim, "channels of a Mamba-2 head").between(1, most_count),
      MODEL(mamba_num_groups, "groups of Mamba-2 heads that share B and C").between(1, most_count),
      MODEL(mamba_num_heads, "Mamba-2 heads; default 2 x hidden_size / mamba_head_dim").between(1, most_count),

      MODEL(num_moe_experts, "routed experts of a MoE layer").between(1, most_count),
      MODEL(moe_router_topk, "experts a token is sent to").between(1, most_count),
      MODEL(moe_ffn_hidden_size, "width of an expert; default ffn_hidden_size").between(1, most_width),
      MODEL(moe_layer_freq, "every n-th layer is MoE, or a pattern of 0 and 1").between(0, most_count).or_scalar(),
      MODEL(moe_shared_expert_intermediate_size, "width of all shared experts together").between(1, most_width),
      MODEL(moe_shared_expert_gate, "the shared expert is gated"),
      MODEL(moe_router_num_groups, "groups of experts of the group-limited router").between(1, most_count),
      MODEL(moe_router_group_topk, "groups a token may use").between(1, most_count),
      MODEL(moe_router_topk_limited_devices, "older name of moe_router_group_topk").between(1, most_count),
      MODEL(moe_router_pre_softmax, "softmax before the choice of experts"),
      MODEL(moe_router_topk_scaling_factor, "factor on the routing weights").between(0, 1e6),
      MODEL(moe_router_score_function, "scores of the router").in({"softmax", "sigmoid", "sqrtsoftplus"}),
      MODEL(moe_router_enable_expert_bias, "routing with a bias per expert instead of an auxiliary loss"),
      MODEL(moe_latent_size, "width in which experts work, if narrower than the hidden state").between(1, most_width),

      MODEL(multi_latent_attention, "multi-latent attention"),
      MODEL(q_lora_rank, "rank of the query projection; none: full").between(1, most_width),
      MODEL(kv_lora_rank, "rank of the key and value projection").between(1, most_width),
      MODEL(qk_head_dim, "width of a head without position").between(1, most_width),
      MODEL(qk_pos_emb_head_dim, "width of a head's rotary part").between(0, most_width),
      MODEL(v_head_dim, "width of a value head").between(1, most_width),
      MODEL(rope_type, "rotary embedding of multi-latent attention").in({"rope", "yarn"}),
      MODEL(mla_down_proj_fusion, "both down projections are one GEMM"),

      MODEL(mtp_num_layers, "multi-token prediction layers").between(0, most_count),
      MODEL(mtp_loss_scaling_factor, "weight of their loss").between(0, 1e6),
      MODEL(mtp_use_repeated_layer, "all of them share one layer's weights"),
  };
}

#undef MODEL

}  // namespace pipewright::scenario
