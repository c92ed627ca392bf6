// Architectures from Hugging Face's config.json.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace huggingface_test {

using namespace pipewright;
using namespace pipewright::scenario;

TEST_CASE("Llama 3 70B is the architecture of the shipped scenario") {
  Scenario s = from_hf("data/llama-3-70b.json");
  CHECK(s.settings.bf16);
  CHECK_FALSE(creates_attention_mask(s));
  const Scenario shipped = read("../../scenarios/llama3-70b-sft-32xh100.yaml");
  s.model.seq_length = shipped.model.seq_length;
  CHECK(s.model == shipped.model);
}

TEST_CASE("Qwen 2.5 has a qkv bias and no window") {
  const Model m = from_hf("data/qwen2.5-7b.json").model;
  CHECK(m.num_layers == 28);
  CHECK(m.hidden_size == 3584);
  CHECK(m.ffn_hidden_size == 18944);
  CHECK(m.num_query_groups == 4);
  CHECK(m.vocab_size == 152064);
  CHECK(m.rotary_base == 1e6);
  CHECK(m.layernorm_epsilon == 1e-6);
  CHECK(m.add_qkv_bias);
  CHECK_FALSE(m.add_bias_linear);
  CHECK_FALSE(m.qk_layernorm);
  CHECK(m.window_size.empty());
  CHECK(m.untie_embeddings_and_output_weights);
}

TEST_CASE("Qwen 3 normalises queries and keys") {
  const Model m = from_hf("data/qwen3-8b.json").model;
  CHECK(m.qk_layernorm);
  CHECK_FALSE(m.add_qkv_bias);
  CHECK(m.kv_channels == 128);
  CHECK(m.rotary_base == 1e6);
  const Model moe = from_hf("data/qwen3-30b-a3b.json").model;
  CHECK(moe.num_moe_experts == 128);
  CHECK(moe.moe_router_topk == 8);
  CHECK(moe.moe_ffn_hidden_size == 768);
  CHECK(moe.moe_layer_freq == Ints{1});
  CHECK_FALSE(moe.moe_router_pre_softmax);
  CHECK(moe.qk_layernorm);
}

TEST_CASE("GPT-OSS: windows in every other layer, sinks, clamped quick GEGLU, biases") {
  Scenario s = from_hf("data/gpt-oss-20b.json");
  s.model.seq_length = 4096;
  const Model& m = s.model;
  CHECK(m.num_moe_experts == 32);
  CHECK(m.moe_router_topk == 4);
  CHECK(moe_ffn_hidden_size(s) == 2880);
  CHECK(kv_channels(s) == 64);
  CHECK(m.window_size == Ints{127, 0});
  CHECK(m.window_attn_skip_freq == Ints{2});
  CHECK(m.softmax_type == "learnable");
  CHECK(m.activation_func == "quick_gelu");
  CHECK(m.activation_func_clamp_value == 7.0);
  CHECK(m.glu_linear_offset == 1.0);
  CHECK((m.add_bias_linear && m.add_qkv_bias));
  Scenario shipped = read("../../scenarios/gpt-oss-120b-pretrain-64xgb200.yaml");
  for (Int layer = 0; layer < 24; ++layer) CHECK(attention_window(s, layer) == (layer % 2 == 0 ? 128 : 0));
  CHECK(shipped.ignore.empty());
}

TEST_CASE("Gemma: tanh GELU, scaled embeddings; from 2 on norms after attention and MLP, soft caps, windows") {
  Scenario two = from_hf("data/gemma-2-9b.json");
  two.model.seq_length = 8192;
  const Model& m = two.model;
  CHECK(m.activation_func == "fast_gelu");
  CHECK((m.apply_embedding_scaling && m.post_layernorm && m.layernorm_zero_centered_gamma));
  CHECK_FALSE(m.qk_layernorm);
  CHECK_FALSE(m.untie_embeddings_and_output_weights);
  CHECK(m.attn_logit_softcapping == 50.0);
  CHECK(m.final_logit_softcapping == 30.0);
  CHECK(m.softmax_scale == doctest::Approx(1.0 / 16));
  for (Int layer = 0; layer < 42; ++layer) CHECK(attention_window(two, layer) == (layer % 2 == 0 ? 4096 : 0));

  Strings notes;
  Scenario three = from_hf("data/gemma-3-4b.json", &notes);  // what it leaves out are its class' defaults
  three.model.seq_length = 8192;
  CHECK(three.model.num_attention_heads == 8);
  CHECK(three.model.num_query_groups == 4);
  CHECK(kv_channels(three) == 256);
  CHECK(three.model.vocab_size == 262208);
  CHECK((three.model.qk_layernorm && three.model.post_layernorm));
  CHECK_FALSE(three.model.attn_logit_softcapping);
  for (Int layer = 0; layer < 34; ++layer) CHECK(attention_window(three, layer) == ((layer + 1) % 6 == 0 ? 0 : 1024));
  CHECK(std::ranges::any_of(notes, [](const auto& note) { return note.find("vision tower") != std::string::npos; }));
}

