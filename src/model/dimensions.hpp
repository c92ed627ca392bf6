// Sizes of one rank's share of the model, and the choices that decide which kernels and tensors a layer has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/modules.hpp"
#include "pipewright/network.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/context.hpp"
#include "pipewright/scenario/types.hpp"
#include "pipewright/userbuffers.hpp"
#include "precision.hpp"

namespace pipewright::model {

using Int = scenario::Int;
using scenario::Offload;
using scenario::Recompute;

/// Of unfused attention: scale, mask and softmax in one kernel; or one by one, in fp32 or in the scores' 16 bits.
enum class Softmax : std::uint8_t { fused, fp32, half };

enum class Dispatch : std::uint8_t { alltoall, allgather, flex };

/// Between the ranks of a group, which stand `stride` GPUs apart.
struct Way {
  std::string link;
  Int stride = 1;
  bool leaves = false;      ///< its NVLink domain
  Int fewest_together = 0;  ///< profile::Exchange
  std::vector<Int> fewest_below;
};
/// Of all groups of `size` ranks, `stride` GPUs apart, the one that is spread the most.
Way way_of(const scenario::Scenario& s, Int stride, Int size);

/// Among ranks of a group, without its kind and bytes.
inline profile::Exchange exchange_among(Int ranks, const Way& way) {
  profile::Exchange exchange;
  exchange.ranks = ranks;
  exchange.stride = way.stride;
  exchange.fewest_together = way.fewest_together;
  exchange.fewest_below = way.fewest_below;
  return exchange;
}

/// Mixture-of-experts layers; `experts` = 0: there are none.
struct MoeDimensions {
  Int experts = 0, local = 0, topk = 0;  ///< local: experts of an expert-parallel rank
  Int ep = 1, etp = 1, edp = 1;          ///< edp: over which experts' gradients are reduced
  Int f = 0;                             ///< FFN width of an expert on an expert-tensor-parallel rank
  Int width = 0;                         ///< of the rows that are dispatched: h, or moe_latent_size
  Int routed = 0;                        ///< rows that a rank sends: its tokens x topk
  double kept = 1;                       ///< of the choices, those that token drop keeps
  Int arrived = 0;                       ///< rows that reach it by all-to-all, the busiest rank's
  Int received = 0;                      ///< rows that its experts compute: those of all expert-tensor-parallel ranks
  Int shared = 0;                        ///< shared experts' FFN width on a tensor-parallel rank
  Int padded = 0;                        ///< received rows with what FP8 adds to every expert
  double arrival_spread = 0;             ///< of received rows from microbatch to microbatch: deviation over mean
  double row_spread = 0;                 ///< the same of padded ones
  Int off_tiles = 0;                     ///< local experts whose padded rows are no multiple of tile_of_casts, expected
  Int held = 0;                          ///< rows of the tensors that hold them: received, or a fixed budget
  Int expected = 0;                      ///< of such a budget, with balanced routing (paged stash)
  Int router_bytes = 4;                  ///< of an element of logits and probabilities
  /// Experts' probabilities are rows' type: flex dispatchers send them in fp32 (token_dispatcher.py,
  /// token_probs.float()).
  bool weighs_in_16_bits() const { return router_bytes == 2 && dispatch != Dispatch::flex; }
  Dispatch dispatch = Dispatch::alltoall;
  // Dispatchers that send a token once to each GPU with one of its experts (flex).
  profile::Exchange::Library library = profile::Exchange::Library::nccl;
  Int copies = 0;                                ///< rows that reach a rank, each token once
  double domains_a_token = 1, gpus_a_token = 1;  ///< to which a token goes on the average
  double busiest = 1;                            ///< copies that the busiest rank receives, over the mean
  Int multiprocessors = 0;                       ///< that the dispatcher's kernels hold
  bool agrees_on_tokens = false;                 ///< moe_hybridep_pad_uneven_dispatch_inputs
  bool own_group = false;   ///< gradients are reduced over expert data parallel ranks (TE's `allreduce` attribute)
  bool fixed_rows = false;  ///< token drop, padded to capacity: no rank tells another how much it sends
  bool drops = false;       ///< moe_expert_capacity_factor
  bool budget = false;      ///< moe_expert_rank_capacity_factor: the host waits for no counts
  bool fused = false;       ///< TE's fused grouped MLP
  bool latent = false;      ///< moe_latent_size
  bool stashes = false;     ///< moe_paged_stash
  bool shared_gate = false, shared_overlap = false, permute_fusion = false, router_fusion = false;
  bool sigmoid = false, grouped_topk = false, scaled = false, expert_bias = false, aux_loss = false, z_loss = false;
  bool random_logits = false;
  bool pre_softmax = false;                     ///< moe_router_pre_softmax
  bool softplus = false;                        ///< moe_router_score_function sqrtsoftplus
  bool probs_on_input = false;                  ///< moe_apply_probs_on_input
  Way ep_link, etp_link, edp_link, group_link;  ///< group: expert-tensor and expert parallel together

