// Layers of one stage that are not alike: sliding windows, layers without rotary embedding, biases and clamps of
// experts. Byte counts follow recorded allocations of GPT-OSS layers (tests/measured/f_gptoss*.yaml).
#include <set>
#include <tuple>

#include "pipewright/scenario/derived.hpp"
#include "support.hpp"

namespace layers_differ_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;
using model::Step;

namespace {

/// GPT-OSS' layer, 8 of them on one GPU; 8 experts.
scenario::Scenario gpt_oss() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 8, hidden_size: 2880, ffn_hidden_size: 2880, num_attention_heads: 64, num_query_groups: 8,
  kv_channels: 64, seq_length: 4096, vocab_size: 32768, num_moe_experts: 8, moe_router_topk: 4, gated_linear_unit: true,
  activation_func: quick_gelu, activation_func_clamp_value: 7.0, softmax_type: learnable, window_size: [127, 0],
  window_attn_skip_freq: [2], normalization: RMSNorm, add_bias_linear: true, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope}
settings: {micro_batch_size: 1, global_batch_size: 4, bf16: true, use_distributed_optimizer: true,
  gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0, apply_rope_fusion: true,
  bias_activation_fusion: true, moe_grouped_gemm: true, moe_permute_fusion: true, moe_router_dtype: fp32,
  moe_aux_loss_coeff: 0.0}
cluster: {profile: h200-sxm, num_gpus: 1, gpus_per_node: 1}
)",
                         "gpt_oss.yaml");
}

/// Windows that a piece's attention kernels see in the forward pass, in order; 0: a family without.
std::vector<std::int64_t> windows(const Piece& piece) {
  std::vector<std::int64_t> found;
  for (const auto& step : piece.forward) {
    if (step.kind != Step::Kind::launch) continue;
    const auto& key = piece.kernels[step.index].key;
    if (key.family.starts_with("attention.")) found.push_back(key.dims.size() > 6 ? key.dims[6] : 0);
  }
  return found;
}

std::vector<std::int64_t> windows_of_chunk(const model::Stages& stages) {
  std::vector<std::int64_t> all;
  for (const auto piece : stages.ranks[0].chunks[0].pieces)
    for (const auto window : windows(stages.pieces[piece])) all.push_back(window);
  return all;
}

int kernels(const Piece& piece, const std::string& family) {
  int count = 0;
  for (const auto& kernel : piece.kernels) count += kernel.key.family == family ? 1 : 0;
  return count;
}

const Piece& first_layer(const model::Stages& stages) { return stages.pieces[stages.ranks[0].chunks[0].pieces[1]]; }

}  // namespace

TEST_CASE("every layer has its own window, also under a checkpoint of several") {
  const auto base = gpt_oss();
  const std::vector<std::int64_t> every_other = {128, 4096, 128, 4096, 128, 4096, 128, 4096};
  CHECK(windows_of_chunk(pipewright::test::build(base)) == every_other);
  for (const char* layers : {"recompute_num_layers=1", "recompute_num_layers=2", "recompute_num_layers=3"}) {
    CAPTURE(std::string(layers));
    const auto stages =
        pipewright::test::build(with(base, {"recompute_granularity=full", "recompute_method=uniform", layers}));
    CHECK(windows_of_chunk(stages) == every_other);
    for (const auto& piece : stages.pieces) check_balance(piece);
  }
  const auto pattern = with(base, {"window_attn_skip_freq=[1, 1, 0, 0, 1, 0, 1, 1]", "softmax_type=vanilla"});
  CHECK(windows_of_chunk(pipewright::test::build(pattern)) ==
        std::vector<std::int64_t>{128, 128, 0, 0, 128, 0, 128, 128});
}

TEST_CASE("dense and sparse layers under one checkpoint stay what they are") {
  const auto mixed =
      with(gpt_oss(), {"bias_activation_fusion=false", "moe_layer_freq=[0, 1, 1, 1, 0, 1, 0, 1]",
                       "recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=4"});
  const auto stages = pipewright::test::build(mixed);
  std::vector<int> sparse;
  for (const auto piece : stages.ranks[0].chunks[0].pieces) {
    if (!windows(stages.pieces[piece]).empty())
      sparse.push_back(kernels(stages.pieces[piece], "moe.permute.forward"));  // forward and replayed
    check_balance(stages.pieces[piece]);
  }
  CHECK(sparse == std::vector<int>{6, 4});
}

