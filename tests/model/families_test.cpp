// Norms on outputs, soft caps, L2 norms, routing weights on the input, adapters: what layers keep and launch. Byte
// counts follow recorded allocations (tests/measured/f_gemma*.yaml, f_llama4*.yaml, f_lora*.yaml).
#include <map>
#include <set>
#include <sstream>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace families_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;

namespace {

constexpr std::int64_t tokens = 4096, hidden = 4096, ffn = 14336, queries = 4096, keys = 1024;

scenario::Scenario llama() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 4, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8,
  seq_length: 4096, vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {micro_batch_size: 1, global_batch_size: 4, bf16: true, use_distributed_optimizer: true,
  gradient_accumulation_fusion: true, grad_reduce_in_fp32: true, hidden_dropout: 0.0, attention_dropout: 0.0,
  apply_rope_fusion: true, bias_activation_fusion: true, bias_dropout_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 1, gpus_per_node: 1}
)",
                         "llama.yaml");
}

const Piece& layer(const model::Stages& stages, std::size_t index) {
  return stages.pieces[stages.ranks[0].chunks[0].pieces[index + 1]];
}

std::int64_t kept(const scenario::Scenario& s, std::size_t index = 1) {
  return saved(layer(pipewright::test::build(s), index));
}

int kernels(const Piece& piece, const std::string& prefix) {
  int count = 0;
  for (const auto& kernel : piece.kernels) count += kernel.key.family.starts_with(prefix) ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("a norm on an output keeps the output and a statistic of every row") {
  CHECK(kept(with(llama(), {"post_layernorm=true"})) - kept(llama()) == 2 * (2 * tokens * hidden + 4 * tokens));
}

TEST_CASE(
    "a layer without norms before attention and MLP keeps neither their outputs nor statistics, and has no weights") {
  const auto without = with(llama(), {"pre_layernorm=false"});
  CHECK(kept(llama()) - kept(without) == 2 * (2 * tokens * hidden + 4 * tokens));
  const auto counted = [](const scenario::Scenario& s) { return parameters(pipewright::test::build(s)); };
  CHECK(counted(llama()) - counted(without) == 2 * hidden * without.model.num_layers);
  // On the outputs alone (OLMo 2) they cost what they cost before: the same memory and as many kernels.
  const auto after = with(without, {"post_layernorm=true"});
  CHECK(kept(after) == kept(llama()));
  for (const std::vector<const char*>& settings : std::vector<std::vector<const char*>>{
           {},
           {"num_gpus=8", "global_batch_size=8", "tensor_model_parallel_size=2"},
           {"num_gpus=8", "global_batch_size=8", "tensor_model_parallel_size=2", "sequence_parallel=true"},
           {"recompute_granularity=selective", "recompute_modules=[mlp, core_attn]"},
           {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"}}) {
    CAPTURE(settings.size());
    const auto norms = [&](scenario::Scenario s) {
      for (const char* setting : settings) scenario::set(s, setting);
      return kernels(layer(pipewright::test::build(s), 1), "rmsnorm");
    };
    CHECK(norms(without) == 0);
    CHECK(norms(after) > 0);
    CHECK(norms(after) == norms(llama()));
  }
}

TEST_CASE("a norm over all heads keeps what norms of heads keep, but for a statistic a token, and has their weights") {
  const auto alike = with(llama(), {"num_query_groups=32", "qk_layernorm=true"});
  const auto whole = with(alike, {"qk_layernorm_whole=true"});
  CHECK(kept(alike) - kept(whole) == 4 * tokens * (2 * 32 - 2));
  const auto counted = [](const scenario::Scenario& s) { return parameters(pipewright::test::build(s)); };
  const std::int64_t head = queries / 32;
  CHECK(counted(whole) - counted(alike) == alike.model.num_layers * (2 * queries - 2 * head));
}

// Megatron Bridge's minimax_m2_provider.py: keys of fewer heads, sums of squares of all ranks.
TEST_CASE("eager norms over all heads keep their inputs in fp32 and what they weigh, and free all of it") {
  const auto eager = with(llama(), {"qk_layernorm=true", "qk_layernorm_whole=true"});
  CHECK(kept(eager) - kept(llama()) == (4 + 2) * tokens * (queries + keys) + 2 * 4 * tokens);
  const auto counted = [](const scenario::Scenario& s) { return parameters(pipewright::test::build(s)); };
  CHECK(counted(eager) - counted(llama()) == eager.model.num_layers * (queries + keys));
  const std::vector<std::string> ranks = {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=2"};
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"clip_grad=1.0"},
           {"recompute_granularity=selective", "recompute_modules=[core_attn]"},
           {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"},
           {"lora_target_modules=[linear_qkv]"},
           {"fp8=hybrid", "fp8_recipe=tensorwise"},
           ranks}) {
    auto s = eager;
    for (const auto& setting : more) scenario::set(s, setting);
    CAPTURE(more.back());
    for (const auto& piece : pipewright::test::build(s).pieces) check_balance(piece);
  }
  const auto sums = [&](scenario::Scenario s) {
    for (const auto& setting : ranks) scenario::set(s, setting);
    return kernels(layer(pipewright::test::build(s), 1), "all_reduce");
  };
  CHECK(sums(eager) == sums(llama()) + 2);
}

// olmoe_provider.py has Transformer Engine's norms of all heads on every rank, which only one rank can feed.
TEST_CASE("norms over all heads of as many keys as queries are eager, of a rank's part, where heads are split") {
  const std::vector<const char*> norms = {"qk_layernorm=true", "qk_layernorm_whole=true"};
  for (const bool before : {true, false})
    for (const std::int64_t ranks : {1, 2, 4, 8})
      for (const bool sequence : {false, true}) {
        CAPTURE(before);
        CAPTURE(ranks);
        CAPTURE(sequence);
        auto plain = with(llama(), {"num_query_groups=32"});
        if (!before) plain = with(plain, {"pre_layernorm=false", "post_layernorm=true"});
        for (const char* size : {"num_gpus=", "gpus_per_node=", "tensor_model_parallel_size="})
          scenario::set(plain, size + std::to_string(ranks));
        scenario::set(plain, std::string("sequence_parallel=") + (sequence && ranks > 1 ? "true" : "false"));
        auto normed = plain;
        for (const char* setting : norms) scenario::set(normed, setting);
        const auto stages = pipewright::test::build(normed), without = pipewright::test::build(plain);
        for (const auto& piece : stages.pieces) check_balance(piece);
        const auto part = queries / ranks;
        CHECK(parameters(stages) - parameters(without) == plain.model.num_layers * 2 * part);
        const auto sums = kernels(layer(stages, 1), "all_reduce") - kernels(layer(without, 1), "all_reduce");
        CHECK(sums == (ranks > 1 ? 2 : 0));
        if (ranks > 1) CHECK(kept(normed) - kept(plain) == (4 + 2) * tokens * 2 * part + 2 * 4 * tokens);
      }
}

// Megatron Bridge's ministral3_provider.py: in place, by a factor of each position.
TEST_CASE("scaled queries keep a factor of every position; backward scales their gradient into one of its own") {
  const auto scaled = with(llama(), {"scale_queries_by_position=true"});
  CHECK(kept(scaled) - kept(llama()) == 2 * tokens);
  const auto copies = [](const scenario::Scenario& s) {
    return kernels(layer(pipewright::test::build(s), 1), "copy.d2d");
  };
  CHECK(copies(scaled) - copies(llama()) == 2);  // forward and backward
  for (const std::vector<const char*>& more : std::vector<std::vector<const char*>>{
           {"clip_grad=1.0"},
           {"recompute_granularity=selective", "recompute_modules=[mlp, layernorm]"},
           {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"},
           {"lora_target_modules=[linear_qkv]"},
           {"lora_target_modules=[linear_proj]"},
           {"fp8=hybrid", "fp8_recipe=tensorwise"},
           {"num_gpus=2", "tensor_model_parallel_size=2", "sequence_parallel=true"},
           {"num_gpus=2", "context_parallel_size=2"},
           {"num_gpus=2", "context_parallel_size=2", "cp_comm_type=[a2a]"}}) {
    auto s = scaled;
    for (const char* setting : more) scenario::set(s, setting);
    CAPTURE(std::string(more.back()));
    CHECK(scenario::unmodelled(s).empty());
    for (const auto& piece : pipewright::test::build(s).pieces) check_balance(piece);
  }
  const auto refused = with(scaled, {"recompute_granularity=selective", "recompute_modules=[core_attn]"});
  CHECK(!scenario::unmodelled(refused).empty());
}

TEST_CASE("an L2 norm keeps q and, with k, the whole projection") {
  const std::int64_t heads = 32 + 8, mixed = 2 * tokens * (queries + 2 * keys);
  CHECK(kept(with(llama(), {"qk_l2_norm=true"})) - kept(llama()) == mixed + 2 * tokens * queries + 4 * tokens * heads);
}

TEST_CASE("soft-capped scores: v stays inside the projection; capped logits keep their tanh") {
  const std::int64_t mixed = 2 * tokens * (queries + 2 * keys);
  const std::int64_t rng_state = 512;  // of cuDNN's dropout, rounded as the allocator does or as it is
  const auto more = kept(with(llama(), {"attn_logit_softcapping=50.0"})) - kept(llama());
  CHECK(more <= mixed - 2 * tokens * keys);
  CHECK(more >= mixed - 2 * tokens * keys - rng_state);
  const auto last = [](const scenario::Scenario& s) { return saved(pipewright::test::build(s).pieces.back()); };
  CHECK(last(with(llama(), {"final_logit_softcapping=30.0"})) - last(llama()) == 2 * tokens * 32000);
}

TEST_CASE("every tensor of these layers is freed, whatever is recomputed, split or cast") {
  for (const char* model : {"post_layernorm=true", "qk_l2_norm=true", "attn_logit_softcapping=50.0",
                            "final_logit_softcapping=30.0", "apply_embedding_scaling=true",
                            "lora_target_modules=[linear_qkv]", "lora_target_modules=[linear_qkv, linear_fc2]",
                            "lora_target_modules=[linear_qkv, linear_proj, linear_fc1, linear_fc2]"}) {
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {"clip_grad=1.0"},
             {"activation_func=fast_gelu", "bias_activation_fusion=false"},
             {"recompute_granularity=selective", "recompute_modules=[mlp]"},
             {"recompute_granularity=selective", "recompute_modules=[core_attn]"},
             {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"},
             {"fp8=hybrid", "fp8_recipe=tensorwise"},
             {"fp8=hybrid", "fp8_recipe=delayed"},
             {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=2"},
             {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=2", "tp_comm_overlap=true"},
             {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=2", "fp8=hybrid",
              "fp8_recipe=tensorwise"},
             {"pipeline_model_parallel_size=2", "num_gpus=2"}}) {
      auto s = with(llama(), {model});
      for (const auto& setting : more) scenario::set(s, setting);
      CAPTURE(std::string(model));
      CAPTURE(more.back());
      for (const auto& piece : pipewright::test::build(s).pieces) check_balance(piece);
    }
  }
}

TEST_CASE("all-to-all context parallelism: whole sequences of some heads, kept instead of parts of all") {
  const auto ring = with(llama(), {"context_parallel_size=2", "num_gpus=2"});
  const auto heads = with(ring, {"cp_comm_type=[a2a]"});
  CHECK(kept(heads) - kept(ring) == 2 * (tokens / 2) * queries);  // the output before and after its exchange
  const auto windowed = with(heads, {"window_size=[1023, 0]"});
  CHECK(kept(windowed) == kept(heads));
  const std::vector<std::int64_t> whole = {1, tokens, tokens, 16, 4, 128};
  int found = 0;
  const auto stages = pipewright::test::build(heads);
  for (const auto& kernel : layer(stages, 1).kernels) {
    if (!kernel.key.family.starts_with("attention.")) continue;
    CHECK(kernel.key.dims == whole);
    ++found;
  }
  CHECK(found == 2);
  for (const char* more : {"clip_grad=1.0", "qk_layernorm=true", "qk_l2_norm=true", "no_rope_freq=[2]"})
    for (const auto& s : {with(heads, {more}), with(windowed, {more})})
      for (const auto& piece : pipewright::test::build(s).pieces) check_balance(piece);
  const auto replayed = with(windowed, {"recompute_granularity=selective", "recompute_modules=[core_attn]"});
  for (const auto& piece : pipewright::test::build(replayed).pieces) check_balance(piece);
  CHECK_THROWS_WITH_AS(pipewright::test::build(with(heads, {"num_query_groups=1"})),
                       doctest::Contains("must be divisible by context_parallel_size"), UsageError);
}

TEST_CASE("frozen layers keep nothing for weights: no norm's output, no activation, no gradients, no states") {
  const auto lora = with(llama(), {"lora_target_modules=[linear_qkv]", "lora_dim=16"});
  // Gone: the output of fc1's norm and of the activation. The adapter reads the output of qkv's norm and keeps l.
  CHECK(kept(llama()) - kept(lora) == 2 * tokens * hidden + 2 * tokens * ffn - 2 * tokens * 16);
  const auto stages = pipewright::test::build(lora);
  const auto& middle = layer(stages, 1);
  CHECK(kernels(middle, "gemm.bf16.nt") == 0);
  CHECK(kernels(middle, "gemm.bf16.nn") == 4);
  CHECK(kernels(middle, "gemm.lora.bf16") == 6);
  // The first layer's backward ends in its adapter, whose input gradient is made though nothing needs it (a traced
  // run).
  CHECK(kernels(layer(stages, 0), "gemm.bf16.nn") == 3);
  CHECK(kernels(layer(stages, 0), "gemm.lora.bf16") == 6);
  const std::int64_t adapters = 4 * 16 * (4096 + 6144);
  CHECK(stages.ranks[0].chunks[0].parameters == 1134596096 + adapters);  // f_lora_qkv
  std::int64_t moments = 0;
  for (const auto& tensor : stages.ranks[0].optimizer_state) moments += tensor.bytes.value;
  CHECK(moments == 2 * 4 * adapters);
}

TEST_CASE("fused_single_qkv_rope splits and rotates in one kernel each way") {
  const auto launched = [](const model::Stages& stages) {
    std::map<std::string, int> names;
    for (const auto& kernel : inner_layer(stages).kernels) ++names[kernel.name];
    return names;
  };
  const auto at_once = with(llama70b(), {"fused_single_qkv_rope=true"});
  const auto plain = test::build(llama70b()), fused = test::build(at_once);
  check_all(fused);
  CHECK(saved(inner_layer(fused)) == saved(inner_layer(plain)));  // q, k and v; never what they were split from
  auto before = launched(plain), after = launched(fused);
  CHECK(after["attention.qkv rope"] == 1);
  CHECK(after["attention.qkv rope backward"] == 1);
  for (const char* name :
       {"attention.q rope", "attention.k rope", "attention.q copy", "attention.v copy", "attention.qkv gradient"}) {
    CAPTURE(name);
    CHECK(before[name] > 0);
    CHECK(after[name] == 0);
  }
  CHECK_NOTHROW(scenario::refuse_unmodelled(at_once));
  for (const char* change : {"qk_layernorm=true", "no_rope_freq=[4]", "position_embedding_type=none",
                             "recompute_granularity=selective; recompute_modules=[core_attn]"}) {
    CAPTURE(change);
    auto s = at_once;
    std::istringstream parts(change);
    for (std::string part; std::getline(parts, part, ';');) scenario::set(s, part.substr(part.find_first_not_of(' ')));
    CHECK_THROWS_AS(scenario::refuse_unmodelled(s), UsageError);
  }
}

TEST_CASE("sums that PyTorch runs eagerly cost its host an eager operator; torch.compile's residual alone does not") {
  int eager = 0, compiled = 0;
  for (const char* activation : {"bias_activation_fusion=true", "bias_activation_fusion=false"})
    for (const char* residual : {"bias_dropout_fusion=true", "bias_dropout_fusion=false"})
      for (const char* positions : {"position_embedding_type=rope", "position_embedding_type=learned_absolute"})
        for (const char* tensor : {"tensor_model_parallel_size=1", "tensor_model_parallel_size=2"})
          for (const char* rotation : {"apply_rope_fusion=true", "apply_rope_fusion=false"})
            for (const char* adapters : {"lora_target_modules=[]", "lora_target_modules=[linear_qkv, linear_fc2]"}) {
              CAPTURE(std::vector<std::string>({activation, residual, positions, tensor, rotation, adapters}));
              const auto s = with(llama(), {activation, residual, positions, tensor, rotation, adapters, "num_gpus=2"});
              for (const auto& piece : pipewright::test::build(s).pieces)
                for (const auto& step : piece.forward) {
                  if (step.kind != model::Step::Kind::launch) continue;
                  const auto& kernel = piece.kernels[step.index];
                  if (kernel.key.family != "add") continue;
                  CAPTURE(kernel.name);
                  const bool is_compiled = s.settings.bias_dropout_fusion && kernel.name.ends_with(" residual");
                  CHECK(kernel.host_family == (is_compiled ? "" : "small"));
                  ++(is_compiled ? compiled : eager);
                }
            }
  CHECK(eager > 100);
  CHECK(compiled > 100);
}

TEST_CASE("silu and GELU of a gating half run over its strides, unless clamping copied it or torch.compile made them") {
  const auto gates = [](std::initializer_list<const char*> changes) {
    const auto stages = pipewright::test::build(with(with(llama(), {"bias_activation_fusion=false"}), changes));
    std::set<std::string> families;
    for (const auto& kernel : layer(stages, 1).kernels)
      if (kernel.name.ends_with("gate forward") || kernel.name.ends_with("gate backward"))
        families.insert(kernel.key.family);
    return families;
  };
  using Families = std::set<std::string>;
  const Families strided = {"glu.gate.forward", "glu.gate.backward"}, whole = {"gelu.forward", "gelu.backward"};
  CHECK(gates({}) == strided);
  CHECK(gates({"activation_func=gelu"}) == strided);
  CHECK(gates({"activation_func=quick_gelu"}) == whole);
  CHECK(gates({"activation_func=fast_gelu"}) == Families{"fast_gelu.forward", "fast_gelu.backward"});
  CHECK(gates({"activation_func_clamp_value=7"}) == whole);
  CHECK(gates({"num_moe_experts=4", "moe_router_topk=2", "moe_ffn_hidden_size=1024", "expert_tensor_parallel_size=1",
               "moe_token_dispatcher_type=alltoall", "moe_grouped_gemm=true"}) == strided);
}

}  // namespace families_test
