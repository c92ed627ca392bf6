// Values in force: what Megatron makes of a scenario where a field is left to it, and what follows from several.
#pragma once

#include <string>
#include <string_view>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

Int nvlink_domain(const Scenario&);        ///< GPUs joined by NVLink (or by a host's memory)
Int model_parallel_size(const Scenario&);  ///< TP x PP x CP
Int data_parallel_size(const Scenario&);   ///< num_gpus / (TP x PP x CP)
Int expert_tensor_parallel_size(const Scenario&);
Int stage_gpus(const Scenario&);     ///< GPUs that do the same share of a step's work: those of a pipeline stage
Int lockstep_gpus(const Scenario&);  ///< GPUs that wait for each other inside every layer: TP x CP, or ETP x EP if more
Int expert_data_parallel_size(const Scenario&);  ///< num_gpus / (ETP x EP x PP)
Int num_microbatches(const Scenario&);           ///< global_batch_size / (micro_batch_size x DP)
Int num_chunks(const Scenario&);                 ///< v: model chunks of a rank; 1 without interleaving
/// pretrain_gpt.py runs it, whose arguments.py changes settings: neither Bridge nor a program of one's own.
bool parsed_by_megatron(const Scenario&);
bool interleaved(const Scenario&);  ///< the interleaved schedule runs: PP > 1 and v is set
/// Every pipeline transfer is preceded by an exchange of shapes (variable_seq_lengths, MTP on another rank than the
/// last: p2p_communication.py, _communicate).
bool exchanges_shapes(const Scenario&);
/// Microbatches whose weight gradient of the output layer waits for the end of the step (wgrad_deferral_limit; its
/// buffers count calls of the output layer, of which multi-token prediction makes one a depth more).
Int deferred_head_wgrads(const Scenario&);
Int group_size(const Scenario&);  ///< N
bool batch_p2p_comm(const Scenario&);
Int bucket_size(const Scenario&);  ///< parameters of a bucket where gradients are reduced beside the backward pass
Strings recompute_modules(const Scenario&);  ///< in force with granularity selective, else empty
Int ffn_hidden_size(const Scenario&);
Int moe_hidden_size(const Scenario&);  ///< of the rows that experts work on: moe_latent_size, else hidden_size
Int moe_ffn_hidden_size(const Scenario&);
Int num_query_groups(const Scenario&);
Int kv_channels(const Scenario&);
std::string activation_func(const Scenario&);
Int padded_vocab_size(const Scenario&);         ///< vocab_size up to a multiple of make_vocab_size_divisible_by x TP
bool is_moe_layer(const Scenario&, Int layer);  ///< layer counted from 0 over the whole model
bool is_moe_mtp(const Scenario&);               ///< the layers of multi-token prediction have experts
bool has_moe_layer(const Scenario&);
/// Hybrids (hybrid_layer_pattern): a layer is one part of a transformer's or a Mamba-2 mixer.
bool is_hybrid(const Scenario&);
Strings hybrid_segments(const Scenario&);        ///< layers' letters between the pattern's pipes; none: not a hybrid
std::string hybrid_layers(const Scenario&);      ///< a letter for every layer
std::string hybrid_mtp_part(const Scenario&);    ///< of the pattern, from its first / on: every depth's
std::string hybrid_mtp_layers(const Scenario&);  ///< of one depth of multi-token prediction
bool is_mamba_layer(const Scenario&, Int layer);
bool has_mamba_layer(const Scenario&);
bool is_attention_layer(const Scenario&, Int layer);  ///< softmax or linear attention, alone or before an MLP
bool has_mlp(const Scenario&, Int layer);             ///< a dense MLP or experts, alone or behind attention
Int mamba_num_heads(const Scenario&);
/// Experts run as Transformer Engine's fused grouped MLP (use_transformer_engine_op_fuser, ops/fused/grouped_mlp.py).
bool fuses_grouped_mlp(const Scenario&);
/// Gradients of experts are reduced, and their optimizer is shared, over expert data parallel ranks.
bool experts_have_own_group(const Scenario&);
bool pads_for_quantization(const Scenario&);  ///< the router does, by either name of the setting
/// Keys that a query sees in layers with a sliding window (window_size), itself included; 0: none has one.
Int window_of(const Scenario&);
/// Keys that a query of this layer sees, itself included (window_size, window_attn_skip_freq); 0: all before it.
Int attention_window(const Scenario&, Int layer);
bool has_rotary_embedding(const Scenario&);
bool has_rotary_embedding(const Scenario&, Int layer);  ///< no_rope_freq; of a model whose positions are rotary
/// apply_rope_fusion, where the launchers leave it on: of other positions than plain rotary ones (GPT-OSS' YaRN) both
/// turn it off (Megatron-LM arguments.py:1573 of 0.19.0, Megatron Bridge utils/fusions.py:85, called by
/// GPTModelProvider).
bool fuses_rotary_embedding(const Scenario&);
/// Gated delta net instead of softmax attention (experimental_attention_variant, linear_attention_freq).
bool is_linear_attention_layer(const Scenario&, Int layer);
bool has_linear_attention(const Scenario&);
bool mtp_is_linear_attention(const Scenario&);  ///< the layers of multi-token prediction
bool has_sinks(const Scenario&);                ///< softmax_type learnable or off-by-one
/// The host reads every loss, and the norm of every bucket of gradients before it is reduced.
bool checks_for_nan(const Scenario&);
bool scales_loss(const Scenario&);  ///< the optimizer takes a scale out of the gradients again
/// Every microbatch brings a mask of batch x sequence x sequence bytes to the first and last stage (bool,
/// gpt_dataset.py, _get_ltor_masks_and_position_ids), which attention kernels do not read.
bool creates_attention_mask(const Scenario&);
bool exchanges_heads(const Scenario&);          ///< context parallelism by all-to-all in every layer (cp_comm_type a2a)
bool grouped_fused_attention(const Scenario&);  ///< neither latent nor unfused: has kernels with windows and sinks
bool has_dense_layer(const Scenario&);
bool te_layers(const Scenario&);       ///< transformer_impl transformer_engine
bool norms_fused(const Scenario&);     ///< the input norm lives in the qkv projection: TE without MLA
bool quantizes(const Scenario&);       ///< layers multiply in FP8 or NVFP4
bool attends_in_fp8(const Scenario&);  ///< fp8_dot_product_attention, where it is modelled
/// NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 where it acts (on fused attention alone), and where that is modelled.
bool asks_for_determinism(const Scenario&);
bool attends_deterministically(const Scenario&);
std::string variable(const Scenario&, const std::string& name, const std::string& otherwise = {});  ///< environment