TEST_CASE("Llama 4: one expert of many beside a shared one, L2 norms, layers without rotation, chunks") {
  Scenario s = from_hf("data/llama-4-scout.json");
  s.model.seq_length = 8192;
  const Model& m = s.model;
  CHECK(m.ffn_hidden_size == 16384);
  CHECK(m.moe_ffn_hidden_size == 8192);
  CHECK(m.moe_shared_expert_intermediate_size == 8192);
  CHECK(m.moe_router_topk == 1);
  CHECK(m.moe_router_score_function == "sigmoid");
  CHECK((m.qk_l2_norm && s.settings.moe_apply_probs_on_input));
  for (Int layer = 0; layer < 48; ++layer) CHECK(has_rotary_embedding(s, layer) == ((layer + 1) % 4 != 0));
  CHECK(is_moe_layer(s, 0));
  // Within one chunk it is causal attention; beyond, no version of Megatron runs it.
  s.cluster.num_gpus = 8;
  s.settings.global_batch_size = 8;
  s.settings.moe_grouped_gemm = true;
  CHECK_NOTHROW(check(s));
  CHECK_NOTHROW(refuse_unmodelled(s));
  s.model.seq_length = 16384;
  CHECK_THROWS_WITH_AS(refuse_unmodelled(s), doctest::Contains("chunked attention"), UsageError);
}

TEST_CASE("Qwen3-Next: three gated delta nets for one gated attention, a gated shared expert beside 512") {
  Scenario s = from_hf("data/qwen3-next-80b-a3b.json");
  const Model& m = s.model;
  CHECK(m.experimental_attention_variant == "gated_delta_net");
  CHECK(m.linear_attention_freq == Ints{4});
  CHECK((m.linear_num_key_heads == 16 && m.linear_num_value_heads == 32));
  CHECK((m.linear_key_head_dim == 128 && m.linear_value_head_dim == 128 && m.linear_conv_kernel_dim == 4));
  CHECK((m.attention_output_gate && m.qk_layernorm && m.layernorm_zero_centered_gamma && m.moe_shared_expert_gate));
  CHECK((m.kv_channels == 256 && m.num_query_groups == 2 && m.rotary_percent == 0.25));
  CHECK((m.num_moe_experts == 512 && m.moe_router_topk == 10 && m.moe_ffn_hidden_size == 512));
  CHECK(m.moe_shared_expert_intermediate_size == 512);
  for (Int layer = 0; layer < 48; ++layer) CHECK(is_linear_attention_layer(s, layer) == ((layer + 1) % 4 != 0));
}

TEST_CASE("Nemotron-H: Mamba-2, attention and MLP in layers of their own; experts in Nemotron 3") {
  const Scenario dense = from_hf("data/nemotron-h-8b.json");
  const Model& m = dense.model;
  CHECK(m.hybrid_layer_pattern == "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-");
  CHECK((m.mamba_num_heads == 128 && m.mamba_head_dim == 64 && m.mamba_num_groups == 8 && m.mamba_state_dim == 128));
  CHECK((m.activation_func == "squared_relu" && !m.gated_linear_unit && m.position_embedding_type == "none"));
  CHECK((m.kv_channels == 128 && m.num_query_groups == 8 && m.ffn_hidden_size == 21504 && !m.num_moe_experts));
  int mamba = 0, attention = 0, mlp = 0;
  for (Int layer = 0; layer < m.num_layers; ++layer) {
    mamba += is_mamba_layer(dense, layer) ? 1 : 0;
    attention += is_attention_layer(dense, layer) ? 1 : 0;
    mlp += has_mlp(dense, layer) ? 1 : 0;
  }
  CHECK((mamba == 24 && attention == 4 && mlp == 24));  // Nemotron-H, arXiv 2504.03624, table 1
  const Scenario mixed = from_hf("data/nemotron-3-nano-30b-a3b.json");
  const Model& e = mixed.model;
  CHECK((e.num_moe_experts == 128 && e.moe_router_topk == 6 && e.moe_ffn_hidden_size == 1856));
  CHECK((e.moe_shared_expert_intermediate_size == 3712 && e.moe_router_score_function == "sigmoid"));
  CHECK((e.moe_router_enable_expert_bias && e.moe_router_topk_scaling_factor == 2.5));
  int experts = 0;
  for (Int layer = 0; layer < e.num_layers; ++layer) experts += is_moe_layer(mixed, layer) ? 1 : 0;
  CHECK(experts == 23);
  CHECK_FALSE(has_dense_layer(mixed));
}

