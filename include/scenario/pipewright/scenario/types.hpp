// A scenario: one training configuration with its machine. Members are named as the keys of the YAML file, which are
// Megatron Core's own field names (TransformerConfig, MLATransformerConfig, ModelParallelConfig,
// DistributedDataParallelConfig, OptimizerConfig); initial values are the defaults of those classes in core_r0.19.0.
// Fields that another version defaults differently are corrected after reading (src/scenario/field_rows.cpp).
//
// A field that Megatron leaves None and fills in later is optional here and never filled in: derived.hpp gives the
// value in force, so that changing one setting of a Scenario can never leave a stale derived value behind.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/scenario/measured.hpp"
#include "pipewright/versions.hpp"

namespace pipewright::scenario {

using Int = std::int64_t;
using OptInt = std::optional<std::int64_t>;
using Strings = std::vector<std::string>;
using Ints = std::vector<std::int64_t>;

/// Architecture.
struct Model {
  Int num_layers = 0;
  Int hidden_size = 0;
  OptInt ffn_hidden_size;  ///< default 4 x hidden_size
  Int num_attention_heads = 0;
  OptInt num_query_groups;  ///< default num_attention_heads
  OptInt kv_channels;       ///< default hidden_size / num_attention_heads
  Int seq_length = 0;
  OptInt max_position_embeddings;
  Int vocab_size = 0;
  Int make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  std::string position_embedding_type = "learned_absolute";
  double rotary_base = 10000;
  double rotary_percent = 1.0;
  bool rotary_interleaved = false;
  std::string normalization = "LayerNorm";
  double layernorm_epsilon = 1e-5;
  bool layernorm_zero_centered_gamma = false;
  bool apply_residual_connection_post_layernorm = false;
  /// Not Megatron fields: what Megatron Bridge's providers build. A norm on the outputs of attention and MLP before the
  /// residual (TERowParallelLinearLayerNorm of Gemma 2 and 3), with none before them in EXAONE 4
  /// (exaone4_layer_spec); embeddings times sqrt(hidden_size).
  bool pre_layernorm = true;
  bool post_layernorm = false;
  bool apply_embedding_scaling = false;
  std::optional<double> attn_logit_softcapping, final_logit_softcapping;  ///< Bridge's Gemma 2 provider
  OptInt attention_chunk_size;  ///< Llama 4's: keys of the query's own chunk; Hugging Face's name, Megatron has none
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool gated_linear_unit = false;
  std::optional<std::string> activation_func;         ///< default silu with gated_linear_unit, else gelu
  std::optional<double> activation_func_clamp_value;  ///< of the gate from above, of the linear half both ways
  double glu_linear_offset = 0;                       ///< added to the linear half
  bool qk_layernorm = false;
  bool scale_queries_by_position = false;  ///< before attention, as Bridge's Ministral 3 does; not Megatron's
  bool qk_layernorm_whole = false;  ///< over all heads together, as Bridge's OLMoE provider builds them; not Megatron's
  bool qk_l2_norm = false;
  bool attention_output_gate = false;
  Ints window_size;            ///< [left, right]; empty: full attention
  Ints window_attn_skip_freq;  ///< [n]: every n-th layer has full attention; several values: a pattern of 0 and 1
  Ints no_rope_freq;           ///< [n]: every n-th layer has no rotary embedding; several values: a pattern of 0 and 1
  std::string softmax_type = "vanilla";
  std::optional<double> softmax_scale;

  // Linear attention in some layers (experimental_attention_variant gated_delta_net)
  std::optional<std::string> experimental_attention_variant;
  Ints linear_attention_freq;  ///< [n]: every n-th layer has softmax attention; several values: 1 where it is linear
  Int linear_conv_kernel_dim = 4;
  Int linear_key_head_dim = 128, linear_value_head_dim = 128;
  Int linear_num_key_heads = 16, linear_num_value_heads = 32;

  // Hybrids: layers of one part each (M: Mamba-2, *: attention, -: MLP, E: experts), | between pipeline stages
  std::optional<std::string> hybrid_layer_pattern;
  Int mamba_state_dim = 128;
  Int mamba_head_dim = 64;
  Int mamba_num_groups = 8;
  OptInt mamba_num_heads;  ///< default 2 x hidden_size / mamba_head_dim

