// Traces written from a model's own operations, with the names that their kernels have: what no recorded run shows yet.
#include "fabricated.hpp"

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <utility>

#include "../../src/import/match.hpp"
#include "pipewright/import.hpp"
#include "pipewright/scenario/io.hpp"

namespace fabricated_test {

using namespace pipewright;
using namespace pipewright::test;

namespace {

/// GPT-OSS in small: experts with biases and a clamped GeGLU, sinks, every second layer with a window.
scenario::Scenario gpt_oss(bool fused = true) {
  auto s = scenario::read("../../scenarios/gpt-oss-120b-pretrain-64xgb200.yaml");
  for (const char* change :
       {"num_layers=4", "num_moe_experts=4", "expert_model_parallel_size=1", "num_gpus=1", "micro_batch_size=1",
        "global_batch_size=2", "overlap_moe_expert_parallel_comm=false", "delay_wgrad_compute=false",
        "cluster.profile=h200-sxm", "cluster.nvlink_domain=null", "cluster.gpus_per_node=8"})
    scenario::set(s, change);
  s.settings.bias_activation_fusion = fused;
  return s;
}

struct Run {
  model::Stages stages;
  std::vector<traces::Pattern> patterns;
  traces::Order order;
  bool loads = false;  ///< with what a loader runs for context parallelism

  explicit Run(const scenario::Scenario& s)
      : stages(test::build(s)),
        patterns(traces::patterns_of(stages, 0)),
        order(traces::order_of(stages, 0)),
        loads(s.settings.context_parallel_size > 1) {}