TEST_CASE("Nemotron 3 Super: experts at a latent width, a depth of multi-token prediction of its own layers") {
  const Scenario s = from_hf("data/nemotron-3-super-120b-a12b.json");
  const Model& m = s.model;
  CHECK((m.moe_latent_size == 1024 && m.num_moe_experts == 512 && m.moe_router_topk == 22));
  CHECK((m.mtp_num_layers == 1 && m.mtp_use_repeated_layer && hybrid_mtp_layers(s) == "*E" && is_moe_mtp(s)));
  CHECK(hybrid_layers(s).size() == 88);
  CHECK(moe_hidden_size(s) == 1024);
}

TEST_CASE("a hybrid whose layers are named one by one needs no number of them, as Nemotron 3 Ultra has none") {
  auto text = read_file("data/nemotron-3-super-120b-a12b.json");
  const auto cut = [&](const std::string& key, const std::string& with) {
    const auto at = text.find("\"" + key + "\"");
    REQUIRE(at != std::string::npos);
    text.replace(at, text.find('\n', at) - at, with);
  };
  cut("num_hidden_layers", "");
  cut("hybrid_override_pattern", R"("layers_block_type": ["mamba", "moe", "mamba", "attention", "moe"],)");
  cut("mtp_hybrid_override_pattern", R"("mtp_layers_block_type": ["attention", "moe"],)");
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_named_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << text;
  const Scenario s = from_hf(path.string());
  std::filesystem::remove(path);
  CHECK(s.model.num_layers == 5);
  CHECK(s.model.hybrid_layer_pattern == "MEM*E/*E");
}

TEST_CASE("Phi 3 has a window, Phi 4 none") {
  const Model mini = from_hf("data/phi-3-mini.json").model;
  CHECK(mini.window_size == Ints{2046, 0});
  CHECK(mini.window_attn_skip_freq.empty());
  CHECK(mini.num_query_groups == 32);
  const Scenario four = from_hf("data/phi-4.json");
  CHECK(four.model.window_size.empty());
  CHECK(kv_channels(four) == 128);
  CHECK(four.model.num_query_groups == 10);
}

TEST_CASE("Mistral and Mixtral") {
  const Model m = from_hf("data/mistral-7b.json").model;
  CHECK(m.window_size == Ints{4095, 0});
  CHECK(m.num_query_groups == 8);
  CHECK(m.activation_func == "silu");
  const Model moe = from_hf("data/mixtral-8x7b.json").model;
  CHECK(moe.num_moe_experts == 8);
  CHECK(moe.moe_router_topk == 2);
  CHECK_FALSE(moe.moe_ffn_hidden_size);
  CHECK(moe.window_size.empty());
}

TEST_CASE("DeepSeek V3: latent attention, three dense layers, groups of experts, MTP") {
  Scenario s = from_hf("data/deepseek-v3.json");
  const Model& m = s.model;
  CHECK(m.multi_latent_attention);
  CHECK(m.q_lora_rank == 1536);
  CHECK(m.kv_lora_rank == 512);
  CHECK(m.qk_head_dim == 128);
  CHECK(m.qk_pos_emb_head_dim == 64);
  CHECK(m.moe_shared_expert_intermediate_size == 2048);
  CHECK(m.moe_router_num_groups == 8);
  CHECK(m.moe_router_group_topk == 4);
  CHECK(m.moe_router_score_function == "sigmoid");
  CHECK(m.moe_router_enable_expert_bias);
  CHECK(m.mtp_num_layers == 1);
  CHECK_FALSE(is_moe_layer(s, 2));
  CHECK(is_moe_layer(s, 3));
  CHECK(is_moe_layer(s, 60));
  s.model.seq_length = 4096;
  s.cluster.num_gpus = 8;
  CHECK(parse(write(s), "written") == s);
}

