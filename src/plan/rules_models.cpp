// Mixtures of experts, activations and positions.
#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {
namespace {

bool torch_norms(const Scenario& s) {
  return s.settings.transformer_impl == "local" && s.model.normalization == "RMSNorm";
}

}  // namespace

std::vector<Rule> model_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  return {
      {"moe.deepep-needs-flex",
       violation,
       core,
       {"moe_enable_deepep", "moe_token_dispatcher_type"},
       everywhere,
       [](const Scenario& s) { return s.settings.moe_enable_deepep && s.settings.moe_token_dispatcher_type != "flex"; },
       "DeepEP backend is only supported with flex token dispatcher.",
       "set moe_token_dispatcher_type: flex"},
      {"moe.shared-overlap-dispatcher",
       violation,
       core,
       {"moe_shared_expert_overlap", "moe_token_dispatcher_type"},
       everywhere,
       [](const Scenario& s) {
         return s.model.moe_shared_expert_intermediate_size && s.settings.moe_shared_expert_overlap &&
                s.settings.moe_token_dispatcher_type == "allgather";
       },
       "moe_shared_expert_overlap only works with alltoall or flex token dispatcher.",
       "set moe_token_dispatcher_type: alltoall"},
      {"moe.latent-shared-overlap",
       violation,
       core,
       {"moe_shared_expert_overlap", "moe_latent_size"},
       everywhere,
       [](const Scenario& s) {
         return moe_model(s) && s.model.moe_latent_size && s.settings.moe_shared_expert_overlap;
       },
       "Shared expert overlap not supported when MoE latent projections are used.",
       "set moe_shared_expert_overlap: false",
       [](Scenario& s) { s.settings.moe_shared_expert_overlap = false; }},
      {"moe.pad-needs-capacity",
       violation,
       core,
       {"moe_pad_expert_input_to_capacity", "moe_expert_capacity_factor"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.moe_pad_expert_input_to_capacity && !s.settings.moe_expert_capacity_factor;
       },
       "moe_expert_capacity_factor must be set to use moe_pad_expert_input_to_capacity",
       "set moe_expert_capacity_factor"},
      {"model.fused-activation",
       violation,
       core,
       {"bias_activation_fusion", "activation_func"},
       everywhere,
       [](const Scenario& s) {
         const auto activation = scenario::activation_func(s);
         return s.settings.bias_activation_fusion && activation != "gelu" && activation != "silu" &&
                activation != "quick_gelu";
       },
       "When bias_activation_fusion is True, activation function should be either gelu, swiglu, or quick_geglu",
       "set bias_activation_fusion: false",
       [](Scenario& s) { s.settings.bias_activation_fusion = false; }},
      {"model.fused-gelu-needs-bias",
       violation,
       core,
       {"bias_activation_fusion", "add_bias_linear", "gated_linear_unit", "activation_func"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.bias_activation_fusion && scenario::activation_func(s) == "gelu" &&
                !s.model.gated_linear_unit && !s.model.add_bias_linear;
       },
       "When bias_activation_fusion is True, gated_linear_unit is False and activation function is gelu, "
       "add_bias_linear must also be True.",
       "set bias_activation_fusion: false",
       [](Scenario& s) { s.settings.bias_activation_fusion = false; }},
      {"model.fused-quick-gelu-needs-gate",
       violation,
       core,
       {"bias_activation_fusion", "gated_linear_unit", "activation_func"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.bias_activation_fusion && scenario::activation_func(s) == "quick_gelu" &&
                !s.model.gated_linear_unit;
       },
       "When bias_activation_fusion is True and activation function is quick_gelu, gated_linear_unit must be True.",
       "set bias_activation_fusion: false",
       [](Scenario& s) { s.settings.bias_activation_fusion = false; }},
      {"moe.clamp-needs-experts",
       violation,
       core,
       {"activation_func_clamp_value", "gated_linear_unit"},
       from(Version::dev),
       [](const Scenario& s) {
         return s.model.activation_func_clamp_value && s.model.gated_linear_unit &&
                s.model.activation_func.value_or("silu") == "silu" && !moe_model(s);
       },
       "activation_func_clamp_value for SwiGLU is only supported with MoE.",
       "remove activation_func_clamp_value"},
      // The map of tokens that TE's fused router keeps for its backward pass is padded in place (pad_routing_map),
      // which autograd finds; seen with core_r0.19.0 and TE 2.20.2. enable_experimental pads a copy.
      {"moe.padded-map-fused-router",
       violation,
       core,
       {"moe_router_padding_for_quantization", "moe_router_padding_for_fp8", "moe_router_fusion"},
       everywhere,
       [](const Scenario& s) {
         const auto& o = s.settings;
         const auto experimental = o.other.find("enable_experimental");
         const bool copies = o.moe_permute_fusion && experimental != o.other.end() && experimental->second == "true";
         return scenario::pads_for_quantization(s) && o.moe_router_fusion &&
                o.moe_token_dispatcher_type == "alltoall" && moe_model(s) && !copies;
       },
       "one of the variables needed for gradient computation has been modified by an inplace operation: the fused "
       "router keeps the map of tokens that padding then changes, and the first backward pass fails",
       "remove moe_router_fusion or the padding, or set enable_experimental: true with moe_permute_fusion"},
      {"moe.one-expert-pre-softmax",
       violation,
       core,
       {"moe_router_topk", "moe_router_pre_softmax"},
       everywhere,
       [](const Scenario& s) {
         const auto& balanced = s.settings.moe_router_load_balancing_type;
         return moe_model(s) && s.model.moe_router_topk == 1 && s.model.moe_router_score_function == "softmax" &&
                !s.model.moe_router_pre_softmax && balanced != scenario::Strings{"sinkhorn"};
       },
       "Please use --moe-router-pre-softmax when topk is 1.",
       "set moe_router_pre_softmax: true"},
      {"moe.sinkhorn-aux-loss",
       violation,
       core,
       {"moe_router_load_balancing_type", "moe_aux_loss_coeff"},
       everywhere,
       [](const Scenario& s) {
         return moe_model(s) && has(s.settings.moe_router_load_balancing_type, "sinkhorn") &&
                s.settings.moe_aux_loss_coeff != std::vector<double>{0};
       },
       "Sinkhorn routing does not support aux loss.",
       "set moe_aux_loss_coeff: 0"},
      {"moe.bias-needs-whole-experts",
       violation,
       core,
       {"add_bias_linear", "num_moe_experts", "expert_tensor_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return moe_model(s) && s.model.add_bias_linear && scenario::expert_tensor_parallel_size(s) != 1;
       },
       "Bias in Moe is only supported when ETP==1",
       "set expert_tensor_parallel_size: 1, or add_bias_linear: false"},
      {"moe.bias-without-fused-dropout",
       violation,
       core,
       {"add_bias_linear", "num_moe_experts", "bias_dropout_fusion"},
       everywhere,
       [](const Scenario& s) {
         return moe_model(s) && s.model.add_bias_linear && s.settings.bias_dropout_fusion &&
                s.settings.moe_grouped_gemm;
       },
       "bias_dropout_fusion is not supported in TEGroupedMLP when add_bias_linear=True",
       "set bias_dropout_fusion: false, or add_bias_linear: false",
       [](Scenario& s) { s.settings.bias_dropout_fusion = false; }},
      // DeepEP's own assertion (csrc/deep_ep.cpp:43), where Megatron makes its buffer.
      {"moe.deepep-ranks",
       violation,
       core,
       {"moe_flex_dispatcher_backend", "expert_model_parallel_size", "expert_tensor_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         const auto ranks = s.settings.expert_model_parallel_size * scenario::expert_tensor_parallel_size(s);
         constexpr int of_a_node = 8;  // NUM_MAX_NVL_PEERS, whatever the machine
         return moe_model(s) && s.settings.moe_token_dispatcher_type == "flex" &&
                s.settings.moe_flex_dispatcher_backend == "deepep" && ranks > of_a_node && ranks % of_a_node != 0;
       },
       "DeepEP takes fewer than 8 ranks or a multiple of 8 (num_ranks < NUM_MAX_NVL_PEERS or num_ranks % "
       "NUM_MAX_NVL_PEERS == 0)",
       "choose expert_model_parallel_size so that it, times expert_tensor_parallel_size, is a multiple of 8"},
      {"moe.fused-squared-relu-bias",
       violation,
       core,
       {"use_fused_weighted_squared_relu", "add_bias_linear"},
       everywhere,
       [](const Scenario& s) {
         return moe_model(s) && s.settings.use_fused_weighted_squared_relu && s.model.add_bias_linear &&
                scenario::activation_func(s) == "squared_relu";
       },
       "Bias is not supported with fused weighted squared relu.",
       "set use_fused_weighted_squared_relu: false",
       [](Scenario& s) { s.settings.use_fused_weighted_squared_relu = false; }},
      {"moe.bias-in-shared-experts",
       violation,
       core,
       {"add_bias_linear", "moe_shared_expert_intermediate_size"},
       everywhere,
       [](const Scenario& s) {
         return moe_model(s) && s.model.add_bias_linear && s.model.moe_shared_expert_intermediate_size;
       },
       "bias is not supported in the shared experts, ",
       "set add_bias_linear: false"},
      {"moe.expert-bias-score",
       violation,
       core,
       {"moe_router_enable_expert_bias", "moe_router_score_function"},
       everywhere,
       [](const Scenario& s) {
         return s.model.moe_router_enable_expert_bias && s.model.moe_router_score_function == "softmax";
       },
       "Expert bias for aux-loss-free routing only supports 'sigmoid' and 'sqrtsoftplus' score functions.",
       "set moe_router_score_function: sigmoid, or moe_router_enable_expert_bias: false"},
      {"moe.padding-needs-quantization",
       violation,
       core,
       {"moe_router_padding_for_quantization", "moe_router_padding_for_fp8", "fp8", "fp4"},
       everywhere,
       [](const Scenario& s) { return scenario::pads_for_quantization(s) && !s.settings.fp8 && !s.settings.fp4; },
       "fp8/fp4 must be specified when moe_router_padding_for_quantization is True.",
       "remove moe_router_padding_for_quantization"},
      {"moe.padding-dispatcher",
       violation,
       core,
       {"moe_router_padding_for_quantization", "moe_router_padding_for_fp8", "moe_token_dispatcher_type"},
       everywhere,
       [](const Scenario& s) {
         return scenario::pads_for_quantization(s) && s.settings.moe_token_dispatcher_type == "allgather";
       },
       "allgather and alltoall_seq dispatcher does not support moe_router_padding_for_quantization.",
       "set moe_token_dispatcher_type: alltoall"},
      {"moe.deepep-pads-not",
       violation,
       core,
       {"moe_flex_dispatcher_backend", "moe_pad_expert_input_to_capacity"},
       everywhere,
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.moe_token_dispatcher_type == "flex" && o.moe_pad_expert_input_to_capacity &&
                (o.moe_enable_deepep || o.moe_flex_dispatcher_backend == "deepep");
       },
       "Flex token dispatcher with deepep backend does not support moe_pad_expert_input_to_capacity",
       "set moe_token_dispatcher_type: alltoall, or moe_pad_expert_input_to_capacity: false"},
      {"moe.capacity-balancing",
       violation,
       core,
       {"moe_expert_capacity_factor", "moe_router_load_balancing_type"},
       everywhere,
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.moe_expert_capacity_factor.value_or(-1) >= 0 &&
                !only_of(o.moe_router_load_balancing_type, {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"});
       },
       "moe_expert_capacity_factor only works with aux_loss, seq_aux_loss, global_aux_loss or none load balancing",
       "set moe_router_load_balancing_type: aux_loss, or remove moe_expert_capacity_factor"},
      {"moe.expert-width-needs-experts",
       violation,
       core,
       {"moe_ffn_hidden_size", "num_moe_experts"},
       from(pr_4268),
       [](const Scenario& s) { return s.model.moe_ffn_hidden_size && !moe_model(s); },
       "moe_ffn_hidden_size is set but num_moe_experts is None.",
       "remove moe_ffn_hidden_size"},
      {"model.no-rope-divides",
       violation,
       core,
       {"no_rope_freq", "num_layers"},
       everywhere,
       [](const Scenario& s) {
         const auto& every = s.model.no_rope_freq;
         return every.size() == 1 && every[0] > 0 && s.model.num_layers % every[0] != 0;
       },
       "no_rope_freq={no_rope_freq} should be divisible by num_layers={num_layers}.",
       "choose a number that divides num_layers, or write the pattern out"},
      {"model.latent-interleaved",
       violation,
       core,
       {"multi_latent_attention", "rotary_interleaved"},
       everywhere,
       [](const Scenario& s) { return s.model.multi_latent_attention && s.model.rotary_interleaved; },
       "rotary_interleaved does not work with multi_latent_attention.",
       "set rotary_interleaved: false"},
      {"model.kv-channels",
       violation,
       arguments,
       {"kv_channels", "hidden_size", "num_attention_heads"},
       everywhere,
       [](const Scenario& s) {
         return !s.model.kv_channels && s.model.num_attention_heads > 0 &&
                s.model.hidden_size % s.model.num_attention_heads != 0;
       },
       "assert args.hidden_size % args.num_attention_heads == 0",
       "state kv_channels (latent attention does not read it)"},
      // The layers of transformer_impl local with RMSNorm have PyTorch's (backends.py, LocalSpecProvider.layer_norm).
      {"model.torch-norm-centered",
       violation,
       core,
       {"transformer_impl", "normalization", "layernorm_zero_centered_gamma"},
       everywhere,
       [](const Scenario& s) { return torch_norms(s) && s.model.layernorm_zero_centered_gamma; },
       "zero_centered_gamma not supported by torch LayerNorm",
       "set transformer_impl: transformer_engine, or layernorm_zero_centered_gamma: false"},
      {"model.torch-norm-persists",
       violation,
       core,
       {"transformer_impl", "normalization", "persist_layer_norm"},
       everywhere,
       [](const Scenario& s) { return torch_norms(s) && s.settings.persist_layer_norm; },
       "persist_layer_norm not supported by torch LayerNorm",
       "set persist_layer_norm: false (--no-persist-layer-norm)"},
      {"model.torch-norm-sequence",
       violation,
       core,
       {"transformer_impl", "normalization", "sequence_parallel"},
       everywhere,
       [](const Scenario& s) { return torch_norms(s) && s.settings.sequence_parallel; },
       "sequence parallel not supported by torch LayerNorm",
       "set transformer_impl: transformer_engine, or sequence_parallel: false"},
      {"model.mtp-linear-attention",
       violation,
       core,
       {"mtp_num_layers", "experimental_attention_variant", "linear_attention_freq"},
       from(v0_17),
       [](const Scenario& s) { return s.model.mtp_num_layers.value_or(0) > 0 && scenario::mtp_is_linear_attention(s); },
       "Multi-Token Prediction (MTP) is not yet supported with the linear attention of the last decoder layer",
       "set mtp_num_layers: none, or a linear_attention_freq that ends with softmax attention"},
      {"model.mtp-attention-variant",  // whose builder is megatron/training/models/gpt.py: mtp_block_spec
       violation,
       core,
       {"mtp_num_layers", "experimental_attention_variant"},
       from(v0_19).except(dev),
       [](const Scenario& s) {
         return scenario::parsed_by_megatron(s) && s.model.mtp_num_layers && s.model.experimental_attention_variant &&
                !scenario::is_hybrid(s);
       },
       "Experimental attention variant is not supported with get_gpt_decoder_layer_specs, but got "
       "config.experimental_attention_variant='{experimental_attention_variant}'.",
       "set mtp_num_layers: none (0 fails, too), or train by Megatron Bridge"},
      {"model.mtp-position",
       violation,
       arguments,
       {"mtp_num_layers", "position_embedding_type"},
       everywhere,
       [](const Scenario& s) {
         const auto& position = s.model.position_embedding_type;
         const bool several_axes = position == "mrope" && !scenario::parsed_by_megatron(s);
         return s.model.mtp_num_layers.value_or(0) > 0 && position != "rope" && position != "none" && !several_axes;
       },
       "Multi-Token Prediction (MTP) is not supported with {position_embedding_type} position embedding type.",
       "set position_embedding_type: rope"},
      {"model.positions-cover-sequence",
       violation,
       arguments,
       {"max_position_embeddings", "seq_length"},
       everywhere,
       [](const Scenario& s) {
         return s.model.max_position_embeddings.value_or(s.model.seq_length) < s.model.seq_length;
       },
       "max_position_embeddings ({max_position_embeddings}) must be greater than or equal to seq_length "
       "({seq_length}).",
       "set max_position_embeddings: {seq_length}"},
      {"moe.allgather-variable",
       violation,
       core,
       {"moe_token_dispatcher_type", "variable_seq_lengths"},
       everywhere,
       [](const Scenario& s) {  // asked of dense models, too
         return s.settings.moe_token_dispatcher_type == "allgather" && s.settings.variable_seq_lengths;
       },
       "Token dispatcher type: allgather does not support variable sequence length, please use alltoall dispatcher "
       "instead.",
       "set moe_token_dispatcher_type: alltoall"},
  };
}

}  // namespace pipewright::plan
