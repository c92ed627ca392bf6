// Transformer Engine's fused grouped MLP, the budget of rows of a rank, and the paged stash: bytes by hand.
#include <algorithm>
#include <cmath>
#include <set>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace fused_experts_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::OffloadGroup;
using model::Piece;
using model::Step;

namespace {

constexpr std::int64_t S = 4096, h = 4096, f = 1536, E = 16, ep = 4, k = 4, local = E / ep, align = 256;
/// Rows that a rank gets, with half a block of alignment for each expert.
constexpr std::int64_t rows = S * k + local * align / 2;

/// Four GB200 a stage, PP 2 x EP 4, MXFP8, HybridEP.
scenario::Scenario fused(std::initializer_list<const char*> settings = {}) {
  auto s = scenario::parse(R"(scenario: 1
model: {num_layers: 8, hidden_size: 4096, ffn_hidden_size: 8192, num_attention_heads: 32, num_query_groups: 8,
  seq_length: 4096, vocab_size: 32000, num_moe_experts: 16, moe_router_topk: 4, moe_ffn_hidden_size: 1536,
  gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {pipeline_model_parallel_size: 2, expert_model_parallel_size: 4, expert_tensor_parallel_size: 1,
  micro_batch_size: 1, global_batch_size: 32, bf16: true, use_distributed_optimizer: true,
  gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0, apply_rope_fusion: true,
  moe_token_dispatcher_type: flex, moe_flex_dispatcher_backend: hybridep, moe_grouped_gemm: true,
  moe_permute_fusion: true, moe_router_dtype: fp32, moe_router_force_load_balancing: true, bias_activation_fusion: true,
  fp8: e4m3, fp8_recipe: mxfp8, fp8_param: true, fp8_param_gather: true, reuse_grad_buf_for_mxfp8_param_ag: true,
  moe_mlp_glu_interleave_size: 32, use_transformer_engine_op_fuser: true}
environment: {NVTE_CUTEDSL_FUSED_GROUPED_MLP: '1'}
cluster: {profile: gb200-nvl72, num_gpus: 8, gpus_per_node: 4, nvlink_domain: 8, link: nvlink}
software: {megatron_core: 0.19.0}
)",
                           "fused.yaml");
  for (const auto* setting : settings) scenario::set(s, setting);
  return s;
}

model::Stages build(const scenario::Scenario& s) { return model::build(s, profile::data_sheet("gb200-nvl72").device); }
const Piece& layer(const model::Stages& stages) { return stages.pieces[stages.ranks[1].chunks[0].pieces[0]]; }

/// Bytes that the layer's forward leaves of tensors whose owner begins so.
std::int64_t kept(const model::Stages& stages, const Piece& piece, const std::string& owner) {
  std::set<std::uint32_t> live;
  for (const auto& step : piece.forward) {
    if (step.kind == Step::Kind::allocate) live.insert(step.index);
    if (step.kind == Step::Kind::free) live.erase(step.index);
  }
  std::int64_t sum = 0;
  for (const auto tensor : live)
    if (stages.owners[piece.tensors[tensor].owner].starts_with(owner)) sum += piece.tensors[tensor].bytes.value;
  return sum;
}

/// Calls: what the same call does for further experts is not counted.
int count(const Piece& piece, const std::vector<Step>& steps, const std::string& family) {
  return static_cast<int>(std::ranges::count_if(steps, [&](const Step& step) {
    if (step.kind != Step::Kind::launch) return false;
    const auto& kernel = piece.kernels[step.index];
    return kernel.key.family.starts_with(family) && !kernel.within_call;
  }));
}

/// Multiprocessors that the kernels named so leave free; -1: they differ, or there is none.
long left_free(const Piece& piece, const std::string& ends) {
  const auto all = profile::data_sheet("gb200-nvl72").device.multiprocessors;
  std::set<long> left;
  for (const auto& kernel : piece.kernels)
    if (kernel.name.ends_with(ends)) left.insert(std::lround(static_cast<double>(all) * (1 - kernel.sm_share)));
  return left.size() == 1 ? *left.begin() : -1;
}

/// A column-wise MXFP8 copy: a byte an element, a scale for 32.
std::int64_t copy(std::int64_t n, std::int64_t width) { return n * width + n / 32 * width; }

}  // namespace