TEST_CASE("Kimi K2's config.json: DeepSeek-V3's architecture, more experts without groups, one dense layer, no MTP") {
  const Scenario s = from_hf("data/kimi-k2.json");
  CHECK(s.model.multi_latent_attention);
  CHECK(s.model.num_layers == 61);
  CHECK(s.model.num_attention_heads == 64);
  CHECK(s.model.num_moe_experts == 384);
  CHECK(s.model.moe_router_topk == 8);
  CHECK(s.model.moe_router_topk_scaling_factor == 2.827);
  CHECK(s.model.moe_router_score_function == "sigmoid");
  CHECK(s.model.moe_router_enable_expert_bias);
  CHECK(s.model.moe_layer_freq.size() == 61);
  CHECK(s.model.moe_layer_freq[0] == 0);
  CHECK(s.model.moe_layer_freq[1] == 1);
  CHECK(s.model.mtp_num_layers.value_or(0) == 0);
  CHECK(s.model.q_lora_rank == 1536);
  CHECK(s.model.other.at("rotary_scaling_factor") == "32.0");
}

TEST_CASE("DeepSeek-V2: softmax before the choice, groups; Lite has queries without a low rank") {
  const Model lite = from_hf("data/deepseek-v2-lite.json").model, m = from_hf("data/deepseek-v2.json").model;
  CHECK_FALSE(lite.q_lora_rank);
  CHECK(m.q_lora_rank == 1536);
  for (const Model& each : {lite, m}) {
    CHECK((each.multi_latent_attention && each.moe_router_pre_softmax && !each.moe_router_enable_expert_bias));
    CHECK(each.moe_router_score_function == "softmax");
    CHECK((each.moe_layer_freq[0] == 0 && each.moe_layer_freq[1] == 1));
    CHECK(each.moe_shared_expert_intermediate_size == 2 * *each.moe_ffn_hidden_size);
  }
  CHECK((m.moe_router_num_groups == 8 && m.moe_router_group_topk == 3 && m.moe_router_topk_scaling_factor == 16.0));
}

TEST_CASE("GLM-4.5: biased queries, half of them rotating, sigmoid routing with biases; GLM-4 is dense") {
  const Model m = from_hf("data/glm-4.5.json").model, air = from_hf("data/glm-4.5-air.json").model;
  CHECK((m.qk_layernorm && !air.qk_layernorm));
  for (const Model& each : {m, air}) {
    CHECK((each.add_qkv_bias && each.rotary_percent == 0.5 && each.kv_channels == 128 && each.mtp_num_layers == 1));
    CHECK((each.moe_router_score_function == "sigmoid" && each.moe_router_enable_expert_bias));
    CHECK(each.moe_shared_expert_intermediate_size == each.moe_ffn_hidden_size);
  }
  CHECK((m.moe_layer_freq[2] == 0 && m.moe_layer_freq[3] == 1 && air.moe_layer_freq[1] == 1));
  const Model dense = from_hf("data/glm-4-9b.json").model;
  CHECK((dense.rotary_interleaved && dense.add_qkv_bias && !dense.num_moe_experts && dense.num_query_groups == 2));
}

TEST_CASE("OLMoE norms whole queries and keys, StarCoder2 and Nemotron are GPTs with rotary embedding") {
  const Model olmoe = from_hf("data/olmoe-1b-7b.json").model;
  CHECK((olmoe.qk_layernorm && olmoe.qk_layernorm_whole && olmoe.moe_router_pre_softmax));
  CHECK((olmoe.num_moe_experts == 64 && olmoe.moe_router_topk == 8 && olmoe.moe_ffn_hidden_size == 1024));
  const Scenario star = from_hf("data/starcoder2-3b.json");
  CHECK((star.model.normalization == "LayerNorm" && star.model.add_bias_linear && !star.model.gated_linear_unit));
  CHECK((star.model.activation_func == "fast_gelu" && !star.model.untie_embeddings_and_output_weights));
  CHECK((star.settings.hidden_dropout == 0.1 && star.settings.attention_dropout == 0.1));
  CHECK(star.model.window_size == Ints{4095, 0});
  for (const char* stated : {"settings.hidden_dropout", "settings.attention_dropout"})
    CHECK(star.positions.contains(stated));  // so that nobody assumes another
  Scenario trained = star;
  for (const char* setting : {"seq_length=4096", "num_gpus=8", "global_batch_size=8", "attention_dropout=0.0"})
    set(trained, setting);
  CHECK_NOTHROW(refuse_unmodelled(trained));
  set(trained, "attention_dropout=0.1");
  CHECK_THROWS_WITH_AS(refuse_unmodelled(trained), doctest::Contains("attention dropout"), UsageError);
  const Model nemotron = from_hf("data/minitron-8b.json").model;
  CHECK((nemotron.normalization == "LayerNorm" && nemotron.layernorm_zero_centered_gamma));
  CHECK((nemotron.activation_func == "squared_relu" && !nemotron.gated_linear_unit && !nemotron.add_bias_linear));
  CHECK((nemotron.rotary_percent == 0.5 && nemotron.kv_channels == 128 && nemotron.layernorm_epsilon == 1e-5));
}

