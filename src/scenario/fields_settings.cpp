// settings: what Megatron is told for a run. Documentation follows ModelParallelConfig, TransformerConfig,
// DistributedDataParallelConfig and OptimizerConfig of core_r0.19.0.
#include "field_rows.hpp"
#include "pipewright/modules.hpp"

namespace pipewright::scenario {
namespace {

#define SETTING(name, doc) PIPEWRIGHT_FIELD(settings, name, doc)

constexpr double most_gpus = 1e7;  // 100 times the largest machine: more is a slip of the keyboard
constexpr double most_layers = 1e6;
constexpr double most_batch = 1e9;
const Strings dtypes = {"fp32", "fp16", "bf16", "fp8"};

void append(std::vector<Field>& all, std::vector<Field> part) {
  all.insert(all.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
}

std::vector<Field> parallelism() {
  return {
      SETTING(tensor_model_parallel_size, "TP: ranks that share each matrix").between(1, most_gpus),
      SETTING(pipeline_model_parallel_size, "PP: pipeline stages").between(1, most_gpus),
      SETTING(virtual_pipeline_model_parallel_size, "VPP: model chunks of a rank").between(1, most_layers),
      SETTING(context_parallel_size, "CP: ranks that share a sequence").between(1, most_gpus),
      SETTING(expert_model_parallel_size, "EP: ranks that share the experts").between(1, most_gpus),
      SETTING(expert_tensor_parallel_size, "ETP: TP inside an expert; default TP").between(1, most_gpus),
      SETTING(sequence_parallel, "SP: TP ranks share the sequence outside matrices"),
      SETTING(cp_comm_type, "how CP ranks exchange keys and values")
          .in({"p2p", "all_gather", "a2a", "a2a+p2p"})
          .or_scalar(),
      SETTING(hierarchical_context_parallel_sizes, "CP sizes of each level of a2a+p2p").between(1, most_gpus),
      SETTING(hybrid_context_parallel, "CP sizes that follow the sequence lengths"),
      SETTING(num_layers_in_first_pipeline_stage, "layers of the first stage, all its chunks together")
          .between(0, most_layers),
      SETTING(num_layers_in_last_pipeline_stage, "layers of the last stage, all its chunks together")
          .between(0, most_layers),
      SETTING(pipeline_model_parallel_layout, "what each virtual stage holds: E|(tt|)*39tt|L"),
      SETTING(account_for_embedding_in_pipeline_split, "the embedding counts as a layer"),
      SETTING(account_for_loss_in_pipeline_split, "the loss counts as a layer"),
      SETTING(mtp_standalone, "the MTP layers have a virtual stage of their own"),
      SETTING(mtp_detach_heads, "MTP heads send no gradient into the decoder"),
      SETTING(micro_batch_size, "MBS: sequences of a microbatch").between(1, most_batch),
      SETTING(global_batch_size, "GBS: sequences of a step over all data-parallel ranks").between(1, most_batch),
      SETTING(sft, "sequences are packed into rows of seq_length (Bridge's enable_offline_packing)"),
      SETTING(sequence_lengths, "their lengths in tokens: LENGTH*COUNT, a ready row LENGTH+LENGTH, or a file of these")
          .or_scalar(),
      SETTING(packing_algorithm, "how they are packed; none: each is padded to a row of its own")
          .in({"first_fit_shuffle", "first_fit_decreasing", "none"}),
      SETTING(pack_order, "how rows are dealt to data-parallel ranks: by chance, or by equal attention")
          .in({"shuffled", "balanced"}),
      SETTING(pad_cu_seqlens,
              "every row is told of as many sequences as the fullest has (Bridge's PackedSequenceSpecs)"),
  };
}

std::vector<Field> pipeline() {
  return {
      SETTING(overlap_p2p_comm, "pipeline transfers of the interleaved schedule run beside compute"),
      SETTING(batch_p2p_comm, "sends and receives are batched; default: not overlap_p2p_comm"),
      SETTING(batch_p2p_sync, "the device is synchronised after a batched transfer"),
      SETTING(use_ring_exchange_p2p, "transfers by torch.distributed.ring_exchange"),
      SETTING(overlap_p2p_comm_warmup_flush, "overlap in warm-up and cool-down, too"),
      SETTING(microbatch_group_size_per_vp_stage, "N: microbatches a chunk runs in a row; default PP")
          .between(1, most_batch),
      SETTING(deallocate_pipeline_outputs, "an output shrinks to one element once it is sent"),
      SETTING(variable_seq_lengths, "shapes are exchanged before tensors"),
      SETTING(num_microbatches_with_partial_activation_checkpoints, "microbatches that recompute only some layers")
          .between(0, most_batch),
      SETTING(defer_embedding_wgrad_compute, "weight gradients of the output layer wait for the cool-down"),
      SETTING(wgrad_deferral_limit, "how many microbatches of them wait; 0: all").between(-1, most_batch),
      SETTING(overlap_p2p_backward_on_comm_stream, "pull request 4268: gradient transfers on the communication stream"),
      SETTING(overlap_p2p_wgrad_delayed_layer_number, "pull request 4268: layers whose weight gradients are delayed")
          .between(0, most_layers),
      SETTING(overlap_p2p_with_transformer_layer_wgrad, "pull request 4268: they cover pipeline transfers"),
  };
}

std::vector<Field> precision() {
  return {
      SETTING(bf16, "parameters and activations in bf16"),
      SETTING(fp16, "parameters and activations in fp16"),
      SETTING(fp32_residual_connection, "the residual stream is fp32"),
      SETTING(attention_softmax_in_fp32, "unfused softmax in fp32"),
      SETTING(fp8, "FP8 matrices: e4m3, or hybrid with e5m2 gradients").in({"e4m3", "hybrid"}),
      SETTING(fp8_recipe, "scaling; tensorwise is current scaling")
          .in({"tensorwise", "delayed", "mxfp8", "blockwise", "custom"}),
      SETTING(fp8_param, "parameters are kept in FP8"),
      SETTING(fp8_param_gather, "parameters are kept and gathered in FP8"),
      SETTING(fp8_wgrad, "weight gradients are computed in FP8"),
      SETTING(fp8_output_proj, "the output layer is computed in FP8"),
      SETTING(fp8_dot_product_attention, "attention in FP8"),
      SETTING(fp8_multi_head_attention, "attention in FP8 with FP8 in and out"),
      SETTING(fp8_margin, "margin of delayed scaling").between(-64, 64),
      SETTING(fp8_interval, "steps between new scales of delayed scaling").between(1, most_batch),
      SETTING(fp8_amax_history_len, "steps that delayed scaling remembers").between(1, most_batch),
      SETTING(fp8_amax_compute_algo, "how delayed scaling reads its history").in({"most_recent", "max"}),
      SETTING(tp_only_amax_red, "maxima are reduced over TP only"),
      SETTING(first_last_layers_bf16, "the first and last layers stay in bf16"),
      SETTING(num_layers_at_start_in_bf16, "how many at the start").between(0, most_layers),
      SETTING(num_layers_at_end_in_bf16, "how many at the end").between(0, most_layers),
      SETTING(disable_parameter_transpose_cache, "transposed FP8 weights are made anew in every backward pass"),
      SETTING(keep_fp8_transpose_cache, "FSDP keeps transposed FP8 weights"),
      SETTING(activation_func_fp8_input_store, "the activation's input is kept in FP8"),
      SETTING(reuse_grad_buf_for_mxfp8_param_ag, "MXFP8 parameters are gathered into the gradient buffer"),
      SETTING(fp4, "FP4 matrices").in({"e2m1"}),
      SETTING(fp4_recipe, "scaling of FP4").in({"nvfp4", "custom"}),
      SETTING(fp4_param, "parameters are kept in FP4"),
      SETTING(fp4_param_gather, "parameters are kept and gathered in FP4"),
      SETTING(quant_recipe, "PATTERN=RECIPE: what linear layers of these names compute in, the first that matches"),
  };
}

std::vector<Field> kernels() {
  return {
      SETTING(transformer_impl, "who implements a layer").in({"local", "transformer_engine", "inference_optimized"}),
      SETTING(attention_backend, "attention kernels").in({"auto", "flash", "fused", "unfused", "local"}),
      SETTING(hidden_dropout, "dropout of the residual branches").between(0, 1),
      SETTING(attention_dropout, "dropout of the attention").between(0, 1),
      SETTING(gradient_accumulation_fusion, "weight gradients are added into the main gradient by the GEMM"),
      SETTING(bias_activation_fusion, "bias and activation are one kernel"),
      SETTING(use_fused_weighted_squared_relu, "squared ReLU of experts and their weights are one kernel"),
      SETTING(bias_dropout_fusion, "bias, dropout and residual add are one kernel"),
      SETTING(masked_softmax_fusion, "scale, mask and softmax are one kernel"),
      SETTING(apply_rope_fusion, "the rotary embedding is one kernel"),
      SETTING(fused_single_qkv_rope, "the rotary embedding works on the joined qkv"),
      SETTING(fused_residual_rmsnorm, "residual add and RMSNorm are one kernel"),
      SETTING(persist_layer_norm, "Apex' persistent LayerNorm"),
      SETTING(memory_efficient_layer_norm, "LayerNorm keeps its output instead of its input"),
      SETTING(use_transformer_engine_op_fuser, "the MLP is a TE operator sequence"),
      SETTING(cross_entropy_loss_fusion, "the loss is fused"),
      SETTING(cross_entropy_fusion_impl, "by whom").in({"native", "te", "linear"}),
      SETTING(calculate_per_token_loss, "the loss is normalised by tokens"),
      SETTING(deterministic_mode, "deterministic kernels only"),
      SETTING(use_te_rng_tracker, "TE's random state, needed by CUDA graphs"),
      SETTING(mlp_chunks_for_training, "the MLP runs in this many pieces of the sequence").between(1, most_layers),
      SETTING(tp_comm_overlap, "TP collectives run in pieces beside GEMMs (userbuffers)"),
      SETTING(tp_comm_bulk_wgrad, "reduce-scatter beside the weight gradient"),
      SETTING(tp_comm_bulk_dgrad, "all-gather beside the input gradient"),
      SETTING(tp_comm_overlap_ag, "all-gather in pieces beside the GEMM"),
      SETTING(tp_comm_overlap_rs, "reduce-scatter in pieces beside the GEMM"),
      SETTING(tp_comm_overlap_rs_dgrad, "reduce-scatter in pieces beside the input gradient"),
      SETTING(tp_comm_split_ag, "older name of tp_comm_overlap_ag"),
      SETTING(tp_comm_atomic_ag, "all-gather with an atomic GEMM"),
      SETTING(tp_comm_split_rs, "older name of tp_comm_overlap_rs"),
      SETTING(tp_comm_atomic_rs, "reduce-scatter with an atomic GEMM"),
      SETTING(tp_comm_overlap_disable_qkv, "no overlap at the qkv projection"),
      SETTING(tp_comm_overlap_disable_fc1, "no overlap at fc1"),
      SETTING(tp_comm_bootstrap_backend, "who sets userbuffers up").in({"nccl", "mpi", "gloo"}),
  };
}

std::vector<Field> memory() {
  return {
      SETTING(recompute_granularity, "full: whole layers; selective: recompute_modules").in({"full", "selective"}),
      SETTING(recompute_method, "of full: uniform over all layers, or a block of them").in({"uniform", "block"}),
      SETTING(recompute_num_layers, "layers of a unit (uniform) or of a chunk's block").between(1, most_layers),
      SETTING(recompute_modules, "of selective; default core_attn").in(recompute_names()),
      SETTING(distribute_saved_activations, "TP ranks share the saved inputs of full recompute"),
      SETTING(moe_layer_recompute, "older name of the recompute module moe"),
      SETTING(cpu_offloading, "TE moves activations of whole layers to the host"),
      SETTING(cpu_offloading_num_layers, "of how many layers").between(0, most_layers),
      SETTING(cpu_offloading_activations, "activations move"),
      SETTING(cpu_offloading_weights, "weights move"),
      SETTING(cpu_offloading_double_buffering, "two buffers take turns when they come back"),
      SETTING(cpu_offloading_retain_pinned_cpu_buffers, "pinned buffers are kept"),
      SETTING(fine_grained_activation_offloading, "inputs of single modules move to the host"),
      SETTING(offload_modules, "of which modules").in(offload_names()),
      SETTING(min_offloaded_tensor_size, "smaller tensors stay (elements)"),
      SETTING(activation_offload_fraction, "share of the groups that move").between(0, 1),
      SETTING(delta_offload_bytes_across_pp_ranks, "less to move on each later stage (bytes)"),
      SETTING(delay_offload_until_cuda_graph, "copies are issued after the graph"),
      SETTING(fine_grained_offloading_max_inflight_offloads, "copies in flight before the host waits")
          .between(0, most_batch),
      Field{"settings", "te_op_offload.fc1_op", [](Scenario& s) -> Member { return &s.settings.te_op_offload.fc1_op; },
            "TE pull request 3128: the grouped MLP's fc1 input moves"},
      Field{"settings", "te_op_offload.activation_op",
            [](Scenario& s) -> Member { return &s.settings.te_op_offload.activation_op; },
            "TE pull request 3128: the grouped MLP's activation and fc2 inputs move"},
  };
}

std::vector<Field> experts() {
  return {
      SETTING(overlap_moe_expert_parallel_comm,
              "forward of one microbatch runs beside backward of another (EP overlap)"),
      SETTING(delay_wgrad_compute, "weight gradients are a step of their own"),
      SETTING(overlap_dispatch_backward_with_experts_wgrad, "expert weight gradients cover the dispatch's backward"),
      SETTING(ep_overlap_early_attn_memory_release, "attention's backward runs earlier and frees its memory"),
      SETTING(high_priority_a2a_comm_stream, "the all-to-all's stream has priority"),
      SETTING(moe_token_dispatcher_type, "how tokens reach their experts").in({"allgather", "alltoall", "flex"}),
      SETTING(moe_flex_dispatcher_backend, "of flex").in({"deepep", "hybridep", "ncclep", "deepepv2"}),
      SETTING(moe_enable_deepep, "older name of the DeepEP backend"),
      SETTING(moe_grouped_gemm, "experts of a rank are one grouped GEMM"),
      SETTING(moe_permute_fusion, "sorting tokens by expert is one kernel"),
      SETTING(moe_router_fusion, "the router is fused"),
      SETTING(moe_permute_fusion_into_hybridep, "HybridEP sorts the tokens itself"),
      SETTING(moe_hybridep_pad_uneven_dispatch_inputs, "HybridEP's ranks agree on their largest number of tokens"),
      SETTING(moe_apply_probs_on_input, "routing weights are applied before the experts"),
      SETTING(moe_shared_expert_overlap, "the shared expert runs beside the dispatch"),
      SETTING(moe_router_dtype, "the router's type").in({"fp32", "fp64"}),
      SETTING(moe_router_load_balancing_type, "how load is balanced")
          .in({"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "quantile_balancing", "none"})
          .or_scalar(),
      SETTING(moe_aux_loss_coeff, "weight of the auxiliary loss").between(0, 1e6).or_scalar(),
      SETTING(moe_z_loss_coeff, "weight of the z-loss").between(0, 1e6),
      SETTING(moe_router_force_load_balancing, "random routing that loads experts equally"),
      SETTING(moe_router_padding_for_quantization, "tokens of an expert are padded for FP8"),
      SETTING(moe_router_padding_for_fp8, "older name of moe_router_padding_for_quantization"),
      SETTING(moe_expert_capacity_factor, "an expert takes this factor x its fair share; none: all").between(-1, 1e6),
      SETTING(moe_pad_expert_input_to_capacity, "experts are padded to their capacity"),
      SETTING(moe_token_dropping, "tokens beyond the capacity are dropped"),
      SETTING(moe_token_drop_policy, "which").in({"probs", "position"}),
      SETTING(moe_flex_dispatcher_num_sms, "SMs of the flex dispatcher").between(1, 1024),
      SETTING(moe_deepep_num_sms, "SMs of DeepEP").between(1, 1024),
      SETTING(moe_hybridep_num_sms, "SMs of HybridEP").between(1, 1024),
      SETTING(moe_expert_rank_capacity_factor, "a rank's buffers hold this factor x its fair share of rows")
          .between(0, 1e6),
      SETTING(moe_mlp_glu_interleave_size, "gates and linear units of experts alternate in blocks").between(1, 1e6),
      SETTING(moe_paged_stash, "expert activations live in pages"),
      SETTING(moe_paged_stash_page_size, "rows of a page").between(1, 1e9),
      SETTING(moe_paged_stash_buffer_size_factor_cuda, "pages on the GPU over what balanced rows need; < 0: real rows")
          .between(-1e6, 1e6),
      SETTING(moe_paged_stash_buffer_size_factor_cpu, "pages in host memory; 0: none").between(-1e6, 1e6),
      SETTING(moe_load_imbalance, "tokens of the busiest EP rank over the mean (pipewright's own)").between(1, 1e6),
      SETTING(cuda_graph_impl, "who captures CUDA graphs")
          .in({"none", "local", "transformer_engine", "full_iteration"}),
      SETTING(cuda_graph_modules, "what is captured; empty: the whole layer")
          .in({"full", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration",
               "full_iteration_inference"})
          .or_scalar(),
      SETTING(cuda_graph_warmup_steps, "steps before the capture").between(0, most_batch),
      SETTING(cuda_graph_use_single_mempool, "all graphs share one memory pool"),
      SETTING(cuda_graph_retain_backward_graph, "autograd's graph is kept at capture"),
      SETTING(optimizer_cuda_graph, "the optimizer step is captured, too"),
  };
}

std::vector<Field> data_parallel() {
  return {
      SETTING(use_distributed_optimizer, "optimizer states are shared by data-parallel ranks"),
      SETTING(num_distributed_optimizer_instances, "groups that each hold all states").between(1, most_gpus),
      SETTING(overlap_grad_reduce, "gradients are reduced beside the backward pass"),
      SETTING(overlap_param_gather, "parameters are gathered beside the forward pass"),
      SETTING(overlap_param_gather_with_optimizer_step, "the first chunk's gather begins in the optimizer step"),
      SETTING(check_for_nan_in_loss_and_grad,
              "the host waits for every loss and for the norm of every bucket; default: as pretrain_gpt.py"),
      SETTING(create_attention_mask_in_dataloader,
              "every microbatch brings a mask of all pairs of tokens; default: as pretrain_gpt.py"),
      SETTING(align_grad_reduce, "all pipeline ranks start a chunk's reduction at the same time"),
      SETTING(align_param_gather, "all pipeline ranks start a chunk's gather at the same time"),
      SETTING(grad_reduce_in_fp32, "gradients are accumulated and reduced in fp32"),
      SETTING(bucket_size, "parameters of a bucket; default max(40000000, 1000000 x DP)").from(1),
      SETTING(num_buckets, "buckets of a buffer instead of bucket_size").between(1, most_batch),
      SETTING(pad_buckets_for_high_nccl_busbw, "buckets are multiples of 2^16"),
      SETTING(average_in_collective, "the collective averages"),
      SETTING(reduce_scatter_with_fp32_accumulation, "all-to-all and a sum in fp32 instead of a reduce-scatter"),
      SETTING(gradient_reduce_div_fusion, "division and reduction are fused"),
      SETTING(nccl_ub, "buffers are registered with NCCL"),
      SETTING(use_megatron_fsdp, "Megatron FSDP"),
      SETTING(data_parallel_sharding_strategy, "what FSDP shares")
          .in({"no_shard", "optim", "optim_grads", "optim_grads_params"}),
      SETTING(fsdp_double_buffer, "FSDP has two buffers"),
      SETTING(init_model_with_meta_device, "FSDP makes parameters unit by unit, never the whole model"),
      SETTING(suggested_communication_unit_size,
              "elements that FSDP gathers ahead (half of it) and has in reduction; default: two units, at least 1e9")
          .from(1),
      SETTING(optimizer, "optimizer").in({"adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"}),
      SETTING(muon_num_ns_steps, "Newton-Schulz steps of Muon").between(1, 1000),
      SETTING(muon_split_qkv, "Muon orthogonalises queries, keys and values apart"),
      SETTING(muon_nesterov, "Muon's momentum is Nesterov's"),
      SETTING(clip_grad, "largest gradient norm; 0: not clipped").between(0, 1e30),
      SETTING(log_num_zeros_in_grad, "zeros of the gradients are counted in every step"),
      SETTING(log_params_norm, "the norm of the main parameters is taken in every step"),
      SETTING(use_precision_aware_optimizer, "the types below are used"),
      SETTING(main_grads_dtype, "type of the optimizer's gradients").in({"fp32", "bf16"}),
      SETTING(main_params_dtype, "type of the master parameters").in({"fp32", "fp16"}),
      SETTING(exp_avg_dtype, "type of Adam's first moment").in(dtypes),
      SETTING(exp_avg_sq_dtype, "type of Adam's second moment").in(dtypes),
      SETTING(store_param_remainders, "master parameters are kept as the 16 bits that bf16 lacks"),
      SETTING(optimizer_cpu_offload, "optimizer states live on the host"),
      SETTING(optimizer_offload_fraction, "share of them").between(0, 1),
      SETTING(overlap_cpu_optimizer_d2h_h2d, "copies run beside the host's optimizer"),
      SETTING(use_torch_optimizer_for_cpu_offload, "the host uses torch's optimizer"),
      SETTING(pin_cpu_grads, "gradients on the host are pinned"),
      SETTING(pin_cpu_params, "parameters on the host are pinned"),
      SETTING(lora_target_modules, "linear layers with a LoRA adapter, all else frozen (Bridge's peft.target_modules)")
          .in({"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj", "linear_q_proj",
               "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj"}),
      SETTING(lora_dim, "rank of the adapters (Bridge's peft.dim)").between(1, 65536),
      SETTING(lora_dropout, "dropout of the adapters' input (Bridge's peft.dropout)").between(0, 1),
  };
}

#undef SETTING

}  // namespace

std::vector<Field> setting_fields() {
  std::vector<Field> all = parallelism();
  for (auto* part : {pipeline, precision, kernels, memory, experts, data_parallel}) append(all, part());
  return all;
}

}  // namespace pipewright::scenario
