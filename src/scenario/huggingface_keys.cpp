// Keys of a config.json that a reader of architectures passes over: none silently.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "huggingface.hpp"

namespace pipewright::scenario {
namespace {

using Json = nlohmann::json;

// What huggingface_families.cpp reads only beside other keys.
constexpr const char* read_keys =
    "attention_bias dtype experts_per_token first_k_dense_replace "
    "head_dim "
    "hidden_act hidden_activation hidden_size intermediate_size kv_lora_rank layer_types max_position_embeddings "
    "max_window_layers "
    "mlp_bias hybrid_override_pattern layers_block_type attention_head_dim mlp_hidden_act use_bias mamba_proj_bias "
    "use_conv_bias conv_kernel mamba_num_heads mamba_head_dim n_groups ssm_state_size chunk_size layer_norm_epsilon "
    "moe_shared_expert_intermediate_size moe_latent_size "
    "model_type moe_intermediate_size n_group n_routed_experts n_shared_experts norm_topk_prob num_attention_heads "
    "num_experts num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts num_nextn_predict_layers "
    "partial_rotary_factor q_lora_rank qk_nope_head_dim qk_rope_head_dim rms_norm_eps rope_parameters rope_scaling "
    "rope_theta routed_scaling_factor scoring_func shared_expert_intermediate_size sliding_window swiglu_limit "
    "text_config "
    "tie_word_embeddings topk_group topk_method torch_dtype use_sliding_window v_head_dim vocab_size "
    "decoder_sparse_step";
// What changes neither the time nor the memory of a training step: names, tokens, generation, initial values, losses'
// weights, what the checkpoint was quantized to.
constexpr const char* inert_keys =
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation "
    "aux_loss_alpha auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward "
    "cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample early_stopping "
    "encoder_no_repeat_ngram_size eos_token_id ep_size exponential_decay_length_penalty finetuning_task "
    "forced_bos_token_id forced_eos_token_id id2label image_token_id initial_context_length initializer_range "
    "is_decoder "
    "label2id language length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams "
    "num_logits_to_keep num_return_sequences original_max_position_embeddings output_attentions output_hidden_states "
    "output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads quantization "
    "quantization_config query_pre_attn_scalar remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate rope_interleaved router_aux_loss_coef router_jitter_noise sep_token_id seq_aux "
    "expand mamba_hidden_act mamba_ssm_cache_dtype rescale_prenorm_residual time_step_floor "
    "time_step_limit time_step_max time_step_min time_step_rank use_mamba_kernels mtp_hybrid_override_pattern "
    "mtp_layers_block_type "
    "suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p "
    "torchscript transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache use_qk_norm";

struct Part {
  const char *key, *missing;
  bool (*present)(const Json&);
};
bool given(const Json& value) { return !value.is_null(); }
bool on(const Json& value) { return value.is_boolean() && value.get<bool>(); }
bool not_zero(const Json& value) { return value.is_number() && value.get<double>() != 0; }
bool not_one(const Json& value) { return value.is_number() && value.get<double>() != 1; }
bool not_empty(const Json& value) { return value.is_array() && !value.empty(); }

constexpr Part lost_parts[] = {
    {"vision_config", "a vision tower; the text model alone: its text_config as a config.json", given},
    {"visual", "a vision tower", given},
    {"audio_config", "an audio tower", given},
    {"thinker_config", "several models in one", given},
    {"cross_attention_layers", "cross attention", not_empty},
    {"add_cross_attention", "cross attention", on},
    {"use_mrope", "rotary embedding of several axes", on},
    {"is_encoder_decoder", "an encoder beside the decoder", on},
    {"alibi", "position biases of attention", on},
    {"parallel_attn", "a layer whose MLP runs beside its attention", on},
    {"use_parallel_residual", "a layer whose MLP runs beside its attention", on},
    {"clip_qkv", "clipped queries, keys and values", given},
    {"attention_chunk_size", "chunked attention", given},
    {"mlp_only_layers", "dense layers named one by one (state moe_layer_freq in a scenario)", not_empty},
    {"moe_layer_freq", "experts in every n-th layer (state moe_layer_freq in a scenario)", not_one},
    {"residual_in_fp32", "a residual stream in fp32", on},
    {"embedding_multiplier", "scaled embeddings", not_one},
    {"residual_multiplier", "scaled residuals", not_one},
    {"logits_scaling", "scaled logits", not_one},
    {"logit_scale", "scaled logits", not_one},
    {"attention_dropout", "dropout of attention in a config.json (state attention_dropout in a scenario)", not_zero},
    {"hidden_dropout", "dropout in a config.json (state hidden_dropout in a scenario)", not_zero},
    {"resid_pdrop", "dropout in a config.json (state hidden_dropout in a scenario)", not_zero},
    {"embd_pdrop", "dropout in a config.json (state hidden_dropout in a scenario)", not_zero}};

// Keys of parts that only some families have: in another they would be lost.
constexpr std::pair<const char*, const char*> owned[] = {{"num_local_experts", "experts"},
                                                         {"num_experts", "experts"},
                                                         {"n_routed_experts", "experts"},
                                                         {"moe_num_experts", "experts"},
                                                         {"kv_lora_rank", "latent attention"},
                                                         {"attn_logit_softcapping", "soft-capped scores"},
                                                         {"final_logit_softcapping", "soft-capped logits"}};

bool among(const char* names, const std::string& name) {
  std::istringstream words(names);
  for (std::string word; words >> word;)
    if (word == name) return true;
  return false;
}

}  // namespace

std::string judge_keys(const std::string& text, const std::set<std::string>& read,
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
  for (const auto& [key, part] : owned)
    if (!read.contains(key) && inner.contains(key) && inner.at(key).is_number() && inner.at(key).get<double>() > 1)
      throw error(key, fmt::format("is not modelled: {} in a family that is read without", part));
  std::string unknown;
  for (const auto& [key, value] : inner.items()) {
    const auto is = [&, name = key](const auto& row) { return name == row.key; };
    if (value.is_null() || read.contains(key) || among(read_keys, key) || among(inert_keys, key) ||
        std::ranges::any_of(lost_parts, is))
      continue;
    unknown += (unknown.empty() ? "" : " ") + key;
  }
  return unknown;
}

}  // namespace pipewright::scenario
