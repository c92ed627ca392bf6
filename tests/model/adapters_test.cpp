// LoRA beside experts and latent attention (Megatron Bridge peft/utils.py, ParallelLinearAdapter with is_expert): one
// adapter for all experts of a rank, what frozen groups keep, where a frozen model's first backward begins.
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <set>

#include "../plan/bases.hpp"
#include "pipewright/effects.hpp"
#include "support.hpp"

namespace adapters_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Kernel;
using model::Piece;

namespace {

constexpr std::int64_t S = 4096, h = 4096, f = 2048, shared = 1024, k = 2, n = S * k, r = 16, E = 8;

scenario::Scenario mixture(std::initializer_list<const char*> more = {}) {
  return with(scenario::parse(R"(scenario: 1
model: {num_layers: 4, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8,
  seq_length: 4096, vocab_size: 32000, num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 2048,
  gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {micro_batch_size: 1, global_batch_size: 16, bf16: true, expert_tensor_parallel_size: 1,
  use_distributed_optimizer: true, grad_reduce_in_fp32: true, gradient_accumulation_fusion: true, hidden_dropout: 0.0,
  attention_dropout: 0.0, apply_rope_fusion: true, moe_token_dispatcher_type: alltoall, moe_grouped_gemm: true,
  moe_permute_fusion: true, moe_router_dtype: fp32, bias_activation_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 8, gpus_per_node: 8, link: nvlink}
)",
                              "mixture.yaml"),
              more);
}

scenario::Scenario latent(std::initializer_list<const char*> more = {}) {
  return with(mixture({"multi_latent_attention=true", "q_lora_rank=1536", "kv_lora_rank=512", "qk_head_dim=128",
                       "qk_pos_emb_head_dim=64", "v_head_dim=128", "qk_layernorm=true", "num_query_groups=none"}),
              more);
}

const Piece& layer(const model::Stages& stages, std::size_t index) {
  return stages.pieces[stages.ranks[0].chunks[0].pieces[index + 1]];
}
std::int64_t kept(const scenario::Scenario& s, std::size_t index = 1) {
  return saved(layer(pipewright::test::build(s), index));
}

std::vector<Kernel> kernels(const Piece& piece, const std::string& part) {
  std::vector<Kernel> found;
  for (const auto& kernel : piece.kernels)
    if (kernel.name.find(part) != std::string::npos) found.push_back(kernel);
  return found;
}

}  // namespace

TEST_CASE("frozen experts keep neither rows nor activations; an adapter keeps what it multiplies, and its low rank") {
  const auto attention = with(mixture(), {"lora_target_modules=[linear_qkv]", "lora_dim=16"});
  // Gone: the rows and the activation of the experts. The adapter keeps l and what qkv's norm has put out.
  CHECK(kept(mixture()) - kept(attention) == 2 * n * h + 2 * n * f - 2 * S * r);
  const auto fc1 = with(attention, {"lora_target_modules=[linear_qkv, linear_fc1]"});
  CHECK(kept(fc1) - kept(attention) == 2 * n * h + 2 * n * r);
  const auto both = with(attention, {"lora_target_modules=[linear_qkv, linear_fc1, linear_fc2]"});
  CHECK(kept(both) - kept(fc1) == 2 * n * f + 2 * n * r);
  // Of shared experts the activation and both low ranks: their input is the router's.
  const auto beside = [&](const scenario::Scenario& s) {
    return kept(with(s, {"moe_shared_expert_intermediate_size=1024"})) - kept(s);
  };
  CHECK(beside(mixture()) - beside(attention) == 2 * S * shared);
  CHECK(beside(both) - beside(attention) == 2 * S * shared + 2 * (2 * S * r));
}