TEST_CASE("a window that holds the sequence is none") {
  const auto plain = with(gpt_oss(), {"window_size=[]", "window_attn_skip_freq=[]"});
  const auto wide = with(gpt_oss(), {"window_size=[4095, 0]"});
  CHECK(windows_of_chunk(pipewright::test::build(plain)) == windows_of_chunk(pipewright::test::build(wide)));
  for (scenario::Int layer = 0; layer < 8; ++layer) CHECK(scenario::attention_window(wide, layer) == 0);
}

TEST_CASE("layers without rotary embedding launch no rotation") {
  const auto stages =
      pipewright::test::build(with(gpt_oss(), {"no_rope_freq=[4]", "window_size=[]", "window_attn_skip_freq=[]"}));
  std::vector<int> rotations;
  for (const auto piece : stages.ranks[0].chunks[0].pieces) {
    if (windows(stages.pieces[piece]).empty()) continue;
    rotations.push_back(kernels(stages.pieces[piece], "rope.forward"));
    check_balance(stages.pieces[piece]);
  }
  CHECK(rotations == std::vector<int>{2, 2, 2, 0, 2, 2, 2, 0});
}

TEST_CASE("what clamp, bias and one-by-one kernels of experts keep") {
  constexpr std::int64_t rows = 4096 * 4, U = 2 * rows * 2880;  // an activation of the experts' width
  const auto kept = [](const scenario::Scenario& s) { return saved(first_layer(pipewright::test::build(s))); };
  const auto base = with(gpt_oss(), {"activation_func_clamp_value=none"});
  CHECK(kept(gpt_oss()) - kept(base) == 2 * U);  // both clamped halves
  const auto plain = with(base, {"bias_activation_fusion=false"});
  CHECK(kept(plain) - kept(base) == 3 * U);  // gate, linear half, their product
  CHECK(kept(with(gpt_oss(), {"bias_activation_fusion=false"})) - kept(plain) == U);  // the clamped gate
  for (const auto& s : {gpt_oss(), base, plain, with(gpt_oss(), {"bias_activation_fusion=false"}),
                        with(gpt_oss(), {"recompute_granularity=selective", "recompute_modules=[moe_act]"})})
    for (const auto& piece : pipewright::test::build(s).pieces) check_balance(piece);
}

TEST_CASE("without moe_router_dtype experts cast nothing, and sums with biases stand in 16 bits") {
  for (const char* fused : {"bias_activation_fusion=true", "bias_activation_fusion=false"})
    for (const char* bias : {"add_bias_linear=true", "add_bias_linear=false"})
      for (const char* input : {"moe_apply_probs_on_input=true", "moe_apply_probs_on_input=false"}) {
        CAPTURE(std::vector<std::string>({fused, bias, input}));
        const auto wide = with(gpt_oss(), {fused, bias, "moe_router_topk=1", input});
        const auto stages = pipewright::test::build(wide),
                   narrow = pipewright::test::build(with(wide, {"moe_router_dtype=none"}));
        const auto look = [](const model::Stages& built) {
          int casts = 0;
          std::int64_t widest = 0;
          double chains = 0;
          const Piece& piece = first_layer(built);
          for (const auto& kernel : piece.kernels) {
            casts += kernel.name.starts_with("experts") && kernel.key.family.starts_with("cast.") ? 1 : 0;
            if (kernel.key.family == "moe.bias.forward" || kernel.key.family == "moe.bias.backward")
              chains += kernel.share;
          }
          for (const auto& tensor : piece.tensors) {
            const auto& owner = built.owners[tensor.owner];
            if (owner.starts_with("experts.") && owner != "experts.fc1_output" && owner != "experts.clamped" &&
                owner != "experts.fc1_output_gradient")
              widest = std::max(widest, tensor.bytes.value);
          }
          check_balance(piece);
          return std::tuple(casts, widest, chains);
        };
        const auto [casts, bytes, chains] = look(narrow);
        const auto [wide_casts, wide_bytes, wide_chains] = look(stages);
        CHECK(casts == 0);
        CHECK(chains == wide_chains / 2);
        const bool weighs = wide.settings.moe_apply_probs_on_input || !wide.settings.bias_activation_fusion;
        CHECK((wide_casts > 0) == weighs);
        CHECK(bytes == (weighs || wide.model.add_bias_linear ? wide_bytes / 2 : wide_bytes));
      }
}