TEST_CASE("Ling 2, GLM-4.7 Flash, ERNIE 4.5, Seed-OSS, SmolLM3") {
  const Model ling = from_hf("data/ling-mini-2.0.json").model;
  CHECK((ling.num_moe_experts == 256 && ling.moe_router_topk == 8 && ling.qk_layernorm && !ling.add_qkv_bias));
  CHECK((ling.moe_router_num_groups == 8 && ling.moe_router_group_topk == 4 && ling.rotary_percent == 0.5));
  CHECK((ling.moe_router_score_function == "sigmoid" && ling.moe_router_enable_expert_bias));
  CHECK((ling.moe_layer_freq[0] == 0 && ling.moe_layer_freq[1] == 1));
  const Model flash = from_hf("data/glm-4.7-flash.json").model;
  CHECK((flash.multi_latent_attention && flash.q_lora_rank == 768 && flash.qk_head_dim == 192 &&
         flash.v_head_dim == 256));
  CHECK((flash.moe_router_score_function == "sigmoid" && flash.mtp_num_layers == 1));
  CHECK(flash.other.at("rotary_scaling_factor") == "1.0");  // plain rotation; Megatron's own is YaRN by 40
  const Model ernie = from_hf("data/ernie-4.5-21b-a3b.json").model;
  CHECK((ernie.num_moe_experts == 64 && ernie.moe_router_topk == 6 && ernie.rotary_interleaved));
  CHECK((ernie.moe_shared_expert_intermediate_size == 3072 && ernie.moe_layer_freq[0] == 0));
  const Scenario seed = from_hf("data/seed-oss-36b.json");
  CHECK((seed.model.add_qkv_bias && !seed.model.add_bias_linear && seed.settings.hidden_dropout == 0.1));
  Scenario smol = from_hf("data/smollm3-3b.json");
  for (Int layer = 0; layer < 36; ++layer) CHECK(has_rotary_embedding(smol, layer) == ((layer + 1) % 4 != 0));
}

TEST_CASE("MiMo, AFM, CWM, dots.llm1, Helium, Jais 2, Ministral, Solar Open, Youtu") {
  const Model mimo = from_hf("data/mimo-7b.json").model;
  CHECK((mimo.add_qkv_bias && !mimo.qk_layernorm && mimo.mtp_num_layers == 1 && mimo.window_size.empty()));
  const Model arcee = from_hf("data/afm-4.5b.json").model;
  CHECK((arcee.activation_func == "squared_relu" && !arcee.gated_linear_unit && arcee.normalization == "RMSNorm"));
  Scenario cwm = from_hf("data/cwm-32b.json"), ministral = from_hf("data/ministral-8b.json");
  CHECK((cwm.model.window_size == Ints{8191, 0} && ministral.model.window_size == Ints{32767, 0}));
  for (const Model* m : {&cwm.model, &ministral.model})
    for (Int layer = 0; layer < m->num_layers; ++layer)
      CHECK(m->window_attn_skip_freq.at(static_cast<std::size_t>(layer)) == (layer % 4 == 0 ? 0 : 1));
  const Model dots = from_hf("data/dots.llm1.json").model;
  CHECK((dots.qk_layernorm && dots.window_size.empty() && dots.moe_layer_freq[0] == 0 && dots.moe_layer_freq[1] == 1));
  CHECK((dots.num_moe_experts == 128 && dots.moe_shared_expert_intermediate_size == 2816 && !dots.mtp_num_layers));
  const Model helium = from_hf("data/helium-1-2b.json").model;
  CHECK((helium.rotary_interleaved && helium.gated_linear_unit && helium.layernorm_epsilon == 1e-8));
  const Model jais = from_hf("data/jais-2-8b.json").model;
  CHECK((jais.normalization == "LayerNorm" && jais.add_bias_linear && jais.activation_func == "squared_relu"));
  const Model solar = from_hf("data/solar-open-100b.json").model;
  CHECK((solar.num_moe_experts == 128 && solar.moe_ffn_hidden_size == 1280 && !solar.qk_layernorm));
  CHECK((solar.moe_layer_freq == Model{}.moe_layer_freq && solar.moe_router_enable_expert_bias));
  const Model youtu = from_hf("data/youtu-llm-2b.json").model;
  CHECK((youtu.multi_latent_attention && !youtu.num_moe_experts && youtu.q_lora_rank == 1536));
  CHECK((youtu.kv_lora_rank == 512 && youtu.qk_head_dim == 128 && !youtu.untie_embeddings_and_output_weights));
}