  const traces::Pattern* find(std::uint32_t piece, traces::Pass pass) const {
    for (const auto& p : patterns)
      if (p.piece == piece && p.pass == pass) return &p;
    return nullptr;
  }
  /// One forward and backward pass after the other, then the optimizer.
  Writer step(int microbatches, bool foreign = false, bool products_apart = false) const {
    return step(Writer{}, microbatches, foreign, products_apart);
  }
  Writer step(Writer writer, int microbatches, bool foreign = false, bool products_apart = false) const {
    writer.products_apart = products_apart;
    const auto pass = [&](std::uint32_t piece, traces::Pass which) {
      if (const auto* p = find(piece, which)) writer.write(*p);
    };
    for (int m = 0; m < microbatches; ++m)
      for (const auto& chunk : order) {
        if (loads) writer.load(*find(chunk[0], traces::Pass::forward));
        for (const auto piece : chunk) {
          pass(piece, traces::Pass::forward);
          if (foreign && m == 1 && piece == chunk[1])
            writer.foreign(*find(piece, traces::Pass::forward)), foreign = false;
        }
        for (auto piece = chunk.rbegin(); piece != chunk.rend(); ++piece) pass(*piece, traces::Pass::backward);
      }
    for (const auto& p : patterns)
      if (p.pass == traces::Pass::step) {
        writer.write(p);
        break;
      }
    return writer;
  }
};

/// Every kernel has its operation, every operation its kernels.
void check_placed(const traces::Import& result) {
  std::string unmapped;
  for (const auto& u : result.unmapped) unmapped += u.name + ", ";
  CAPTURE(unmapped);
  CHECK(result.attributed_us / result.kernel_us > 0.999);
  for (const auto& note : result.notes) CHECK(note.find("are not in the trace") == std::string::npos);
}

}  // namespace

TEST_CASE("GPT-OSS: experts' biases, clamps and quick GeGLU belong to their operations, windows to their layers") {
  for (const auto& [fused, dtype] : {std::pair(true, "fp32"), {false, "fp32"}, {true, "none"}, {false, "none"}}) {
    CAPTURE(fused);
    CAPTURE(std::string(dtype));
    auto scenario = gpt_oss(fused);
    scenario::set(scenario, std::string("moe_router_dtype=") + dtype);
    const Run run(scenario);
    const auto trace = run.step(2).trace;
    const auto result = traces::import_traces(scenario, {trace}, {"oss", 1, ""}, nullptr);
    check_placed(result);
    int windows = 0, whole = 0, biases = 0;
    for (const auto& key : result.keys) {
      if (key.key.family.starts_with("attention.")) {
        const bool window = key.key.dims.back() < 4096 && key.key.dims.back() > 0;
        (window ? windows : whole) += key.sample.count;
        CHECK(key.situ_ns == doctest::Approx(window ? 1e5 : 1e6).epsilon(0.01));
      }
      if (key.key.family.starts_with("moe.bias") || key.key.family.starts_with("clamp")) {
        biases += key.sample.count;
        CHECK(key.situ_ns == doctest::Approx(1e6).epsilon(0.1));
      }
    }
    CHECK(windows == 2 * 2 * 2);  // two layers, forward and backward, two microbatches
    CHECK(whole == 2 * 2 * 2);
    // fc2: forward and backward, which tell no time of profiles in 16 bits, gradients of both; clamps, one recomputed.
    CHECK(biases == 2 * 4 * (scenario.settings.moe_router_dtype ? 7 : 5));
  }
}

TEST_CASE("heads exchanged for context parallelism: selections are no embeddings, exchanges no pipeline transfers") {
  auto scenario = gpt_oss();
  for (const char* change : {"context_parallel_size=4", "cp_comm_type=[a2a]", "num_gpus=4"})
    scenario::set(scenario, change);
  const Run run(scenario);
  const auto trace = run.step(2).trace;
  const auto result = traces::import_traces(scenario, {trace}, {"heads", 1, ""}, nullptr);
  check_placed(result);
  int exchanges = 0;
  for (const auto& key : result.keys) {
    CHECK_FALSE(key.key.family.starts_with("send_recv"));
    if (key.key.family.starts_with("all_to_all")) exchanges += key.sample.count;
  }
  CHECK(exchanges == 2 * 4 * 8);  // microbatches, layers; q, k, v, output and their gradients
  const auto summary = traces::summarise(trace, traces::exchanges_of(scenario));
  CHECK(summary.busy_us.count("p2p") == 0);
  CHECK(summary.busy_us.at("coll") > exchanges * 100);
}

TEST_CASE("Gemma 2: FlexAttention's kernels are attention, its row sums belong to them") {
  auto scenario = scenario::read("../real/g_gemma2.yaml");
  scenario::set(scenario, "global_batch_size=2");
  const Run run(scenario);
  const auto result = traces::import_traces(scenario, {run.step(2).trace}, {"gemma", 1, ""}, nullptr);
  check_placed(result);
  int passes = 0;
  for (const auto& key : result.keys)
    if (key.key.family.starts_with("attention.softcap.")) passes += key.sample.count;
  CHECK(passes == 2 * 2 * 6);  // forward and backward, microbatches, layers
}

TEST_CASE("Megatron Bridge's runs: eager rotation, adapters, unfused gates, shared experts on a stream of their own") {
  struct Case {
    std::string run;
    std::vector<const char*> changes;
  };
  const std::vector<const char*> alone = {"num_gpus=1", "expert_model_parallel_size=1", "tensor_model_parallel_size=1",
                                          "sequence_parallel=false", "global_batch_size=2"};
  for (const auto& [name, changes] : {Case{"g_oss_ep2", {"num_moe_experts=4"}}, Case{"g_lora", {}},
                                      Case{"g_q3_pp2ep", {"num_moe_experts=16", "pipeline_model_parallel_size=1"}},
                                      Case{"g_glmflash", {"num_moe_experts=16"}}}) {
    for (const bool slow_host : {false, true}) {
      CAPTURE(name);
      CAPTURE(slow_host);
      auto scenario = scenario::read("../real/" + name + ".yaml");
      for (const char* change : alone) scenario::set(scenario, change);
      for (const char* change : changes) scenario::set(scenario, change);
      const Run run(scenario);
      Writer writer;
      writer.shared_apart = scenario.settings.moe_shared_expert_overlap;
      writer.slow_host = slow_host;
      const auto result = traces::import_traces(scenario, {run.step(writer, 2).trace}, {"bridge", 1, ""}, nullptr);
      check_placed(result);
      // What stands for an eager operator is not measured by it.
      for (const auto& key : result.keys)
        if (key.key.family.starts_with("copy.")) CHECK(key.situ_ns == doctest::Approx(1e6).epsilon(0.1));
    }
  }
}

TEST_CASE("a gate of shared experts and a router of 60 experts belong to their layers") {
  auto scenario = gpt_oss();
  for (const char* change :
       {"num_moe_experts=60", "moe_shared_expert_intermediate_size=2880", "moe_shared_expert_gate=true"})
    scenario::set(scenario, change);
  const Run run(scenario);
  const auto result = traces::import_traces(scenario, {run.step(2).trace}, {"gate", 1, ""}, nullptr);
  check_placed(result);
  CHECK(std::count_if(result.keys.begin(), result.keys.end(),
                      [](const auto& key) { return key.key.family.starts_with("gemm.lora."); }) == 2);
}

TEST_CASE("gated delta nets: the rule's kernels are its own, its states measured apart, gates no GLU") {
  auto scenario = scenario::read("../real/d_next.yaml");
  for (const char* change : {"global_batch_size=4", "num_moe_experts=16", "cluster.profile=h200-sxm"})
    scenario::set(scenario, change);
  const Run run(scenario);
  const auto result = traces::import_traces(scenario, {run.step(2).trace}, {"net", 1, ""}, nullptr);
  check_placed(result);
  std::map<std::string, int> counts;
  for (const auto& key : result.keys) {
    if (!key.key.family.starts_with("gated_delta.") && !key.key.family.starts_with("gate.")) continue;
    CAPTURE(key.key.family);
    counts[key.key.family] += key.sample.count;
    CHECK(key.situ_ns == doctest::Approx(1e6).epsilon(0.05));
  }
  for (const char* part : {"conv", "inputs", "chunks"})
    for (const char* pass : {".forward", ".backward"})
      CHECK(counts[std::string("gated_delta.") + part + pass] == 2 * 3);  // microbatches, layers with a net
  CHECK(counts["gated_delta.state.forward"] == 2 * 2 * 3);                // once more in backward
  CHECK(counts["gated_delta.state.backward"] == 2 * 3);
  CHECK(counts["gate.forward"] == 2 * 4);  // full attention's, too
  CHECK(counts["gate.backward"] == 2 * 4);
  CHECK_FALSE(result.profile.scalars.contains("host.forward.gated_delta.state.forward_us"));  // among the rule's
}

TEST_CASE("Mamba-2: every kernel of a scan belongs to its operation, whatever else is launched between") {
  auto scenario = scenario::read("../real/n_nano_bf.yaml");
  for (const char* change : {"global_batch_size=2", "cluster.profile=h200-sxm", "hybrid_layer_pattern=MM*M",
                             "num_layers=4", "num_moe_experts=none"})
    scenario::set(scenario, change);
  const Run run(scenario);
  const auto result = traces::import_traces(scenario, {run.step(2).trace}, {"mixers", 1, ""}, nullptr);
  check_placed(result);
  std::map<std::string, int> counts;
  for (const auto& key : result.keys) {
    if (!key.key.family.starts_with("mamba.")) continue;
    CAPTURE(key.key.family);
    counts[key.key.family] += key.sample.count;
    CHECK(key.situ_ns == doctest::Approx(1e6).epsilon(0.05));
  }
  for (const char* operation :
       {"norm.forward", "norm.backward", "conv.backward", "chunks.forward", "chunks.backward", "groups.forward",
        "groups.backward", "states.forward", "states.recompute", "states.backward"})
    CHECK(counts[std::string("mamba.") + operation] == 2 * 3);  // microbatches, mixers
  CHECK(counts["mamba.conv.forward"] == 2 * 2 * 3);             // once more in backward
  for (const auto& [name, scalar] : result.profile.scalars)     // no launch of a scan follows its own
    CHECK_FALSE((name.starts_with("host.") && is_of_scan(name.substr(name.find("ward.") + 5))));
}

TEST_CASE(
    "products on streams of their own are experts' only where there are experts; sums of a table are found in fp32, "
    "too") {
  auto scenario = gpt_oss();
  for (const char* change : {"num_moe_experts=null", "activation_func=silu", "activation_func_clamp_value=null",
                             "grad_reduce_in_fp32=true", "glu_linear_offset=0"})
    scenario::set(scenario, change);
  const Run run(scenario);
  const auto result = traces::import_traces(scenario, {run.step(2, false, true).trace}, {"apart", 1, ""}, nullptr);
  check_placed(result);
  CHECK(std::count_if(result.keys.begin(), result.keys.end(),
                      [](const auto& key) { return key.key.family.starts_with("gemm.bf16."); }) > 8);
}

TEST_CASE("layers whose kernels have the same names are told apart, wherever the trace begins and ends") {
  auto scenario = gpt_oss();
  const bool passed = rc::check("twins", [&] {
    const auto layers = *rc::gen::inRange(3, 7);
    scenario.model.num_layers = layers;
    scenario::set(scenario, "window_attn_skip_freq=" + std::to_string(*rc::gen::inRange(2, 4)));
    const Run run(scenario);
    auto trace = run.step(2).trace;
    const auto kinds = traces::kinds(trace, {false, true});
    // Cut within the first forward pass.
    const auto forward = run.find(run.order[0][1], traces::Pass::forward)->compute.size();
    const auto cut = *rc::gen::inRange<std::size_t>(0, forward * 2);
    trace.activities.erase(trace.activities.begin(), trace.activities.begin() + static_cast<std::ptrdiff_t>(cut));
    const auto mapping = traces::match(
        trace, std::vector(kinds.begin() + static_cast<std::ptrdiff_t>(cut), kinds.end()), run.patterns, run.order);
    for (const auto& o : mapping.operations)
      if (o.expected->operation.starts_with("attention"))
        RC_ASSERT(Writer::is_window(*o.expected->kernel) == (trace.activities[o.main].duration == 100'000));
  });
  CHECK(passed);
}

TEST_CASE("a trace of another scenario: the first kernel without a place is named") {
  auto scenario = gpt_oss();
  for (const char* change : {"position_embedding_type=rope", "apply_rope_fusion=true"})  // few other operations
    scenario::set(scenario, change);
  const Run run(scenario);
  const auto trace = run.step(2, true).trace;
  const auto mapping = traces::match(trace, traces::kinds(trace, {false, true}), run.patterns, run.order);
  CHECK(mapping.first_unplaced.starts_with("my_own_kernel, after "));
  CHECK(mapping.first_unplaced.ends_with(" forward"));
  auto other = scenario;
  scenario::set(other, "hidden_dropout=0.1");
  scenario::set(other, "bias_dropout_fusion=true");
  CHECK_THROWS_WITH_AS(traces::import_traces(other, {trace}, {"x", 1, ""}, nullptr),
                       doctest::Contains("dropout; the first kernel without a place is "), UsageError);
}

TEST_CASE("unfused attention: its softmax is no router's, and a scenario that has it fused is refused by what ran") {
  auto fused = gpt_oss();
  for (const char* change :
       {"num_moe_experts=null", "activation_func=silu", "activation_func_clamp_value=null", "glu_linear_offset=0",
        "softmax_type=vanilla", "window_size=null", "window_attn_skip_freq=null"})
    scenario::set(fused, change);
  const bool passed = rc::check("kinds of attention", [&] {
    auto mixture = fused;
    scenario::set(mixture, "num_layers=" + std::to_string(*rc::gen::inRange(2, 7)));
    if (*rc::gen::arbitrary<bool>()) scenario::set(mixture, "num_moe_experts=8");
    scenario::set(mixture, "num_query_groups=" + std::to_string(*rc::gen::element(8, 64)));
    auto unfused = mixture;
    scenario::set(unfused, "attention_backend=unfused");
    const auto of_fused = Run(mixture).step(2).trace, of_unfused = Run(unfused).step(2).trace;
    const auto import = [](const auto& scenario, const auto& trace) {
      return traces::import_traces(scenario, {trace}, {"x", 1, ""}, nullptr);
    };
    RC_ASSERT(import(mixture, of_fused).attributed_us > 0);
    check_placed(import(unfused, of_unfused));
    for (const auto& [scenario, trace, ran] :
         {std::tuple(&mixture, &of_unfused, "ran unfused (scaled_upper_triang_masked_softmax_warp_forward)"),
          std::tuple(&unfused, &of_fused,
                     "ran fused (cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob)")})
      CHECK_THROWS_WITH_AS(import(*scenario, *trace), doctest::Contains(ran), UsageError);
  });
  CHECK(passed);
}

}  // namespace fabricated_test