  // Mixture of experts
  OptInt num_moe_experts;
  Int moe_router_topk = 2;
  OptInt moe_ffn_hidden_size;  ///< default ffn_hidden_size
  Ints moe_layer_freq = {1};   ///< [n]: every n-th layer is MoE; several values: a pattern of 0 and 1, one a layer
  OptInt moe_shared_expert_intermediate_size;
  bool moe_shared_expert_gate = false;
  OptInt moe_router_num_groups, moe_router_group_topk, moe_router_topk_limited_devices;
  bool moe_router_pre_softmax = false;
  std::optional<double> moe_router_topk_scaling_factor;
  std::string moe_router_score_function = "softmax";
  bool moe_router_enable_expert_bias = false;
  OptInt moe_latent_size;

  // Multi-latent attention
  bool multi_latent_attention = false;
  OptInt q_lora_rank = 512;  ///< `none`: no low-rank query
  Int kv_lora_rank = 512;
  Int qk_head_dim = 128;
  Int qk_pos_emb_head_dim = 64;
  Int v_head_dim = 128;
  std::string rope_type = "yarn";
  bool mla_down_proj_fusion = false;

  // Multi-token prediction
  OptInt mtp_num_layers;
  std::optional<double> mtp_loss_scaling_factor = 0.1;
  bool mtp_use_repeated_layer = false;

  std::map<std::string, std::string> other;  ///< fields that Megatron knows and pipewright does not use
  friend bool operator==(const Model&, const Model&) = default;
};

/// TE operators with activation offload (Transformer Engine pull request 3128).
struct TeOpOffload {
  std::optional<bool> fc1_op, activation_op;  ///< none on both: the unmarked behaviour, all three tensors move
  friend bool operator==(const TeOpOffload&, const TeOpOffload&) = default;
};

/// Everything that Megatron can be told for a run.
struct Settings {
  // Parallelism
  Int tensor_model_parallel_size = 1;
  Int pipeline_model_parallel_size = 1;
  OptInt virtual_pipeline_model_parallel_size;
  Int context_parallel_size = 1;
  Int expert_model_parallel_size = 1;
  OptInt expert_tensor_parallel_size;  ///< default tensor_model_parallel_size
  bool sequence_parallel = false;
  Strings cp_comm_type;  ///< one for all layers or one a layer; empty: p2p
  Ints hierarchical_context_parallel_sizes;
  bool hybrid_context_parallel = false;
  OptInt num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage;
  std::optional<std::string> pipeline_model_parallel_layout;  ///< "Et*3|(tt|)*29,m|L"
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool mtp_standalone = false;
  bool mtp_detach_heads = false;

  // Batch
  Int micro_batch_size = 1;
  Int global_batch_size = 1;
  bool sft = false;          ///< sequences are packed (--sft; Bridge's enable_offline_packing)
  Strings sequence_lengths;  ///< not a Megatron field: of the data, "512*40" or "512+1024" (lengths.cpp)
  std::string packing_algorithm = "first_fit_shuffle";  ///< not a field of Megatron Core: Bridge's
  std::string pack_order = "shuffled";                  ///< not a Megatron field
  bool pad_cu_seqlens = false;                          ///< of Bridge's PackedSequenceSpecs

  // Pipeline transfers and schedule
  bool overlap_p2p_comm = false;
  std::optional<bool> batch_p2p_comm;  ///< default: not overlap_p2p_comm
  bool batch_p2p_sync = true;
  bool use_ring_exchange_p2p = false;
  bool overlap_p2p_comm_warmup_flush = false;
  OptInt microbatch_group_size_per_vp_stage;  ///< N; default pipeline_model_parallel_size
  bool deallocate_pipeline_outputs = true;    ///< false in the class; Megatron-LM and Bridge always set it
  bool variable_seq_lengths = false;
  OptInt num_microbatches_with_partial_activation_checkpoints;
  bool defer_embedding_wgrad_compute = false;
  Int wgrad_deferral_limit = 0;
  bool overlap_p2p_backward_on_comm_stream = false;       ///< pull request 4268 only
  Int overlap_p2p_wgrad_delayed_layer_number = 1;         ///< pull request 4268 only
  bool overlap_p2p_with_transformer_layer_wgrad = false;  ///< pull request 4268 only