TEST_CASE("MiniMax-M2: norms over all heads of grouped queries, experts in every layer, no multi-token prediction") {
  Strings notes;
  const Model m = from_hf("data/minimax-m2.json", &notes).model;
  CHECK((m.num_layers == 62 && m.num_moe_experts == 256 && m.moe_router_topk == 8 && m.moe_ffn_hidden_size == 1536));
  CHECK((m.qk_layernorm && m.qk_layernorm_whole && m.rotary_percent == 0.5 && m.num_query_groups == 8));
  CHECK((m.moe_router_score_function == "sigmoid" && m.moe_router_enable_expert_bias && !m.mtp_num_layers));
  CHECK(std::ranges::any_of(notes, [](const auto& note) { return note.starts_with("use_mtp, num_mtp_modules"); }));
}

TEST_CASE("every family of transformers' causal language models and of Megatron Bridge is read or refused by name") {
  std::istringstream names(read_file(
      "data/model_types.txt"));  // transformers 5.24, Megatron Bridge 067f987df, models with code of their own
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_type_" + std::to_string(getpid()) + ".json");
  int count = 0, refused = 0;
  for (std::string name; names >> name; ++count) {
    std::ofstream(path) << "{\"model_type\": \"" << name << "\"}";
    std::string said;
    try {
      from_hf(path.string());
    } catch (const UsageError& error) {
      said = error.what();
    }
    CAPTURE(name);
    CAPTURE(said);
    const bool by_name = said.find('"' + name + "\" is not modelled; what is missing: ") != std::string::npos;
    // What is read misses its sizes, unless its class has defaults, or the text model in which they stand.
    const bool read = said.empty() || said.find("num_attention_heads") != std::string::npos ||
                      said.find("text_config: missing") != std::string::npos;
    CHECK((by_name || read));
    refused += by_name ? 1 : 0;
  }
  std::filesystem::remove(path);
  CAPTURE(count);
  CAPTURE(refused);
  CHECK((count > 225 && count - refused > 55));  // 17 of the 22 that transformers 5.24 adds are refused
}

TEST_CASE("language models that are published with a tower are read without it") {
  for (const char* file : {"mistral-small-3.1", "kimi-k2.5", "qwen3.5-27b", "qwen3.5-35b-a3b"}) {
    CAPTURE(std::string(file));
    Strings notes;
    const Scenario s = from_hf("data/" + std::string(file) + ".json", &notes);
    CHECK(std::ranges::any_of(notes, [](const auto& note) { return note.find("vision tower") != std::string::npos; }));
    CHECK(s.model.untie_embeddings_and_output_weights);
  }
  CHECK(from_hf("data/mistral-small-3.1.json").model.window_size.empty());
  const Model dense = from_hf("data/qwen3.5-27b.json").model, mixture = from_hf("data/qwen3.5-35b-a3b.json").model;
  for (const Model& m : {dense, mixture}) {
    CHECK((m.attention_output_gate && m.qk_layernorm && m.layernorm_zero_centered_gamma && m.mtp_num_layers == 1));
    CHECK((m.linear_attention_freq == Ints{4} && m.rotary_percent == 0.25 && m.rotary_base == 1e7));
  }
  CHECK((!dense.num_moe_experts && dense.linear_num_value_heads == 48 && dense.ffn_hidden_size == 17408));
  CHECK((mixture.num_moe_experts == 256 && mixture.moe_shared_expert_gate && !mixture.moe_router_pre_softmax));
}