TEST_CASE("products of fused experts leave clusters of two multiprocessors free, weight gradients and the others not") {
  for (const auto& [clusters, others] : {std::pair{0L, 0L}, {8L, 0L}, {8L, 16L}, {5L, 20L}}) {
    auto s = fused();
    s.environment["CUDNNFE_CLUSTER_OVERLAP_MARGIN"] = std::to_string(clusters);
    s.environment["NVTE_EXT_MARGIN_SM"] = std::to_string(others);
    CHECK(scenario::unmodelled(s).empty());
    const auto stages = build(s);
    for (const char* product : {"experts.fc1 forward", "experts.fc2 forward", "experts.fc1 dgrad", "experts.fc2 dgrad"})
      CHECK(left_free(layer(stages), product) == 2 * clusters);
    for (const char* product : {"experts.fc1 wgrad", "experts.fc2 wgrad"})
      CHECK(left_free(layer(stages), product) == 0);
    for (const char* product : {"attention.qkv forward", "attention.proj wgrad"})
      CHECK(left_free(layer(stages), product) == others);
  }
}

TEST_CASE("the fused grouped MLP keeps the column-wise casts and fc1's output, and launches no activation") {
  const auto stages = build(fused());
  const auto& piece = layer(stages);
  CHECK(kept(stages, piece, "experts.fc1_input") == copy(rows, h));
  CHECK(kept(stages, piece, "experts.fc1_output") == 2 * rows * 2 * f);
  CHECK(kept(stages, piece, "experts.fc2_input") == copy(rows, f));
  CHECK(kept(stages, piece, "experts.") == copy(rows, h) + 4 * rows * f + copy(rows, f));
  CHECK(count(piece, piece.forward, "moe.swiglu") == 0);
  CHECK(count(piece, piece.backward, "moe.swiglu") == 0);
  CHECK(count(piece, piece.forward, "gemm.grouped.mxfp8") == 2);
  CHECK(count(piece, piece.backward, "gemm.grouped.mxfp8") == 4);
  // One cast forward (the rows), one backward (the output's gradient), where fused kernels do not make them: the dense
  // layers' own stand beside.
  const auto plain = build(fused({"use_transformer_engine_op_fuser=false", "moe_mlp_glu_interleave_size=none"}));
  CHECK(count(layer(plain), layer(plain).forward, "quantize.mxfp8") - count(piece, piece.forward, "quantize.mxfp8") ==
        1);
  CHECK(count(layer(plain), layer(plain).backward, "quantize.mxfp8") - count(piece, piece.backward, "quantize.mxfp8") ==
        1);
  check_all(stages);
}

TEST_CASE("a budget of rows sizes tensors, not products, and the host waits for no counts") {
  const auto plain = build(fused()), budget = build(fused({"moe_expert_rank_capacity_factor=1.5"}));
  const auto& piece = layer(budget);
  constexpr std::int64_t held = (S * k * 3 / 2 + align - 1) / align * align;
  CHECK(kept(budget, piece, "experts.") == copy(held, h) + 4 * held * f + copy(held, f));
  CHECK(kept(budget, piece, "moe.permuted_probs") == 4 * held);
  const auto waits = [](const Piece& p) {
    return std::ranges::count_if(p.forward, [](const Step& s) { return s.kind == Step::Kind::synchronize; });
  };
  CHECK(waits(layer(plain)) == 1);
  CHECK(waits(piece) == 0);
  for (const auto& kernel : piece.kernels)
    if (kernel.key.family.starts_with("gemm.grouped")) CHECK(kernel.key.dims[1] == rows);
  check_all(budget);
}

TEST_CASE("a busiest rank beyond its budget is refused: every step would run twice") {
  CHECK_NOTHROW(build(fused({"moe_expert_rank_capacity_factor=1.5", "moe_load_imbalance=1.4"})));
  CHECK_THROWS_WITH_AS(build(fused({"moe_expert_rank_capacity_factor=1.5", "moe_load_imbalance=1.6"})),
                       doctest::Contains("every step would run twice"), UsageError);
}