  // Precision
  bool bf16 = false, fp16 = false;
  bool fp32_residual_connection = false;
  bool attention_softmax_in_fp32 = true;
  std::optional<std::string> fp8, fp8_recipe = "delayed";
  bool fp8_param = false;         ///< the model's parameters are FP8 (--fp8-param-gather sets both)
  bool fp8_param_gather = false;  ///< DistributedDataParallelConfig: parameters are gathered in FP8
  bool fp8_wgrad = true;
  bool fp8_output_proj = false;
  bool fp8_dot_product_attention = false;
  bool fp8_multi_head_attention = false;
  Int fp8_margin = 0, fp8_interval = 1, fp8_amax_history_len = 1;
  std::string fp8_amax_compute_algo = "most_recent";
  bool tp_only_amax_red = false;
  bool first_last_layers_bf16 = false;
  Int num_layers_at_start_in_bf16 = 1, num_layers_at_end_in_bf16 = 1;
  bool disable_parameter_transpose_cache = false;
  bool keep_fp8_transpose_cache = false;
  bool activation_func_fp8_input_store = false;
  bool reuse_grad_buf_for_mxfp8_param_ag = false;
  std::optional<std::string> fp4, fp4_recipe = "nvfp4";
  bool fp4_param = false, fp4_param_gather = false;
  Strings quant_recipe;  ///< PATTERN=RECIPE (quant_recipe.hpp); empty: all linear layers alike

  // Kernels
  std::string transformer_impl = "transformer_engine";
  std::string attention_backend = "auto";
  double hidden_dropout = 0.1, attention_dropout = 0.1;
  bool gradient_accumulation_fusion = false;
  bool use_fused_weighted_squared_relu = false;
  bool bias_activation_fusion = false, bias_dropout_fusion = false, masked_softmax_fusion = false;
  bool apply_rope_fusion = false, fused_single_qkv_rope = false, fused_residual_rmsnorm = false;
  bool persist_layer_norm = false, memory_efficient_layer_norm = false;
  bool use_transformer_engine_op_fuser = false;
  bool cross_entropy_loss_fusion = false;
  std::string cross_entropy_fusion_impl = "native";
  bool calculate_per_token_loss = false;
  bool deterministic_mode = false;
  bool use_te_rng_tracker = false;
  Int mlp_chunks_for_training = 1;

  // Tensor-parallel overlap
  bool tp_comm_overlap = false;
  bool tp_comm_bulk_wgrad = true, tp_comm_bulk_dgrad = true;
  bool tp_comm_overlap_ag = true, tp_comm_overlap_rs = true, tp_comm_overlap_rs_dgrad = false;
  bool tp_comm_split_ag = true, tp_comm_atomic_ag = false, tp_comm_split_rs = true, tp_comm_atomic_rs = false;
  bool tp_comm_overlap_disable_qkv = false, tp_comm_overlap_disable_fc1 = false;
  std::string tp_comm_bootstrap_backend = "nccl";

  // Recompute
  std::optional<std::string> recompute_granularity, recompute_method;
  OptInt recompute_num_layers;
  Strings recompute_modules;  ///< empty with granularity selective: [core_attn]; a stated [] resets the granularity
  bool distribute_saved_activations = false;
  bool moe_layer_recompute = false;

  // Offload
  bool cpu_offloading = false;
  Int cpu_offloading_num_layers = 0;
  bool cpu_offloading_activations = true, cpu_offloading_weights = false;
  bool cpu_offloading_double_buffering = false, cpu_offloading_retain_pinned_cpu_buffers = false;
  bool fine_grained_activation_offloading = false;
  Strings offload_modules;
  Int min_offloaded_tensor_size = 1048576;  ///< elements
  double activation_offload_fraction = 1.0;
  Int delta_offload_bytes_across_pp_ranks = 0;
  bool delay_offload_until_cuda_graph = false;
  OptInt fine_grained_offloading_max_inflight_offloads;
  TeOpOffload te_op_offload;  ///< not a Megatron field: TE pull request 3128

  // Expert-parallel overlap and delayed weight gradients
  bool overlap_moe_expert_parallel_comm = false;
  bool delay_wgrad_compute = false;
  bool overlap_dispatch_backward_with_experts_wgrad = false;
  bool ep_overlap_early_attn_memory_release = false;
  bool high_priority_a2a_comm_stream = false;

  // Mixture of experts
  std::string moe_token_dispatcher_type = "allgather";
  std::string moe_flex_dispatcher_backend = "deepep";
  bool moe_enable_deepep = false;
  bool moe_grouped_gemm = false;
  bool moe_permute_fusion = false, moe_router_fusion = false, moe_permute_fusion_into_hybridep = false;
  bool moe_hybridep_pad_uneven_dispatch_inputs = false;
  bool moe_apply_probs_on_input = false;
  bool moe_shared_expert_overlap = false;
  std::optional<std::string> moe_router_dtype;
  Strings moe_router_load_balancing_type = {"aux_loss"};
  std::vector<double> moe_aux_loss_coeff = {0.0};
  std::optional<double> moe_z_loss_coeff;
  bool moe_router_force_load_balancing = false;
  bool moe_router_padding_for_quantization = false, moe_router_padding_for_fp8 = false;
  std::optional<double> moe_expert_capacity_factor, moe_expert_rank_capacity_factor;
  OptInt moe_mlp_glu_interleave_size;
  bool moe_pad_expert_input_to_capacity = false, moe_token_dropping = false;
  std::string moe_token_drop_policy = "probs";
  OptInt moe_flex_dispatcher_num_sms, moe_deepep_num_sms, moe_hybridep_num_sms;
  bool moe_paged_stash = false;
  Int moe_paged_stash_page_size = 64;  ///< rows
  double moe_paged_stash_buffer_size_factor_cuda = 1.10, moe_paged_stash_buffer_size_factor_cpu = 0;
  double moe_load_imbalance = 1.0;  ///< not a Megatron field: busiest expert-parallel rank's tokens over the mean

