// Scenarios drawn at random: data, tensor, context and expert parallelism, experts, latent attention, FP8, recompute,
// both kinds of offload, expert overlap, bucket sizes, few microbatches.
#pragma once

#include <optional>
#include <random>
#include <string>

#include "../on_h200.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::test {

/// The same for the same seed on every platform.
class Drawn {
 public:
  explicit Drawn(unsigned seed) : engine_(seed) {}
  unsigned below(unsigned n) { return static_cast<unsigned>(engine_() % n); }
  bool chance(unsigned percent) { return below(100) < percent; }
  int one_of(std::initializer_list<int> values) { return values.begin()[below(static_cast<unsigned>(values.size()))]; }
  std::string word(std::initializer_list<const char*> values) {
    return values.begin()[below(static_cast<unsigned>(values.size()))];
  }

 private:
  std::mt19937 engine_;
};

inline std::string field(const std::string& name, const auto& value) {
  if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>)
    return ", " + name + ": " + std::to_string(value);
  else
    return ", " + name + ": " + value;
}

struct Shape {
  bool moe, latent;
  int pp, vpp, tp, cp, dp, ep, microbatches;
  int layers = 0;
};
/// Now and then, beside nothing that is recomputed; or in every scenario, beside anything.
enum class Offloads : std::uint8_t { some, all };

inline std::string drawn_model(Drawn& d, Shape& shape) {
  shape.layers = shape.pp * shape.vpp * d.one_of({1, 2, 3});
  std::string m = "num_layers: " + std::to_string(shape.layers) + field("hidden_size", d.one_of({1024, 2048, 4096})) +
                  ", ffn_hidden_size: 7168, num_attention_heads: 16, num_query_groups: 8, gated_linear_unit: true, "
                  "normalization: RMSNorm, add_bias_linear: false, position_embedding_type: rope" +
                  field("seq_length", d.one_of({1024, 2048, 4096})) + field("vocab_size", d.one_of({32000, 128256})) +
                  field("untie_embeddings_and_output_weights", d.word({"true", "false"}));
  if (shape.moe)
    m += field("num_moe_experts", d.one_of({8, 16})) + ", moe_ffn_hidden_size: 1024" +
         field("moe_router_topk", d.one_of({1, 2, 4})) + d.word({"", ", moe_shared_expert_intermediate_size: 1024"});
  if (shape.latent)
    m += ", multi_latent_attention: true, kv_lora_rank: 128, qk_head_dim: 64, qk_pos_emb_head_dim: 32, v_head_dim: 64";
  return m;
}

inline std::string recompute(Drawn& d) {
  const auto what =
      d.word({"", "", "core_attn", "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj", "full"});
  if (what.empty()) return "";
  if (what != "full") return ", recompute_granularity: selective, recompute_modules: [" + what + "]";
  return ", recompute_granularity: full" + field("recompute_method", d.word({"uniform", "block"})) +
         field("recompute_num_layers", d.one_of({1, 2}));
}

/// Whole layers, or any modules, of which some groups stay on the device.
inline std::string offload(Drawn& d, const Shape& shape) {
  if (shape.pp == 1 && shape.layers > 1 && d.chance(70))
    return ", cpu_offloading: true" +
           field("cpu_offloading_num_layers", 1 + static_cast<int>(d.below(2)) % (shape.layers - 1));
  std::string modules;
  const auto add = [&](const char* module, unsigned percent) {
    if (d.chance(percent)) modules += std::string(modules.empty() ? "" : ", ") + module;
  };
  add("core_attn, attn_proj", 30);
  add("qkv_linear", 40);
  add("mlp_norm", 30);
  if (shape.moe) add("expert_fc1", 50), add("moe_act", 50);
  if (modules.empty()) modules = "core_attn";
  std::string s = ", fine_grained_activation_offloading: true, offload_modules: [" + modules + "]" +
                  field("min_offloaded_tensor_size", d.one_of({0, 1048576}));
  s += d.word({"", "", ", activation_offload_fraction: 0.6", ", activation_offload_fraction: 0.3"});
  s += d.word({"", "", ", delta_offload_bytes_across_pp_ranks: 40000000"});
  return s + d.word({"", "", ", fine_grained_offloading_max_inflight_offloads: 0",
                     ", fine_grained_offloading_max_inflight_offloads: 2"});
}