TEST_CASE("one adapter for all experts of a rank: its products, weights, gradients and who sums them") {
  const auto base = with(mixture(), {"expert_model_parallel_size=4", "lora_dim=16",
                                     "lora_target_modules=[linear_qkv, linear_fc1, linear_fc2]"});
  const auto stages = pipewright::test::build(base);
  const auto& piece = layer(stages, 1);
  const auto adapters = kernels(piece, "experts.fc1 adapter in");
  REQUIRE(adapters.size() == 2);  // and its input's gradient
  CHECK(adapters[0].key.dims == std::vector<std::int64_t>{r, n, h});
  CHECK(kernels(piece, "experts.fc1 wgrad").empty());
  CHECK(kernels(piece, "experts.fc1 adapter wgrad").size() == 2);
  CHECK(kernels(piece, "router weight gradient accumulation").empty());
  CHECK(kernels(piece, "router gating backward").size() == 1);
  // h + 2 f and f + h numbers each, next to qkv's; the fc1 adapter's out has both halves of the gate.
  const std::int64_t weights = 4 * (r * (h + 2 * f) + r * (f + h)), attention = 4 * r * (4096 + 6144);
  const auto frozen = pipewright::test::build(with(base, {"lora_target_modules=[linear_qkv]"}));
  CHECK(stages.ranks[0].chunks[0].parameters - frozen.ranks[0].chunks[0].parameters == weights);
  std::int64_t gathered = 0;
  for (const auto* list : {&stages.ranks[0].optimizer, &stages.ranks[0].finalize})
    for (const auto& kernel : *list)
      if (kernel.name == "parameter all-gather") gathered += kernel.key.dims.back();
  // Both optimizers, dense and experts', gather all buffers.
  CHECK(gathered >= 2 * 2 * (weights + attention));
  CHECK(gathered <= 2 * 2 * (weights + attention) + 8 * 1024);
  // Bridge 0.7 sums both weights' gradients over the expert-parallel ranks in every microbatch, older ones do not.
  const auto sums = kernels(piece, "adapter gradient all-reduce");
  REQUIRE(sums.size() == 4);
  CHECK(sums[0].key.dims.back() == 2 * r * h);  // fc2 first: out's gradient
  const auto older = pipewright::test::build(with(base, {"software.megatron_bridge=0.6.0"}));
  CHECK(kernels(layer(older, 1), "adapter gradient all-reduce").empty());
  const auto alone = pipewright::test::build(with(base, {"expert_model_parallel_size=1"}));
  CHECK(kernels(layer(alone, 1), "adapter gradient all-reduce").empty());
}

TEST_CASE("latent attention frozen: no input of a projection stays but those of norms and adapters") {
  const auto trained = latent(), frozen = with(trained, {"lora_target_modules=[linear_proj]", "lora_dim=16"});
  // Gone beside the experts' rows and activations: the norm's output, which both down projections read. Queries and
  // keys keep the compressed tensors, their norms' inputs, not the outputs. The output is attention's own.
  CHECK(kept(trained) - kept(frozen) == 2 * n * h + 2 * n * f + 2 * S * h + 2 * S * (1536 + 512) - 2 * S * r);
  const auto stages = pipewright::test::build(frozen);
  CHECK(kernels(layer(stages, 1), "attention.proj adapter").size() == 10);
  CHECK(kernels(layer(stages, 1), "attention.q_up wgrad").empty());
}

TEST_CASE("adapters of latent attention's projections: what they keep, and where a first layer's backward ends") {
  const auto one = latent({"lora_target_modules=[linear_proj]", "lora_dim=16"});
  const auto all = with(one, {"lora_target_modules=[linear_q_down_proj, linear_q_up_proj, linear_kv_down_proj, "
                              "linear_kv_up_proj, linear_proj]"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(all));
  // n, which both down projections' adapters multiply, what the norms before the up projections put out, low ranks.
  CHECK(kept(all) - kept(one) == 2 * S * h + 2 * S * (1536 + 512) + 4 * 2 * S * r);
  const auto direct =
      with(one, {"q_lora_rank=none", "lora_target_modules=[linear_q_proj, linear_kv_down_proj, linear_proj]"});
  for (const auto& s : {all, direct}) {
    CHECK_NOTHROW(scenario::refuse_unmodelled(s));
    const auto stages = pipewright::test::build(s);
    check_all(stages);
    const auto &first = layer(stages, 0), &second = layer(stages, 1);
    const std::string q = s.model.q_lora_rank ? "attention.q_down" : "attention.q_up";
    for (const auto& kernel :
         {q + " dgrad", std::string("attention.kv_down dgrad"), std::string("attention.norm backward")}) {
      CAPTURE(kernel);
      CHECK(kernels(first, kernel).empty());
      CHECK_FALSE(kernels(second, kernel).empty());
    }
    for (const auto* piece : {&first, &second}) {
      CHECK(kernels(*piece, "attention.kv_down adapter wgrad").size() == 2);
      CHECK(kernels(*piece, q + " adapter wgrad").size() == 2);
      CHECK(kernels(*piece, "attention.kv_down adapter in dgrad").size() == 1);  // whether it is needed or not
      CHECK(kernels(*piece, q + " adapter in dgrad").size() == 1);
      CHECK_FALSE(kernels(*piece, "attention.kv_up dgrad").empty());
    }
  }
  for (const char* change :
       {"lora_target_modules=[linear_kv_up_proj]", "lora_target_modules=[linear_q_down_proj]", "qk_layernorm=false",
        "fp8=hybrid; fp8_recipe=tensorwise", "recompute_granularity=selective; recompute_modules=[mla_up_proj]",
        "tensor_model_parallel_size=2; sequence_parallel=true"}) {
    CAPTURE(change);
    auto s = all;
    pipewright::test::change(s, change);
    CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(s), doctest::Contains("latent attention's projections"),
                         UsageError);
  }
}

