#include "effects_refused.hpp"

#include <algorithm>
#include <array>

#include "effects_families.hpp"
#include "pipewright/scenario/context.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"
#include "pipewright/scenario/quant_recipe.hpp"
#include "refused_when.hpp"

namespace pipewright::scenario {
namespace {

using namespace refused;  // the table is made of these

const std::vector<RefusedField>& refused_rows() {
  static const std::vector<RefusedField> list = {
      // Model
      {"window_size",
       "a sliding window of latent or unfused attention, with dropout of attention (no fused kernel has both), or with "
       "context parallelism other than a2a (Transformer Engine refuses p2p)",
       [](const Scenario& s) {  // Transformer Engine's fused_attn.cpp, "sliding window": dropout == 0
         return window_of(s) > 0 && (!grouped_fused_attention(s) || s.settings.attention_dropout > 0 ||
                                     (uses_context(s) && !exchanges_heads(s)));
       },
       [](const Scenario& s) {
         return those("a sliding window with ",
                      {{!grouped_fused_attention(s), "latent or unfused attention"},
                       {s.settings.attention_dropout > 0, "attention dropout (no fused kernel has both)"},
                       {uses_context(s) && !exchanges_heads(s),
                        "context parallelism other than a2a (Transformer Engine refuses p2p)"}});
       }},
      // Transformer Engine 2.8 on, context_parallel.py: "only supports softmax_type with cp_comm_type = 'a2a'".
      {"softmax_type",
       "attention sinks of latent or unfused attention, or with context parallelism other than a2a, which Transformer "
       "Engine does not have",
       [](const Scenario& s) { return s.model.softmax_type != "vanilla" && !has_sinks(s); }},
      {"no_rope_freq", "latent attention in layers without rotary embedding",
       [](const Scenario& s) { return !s.model.no_rope_freq.empty() && s.model.multi_latent_attention; }},
      {"attention_output_gate",
       "the gate on the output of latent, unfused or soft-capped attention, with context parallelism, activation "
       "offload or post-norms",
       [](const Scenario& s) {
         return s.model.attention_output_gate && (!plain_kernel(s) || s.model.attn_logit_softcapping.value_or(0) > 0 ||
                                                  s.model.post_layernorm || moves_activations(s));
       },
       [](const Scenario& s) {
         return those("the gate on attention's output with ",
                      {{!grouped_fused_attention(s), "latent or unfused attention"},
                       {uses_context(s), "context parallelism"},
                       {s.model.attn_logit_softcapping.value_or(0) > 0, "soft caps"},
                       {s.model.post_layernorm, "post-norms"},
                       {moves_activations(s), "activation offload"}});
       }},
      {"experimental_attention_variant",
       "sparse attention and its indexer (dsa), compressed sparse attention (dsv4_hybrid), linear and delta-rule "
       "attention other than gated_delta_net; that with " +
           not_beside(Family::delta_nets),
       [](const Scenario& s) {
         const auto& variant = s.model.experimental_attention_variant;
         if (!variant) return false;
         if (*variant != "gated_delta_net") return true;
         return has_linear_attention(s) && beside_unmodelled(Family::delta_nets, s);
       },
       [](const Scenario& s) {
         const auto& variant = *s.model.experimental_attention_variant;
         if (variant == "gated_delta_net") return "gated delta nets with " + unmodelled_beside(Family::delta_nets, s);
         if (variant == "dsa") return std::string("sparse attention and its indexer");
         return std::string(variant == "dsv4_hybrid" ? "compressed sparse attention" : "attention of this variant");
       }},
      {"linear_key_head_dim", "the delta rule's kernels of heads other than 128 wide",
       [](const Scenario& s) { return has_linear_attention(s) && s.model.linear_key_head_dim != 128; }},
      {"linear_value_head_dim", "the delta rule's kernels of heads other than 128 wide",
       [](const Scenario& s) { return has_linear_attention(s) && s.model.linear_value_head_dim != 128; }},
      {"linear_conv_kernel_dim", "convolutions of a width other than 4",
       [](const Scenario& s) { return has_linear_attention(s) && s.model.linear_conv_kernel_dim != 4; }},
      {"hybrid_layer_pattern",
       "layers of hybrids other than M, *, - and E; hybrids with " + not_beside(Family::hybrids),
       [](const Scenario& s) {
         return is_hybrid(s) && (beside_unmodelled(Family::hybrids, s) || lacks_depths(s) ||
                                 s.model.hybrid_layer_pattern->find_first_not_of("M*-E|/") != std::string::npos);
       },
       [](const Scenario& s) {
         const auto beside = unmodelled_beside(Family::hybrids, s);
         if (!beside.empty()) return "hybrids with " + beside;
         return std::string(lacks_depths(s) ? "multi-token prediction whose layers the pattern does not name (M*-E/*E)"
                                            : "layers of hybrids other than M, *, - and E");
       }},
      {"mamba_head_dim", "the scan's kernels of heads other than 64 and 80 wide",
       [](const Scenario& s) {
         return has_mamba_layer(s) && s.model.mamba_head_dim != 64 && s.model.mamba_head_dim != 80;
       }},
      {"mamba_state_dim", "the scan's kernels of states other than 128, and 256 for heads 64 wide",
       [](const Scenario& s) {
         const bool twice = s.model.mamba_state_dim == 256 && s.model.mamba_head_dim == 64;
         return has_mamba_layer(s) && s.model.mamba_state_dim != 128 && !twice;
       }},
      {"qk_l2_norm", "L2 norms in latent or unfused attention",
       [](const Scenario& s) { return s.model.qk_l2_norm && !grouped_fused_attention(s); }},
      // Transformer Engine's common/fused_attn/fused_attn.cpp, "head dimension"; FlashAttention takes as wide ones.
      {"kv_channels",
       "heads that no fused kernel of training takes, wider than 256 or no multiple of 8 (attention_backend: unfused "
       "is "
       "modelled)",
       [](const Scenario& s) {
         constexpr Int widest = 256, step = 8;
         const bool attends = !is_hybrid(s) || s.model.hybrid_layer_pattern->find('*') != std::string::npos;
         return attends && grouped_fused_attention(s) && s.model.attn_logit_softcapping.value_or(0) == 0 &&
                (kv_channels(s) > widest || kv_channels(s) % step != 0);
       }},
      // In place: what a checkpoint or a copy to the host has kept would be scaled twice.
      {"scale_queries_by_position",
       "scaled queries of latent or unfused attention, with recomputed core attention or activation offload",
       [](const Scenario& s) {
         return s.model.scale_queries_by_position &&
                (!grouped_fused_attention(s) || recomputes(s, Recompute::core_attn) || moves_activations(s));
       }},
      {"qk_layernorm_whole", "norms over all heads in latent attention",
       [](const Scenario& s) { return s.model.qk_layernorm_whole && s.model.multi_latent_attention; }},
      {"pre_layernorm",
       "layers without norms before attention and MLP of latent attention, experts and hybrids, in FP8 or FP4, with "
       "adapters, activation offload, CUDA graphs, userbuffers, delayed weight gradients, multi-token prediction or "
       "local layers",
       [](const Scenario& s) {
         const auto& o = s.settings;
         return !s.model.pre_layernorm &&
                (s.model.multi_latent_attention || has_experts(s) || is_hybrid(s) || has_linear_attention(s) || o.fp8 ||
                 o.fp4 || !o.lora_target_modules.empty() || moves_activations(s) || o.cuda_graph_impl != "none" ||
                 o.tp_comm_overlap || o.delay_wgrad_compute || s.model.mtp_num_layers.value_or(0) > 0 || !te_layers(s));
       }},
      {"post_layernorm", "norms on the outputs of experts, of latent attention, and before a bias is added",
       [](const Scenario& s) {
         return s.model.post_layernorm && (has_experts(s) || s.model.multi_latent_attention || s.model.add_bias_linear);
       }},
      {"attn_logit_softcapping",
       "soft-capping in latent or unfused attention, with sinks, dropout or context parallelism",
       [](const Scenario& s) {
         return s.model.attn_logit_softcapping.value_or(0) > 0 &&
                (!plain_kernel(s) || s.model.softmax_type != "vanilla" || s.settings.attention_dropout > 0);
       }},
      {"final_logit_softcapping", "capped logits of multi-token prediction",
       [](const Scenario& s) {
         return s.model.final_logit_softcapping.value_or(0) > 0 && s.model.mtp_num_layers.value_or(0) > 0;
       }},
      {"attention_chunk_size",
       "chunked attention (no version of Megatron has it; inside one chunk it is causal attention)",
       [](const Scenario& s) {
         return s.model.attention_chunk_size && *s.model.attention_chunk_size < s.model.seq_length;
       }},
      {"apply_residual_connection_post_layernorm", "a residual that branches off after the norm",
       [](const Scenario& s) { return s.model.apply_residual_connection_post_layernorm; }},
      {"activation_func", "the kernels of a gated activation other than silu, gelu, fast_gelu and quick_gelu",
       [](const Scenario& s) {
         constexpr std::array known = {"silu", "gelu", "quick_gelu", "fast_gelu"};
         return s.model.gated_linear_unit && s.model.activation_func &&
                std::ranges::find(known, *s.model.activation_func) == known.end();
       }},
      {"normalization", "L2 normalisation", [](const Scenario& s) { return s.model.normalization == "L2Norm"; }},
      // arguments.py (model.mtp-position has its line): pretrain_gpt.py's positions are [batch, sequence].
      {"position_embedding_type",
       "relative positions; M-RoPE by pretrain_gpt.py, whose positions have one axis, at which it stops; M-RoPE of "
       "latent attention and of packed sequences",
       [](const Scenario& s) {
         return s.model.position_embedding_type == "relative" ||
                (several_axes(s) && (parsed_by_megatron(s) || s.model.multi_latent_attention || packing(s)));
       },
       [](const Scenario& s) {
         const bool axes = several_axes(s);
         return those("positions ", {{!axes, "relative to each other"},
                                     {axes && parsed_by_megatron(s), "of several axes, which pretrain_gpt.py has not"},
                                     {axes && s.model.multi_latent_attention, "of several axes in latent attention"},
                                     {axes && packing(s), "of several axes in packed sequences"}});
       }},
      {"moe_router_topk_limited_devices", "the older spelling of group-limited routing (state moe_router_group_topk)",
       [](const Scenario& s) {
         return s.model.moe_router_topk_limited_devices.has_value() && !s.model.moe_router_group_topk;
       }},
      {"moe_latent_size", "latent projections with biases or delay_wgrad_compute",
       [](const Scenario& s) {
         return projects_latent(s) && (s.model.add_bias_linear || s.settings.delay_wgrad_compute);
       },
       [](const Scenario& s) {
         return those("latent projections with ", {{s.model.add_bias_linear, "biases"},
                                                   {s.settings.delay_wgrad_compute, "delayed weight gradients"}});
       }},
      // Parallelism and schedule
      {"cp_comm_type", "kinds that differ between layers; all but p2p with latent or unfused attention or offload",
       [](const Scenario& s) {
         const auto sharing = context_sharing(s);
         if (!sharing) return has_several_ways(s);
         return (sharing->heads > 1 || sharing->gathers) && (!grouped_fused_attention(s) || s.settings.cpu_offloading ||
                                                             s.settings.fine_grained_activation_offloading);
       }},
      {"hierarchical_context_parallel_sizes",
       "a2a+p2p in other than two levels whose product is context_parallel_size (the all-to-all's ranks, the ring's)",
       [](const Scenario& s) { return !context_sharing(s) && !has_several_ways(s); }},
      {"hybrid_context_parallel", "context-parallel groups that change with every sequence",
       [](const Scenario& s) { return s.settings.hybrid_context_parallel; }},
      {"sft", "packed sequences of unknown lengths (sequence_lengths states them, or a file of them)",
       [](const Scenario& s) { return s.settings.sft && s.settings.sequence_lengths.empty(); }},
      {"sequence_lengths",
       "packed sequences in microbatches of several rows, with unfused attention, sinks (but with a cuDNN "
       "whose fused kernel Transformer Engine takes: 9.26, for 2.12 to 2.17 9.18), soft caps, attention dropout, "
       "windows with context "
       "parallelism by p2p, latent attention before core 0.18, on Blackwell, of heads other than 192 wide, with "
       "context parallelism, "
       "recompute of mla_up_proj or activation offload, context parallelism other than p2p, graphed attention, or "
       "multi-token prediction with context "
       "parallelism or of Megatron's dev",
       [](const Scenario& s) { return packing(s) && !packs_as_modelled(s); },
       [](const Scenario& s) {
         const auto& m = s.model;
         const auto& o = s.settings;
         return those(
             "packed sequences with ",
             {{o.micro_batch_size > 1, "several rows in a microbatch"},
              {m.multi_latent_attention && !packs_latent(s),
               "latent attention that is not fused, before core 0.18, on Blackwell, of heads other than 192 wide, with "
               "context "
               "parallelism, recompute of mla_up_proj or activation offload"},
              {!m.multi_latent_attention && !grouped_fused_attention(s), "unfused attention"},
              {window_of(s) > 0 && uses_context(s) && !exchanges_rows(s), "a window and context parallelism by p2p"},
              {!packs_sinks(s),
               "sinks, for which Transformer Engine takes a fused kernel from cuDNN 9.26 on (2.12 to 2.17 from 9.18; "
               "software.cudnn says which), without context parallelism"},
              {packs_soft_caps(s), "soft caps"},
              {o.attention_dropout != 0, "attention dropout"},
              {packs_depths_otherwise(s), "MTP with context parallelism, or of dev"},
              {!only_ring(s) && !exchanges_rows(s), "context parallelism other than p2p, or a2a from TE 2.18 on"},
              {uses_graphs(s) && o.cuda_graph_modules != Strings{"mlp"}, "graphed attention"}});
       }},
      {"mtp_detach_heads", "a backward pass that stops at the depths of multi-token prediction",
       [](const Scenario& s) { return s.settings.mtp_detach_heads && s.model.mtp_num_layers.value_or(0) > 0; }},
      {"use_ring_exchange_p2p", "transfers of a PyTorch with ring_exchange",
       [](const Scenario& s) { return s.settings.use_ring_exchange_p2p; }},
      {"num_microbatches_with_partial_activation_checkpoints", "microbatches that are recomputed in part",
       [](const Scenario& s) { return s.settings.num_microbatches_with_partial_activation_checkpoints.has_value(); }},
      // Precision
      {"bf16", "training in fp32 (neither bf16 nor fp16 is set)",
       [](const Scenario& s) { return !s.settings.bf16 && !s.settings.fp16; }},
      {"fp32_residual_connection", "a residual stream in fp32",
       [](const Scenario& s) { return s.settings.fp32_residual_connection; }},
      {"fp4",
       "experts in NVFP4 before Transformer Engine 2.12 and Megatron Core 0.16 (casts of one expert after the other, "
       "rows that are not whole blocks), or more than 64 of them on a GPU, which its grouped casts refuse",
       [](const Scenario& s) {
         if (!s.settings.fp4 || !has_experts(s)) return false;
         constexpr Int most = 64;  // TE common/hadamard_transform/group_hadamard_transform.cu, kMaxTensorsPerKernel
         return !te_version(s.software).at_least(2, 12) || core_version(s.software) < Version::v0_16 ||
                *s.model.num_moe_experts > most * s.settings.expert_model_parallel_size;
       }},
      {"quant_recipe",
       "precision by module: " + std::string(by_module_beside) +
           "; the two linear layers of experts in different precisions, or quantized otherwise than the model",
       [](const Scenario& s) { return !unmodelled_by_module(s).empty(); },
       [](const Scenario& s) { return "precision by module: " + unmodelled_by_module(s); }},
      {"fp4_param", nvfp4_parameters, [](const Scenario& s) { return s.settings.fp4_param && !keeps_nvfp4(s); }},
      {"fp4_param_gather", nvfp4_parameters,
       [](const Scenario& s) { return s.settings.fp4_param_gather && !keeps_nvfp4(s); }},
      {"fp8_wgrad", "weight gradients in bf16 beside FP8 products",
       [](const Scenario& s) { return s.settings.fp8.has_value() && !s.settings.fp8_wgrad; }},
      {"fp8_output_proj",
       "an output layer in FP8 with tensor parallelism, tied embeddings, capped logits, deferred gradients, adapters "
       "or "
       "Megatron-FSDP",
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.fp8_output_proj &&
                (o.tensor_model_parallel_size > 1 || !s.model.untie_embeddings_and_output_weights ||
                 s.model.final_logit_softcapping.value_or(0) > 0 || o.defer_embedding_wgrad_compute ||
                 !o.lora_target_modules.empty() || o.use_megatron_fsdp);
       }},
      {"fp8_dot_product_attention",
       "attention in FP8 with recipes other than mxfp8 (Transformer Engine 2.16 or later) and tensorwise (2.8), heads "
       "other than 128 wide (latent: 192 and 128), sequences that are no multiple of 128, windows, sinks, soft caps, "
       "dropout, packed sequences, context parallelism, activation offload or unfused attention",
       [](const Scenario& s) { return s.settings.fp8_dot_product_attention && quantizes(s) && !attends_in_fp8(s); }},
      {"fp8_multi_head_attention", "attention in FP8 from its projections on",
       [](const Scenario& s) { return s.settings.fp8_multi_head_attention; }},
      {"activation_func_fp8_input_store", "inputs of the activation kept in FP8",
       [](const Scenario& s) { return s.settings.activation_func_fp8_input_store; }},
      // Kernels
      {"fused_single_qkv_rope",
       "rotation of queries and keys before they are split, with norms of them, gates, layers without rotation and "
       "packed sequences, at which Megatron stops (attention.py:1364-1383), and with latent or unfused attention, soft "
       "caps, more tensor-parallel ranks than groups, activation offload or recompute of core_attn",
       [](const Scenario& s) { return s.settings.fused_single_qkv_rope && !rotates_at_once(s); }},
      {"fused_residual_rmsnorm", "the residual added inside the norm",
       [](const Scenario& s) { return s.settings.fused_residual_rmsnorm; }},
      {"memory_efficient_layer_norm", "a norm that keeps its output instead of its input",
       [](const Scenario& s) { return s.settings.memory_efficient_layer_norm && local_norms(s); }},
      {"use_transformer_engine_op_fuser",
       "the MLP as a TE operator sequence but for experts as its fused grouped MLP (in MXFP8, gated with "
       "moe_mlp_glu_interleave_size 32 or squared ReLU with use_fused_weighted_squared_relu from TE 2.17 on, "
       "NVTE_CUTEDSL_FUSED_GROUPED_MLP=1); that with layers in bf16",
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.use_transformer_engine_op_fuser && (!fuses_grouped_mlp(s) || o.first_last_layers_bf16);
       }},
      {"recompute_granularity",
       "full recompute beside expert-parallel overlap (Megatron's dev replays segments of its own)",
       [](const Scenario& s) {  // dev d48bd6be0a, models/common/model_chunk_schedule_plan.py
         return s.settings.overlap_moe_expert_parallel_comm && s.settings.recompute_granularity.value_or("") == "full";
       }},
      {"recompute_modules", "the activation recomputed inside the fused grouped MLP (moe_act)",
       [](const Scenario& s) { return fuses_grouped_mlp(s) && recomputes(s, Recompute::moe_act); }},
      {"moe_mlp_glu_interleave_size", "interleaved gates that are put in order for a plain activation",
       [](const Scenario& s) {
         return has_experts(s) && s.settings.moe_mlp_glu_interleave_size && s.model.gated_linear_unit &&
                !fuses_grouped_mlp(s);
       }},
      {"moe_expert_rank_capacity_factor", "a budget of rows for other experts than the fused grouped MLP",
       [](const Scenario& s) {
         return has_experts(s) && s.settings.moe_expert_rank_capacity_factor && !fuses_grouped_mlp(s);
       }},
      {"cross_entropy_fusion_impl", "the loss fused with the output layer",
       [](const Scenario& s) {
         return s.settings.cross_entropy_loss_fusion && s.settings.cross_entropy_fusion_impl == "linear";
       }},
      {"deterministic_mode", "deterministic kernels of attention's backward and of the experts",
       [](const Scenario& s) { return s.settings.deterministic_mode; }},
      {"mlp_chunks_for_training", "an MLP in pieces of the sequence",
       [](const Scenario& s) { return s.settings.mlp_chunks_for_training > 1; }},
      {"tp_comm_bulk_wgrad", "weight gradients with their collective apart",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && !s.settings.tp_comm_bulk_wgrad; }},
      {"tp_comm_bulk_dgrad", "input gradients with their collective apart",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && !s.settings.tp_comm_bulk_dgrad; }},
      {"tp_comm_overlap_ag", "an all-gather in one piece beside others in several",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && !s.settings.tp_comm_overlap_ag; }},
      {"tp_comm_overlap_rs", "a reduce-scatter in one piece beside others in several",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && !s.settings.tp_comm_overlap_rs; }},
      {"tp_comm_overlap_rs_dgrad", "a reduce-scatter in pieces beside the input gradient",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && s.settings.tp_comm_overlap_rs_dgrad; }},
      {"tp_comm_split_ag", "an all-gather in one piece beside others in several",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && !s.settings.tp_comm_split_ag; }},
      {"tp_comm_split_rs", "a reduce-scatter in one piece beside others in several",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && !s.settings.tp_comm_split_rs; }},
      {"tp_comm_atomic_ag", "an all-gather with an atomic GEMM",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && s.settings.tp_comm_atomic_ag; }},
      {"tp_comm_atomic_rs", "a reduce-scatter with an atomic GEMM",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && s.settings.tp_comm_atomic_rs; }},
      {"tp_comm_overlap_disable_qkv", "overlap at some GEMMs only",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && s.settings.tp_comm_overlap_disable_qkv; }},
      {"tp_comm_overlap_disable_fc1", "overlap at some GEMMs only",
       [](const Scenario& s) { return s.settings.tp_comm_overlap && s.settings.tp_comm_overlap_disable_fc1; }},
      // Memory
      {"distribute_saved_activations", "checkpoints shared by the tensor-parallel ranks, and their gathers",
       [](const Scenario& s) { return s.settings.distribute_saved_activations; }},
      {"cpu_offloading_double_buffering", "two buffers for what comes back",
       [](const Scenario& s) { return s.settings.cpu_offloading && s.settings.cpu_offloading_double_buffering; }},
      {"offload_modules",
       "attn_norm and mlp_norm beside expert-parallel overlap; any module of layers that are recomputed in full",
       [](const Scenario& s) { return moves_norms_in_pairs(s) || moves_of_full_recompute(s); },
       [](const Scenario& s) {
         return those("offload ",
                      {{moves_norms_in_pairs(s), "of attn_norm and mlp_norm beside expert-parallel overlap"},
                       {moves_of_full_recompute(s), "of layers that are recomputed in full"}});
       }},
      {"delay_offload_until_cuda_graph", "copies that are issued after a graph",
       [](const Scenario& s) {
         return s.settings.fine_grained_activation_offloading && s.settings.delay_offload_until_cuda_graph;
       }},
      // Experts
      {"moe_grouped_gemm", "experts of a rank one after the other (SequentialMLP)",
       [](const Scenario& s) {
         return has_experts(s) && !s.settings.moe_grouped_gemm &&
                *s.model.num_moe_experts > s.settings.expert_model_parallel_size;
       }},
      {"moe_router_load_balancing_type", "routing by sinkhorn or by quantiles: its iterations over the logits",
       [](const Scenario& s) {
         const auto& types = s.settings.moe_router_load_balancing_type;
         return has_experts(s) && std::ranges::any_of(types, [](const auto& type) {
                  return type == "sinkhorn" || type == "quantile_balancing";
                });
       }},
      // fused_a2a.py, HYBRIDEP_TOKEN_ALIGNMENT; the count is read by the host, which no capture allows.
      {"moe_hybridep_pad_uneven_dispatch_inputs",
       "rows that HybridEP pads (tokens of a rank that are no multiple of 64), and counts read inside a graph of "
       "moe_preprocess",
       [](const Scenario& s) {
         const auto& o = s.settings;
         if (!uses_flex(s) || o.moe_flex_dispatcher_backend != "hybridep" || !o.moe_hybridep_pad_uneven_dispatch_inputs)
           return false;
         const Int ranks = o.context_parallel_size * (o.sequence_parallel ? o.tensor_model_parallel_size : 1);
         return o.micro_batch_size * s.model.seq_length / ranks % 64 != 0 ||
                (graphs_modules(s) && graphs_module(s, "moe_preprocess"));
       }},
      {"moe_apply_probs_on_input", "routing weights applied before more than one expert",
       [](const Scenario& s) {
         return has_experts(s) && s.settings.moe_apply_probs_on_input && s.model.moe_router_topk != 1;
       }},
      {"moe_token_dropping", "dropped tokens", [](const Scenario& s) { return s.settings.moe_token_dropping; }},
      {"moe_paged_stash",
       "expert activations in pages beside activation offload or recompute of the MoE layer, or of other experts than "
       "the fused grouped MLP",
       [](const Scenario& s) {
         const auto& o = s.settings;
         return o.moe_paged_stash &&
                (o.fine_grained_activation_offloading || o.cpu_offloading || !fuses_grouped_mlp(s) ||
                 o.recompute_granularity.value_or("") == "full" || recomputes(s, Recompute::moe));
       }},
      {"moe_enable_deepep", "the older spelling of the DeepEP backend (state moe_token_dispatcher_type: flex)",
       [](const Scenario& s) { return has_experts(s) && s.settings.moe_enable_deepep && !uses_flex(s); }},
      {"overlap_dispatch_backward_with_experts_wgrad", "experts' weight gradients beside the dispatch",
       [](const Scenario& s) { return s.settings.overlap_dispatch_backward_with_experts_wgrad; }},
      {"moe_load_imbalance", "an imbalance beyond what the expert-parallel ranks can send",
       [](const Scenario& s) { return s.settings.moe_load_imbalance < 1; }},
      // Adapters
      {"lora_target_modules",
       "adapters beside local layers, Transformer Engine's operator sequences, experts with tensor parallelism, "
       "shared experts with TP and moe_shared_expert_overlap; with offload, CUDA graphs of modules other than dense "
       "MLPs without adapters, expert-parallel overlap or delayed weight gradients (Transformer Engine's backward_dw "
       "finds none of a frozen layer and raises); none on the stage that embeds; the model's first ones beside a "
       "mixture's linear_fc2 alone, or in an MLP or mixture under a checkpoint of its own; hybrids under full "
       "recompute, "
       "whose first checkpoint has no input with a gradient",
       [](const Scenario& s) { return !unmodelled_adapters(s).empty(); }, unmodelled_adapters},
      {"lora_dropout", "dropout before the adapters",
       [](const Scenario& s) { return s.settings.lora_dropout > 0 && !s.settings.lora_target_modules.empty(); }},
      // CUDA graphs
      {"cuda_graph_impl",
       "Megatron's own CUDA graphs (local) of layers with experts, beside multi-token prediction, offload, adapters, "
       "packed sequences or delayed weight gradients",
       [](const Scenario& s) { return !lacking_of_own_graphs(s).empty(); }, lacking_of_own_graphs},
      {"cuda_graph_modules",
       "graphs of whole mixtures whose rows vary, of MLPs beside expert-parallel overlap (an AssertionError of "
       "transformer_layer.py), of one layer for several depths of MTP, beside activation offload, or "
       "with delayed weight gradients without gradient_accumulation_fusion",
       [](const Scenario& s) {
         const auto& o = s.settings;
         if (o.cuda_graph_impl != "transformer_engine" || o.cuda_graph_modules == Strings{"mlp"}) return false;
         return varies_in_graph(s) || returns_delayed(s) || overlaps_graphed_mlp(s) || repeats_depths(s) ||
                o.fine_grained_activation_offloading;
       },
       [](const Scenario& s) {
         return those("graphs ", {{varies_in_graph(s), "of whole mixtures whose rows vary"},
                                  {overlaps_graphed_mlp(s), "of MLPs beside expert-parallel overlap"},
                                  {returns_delayed(s), "with delayed weight gradients that products do not add"},
                                  {repeats_depths(s), "of one layer for several depths of MTP"},
                                  {s.settings.fine_grained_activation_offloading, "beside activation offload"}});
       }},
      {"cuda_graph_retain_backward_graph", "autograd's graph kept at capture",
       [](const Scenario& s) { return uses_graphs(s) && s.settings.cuda_graph_retain_backward_graph; }},
      {"optimizer_cuda_graph", "a captured optimizer step",
       [](const Scenario& s) { return s.settings.optimizer_cuda_graph; }},
      // Data parallel and optimizer
      {"num_distributed_optimizer_instances", "several groups that each hold all optimizer states",
       [](const Scenario& s) { return s.settings.num_distributed_optimizer_instances > 1; }},
      {"num_buckets", "a number of buckets instead of their size in Megatron Bridge before 0.7",
       [](const Scenario& s) {
         return s.settings.num_buckets && s.settings.overlap_grad_reduce && !bridge_at_least(s.software, 0, 7);
       }},
      {"reduce_scatter_with_fp32_accumulation", "an all-to-all and a sum in place of a reduce-scatter",
       [](const Scenario& s) { return s.settings.reduce_scatter_with_fp32_accumulation; }},
      {"gradient_reduce_div_fusion", "a pass that divides the gradients before they are reduced",
       [](const Scenario& s) { return !s.settings.gradient_reduce_div_fusion; }},
      {"data_parallel_sharding_strategy", "Megatron-FSDP that does not share the parameters, too (optim_grads_params)",
       [](const Scenario& s) {
         return s.settings.use_megatron_fsdp && s.settings.data_parallel_sharding_strategy != "optim_grads_params";
       }},
      {"use_megatron_fsdp", "Megatron-FSDP with " + not_beside(Family::fsdp),
       [](const Scenario& s) { return s.settings.use_megatron_fsdp && beside_unmodelled(Family::fsdp, s); },
       [](const Scenario& s) { return "Megatron-FSDP with " + unmodelled_beside(Family::fsdp, s); }},
      {"optimizer",
       "the kernels of this optimizer; of Muon: fp16, FP8 parameters (of dist_muon but by tensor), adapters, "
       "precision-aware states, the gather in the optimizer step, the distributed optimizer before 0.18 and beside "
       "experts with biases, overlapped reduction before 0.18, the distributed optimizer in pretrain_gpt.py of 0.19; "
       "of "
       "dist_muon: the distributed optimizer's buffers and overlapped gathers",
       [](const Scenario& s) { return !lacking_of_optimizer(s).empty(); }, lacking_of_optimizer},
      {"muon_coefficient_type", "steps of Muon without the product A A",
       [](const Scenario& s) {
         const auto type = s.settings.other.find("muon_coefficient_type");
         return s.settings.optimizer.ends_with("muon") && type != s.settings.other.end() && type->second == "cubic5";
       }},
      {"optimizer_cpu_offload", "an optimizer on the host with " + not_beside(Family::host_optimizer),
       [](const Scenario& s) {
         return s.settings.optimizer_cpu_offload && beside_unmodelled(Family::host_optimizer, s);
       },
       [](const Scenario& s) {
         return "an optimizer on the host with " + unmodelled_beside(Family::host_optimizer, s);
       }},
  };
  return list;
}

}  // namespace

std::span<const RefusedField> refused_fields() { return refused_rows(); }

}  // namespace pipewright::scenario