  Int fc1_out(bool gated) const { return gated ? 2 * f : f; }
};

/// Ranks of the adapters beside a layer's linear layers; 0: none.
struct Lora {
  Int qkv = 0, proj = 0, fc1 = 0, fc2 = 0;                  ///< fc1, fc2: also one beside all of a rank's experts
  Int in_proj = 0, out_proj = 0;                            ///< of Mamba-2 mixers and gated delta nets
  Int q = 0, q_down = 0, q_up = 0, kv_down = 0, kv_up = 0;  ///< of latent attention; q: without q_lora_rank
  bool syncs_experts = false;  ///< those beside experts: expert-parallel ranks sum their gradients (Bridge 0.7)
  Int latent() const { return q + q_down + q_up + kv_down + kv_up; }
  bool any() const { return qkv + proj + fc1 + fc2 + in_proj + out_proj + latent() > 0; }
};

/// Gated delta net layers, of a tensor-parallel rank; no heads: there are none.
struct LinearAttention {
  Int key_heads = 0, value_heads = 0, head_dim = 0;
  Int conv = 0;  ///< width of the causal convolution
  Int keys() const { return key_heads * head_dim; }
  Int values() const { return value_heads * head_dim; }
  Int convolved() const { return 2 * keys() + values(); }
  Int projected() const { return convolved() + values() + 2 * value_heads; }  ///< with gate, beta and alpha
};

/// Mamba-2 mixers, of a tensor-parallel rank; no heads: there are none.
struct Mamba {
  Int heads = 0, groups = 0, head_dim = 0, state = 0;
  static constexpr Int conv = 4, chunk = 128;  ///< mamba_mixer.py: d_conv, chunk_size
  Int inner() const { return heads * head_dim; }
  Int convolved() const { return inner() + 2 * groups * state; }              ///< x, B, C
  Int projected() const { return 2 * inner() + 2 * groups * state + heads; }  ///< z, x, B, C, dt
  /// Of a context-parallel rank: its share of the heads, and of the groups or one of them.
  Mamba of_context_rank(Int cp) const { return {heads / cp, std::max<Int>(1, groups / cp), head_dim, state}; }
  /// Parts of in_proj's output: of all heads, and what is exchanged for a context-parallel rank's share of it.
  struct Part {
    std::string name;
    Int own, sent;
  };
  std::vector<Part> exchanged(const Mamba& all, Int cp) const {
    const Int of_groups = all.groups * all.state, repeated = cp * groups * state;
    return {{"z", all.inner(), all.inner()},
            {"x", all.inner(), all.inner()},
            {"B", of_groups, repeated},
            {"C", of_groups, repeated},
            {"dt", all.heads, all.heads}};
  }
};

/// What attention of packed sequences is timed as: `batch` sequences of `length` tokens (of a context-parallel rank),
/// whose work times `share` is theirs, and how many more it lays out: than for these, than the fewest (32).
struct EqualSequences {
  Int batch = 1, length = 1;
  double share = 1;
  Int empty = 0, beyond_fewest = 0;
};

/// Microbatches whose packed sequences are timed alike.
struct PackedRows {
  std::vector<std::pair<std::int32_t, std::int32_t>> microbatches;  ///< from, before
  EqualSequences attention, windowed;  ///< of layers whose queries see all before them, and the model's window
  Int empty_blocks = 0;                ///< of the fused rotary embedding
  Int sequences = 1;                   ///< of a row, for PackedRope::by_sequence
  Int slices = 1;                      ///< of a row by cu_seqlens, empty ones too
  Int longest = 1;                     ///< of all rows, in tokens of a context-parallel rank
};

/// How queries and keys of packed rows are rotated where the rotary embedding is not fused (rope_utils.py,
/// _apply_rotary_pos_emb_thd).
enum class PackedRope : std::uint8_t {
  gathered,     ///< until 0.18: the host reads the lengths twice and gathers every token's angles
  by_sequence,  ///< 0.19: the host reads them twice and rotates one sequence after the other into the row
  indexed       ///< dev, main: every token's angles by indices that are made on the GPU
};

/// What Transformer Engine's CUDA graphs hold of a layer (cuda_graph_modules).
struct Graphs {
  bool attention = false, mlp = false;      ///< mlp: of dense layers
  bool mamba = false;                       ///< a hybrid's mixers
  bool experts = false;                     ///< a whole mixture
  bool router = false, preprocess = false;  ///< norm, shared experts and router of a mixture; its permutation, too
  bool keeps_moe_norm = false;              ///< returns the norm before a mixture, which cannot be recomputed then
  bool clones_gradients = false;            ///< parameters' gradients leave as clones: TE 2.19 (pull request 2937)
  bool own = false;                         ///< Megatron's own (local): whole layers, each reads what the last put out
  bool any() const { return attention || mlp || mamba || experts || router; }
};

struct Dimensions {
  Dimensions(const scenario::Scenario& scenario, const profile::Device& device);

