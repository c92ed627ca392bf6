// Precision, data parallel, optimizer, loss and what the process needs from its environment.
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
      {"precision.param-needs-fp4",
       violation,
       core,
       {"fp4_param", "fp4"},
       everywhere,
       [](const Scenario& s) { return s.settings.fp4_param && !s.settings.fp4; },
       "fp4_param must be used together with fp4 mode.",
       "set fp4, or fp4_param: false"},
      {"precision.gather-needs-fp4",
       violation,
       arguments,
       {"fp4_param_gather", "fp4"},
       everywhere,
       [](const Scenario& s) { return s.settings.fp4_param_gather && !s.settings.fp4; },
       "--fp4-param-gather must be used together with --fp4-format.",
       "set fp4, or fp4_param_gather: false"},
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
       // Bridge's CommOverlapConfig states a size wherever gradients are reduced beside the backward pass.
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.num_buckets && (o.bucket_size || (s.software.megatron_bridge && o.overlap_grad_reduce));
       },
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
      {"optimizer.host-needs-decoupled-decay",
       violation,
       core,
       {"optimizer_cpu_offload", "decoupled_weight_decay"},
       everywhere,
       [](const Scenario& s) {
         const auto decay = s.settings.other.find("decoupled_weight_decay");
         return s.settings.optimizer_cpu_offload && decay != s.settings.other.end() && decay->second == "false";
       },
       "CPU offloading only supported with decoupled_weight_decay enabled (AdamW mode).",
       "remove decoupled_weight_decay"},
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
      {"run.deterministic-loss",
       violation,
       arguments,
       {"deterministic_mode", "cross_entropy_loss_fusion"},
       up_to(v0_18),
       [](const Scenario& s) { return s.settings.deterministic_mode && s.settings.cross_entropy_loss_fusion; },
       "Cross Entropy Fusion is currently not deterministic.",
       "set cross_entropy_loss_fusion: false"},
      {"environment.deterministic-nccl",
       violation,
       arguments,
       {"deterministic_mode", "NCCL_ALGO"},
       up_to(v0_18),
       [](const Scenario& s) {
         const auto algorithm = scenario::variable(s, "NCCL_ALGO");
         return s.settings.deterministic_mode && algorithm != "Tree" && algorithm != "Ring" &&
                algorithm != "CollnetDirect" && algorithm != "CollnetChain" && algorithm != "^NVLS";
       },
       "NCCL_ALGO must be one of ['Tree', 'Ring', 'CollnetDirect', 'CollnetChain', '^NVLS'].",
       "set the environment variable NCCL_ALGO=Ring",
       [](Scenario& s) { s.environment["NCCL_ALGO"] = "Ring"; }},
      {"environment.max-connections",
       violation,
       arguments,
       {"CUDA_DEVICE_MAX_CONNECTIONS", "tensor_model_parallel_size", "context_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         const auto torch_fsdp = s.settings.other.find("use_torch_fsdp2");
         return below_capability(s, 100) &&
                (s.settings.tensor_model_parallel_size > 1 || s.settings.context_parallel_size > 1) &&
                !s.settings.use_megatron_fsdp && !s.settings.overlap_moe_expert_parallel_comm &&
                (torch_fsdp == s.settings.other.end() || torch_fsdp->second != "true") &&
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
  };
}

}  // namespace pipewright::plan