TEST_CASE("the first layer's backward begins at the first adapter") {
  for (const auto& s : {with(latent(), {"lora_target_modules=[linear_proj]", "lora_dim=16"}),
                        with(mixture(), {"lora_target_modules=[linear_proj]", "lora_dim=16"})}) {
    const auto stages = pipewright::test::build(s);
    const auto &first = layer(stages, 0), &second = layer(stages, 1);
    check_balance(first);
    for (const char* kernel : {"attention.proj dgrad", "attention.core backward"}) {
      CAPTURE(kernel);
      CHECK(kernels(first, kernel).empty());
      CHECK_FALSE(kernels(second, kernel).empty());
    }
    CHECK(kernels(first, "attention.proj adapter wgrad").size() == 2);
    CHECK(kernels(first, "attention.proj adapter in dgrad").size() == 1);  // Megatron's linear asks nobody for a need
    CHECK(saved(first) < saved(second));
  }
}

TEST_CASE("a first mixture's backward ends beside fc1: nothing goes back to the ranks that sent its rows") {
  const auto s = mixture({"lora_target_modules=[linear_fc1, linear_fc2]", "lora_dim=16", "expert_model_parallel_size=4",
                          "moe_shared_expert_intermediate_size=1024"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(s));
  const auto stages = pipewright::test::build(s);
  const auto &first = layer(stages, 0), &second = layer(stages, 1);
  check_balance(first);
  for (const char* kernel :
       {"moe dispatch all-to-all in backward", "moe permute backward", "router gating backward", "experts.fc1 dgrad",
        "shared_experts.fc1 dgrad", "moe.norm backward", "attention.core backward"}) {
    CAPTURE(kernel);
    CHECK(kernels(first, kernel).empty());
    CHECK_FALSE(kernels(second, kernel).empty());
  }
  for (const char* kernel : {"moe combine all-to-all in backward", "moe unpermute backward", "experts.fc2 dgrad",
                             "experts.fc1 adapter in dgrad", "experts.fc1 adapter wgrad",
                             "shared_experts.fc1 adapter wgrad", "shared_experts.fc2 dgrad"}) {
    CAPTURE(kernel);
    CHECK(kernels(first, kernel).size() == kernels(second, kernel).size());
  }
  CHECK(saved(first) < saved(second));
}

TEST_CASE("frozen parameters in MXFP8 are quantized once: the optimizer step leaves them") {
  const auto s = with(mixture(), {"num_moe_experts=none", "expert_tensor_parallel_size=none", "fp8=e4m3",
                                  "fp8_recipe=mxfp8", "fp8_param=true", "fp8_param_gather=true",
                                  "reuse_grad_buf_for_mxfp8_param_ag=true", "profile=b200-sxm"});
  const auto quantized = [](const scenario::Scenario& one) {
    int count = 0;
    const auto stages = model::build(one, profile::data_sheet("b200-sxm").device);
    for (const auto& kernel : stages.ranks[0].optimizer)
      count += kernel.name == "parameters quantized" || kernel.name == "gathered parameters zeroed" ? 1 : 0;
    return count;
  };
  CHECK(quantized(s) == 4 * 4 + 1);
  CHECK(quantized(with(s, {"lora_target_modules=[linear_qkv]"})) == 0);
}

TEST_CASE("a graph of a frozen MLP returns the gradient of its input alone") {
  const auto graphed =
      with(mixture(), {"num_moe_experts=none", "expert_tensor_parallel_size=none", "cuda_graph_impl=transformer_engine",
                       "cuda_graph_modules=[mlp]", "use_te_rng_tracker=true"});
  const auto count = [](const scenario::Scenario& s) {
    return kernels(layer(pipewright::test::build(s), 1), "mlp.fc1 norm gradient accumulation").size();
  };
  const auto frozen = with(graphed, {"lora_target_modules=[linear_qkv, linear_proj]"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(frozen));
  CHECK_THROWS_AS(scenario::refuse_unmodelled(with(frozen, {"lora_target_modules=[linear_qkv, linear_fc1]"})),
                  UsageError);
  check_balance(layer(pipewright::test::build(frozen), 1));
  CHECK(count(graphed) == 1);
  CHECK(count(frozen) == 0);
}

TEST_CASE("what is born dies, whatever is adapted, recomputed, cast or shared") {
  std::mt19937 chance(3);
  const auto one_of = [&](std::initializer_list<const char*> list) {
    return *(list.begin() + std::uniform_int_distribution<std::size_t>(0, list.size() - 1)(chance));
  };
  int built = 0;
  for (int round = 0; round < 300; ++round) {
    auto s = chance() % 2 == 0 ? mixture() : latent();
    for (const char* change :
         {one_of({"lora_target_modules=[linear_qkv, linear_proj]", "lora_target_modules=[linear_proj, linear_fc1]",
                  "lora_target_modules=[linear_proj, linear_fc2]", "lora_target_modules=[linear_proj]",
                  "lora_target_modules=[linear_fc1, linear_fc2]", "lora_target_modules=[linear_fc1]",
                  "lora_target_modules=[linear_q_proj, linear_q_down_proj, linear_kv_down_proj]",
                  "lora_target_modules=[linear_q_proj, linear_q_down_proj, linear_q_up_proj, linear_kv_down_proj, "
                  "linear_kv_up_proj, linear_proj, linear_fc1]",
                  "lora_target_modules=[linear_qkv, linear_proj, linear_fc1, linear_fc2]"}),
          one_of({"fp8=none", "fp8=hybrid; fp8_recipe=tensorwise", "fp8=hybrid; fp8_recipe=delayed",
                  "fp8=e4m3; fp8_recipe=blockwise"}),
          one_of({"recompute_granularity=none",
                  "recompute_granularity=selective; recompute_modules=[moe_act, layernorm]",
                  "recompute_granularity=selective; recompute_modules=[moe]",
                  "recompute_granularity=selective; recompute_modules=[core_attn, mla_up_proj]",
                  "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1"}),
          one_of({"tensor_model_parallel_size=1",
                  "tensor_model_parallel_size=2; sequence_parallel=true; $CUDA_DEVICE_MAX_CONNECTIONS=1"}),
          one_of({"context_parallel_size=1", "context_parallel_size=2"}),
          one_of({"moe_shared_expert_intermediate_size=none", "moe_shared_expert_intermediate_size=1024"}),
          one_of({"gradient_accumulation_fusion=true", "gradient_accumulation_fusion=false"}),
          one_of({"moe_token_dispatcher_type=alltoall", "moe_token_dispatcher_type=allgather",
                  "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep; moe_router_dtype=fp32"}),
          one_of({"moe_shared_expert_overlap=false", "moe_shared_expert_overlap=true"}),
          one_of({"add_bias_linear=false", "add_bias_linear=true; moe_router_dtype=fp32"}),
          one_of({"expert_model_parallel_size=1", "expert_model_parallel_size=4"}),
          one_of({"mtp_num_layers=none", "mtp_num_layers=1", "mtp_num_layers=2"}),
          one_of({"qk_layernorm=true", "qk_layernorm=false"}), one_of({"q_lora_rank=1536", "q_lora_rank=none"})}) {
      pipewright::test::change(s, change);
    }
    if (!scenario::unmodelled(s).empty()) continue;
    ++built;
    CAPTURE(round);
    for (const auto& piece : pipewright::test::build(s).pieces) {
      check_balance(piece);
      for (const auto& kernel : piece.kernels)
        if (!kernel.key.family.empty()) CHECK_NOTHROW(profile::family(kernel.key.family));
    }
  }
  CHECK(built > 100);
}

TEST_CASE("a stage without adapters owns nothing: no kernel of it is empty, and it joins in what all ranks reduce") {
  for (const char* settings : {"", "log_num_zeros_in_grad=true", "log_params_norm=true", "bf16=false; fp16=true",
                               "grad_reduce_in_fp32=false", "use_distributed_optimizer=false", "clip_grad=0.0"}) {
    CAPTURE(settings);
    auto s = with(mixture(), {"pipeline_model_parallel_size=4", "pipeline_model_parallel_layout=E|t*2|t*2|L",
                              "lora_target_modules=[linear_qkv]", "lora_dim=16"});
    pipewright::test::change(s, settings);
    const auto stages = pipewright::test::build(s);
    std::vector<std::size_t> reduced;
    for (const auto& rank : stages.ranks) {
      reduced.push_back(0);
      for (const auto& kernel : rank.optimizer) {
        CAPTURE(kernel.name);
        for (const auto size : kernel.key.dims) CHECK(size >= 1);
        reduced.back() += kernel.name.ends_with("all-reduce") ? 1 : 0;
      }
    }
    for (const auto number : reduced) CHECK(number == reduced.front());
  }
}

// Bridge freezes all parameters and adapts linears by name: eh_proj is none of them. The embedding puts out nothing
// that needs a gradient, so enorm saves nothing and neither does the product behind it.
TEST_CASE("a frozen depth keeps nothing for its embedding, norm of it or projection") {
  const auto depth = [](const scenario::Scenario& s) {
    const auto stages = pipewright::test::build(s);
    check_all(stages);
    for (const auto index : stages.ranks.back().chunks.back().pieces)
      if (stages.pieces[index].name == "mtp") return stages.pieces[index];
    throw std::logic_error("no depth");
  };
  const auto adapted = "lora_target_modules=[linear_qkv, linear_proj]";
  const auto layers = [](const scenario::Scenario& s) { return kept(s, 1); };
  const auto plain = mixture({"mtp_num_layers=1"}), frozen = mixture({"mtp_num_layers=1", adapted, "lora_dim=16"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(frozen));
  const std::int64_t of_depth = saved(depth(plain)) - saved(depth(frozen)), of_layer = layers(plain) - layers(frozen);
  // E, the statistics of its norm, both norms' outputs joined.
  CHECK(of_depth - of_layer == 2 * S * h + 4 * S + 2 * S * 2 * h);
  for (const auto& kernel : depth(frozen).kernels) {
    CAPTURE(kernel.name);
    CHECK(!kernel.name.starts_with("mtp.eh_proj wgrad"));
    CHECK(!kernel.name.starts_with("mtp.enorm gradient"));
    CHECK(!kernel.name.starts_with("embedding backward"));
  }
}

TEST_CASE("adapters otherwise than modelled are refused") {
  const auto all = "lora_target_modules=[linear_qkv, linear_proj, linear_fc1, linear_fc2]";
  CHECK_NOTHROW(scenario::refuse_unmodelled(mixture({all})));
  CHECK_NOTHROW(scenario::refuse_unmodelled(latent({all, "context_parallel_size=2"})));
  for (const char* change :
       {"delay_wgrad_compute=true", "overlap_moe_expert_parallel_comm=true", "use_transformer_engine_op_fuser=true",
        "lora_target_modules=[linear_fc2]",
        "lora_target_modules=[linear_fc1]; recompute_granularity=selective; recompute_modules=[moe]"}) {
    CAPTURE(change);
    CHECK_THROWS_AS(scenario::refuse_unmodelled(mixture({all, change})), UsageError);
  }
  CHECK_THROWS_AS(scenario::refuse_unmodelled(latent({"lora_target_modules=[linear_qkv]"})), UsageError);
  const auto shared_split = mixture(
      {all, "tensor_model_parallel_size=2", "sequence_parallel=true", "moe_shared_expert_intermediate_size=1024"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(shared_split));
  CHECK_THROWS_AS(scenario::refuse_unmodelled(with(shared_split, {"moe_shared_expert_overlap=true"})), UsageError);
}

namespace {

scenario::Scenario hybrid(const std::string& pattern, std::initializer_list<const char*> more = {}) {
  auto s = mixture({"mamba_num_heads=64", "mamba_num_groups=8", "mamba_state_dim=128", "position_embedding_type=none",
                    "gated_linear_unit=false", "activation_func=squared_relu"});
  scenario::set(s, "num_layers=" + std::to_string(pattern.size()));
  scenario::set(s, "hybrid_layer_pattern=\"" + pattern + "\"");
  return with(s, more);
}

constexpr std::int64_t inner = 64 * 64, projected = 2 * inner + 2 * 8 * 128 + 64;

}  // namespace

// mamba_ssm 2.3.2 (ssd_combined.py, layernorm_gated.py) and causal_conv1d compute every gradient whatever autograd
// wants; A = -exp(A_log) and dt_bias in fp32 are PyTorch's own, which stop there.
TEST_CASE("a frozen Mamba-2 mixer runs the kernels of a trained one but for its weights' and A's own gradients") {
  const auto trained = hybrid("M*M-"), frozen = with(trained, {"lora_target_modules=[linear_qkv]", "lora_dim=16"});
  const auto with_adapters = with(frozen, {"lora_target_modules=[in_proj, out_proj, linear_qkv]"});
  const auto of = [](const scenario::Scenario& s) { return layer(pipewright::test::build(s), 2); };
  const auto all = of(trained), none = of(frozen), both = of(with_adapters);
  for (const auto* piece : {&all, &none, &both}) {
    check_balance(*piece);
    for (const char* name :
         {"mamba.conv backward", "mamba.chunks backward", "mamba.products backward", "mamba.norm backward",
          "mamba.states backward", "mamba.in_proj dgrad", "mamba.out_proj dgrad"}) {
      CAPTURE(name);
      REQUIRE(kernels(*piece, name).size() == 1);
      CHECK(kernels(*piece, name)[0].launches == kernels(all, name)[0].launches);
    }
  }
  for (const char* name : {"mamba.decay backward", "mamba.in_proj wgrad", "mamba.D gradient accumulation"}) {
    CAPTURE(name);
    CHECK_FALSE(kernels(all, name).empty());
    CHECK(kernels(none, name).empty());
    CHECK(kernels(both, name).empty());
  }
  // Gone: the inputs of both products, and exp(A_log).
  CHECK(saved(all) - saved(none) == 2 * S * h + 2 * S * inner + 4 * 64);
  CHECK(saved(both) - saved(none) == 2 * S * h + 2 * S * inner + 2 * (2 * S * r));
  CHECK(kernels(both, "adapter wgrad").size() == 4);
  const auto parameters = [](const scenario::Scenario& s) {
    return pipewright::test::build(s).ranks[0].chunks[0].parameters;
  };
  CHECK(parameters(with_adapters) - parameters(frozen) == 2 * r * (h + projected + inner + h));
}

// Bridge freezes all and wraps by name; autograd goes back as far as the first adapter.
TEST_CASE("nothing before a frozen model's first adapter keeps or computes anything for a backward pass") {
  std::mt19937 chance(5);
  const std::vector<std::string> names = {"linear_qkv", "linear_proj", "linear_fc1",
                                          "linear_fc2", "in_proj",     "out_proj"};
  const auto below = [&](int n) { return static_cast<int>(chance() % static_cast<unsigned>(n)); };
  const auto adapts = [](char letter, const std::vector<std::string>& targets) {
    const auto has = [&](const char* name) { return std::ranges::find(targets, name) != targets.end(); };
    if (letter == 'M') return has("in_proj") || has("out_proj");
    return letter == '*' ? has("linear_qkv") || has("linear_proj") : has("linear_fc1") || has("linear_fc2");
  };
  int built = 0;
  for (int round = 0; round < 200; ++round) {
    std::string pattern;
    for (int i = 0; i < 6; ++i) pattern += "MM*-E"[below(5)];
    std::vector<std::string> targets;
    for (const auto& name : names)
      if (below(3) == 0) targets.push_back(name);
    if (targets.empty()) continue;
    auto s = hybrid(pattern);
    scenario::set(s, fmt::format("lora_target_modules=[{}]", fmt::join(targets, ", ")));
    for (const auto* change :
         {below(2) == 0 ? "fp8=none" : "fp8=hybrid; fp8_recipe=tensorwise",
          below(2) == 0 ? "micro_batch_size=1" : "micro_batch_size=2",
          below(2) == 0 ? "moe_shared_expert_intermediate_size=none" : "moe_shared_expert_intermediate_size=1024",
          below(3) == 0   ? "tensor_model_parallel_size=2; sequence_parallel=true; $CUDA_DEVICE_MAX_CONNECTIONS=1"
          : below(2) == 0 ? "recompute_granularity=selective; recompute_modules=[moe_act, layernorm]"
                          : "gradient_accumulation_fusion=false"})
      pipewright::test::change(s, change);
    if (pattern.find('E') == std::string::npos && below(2) == 0)
      pipewright::test::change(s,
                               "num_moe_experts=none; expert_tensor_parallel_size=none; sequence_parallel=false; "
                               "moe_shared_expert_intermediate_size=none");
    const auto first = static_cast<std::size_t>(
        std::ranges::find_if(pattern, [&](char letter) { return adapts(letter, targets); }) - pattern.begin());
    CAPTURE(pattern);
    CAPTURE(first);
    const bool fc1 = std::ranges::find(targets, "linear_fc1") != targets.end();
    const bool modelled = first < pattern.size() && (pattern[first] != 'E' || fc1);
    CHECK(scenario::unmodelled(s).empty() == modelled);
    if (!modelled) continue;
    ++built;
    const auto stages = pipewright::test::build(s);
    for (const auto& piece : stages.pieces) check_balance(piece);
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      CAPTURE(i);
      const auto& piece = layer(stages, i);
      const auto launches = std::ranges::count(piece.backward, model::Step::Kind::launch, &model::Step::kind);
      if (i < first) CHECK(launches == 0);
      if (i < first) CHECK(saved(piece) == (i == 0 ? piece.tensors[Piece::input].bytes.value : 0));  // the embedding
      if (i >= first) CHECK(launches > 0);
      if (i == first) CHECK(kernels(piece, "norm backward").size() < 2);  // of queries and keys, of Mamba's output
      for (const auto& kernel : piece.kernels) {
        CAPTURE(kernel.name);
        if (kernel.name.find("wgrad") != std::string::npos) CHECK(kernel.name.find("adapter") != std::string::npos);
        if (!kernel.key.family.empty()) CHECK_NOTHROW(profile::family(kernel.key.family));
      }
    }
  }
  CHECK(built > 60);
}

// flash-linear-attention's functions and Megatron's gate compute what they compute, whoever asks.
TEST_CASE("gated delta nets and gated attention beside adapters: frozen weights keep no input, adapters keep theirs") {
  const auto plain = mixture({"num_moe_experts=none", "expert_tensor_parallel_size=none", "num_layers=8",
                              "experimental_attention_variant=gated_delta_net", "linear_attention_freq=[4]",
                              "attention_output_gate=true", "qk_layernorm=true"});
  const std::int64_t values = 32 * 128, ffn = 14336, q = 4096;  // 32 heads of values, as of queries
  const auto frozen = with(plain, {"lora_target_modules=[linear_fc1]", "lora_dim=16"});
  const auto both = with(plain, {"lora_target_modules=[linear_fc1, linear_proj, in_proj, out_proj]", "lora_dim=16"});
  for (const auto& s : {plain, frozen, both}) {
    CHECK_NOTHROW(scenario::refuse_unmodelled(s));
    check_all(pipewright::test::build(s));
  }
  for (const std::size_t index : {1, 3}) {  // a delta net, attention
    CAPTURE(index);
    // Gone: the input norm's output, out_proj's input (the gated output), fc2's input; fc1's adapter keeps its own.
    CHECK(kept(plain, index) - kept(frozen, index) ==
          2 * S * h + 2 * S * (index == 1 ? values : q) + 2 * S * ffn - 2 * S * r);
    CHECK(kept(both, index) - kept(frozen, index) ==
          (index == 1 ? 2 * S * h + 2 * S * values + 2 * (2 * S * r) : 2 * S * q + 2 * S * r));
    const auto stages = pipewright::test::build(frozen), trained = pipewright::test::build(plain);
    for (const char* name :
         {"linear_attention.conv backward", "linear_attention.rule backward", "attention.gate backward",
          "linear_attention.gate backward", "linear_attention.states backward"}) {
      CAPTURE(name);
      CHECK(kernels(layer(stages, index), name).size() == kernels(layer(trained, index), name).size());
    }
    CHECK(kernels(layer(stages, index), "_proj wgrad").empty());
    CHECK(kernels(layer(stages, index), "A_log gradient accumulation").empty());
  }
  // The first layer's mixer has no adapter: its backward pass ends in the MLP's.
  const auto stages = pipewright::test::build(frozen);
  const auto& first = layer(stages, 0);
  CHECK(kernels(first, "linear_attention.rule backward").empty());
  CHECK(kernels(first, "mlp.fc1 dgrad").empty());
  CHECK(kernels(first, "mlp.fc1 adapter wgrad").size() == 2);
  CHECK(kernels(first, "mlp.fc2 dgrad").size() == 1);
  // Both mixers and MLPs by rank of a scenario: parameters of the adapters.
  const auto parameters = [](const scenario::Scenario& s) {
    return pipewright::test::build(s).ranks[0].chunks[0].parameters;
  };
  const std::int64_t keys = 16 * 128, projected = 2 * keys + 2 * values + 2 * 32;
  CHECK(parameters(both) - parameters(frozen) == 6 * r * (h + projected + values + h) + 2 * r * (q + h));
}

TEST_CASE("FLOPs of a frozen model are those that it computes: one pass before its first adapter, two behind it") {
  const auto flop = [](const std::string& pattern, const char* targets) {
    return model::step_flop(
        with(hybrid(pattern), {"num_moe_experts=none", "expert_tensor_parallel_size=none", targets}));
  };
  const char* const attention = "lora_target_modules=[linear_proj]";
  const char* const all = "lora_target_modules=[linear_proj, linear_fc1, in_proj]";
  for (const std::string before : {"M", "-", "MM-", "M-M-"}) {
    const double own = flop(before + "*", all) - flop("*", all);  // two passes
    CHECK(flop(before + "*", attention) - flop("*", attention) == doctest::Approx(own / 2));
    CHECK(flop("*" + before, attention) == doctest::Approx(flop("*" + before, all)));
  }
}

// parallel_mode is the base layer's own: what shared experts multiply is gathered by each of them, and LoRA-A gathers
// it once more (peft/utils.py, ParallelLinearAdapter.forward), scattering its gradient.
TEST_CASE("sums over ranks of an adapter's gradients run beside the weight gradient that follows") {
  const auto s = mixture({"lora_target_modules=[linear_qkv, linear_proj]", "lora_dim=16",
                          "tensor_model_parallel_size=2", "sequence_parallel=true"});
  const auto stages = pipewright::test::build(s);
  const auto& piece = layer(stages, 1);
  for (const char* name : {"adapter low backward", "adapter reduce-scatter"})
    for (const auto& kernel : kernels(piece, name)) CHECK(kernel.stream == model::Stream::communication);
  CHECK(kernels(piece, "adapter low backward").size() == 2);
}

TEST_CASE("adapters beside shared experts with sequence parallelism gather their input and scatter its gradient") {
  const auto s =
      mixture({"lora_target_modules=[linear_qkv, linear_fc1, linear_fc2]", "lora_dim=16",
               "moe_shared_expert_intermediate_size=1024", "tensor_model_parallel_size=2", "sequence_parallel=true"});
  const auto stages = pipewright::test::build(s);
  const auto& piece = layer(stages, 1);
  check_balance(piece);
  for (const char* name : {"shared_experts.fc1 adapter all-gather", "shared_experts.fc1 adapter reduce-scatter"}) {
    CAPTURE(name);
    REQUIRE(kernels(piece, name).size() == 1);
    CHECK(kernels(piece, name)[0].key.dims.back() == 2 * S * h);
  }
  const auto frozen = with(s, {"lora_target_modules=[linear_qkv]"});
  // Beside the experts' (their rows and activation, two low ranks): the gathered input, the activation, two low ranks.
  CHECK(kept(s) - kept(frozen) ==
        2 * n / 2 * h + 2 * n / 2 * f + 2 * (2 * n / 2 * r) + 2 * S * h + 2 * S * shared / 2 + 2 * (2 * S * r));
}

// TE's layernorm_linear.py:427 drops what the norm wrote where weights are frozen, but not where an adapter asks for
// it.
TEST_CASE("what a norm writes for an adapter stays: these rows where the adapter gathers, the FP8 operand") {
  const auto dense = with(mixture(), {"num_moe_experts=none", "expert_tensor_parallel_size=none", "lora_dim=16"});
  // Of the layer `index`, whose first has nothing below that needs a gradient.
  const auto norm_output = [&](const std::vector<std::string>& more, std::size_t index) {
    auto s = dense;
    for (const auto& change : more) pipewright::test::change(s, change);
    const auto stages = pipewright::test::build(s);
    const auto& piece = layer(stages, index);
    check_balance(piece);
    std::set<std::uint32_t> live;
    for (const auto& step : piece.forward) {
      if (step.kind == model::Step::Kind::allocate) live.insert(step.index);
      if (step.kind == model::Step::Kind::free) live.erase(step.index);
    }
    std::int64_t sum = 0;
    for (const auto tensor : live)
      if (stages.owners[piece.tensors[tensor].owner].starts_with("attention.qkv_norm_output"))
        sum += piece.tensors[tensor].bytes.value;
    return sum;
  };
  const std::string qkv = "lora_target_modules=[linear_qkv]", proj = "lora_target_modules=[linear_proj]",
                    split = "tensor_model_parallel_size=2; sequence_parallel=true; $CUDA_DEVICE_MAX_CONNECTIONS=1",
                    fp8 = "fp8=hybrid; fp8_recipe=tensorwise";
  CHECK(norm_output({qkv}, 1) == 2 * S * h);  // which is the adapter's input
  CHECK(norm_output({qkv, split}, 1) == 2 * S / 2 * h);
  CHECK(norm_output({qkv, split}, 0) == 0);
  CHECK(norm_output({qkv, fp8}, 1) == 2 * S * h + S * h);
  CHECK(norm_output({qkv, fp8, split}, 1) == S / 2 * h);
  CHECK(norm_output({qkv, fp8}, 0) == 2 * S * h);
  for (const auto& more : {proj, proj + "; " + split, proj + "; " + fp8}) CHECK(norm_output({more}, 1) == 0);
}

}  // namespace adapters_test
