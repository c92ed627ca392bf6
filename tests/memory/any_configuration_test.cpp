// Configurations drawn at random from what Megatron accepts: whatever they are made of, the walk comes to its end and
// its numbers keep their order. Runs in tests/memory.
#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>
#include <random>

#include "../draws.hpp"
#include "../on_h200.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/scenario/io.hpp"

namespace any_configuration_test {

using namespace pipewright;

namespace {

/// Draws; the same for the same seed on every platform.
class Drawn {
 public:
  explicit Drawn(unsigned seed) : engine_(seed) {}

  std::string one_of(std::initializer_list<const char*> values) {
    return values.begin()[engine_() % static_cast<unsigned>(values.size())];
  }
  std::string field(const std::string& name, std::initializer_list<const char*> values) {
    return ", " + name + ": " + one_of(values);
  }
  std::string truth(const std::string& name) { return field(name, {"true", "false"}); }

 private:
  std::mt19937 engine_;
};

std::string drawn_model(Drawn& d, bool moe) {
  std::string m = "num_layers: 8, hidden_size: 1024, ffn_hidden_size: 2816, num_attention_heads: 16, seq_length: 1024";
  m += d.field("num_query_groups", {"16", "4"}) + d.field("vocab_size", {"50257", "32000"}) +
       d.truth("gated_linear_unit") + d.field("normalization", {"RMSNorm", "LayerNorm"}) +
       (moe ? ", add_bias_linear: false" : d.truth("add_bias_linear")) +
       d.truth("untie_embeddings_and_output_weights") + d.truth("qk_layernorm") +
       d.field("position_embedding_type", {"rope", "learned_absolute"});
  if (moe) {
    m += ", num_moe_experts: 16, moe_ffn_hidden_size: 512" + d.field("moe_router_topk", {"1", "2", "8"}) +
         d.one_of({"", ", moe_shared_expert_intermediate_size: 1024"}) +
         d.one_of({"", ", moe_layer_freq: [0,1,1,1,1,1,1,1]"});
  }
  if (d.one_of({"", "", "", "latent"}) == "latent") {
    m += ", multi_latent_attention: true, kv_lora_rank: 128, qk_head_dim: 64, qk_pos_emb_head_dim: 32, v_head_dim: 64" +
         d.field("rope_type", {"rope", "yarn"}) + d.field("q_lora_rank", {"none", "256"});
  }
  return m + d.one_of({"", "", ", mtp_num_layers: 1"});
}

std::string recompute(Drawn& d) {
  const auto what =
      d.one_of({"", "core_attn", "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj", "full"});
  if (what.empty()) return "";
  if (what != "full") return ", recompute_granularity: selective, recompute_modules: [" + what + "]";
  return ", recompute_granularity: full" + d.field("recompute_method", {"uniform", "block"}) +
         d.field("recompute_num_layers", {"1", "2"});
}

std::string drawn_settings(Drawn& d, bool moe) {
  const auto stages = d.one_of({"1", "2", "4"});
  std::string s = "pipeline_model_parallel_size: " + stages +
                  ", global_batch_size: 64, use_distributed_optimizer: true" +
                  d.one_of({"", ", tensor_model_parallel_size: 2, sequence_parallel: true"}) +
                  d.field("context_parallel_size", {"1", "1", "2"}) + d.field("micro_batch_size", {"1", "2"}) +
                  d.one_of({", bf16: true", ", bf16: true", ", fp16: true"});
  if (stages != "1") {
    s += d.one_of({"", ", virtual_pipeline_model_parallel_size: 2, overlap_p2p_comm: true, batch_p2p_comm: false"});
  }
  for (const char* name : {"gradient_accumulation_fusion", "grad_reduce_in_fp32", "apply_rope_fusion",
                           "bias_activation_fusion", "attention_softmax_in_fp32", "masked_softmax_fusion",
                           "cross_entropy_loss_fusion", "use_precision_aware_optimizer"})
    s += d.truth(name);
  s += d.field("hidden_dropout", {"0.0", "0.1"}) + d.field("attention_dropout", {"0.0", "0.1"}) +
       d.field("transformer_impl", {"transformer_engine", "transformer_engine", "local"});
  const auto recipe = d.one_of({"", "", "tensorwise", "delayed", "blockwise"});
  if (!recipe.empty()) {
    s += ", fp8: hybrid, fp8_recipe: " + recipe + d.one_of({"", ", fp8_param: true, fp8_param_gather: true"});
  }
  if (moe) {
    s += ", moe_grouped_gemm: true" + d.field("moe_token_dispatcher_type", {"alltoall", "allgather"}) +
         d.truth("moe_permute_fusion") + d.field("expert_model_parallel_size", {"1", "2"});
  }
  return s + recompute(d);
}

}  // namespace

TEST_CASE("any configuration: what the quick looks promise, the walk keeps; 2 % less than the peak is too little") {
  int walked = 0, refused = 0;
  for (unsigned seed = 0; seed < test::draws(120); ++seed) {
    Drawn d(seed);
    const bool moe = d.one_of({"", "moe"}) == "moe";
    const std::string text =
        "scenario: 1\nmodel: {" + drawn_model(d, moe) + "}\nsettings: {" + drawn_settings(d, moe) +
        "}\ncluster: {profile: h200-sxm, num_gpus: 16, gpus_per_node: 8}\nenvironment: {PYTORCH_CUDA_ALLOC_CONF: '" +
        d.one_of({"", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8"}) + "'}\n";
    CAPTURE(text);
    std::optional<scenario::Scenario> s;
    std::optional<model::Stages> stages;
    try {
      s = scenario::parse(text, "drawn.yaml");
      scenario::check(*s);
      stages = test::build(*s);
    } catch (const UsageError&) {  // Megatron would refuse it too, or it is not modelled
      ++refused;
      continue;
    }
    const auto program = schedule::build(schedule::config_of(*s));
    const int last = static_cast<int>(stages->ranks.size()) - 1;
    for (const int rank : {0, last}) {
      const auto w = memory::walk(*stages, program, *s, rank);
      const auto quick = memory::scout(*stages, program, *s, rank);
      CHECK(memory::floor(*stages, schedule::config_of(*s), rank).peak_allocated <= quick.peak_allocated);
      CHECK(quick.peak_allocated <= w.peak_allocated);
      CHECK(w.static_bytes <= w.after_step);
      CHECK(w.after_step <= w.peak_allocated);
      CHECK(w.peak_allocated <= w.peak_reserved);
      CHECK(memory::walk(*stages, program, *s, rank, Bytes(w.peak_allocated.value / 50 * 49)).failure);
      if (seed % 4 == 0) {  // the same halving with the whole process replayed for every limit
        constexpr Bytes resolution{1 << 20};
        Bytes fails = w.peak_allocated - Bytes(1), works = w.peak_reserved + Bytes(1 << 20);
        const Bytes least = memory::least_to_run(*stages, program, *s, rank, fails, works, resolution);
        while (works - fails > resolution) {
          const Bytes middle(fails.value + (works - fails).value / 2);
          (memory::runs_within(*stages, program, *s, rank, middle) ? works : fails) = middle;
        }
        CHECK(least == works);
      }
    }
    ++walked;
  }
  CHECK(walked > static_cast<int>(test::draws(40)));
  CHECK(refused > 0);
}

TEST_CASE("what offload brings back dies: the step ends with the same bytes") {
  const auto after = [](const std::string& model, const std::string& settings) {
    const auto s = scenario::parse(
        "scenario: 1\nmodel: {num_layers: 8, hidden_size: 1024, ffn_hidden_size: 2816, num_attention_heads: 16, "
        "seq_length: 2048, vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, "
        "untie_embeddings_and_output_weights: true, position_embedding_type: rope" +
            model +
            "}\nsettings: {pipeline_model_parallel_size: 2, global_batch_size: 16, bf16: true, hidden_dropout: 0.0, "
            "micro_batch_size: 2" +
            settings +
            "}\ncluster: {profile: h200-sxm, num_gpus: 4, gpus_per_node: 4}\n"
            "environment: {NVTE_CPU_OFFLOAD_V1: '1'}\n",
        "offload.yaml");
    const auto stages = test::build(s);
    return memory::walk(stages, schedule::build(schedule::config_of(s)), s, 0).after_step;
  };
  const std::string latent =
      ", multi_latent_attention: true, q_lora_rank: 512, kv_lora_rank: 512, qk_head_dim: 64, qk_pos_emb_head_dim: 64, "
      "v_head_dim: 64, qk_layernorm: true, rope_type: yarn";
  for (const auto& model : {std::string(), latent})
    for (const char* backend : {"flash", "unfused"})
      for (const char* dropout : {"0.0", "0.1"})
        for (const char* module : {"", "core_attn", "layernorm", "mla_up_proj"}) {
          if (std::string(module) == "mla_up_proj" && model.empty()) continue;
          const std::string settings =
              std::string(", attention_backend: ") + backend + ", attention_dropout: " + dropout +
              (*module != 0 ? std::string(", recompute_granularity: selective, recompute_modules: [") + module + "]"
                            : "");
          for (const char* offloaded : {"core_attn", "core_attn, attn_proj", "qkv_linear, core_attn, attn_proj"}) {
            CAPTURE(model);
            CAPTURE(settings);
            CAPTURE(std::string(offloaded));
            const std::string offload =
                std::string(", fine_grained_activation_offloading: true, offload_modules: [") + offloaded + "]";
            // What stays may sit in blocks that were not split (up to 1 MiB of rest each); a leak is 2 MiB a layer and
            // microbatch.
            CHECK(std::abs(after(model, settings + offload).value - after(model, settings).value) < 2 << 20);
          }
        }
}

}  // namespace any_configuration_test