  // CUDA graphs
  std::string cuda_graph_impl = "none";
  Strings cuda_graph_modules;  ///< empty: the whole layer ("full"); `cuda_graph_scope` is read as another name for it
  Int cuda_graph_warmup_steps = 3;
  bool cuda_graph_use_single_mempool = true, cuda_graph_retain_backward_graph = false;
  bool optimizer_cuda_graph = false;

  // Data parallel
  bool use_distributed_optimizer = false;
  Int num_distributed_optimizer_instances = 1;
  bool overlap_grad_reduce = false, overlap_param_gather = false, overlap_param_gather_with_optimizer_step = false;
  bool align_grad_reduce = true;  ///< training configuration: grad_sync_func is set with overlap_grad_reduce
  bool align_param_gather = false;
  bool grad_reduce_in_fp32 = false;  ///< false: main gradients and their reduction in the parameters' type
  OptInt bucket_size, num_buckets;   ///< elements; default max(40e6, 1e6 x DP)
  bool pad_buckets_for_high_nccl_busbw = false;
  bool average_in_collective = false;
  bool reduce_scatter_with_fp32_accumulation = false;
  bool gradient_reduce_div_fusion = true;
  bool nccl_ub = false;
  std::optional<bool> check_for_nan_in_loss_and_grad;  ///< default: what pretrain_gpt.py does, see checks_for_nan()
  /// The data loader's workers make a mask of every pair of tokens; default: see creates_attention_mask().
  std::optional<bool> create_attention_mask_in_dataloader;
  bool use_megatron_fsdp = false;
  std::string data_parallel_sharding_strategy = "no_shard";
  bool fsdp_double_buffer = false, init_model_with_meta_device = false;
  OptInt suggested_communication_unit_size;

  // Optimizer
  std::string optimizer = "adam";
  Int muon_num_ns_steps = 5;  ///< Newton-Schulz steps
  bool muon_split_qkv = true, muon_nesterov = false;
  double clip_grad = 1.0;
  bool log_num_zeros_in_grad = false, log_params_norm = false;
  bool use_precision_aware_optimizer = false;
  std::string main_grads_dtype = "fp32", main_params_dtype = "fp32", exp_avg_dtype = "fp32", exp_avg_sq_dtype = "fp32";
  bool store_param_remainders = true;
  bool optimizer_cpu_offload = false;
  double optimizer_offload_fraction = 0.0;
  bool overlap_cpu_optimizer_d2h_h2d = false, use_torch_optimizer_for_cpu_offload = false;
  bool pin_cpu_grads = true, pin_cpu_params = true;

  // Adapters: Megatron Bridge's LoRA, whose base model is frozen. Not Megatron fields.
  /// Of linear_qkv, linear_proj, linear_fc1, linear_fc2, of Mamba-2 in_proj and out_proj; empty: all parameters train.
  Strings lora_target_modules;
  Int lora_dim = 32;  ///< rank
  double lora_dropout = 0;