TEST_CASE("hf_config in a scenario: fields beside it override, the path is relative to the file") {
  const std::string rest =
      "settings: {micro_batch_size: 1, global_batch_size: 8}\ncluster: {num_gpus: 8}\nscenario: 1\n";
  const Scenario s = parse(rest + "model: {num_layers: 4, hf_config: data/qwen3-8b.json, seq_length: 2048}\n",
                           "../scenario/here.yaml");
  CHECK(s.model.num_layers == 4);
  CHECK(s.model.hidden_size == 4096);
  CHECK(s.model.seq_length == 2048);
  CHECK_FALSE(s.settings.bf16);  // what trains is the scenario's business
  CHECK_NOTHROW(check(s));
  CHECK_THROWS_WITH_AS(parse(rest + "model: {hf_config: data/qwen3-8b.json}\n", "here.yaml"),
                       "here.yaml:4: model.seq_length: missing", UsageError);
}

TEST_CASE("how positions are scaled is kept, whatever it costs nothing") {
  const auto folder = std::filesystem::temp_directory_path() / ("pipewright_hf_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto with = [&](const std::string& more) {
    std::string text = read_file("data/llama-3-70b.json");
    text.erase(text.rfind('}'));
    std::ofstream(folder / "config.json") << text << ", " << more << "}";
    Strings notes;
    const Scenario s = from_hf(folder.string(), &notes);  // a folder holds its config.json
    CHECK(s.origin.file == (folder / "config.json").string());
    std::string all;
    for (const auto& [name, value] : s.model.other) all += name + "=" + value + " ";
    for (const auto& note : notes) all += note.substr(0, 30);
    return all;
  };
  CHECK(with(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0})") ==
        "rope_scaling=true rope_scaling_factor=8.0 ");
  CHECK(with(R"("rope_scaling": {"type": "linear", "factor": 4})") == "seq_len_interpolation_factor=4.0 ");
  CHECK(with(R"("rope_scaling": null)").empty());
  // What is missing, misspelled or another constant than Megatron's is told by its whole name.
  CHECK_THROWS_WITH_AS(with(R"("rope_scaling": {"rope_type": "llama3", "factr": 8.0})"),
                       doctest::Contains(": rope_scaling.factor: missing beside rope_type \"llama3\"; did you mean "
                                         "\"rope_scaling.factr\"?"),
                       UsageError);
  CHECK_THROWS_WITH_AS(with(R"("rope_scaling": {"rope_type": "llama3", "factor": -1})"),
                       doctest::Contains("rope_scaling.factor: -1 is out of range"), UsageError);
  CHECK(with(R"("rope_scaling": {"type": "linear", "factor": 4, "odd": 1})") ==
        "seq_len_interpolation_factor=4.0 keys that are not known, and t");
  CHECK(with(R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "high_freq_factor": 2})") ==
        "rope_scaling=true rope_scaling_factor=8.0 rope_scaling.high_freq_factor:");
  CHECK(with(R"("rope_scaling": {"rope_type": "longrope"})") == "rope_scaling of type longrope ");
  CHECK_THROWS_WITH_AS(with(R"("rope_scaling": 8)"), doctest::Contains("rope_scaling: expected an object, found 8"),
                       UsageError);
  std::filesystem::remove_all(folder);
  CHECK_THROWS_WITH_AS(from_hf(folder.string()), doctest::Contains("no such file"), UsageError);
  CHECK(from_hf("data/deepseek-v3.json").model.other.at("rotary_scaling_factor") == "40.0");
}

TEST_CASE("no next-token layers are none") {
  std::string text = read_file("data/deepseek-v3.json");
  const auto at = text.find("\"num_nextn_predict_layers\": 1");
  REQUIRE(at != std::string::npos);
  text.replace(at, 29, "\"num_nextn_predict_layers\": 0");
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_mtp_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << text;
  CHECK_FALSE(from_hf(path.string()).model.mtp_num_layers);
  std::filesystem::remove(path);
}

TEST_CASE("what is missing or wrong is named with its file") {
  CHECK_THROWS_WITH_AS(from_hf("data/no-heads.json"), "data/no-heads.json: num_attention_heads: missing", UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/text-width.json"),
                       "data/text-width.json:2: hidden_size: expected an integer, found \"4096\"", UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/unknown-family.json"), doctest::Contains("did you mean \"qwen2\"?"), UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/not-json.json"), doctest::Contains("not JSON"), UsageError);
  CHECK_THROWS_WITH_AS(from_hf("data/none.json"), doctest::Contains("no such file"), UsageError);
}