inline std::string drawn_settings(Drawn& d, const Shape& shape, Offloads offloads) {
  std::string s =
      "bf16: true, gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0, "
      "use_distributed_optimizer: true, micro_batch_size: 1" +
      field("global_batch_size", shape.microbatches * shape.dp) + field("pipeline_model_parallel_size", shape.pp) +
      field("tensor_model_parallel_size", shape.tp) + field("context_parallel_size", shape.cp) +
      field("sequence_parallel", std::string(shape.tp > 1 ? "true" : "false"));
  if (shape.cp > 1 && offloads == Offloads::some)
    s += d.word({"", "", ", cp_comm_type: [a2a]", ", cp_comm_type: [all_gather]"});
  if (shape.vpp > 1) s += field("virtual_pipeline_model_parallel_size", shape.vpp);
  const bool overlap = shape.pp > 1 && shape.vpp > 1 && d.chance(70);
  if (overlap) s += ", overlap_p2p_comm: true, batch_p2p_comm: false";
  if (shape.vpp > 1 && d.chance(30)) s += field("microbatch_group_size_per_vp_stage", shape.pp * 2);
  if (d.chance(70))
    s += ", overlap_grad_reduce: true, overlap_param_gather: true" +
         field("bucket_size", d.one_of({4000000, 40000000, 400000000})) +
         field("align_param_gather", d.word({"true", "false"}));
  if (d.chance(40))
    s += ", fp8: hybrid" + field("fp8_recipe", d.word({"tensorwise", "delayed", "blockwise"})) +
         d.word({"", ", fp8_param: true, fp8_param_gather: true"});
  if (shape.pp > 1 && d.chance(30))
    s += ", defer_embedding_wgrad_compute: true" + field("wgrad_deferral_limit", d.one_of({0, 3, 9}));
  if (shape.moe) {
    s += ", moe_grouped_gemm: true, moe_permute_fusion: true" + field("expert_model_parallel_size", shape.ep) +
         ", expert_tensor_parallel_size: 1" + field("moe_token_dispatcher_type", d.word({"alltoall", "allgather"}));
    if (overlap && d.chance(30)) {
      s += ", overlap_moe_expert_parallel_comm: true" + d.word({"", ", delay_wgrad_compute: true"});
      return offloads == Offloads::all ? s + offload(d, shape) : s;
    }
    if (offloads == Offloads::some && d.chance(20))
      return s + ", fine_grained_activation_offloading: true, offload_modules: [moe_act]";
  } else if (offloads == Offloads::some && d.chance(10)) {
    if (shape.pp == 1)  // fewer than all
      return shape.layers > 1 ? s + ", cpu_offloading: true, cpu_offloading_num_layers: 1" : s + recompute(d);
    return s + ", fine_grained_activation_offloading: true, offload_modules: [core_attn]";
  }
  if (offloads == Offloads::all) s += offload(d, shape);
  return s.find("cpu_offloading") == std::string::npos ? s + recompute(d) : s;
}

inline std::string drawn_cluster(Drawn& d, const Shape& shape) {
  return "cluster: {profile: h200-sxm, num_gpus: " + std::to_string(shape.pp * shape.tp * shape.cp * shape.dp) +
         ", gpus_per_node: 8}\nenvironment: {CUDA_DEVICE_MAX_CONNECTIONS: '" + d.word({"1", "8"}) + "'}\n";
}

inline std::string drawn(unsigned seed, Offloads offloads = Offloads::some) {
  Drawn d(seed);
  Shape shape{};
  shape.moe = d.chance(40);
  shape.latent = d.chance(15);
  shape.pp = d.one_of({1, 2, 2, 4, 4});
  shape.vpp = shape.pp > 1 ? d.one_of({1, 2, 3}) : 1;
  shape.tp = d.one_of({1, 1, 2});
  shape.cp = d.one_of({1, 1, 1, 2});
  shape.dp = d.one_of({1, 2, 8});
  shape.ep = shape.moe ? d.one_of({1, 2, 4}) : 1;
  shape.microbatches = shape.pp * d.one_of({1, 2, 4, 12});
  const std::string text =
      "scenario: 1\nmodel: {" + drawn_model(d, shape) + "}\nsettings: {" + drawn_settings(d, shape, offloads) + "}\n";
  return text + drawn_cluster(d, shape);
}

/// The same settings around the model of a config.json.
inline std::string drawn(unsigned seed, const std::string& config) {
  Drawn d(seed);
  const auto model = scenario::from_hf(config).model;
  const auto splits = [&](int parts) { return model.num_layers % parts == 0; };
  Shape shape{};
  shape.moe = model.num_moe_experts.has_value();
  shape.latent = model.multi_latent_attention;
  shape.pp = d.one_of({1, 1, 2, 4});
  if (!splits(shape.pp)) shape.pp = 1;
  shape.vpp = shape.pp > 1 && splits(2 * shape.pp) ? d.one_of({1, 2}) : 1;
  shape.tp = d.one_of({1, 1, 2});
  shape.cp = d.one_of({1, 1, 1, 2});
  shape.dp = d.one_of({1, 2, 8});
  shape.ep = shape.moe ? d.one_of({1, 2, 4}) : 1;
  shape.microbatches = shape.pp * d.one_of({1, 2});
  shape.layers = static_cast<int>(model.num_layers);
  return "scenario: 1\nmodel: {hf_config: " + config + field("seq_length", d.one_of({1024, 4096, 8192})) +
         "}\nsettings: {" + drawn_settings(d, shape, Offloads::some) + "}\n" + drawn_cluster(d, shape);
}

/// nullopt: Megatron would refuse it too, or it is not modelled.
inline std::optional<scenario::Scenario> accepted(const std::string& text) {
  try {
    auto s = scenario::parse(text, "drawn.yaml");
    scenario::check(s);
    build(s);
    if (s.settings.fine_grained_activation_offloading) scenario::refuse_unmodelled(s);
    return s;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

}  // namespace pipewright::test