/// Does the scenario let this name through (`ignore:`, --ignore)?
bool ignores(const Scenario&, std::string_view name);

/// What a model chunk holds. Layers are counted from 0 over the whole model (reference 1.9).
struct Stage {
  Ints layers;
  bool embedding = false, loss = false;
  Int mtp_layers = 0;
};
Stage stage(const Scenario&, Int pp_rank, Int chunk);
Ints layers_of(const Scenario&, Int pp_rank, Int chunk);

/// Which of a layer's linear layers have a LoRA adapter: Bridge wraps modules by name (lora_target_modules).
struct AdaptedLinears {
  /// linear_qkv and linear_proj, of Mamba-2 in_proj and out_proj; of latent attention any projection before the kernel.
  bool mixer_in = false, mixer_out = false;
  bool fc1 = false, fc2 = false;
  bool mixer() const { return mixer_in || mixer_out; }
  bool mlp() const { return fc1 || fc2; }
};
AdaptedLinears adapted_linears(const Scenario&, Int layer);
/// Latent attention's projections of queries, down or up have adapters.
bool adapts_latent(const Scenario&);
/// Of the stage that embeds, the first layer that has one. What stands before it needs no gradient.
OptInt first_adapted_layer(const Scenario&);

}  // namespace pipewright::scenario