  std::map<std::string, std::string> other;  ///< fields that Megatron knows and pipewright does not use
  friend bool operator==(const Settings&, const Settings&) = default;
};

struct Cluster {
  std::string profile;
  std::vector<std::string> more_profiles;  ///< asked one after the other for what it lacks
  Int num_gpus = 0;
  Int gpus_per_node = 8;
  std::optional<Bytes> memory_bytes;  ///< default: the profile's
  /// Of the machine's host against the reference host of the profiles: 1.4 takes 1.4 times as long for the same code;
  /// default: the profile's (scalar host.time_factor), else 1.
  std::optional<double> host_time_factor;
  std::string link = "nvlink";  ///< inside a node
  std::string inter_node_link = "infiniband";
  /// Of the profile's GPU, 10 x major + minor; none: not looked up. No input: predict::name_gpu sets it.
  std::optional<int> compute_capability;
  OptInt nics_per_node;             ///< network cards; default: the link class's (one a GPU)
  std::optional<double> nic_gbits;  ///< of a card's line, Gb/s; default: the link class's
  OptInt nvlink_domain;             ///< GPUs joined by NVLink; default gpus_per_node
  /// Beyond the nodes. levels: GPUs below a switch of each height, ascending; oversubscription: by how much less such a
  /// switch carries upwards than those GPUs can send, level by level (the rest 1).
  struct Network {
    Ints levels;
    std::vector<double> oversubscription;
    std::optional<double> latency_us, bandwidth_gbytes_per_s;  ///< measured: of a step; of one card one way
    friend bool operator==(const Network&, const Network&) = default;
  } network;
  std::map<std::string, double> overrides;  ///< scalars of the profile ("host.cuda_launch_us")
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

struct Software {
  std::string megatron_core = "0.19.0";  ///< a version of versions.def; read by core_version()
  std::optional<std::string> megatron_bridge;
  std::string transformer_engine = "2.20.2";  ///< a version or pr-3128
  std::optional<std::string> torch, cuda, cudnn, nccl;
  bool process_group_device_id = false;  ///< one NCCL communicator and stream a group instead of one a pair
  friend bool operator==(const Software&, const Software&) = default;
};

/// Memory that must stay free: bytes, or percent of the limit.
struct Margin {
  Bytes bytes;
  double percent = 0;
  friend bool operator==(const Margin&, const Margin&) = default;
};

/// Which settings `plan` and `sweep` may change: "auto" or "keep".
struct Search {
  std::string recompute = "keep", offload = "keep", wgrad_delay = "keep", pipeline = "keep", layout = "keep",
              allocator = "keep", parallelism = "keep", microbatch = "keep";
  std::optional<Bytes> memory_limit;  ///< nullopt: `device`
  std::optional<Margin> memory_margin;
  std::string objective = "step_time";
  std::map<std::string, Strings> values;  ///< a field name with the values to try, as --set takes them
  friend bool operator==(const Search&, const Search&) = default;
};

/// Where fields were stated, by name ("settings.bf16"). Copies share what was stated before them: a search keeps
/// hundreds of thousands of scenarios that differ in a few fields.
class Positions {
 public:
  using Map = std::map<std::string, Position>;
  /// Null: not stated.
  const Position* find(const std::string& name) const {
    if (const auto at = own_.find(name); at != own_.end()) return &at->second;
    if (!shared_) return nullptr;
    const auto at = shared_->find(name);
    return at == shared_->end() ? nullptr : &at->second;
  }
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  /// To be written.
  Position& operator[](const std::string& name) {
    constexpr std::size_t most_own = 32;
    if (own_.size() == most_own) take(all());
    return own_[name];
  }
  /// A field of the model or the settings, where it was stated, was stated at `where`.
  void restate(const std::string& field, const Position& where) {
    for (const char* section : {"model.", "settings."})
      if (contains(section + field)) (*this)[section + field] = where;
  }
  void erase(const std::string& name) {
    erase_if([&](const auto& one) { return one.first == name; });
  }
  void erase_if(const auto& wanted) {
    Map left = all();
    std::erase_if(left, wanted);
    take(std::move(left));
  }
  void clear() { take({}); }
  Map all() const {
    Map all = own_;
    if (shared_) all.insert(shared_->begin(), shared_->end());
    return all;
  }

 private:
  void take(Map all) {
    shared_ = std::make_shared<const Map>(std::move(all));
    own_.clear();
  }
  std::shared_ptr<const Map> shared_;  ///< null: nothing
  Map own_;                            ///< stated since
};

struct Scenario {
  std::string name;  ///< stem of the file
  Position origin;
  Positions positions;  ///< for messages
  Model model;
  Settings settings;
  std::map<std::string, std::string> environment;
  Cluster cluster;
  Software software;
  Search search;
  Strings assumed;  ///< "moe_grouped_gemm: true": what the input could not say and was taken so
  Strings notes;    ///< on what the hf_config says and no field holds
  Strings ignore;   ///< names that are not modelled and let through (effects.hpp): no interval holds then
  std::optional<Measured> measured;
  /// Same content; where it came from does not count.
  friend bool operator==(const Scenario& a, const Scenario& b) {
    return a.model == b.model && a.settings == b.settings && a.environment == b.environment && a.cluster == b.cluster &&
           a.software == b.software && a.search == b.search && a.ignore == b.ignore && a.measured == b.measured;
  }
};

}  // namespace pipewright::scenario
