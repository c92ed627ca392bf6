// Precision, data parallel, optimizer, loss, mixture of experts and what the process needs from its environment.
#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

/// language_module.py, _set_attention_backend: set variables must have the values that the backend gives them.
bool denies_attention_backend(const Scenario& s) {
  const auto& backend = s.settings.attention_backend;
  const auto denies = [&](const char* name, std::string_view kernels) {
    const char* expected = backend == "auto" || backend == kernels ? "1" : "0";
    return scenario::variable(s, name, expected) != expected;
  };
  return denies("NVTE_FLASH_ATTN", "flash") || denies("NVTE_FUSED_ATTN", "fused") ||
         denies("NVTE_UNFUSED_ATTN", "unfused");
}
bool pads_for_quantization(const Scenario& s) {
  return s.settings.moe_router_padding_for_quantization || s.settings.moe_router_padding_for_fp8;
}

}  // namespace

std::vector<Rule> run_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  return {
      {"precision.one",
       violation,
       core,
       {"bf16", "fp16"},
       everywhere,
       [](const Scenario& s) { return s.settings.bf16 && s.settings.fp16; },
       "Only one of self.fp16: {fp16} and self.bf16 {bf16} should be True.",
       "keep bf16"},
      {"precision.fp4-or-fp8",
       violation,
       core,
       {"fp4", "fp8"},
       everywhere,
       [](const Scenario& s) { return s.settings.fp4 && s.settings.fp8; },
       "fp4 and fp8 cannot be used simultaneously. Please choose one.",
       "keep one of the two"},
      {"precision.param-needs-fp8",
       violation,
       core,
       {"fp8_param", "fp8"},
       everywhere,
       [](const Scenario& s) { return s.settings.fp8_param && !s.settings.fp8; },
       "fp8_param must be used together with fp8 mode.",
       "set fp8, or fp8_param: false"},
      {"precision.first-last-delayed",
       violation,
       core,
       {"first_last_layers_bf16", "fp8_recipe"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.fp8 && s.settings.first_last_layers_bf16 && is(s.settings.fp8_recipe, "delayed");
       },
       "Delayed scaling does not support first / last layer in BF16.",
       "set fp8_recipe: tensorwise, or first_last_layers_bf16: false"},
      {"precision.first-last-range",
       violation,
       core,
       {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         if (!s.settings.fp8 || !s.settings.first_last_layers_bf16 || s.settings.pipeline_model_parallel_size <= 0)
           return false;
         const auto most = s.model.num_layers / s.settings.pipeline_model_parallel_size;
         const auto start = s.settings.num_layers_at_start_in_bf16, end = s.settings.num_layers_at_end_in_bf16;
         return start < 0 || start > most || end < 0 || end > most;
       },
       "num_layers_at_start_in_bf16 ({num_layers_at_start_in_bf16}) and num_layers_at_end_in_bf16 "
       "({num_layers_at_end_in_bf16}) must be between 0 and number of layers per pipeline stage ({$layers_per_rank}).",
       "choose numbers within a stage"},
      {"precision.output-proj-mxfp8",
       violation,
       core,
       {"fp8_output_proj", "fp8_recipe"},
       from(v0_18),
       [](const Scenario& s) { return s.settings.fp8_output_proj && !is(s.settings.fp8_recipe, "mxfp8"); },
       "fp8_output_proj requires fp8_recipe='mxfp8', got '{fp8_recipe}'.",
       "set fp8_output_proj: false"},
      {"precision.gather-needs-optimizer",
       violation,
       arguments,
       {"fp8_param_gather", "use_distributed_optimizer"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.fp8_param_gather && !s.settings.use_distributed_optimizer && !s.settings.use_megatron_fsdp;
       },
       "--fp8-param-gather only supported with distributed optimizer, torch fsdp2, megatron fsdp, or inference mode",
       "set use_distributed_optimizer: true"},
      {"precision.reuse-needs-gather",
       violation,
       core,
       {"reuse_grad_buf_for_mxfp8_param_ag", "fp8_param_gather"},
       everywhere,
       [](const Scenario& s) { return s.settings.reuse_grad_buf_for_mxfp8_param_ag && !s.settings.fp8_param_gather; },
       "Reuse grad buffer only when keeping params in MXFP8.",
       "set fp8_param_gather: true"},
      {"dp.gather-needs-optimizer",
       violation,
       arguments,
       {"overlap_param_gather", "use_distributed_optimizer"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.overlap_param_gather && !s.settings.use_distributed_optimizer &&
                !s.settings.use_megatron_fsdp && s.settings.optimizer != "dist_muon";
       },
       "--overlap-param-gather only supported with distributed optimizer, megatron fsdp, or dist_muon",
       "set use_distributed_optimizer: true"},
      {"dp.muon-sharded",
       violation,
       arguments,
       {"optimizer", "use_distributed_optimizer"},
       up_to(v0_17),
       [](const Scenario& s) { return s.settings.optimizer.ends_with("muon") && s.settings.use_distributed_optimizer; },
       "Muon optimizer does not support distributed optimizer for now.",
       "set use_distributed_optimizer: false"},
      {"dp.muon-overlapped",
       violation,
       arguments,
       {"optimizer", "overlap_grad_reduce", "overlap_param_gather"},
       up_to(v0_17),
       [](const Scenario& s) {
         return s.settings.optimizer == "muon" && (s.settings.overlap_grad_reduce || s.settings.overlap_param_gather);
       },
       "Muon optimizer does not support overlap grad reduce",
       "set overlap_grad_reduce: false and overlap_param_gather: false"},
      {"dp.gather-needs-reduce",
       violation,
       arguments,
       {"overlap_param_gather", "overlap_grad_reduce"},
       everywhere,
       [](const Scenario& s) { return s.settings.overlap_param_gather && !s.settings.overlap_grad_reduce; },
       "Must use --overlap-param-gather with --overlap-grad-reduce",
       "set overlap_grad_reduce: true"},
      {"dp.gather-with-step-needs-virtual",
       violation,
       arguments,
       {"overlap_param_gather_with_optimizer_step", "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.overlap_param_gather_with_optimizer_step && !scenario::interleaved(s);
       },
       "--overlap-param-gather-with-optimizer-step only supported with interleaved pipeline parallelism",
       "set overlap_param_gather_with_optimizer_step: false, or a virtual pipeline"},
      {"dp.gather-with-step-needs-gather",
       violation,
       arguments,
       {"overlap_param_gather_with_optimizer_step", "overlap_param_gather"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.overlap_param_gather_with_optimizer_step && !s.settings.overlap_param_gather;
       },
       "Must use --overlap-param-gather-with-optimizer-step with --overlap-param-gather",
       "set overlap_param_gather: true"},
      {"dp.gather-with-step-mxfp8",
       violation,
       core,
       {"overlap_param_gather_with_optimizer_step", "reuse_grad_buf_for_mxfp8_param_ag"},
       from(v0_19),
       [](const Scenario& s) {
         return s.settings.overlap_param_gather_with_optimizer_step && s.settings.reuse_grad_buf_for_mxfp8_param_ag;
       },
       "overlap_param_gather_with_optimizer_step is not supported with reuse_grad_buf_for_mxfp8_param_ag.",
       "set overlap_param_gather_with_optimizer_step: false"},
      {"dp.per-token-average",
       violation,
       core,
       {"average_in_collective", "calculate_per_token_loss"},
       everywhere,
       [](const Scenario& s) { return s.settings.average_in_collective && s.settings.calculate_per_token_loss; },
       "Cannot average in collective when calculating per-token loss!",
       "set average_in_collective: false"},
      {"dp.buckets",
       violation,
       core,
       {"bucket_size", "num_buckets"},
       from(v0_18),
       [](const Scenario& s) { return s.settings.bucket_size && s.settings.num_buckets; },
       "Cannot specify both num_buckets and bucket_size",
       "keep one of the two"},
      {"optimizer.precision-aware-adam",
       violation,
       core,
       {"use_precision_aware_optimizer", "optimizer"},
       everywhere,
       [](const Scenario& s) { return s.settings.use_precision_aware_optimizer && s.settings.optimizer != "adam"; },
       "--use-precision-aware-optimizer only supported with adam",
       "set optimizer: adam"},
      {"optimizer.precision-aware-distributed",
       violation,
       core,
       {"use_precision_aware_optimizer", "use_distributed_optimizer"},
       everywhere.except(main),
       [](const Scenario& s) {
         return s.settings.use_precision_aware_optimizer && !s.settings.use_distributed_optimizer;
       },
       "--use-precision-aware-optimizer only supported with distributed optimizer",
       "set use_distributed_optimizer: true"},
      {"optimizer.state-types",
       violation,
       core,
       {"main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "use_precision_aware_optimizer"},
       everywhere,
       [](const Scenario& s) {
         const auto& settings = s.settings;
         return !settings.use_precision_aware_optimizer &&
                (settings.main_grads_dtype != "fp32" || settings.main_params_dtype != "fp32" ||
                 settings.exp_avg_dtype != "fp32" || settings.exp_avg_sq_dtype != "fp32");
       },
       "main_grads_dtype, main_params_dtype, exp_avg_dtype and exp_avg_sq_dtype can only be fp32 when not using "
       "precision-aware optimizer",
       "set use_precision_aware_optimizer: true"},
      {"tp-overlap.needs-sequence",
       violation,
       arguments,
       {"tp_comm_overlap", "sequence_parallel"},
       everywhere,
       [](const Scenario& s) { return s.settings.tp_comm_overlap && !s.settings.sequence_parallel; },
       "Tensor parallel communication/GEMM overlap can happen only when sequence parallelism is enabled",
       "set sequence_parallel: true, or tp_comm_overlap: false"},
      {"loss.te-fusion",
       violation,
       arguments,
       {"cross_entropy_loss_fusion", "cross_entropy_fusion_impl"},
       from(v0_18),
       [](const Scenario& s) {
         return s.settings.cross_entropy_loss_fusion && s.settings.cross_entropy_fusion_impl == "te";
       },
       "Transformer Engine cross entropy loss fusion is disabled due to stability issues. Use "
       "--cross-entropy-fusion-impl native, or omit --cross-entropy-loss-fusion.",
       "set cross_entropy_fusion_impl: native; Megatron Bridge accepts te"},
      {"environment.attention-kernels",
       violation,
       core,
       {"NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN", "attention_backend"},
       everywhere,
       denies_attention_backend,
       "NVTE_FLASH_ATTN, NVTE_FUSED_ATTN and NVTE_UNFUSED_ATTN say otherwise than attention backend type "
       "{attention_backend}.",
       "unset them, and choose by attention_backend"},
      {"environment.max-connections",
       violation,
       arguments,
       {"CUDA_DEVICE_MAX_CONNECTIONS", "tensor_model_parallel_size", "context_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return below_capability(s, 100) &&
                (s.settings.tensor_model_parallel_size > 1 || s.settings.context_parallel_size > 1) &&
                !s.settings.use_megatron_fsdp && !s.settings.overlap_moe_expert_parallel_comm &&
                scenario::variable(s, "CUDA_DEVICE_MAX_CONNECTIONS") != "1";
       },
       "Using tensor model parallelism or context parallelism require setting the environment variable "
       "CUDA_DEVICE_MAX_CONNECTIONS to 1",
       "set the environment variable CUDA_DEVICE_MAX_CONNECTIONS=1",
       [](Scenario& s) { s.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"; }},
      {"dp.fsdp-views",
       violation,
       core,
       {"use_megatron_fsdp", "pipeline_model_parallel_size", "deallocate_pipeline_outputs"},
       everywhere,
       [](const Scenario& s) {  // what FSDP's hooks return is a view (megatron_fsdp.py, create_custom_backward_hook)
         return s.settings.use_megatron_fsdp && s.settings.pipeline_model_parallel_size > 1 &&
                s.settings.deallocate_pipeline_outputs;
       },
       "counter-productive to free a view of another tensor.",
       "set pipeline_model_parallel_size: 1"},
      {"environment.fsdp-connections",
       violation,
       arguments,
       {"CUDA_DEVICE_MAX_CONNECTIONS", "use_megatron_fsdp"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.use_megatron_fsdp && scenario::variable(s, "CUDA_DEVICE_MAX_CONNECTIONS") == "1";
       },
       "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset.",
       "unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 8 or more",
       [](Scenario& s) { s.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"; }},
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
         return (o.moe_router_padding_for_quantization || o.moe_router_padding_for_fp8) && o.moe_router_fusion &&
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
       [](const Scenario& s) { return pads_for_quantization(s) && !s.settings.fp8 && !s.settings.fp4; },
       "fp8/fp4 must be specified when moe_router_padding_for_quantization is True.",
       "remove moe_router_padding_for_quantization"},
      {"moe.padding-dispatcher",
       violation,
       core,
       {"moe_router_padding_for_quantization", "moe_router_padding_for_fp8", "moe_token_dispatcher_type"},
       everywhere,
       [](const Scenario& s) {
         return pads_for_quantization(s) && s.settings.moe_token_dispatcher_type == "allgather";
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
      {"model.mtp-position",
       violation,
       arguments,
       {"mtp_num_layers", "position_embedding_type"},
       everywhere,
       [](const Scenario& s) {
         return s.model.mtp_num_layers.value_or(0) > 0 && s.model.position_embedding_type != "rope" &&
                s.model.position_embedding_type != "none";
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
      {"version.p2p-wgrad",
       violation,
       core,
       {"overlap_p2p_backward_on_comm_stream", "overlap_p2p_with_transformer_layer_wgrad",
        "overlap_p2p_wgrad_delayed_layer_number"},
       without("overlap_p2p_backward_on_comm_stream"),
       [](const Scenario& s) {
         return s.settings.overlap_p2p_backward_on_comm_stream || s.settings.overlap_p2p_with_transformer_layer_wgrad ||
                s.settings.overlap_p2p_wgrad_delayed_layer_number != 1;
       },
       "ModelParallelConfig of this version has none of overlap_p2p_backward_on_comm_stream, "
       "overlap_p2p_with_transformer_layer_wgrad, overlap_p2p_wgrad_delayed_layer_number: they exist only in "
       "Megatron-LM pull request 4268",
       "remove them, or run that pull request (software.megatron_core: pr-4268)"},
      {"version.op-fuser",
       violation,
       core,
       {"use_transformer_engine_op_fuser"},
       without("use_transformer_engine_op_fuser"),
       [](const Scenario& s) { return s.settings.use_transformer_engine_op_fuser; },
       "use_transformer_engine_op_fuser does not exist in this version",
       "use Megatron Core 0.18 or newer"},
      {"version.paged-stash",
       violation,
       core,
       {"moe_paged_stash"},
       without("moe_paged_stash"),
       [](const Scenario& s) { return s.settings.moe_paged_stash; },
       "moe_paged_stash does not exist in this version",
       "use Megatron Core 0.18 or newer"},
      {"version.dispatch-wgrad",
       violation,
       core,
       {"overlap_dispatch_backward_with_experts_wgrad"},
       without("overlap_dispatch_backward_with_experts_wgrad"),
       [](const Scenario& s) { return s.settings.overlap_dispatch_backward_with_experts_wgrad; },
       "overlap_dispatch_backward_with_experts_wgrad does not exist in this version",
       "use Megatron Core 0.18 or newer"},
      {"version.position-embedding",
       violation,
       arguments,
       {"position_embedding_type"},
       everywhere.except(from(v0_18)),
       [](const Scenario& s) { return s.model.position_embedding_type == "yarn"; },
       "argument --position-embedding-type: invalid choice: 'yarn'",
       "use Megatron Core 0.18 or newer, or Megatron Bridge"},
      {"version.router-score",
       violation,
       core,
       {"moe_router_score_function"},
       up_to(v0_17),
       [](const Scenario& s) { return s.model.moe_router_score_function == "sqrtsoftplus"; },
       "moe_router_score_function of this version knows softmax and sigmoid only",
       "use Megatron Core 0.18 or newer"},
      {"version.load-balancing",
       violation,
       core,
       {"moe_router_load_balancing_type"},
       everywhere.except(v0_19 | Version::main),
       [](const Scenario& s) { return has(s.settings.moe_router_load_balancing_type, "quantile_balancing"); },
       "moe_router_load_balancing_type quantile_balancing does not exist in this version",
       "use Megatron Core 0.19"},
      {"version.dispatcher-backend",
       violation,
       core,
       {"moe_flex_dispatcher_backend"},
       everywhere,
       [](const Scenario& s) {
         const auto& backend = s.settings.moe_flex_dispatcher_backend;
         const auto version = scenario::core_version(s.software);
         return s.settings.moe_token_dispatcher_type == "flex" &&
                ((backend == "ncclep" && !from(v0_19).has(version)) || (backend == "deepepv2" && version != dev));
       },
       "moe_flex_dispatcher_backend {moe_flex_dispatcher_backend} does not exist in this version",
       "ncclep needs Megatron Core 0.19, deepepv2 its branch dev; deepep and hybridep are in all"},
      {"version.optimizer",
       violation,
       core,
       {"optimizer"},
       up_to(v0_17),
       [](const Scenario& s) {
         const auto& name = s.settings.optimizer;
         return name == "soap" || name == "adaptive_muon" ||
                (name == "lion" && scenario::core_version(s.software) < v0_17);
       },
       "optimizer {optimizer} does not exist in this version",
       "lion needs Megatron Core 0.17, soap and adaptive_muon 0.18"},
      {"version.offload-tuning",
       violation,
       core,
       {"activation_offload_fraction", "delta_offload_bytes_across_pp_ranks", "delay_offload_until_cuda_graph"},
       without("activation_offload_fraction"),
       [](const Scenario& s) {
         return s.settings.activation_offload_fraction != 1.0 || s.settings.delta_offload_bytes_across_pp_ranks != 0 ||
                s.settings.delay_offload_until_cuda_graph;
       },
       "activation_offload_fraction, delta_offload_bytes_across_pp_ranks and delay_offload_until_cuda_graph do not "
       "exist in this version",
       "use Megatron Core 0.19 or newer"},
  };
}

}  // namespace pipewright::plan
