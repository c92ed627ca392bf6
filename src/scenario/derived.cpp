// Values in force: what Megatron fills in for fields that were left None, and what follows from several fields.
#include "pipewright/scenario/derived.hpp"

#include <algorithm>

#include "layout.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/modules.hpp"
#include "pipewright/scenario/context.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/packing.hpp"
#include "pipewright/versions.hpp"

namespace pipewright::scenario {
Int nvlink_domain(const Scenario& s) { return s.cluster.nvlink_domain.value_or(s.cluster.gpus_per_node); }

Int model_parallel_size(const Scenario& s) {
  return s.settings.tensor_model_parallel_size * s.settings.pipeline_model_parallel_size *
         s.settings.context_parallel_size;
}

Int data_parallel_size(const Scenario& s) { return s.cluster.num_gpus / model_parallel_size(s); }

Int expert_tensor_parallel_size(const Scenario& s) {
  return s.settings.expert_tensor_parallel_size.value_or(s.settings.tensor_model_parallel_size);
}

Int lockstep_gpus(const Scenario& s) {
  const Int dense = s.settings.tensor_model_parallel_size * s.settings.context_parallel_size;
  if (!s.model.num_moe_experts) return dense;
  return std::max(dense, expert_tensor_parallel_size(s) * s.settings.expert_model_parallel_size);
}

Int stage_gpus(const Scenario& s) { return s.cluster.num_gpus / s.settings.pipeline_model_parallel_size; }

Int expert_data_parallel_size(const Scenario& s) {
  return s.cluster.num_gpus / (expert_tensor_parallel_size(s) * s.settings.expert_model_parallel_size *
                               s.settings.pipeline_model_parallel_size);
}

// extensions/transformer_engine.py, use_expert_pgs: until 0.18 expert parallelism alone decided. Megatron-FSDP goes by
// their names (param_and_grad_buffer.py, is_expert_parameter).
bool experts_have_own_group(const Scenario& s) {
  if (!s.model.num_moe_experts) return false;
  if (s.settings.use_megatron_fsdp) return true;
  const bool asks_tensor = from(Version::v0_19).except(Version::dev).has(core_version(s.software));
  return s.settings.expert_model_parallel_size > 1 ||
         (asks_tensor && expert_tensor_parallel_size(s) != s.settings.tensor_model_parallel_size);
}

Int num_microbatches(const Scenario& s) {
  return s.settings.global_batch_size / std::max<Int>(1, s.settings.micro_batch_size * data_parallel_size(s));
}

Int num_chunks(const Scenario& s) {
  const Settings& c = s.settings;
  if (c.pipeline_model_parallel_size == 1) return 1;
  if (c.virtual_pipeline_model_parallel_size) return *c.virtual_pipeline_model_parallel_size;
  if (is_hybrid(s))
    return std::max<Int>(1, static_cast<Int>(hybrid_segments(s).size()) / c.pipeline_model_parallel_size);
  if (!c.pipeline_model_parallel_layout) return 1;
  return static_cast<Int>(unrolled_layout(s).size()) / c.pipeline_model_parallel_size;
}

bool parsed_by_megatron(const Scenario& s) {
  return !s.software.megatron_bridge && !s.software.process_group_device_id;
}

bool interleaved(const Scenario& s) {
  const Settings& c = s.settings;
  if (c.pipeline_model_parallel_size == 1) return false;
  // One chunk: Megatron-LM's arguments.py makes it none; Bridge and programs of one's own run the interleaved schedule.
  return num_chunks(s) > 1 || (c.virtual_pipeline_model_parallel_size.has_value() && !parsed_by_megatron(s));
}

// A layout decides over mtp_standalone (transformer_config.py, validate_layer_layout).
bool exchanges_shapes(const Scenario& s) {
  if (s.settings.pipeline_model_parallel_size == 1) return false;
  if (s.settings.variable_seq_lengths) return true;
  if (!s.settings.pipeline_model_parallel_layout) return s.settings.mtp_standalone;
  const auto p = static_cast<std::size_t>(s.settings.pipeline_model_parallel_size);
  const Strings& stages = unrolled_layout(s);
  for (std::size_t i = 0; i < stages.size(); ++i)
    if (i % p + 1 < p && stages[i].find('m') != std::string::npos) return true;
  return false;
}

Int group_size(const Scenario& s) {
  return s.settings.microbatch_group_size_per_vp_stage.value_or(s.settings.pipeline_model_parallel_size);
}

// megatron/training/training.py, resolve_ddp_bucket_size: the group is data and context parallel ranks.
Int bucket_size(const Scenario& s) {
  return s.settings.bucket_size.value_or(
      std::max<Int>(40'000'000, 1'000'000 * data_parallel_size(s) * s.settings.context_parallel_size));
}

// tensor_parallel/layers.py (core_r0.19.0), LinearWithGradAccumulationAndAsyncCommunication.backward: a gradient waits
// while the buffer holds fewer than wgrad_deferral_limit of them (0: always), else it is computed at once.
Int deferred_head_wgrads(const Scenario& s) {
  const Settings& c = s.settings;
  if (!c.defer_embedding_wgrad_compute || c.pipeline_model_parallel_size == 1 || !c.gradient_accumulation_fusion)
    return 0;
  const Int all = num_microbatches(s), calls = 1 + s.model.mtp_num_layers.value_or(0);
  return c.wgrad_deferral_limit > 0 ? std::min(all, c.wgrad_deferral_limit / calls) : all;
}

bool batch_p2p_comm(const Scenario& s) { return s.settings.batch_p2p_comm.value_or(!s.settings.overlap_p2p_comm); }

Strings recompute_modules(const Scenario& s) {
  const bool older_flag = s.settings.moe_layer_recompute && s.settings.recompute_granularity != "full";
  if (s.settings.recompute_granularity != "selective" && !older_flag) return {};
  Strings modules = s.settings.recompute_modules;
  if (modules.empty()) modules.emplace_back(name(Recompute::core_attn));
  if (older_flag && !lists(modules, Recompute::moe)) modules.emplace_back(name(Recompute::moe));
  return modules;
}

Int ffn_hidden_size(const Scenario& s) { return s.model.ffn_hidden_size.value_or(4 * s.model.hidden_size); }

Int moe_hidden_size(const Scenario& s) { return s.model.moe_latent_size.value_or(s.model.hidden_size); }

Int moe_ffn_hidden_size(const Scenario& s) { return s.model.moe_ffn_hidden_size.value_or(ffn_hidden_size(s)); }

Int num_query_groups(const Scenario& s) { return s.model.num_query_groups.value_or(s.model.num_attention_heads); }

Int kv_channels(const Scenario& s) {
  return s.model.kv_channels.value_or(s.model.hidden_size / std::max<Int>(1, s.model.num_attention_heads));
}

std::string activation_func(const Scenario& s) {
  return s.model.activation_func.value_or(s.model.gated_linear_unit ? "silu" : "gelu");
}

Int padded_vocab_size(const Scenario& s) {
  const Int multiple = s.model.make_vocab_size_divisible_by * s.settings.tensor_model_parallel_size;
  return (s.model.vocab_size + multiple - 1) / multiple * multiple;
}

bool is_hybrid(const Scenario& s) { return s.model.hybrid_layer_pattern.has_value(); }

// models/hybrid/hybrid_layer_allocation.py of core_r0.19.0, parse_hybrid_pattern: "/" begins multi-token prediction.
Strings hybrid_segments(const Scenario& s) {
  if (!is_hybrid(s)) return {};
  const std::string& pattern = *s.model.hybrid_layer_pattern;
  Strings segments(1);
  for (const char letter : pattern.substr(0, pattern.find('/'))) {
    if (letter == '|')
      segments.emplace_back();
    else
      segments.back() += letter;
  }
  return segments;
}

std::string hybrid_layers(const Scenario& s) {
  std::string all;
  for (const auto& segment : hybrid_segments(s)) all += segment;
  return all;
}

std::string hybrid_mtp_part(const Scenario& s) {
  if (!is_hybrid(s)) return {};
  const std::string& pattern = *s.model.hybrid_layer_pattern;
  const auto begin = pattern.find('/');
  return begin == std::string::npos ? "" : pattern.substr(begin);
}

std::string hybrid_mtp_layers(const Scenario& s) {
  const std::string part = hybrid_mtp_part(s);
  return part.empty() ? part : part.substr(1, part.find('/', 1) - 1);
}

namespace {

/// The layer's letter, if it is one of these.
bool hybrid_layer_is(const Scenario& s, Int layer, std::string_view letters) {
  const std::string& pattern = *s.model.hybrid_layer_pattern;
  for (const char letter : pattern) {
    if (letter == '/') break;
    if (letter != '|' && layer-- == 0) return letters.find(letter) != std::string_view::npos;
  }
  return false;
}

}  // namespace

bool is_mamba_layer(const Scenario& s, Int layer) { return is_hybrid(s) && hybrid_layer_is(s, layer, "M"); }
bool has_mamba_layer(const Scenario& s) {
  return is_hybrid(s) && (hybrid_layers(s) + hybrid_mtp_layers(s)).find('M') != std::string::npos;
}
bool is_attention_layer(const Scenario& s, Int layer) { return !is_hybrid(s) || hybrid_layer_is(s, layer, "*"); }
bool has_mlp(const Scenario& s, Int layer) { return !is_hybrid(s) || hybrid_layer_is(s, layer, "-E"); }

// mamba_mixer.py: the inner width is twice the hidden one unless the number of heads is given.
Int mamba_num_heads(const Scenario& s) {
  return s.model.mamba_num_heads.value_or(2 * s.model.hidden_size / std::max<Int>(1, s.model.mamba_head_dim));
}

bool is_moe_layer(const Scenario& s, Int layer) {
  if (!s.model.num_moe_experts) return false;
  if (is_hybrid(s)) return hybrid_layer_is(s, layer, "E");
  const Ints& frequency = s.model.moe_layer_freq;
  if (frequency.empty()) return true;
  if (frequency.size() == 1) return frequency[0] > 0 && layer % frequency[0] == 0;
  return static_cast<std::size_t>(layer) < frequency.size() && frequency[static_cast<std::size_t>(layer)] != 0;
}

// Megatron-LM's gpt_builders.py: as the last decoder layer; where no decoder layer stands beside them, with experts
// whatever moe_layer_freq says (_get_transformer_layer_spec). Bridge's gpt_provider.py: always as the last one.
bool is_moe_mtp(const Scenario& s) {
  if (is_hybrid(s)) return hybrid_mtp_layers(s).find('E') != std::string::npos;
  if (is_moe_layer(s, s.model.num_layers - 1)) return true;
  if (!s.model.num_moe_experts || !s.settings.pipeline_model_parallel_layout || !parsed_by_megatron(s)) return false;
  return std::ranges::any_of(unrolled_layout(s), [](const std::string& stage) {
    return stage.find('m') != std::string::npos && stage.find('t') == std::string::npos;
  });
}

Int window_of(const Scenario& s) {
  const Ints& window = s.model.window_size;
  return window.empty() || window[0] < 0 ? 0 : window[0] + 1;
}

// transformer/utils.py is_layer_window_attention, layers counted from 1; TE takes [left, right] beside the query
// itself.
Int attention_window(const Scenario& s, Int layer) {
  const Int window = window_of(s);
  const Ints& pattern = s.model.window_attn_skip_freq;
  if (!grouped_fused_attention(s) || (s.settings.context_parallel_size > 1 && !exchanges_heads(s))) return 0;
  if (window >= s.model.seq_length) return 0;
  const auto own = static_cast<std::size_t>(layer);
  const bool windowed = pattern.empty()       ? true
                        : pattern.size() == 1 ? pattern[0] > 0 && (layer + 1) % pattern[0] != 0
                                              : own < pattern.size() && pattern[own] != 0;
  return windowed ? window : 0;
}

bool fuses_rotary_embedding(const Scenario& s) {
  return s.settings.apply_rope_fusion && s.model.position_embedding_type == "rope";
}

bool has_rotary_embedding(const Scenario& s) {
  const std::string& position = s.model.position_embedding_type;
  return position == "rope" || position == "yarn" || position == "mrope";
}

// transformer_config.py: no_rope_freq n stands for n - 1 rotated layers and one that is not, over and over.
bool has_rotary_embedding(const Scenario& s, Int layer) {
  if (!has_rotary_embedding(s)) return false;
  const Ints& without = s.model.no_rope_freq;
  if (without.empty()) return true;
  if (without.size() == 1) return without[0] == 0 || (layer + 1) % without[0] != 0;
  return static_cast<std::size_t>(layer) >= without.size() || without[static_cast<std::size_t>(layer)] == 0;
}

// experimental_attention_variant_module_specs.py, get_linear_attention_pattern.
bool is_linear_attention_layer(const Scenario& s, Int layer) {
  if (is_hybrid(s)) return false;
  if (s.model.experimental_attention_variant.value_or("") != "gated_delta_net") return false;
  const Ints& frequency = s.model.linear_attention_freq;
  if (frequency.size() == 1) return frequency[0] > 0 && (layer + 1) % frequency[0] != 0;
  return static_cast<std::size_t>(layer) < frequency.size() && frequency[static_cast<std::size_t>(layer)] != 0;
}

bool has_linear_attention(const Scenario& s) {
  for (Int layer = 0; layer < s.model.num_layers; ++layer)
    if (is_linear_attention_layer(s, layer)) return true;
  return false;
}

// gpt_builders.py until 0.18: get_gpt_decoder_layer_specs, which knows softmax attention alone; Bridge takes its
// provider's last layer.
bool mtp_is_linear_attention(const Scenario& s) {
  const bool last = s.software.megatron_bridge || core_version(s.software) >= Version::v0_19;
  return last && is_linear_attention_layer(s, s.model.num_layers - 1);
}

bool has_sinks(const Scenario& s) {
  return s.model.softmax_type != "vanilla" && grouped_fused_attention(s) &&
         (s.settings.context_parallel_size == 1 || exchanges_heads(s));
}

double loss_scale(const Scenario& s) {
  const auto stated = s.settings.other.find("loss_scale");
  return stated == s.settings.other.end() ? 0 : std::strtod(stated->second.c_str(), nullptr);
}

// megatron/core/optimizer/__init__.py: a scaler wherever a scale is stated, and with fp16.
bool scales_loss(const Scenario& s) { return s.settings.fp16 || loss_scale(s) != 0; }

// Large gradients and spikes of the loss are looked for where NaNs are (param_and_grad_buffer.py, pretrain_gpt.py).
// megatron/training/arguments.py, validate_args: on unless --no-check-for-nan-in-loss-and-grad, off with dynamic loss
// scaling; a full-iteration graph asks for the flag. Megatron Bridge's performance scripts switch both checks off
// (scripts/performance/utils/overrides.py:73-76), and a program of one's own (a device id given) has none.
bool checks_for_nan(const Scenario& s) {
  const auto& o = s.settings;
  for (const char* other : {"check_for_large_grads", "check_for_spiky_loss"})
    if (const auto stated = o.other.find(other); stated != o.other.end() && !is_neutral(other, stated->second))
      return true;
  if (o.check_for_nan_in_loss_and_grad) return *o.check_for_nan_in_loss_and_grad;
  return parsed_by_megatron(s) && (!o.fp16 || loss_scale(s) != 0) && o.cuda_graph_impl != "full_iteration";
}

// megatron/training/arguments.py: on unless --no-create-attention-mask-in-dataloader; SFTDataset asserts that it is
// off. Megatron Bridge's datasets skip it (training/config.py, skip_getting_attention_mask_from_dataset), and a program
// of one's own has none.
bool creates_attention_mask(const Scenario& s) {
  const auto& o = s.settings;
  if (o.sft) return false;
  if (o.create_attention_mask_in_dataloader) return *o.create_attention_mask_in_dataloader;
  return parsed_by_megatron(s);
}

bool pads_for_quantization(const Scenario& s) {
  return s.settings.moe_router_padding_for_quantization || s.settings.moe_router_padding_for_fp8;
}

bool exchanges_heads(const Scenario& s) {
  const auto sharing = context_sharing(s);
  return sharing && sharing->heads > 1 && sharing->ring == 1;
}

bool grouped_fused_attention(const Scenario& s) {
  const auto& o = s.settings;
  return !s.model.multi_latent_attention && o.transformer_impl == "transformer_engine" &&
         o.attention_backend != "unfused";
}

namespace {

/// The heads that cuDNN's own benchmark has, fused and causal, with nothing beside.
bool attends_as_published(const Scenario& s) {
  const auto& m = s.model;
  const auto& o = s.settings;
  const bool latent =
      m.multi_latent_attention && m.qk_head_dim == 128 && m.qk_pos_emb_head_dim == 64 && m.v_head_dim == 128;
  const bool grouped = grouped_fused_attention(s) && kv_channels(s) == 128;
  return (latent ? o.attention_backend != "unfused" : grouped) && m.softmax_type == "vanilla" &&
         m.attn_logit_softcapping.value_or(0) == 0 && o.attention_dropout == 0 && window_of(s) == 0 &&
         o.context_parallel_size == 1 && !packing(s);
}

}  // namespace

bool quantizes(const Scenario& s) { return s.settings.fp8 || s.settings.fp4; }

/// Transformer Engine d0067d0da, dot_product_attention/dot_product_attention.py:761: read by its attention alone.
bool asks_for_determinism(const Scenario& s) {
  const auto& o = s.settings;
  return variable(s, "NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0" && o.transformer_impl == "transformer_engine" &&
         o.attention_backend != "unfused";
}

/// On Blackwell cuDNN has it from 9.18 on, before other kernels serve (fused_attn.cpp:479-488).
bool attends_deterministically(const Scenario& s) {
  const int capability = s.cluster.compute_capability.value_or(90);
  const auto cudnn = cudnn_version(s.software);
  const bool blackwell = capability >= 100 && capability < 110 && (!cudnn || *cudnn >= CudnnVersion{9, 18});
  return asks_for_determinism(s) && attends_as_published(s) && (blackwell || capability / 10 == 9);
}

/// Transformer Engine d0067d0da, dot_product_attention/utils.py (get_attention_backend) and cuDNN's own figures.
bool attends_in_fp8(const Scenario& s) {
  const auto& o = s.settings;
  if (!o.fp8_dot_product_attention || !o.fp8) return false;
  const auto version = te_version(s.software);
  const bool recipe =
      (o.fp8_recipe == "mxfp8" && version.at_least(2, 16)) || (o.fp8_recipe == "tensorwise" && version.at_least(2, 8));
  return recipe && attends_as_published(s) && s.model.seq_length % 128 == 0 && !o.cpu_offloading &&
         !o.fine_grained_activation_offloading;
}

bool has_moe_layer(const Scenario& s) {
  for (Int layer = 0; layer < s.model.num_layers; ++layer)
    if (is_moe_layer(s, layer)) return true;
  return false;
}
bool fuses_grouped_mlp(const Scenario& s) {
  const auto& o = s.settings;
  if (!o.use_transformer_engine_op_fuser || !s.model.num_moe_experts || !o.moe_grouped_gemm) return false;
  const std::string name = activation_func(s), enabled = variable(s, "NVTE_CUTEDSL_FUSED_GROUPED_MLP");
  const bool gated =
      s.model.gated_linear_unit && (name == "silu" || name == "quick_gelu") && o.moe_mlp_glu_interleave_size == 32;
  // experts.py of core_r0.19.0:372-390; in Transformer Engine from 2.17 on (ops/fused/grouped_mlp.py, ScaledSReLU).
  const bool squared = !s.model.gated_linear_unit && name == "squared_relu" && o.use_fused_weighted_squared_relu &&
                       te_version(s.software).at_least(2, 17);
  return o.fp8 && o.fp8_recipe.value_or("") == "mxfp8" && (gated || squared) && !enabled.empty() && enabled != "0";
}

bool has_dense_layer(const Scenario& s) {
  for (Int layer = 0; layer < s.model.num_layers; ++layer)
    if (has_mlp(s, layer) && !is_moe_layer(s, layer)) return true;
  return false;
}

bool te_layers(const Scenario& s) { return s.settings.transformer_impl == "transformer_engine"; }
bool norms_fused(const Scenario& s) { return te_layers(s) && !s.model.multi_latent_attention; }

std::string variable(const Scenario& s, const std::string& name, const std::string& otherwise) {
  const auto found = s.environment.find(name);
  return found == s.environment.end() ? otherwise : found->second;
}

Position position(const Scenario& s, const std::string& name) {
  const Position* stated = s.positions.find(name);
  return stated == nullptr ? s.origin : *stated;
}

bool ignores(const Scenario& s, std::string_view name) { return std::ranges::find(s.ignore, name) != s.ignore.end(); }

}  // namespace pipewright::scenario
