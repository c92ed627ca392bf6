#include "bridge_providers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "pipewright/scenario/norms.hpp"

namespace pipewright::emit {

namespace {

/// Followed by nothing or a size: Llama3ModelProvider70B, Qwen3MoEModelProvider235B_A22B, NemotronNano12Bv2Provider.
constexpr std::array plain_classes = {"BridgeGPTModelConfig",
                                      "CodeLlamaModelProvider",
                                      "DeepSeekModelProvider",
                                      "DeepSeekProvider",
                                      "DeepSeekV2LiteModelProvider",
                                      "DeepSeekV2LiteProvider",
                                      "DeepSeekV2ModelProvider",
                                      "DeepSeekV2Provider",
                                      "DeepSeekV3ModelProvider",
                                      "DeepSeekV3Provider",
                                      "GLM45AirModelProvider",
                                      "GLM45ModelProvider",
                                      "GLMMoEModelProvider",
                                      "GPTModelConfig",
                                      "GPTModelProvider",
                                      "GPTOSSProvider",
                                      "GPTProvider",
                                      "HybridModelConfig",
                                      "HybridModelProvider",
                                      "KimiK2Provider",
                                      "Llama2ModelProvider",
                                      "Llama31ModelProvider",
                                      "Llama31Nemotron70BProvider",
                                      "Llama31NemotronNano8BProvider",
                                      "Llama32ModelProvider",
                                      "Llama3ModelProvider",
                                      "LlamaModelProvider",
                                      "MLAModelProvider",
                                      "MLATransformerConfig",
                                      "MambaModelConfig",
                                      "MambaModelProvider",
                                      "MambaProvider",
                                      "MistralModelProvider",
                                      "MistralSmall3ModelProvider",
                                      "MoonlightModelProvider",
                                      "MoonlightProvider",
                                      "NVIDIAMambaHybridModelProvider",
                                      "NVIDIAMambaHybridProvider",
                                      "NVIDIAMambaModelProvider",
                                      "NVIDIAMambaProvider",
                                      "Nemotron3ModelProvider",
                                      "Nemotron3NanoProvider",
                                      "Nemotron4ModelProvider",
                                      "NemotronHModel47BProvider",
                                      "NemotronHModel4BProvider",
                                      "NemotronHModel56BProvider",
                                      "NemotronHModel8BProvider",
                                      "NemotronHModelProvider",
                                      "NemotronModelProvider",
                                      "NemotronNano12Bv2Provider",
                                      "NemotronNano9Bv2Provider",
                                      "NemotronNanoModelProvider",
                                      "Qwen25ModelProvider",
                                      "Qwen2ModelProvider",
                                      "Qwen3ModelProvider",
                                      "Qwen3MoEModelProvider",
                                      "Qwen3NextModelProvider",
                                      "SarvamMLAModelProvider",
                                      "SarvamMoEModelProvider",
                                      "TransformerConfig"};

constexpr std::string_view gemma3 = "Gemma3ModelProvider";
/// Classes that build a tower beside a language model that is another class': what that builds.
constexpr std::array with_tower = {std::pair<std::string_view, std::string_view>{"Gemma3VLModelProvider", gemma3}};

constexpr const char *sliding = "sliding_attention", *full = "full_attention";

bool is_or_has_size(std::string_view name, std::string_view stem) {
  return name.starts_with(stem) && name.find_first_not_of("0123456789ABMPv_", stem.size()) == std::string_view::npos;
}

}  // namespace

scenario::Scenario provider_defaults() {
  scenario::Scenario s;
  s.settings.deallocate_pipeline_outputs = true;
  s.settings.masked_softmax_fusion = true;
  s.settings.cross_entropy_loss_fusion = true;
  s.settings.gradient_accumulation_fusion = true;
  s.settings.attention_softmax_in_fp32 = false;
  return s;
}

std::optional<Built> built_by_provider(std::string_view name) {
  const auto is = [&](std::string_view stem) -> bool { return is_or_has_size(name, stem); };
  if (std::ranges::any_of(plain_classes, is)) return Built{};
  if (is("GemmaModelProvider") || is("CodeGemmaModelProvider")) return Built{{"apply_embedding_scaling", "true"}};
  if (is(gemma3)) return Built{{"apply_embedding_scaling", "true"}, {"post_layernorm", "true"}};
  if (is("Gemma2ModelProvider"))  // Gemma2DotProductAttention: windows in every other layer, from the first on
    return Built{{"apply_embedding_scaling", "true"}, {"post_layernorm", "true"}, {"window_attn_skip_freq", "2"}};
  if (is("OlMoEModelProvider")) return Built{{"qk_layernorm_whole", "true"}};
  return std::nullopt;
}

Built language_model_of(std::string_view name) {
  for (const auto& [whole, language] : with_tower)
    if (is_or_has_size(name, whole)) return *built_by_provider(language);
  return {};
}

const char* special_provider(const scenario::Scenario& scenario) {
  const auto& m = scenario.model;
  if (!m.pre_layernorm) return nullptr;  // a layer specification of yours
  if (m.scale_queries_by_position) return "GPTModelProvider of ministral_layer_spec";
  if (scenario::norms_in_eager_operations(scenario)) return "GPTModelProvider of minimax_m2_layer_spec";
  if (m.qk_layernorm_whole) return "OlMoEModelProvider";
  if (m.post_layernorm && !m.apply_embedding_scaling) return nullptr;  // likewise
  if (m.post_layernorm) return m.qk_layernorm ? "Gemma3ModelProvider" : "Gemma2ModelProvider";
  return m.apply_embedding_scaling ? "GemmaModelProvider" : nullptr;
}

std::string skip_freq_of_gemma3(const Python& pattern, const Position& where, const std::string& key) {
  const auto& items = pattern.items;
  if (items.size() == 2 && items[0].kind == Python::Kind::number && items[1].text == "1") {
    scenario::Int windowed = 0;
    const auto& text = items[0].text;
    if (std::from_chars(text.data(), text.data() + text.size(), windowed).ptr == text.data() + text.size() &&
        windowed > 0)
      return std::to_string(windowed + 1);
  }
  const auto is_kind = [](const Python& item) -> bool { return item.text == sliding || item.text == full; };
  if (items.empty() || !std::ranges::all_of(items, is_kind))
    throw UsageError(where, key, "expected (N, 1), or every layer's kind", {sliding, full});
  std::vector<int> layers;
  for (const auto& item : items) layers.push_back(item.text == sliding ? 1 : 0);
  return fmt::format("[{}]", fmt::join(layers, ", "));
}

std::string gemma3_pattern(const scenario::Scenario& scenario) {
  const auto& layers = scenario.model.window_attn_skip_freq;
  if (layers.size() == 1) return fmt::format("({}, 1)", layers.front() - 1);
  std::vector<std::string> kinds;
  for (const auto layer : layers) kinds.push_back(fmt::format("\"{}\"", layer == 0 ? full : sliding));
  return fmt::format("[{}]", fmt::join(kinds, ", "));
}

std::optional<Built> built_by_spec(std::string_view name) {
  constexpr std::array plain = {"_ernie45_decoder_block_spec",
                                "default_layer_spec",
                                "get_default_hybrid_stack_spec",
                                "get_default_mamba_stack_spec",
                                "get_gpt_decoder_block_spec",
                                "get_gpt_layer_with_transformer_engine_spec",
                                "get_transformer_block_with_experimental_attention_variant_spec",
                                "hybrid_stack_spec",
                                "mamba_stack_spec",
                                "transformer_engine_hybrid_stack_spec",
                                "transformer_engine_layer_spec",
                                "transformer_engine_mamba_stack_spec"};
  if (std::ranges::find(plain, name) != plain.end()) return Built{};
  if (name == "gemma2_layer_spec" || name == "gemma3_layer_spec") return Built{{"post_layernorm", "true"}};
  if (name == "olmoe_layer_spec" || name == "minimax_m2_layer_spec") return Built{{"qk_layernorm_whole", "true"}};
  if (name == "ministral_layer_spec") return Built{{"scale_queries_by_position", "true"}};
  return std::nullopt;
}

bool holds_spec(std::string_view field) {
  return field == "transformer_layer_spec" || field == "hybrid_stack_spec" || field == "mamba_stack_spec";
}

bool of_providers(std::string_view field) {
  // keep_mtp_spec_in_bf16 is set by recipes and read by nothing (067f987df).
  constexpr std::array names = {"high_freq_factor", "keep_mtp_spec_in_bf16", "low_freq_factor",
                                "old_context_len",  "query_pre_attn_scalar", "scale_factor"};
  return field.starts_with("hf_model_") || field.starts_with("yarn_") || field.starts_with("rope_scaling_") ||
         std::ranges::find(names, field) != names.end();
}

}  // namespace pipewright::emit