  profile::Device gpu;

  Int b, s;           ///< micro batch; sequence of one context-parallel rank
  Int tokens, local;  ///< b*s; tokens/t with sequence parallelism, else the same
  Int h, f, q, kv;    ///< hidden; FFN, query and key widths of a tensor-parallel rank
  Int heads, groups, head_dim;
  Int group_ranks = 1;  ///< tensor-parallel ranks that share a group of keys and values
  Int vocab;            ///< of a tensor-parallel rank
  Int t, cp, dp, pp;    ///< dp: data-parallel size without context parallelism
  bool sp, gated, rms_norm, bias, qkv_bias, qk_norm, rope, fused_rope;
  bool mrope = false;  ///< every row's tokens have angles of their own, of three positions each
  PackedRope packed_rope;
  bool rotary_interleaved = false;
  double rotary_percent = 1;
  Int rotated_width(Int of_head) const { return static_cast<Int>(static_cast<double>(of_head) * rotary_percent); }
  double rotation;                               ///< time of the fused rotation over that of whole heads by halves
  bool fused_qkv_rope = false;                   ///< fused_single_qkv_rope: one kernel splits and rotates
  bool cudnn_norm_forward, cudnn_norm_backward;  ///< NVTE_NORM_{FWD,BWD}_USE_CUDNN
  bool fused_gradients;                          ///< gradient_accumulation_fusion
  bool fp8_attention = false;                    ///< fp8_dot_product_attention: of layers in FP8 (sdpa_figures.hpp)
  bool fp8_head = false;  ///< fp8_output_proj: the output layer's products in MXFP8, its parameter in 16 bits
  bool deterministic_attention = false;  ///< NVTE_ALLOW_NONDETERMINISTIC_ALGO=0: in backward (sdpa_figures.hpp)
  bool fsdp = false;                     ///< use_megatron_fsdp: parameters, gradients and states are shared (fsdp.hpp)
  bool fsdp_scales = false;   ///< bf16 gradients are divided before they are reduced (gradient_reduce_preprocessing)
  bool fsdp_buffers = false;  ///< fsdp_double_buffer: two units' buffers for gathers, two for gradients, for good
  bool fsdp_keeps_transposes = false;  ///< keep_fp8_transpose_cache: FP8 parameters' transposes stay on every rank
  Int gradient_bytes;                  ///< of an element of the main gradient buffer: 4 or 2
  double hidden_dropout, attention_dropout;
  Int mask_bytes = 0;   ///< of a microbatch's mask from the data loader, of which a rank keeps 1 / cp; 0: none
  bool checks_for_nan;  ///< the host reads every loss and the norm of every bucket of gradients
  bool norms_q;         ///< latent attention: queries projected without q_lora_rank have a norm in front, too
  // Multi-latent attention: q and kv are then the widths of all queries and keys with their rotated parts.
  bool mla = false;
  Int q_rank = 0, kv_rank = 0;              ///< widths of compressed queries (0: none) and of keys with values
  Int qk_nope = 0, qk_rope = 0, v_dim = 0;  ///< of a head: unrotated and rotated part of q and k; value
  bool fused_down = false;                  ///< mla_down_proj_fusion
  bool splits_down = false;                 ///< down projections are column-parallel, else whole on every rank
  Int mtp_layers = 0;
  bool fp16 = false;
  bool one_table = false;          ///< the output layer multiplies by the embedding's weight on the same rank
  bool local_spec = false;         ///< transformer_impl local
  bool separate_norms = false;     ///< no norm is part of a linear layer: local spec, or none
  bool unfused_attention = false;  ///< scores and probabilities are tensors
  bool output_gate = false;        ///< attention_output_gate: the fused projection has a gate beside every query
  bool qk_norm_whole = false;      ///< one norm over all heads of a token
  bool qk_norm_eager = false;      ///< ... in eager operations, which has fewer key heads: MiniMax-M2's
  bool qk_l2_norm = false;         ///< queries and keys are normalised without weights, after the rotation
  bool pre_norms = true;           ///< norms before attention and MLP (pre_layernorm)
  bool post_norms = false;         ///< norms on the outputs of attention and MLP (post_layernorm)
  bool scales_queries = false;     ///< scale_queries_by_position
  bool scales_embeddings = false;  ///< apply_embedding_scaling
  bool caps_scores = false;        ///< attn_logit_softcapping: FlexAttention instead of TE's attention
  bool caps_logits = false;        ///< final_logit_softcapping
  std::vector<PackedRows> packed;  ///< packed sequences; empty: every sequence fills its row
  scenario::ContextSharing context;
  /// FlashAttention 2 instead of cuDNN: deterministic kernels with dropout on Blackwell (TE common/fused_attn/
  /// fused_attn.cpp, "determinism on Blackwell").
  bool flash2 = false;
  bool sinks = false;  ///< a score of every head that no key has (softmax_type)
  Softmax softmax = Softmax::fused;
  bool fused_activation = true;  ///< bias_activation_fusion
  bool fused_relu = false;       ///< use_fused_weighted_squared_relu
  bool clamped = false;          ///< activation_func_clamp_value
  bool fused_residual = true;    ///< a bias is added together with the residual (bias_dropout_fusion)
  std::string activation;        ///< kernel family: "swiglu", "gelu", ...
  std::string gate;              ///< of a gate whose activation is not fused: "gelu", "fast_gelu", "glu.gate"
  Way tp_link, cp_link, dp_link;
  Way heads_link, ring_link;  ///< levels of a2a+p2p; of a2a or p2p alone the one that is used
  Precision precision;        ///< of all linear layers that `by_module` does not name
  std::map<std::pair<bool, std::string>, Precision> by_module;  ///< quant_recipe: of multi-token prediction, name
  bool fp8_parameters = false;            ///< linear weights are stored as the recipe quantizes them (fp8_param_gather)
  bool fp8_cached_weights = true;         ///< quantized copies of weights live from the first microbatch on
  std::int32_t transposing_forwards = 1;  ///< of a step: microbatches whose forward transposes FP8 parameters
  Graphs graphs;
  bool tp_overlap = false;  ///< tp_comm_overlap
  OverlapMultiprocessors overlap_multiprocessors;
  LeftFree left;
  /// Share of the multiprocessors of a product that does without so many.
  double share_without(Int held) const {
    const auto all = static_cast<double>(gpu.multiprocessors);
    return (all - static_cast<double>(held)) / all;
  }
  std::int32_t deferred_head_wgrads = 0;  ///< microbatches (defer_embedding_wgrad_compute, wgrad_deferral_limit)
  bool computes_head_wgrads = true;       ///< others compute it within their backward
  bool ep_overlap = false;                ///< overlap_moe_expert_parallel_comm
  bool delayed_wgrad = false;             ///< delay_wgrad_compute
  MoeDimensions moe;
  LinearAttention linear;
  Mamba mamba;
  Lora lora;
  bool muon = false;        ///< optimizer muon or dist_muon
  bool muon_whole = false;  ///< with the distributed optimizer: every matrix is one data-parallel rank's (layer-wise)
  bool muon_dealt = false;  ///< dist_muon: parameters are dealt to data-parallel ranks, buffers are whole on each
  bool muon_splits_qkv = true, muon_nesterov = false;
  Int muon_steps = 5;
  bool whole_layer_offload = false;   ///< cpu_offloading of at least one layer's activations
  std::vector<Recompute> recomputed;  ///< modules in force
  std::vector<Offload> offloaded;     ///< of fine_grained_activation_offloading; empty without it
  Int smallest_offload = 0;           ///< elements; min_offloaded_tensor_size
  scenario::TeOpOffload op_offload;   ///< of a Transformer Engine that has operator markers

