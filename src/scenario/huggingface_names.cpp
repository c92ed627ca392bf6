// Keys that one family has under several names.
#include <fmt/format.h>

#include "huggingface_config.hpp"

namespace pipewright::scenario {
namespace {

struct KeyName {
  const char *families, *other, *read;
};
// attribute_map of transformers 5.24's classes (configuration_*.py), whose right sides save_pretrained writes; older
// files and those of the models' own code have the left ones. Nemotron-H: what its class renames on reading, too.
constexpr const char* deepseek_like =
    "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe glm4_moe_lite dots1 solar_open nemotron_h";
constexpr const char* qwen_like =
    "qwen2_moe qwen3_moe qwen3_next qwen3_5_moe_text olmoe hy_v3 bailing_moe_v2 sarvam_moe sarvam_mla";
constexpr KeyName key_names[] = {
    {"mixtral gpt_oss minimax_m2 llama4_text", "num_experts", "num_local_experts"},
    {qwen_like, "num_local_experts", "num_experts"},
    {deepseek_like, "num_experts", "n_routed_experts"},
    {deepseek_like, "num_local_experts", "n_routed_experts"},
    {"deepseek_v3 kimi_k2 glm4_moe sarvam_moe sarvam_mla", "num_mtp_layers", "num_nextn_predict_layers"},
    {"ernie4_5_moe", "num_experts", "moe_num_experts"},
    {"ernie4_5_moe", "num_experts_per_tok", "moe_k"},
    {"sarvam_moe sarvam_mla", "n_routed_experts", "num_experts"},
    {"sarvam_moe sarvam_mla", "n_shared_experts", "num_shared_experts"},
    {"sarvam_moe", "attention_bias", "use_qkv_bias"},
    {"nemotron_h", "layer_types", "layers_block_type"},
    {"nemotron_h", "norm_eps", "layer_norm_epsilon"},
    {"nemotron_h", "mamba_n_groups", "n_groups"},
    {"nemotron_h", "mamba_d_conv", "conv_kernel"},
    {"nemotron_h", "mamba_conv_bias", "use_conv_bias"},
    {"nemotron_h", "mamba_chunk_size", "chunk_size"},
    {"exaone", "num_layers", "num_hidden_layers"},
    {"exaone", "layer_norm_epsilon", "rms_norm_eps"},
    {"exaone", "activation_function", "hidden_act"},
    {"internlm2", "bias", "attention_bias"},
    {"internlm3", "qkv_bias", "attention_bias"},
    {"internlm3", "bias", "mlp_bias"}};

}  // namespace

HfNames take_other_names(nlohmann::json& json, const std::string& family,
                         const std::function<UsageError(const std::string& key, const std::string& why)>& error) {
  HfNames written;
  for (const auto& [families, other, read] : key_names) {
    if (!among(families, family) || !json.contains(other)) continue;
    if (json.contains(read) && !json.at(read).is_null() && !json.at(other).is_null() && json.at(read) != json.at(other))
      throw error(other, fmt::format("{} beside {} {}", json.at(other).dump().substr(0, 60), read,
                                     json.at(read).dump().substr(0, 60)));
    written.emplace(read, other);
    if (!json.at(other).is_null()) json[read] = json.at(other);
    json.erase(other);
  }
  return written;
}

}  // namespace pipewright::scenario
