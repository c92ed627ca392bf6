// Every rule of the table fires where it should and stays quiet where it should not. A row: the rule, a base
// scenario, what makes it fire, and a close relative of that which must not.
#include "../../src/plan/rules.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "bases.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/predict.hpp"

namespace rules_test {

using namespace pipewright;

namespace {

struct Row {
  const char* rule;
  const char* base;
  const char* fires;  ///< assignments between "; "; $NAME=V sets a variable
  const char* quiet;
};

#define SELECTIVE "recompute_granularity=selective; recompute_modules="
#define FINE "fine_grained_activation_offloading=true; $NVTE_CPU_OFFLOAD_V1=1; offload_modules="
#define FULL "recompute_granularity=full; "
#define TE_GRAPHS "cuda_graph_impl=transformer_engine; cuda_graph_modules="
#define LOCAL_GRAPHS "cuda_graph_impl=local; cuda_graph_modules="
#define OVERLAP "overlap_moe_expert_parallel_comm=true; "
#define DELAY OVERLAP "delay_wgrad_compute=true; "
#define BRIDGE "software.megatron_bridge=0.7.0; "

const Row rows[] = {
    // Recompute
    {"recompute.full-needs-method", "dense", FULL "recompute_num_layers=1",
     FULL "recompute_num_layers=1; recompute_method=uniform"},
    {"recompute.full-needs-layers", "dense", FULL "recompute_method=uniform",
     FULL "recompute_method=uniform; recompute_num_layers=1"},
    {"recompute.selective-with-layers", "dense", SELECTIVE "[mlp]; recompute_num_layers=1", SELECTIVE "[mlp]"},
    {"recompute.selective-with-method", "dense", SELECTIVE "[mlp]; recompute_method=block",
     BRIDGE SELECTIVE "[mlp]; recompute_method=block"},
    {"recompute.distribute-with-sequence-parallel", "tensor",
     FULL "recompute_method=uniform; recompute_num_layers=1; distribute_saved_activations=true",
     FULL "recompute_method=uniform; recompute_num_layers=1; distribute_saved_activations=true; "
          "sequence_parallel=false"},
    {"recompute.distribute-needs-tensor-parallel", "dense",
     FULL "recompute_method=uniform; recompute_num_layers=1; distribute_saved_activations=true",
     FULL "recompute_method=uniform; recompute_num_layers=1"},
    {"recompute.distribute-needs-full", "tensor", SELECTIVE "[mlp]; distribute_saved_activations=true",
     FULL "recompute_method=uniform; recompute_num_layers=1; distribute_saved_activations=true"},
    {"recompute.modules", "dense", SELECTIVE "[mlp, gdp_qkv]", "megatron_core=main; " SELECTIVE "[mlp, gdp_qkv]"},
    {"moe.clamp-needs-experts", "dense", "megatron_core=main; activation_func_clamp_value=7", "megatron_core=main"},
    {"moe.padded-map-fused-router", "moe",
     "fp8=hybrid; moe_router_padding_for_quantization=true; moe_router_fusion=true",
     "fp8=hybrid; moe_router_padding_for_quantization=true"},
    {"moe.one-expert-pre-softmax", "moe", "moe_router_topk=1", "moe_router_topk=1; moe_router_pre_softmax=true"},
    {"moe.bias-needs-whole-experts", "moe",
     "add_bias_linear=true; tensor_model_parallel_size=2; sequence_parallel=true; expert_tensor_parallel_size=2",
     "add_bias_linear=true; tensor_model_parallel_size=2; sequence_parallel=true; expert_tensor_parallel_size=1"},
    {"moe.deepep-ranks", "moe",
     "num_moe_experts=24; cluster.num_gpus=48; expert_model_parallel_size=12; moe_token_dispatcher_type=flex; "
     "moe_flex_dispatcher_backend=deepep",
     "num_moe_experts=24; cluster.num_gpus=48; expert_model_parallel_size=24; moe_token_dispatcher_type=flex; "
     "moe_flex_dispatcher_backend=deepep"},
    {"moe.bias-without-fused-dropout", "moe", "add_bias_linear=true; moe_grouped_gemm=true; bias_dropout_fusion=true",
     "add_bias_linear=true; moe_grouped_gemm=true; bias_dropout_fusion=false"},
    {"moe.bias-in-shared-experts", "moe", "add_bias_linear=true; moe_shared_expert_intermediate_size=1024",
     "add_bias_linear=false; moe_shared_expert_intermediate_size=1024"},
    {"moe.expert-bias-score", "moe", "moe_router_enable_expert_bias=true",
     "moe_router_enable_expert_bias=true; moe_router_score_function=sigmoid"},
    {"moe.padding-needs-quantization", "moe", "moe_router_padding_for_fp8=true",
     "moe_router_padding_for_fp8=true; fp8=hybrid"},
    {"moe.padding-dispatcher", "moe",
     "moe_router_padding_for_quantization=true; fp8=hybrid; moe_token_dispatcher_type=allgather",
     "moe_router_padding_for_quantization=true; fp8=hybrid"},
    {"moe.deepep-pads-not", "moe",
     "moe_token_dispatcher_type=flex; moe_expert_capacity_factor=1.0; moe_pad_expert_input_to_capacity=true",
     "moe_token_dispatcher_type=flex; moe_expert_capacity_factor=1.0"},
    {"moe.capacity-balancing", "moe", "moe_expert_capacity_factor=1.0; moe_router_load_balancing_type=sinkhorn",
     "moe_expert_capacity_factor=1.0; moe_router_load_balancing_type=[aux_loss, none]"},
    {"moe.expert-width-needs-experts", "dense", "moe_ffn_hidden_size=1024",
     "megatron_core=0.17.0; moe_ffn_hidden_size=1024"},
    {"model.no-rope-divides", "dense", "no_rope_freq=5", "no_rope_freq=4"},
    {"model.mtp-linear-attention", "dense",
     "mtp_num_layers=1; experimental_attention_variant=gated_delta_net; linear_attention_freq=1000",
     "mtp_num_layers=1; experimental_attention_variant=gated_delta_net; linear_attention_freq=1"},
    {"model.mtp-position", "dense", "mtp_num_layers=1; position_embedding_type=learned_absolute",
     "mtp_num_layers=1; position_embedding_type=rope"},
    {"model.positions-cover-sequence", "dense", "max_position_embeddings=16", "max_position_embeddings=1000000"},
    {"version.position-embedding", "dense", "megatron_core=0.17.0; position_embedding_type=yarn",
     "position_embedding_type=yarn"},
    {"version.router-score", "moe", "megatron_core=0.17.0; moe_router_score_function=sqrtsoftplus",
     "moe_router_score_function=sqrtsoftplus"},
    {"version.load-balancing", "moe", "megatron_core=0.18.0; moe_router_load_balancing_type=quantile_balancing",
     "moe_router_load_balancing_type=quantile_balancing"},
    {"version.dispatcher-backend", "moe",
     "megatron_core=0.18.0; moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=ncclep",
     "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=ncclep"},
    {"version.dispatcher-deepepv2", "moe", "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepepv2",
     "megatron_core=dev; moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepepv2"},
    {"version.optimizer", "dense", "megatron_core=0.17.0; optimizer=soap", "megatron_core=0.18.0; optimizer=soap"},
    {"version.optimizer-lion", "dense", "megatron_core=0.16.0; optimizer=lion", "megatron_core=0.17.0; optimizer=lion"},
    {"environment.attention-kernels", "dense", "$NVTE_FUSED_ATTN=0", "$NVTE_FUSED_ATTN=0; attention_backend=flash"},
    {"graphs.full-iteration-scope", "dense", TE_GRAPHS "[full_iteration]", LOCAL_GRAPHS "[full_iteration]"},
    {"graphs.full-iteration-nan", "dense", "cuda_graph_impl=full_iteration; check_for_nan_in_loss_and_grad=true",
     "cuda_graph_impl=full_iteration"},
    {"bridge.full-iteration-nan", "dense", BRIDGE "cuda_graph_impl=full_iteration; check_for_nan_in_loss_and_grad=true",
     BRIDGE "cuda_graph_impl=full_iteration"},
    {"recompute.moe-act-needs-grouped-gemm", "moe", "moe_grouped_gemm=false; " SELECTIVE "[moe_act]",
     SELECTIVE "[moe_act]"},
    {"recompute.mla-up-proj-needs-mla", "dense", SELECTIVE "[mla_up_proj]",
     "multi_latent_attention=true; " SELECTIVE "[mla_up_proj]"},
    {"recompute.gdn-needs-variant", "dense", SELECTIVE "[gdn_norm_out]",
     "megatron_core=0.18.0; " SELECTIVE "[gdn_norm_out]"},
    {"recompute.shared-experts-with-overlap", "moe",
     "moe_shared_expert_intermediate_size=1024; moe_shared_expert_overlap=true; " SELECTIVE "[shared_experts]",
     "moe_shared_expert_intermediate_size=1024; " SELECTIVE "[shared_experts]"},
    {"recompute.delayed-scaling", "moe", "fp8=hybrid; fp8_recipe=delayed; " SELECTIVE "[moe_act]",
     "fp8=hybrid; fp8_recipe=tensorwise; " SELECTIVE "[moe_act]"},
    {"recompute.fp8-needs-te-2.6", "moe",
     "transformer_engine=2.5.0; fp8=hybrid; fp8_recipe=tensorwise; " SELECTIVE "[moe_act]",
     "transformer_engine=2.10.0; fp8=hybrid; fp8_recipe=tensorwise; " SELECTIVE "[moe_act]"},
    {"recompute.moe-layer-recompute-with-full", "moe",
     FULL "recompute_method=uniform; recompute_num_layers=1; moe_layer_recompute=true", "moe_layer_recompute=true"},
    {"recompute.mtp-uniform-one", "dense", "mtp_num_layers=1; " FULL "recompute_method=uniform; recompute_num_layers=2",
     "mtp_num_layers=1; " FULL "recompute_method=block; recompute_num_layers=2"},

    // Offload
    {"offload.layers-below-all", "single", "cpu_offloading=true; cpu_offloading_num_layers=8",
     "cpu_offloading=true; cpu_offloading_num_layers=7"},
    {"offload.no-pipeline", "dense", "cpu_offloading=true; cpu_offloading_num_layers=2",
     "cpu_offloading=false; cpu_offloading_num_layers=2"},
    {"offload.no-recompute", "single", "cpu_offloading=true; cpu_offloading_num_layers=2; " SELECTIVE "[mlp]",
     "cpu_offloading=true; cpu_offloading_num_layers=2"},
    {"offload.fine-grained-or-whole", "single",
     "cpu_offloading=true; cpu_offloading_num_layers=2; " FINE "[qkv_linear]", FINE "[qkv_linear]"},
    {"offload.modules-missing", "dense", FINE "[]", FINE "[core_attn]"},
    {"offload.modules", "dense", FINE "[gdp_qkv]", FINE "[qkv_linear]"},
    {"offload.proj-needs-core-attn", "dense", FINE "[attn_proj]", FINE "[core_attn, attn_proj]"},
    {"offload.inside-recomputed-moe", "moe", SELECTIVE "[moe]; " FINE "[expert_fc1]",
     SELECTIVE "[moe_act]; " FINE "[expert_fc1]"},
    {"offload.fused-group-needs-op-fuser", "moe", FINE "[fused_group_mlp]",
     "use_transformer_engine_op_fuser=true; " FINE "[fused_group_mlp]"},
    {"offload.fused-group-alone", "moe", "use_transformer_engine_op_fuser=true; " FINE "[fused_group_mlp, moe_act]",
     "use_transformer_engine_op_fuser=true; " FINE "[fused_group_mlp]"},
    {"offload.parts-of-fused-group", "moe", "use_transformer_engine_op_fuser=true; " FINE "[moe_act]",
     FINE "[moe_act]"},
    {"offload.paged-stash-with-whole", "moe", "moe_paged_stash=true; cpu_offloading=true", "moe_paged_stash=true"},
    {"moe.paged-stash-needs-budget", "moe", "moe_paged_stash=true",
     "moe_paged_stash=true; moe_expert_rank_capacity_factor=1.5"},
    {"moe.budget-needs-hybridep", "moe",
     "moe_expert_rank_capacity_factor=1.5; moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep",
     "moe_expert_rank_capacity_factor=1.5; moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep"},
    {"moe.budget-needs-op-fuser", "moe", "moe_expert_rank_capacity_factor=1.5",
     "moe_expert_rank_capacity_factor=1.5; use_transformer_engine_op_fuser=true"},
    {"moe.fused-experts", "moe", "use_transformer_engine_op_fuser=true",
     "use_transformer_engine_op_fuser=true; $NVTE_CUTEDSL_FUSED_GROUPED_MLP=1"},
    {"offload.paged-stash-with-experts", "moe", "moe_paged_stash=true; " FINE "[expert_fc1]",
     "moe_paged_stash=true; " FINE "[core_attn]"},
    {"offload.needs-te", "dense", "transformer_impl=local; " FINE "[core_attn]", FINE "[core_attn]"},
    {"offload.needs-v1", "dense", "fine_grained_activation_offloading=true; offload_modules=[core_attn]",
     FINE "[core_attn]"},
    {"offload.optimizer-needs-precision-aware", "dense", "optimizer_cpu_offload=true; optimizer_offload_fraction=0.5",
     "optimizer_cpu_offload=true; optimizer_offload_fraction=0.5; use_precision_aware_optimizer=true"},
    {"offload.optimizer-with-fp8-gather", "dense",
     "fp8=hybrid; fp8_recipe=tensorwise; fp8_param=true; fp8_param_gather=true; optimizer_cpu_offload=true; "
     "use_precision_aware_optimizer=true",
     "optimizer_cpu_offload=true; use_precision_aware_optimizer=true"},

    // CUDA graphs
    {"graphs.full-iteration-with-modules", "dense", "cuda_graph_impl=full_iteration; cuda_graph_modules=[mlp]",
     "cuda_graph_impl=full_iteration"},
    {"graphs.with-cpu-offloading", "single", TE_GRAPHS "[mlp]; cpu_offloading=true; cpu_offloading_num_layers=2",
     "cuda_graph_impl=full_iteration; cpu_offloading=true; cpu_offloading_num_layers=2"},
    {"graphs.moe-and-router", "moe", TE_GRAPHS "[moe, moe_router]", TE_GRAPHS "[moe_router]"},
    {"graphs.preprocess-needs-router", "moe", TE_GRAPHS "[moe_preprocess]", TE_GRAPHS "[moe_router, moe_preprocess]"},
    {"graphs.moe-needs-moe", "dense", TE_GRAPHS "[moe_router]", TE_GRAPHS "[mlp]"},
    {"graphs.mlp-needs-dense", "moe", TE_GRAPHS "[mlp]", "moe_layer_freq=2; " TE_GRAPHS "[mlp]"},
    {"graphs.moe-needs-drop-and-pad", "moe", TE_GRAPHS "[moe]",
     "moe_expert_capacity_factor=1.0; moe_pad_expert_input_to_capacity=true; " TE_GRAPHS "[moe]"},
    {"graphs.preprocess-with-sync", "moe", "moe_expert_capacity_factor=1.0; " TE_GRAPHS "[moe_router, moe_preprocess]",
     TE_GRAPHS "[moe_router, moe_preprocess]"},
    {"graphs.full-recompute", "dense", TE_GRAPHS "[mlp]; " FULL "recompute_method=uniform; recompute_num_layers=1",
     "cuda_graph_impl=full_iteration; " FULL "recompute_method=uniform; recompute_num_layers=1"},
    {"graphs.moe-recompute-with-router", "moe", TE_GRAPHS "[moe_router]; " SELECTIVE "[moe]",
     TE_GRAPHS "[attn]; " SELECTIVE "[moe]"},
    {"graphs.attention-dropout", "dense", TE_GRAPHS "[attn]; attention_dropout=0.1; " SELECTIVE "[core_attn]",
     TE_GRAPHS "[mlp]; attention_dropout=0.1; " SELECTIVE "[core_attn]"},
    {"graphs.hidden-dropout", "dense", TE_GRAPHS "[mlp]; hidden_dropout=0.1; " SELECTIVE "[mlp]",
     TE_GRAPHS "[attn]; hidden_dropout=0.1; " SELECTIVE "[mlp]"},
    {"graphs.local-offload-modules", "moe", LOCAL_GRAPHS "[attn]; " FINE "[core_attn]",
     LOCAL_GRAPHS "[attn]; " FINE "[moe_act]"},
    {"graphs.local-offload-whole-layer", "moe", LOCAL_GRAPHS "[]; " FINE "[moe_act]",
     LOCAL_GRAPHS "[attn]; " FINE "[moe_act]"},
    {"graphs.offload-needs-te", "moe", "megatron_core=pr-4268; " LOCAL_GRAPHS "[attn]; " FINE "[moe_act]",
     "megatron_core=pr-4268; " TE_GRAPHS "[attn]; " FINE "[moe_act]"},
    {"graphs.offload-not-local", "moe", "megatron_core=0.18.0; " LOCAL_GRAPHS "[attn]; " FINE "[moe_act]",
     LOCAL_GRAPHS "[attn]; " FINE "[moe_act]"},
    {"graphs.offload-with-moe", "moe",
     "moe_expert_capacity_factor=1.0; moe_pad_expert_input_to_capacity=true; " TE_GRAPHS "[moe]; " FINE "[moe_act]",
     TE_GRAPHS "[attn]; " FINE "[moe_act]"},
    {"graphs.offload-warmup", "dense", TE_GRAPHS "[attn]; cuda_graph_warmup_steps=0; " FINE "[core_attn]",
     TE_GRAPHS "[attn]; " FINE "[core_attn]"},
    {"graphs.offload-inflight", "dense", "cuda_graph_impl=full_iteration; " FINE "[core_attn]",
     "cuda_graph_impl=full_iteration; fine_grained_offloading_max_inflight_offloads=0; " FINE "[core_attn]"},
    {"graphs.expandable-segments", "dense", TE_GRAPHS "[mlp]; $PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
     TE_GRAPHS "[mlp]; $PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; $NCCL_GRAPH_REGISTER=0"},
    {"graphs.user-buffers-expandable", "dense", "nccl_ub=true; $PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
     "$PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},

    // Expert-parallel overlap, delayed weight gradients
    {"overlap.needs-vpp", "moe", OVERLAP "virtual_pipeline_model_parallel_size=none; overlap_p2p_comm=false", OVERLAP},
    {"overlap.needs-ep", "moe", OVERLAP "expert_model_parallel_size=1", OVERLAP},
    {"overlap.dispatcher", "moe", OVERLAP "moe_token_dispatcher_type=allgather",
     OVERLAP "moe_token_dispatcher_type=flex"},
    {"overlap.no-full-recompute", "moe", OVERLAP FULL "recompute_method=uniform; recompute_num_layers=1",
     "megatron_core=dev; " OVERLAP FULL "recompute_method=uniform; recompute_num_layers=1"},
    {"overlap.no-recompute-method", "moe", OVERLAP "recompute_method=uniform", OVERLAP},
    {"overlap.no-recompute-layers", "moe", OVERLAP "recompute_num_layers=1", OVERLAP},
    {"overlap.no-moe-recompute", "moe", OVERLAP "recompute_modules=[moe]", OVERLAP SELECTIVE "[moe_act]"},
    {"overlap.precision", "moe", OVERLAP "bf16=false", OVERLAP},
    {"overlap.no-shared-expert-overlap", "moe", OVERLAP "moe_shared_expert_overlap=true", OVERLAP},
    {"overlap.mtp", "moe", OVERLAP "mtp_num_layers=2", OVERLAP "mtp_num_layers=1"},
    {"overlap.ncclep-offload", "moe",
     OVERLAP "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=ncclep; " FINE "[expert_fc1]",
     OVERLAP "moe_token_dispatcher_type=flex; " FINE "[expert_fc1]"},
    {"overlap.graph-modules", "moe", "moe_layer_freq=2; " OVERLAP TE_GRAPHS "[mlp]", OVERLAP TE_GRAPHS "[attn]"},
    {"wgrad.needs-overlap", "moe", "delay_wgrad_compute=true", DELAY},
    {"wgrad.graphs-need-te-2.10", "moe", "transformer_engine=2.9.0; " DELAY TE_GRAPHS "[moe_router]",
     DELAY TE_GRAPHS "[moe_router]"},
    {"wgrad.needs-te", "moe", DELAY "transformer_impl=local", DELAY},
    {"wgrad.grad-reduce-needs-te-2.8", "moe", "transformer_engine=2.7.0; " DELAY "overlap_grad_reduce=true",
     DELAY "overlap_grad_reduce=true"},
    {"wgrad.in-graph-needs-te-2.12", "moe",
     "transformer_engine=2.11.0; " DELAY "overlap_grad_reduce=true; " TE_GRAPHS "[attn]",
     DELAY "overlap_grad_reduce=true; " TE_GRAPHS "[attn]"},
    {"wgrad.in-graph-needs-fusion", "moe",
     DELAY "overlap_grad_reduce=true; gradient_accumulation_fusion=false; " TE_GRAPHS "[attn]",
     DELAY "overlap_grad_reduce=true; " TE_GRAPHS "[attn]"},
    {"wgrad.in-graph-bias", "moe", DELAY "overlap_grad_reduce=true; add_qkv_bias=true; " TE_GRAPHS "[attn]",
     DELAY "overlap_grad_reduce=true; add_qkv_bias=true; " TE_GRAPHS "[moe_router]"},
    {"wgrad.no-fusion-needs-te-2.7", "moe", "transformer_engine=2.6.0; " DELAY "gradient_accumulation_fusion=false",
     DELAY "gradient_accumulation_fusion=false"},
    {"wgrad.dispatch-excludes-overlap", "moe", OVERLAP "overlap_dispatch_backward_with_experts_wgrad=true",
     "overlap_dispatch_backward_with_experts_wgrad=true"},
    {"wgrad.dispatch-excludes-delay", "moe",
     "delay_wgrad_compute=true; overlap_dispatch_backward_with_experts_wgrad=true",
     "overlap_dispatch_backward_with_experts_wgrad=true"},
    {"overlap.early-release-needs-overlap", "moe", "ep_overlap_early_attn_memory_release=true",
     OVERLAP "ep_overlap_early_attn_memory_release=true"},

    // Parallelism and batch
    {"parallel.world", "dense", "context_parallel_size=3", "context_parallel_size=2; $CUDA_DEVICE_MAX_CONNECTIONS=1"},
    {"parallel.expert-world", "moe", "expert_tensor_parallel_size=3", "expert_tensor_parallel_size=2"},
    {"parallel.heads", "tensor", "num_attention_heads=33; num_query_groups=2", "num_attention_heads=34"},
    {"parallel.query-groups", "tensor", "num_query_groups=3", "num_query_groups=1"},
    {"parallel.sequence-needs-tensor", "dense", "sequence_parallel=true", "sequence_parallel=false"},
    {"parallel.experts-with-tensor-need-sequence", "moe", "tensor_model_parallel_size=2",
     "tensor_model_parallel_size=2; sequence_parallel=true"},
    {"parallel.expert-needs-moe", "dense", "expert_model_parallel_size=2", "expert_model_parallel_size=1"},
    {"parallel.experts-divide", "moe", "num_moe_experts=7", "num_moe_experts=6"},
    {"parallel.context-sequence", "dense", "context_parallel_size=2; seq_length=4098",
     "context_parallel_size=2; seq_length=4096"},
    {"parallel.hybrid-context-pipeline", "dense", "hybrid_context_parallel=true", "hybrid_context_parallel=false"},
    {"parallel.context-comm-length", "dense", "context_parallel_size=2; cp_comm_type=[p2p, a2a]",
     "context_parallel_size=2; cp_comm_type=[p2p]"},
    {"parallel.context-levels", "dense",
     "context_parallel_size=4; cp_comm_type=[a2a+p2p]; hierarchical_context_parallel_sizes=[2, 4]; num_gpus=8",
     "context_parallel_size=4; cp_comm_type=[a2a+p2p]; hierarchical_context_parallel_sizes=[2, 2]; num_gpus=8"},
    {"parallel.context-levels-missing", "dense", "context_parallel_size=2; cp_comm_type=[a2a+p2p]",
     "context_parallel_size=2; cp_comm_type=[a2a]"},
    {"layers.pipeline", "dense", "num_layers=9", "num_layers=16"},
    {"layers.virtual", "dense", "virtual_pipeline_model_parallel_size=3", "virtual_pipeline_model_parallel_size=2"},
    {"layers.counted", "dense", "account_for_embedding_in_pipeline_split=true",
     "num_layers=7; account_for_embedding_in_pipeline_split=true"},
    {"layers.uneven-positive", "dense", "num_layers_in_first_pipeline_stage=0", "num_layers_in_first_pipeline_stage=2"},
    {"layers.uneven-virtual", "dense", "num_layers_in_first_pipeline_stage=3", "num_layers_in_first_pipeline_stage=2"},
    {"layers.uneven-middle", "dense", "num_layers_in_first_pipeline_stage=4",
     "num_layers=10; num_layers_in_first_pipeline_stage=4"},
    {"layers.uneven-virtual-middle", "moe", "num_layers_in_first_pipeline_stage=6; num_layers_in_last_pipeline_stage=2",
     "num_layers_in_first_pipeline_stage=6"},
    {"layers.uneven-or-counted", "dense",
     "num_layers_in_first_pipeline_stage=2; account_for_embedding_in_pipeline_split=true",
     "num_layers_in_first_pipeline_stage=2"},
    {"layers.layout-alone", "dense",
     "pipeline_model_parallel_layout=Et|t|t|t|t|t|t|tL; num_layers_in_first_pipeline_stage=2",
     "pipeline_model_parallel_layout=Et|t|t|t|t|t|t|tL"},
    {"layers.layout-stages", "dense", "pipeline_model_parallel_layout=Ett|tt|tt|ttL",
     "pipeline_model_parallel_layout=Et|(t|)*6tL"},
    {"schedule.virtual-needs-pipeline", "single", "virtual_pipeline_model_parallel_size=2",
     "virtual_pipeline_model_parallel_size=none"},
    {"schedule.virtual-without-overlap", "moe", "overlap_p2p_comm=false", "overlap_p2p_comm=true"},
    {"schedule.overlap-or-batch", "dense", "batch_p2p_comm=true", "batch_p2p_comm=false"},
    {"schedule.overlap-needs-virtual", "dense", "virtual_pipeline_model_parallel_size=none",
     "virtual_pipeline_model_parallel_size=none; overlap_p2p_comm=false"},
    {"schedule.one-chunk-overlap", "dense", "virtual_pipeline_model_parallel_size=1",
     "virtual_pipeline_model_parallel_size=1; overlap_p2p_comm=false"},
    {"schedule.one-chunk-aligned", "dense",
     "virtual_pipeline_model_parallel_size=1; overlap_p2p_comm=false; overlap_grad_reduce=true; "
     "overlap_param_gather=true; align_param_gather=true",
     "virtual_pipeline_model_parallel_size=2; overlap_grad_reduce=true; overlap_param_gather=true; "
     "align_param_gather=true"},
    {"schedule.flush-needs-overlap", "dense", "overlap_p2p_comm_warmup_flush=true; overlap_p2p_comm=false",
     "overlap_p2p_comm_warmup_flush=true"},
    {"schedule.group-size", "dense", "microbatch_group_size_per_vp_stage=3", "microbatch_group_size_per_vp_stage=8"},
    {"schedule.group-remainder", "dense", "microbatch_group_size_per_vp_stage=7",
     "microbatch_group_size_per_vp_stage=4"},
    {"schedule.pipeline-dtype", "dense", "fp16=true", "fp16=false"},
    {"schedule.embedding-wgrad-pipeline", "single", "defer_embedding_wgrad_compute=true",
     "defer_embedding_wgrad_compute=false"},
    {"schedule.embedding-wgrad-fusion", "dense",
     "defer_embedding_wgrad_compute=true; gradient_accumulation_fusion=false", "defer_embedding_wgrad_compute=true"},
    {"schedule.embedding-wgrad-limit", "dense", "defer_embedding_wgrad_compute=true; wgrad_deferral_limit=-1",
     "defer_embedding_wgrad_compute=true; wgrad_deferral_limit=0"},
    {"batch.global", "dense", "micro_batch_size=3", "micro_batch_size=2"},

    // Precision, optimizer, environment
    {"precision.one", "single", "fp16=true", "bf16=false; fp16=true"},
    {"precision.fp4-or-fp8", "dense", "fp8=hybrid; fp8_recipe=tensorwise; fp4=e2m1", "fp4=e2m1"},
    {"precision.param-needs-fp8", "dense", "fp8_param=true", "fp8_param=true; fp8=hybrid; fp8_recipe=tensorwise"},
    {"precision.param-needs-fp4", "dense", "fp4_param=true", "fp4_param=true; fp4=e2m1"},
    {"precision.gather-needs-fp4", "dense", "fp4_param_gather=true", "fp4_param_gather=true; fp4=e2m1"},
    {"precision.first-last-delayed", "dense", "fp8=hybrid; fp8_recipe=delayed; first_last_layers_bf16=true",
     "fp8=hybrid; fp8_recipe=tensorwise; first_last_layers_bf16=true"},
    {"precision.first-last-range", "dense",
     "fp8=hybrid; fp8_recipe=tensorwise; first_last_layers_bf16=true; num_layers_at_start_in_bf16=3",
     "fp8=hybrid; fp8_recipe=tensorwise; first_last_layers_bf16=true; num_layers_at_start_in_bf16=2"},
    {"precision.output-proj-mxfp8", "dense", "fp8=hybrid; fp8_recipe=tensorwise; fp8_output_proj=true",
     "fp8=e4m3; fp8_recipe=mxfp8; fp8_output_proj=true"},
    {"precision.gather-needs-optimizer", "dense",
     "fp8=hybrid; fp8_recipe=tensorwise; fp8_param_gather=true; use_distributed_optimizer=false",
     "fp8=hybrid; fp8_recipe=tensorwise; fp8_param_gather=true"},
    {"precision.reuse-needs-gather", "dense", "reuse_grad_buf_for_mxfp8_param_ag=true",
     "reuse_grad_buf_for_mxfp8_param_ag=true; fp8=e4m3; fp8_recipe=mxfp8; fp8_param_gather=true"},
    {"dp.gather-needs-optimizer", "dense",
     "use_distributed_optimizer=false; overlap_grad_reduce=true; overlap_param_gather=true",
     "overlap_grad_reduce=true; overlap_param_gather=true"},
    {"dp.muon-sharded", "single", "megatron_core=0.17.0; optimizer=muon", "megatron_core=0.18.0; optimizer=muon"},
    {"dp.muon-overlapped", "single",
     "megatron_core=0.16.0; optimizer=muon; use_distributed_optimizer=false; overlap_grad_reduce=true",
     "megatron_core=0.16.0; optimizer=muon; use_distributed_optimizer=false"},
    {"dp.fsdp-views", "dense",
     "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params; deallocate_pipeline_outputs=true",
     "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params; deallocate_pipeline_outputs=false"},
    {"dp.gather-needs-reduce", "dense", "overlap_param_gather=true",
     "overlap_grad_reduce=true; overlap_param_gather=true"},
    {"dp.gather-with-step-needs-virtual", "single",
     "overlap_grad_reduce=true; overlap_param_gather=true; overlap_param_gather_with_optimizer_step=true",
     "overlap_grad_reduce=true; overlap_param_gather=true"},
    {"dp.gather-with-step-needs-gather", "dense", "overlap_param_gather_with_optimizer_step=true",
     "overlap_grad_reduce=true; overlap_param_gather=true; overlap_param_gather_with_optimizer_step=true"},
    {"dp.gather-with-step-mxfp8", "dense",
     "fp8=e4m3; fp8_recipe=mxfp8; fp8_param_gather=true; reuse_grad_buf_for_mxfp8_param_ag=true; "
     "overlap_grad_reduce=true; overlap_param_gather=true; overlap_param_gather_with_optimizer_step=true",
     "overlap_grad_reduce=true; overlap_param_gather=true; overlap_param_gather_with_optimizer_step=true"},
    {"dp.per-token-average", "dense", "average_in_collective=true; calculate_per_token_loss=true",
     "average_in_collective=false; calculate_per_token_loss=true"},
    {"dp.buckets", "dense", "bucket_size=1000000; num_buckets=4", "bucket_size=1000000"},
    {"optimizer.precision-aware-adam", "dense", "use_precision_aware_optimizer=true; optimizer=sgd",
     "use_precision_aware_optimizer=true"},
    {"optimizer.precision-aware-distributed", "dense",
     "use_precision_aware_optimizer=true; use_distributed_optimizer=false", "use_precision_aware_optimizer=true"},
    {"optimizer.state-types", "dense", "exp_avg_dtype=bf16", "exp_avg_dtype=bf16; use_precision_aware_optimizer=true"},
    {"optimizer.host-needs-decoupled-decay", "dense",
     "optimizer_cpu_offload=true; use_precision_aware_optimizer=true; decoupled_weight_decay=false",
     "optimizer_cpu_offload=true; use_precision_aware_optimizer=true"},
    {"moe.sinkhorn-aux-loss", "moe", "moe_router_load_balancing_type=[sinkhorn]; moe_aux_loss_coeff=0.01",
     "moe_router_load_balancing_type=[sinkhorn]; moe_aux_loss_coeff=0"},
    {"model.latent-interleaved", "dense",
     "multi_latent_attention=true; apply_rope_fusion=false; rotary_interleaved=true",
     "apply_rope_fusion=false; rotary_interleaved=true"},
    {"model.kv-channels", "dense", "multi_latent_attention=true; apply_rope_fusion=false; hidden_size=1000",
     "multi_latent_attention=true; apply_rope_fusion=false; hidden_size=1000; kv_channels=64"},
    {"graphs.local-experts", "moe", "megatron_core=0.17.0; cuda_graph_impl=local; cuda_graph_modules=[attn]",
     "megatron_core=0.18.0; cuda_graph_impl=local; cuda_graph_modules=[attn]"},
    {"run.deterministic-loss", "dense",
     "megatron_core=0.18.0; deterministic_mode=true; $NCCL_ALGO=Ring; cross_entropy_loss_fusion=true",
     "megatron_core=0.18.0; deterministic_mode=true; $NCCL_ALGO=Ring; cross_entropy_loss_fusion=false"},
    {"environment.deterministic-nccl", "dense",
     "megatron_core=0.18.0; deterministic_mode=true; cross_entropy_loss_fusion=false",
     "megatron_core=0.18.0; deterministic_mode=true; cross_entropy_loss_fusion=false; $NCCL_ALGO=^NVLS"},
    {"model.torch-norm-centered", "dense", "transformer_impl=local; layernorm_zero_centered_gamma=true",
     "transformer_impl=local; layernorm_zero_centered_gamma=true; normalization=LayerNorm"},
    {"model.torch-norm-persists", "dense", "transformer_impl=local; persist_layer_norm=true", "transformer_impl=local"},
    {"model.torch-norm-sequence", "tensor", "transformer_impl=local",
     "transformer_impl=local; sequence_parallel=false"},
    {"tp-overlap.needs-sequence", "tensor", "tp_comm_overlap=true; sequence_parallel=false", "tp_comm_overlap=true"},
    {"loss.te-fusion", "dense", "cross_entropy_loss_fusion=true; cross_entropy_fusion_impl=te",
     BRIDGE "cross_entropy_loss_fusion=true; cross_entropy_fusion_impl=te"},
    {"environment.max-connections", "tensor", "$CUDA_DEVICE_MAX_CONNECTIONS=8", "$CUDA_DEVICE_MAX_CONNECTIONS=1"},
    {"environment.max-connections", "tensor", "$CUDA_DEVICE_MAX_CONNECTIONS=8; use_torch_fsdp2=false",
     "$CUDA_DEVICE_MAX_CONNECTIONS=8; use_torch_fsdp2=true"},
    {"environment.fsdp-connections", "single", "use_megatron_fsdp=true; $CUDA_DEVICE_MAX_CONNECTIONS=1",
     "use_megatron_fsdp=true; $CUDA_DEVICE_MAX_CONNECTIONS=8"},
    {"moe.deepep-needs-flex", "moe", "moe_enable_deepep=true",
     "moe_enable_deepep=true; moe_token_dispatcher_type=flex"},
    {"moe.latent-shared-overlap", "moe",
     "moe_latent_size=512; moe_shared_expert_intermediate_size=1024; moe_shared_expert_overlap=true",
     "moe_latent_size=512; moe_shared_expert_intermediate_size=1024"},
    {"moe.fused-squared-relu-bias", "moe",
     "gated_linear_unit=false; activation_func=squared_relu; bias_activation_fusion=false; add_bias_linear=true; "
     "use_fused_weighted_squared_relu=true",
     "gated_linear_unit=false; activation_func=squared_relu; bias_activation_fusion=false; "
     "use_fused_weighted_squared_relu=true"},
    {"moe.shared-overlap-dispatcher", "moe",
     "moe_shared_expert_intermediate_size=1024; moe_shared_expert_overlap=true; moe_token_dispatcher_type=allgather",
     "moe_shared_expert_intermediate_size=1024; moe_shared_expert_overlap=true"},
    {"moe.pad-needs-capacity", "moe", "moe_pad_expert_input_to_capacity=true",
     "moe_pad_expert_input_to_capacity=true; moe_expert_capacity_factor=1.0"},
    {"moe.allgather-variable", "moe", "moe_token_dispatcher_type=allgather; variable_seq_lengths=true",
     "moe_token_dispatcher_type=alltoall; variable_seq_lengths=true"},
    {"model.fused-activation", "dense",
     "activation_func=squared_relu; gated_linear_unit=false; bias_activation_fusion=true",
     "activation_func=squared_relu; gated_linear_unit=false; bias_activation_fusion=false"},
    {"model.fused-gelu-needs-bias", "dense", "gated_linear_unit=false; bias_activation_fusion=true",
     "gated_linear_unit=false; bias_activation_fusion=false"},
    {"model.fused-quick-gelu-needs-gate", "dense",
     "activation_func=quick_gelu; gated_linear_unit=false; bias_activation_fusion=true",
     "activation_func=quick_gelu; gated_linear_unit=false; bias_activation_fusion=false"},
    {"version.p2p-wgrad", "moe", "overlap_p2p_wgrad_delayed_layer_number=2",
     "megatron_core=pr-4268; overlap_p2p_wgrad_delayed_layer_number=2"},
    {"version.op-fuser", "moe", "megatron_core=0.17.0; use_transformer_engine_op_fuser=true",
     "use_transformer_engine_op_fuser=true"},
    {"version.paged-stash", "moe", "megatron_core=0.17.0; moe_paged_stash=true", "moe_paged_stash=true"},
    {"version.dispatch-wgrad", "moe", "megatron_core=0.16.0; overlap_dispatch_backward_with_experts_wgrad=true",
     "overlap_dispatch_backward_with_experts_wgrad=true"},
    {"version.offload-tuning", "dense", "megatron_core=0.18.0; activation_offload_fraction=0.5",
     "activation_offload_fraction=0.5"},

    // Settings without effect
    {"no-effect.layernorm", "dense", SELECTIVE "[layernorm]", "multi_latent_attention=true; " SELECTIVE "[layernorm]"},
    {"no-effect.layernorm-in-graph", "moe", TE_GRAPHS "[moe_router]; " SELECTIVE "[layernorm]",
     TE_GRAPHS "[attn]; " SELECTIVE "[layernorm]"},
    {"no-effect.core-attn", "dense", SELECTIVE "[core_attn]", "attention_backend=unfused; " SELECTIVE "[core_attn]"},
    {"no-effect.mlp", "moe", SELECTIVE "[mlp]", "moe_layer_freq=2; " SELECTIVE "[mlp]"},
    {"no-effect.moe", "dense", SELECTIVE "[moe]", SELECTIVE "[mlp]"},
    {"no-effect.shared-experts", "moe", SELECTIVE "[shared_experts]",
     "moe_shared_expert_intermediate_size=1024; " SELECTIVE "[shared_experts]"},
    {"no-effect.moe-act", "dense", "moe_grouped_gemm=true; " SELECTIVE "[moe_act]", SELECTIVE "[mlp]"},
    {"no-effect.moe-beside-overlap", "moe", "megatron_core=0.16.0; " OVERLAP SELECTIVE "[moe]",
     "megatron_core=0.16.0; " SELECTIVE "[moe]"},
    {"no-effect.recompute-modules", "dense", "recompute_modules=[mlp]", SELECTIVE "[mlp]"},
    {"no-effect.recompute-method", "dense", "recompute_method=block; recompute_num_layers=1",
     FULL "recompute_method=block; recompute_num_layers=1"},
    {"no-effect.recompute-layers-beyond", "dense", FULL "recompute_method=uniform; recompute_num_layers=2",
     FULL "recompute_method=uniform; recompute_num_layers=1"},
    {"no-effect.offload-norm", "dense", FINE "[attn_norm]", "multi_latent_attention=true; " FINE "[attn_norm]"},
    {"no-effect.offload-mlp-norm", "dense", FINE "[mlp_norm]", FINE "[qkv_linear]"},
    {"no-effect.offload-recomputed-attention", "dense", SELECTIVE "[core_attn]; " FINE "[core_attn]",
     FINE "[core_attn]"},
    {"no-effect.offload-experts", "dense", FINE "[expert_fc1]", FINE "[core_attn]"},
    {"no-effect.offload-modules", "dense", "offload_modules=[core_attn]", FINE "[core_attn]"},
    {"no-effect.offload-weights", "single",
     "cpu_offloading=true; cpu_offloading_num_layers=2; cpu_offloading_weights=true",
     "cpu_offloading=true; cpu_offloading_num_layers=2"},
    {"no-effect.sequence-lengths", "single", "sequence_lengths=[512*40]", "sft=true; sequence_lengths=[512*40]"},
    {"no-effect.pad-cu-seqlens", "single", "sft=true; sequence_lengths=[512*40]; pad_cu_seqlens=true",
     "software.megatron_bridge=0.5.0; sft=true; sequence_lengths=[512*40]; pad_cu_seqlens=true"},
    {"no-effect.te-op-offload", "moe", "te_op_offload.fc1_op=true; te_op_offload.activation_op=false",
     "transformer_engine=pr-3128; te_op_offload.fc1_op=true; te_op_offload.activation_op=false"},
    {"no-effect.p2p-wgrad-number", "moe", "megatron_core=pr-4268; overlap_p2p_wgrad_delayed_layer_number=2",
     "megatron_core=pr-4268; overlap_p2p_wgrad_delayed_layer_number=2; " DELAY},
    {"no-effect.p2p-comm-stream", "moe", "megatron_core=pr-4268; overlap_p2p_backward_on_comm_stream=true",
     "megatron_core=pr-4268; overlap_p2p_backward_on_comm_stream=true; " OVERLAP},
    {"no-effect.group-size", "single", "microbatch_group_size_per_vp_stage=8", "context_parallel_size=1"},
    {"no-effect.align-param-gather", "dense", "align_param_gather=true",
     "align_param_gather=true; overlap_grad_reduce=true; overlap_param_gather=true"},
    {"no-effect.fsdp-overlap", "single",
     "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params; overlap_param_gather=false",
     "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params"},
    {"no-effect.wgrad-deferral-limit", "dense", "wgrad_deferral_limit=22",
     "wgrad_deferral_limit=22; defer_embedding_wgrad_compute=true"},
    {"no-effect.graph-modules", "dense", "cuda_graph_modules=[mlp]", TE_GRAPHS "[mlp]"},
    {"no-effect.first-last-bf16", "dense", "first_last_layers_bf16=true",
     "first_last_layers_bf16=true; fp8=hybrid; fp8_recipe=tensorwise"},
    {"no-effect.loss-impl", "dense", "cross_entropy_fusion_impl=te", "cross_entropy_loss_fusion=true"},
    {"no-effect.rope-fusion", "dense", "apply_rope_fusion=true; position_embedding_type=yarn",
     "apply_rope_fusion=true"},
    {"no-effect.shared-overlap", "moe", "moe_shared_expert_overlap=true",
     "moe_shared_expert_overlap=true; moe_shared_expert_intermediate_size=1024"},
    {"no-effect.optimizer-fraction", "dense", "optimizer_cpu_offload=true; use_precision_aware_optimizer=true",
     "optimizer_cpu_offload=true; use_precision_aware_optimizer=true; optimizer_offload_fraction=1.0"},

    // Traps
    {"trap.recompute-layers-per-chunk", "dense", FULL "recompute_method=block; recompute_num_layers=1",
     FULL "recompute_method=uniform; recompute_num_layers=1"},
    {"trap.selective-default", "dense", "recompute_granularity=selective", SELECTIVE "[mlp]"},
    {"trap.overlap-one-connection", "moe", OVERLAP "$CUDA_DEVICE_MAX_CONNECTIONS=1",
     OVERLAP "$CUDA_DEVICE_MAX_CONNECTIONS=32"},
    {"trap.flush-one-connection", "dense", "overlap_p2p_comm_warmup_flush=true; $CUDA_DEVICE_MAX_CONNECTIONS=1",
     "overlap_p2p_comm_warmup_flush=true; $CUDA_DEVICE_MAX_CONNECTIONS=8"},
    {"trap.capture-waits", "moe", "cuda_graph_impl=full_iteration",
     "cuda_graph_impl=full_iteration; moe_expert_rank_capacity_factor=1.5"},
    {"trap.shape-exchange", "dense", "variable_seq_lengths=true", "variable_seq_lengths=false"},
    {"trap.shapes-can-hang", "dense", "variable_seq_lengths=true",
     "variable_seq_lengths=true; pipeline_model_parallel_size=2"},
    {"trap.pairs-can-hang", "dense", "process_group_device_id=false", "process_group_device_id=true"},
    {"trap.mtp-standalone", "dense", "mtp_num_layers=1; pipeline_model_parallel_layout=Ett|t|t|t|t|t|tm|L",
     "mtp_num_layers=1; mtp_standalone=true; pipeline_model_parallel_layout=Ett|t|t|t|t|t|t|mL"},
    {"trap.aligned-without-virtual", "single",
     "overlap_grad_reduce=true; overlap_param_gather=true; align_param_gather=true",
     "overlap_grad_reduce=true; overlap_param_gather=true"},
    {"trap.min-offload-elements", "dense", FINE "[core_attn]; min_offloaded_tensor_size=1073741824",
     FINE "[core_attn]; min_offloaded_tensor_size=1048576"},
    {"trap.attention-mask", "dense", "create_attention_mask_in_dataloader=true",
     "create_attention_mask_in_dataloader=false"},
    {"trap.local-router-graph", "moe", LOCAL_GRAPHS "[moe_router]", TE_GRAPHS "[moe_router]"},
    {"trap.fine-grained-mlp", "dense", FINE "[core_attn]", "fine_grained_activation_offloading=false"},
    {"bridge.comm-overlap-resets", "moe", BRIDGE OVERLAP, OVERLAP},
    {"bridge.embedding-wgrad-resets", "dense", BRIDGE "defer_embedding_wgrad_compute=true",
     "defer_embedding_wgrad_compute=true"},
    {"bridge.expert-tensor-default", "moe",
     BRIDGE "tensor_model_parallel_size=2; sequence_parallel=true; expert_tensor_parallel_size=none",
     BRIDGE "tensor_model_parallel_size=2; sequence_parallel=true; expert_tensor_parallel_size=2"},
    {"bridge.mxfp8-reuse", "dense", BRIDGE "fp8=e4m3; fp8_recipe=mxfp8; fp8_param_gather=true",
     BRIDGE "fp8=e4m3; fp8_recipe=mxfp8; fp8_param_gather=true; reuse_grad_buf_for_mxfp8_param_ag=true"},
    {"bridge.offload-needs-v1", "dense", BRIDGE "fine_grained_activation_offloading=true; offload_modules=[core_attn]",
     BRIDGE FINE "[core_attn]"},
    {"bridge.context-sequence", "dense", BRIDGE "context_parallel_size=2; seq_length=4098",
     BRIDGE "context_parallel_size=2"},
    {"bridge.packed-soft-caps", "dense", BRIDGE "sft=true; attn_logit_softcapping=50.0", BRIDGE "sft=true"},
    {"bridge.tp-overlap-disabled", "dense", BRIDGE "tp_comm_overlap=true", BRIDGE "tp_comm_overlap=false"},
    {"bridge.max-connections", "tensor", BRIDGE "$CUDA_DEVICE_MAX_CONNECTIONS=8",
     BRIDGE "$CUDA_DEVICE_MAX_CONNECTIONS=1"},
};

std::vector<std::string> fired(const scenario::Scenario& s) {
  std::vector<std::string> ids;
  for (const auto& finding : plan::check(s)) ids.push_back(finding.rule);
  return ids;
}

bool contains(const std::vector<std::string>& ids, const std::string& id) {
  return std::ranges::find(ids, id) != ids.end();
}

bool broken(const scenario::Scenario& s) {
  return std::ranges::any_of(plan::check(s), [](const auto& f) { return f.severity == plan::Severity::violation; });
}

}  // namespace

TEST_CASE("the bases break no rule") {
  for (const auto* base : {"dense", "tensor", "single", "moe"}) {
    CAPTURE(base);
    CHECK(fired(test::scenario(base, "")).empty());
  }
}

TEST_CASE("every rule fires where it should and only there") {
  for (const auto& row : rows) {
    CAPTURE(std::string(row.rule));
    CAPTURE(std::string(row.base));
    CHECK(contains(fired(test::scenario(row.base, row.fires)), row.rule));
    CHECK_FALSE(contains(fired(test::scenario(row.base, row.quiet)), row.rule));
  }
}

TEST_CASE("a plan recommends nothing that breaks a rule, whatever the scenario as given breaks") {
  plan::Options options;
  options.predict = [](const scenario::Scenario& s) {
    predict::Prediction p;
    p.forward_backward_ns = p.step_ns = 1'000'000'000 - (s.settings.recompute_granularity.has_value() ? 0 : 1);
    p.memory_limit = Bytes(std::int64_t{80} << 30);
    p.ranks.resize(static_cast<std::size_t>(s.settings.pipeline_model_parallel_size));
    return p;
  };
  options.threads = 1;
  int mended = 0;
  for (const Row& row : rows) {
    CAPTURE(row.rule);
    auto s = test::scenario(row.base, row.fires);
    if (!broken(s)) continue;
    for (const char* open : {"search.recompute=auto", "search.allocator=auto"}) scenario::set(s, open);
    std::optional<plan::Plan> plan;
    try {
      plan = plan::search(s, options);
    } catch (const UsageError&) {  // nothing can be predicted at all
      continue;
    }
    CHECK_FALSE(plan->baseline_refused.empty());
    for (const auto& candidate : plan->alternatives) CHECK_FALSE(broken(candidate.scenario));
    if (!plan->best) continue;
    ++mended;
    CHECK_FALSE(broken(plan->best->scenario));
  }
  CHECK(mended > 5);  // recompute that is open mends what was wrong with it
}

TEST_CASE("what has no effect moves neither time nor memory") {
  const profile::Profiles profiles({profile::load(SOURCE_ROOT "/profiles/h200-sxm.json", {"test", 0})});
  int compared = 0;
  for (const auto& row : rows) {
    if (!std::string_view(row.rule).starts_with("no-effect.")) continue;
    CAPTURE(std::string(row.rule));
    const auto s = test::scenario(row.base, row.fires), without = plan::without_idle_settings(s);
    const auto told = [&](const scenario::Scenario& one) -> std::optional<predict::Prediction> {
      try {
        return predict::predict(one, profiles);
      } catch (const UsageError&) {
        return std::nullopt;  // not modelled
      }
    };
    const auto with = told(s), then = told(without);
    if (!with || !then) continue;
    ++compared;
    CHECK(with->step_ns == then->step_ns);
    REQUIRE(with->ranks.size() == then->ranks.size());
    for (std::size_t r = 0; r < with->ranks.size(); ++r) {
      CHECK(with->ranks[r].walk.peak_allocated == then->ranks[r].walk.peak_allocated);
      CHECK(with->ranks[r].walk.peak_reserved == then->ranks[r].walk.peak_reserved);
    }
  }
  CHECK(compared > 15);
}

TEST_CASE("every rule has a row and a complete text") {
  std::set<std::string> tested;
  for (const auto& row : rows) tested.insert(row.rule);
  std::set<std::string> known;
  for (const auto& rule : plan::rules()) {
    CAPTURE(rule.id);
    CHECK(tested.contains(rule.id));
    CHECK(known.insert(rule.id).second);
    CHECK_FALSE(rule.message.empty());
    CHECK_FALSE(rule.fix.empty());
    CHECK_FALSE(rule.versions.empty());
    CHECK(rule.source.find(".py") != std::string::npos);
    CHECK_FALSE(rule.settings.empty());
    const auto told = plan::with_fix(rule.message, rule.fix);  // one full stop each, whether the texts have theirs
    const auto fix = told.find(" Fix: ");
    REQUIRE(fix != std::string::npos);
    for (const auto& sentence : {told.substr(0, fix), told}) {
      CHECK(std::string_view(".!?").find(sentence.back()) != std::string_view::npos);
      CHECK(std::string_view(".!?").find(sentence[sentence.size() - 2]) == std::string_view::npos);
    }
  }
  CHECK(known.size() == tested.size());
}

TEST_CASE("texts carry the values, sources the line of the version") {
  const auto findings = plan::check(test::scenario("tensor", "num_query_groups=3"));
  const auto at = std::ranges::find(findings, "parallel.query-groups", &plan::Finding::rule);
  REQUIRE(at != findings.end());
  CHECK(at->message == "num_query_groups (3) must be a multiple or divisor of tensor_model_parallel_size (2).");
  CHECK(at->source == "megatron/core/transformer/transformer_config.py:1343 (core_r0.19.0)");

  const auto older = plan::check(test::scenario("tensor", "megatron_core=0.17.0; num_query_groups=3"));
  const auto then = std::ranges::find(older, "parallel.query-groups", &plan::Finding::rule);
  REQUIRE(then != older.end());
  CHECK(then->source.ends_with("(core_r0.17.0)"));
  CHECK(then->source != at->source);
}

TEST_CASE("versions of a rule are those whose source has it") {
  const auto table = plan::rules();
  const auto at = std::ranges::find(table, "overlap.no-full-recompute", &plan::RuleInfo::id);
  REQUIRE(at != table.end());
  CHECK(at->versions == "0.16-0.19, main, pr-4268");
}

TEST_CASE("a rule holds in the versions that have a line of it, and in no other") {
  using scenario::Version;
  for (const auto& rule : plan::all_rules()) {
    const auto lines = plan::cited_versions();
    const auto has_line = [&](Version version) { return plan::line_in(rule, version) != 0; };
    if (std::ranges::none_of(lines, has_line)) continue;  // about what a version lacks
    for (const auto version : lines) {
      CAPTURE(rule.id);
      CAPTURE(scenario::info(version).name);
      CHECK(rule.versions.has(version) == has_line(version));
    }
  }
}

TEST_CASE("symptoms: likeliest cause first") {
  using plan::Symptom;
  const auto first = [](const char* base, const char* changes, Symptom symptom, const char* text = "") {
    const auto causes = plan::diagnose(test::scenario(base, changes), symptom, text);
    return causes.empty() ? std::string() : causes.front().rule;
  };
  CHECK(first("dense", "", Symptom::out_of_memory) == "symptom.fragmentation");
  CHECK(first("dense", "$PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", Symptom::out_of_memory) !=
        "symptom.fragmentation");
  CHECK(first("dense", SELECTIVE "[mlp]", Symptom::slow) == "symptom.mlp");
  CHECK(first("dense", SELECTIVE "[mlp, core_attn]", Symptom::slow) == "symptom.mlp-and-core-attn");
  CHECK(first("dense", "", Symptom::assertion,
              "AssertionError: full recompute is only supported with full iteration CUDA graph.") ==
        "graphs.full-recompute");
  CHECK(first("dense", "", Symptom::assertion,
              "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading") ==
        "offload.no-pipeline");
}

TEST_CASE("symptoms: a text that no rule has, and one of a rule that this configuration does not break") {
  const auto causes = [](const char* text) {
    return plan::diagnose(test::scenario("dense", ""), plan::Symptom::assertion, text);
  };
  for (const char* text : {"AssertionError: 20 should be divisible by 5", "RuntimeError: CUDA error", ""}) {
    CAPTURE(text);
    const auto found = causes(text);
    REQUIRE(found.size() == 1);
    CHECK(found.front().rule == "symptom.no-rule");
    CHECK(found.front().severity == plan::Severity::trap);
  }
  for (const auto& finding :
       causes("ValueError: Currently there is no support for Pipeline parallelism with CPU offloading"))
    CHECK(finding.severity != plan::Severity::violation);
}

}  // namespace rules_test
