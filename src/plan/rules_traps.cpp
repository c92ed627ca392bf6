// Traps: legal, in force, and not what the name suggests; and what Megatron Bridge does differently.
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/norms.hpp"
#include "rules.hpp"

namespace pipewright::plan {

std::vector<Rule> trap_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  return {
      {"trap.recompute-layers-per-chunk",
       trap,
       core,
       {"recompute_num_layers", "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return full(s) && scenario::interleaved(s) && is(s.settings.recompute_method, "block");
       },
       "recompute_num_layers counts layers of each model chunk: with {virtual_pipeline_model_parallel_size} chunks a "
       "rank recomputes {$recomputed_layers} layers, not {recompute_num_layers}",
       "divide the number of layers that you mean by the virtual pipeline size"},
      {"trap.selective-default",
       trap,
       core,
       {"recompute_granularity", "recompute_modules"},
       everywhere,
       [](const Scenario& s) { return selective(s) && s.settings.recompute_modules.empty(); },
       "recompute_granularity: selective without recompute_modules recomputes core_attn",
       "name recompute_modules, or remove recompute_granularity"},
      {"trap.overlap-one-connection",
       trap,
       core,
       {"CUDA_DEVICE_MAX_CONNECTIONS", "overlap_moe_expert_parallel_comm"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.overlap_moe_expert_parallel_comm && below_capability(s, 100) &&
                scenario::variable(s, "CUDA_DEVICE_MAX_CONNECTIONS") == "1";
       },
       "overlap_moe_expert_parallel_comm requires setting a larger CUDA_DEVICE_MAX_CONNECTIONS for better "
       "parallelization: with 1 all streams share one hardware queue and the all-to-all runs in line",
       "set CUDA_DEVICE_MAX_CONNECTIONS=32 (with TP or CP > 1 it costs their own overlap: measure both)"},
      {"trap.flush-one-connection",
       trap,
       core,
       {"overlap_p2p_comm_warmup_flush", "CUDA_DEVICE_MAX_CONNECTIONS"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.overlap_p2p_comm_warmup_flush && scenario::variable(s, "CUDA_DEVICE_MAX_CONNECTIONS") == "1";
       },
       "overlap_p2p_comm_warmup_flush with CUDA_DEVICE_MAX_CONNECTIONS=1 has been seen to hang (PP 4, VPP 2, 8 "
       "microbatches): receives posted ahead can block the one hardware queue",
       "set CUDA_DEVICE_MAX_CONNECTIONS=8 or more, or overlap_p2p_comm_warmup_flush: false"},
      {"trap.capture-waits",
       trap,
       core,
       {"cuda_graph_impl", "moe_expert_rank_capacity_factor"},
       everywhere,
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.cuda_graph_impl == "full_iteration" && has_moe_layer(s) && !o.moe_expert_rank_capacity_factor &&
                !(o.moe_expert_capacity_factor && o.moe_pad_expert_input_to_capacity);
       },
       "cuda_graph_impl full_iteration captures forward and backward, in which the host waits for the counts of tokens "
       "of "
       "every layer's experts: CUDA refuses that while it captures",
       "set moe_expert_rank_capacity_factor (with HybridEP and use_transformer_engine_op_fuser), or "
       "moe_expert_capacity_factor with moe_pad_expert_input_to_capacity"},
      {"trap.shape-exchange",
       trap,
       core,
       {"variable_seq_lengths", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return s.settings.variable_seq_lengths && s.settings.pipeline_model_parallel_size > 1; },
       "variable_seq_lengths exchanges shapes before every pipeline transfer, each with a full device "
       "synchronisation: nothing runs past it",
       "pad to a fixed length and set variable_seq_lengths: false"},
      {"trap.shapes-can-hang",
       trap,
       core,
       {"variable_seq_lengths", "pipeline_model_parallel_layout", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return s.settings.pipeline_model_parallel_size >= 4 && scenario::exchanges_shapes(s); },
       "the exchange of shapes uses communicators of its own, made when they are first used: with PP "
       "{pipeline_model_parallel_size} neighbours meet there in different orders, and runs have hung in the first step",
       "pad to a fixed length, or use every pair once before training (NCCL makes its communicators then)"},
      {"trap.pairs-can-hang",
       trap,
       core,
       {"overlap_p2p_comm", "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return scenario::interleaved(s) && !scenario::batch_p2p_comm(s) &&
                s.settings.pipeline_model_parallel_size > 2 && !s.software.process_group_device_id;
       },
       "unbatched transfers make a communicator for each pair of neighbours when the pair first meets, in the middle "
       "of "
       "the first interleaved step: while one is made its two hosts stand still, and a third that waits for either "
       "can wait for good",
       "if the first step hangs: pass device_id to init_process_group (one communicator a group), or use every pair "
       "once before training"},
      {"trap.mtp-standalone",
       trap,
       core,
       {"mtp_standalone", "pipeline_model_parallel_layout"},
       everywhere,
       [](const Scenario& s) { return !s.settings.variable_seq_lengths && scenario::exchanges_shapes(s); },
       "MTP layers on another pipeline rank than the last (mtp_standalone) make every pipeline transfer exchange "
       "shapes first, each with a full device synchronisation",
       "put the m of pipeline_model_parallel_layout into the last stage"},
      {"trap.aligned-without-virtual",
       trap,
       core,
       {"align_param_gather", "overlap_param_gather", "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.align_param_gather && s.settings.overlap_param_gather && !scenario::interleaved(s) &&
                !scenario::parsed_by_megatron(s);
       },
       "align_param_gather without a virtual pipeline: no schedule gathers parameters then, and no bucket is gathered "
       "ahead; every one is waited for by the module that needs it",
       "set align_param_gather: false"},
      {"trap.min-offload-elements",
       trap,
       core,
       {"min_offloaded_tensor_size"},
       everywhere,
       [](const Scenario& s) {
         // 1 GiB of bf16: no activation tensor of a microbatch is that large, so the number was meant in bytes.
         return s.settings.fine_grained_activation_offloading && s.settings.min_offloaded_tensor_size >= std::int64_t{1}
                                                                                                             << 29;
       },
       "min_offloaded_tensor_size counts elements, not bytes: {min_offloaded_tensor_size} elements are more than any "
       "activation holds, and nothing is offloaded",
       "divide by the size of an element (2 for bf16)"},
      {"trap.attention-mask",
       trap,
       arguments,
       {"create_attention_mask_in_dataloader", "seq_length", "attention_backend"},
       everywhere,
       [](const Scenario& s) {
         return scenario::creates_attention_mask(s) && te_layers(s) && s.settings.attention_backend != "unfused" &&
                s.model.seq_length >= 2048;  // 4 MiB
       },
       "the data loader makes a mask of all pairs of {seq_length} tokens for every sequence, and the first and last "
       "stage copy it to the GPU in every forward pass: attention kernels that know that they are causal do not read "
       "it",
       "set create_attention_mask_in_dataloader: false (--no-create-attention-mask-in-dataloader)"},
      {"trap.local-router-graph",
       trap,
       core,
       {"cuda_graph_modules"},
       from(v0_18),
       [](const Scenario& s) {
         return s.settings.cuda_graph_impl == "local" && has(s.settings.cuda_graph_modules, "moe_router") !=
                                                             has(s.settings.cuda_graph_modules, "moe_preprocess");
       },
       "cuda_graph_impl local captures moe_router and moe_preprocess together: naming one adds the other",
       "name both"},
      {"trap.fine-grained-mlp",
       trap,
       core,
       {"offload_modules"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.fine_grained_activation_offloading && !has_moe_layer(s) &&
                offloads_any(s, scenario::OffloadRow::Part::attention);
       },
       "fine-grained offload has no module for the dense MLP: its activations, the larger part of a dense layer, stay "
       "on the GPU",
       "recompute mlp for them, or offload whole layers where there is no pipeline"},
  };
}