namespace {

/// A Llama with `more` in its config.json; what is said of it.
std::string said_of(const std::string& more, Strings* notes = nullptr) {
  static int number = 0;
  const auto path = std::filesystem::temp_directory_path() /
                    ("pipewright_keys_" + std::to_string(getpid()) + "_" + std::to_string(++number) + ".json");
  const std::string inner =
      R"("model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
      "num_hidden_layers": 2, "vocab_size": 100)";
  std::ofstream(path) << (more.starts_with("{")
                              ? more.substr(0, more.size() - 1) + ", \"text_config\": {" + inner + "}}"
                              : "{" + inner + (more.empty() ? "" : ", " + more) + "}");
  std::string said;
  try {
    from_hf(path.string(), notes);
  } catch (const UsageError& error) {
    said = error.what();
  }
  std::filesystem::remove(path);
  return said;
}

}  // namespace

TEST_CASE("all that is missing is said at once") {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      check(parse(text, "here.yaml"));
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  };
  CHECK(refused("scenario: 1\n") == "here.yaml: model, settings, cluster: missing sections");
  CHECK(refused("scenario: 1\nmodel: {num_layers: 2, hidden_size: 64}\nsettings: {}\ncluster: {num_gpus: 1}\n") ==
        "here.yaml:2: model.num_attention_heads, model.seq_length, model.vocab_size, settings.micro_batch_size, "
        "settings.global_batch_size: missing");
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_all_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << R"({"model_type": "qwen3_moe", "hidden_size": 64, "layer_types": ["full_attention"],
    "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 100, "use_sliding_window": true,
    "sliding_window": 4})";
  CHECK_THROWS_WITH_AS(
      from_hf(path.string()),
      (path.string() + ": num_hidden_layers, num_experts, num_experts_per_tok, moe_intermediate_size: missing").c_str(),
      UsageError);
  std::filesystem::remove(path);
  CHECK_THROWS_WITH_AS(check(from_hf("data/qwen3-8b.json")),
                       doctest::Contains("model.seq_length, cluster.num_gpus: missing"), UsageError);
}

TEST_CASE("keys of a config.json: parts of a model are refused, what nobody knows is said") {
  for (const char* neutral : {"", "\"use_cache\": true, \"initializer_range\": 0.02, \"quantization_config\": {}",
                              "\"attention_dropout\": 0.0", "\"num_local_experts\": 1", "\"alibi\": false",
                              "\"embedding_multiplier\": 1.0", "\"vision_config\": null", "\"mlp_only_layers\": []"}) {
    CAPTURE(neutral);
    Strings notes;
    CHECK(said_of(neutral, &notes).empty());
    CHECK(notes.empty());
  }
  for (const char* part :
       {"\"vision_config\": {}", "\"num_local_experts\": 8", "\"n_routed_experts\": 64", "\"kv_lora_rank\": 512",
        "\"attention_dropout\": 0.1", "\"resid_pdrop\": 0.1", "\"alibi\": true", "\"use_parallel_residual\": true",
        "\"clip_qkv\": 8", "\"embedding_multiplier\": 12", "\"mlp_only_layers\": [0]",
        "\"final_logit_softcapping\": 30", "{\"vision_config\": {}}",
        "{\"model_type\": \"llava\", \"vision_config\": {\"hidden_size\": 1}}", "{\"audio_config\": {}}"}) {
    CAPTURE(part);
    CHECK(said_of(part).find("not modelled") != std::string::npos);
  }
  Strings notes;
  CHECK(said_of("\"frobnicate\": 3, \"use_cache\": true, \"other_thing\": [1]", &notes).empty());
  REQUIRE(notes.size() == 1);
  CHECK(notes.front().ends_with(": frobnicate other_thing"));
}

TEST_CASE("families that are not modelled are refused part by part") {
  for (const auto& [family, part] :
       std::initializer_list<std::pair<const char*, const char*>>{{"phimoe", "sparse mixer routing"},
                                                                  {"mamba2", "state-space"},
                                                                  {"granite", "multipliers"},
                                                                  {"cohere", "beside its attention"},
                                                                  {"phi", "beside its attention"},
                                                                  {"gpt_neox", "beside its attention"},
                                                                  {"exaone4", "unfused attention"}}) {
    CAPTURE(family);
    const auto path = std::filesystem::temp_directory_path() / (std::string("pipewright_family_") + family + ".json");
    std::ofstream(path) << "{\"model_type\": \"" << family << "\"}";
    std::string said;
    try {
      from_hf(path.string());
    } catch (const UsageError& error) {
      said = error.what();
    }
    std::filesystem::remove(path);
    CAPTURE(said);
    CHECK(said.find("is not modelled; what is missing") != std::string::npos);
    CHECK(said.find(part) != std::string::npos);
  }
}

}  // namespace huggingface_test