TEST_CASE("the paged stash moves what experts keep: rows that are tokens, in pages by type and width") {
  const auto stages = build(fused({"moe_expert_rank_capacity_factor=1.5", "moe_paged_stash=true"}));
  const auto& piece = layer(stages);
  REQUIRE(piece.groups.size() == 1);
  const auto& group = piece.groups[0];
  constexpr std::int64_t held = (S * k * 3 / 2 + align - 1) / align * align, expected = held * 2 / 3;
  std::int64_t tensors = 0, packed = 0, pages = 0;
  for (const auto& move : group.moves) {
    tensors += piece.tensors[move.tensor].bytes.value;
    packed += move.packed.value;
    CHECK(piece.kernels[move.out].key == profile::Key{"copy.d2d", {move.packed.value}});
  }
  for (const auto& one : group.pages) pages += one.rows * one.row_bytes;
  CHECK(tensors == copy(held, h) + 4 * held * f + copy(held, f));
  CHECK(packed == doctest::Approx(static_cast<double>(copy(rows, h) + 4 * rows * f + copy(rows, f))));
  CHECK(pages == rows * h + rows / 32 * h + 4 * rows * f + rows * f + rows / 32 * f);
  CHECK(group.pages[0].expected == expected);
  CHECK(group.pages[1].expected == expected / 32);
  check_all(stages);
}

TEST_CASE("variants of the fused grouped MLP balance") {
  for (const auto& settings : std::vector<std::vector<const char*>>{
           {"add_bias_linear=true"},
           {"activation_func=quick_gelu", "activation_func_clamp_value=7"},
           {"grad_reduce_in_fp32=true"},
           {"gradient_accumulation_fusion=false"},
           {"overlap_moe_expert_parallel_comm=true"},
           {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true"},
           {"fine_grained_activation_offloading=true", "offload_modules=[fused_group_mlp]"},
           {"moe_expert_rank_capacity_factor=2", "moe_paged_stash=true", "overlap_moe_expert_parallel_comm=true",
            "delay_wgrad_compute=true", "virtual_pipeline_model_parallel_size=2"}}) {
    auto s = fused();
    std::string all;
    for (const auto* setting : settings) {
      all += std::string(setting) + " ";
      scenario::set(s, setting);
    }
    CAPTURE(all);
    check_all(build(s));
  }
}

TEST_CASE("ungated experts with squared ReLU are the fused grouped MLP from Transformer Engine 2.17 on") {
  const auto squared = fused({"gated_linear_unit=false", "activation_func=squared_relu", "bias_activation_fusion=false",
                              "use_fused_weighted_squared_relu=true", "transformer_engine=2.17"});
  const auto stages = build(squared);
  CHECK(kept(stages, layer(stages), "experts.") == copy(rows, h) + 2 * rows * f + copy(rows, f));
  CHECK_NOTHROW(scenario::refuse_unmodelled(squared));
  for (const char* change : {"transformer_engine=2.16", "use_fused_weighted_squared_relu=false"})
    CHECK_THROWS_AS(scenario::refuse_unmodelled(with(squared, {change})), UsageError);
}

// ops/fused/grouped_mlp.py: quantizer(weight) for every expert of both products, saved with the operation's tensors.
TEST_CASE("experts' weights in bf16 are cast in every microbatch, and both copies kept until its backward pass") {
  const auto weights = [](const model::Stages& stages) {
    return kept(stages, layer(stages), "experts.fc1 weights") + kept(stages, layer(stages), "experts.fc2 weights");
  };
  const auto in_bf16 = {"fp8_param=false", "fp8_param_gather=false", "reuse_grad_buf_for_mxfp8_param_ag=false"};
  const auto stages = build(fused(in_bf16)), stored = build(fused());
  CHECK_NOTHROW(scenario::refuse_unmodelled(fused(in_bf16)));
  CHECK(weights(stages) == local * 2 * (copy(2 * f, h) + copy(h, f)));
  CHECK(weights(stored) == 0);
  int casts = 0;
  const auto& piece = layer(stages);
  for (const auto& step : piece.forward) {
    if (step.kind != Step::Kind::launch || !piece.kernels[step.index].name.ends_with("weights cast")) continue;
    casts += step.runs(0) && step.runs(1) && step.runs(7);
  }
  CHECK(casts == 2 * local);
  // Modules keep copies of theirs from the first microbatch on; experts do not.
  std::int64_t held = 0, dense = 0;
  for (const auto& tensor : stages.ranks[1].since_first_step)
    if (stages.owners[tensor.owner] == "quantized weights") held += tensor.bytes.value;
  for (const std::int64_t width : {std::int64_t{6144}, h}) dense += 2 * (width * h + width * h / 32);
  CHECK(held == 4 * dense);
  check_all(stages);
  for (const auto& more : std::vector<std::vector<const char*>>{
           {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"},
           {"overlap_moe_expert_parallel_comm=true"},
           {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true"}}) {
    auto s = fused(in_bf16);
    for (const auto* setting : more) scenario::set(s, setting);
    check_all(build(s));
  }
}

}  // namespace fused_experts_test
