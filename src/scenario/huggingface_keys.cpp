// Keys of a config.json that a reader of architectures passes over: none silently.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "huggingface.hpp"
#include "huggingface_config.hpp"

namespace pipewright::scenario {
namespace {

using Json = nlohmann::json;

// What some families read. A family that does not is trained without, and a note says so.
constexpr const char* families_keys =
    "attention_bias mlp_bias qkv_bias experts_per_token num_experts_per_tok head_dim attention_head_dim hidden_act "
    "hidden_activation mlp_hidden_act layer_types max_window_layers sliding_window sliding_window_pattern "
    "use_sliding_window use_bias mamba_proj_bias use_conv_bias conv_kernel mamba_head_dim n_groups ssm_state_size "
    "chunk_size layer_norm_epsilon moe_latent_size moe_intermediate_size n_group topk_group topk_method "
    "norm_topk_prob num_key_value_heads partial_rotary_factor qk_nope_head_dim qk_rope_head_dim qk_head_dim "
    "v_head_dim rms_norm_eps routed_scaling_factor scoring_func use_qk_norm interleave_moe_layer_step moe_layers "
    "no_rope_layers no_rope_layer_interval full_attention_interval intermediate_size_mlp router_aux_loss_coef "
    "aux_loss_alpha router_jitter_noise seq_aux "
    "mamba_hidden_act";
// What changes neither the time nor the memory of a training step: names, tokens, generation, initial values, losses'
// weights, what the checkpoint was quantized to.
constexpr const char* inert_keys =
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation "
    "auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward "
    "cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample early_stopping "
    "encoder_no_repeat_ngram_size eos_token_id ep_size exponential_decay_length_penalty finetuning_task "
    "forced_bos_token_id forced_eos_token_id id2label image_token_id video_token_id vision_token_id "
    "vision_start_token_id vision_end_token_id initial_context_length initializer_range "
    "is_decoder "
    "label2id language length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams "
    "num_logits_to_keep num_return_sequences original_max_position_embeddings output_attentions output_hidden_states "
    "output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads quantization "
    "quantization_config query_pre_attn_scalar remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate rope_interleaved sep_token_id "
    "expand mamba_ssm_cache_dtype mamba_ssm_dtype embedding_initializer_range rescale_prenorm_residual time_step_floor "
    "time_step_limit time_step_max time_step_min time_step_rank use_mamba_kernels mtp_hybrid_override_pattern "
    "mtp_layers_block_type "
    "model_type dtype torch_dtype text_config rope_theta rope_scaling rope_parameters rope_local_base_freq "
    "rope_interleave attn_scale attn_temperature_tuning floor_scale _sliding_window_pattern "
    "suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p "
    "torchscript transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache";

struct Part {
  const char *key, *missing;
  bool (*present)(const Json&);
};
bool given(const Json& value) { return !value.is_null(); }
/// Neither missing nor one of these numbers, as a number or as what Python takes for one. Of another type: there.
bool other_than(const Json& value, std::initializer_list<double> neutral) {
  if (value.is_null() || ((value.is_array() || value.is_object() || value.is_string()) && value.empty())) return false;
  const auto is = [&](double number) {
    return value.is_boolean() ? value.get<bool>() == (number != 0) : value.is_number() && value.get<double>() == number;
  };
  return std::ranges::none_of(neutral, is);
}
/// Neither missing, false, zero nor empty.
bool on(const Json& value) { return other_than(value, {0}); }
bool not_one(const Json& value) { return other_than(value, {1}); }
bool several(const Json& value) { return other_than(value, {0, 1}); }
bool of_other_kinds(const Json& value) {
  return value.is_array() && std::ranges::any_of(value, [](const Json& kind) { return kind != "full_attention"; });
}

constexpr Part lost_parts[] = {
    {"vision_config", "a vision tower; the text model alone: its text_config as a config.json", given},
    {"visual", "a vision tower", given},
    {"audio_config", "an audio tower", given},
    {"thinker_config", "several models in one", given},
    {"cross_attention_layers", "cross attention", on},
    {"add_cross_attention", "cross attention", on},
    {"use_mrope", "rotary embedding of several axes", on},
    {"is_encoder_decoder", "an encoder beside the decoder", on},
    {"alibi", "position biases of attention", on},
    {"parallel_attn", "a layer whose MLP runs beside its attention", on},
    {"use_parallel_residual", "a layer whose MLP runs beside its attention", on},
    {"clip_qkv", "clipped queries, keys and values", given},
    {"attention_chunk_size", "chunked attention", given},
    {"mlp_only_layers", "dense layers named one by one (state moe_layer_freq in a scenario)", on},
    {"moe_layer_freq", "experts in every n-th layer (state moe_layer_freq in a scenario)", not_one},
    {"index_topk", "sparse attention with an indexer", on},
    {"index_n_heads", "sparse attention with an indexer", on},
    {"lm_head_bias", "a bias of the output layer", on},
    {"block_configs", "layers of sizes of their own", on},
    {"use_bidirectional_attention", "attention in both directions", on},
    {"is_causal", "attention in both directions", not_one},
    {"residual_in_fp32", "a residual stream in fp32", on},
    {"embedding_multiplier", "scaled embeddings", not_one},
    {"residual_multiplier", "scaled residuals", not_one},
    {"logits_scaling", "scaled logits", not_one},
    {"logit_scale", "scaled logits", not_one},
    {"attention_dropout", "dropout of attention in a config.json (state attention_dropout in a scenario)", on},
    {"hidden_dropout", "dropout in a config.json (state hidden_dropout in a scenario)", on},
    {"resid_pdrop", "dropout in a config.json (state hidden_dropout in a scenario)", on},
    {"embed_dropout", "dropout in a config.json (state hidden_dropout in a scenario)", on},
    {"embd_pdrop", "dropout in a config.json (state hidden_dropout in a scenario)", on}};

// Parts that only some families have: in another they would be lost.
constexpr Part owned[] = {{"num_local_experts", "experts", several},
                          {"num_experts", "experts", several},
                          {"n_routed_experts", "experts", several},
                          {"moe_num_experts", "experts", several},
                          {"n_shared_experts", "shared experts", on},
                          {"num_shared_experts", "shared experts", on},
                          {"shared_expert_intermediate_size", "shared experts", on},
                          {"moe_shared_expert_intermediate_size", "shared experts", on},
                          {"first_k_dense_replace", "dense layers before those with experts", on},
                          {"decoder_sparse_step", "experts in every n-th layer", several},
                          {"kv_lora_rank", "latent attention", several},
                          {"q_lora_rank", "latent attention", several},
                          {"num_nextn_predict_layers", "multi-token prediction (mtp_num_layers)", on},
                          {"mtp_num_hidden_layers", "multi-token prediction (mtp_num_layers)", on},
                          {"num_mtp_modules", "multi-token prediction (mtp_num_layers)", on},
                          {"swiglu_limit", "a clamped activation", on},
                          {"layer_types", "layers of other kinds", of_other_kinds},
                          {"hybrid_override_pattern", "state-space layers", given},
                          {"layers_block_type", "layers of other kinds", given},
                          {"mamba_num_heads", "state-space layers", given},
                          {"attn_logit_softcapping", "soft-capped scores", on},
                          {"final_logit_softcapping", "soft-capped logits", on}};

/// Keys at which Megatron Bridge 067f987df builds these families alike, whatever config.json says.
constexpr struct {
  const char *key, *built, *families;
} fixed_by_bridge[] = {{"tie_word_embeddings", "false",
                        "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe glm4_moe_lite bailing_moe_v2 gpt_oss olmoe"},
                       {"tie_word_embeddings", "true", "gemma gemma2"},
                       {"attention_bias", "false", "qwen3 qwen3_moe qwen3_next"},
                       {"decoder_sparse_step", "1", "qwen3_moe qwen3_next"},
                       {"norm_topk_prob", "true", "qwen3_next"},
                       {"norm_topk_prob", "false", "olmoe"},
                       {"swiglu_limit", "7.0", "gpt_oss"},
                       {"n_shared_experts", "1", "glm4_moe"},
                       {"num_shared_experts", "1", "bailing_moe_v2"},
                       {"use_qk_norm", "true", "bailing_moe_v2"},
                       {"moe_router_enable_expert_bias", "true", "bailing_moe_v2"},
                       {"hidden_act", "\"silu\"", "mistral ernie4_5 ernie4_5_moe"},
                       {"hidden_act", "\"relu2\"", "nemotron"},
                       {"chunk_size", "128", "nemotron_h"},
                       {"layer_types", "windows in all layers but every sixth", "gemma3_text"},
                       {"sliding_window_pattern", "windows in all layers but every sixth", "gemma3_text"},
                       {"_sliding_window_pattern", "windows in all layers but every sixth", "gemma3_text"}};

}  // namespace

bool among(const char* names, const std::string& name) {
  std::istringstream words(names);
  for (std::string word; words >> word;)
    if (word == name) return true;
  return false;
}

Strings other_in_bridge(const HfConfig& config, const std::string& family, const Model& model) {
  Strings notes;
  for (const auto& [key, built, of] : fixed_by_bridge) {
    if (!among(of, family) || !config.has(key)) continue;
    const Json other = Json::parse(built, nullptr, false);
    const bool same = other.is_discarded() ? model.window_attn_skip_freq == Ints{6} : config.json().at(key) == other;
    if (!same)
      notes.push_back(
          fmt::format("{}: taken as config.json says; the provider that Megatron Bridge makes of this family "
                      "has {} whatever it says",
                      key, built));
  }
  return notes;
}

Strings judge_keys(const std::string& text, const std::string& family, const std::set<std::string>& read,
                   const std::function<UsageError(const std::string& key, const std::string& why)>& error) {
  const Json whole = Json::parse(text);
  const auto refuse_parts = [&](const Json& object) {
    for (const Part& part : lost_parts)
      if (object.contains(part.key) && !read.contains(part.key) && part.present(object.at(part.key)))
        throw error(part.key, std::string("is not modelled: ") + part.missing);
  };
  refuse_parts(whole);
  const Json& inner =
      whole.contains("text_config") && whole.at("text_config").is_object() ? whole.at("text_config") : whole;
  refuse_parts(inner);
  for (const Part& part : owned)
    if (!read.contains(part.key) && inner.contains(part.key) && part.present(inner.at(part.key)))
      throw error(part.key,
                  fmt::format("is not modelled: {} in a family that is read without (\"{}\")", part.missing, family));
  Strings unknown, foreign;
  for (const auto& [key, value] : inner.items()) {
    const auto is = [&, name = key](const auto& row) { return name == row.key; };
    if (value.is_null() || read.contains(key) || among(inert_keys, key) || std::ranges::any_of(lost_parts, is) ||
        std::ranges::any_of(owned, is))
      continue;
    if (!among(families_keys, key))
      unknown.push_back(key);
    else if (on(value))
      foreign.push_back(key);
  }
  Strings notes;
  if (!unknown.empty())
    notes.push_back(fmt::format("keys that are not known, and taken to change neither time nor memory: {}",
                                fmt::join(unknown, " ")));
  if (!foreign.empty())
    notes.push_back(fmt::format("keys of other families, which \"{}\" does not have and is predicted without: {}",
                                family, fmt::join(foreign, " ")));
  return notes;
}

}  // namespace pipewright::scenario