TEST_CASE("parameters are those of the measured run (f_gptoss): sinks, biases of experts and of the router") {
  const auto stages =
      pipewright::test::build(with(gpt_oss(), {"num_layers=4", "num_moe_experts=32", "vocab_size=201088"}));
  CHECK(stages.ranks[0].chunks[0].parameters == 4451017664);
}

TEST_CASE("the second width that a process activates gets the kernels for any width, in forward and backward order") {
  std::uint64_t state = 1;
  const auto draw = [&state](std::uint64_t below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
  };
  int mixed = 0;
  for (int round = 0; round < 60; ++round) {
    const int pp = 1 << draw(3), vpp = pp > 1 ? 1 + static_cast<int>(draw(2)) : 1, layers = 16;
    std::string pattern;
    for (int i = 0; i < layers; ++i) pattern += (i > 0 ? ", " : "") + std::to_string(draw(3) > 0);
    const std::int64_t dense = 8192, shared = draw(5) == 0 ? dense : 2048;
    auto s = scenario::parse(
        "scenario: 1\nmodel: {num_layers: 16, hidden_size: 2048, ffn_hidden_size: 8192, num_attention_heads: 16, "
        "seq_length: 2048, vocab_size: 32000, num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 1024, "
        "gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, position_embedding_type: rope, "
        "untie_embeddings_and_output_weights: true, moe_layer_freq: [" +
            pattern + "], moe_shared_expert_intermediate_size: " + std::to_string(shared) +
            "}\nsettings: {micro_batch_size: 1, global_batch_size: 16, bf16: true, hidden_dropout: 0.0, "
            "attention_dropout: 0.0, bias_activation_fusion: true, moe_grouped_gemm: true, moe_permute_fusion: true, "
            "overlap_p2p_comm: true, pipeline_model_parallel_size: " +
            std::to_string(pp) +
            (vpp > 1 ? ", virtual_pipeline_model_parallel_size: " + std::to_string(vpp) : std::string()) +
            "}\ncluster: {profile: h200-sxm, num_gpus: " + std::to_string(pp) + ", gpus_per_node: 8}\n",
        "widths.yaml");
    const auto stages = test::build(s);
    for (const auto& rank : stages.ranks) {
      struct Met {
        std::int64_t width;
        bool any;
      };
      std::vector<Met> forward, backward;  // in the order of the first microbatch
      const auto meet = [](const Piece& piece, const std::vector<Step>& steps, std::vector<Met>& met) {
        for (const auto& step : steps) {
          if (step.kind != Step::Kind::launch) continue;
          const auto& key = piece.kernels[step.index].key;
          if (key.family.starts_with("swiglu."))
            met.push_back({key.dims[1], key.family.starts_with("swiglu.any_width.")});
        }
      };
      for (const auto& chunk : rank.chunks)
        for (const auto piece : chunk.pieces) meet(stages.pieces[piece], stages.pieces[piece].forward, forward);
      for (auto chunk = rank.chunks.rbegin(); chunk != rank.chunks.rend(); ++chunk)
        for (auto piece = chunk->pieces.rbegin(); piece != chunk->pieces.rend(); ++piece)
          meet(stages.pieces[*piece], stages.pieces[*piece].backward, backward);
      REQUIRE(forward.size() == backward.size());
      for (const auto* met : {&forward, &backward})
        for (const Met& each : *met) {
          CHECK(each.any == (each.width != met->front().width));
          mixed += each.any ? 1 : 0;
        }
    }
  }
  CHECK(mixed > 100);
}

}  // namespace layers_differ_test