std::vector<Rule> bridge_rules() {
  using enum Severity;
  return {
      {"bridge.comm-overlap-resets",
       trap,
       Speaker::bridge,
       {"overlap_moe_expert_parallel_comm", "delay_wgrad_compute"},
       everywhere,
       [](const Scenario& s) { return s.settings.overlap_moe_expert_parallel_comm || s.settings.delay_wgrad_compute; },
       "CommOverlapConfig.setup() resets cfg.model.overlap_moe_expert_parallel_comm and cfg.model.delay_wgrad_compute "
       "to False unless they are set on cfg.comm_overlap",
       "set cfg.comm_overlap.overlap_moe_expert_parallel_comm and cfg.comm_overlap.delay_wgrad_compute"},
      {"bridge.embedding-wgrad-resets",
       trap,
       Speaker::bridge,
       {"defer_embedding_wgrad_compute", "tp_comm_overlap"},
       everywhere,
       [](const Scenario& s) { return s.settings.defer_embedding_wgrad_compute || s.settings.tp_comm_overlap; },
       "CommOverlapConfig.setup() resets cfg.model.tp_comm_overlap and cfg.model.defer_embedding_wgrad_compute to "
       "False, and wgrad_deferral_limit to -1, unless they are set on cfg.comm_overlap",
       "set cfg.comm_overlap.tp_comm_overlap, defer_embedding_wgrad_compute and wgrad_deferral_limit"},
      {"bridge.expert-tensor-default",
       trap,
       Speaker::bridge,
       {"expert_tensor_parallel_size", "expert_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.expert_model_parallel_size > 1 && !s.settings.expert_tensor_parallel_size &&
                s.settings.tensor_model_parallel_size > 1;
       },
       "expert_tensor_parallel_size is 1 by default in Megatron Bridge when expert_model_parallel_size > 1; in "
       "Megatron Core it is the tensor-parallel size",
       "state expert_tensor_parallel_size"},
      {"bridge.full-iteration-nan",
       violation,
       Speaker::bridge,
       {"cuda_graph_impl", "check_for_nan_in_loss_and_grad"},
       everywhere,
       whole_iteration_checks_for_nan,
       "check_for_nan_in_loss must be disabled when using full_iteration CUDA graph.",
       "set rerun_state_machine.check_for_nan_in_loss=False"},
      {"bridge.mxfp8-reuse",
       violation,
       Speaker::bridge,
       {"fp8_recipe", "fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.fp8 && is(s.settings.fp8_recipe, "mxfp8") && s.settings.fp8_param_gather &&
                !s.settings.use_megatron_fsdp && !s.settings.reuse_grad_buf_for_mxfp8_param_ag;
       },
       "When fp8_param_gather=True and fp8_recipe='mxfp8', reuse_grad_buf_for_mxfp8_param_ag must be set to True",
       "set reuse_grad_buf_for_mxfp8_param_ag: true"},
      {"bridge.offload-needs-v1",
       violation,
       Speaker::bridge,
       {"fine_grained_activation_offloading", "NVTE_CPU_OFFLOAD_V1"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.fine_grained_activation_offloading && te_at_least(s, 2, 10) &&
                scenario::variable(s, "NVTE_CPU_OFFLOAD_V1", "0") != "1";
       },
       "For fine-grained activation offloading with TE >= 2.10.0, NVTE_CPU_OFFLOAD_V1 environment variable should be "
       "set to 1 to avoid offloading weights.",
       "set the environment variable NVTE_CPU_OFFLOAD_V1=1",
       [](Scenario& s) { s.environment["NVTE_CPU_OFFLOAD_V1"] = "1"; }},
      {"bridge.context-sequence",
       violation,
       Speaker::bridge,
       {"seq_length", "context_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.context_parallel_size > 1 &&
                s.model.seq_length % (2 * s.settings.context_parallel_size) != 0;
       },
       "Sequence length must be divisible by 2 * context parallel size if context parallel is used.",
       "choose a context_parallel_size whose double divides seq_length"},
      {"bridge.packed-soft-caps",
       violation,
       Speaker::bridge,
       {"sft", "attn_logit_softcapping"},
       everywhere,
       [](const Scenario& s) { return s.settings.sft && s.model.attn_logit_softcapping.value_or(0) > 0; },
       "Packed sequence is not supported by DotProductAttention. Use TEDotProductAttention instead.",
       "do not pack (pad_to_max_length): Gemma 2's attention with soft caps takes no packed sequences"},
      {"bridge.whole-norms-split",
       trap,
       Speaker::bridge,
       {"qk_layernorm_whole", "tensor_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return s.model.pre_layernorm && scenario::norms_in_eager_operations(s) &&
                scenario::num_query_groups(s) == s.model.num_attention_heads;
       },
       "Megatron Bridge's OLMoE attention builds norms of all heads on every tensor-parallel rank and hands them the "
       "rank's own heads: its first forward pass fails",
       "build the model with minimax_m2_layer_spec, whose norms are split (that is predicted), or without tensor "
       "parallelism"},
      {"bridge.tp-overlap-disabled",
       no_effect,
       Speaker::bridge,
       {"tp_comm_overlap", "tensor_model_parallel_size", "sequence_parallel"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.tp_comm_overlap &&
                (s.settings.tensor_model_parallel_size < 2 || !s.settings.sequence_parallel);
       },
       "Disabling tensor parallel communication overlap due to TP size < 2 or sequence_parallel=False.",
       "set sequence_parallel: true with TP > 1, or remove tp_comm_overlap",
       [](Scenario& s) { s.settings.tp_comm_overlap = false; }},
      {"bridge.max-connections",
       trap,
       Speaker::bridge,
       {"CUDA_DEVICE_MAX_CONNECTIONS"},
       everywhere,
       [](const Scenario& s) {
         return below_capability(s, 100) &&
                (s.settings.tensor_model_parallel_size > 1 || s.settings.context_parallel_size > 1) &&
                !s.settings.overlap_moe_expert_parallel_comm &&
                scenario::variable(s, "CUDA_DEVICE_MAX_CONNECTIONS") != "1";
       },
       "the performance harness derives CUDA_DEVICE_MAX_CONNECTIONS only when -tp, -cp or --moe_a2a_overlap stands on "
       "its command line; with TP or CP > 1 on Hopper it should be 1",
       "set the environment variable CUDA_DEVICE_MAX_CONNECTIONS=1",
       [](Scenario& s) { s.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"; }},
  };
}

}  // namespace pipewright::plan
