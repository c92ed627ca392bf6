// Precision, data parallel, optimizer, loss, mixture of experts and what the process needs from its environment.
#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {
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