  /// Of a linear layer by its module's name within a layer, as Megatron has it ("self_attention.linear_qkv").
  Precision precision_of(LayerPrecision layer, const std::string& module) const {
    if (!layer.quantized) return {};
    const auto found = by_module.find({layer.mtp, module});
    return found == by_module.end() ? precision : found->second;
  }
  /// Layers of multi-token prediction are always in the model's own context.
  LayerPrecision precision_of_mtp() const { return {precision.quantized(), true}; }
  bool frozen() const { return lora.any(); }  ///< the base model's parameters have no gradient
  bool recomputes(Recompute module) const { return std::ranges::find(recomputed, module) != recomputed.end(); }
  bool offloads(Offload module) const { return std::ranges::find(offloaded, module) != offloaded.end(); }
  Int ffn_in() const { return gated ? 2 * f : f; }  ///< width of fc1's output
  /// Width that this rank's heads and groups have in the fused projection's output, and its part of the projection.
  Int qkv() const { return (output_gate ? 2 : 1) * q * group_ranks + 2 * kv; }
  Int qkv_part() const { return qkv() / group_ranks; }
  Int v_width() const { return mla ? heads * v_dim : kv; }  ///< of all values; with MLA also of attention's output
  Int o_width() const { return heads * (mla ? v_dim : head_dim); }
  Int kv_up() const { return heads * (qk_nope + v_dim); }
  Int boundary_bytes() const { return 2 * local * h; }

 private:
  void set_latent(const scenario::Scenario& scenario);
  void set_linear_attention(const scenario::Scenario& scenario);
  void set_implementation(const scenario::Scenario& scenario);
  void set_workspace(const scenario::Scenario& scenario);
};

}  // namespace pipewright::model
