// Kernels to operations: tables of names, tilings drawn as text, real traces of a dense model, and what they yield.
#include "pipewright/import.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "../../src/import/match.hpp"
#include "../../src/import/names.hpp"
#include "../on_h200.hpp"
#include "dense.hpp"
#include "pipewright/scenario/io.hpp"

namespace import_test {

using namespace pipewright;
using namespace pipewright::test;

namespace {

const char* const layer_gemm = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT";

std::string only(const std::string& name) {
  const auto meaning = traces::meaning_of(name);
  return meaning.operations.empty() ? "" : meaning.operations.front();
}

const traces::KeyTime& time_of(const traces::Import& result, const std::string& family,
                               const std::vector<std::int64_t>& dims) {
  for (const auto& key : result.keys) {
    if (key.key.family == family && key.key.dims == dims) return key;
  }
  FAIL("no " << family);
  return result.keys.front();
}

}  // namespace

TEST_CASE("names of kernels") {
  CHECK(only(layer_gemm) == "gemm.bf16.tn");
  CHECK(only("nvjet_sm90_tss_192x192_64x3_1x2_h_badd_coopB_NTN") == "gemm.bf16.nt");
  CHECK(only("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT") == "gemm.bf16.nn");
  CHECK(only("nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT") == "gemm.fp8");
  CHECK(only("nvjet_sm90_qrsss_144x128_128x6_1x2_h_bz_coopA_algo2_TNN") == "gemm.fp8");
  CHECK(only("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x128x64_cublas") == "gemm.bf16.nt");
  CHECK(only("triton_poi_fused_add_cat_mul_rsub_sigmoid_silu_split_0") == "swiglu.backward");
  CHECK(only("triton_poi_fused_mul_silu_split_0") == "swiglu.forward");
  CHECK(only("triton_poi_fused_add_0") == "add");
  CHECK(only("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x128_64x6_tn_align2>") ==
        "moe.router.gemm.forward");  // 60 experts
  CHECK(only("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nn_align1>") == "gemm.bf16.nn");
  CHECK(only("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>") ==
        "moe.router.gemm.backward");
  CHECK(only("rotary_bwd_kv_kernel") == "rope.mla.backward");
  CHECK(only("void x::fused_router::fused_topk_forward_simple_kernel<float, float>") == "moe.router.topk.forward");
  CHECK(only("void x::fused_router::fused_topk_with_score_function_backward_kernel<float>") ==
        "moe.router.topk.backward");
  CHECK(traces::meaning_of("void cublasLt::epilogue::impl::globalKernelBgradAB_v1<16, 16>").role ==
        traces::Role::after);
  // A run in fp16.
  CHECK(traces::meaning_of("void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::Half>>")
            .operations ==
        traces::meaning_of(
            "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>")
            .operations);
  CHECK(traces::meaning_of("nvjet_sm90_hss_128x256_64x4_2x1_v_badd_coopA_NTN").operations ==
        traces::meaning_of("nvjet_sm90_tss_128x256_64x4_2x1_v_badd_coopA_NTN").operations);
  CHECK(traces::meaning_of("Memset (Device)").role == traces::Role::before);
  CHECK(traces::meaning_of("void x::rmsnorm_bwd_finalize_tuned_kernel<>").role == traces::Role::after);
  CHECK(traces::meaning_of("my_own_kernel").role == traces::Role::other);
  CHECK(traces::operation_of("gemm.bf16.nt.acc_f32") == "gemm.bf16.nt");
  CHECK(traces::operation_of("all_gather.shared host memory") == "all_gather");
}

TEST_CASE("every family that the model of a measured run uses has landmarks or weak names") {
  // Each kernel family of a piece must be reachable from some kernel name; else a layer could never be mapped whole.
  const auto stages = test::build(dense());
  const auto patterns = traces::patterns_of(stages, 1);
  REQUIRE(patterns.size() >= 3);
  for (const auto& pattern : patterns) CHECK(pattern.landmarks.size() >= 2);
}

TEST_CASE("busy and exposed: unions by kind, less what computes at that moment") {
  //  stream 7   comp  0----10        20----30
  //  stream 7   comp       (idle)         25 (not overlapping)
  //  stream 9   p2p      5--------------25
  //  stream 7   ep                               30--34 (a send/receive on a stream that computes)
  traces::Trace trace;
  trace.names = {"k", "ncclDevKernel_SendRecv", "ncclDevKernel_AllReduce"};
  const auto add = [&](std::uint32_t name, int stream, std::int64_t start, std::int64_t end) {
    traces::Activity a;
    a.name = name;
    a.stream = stream;
    a.start = start * 1000;
    a.duration = (end - start) * 1000;
    trace.activities.push_back(a);
  };
  add(0, 7, 0, 10);
  add(1, 9, 5, 25);
  add(0, 7, 20, 30);
  add(1, 7, 30, 34);
  add(2, 7, 34, 36);
  const auto with_experts = traces::summarise(trace, {true, true});
  CHECK(with_experts.span_us == 36);
  CHECK(with_experts.busy_us == std::map<std::string, double>{{"coll", 2}, {"comp", 20}, {"ep", 4}, {"p2p", 20}});
  CHECK(with_experts.exposed_us == std::map<std::string, double>{{"coll", 2}, {"ep", 4}, {"p2p", 10}});
  CHECK(traces::summarise(trace, {false, true}).busy_us.at("p2p") == 24);
  CHECK(traces::summarise(trace, {false, false}).busy_us == std::map<std::string, double>{{"coll", 26}, {"comp", 20}});
}

TEST_CASE("real kernel lists give the summaries that were recorded with them") {
  for (const int rank : {1, 3}) {
    const auto trace = traces::read("data/dense.r" + std::to_string(rank) + ".json.gz");
    const auto summary = traces::summarise(trace, {false, true});
    const auto wanted = measured(rank);
    CHECK(summary.span_us == doctest::Approx(wanted.span_us).epsilon(1e-6));
    for (const auto& [kind, us] : wanted.busy_us) CHECK(std::abs(summary.busy_us.at(kind) - us) < 1);
    for (const auto& [kind, us] : wanted.exposed_us) CHECK(std::abs(summary.exposed_us.at(kind) - us) < 1);
  }
}

TEST_CASE("whole steps of two stages: nearly all of the kernel time belongs to operations") {
  const auto scenario = dense();
  const auto result =
      traces::import_traces(scenario, {traces::read("data/dense.r1.json.gz"), traces::read("data/dense.r3.json.gz")},
                            {"dense", 1.25, ""}, nullptr);
  CHECK(result.attributed_us / result.kernel_us > 0.98);
  CHECK(result.ranks[0].passes == 2 * 8 * 4);  // 8 microbatches, 2 chunks of 2 layers, both directions
  CHECK(result.ranks[1].passes == 2 * 8 * 5);  // and the head
  CHECK_MESSAGE(result.notes.empty(), (result.notes.empty() ? std::string() : result.notes.front()));
  // Each of the four products of a layer, 8 microbatches x 4 layers x 2 ranks; times as seen by eye in the trace.
  const auto& fc1 = time_of(result, "gemm.bf16.tn", {28672, 4096, 4096});
  CHECK(fc1.sample.count == 64);
  CHECK(fc1.situ_ns == doctest::Approx(1.28e6).epsilon(0.05));
  CHECK(time_of(result, "gemm.bf16.tn", {32000, 4096, 4096}).sample.count == 8);
  CHECK(time_of(result, "attention.backward.bf16", {1, 4096, 4096, 32, 8, 128}).sample.count == 64);
  // The loss is a chain of kernels: 375 + 160 + 385 + 248 + 137 + 439 us and small ones; backward 424 + 183.
  CHECK(time_of(result, "cross_entropy.unfused.forward", {4096, 32000}).situ_ns == doctest::Approx(1.8e6).epsilon(0.1));
  CHECK(time_of(result, "cross_entropy.unfused.backward", {4096, 32000}).situ_ns ==
        doctest::Approx(0.63e6).epsilon(0.1));
  CHECK(time_of(result, "adam", {872448000}).situ_ns == doctest::Approx(7.37e6).epsilon(0.02));
  const auto& transfer = time_of(result, "send_recv.nvlink", {33554432});
  CHECK(transfer.sample.ns > 1.0e5);
  CHECK(transfer.sample.ns < 1.7e5);
  // The last to come to a collective does not wait; two ranks of four cannot show that, so nothing is imported.
  CHECK(time_of(result, "all_reduce.nvlink", {4, 4}).sample.count == 2);
  CHECK(result.profile.samples.count("all_reduce.nvlink") == 0);
  CHECK(result.profile.scalars.count("in_situ.duty") == 1);
  CHECK(result.profile.scalars.count("host.forward_begin_us") == 0);  // kernel lists know no launches
  // What was written can be read.
  const auto again = profile::parse(profile::to_json(result.profile), "dense.json");
  CHECK(again.samples.at("adam").size() == result.profile.samples.at("adam").size());
}

TEST_CASE("mixture of experts: grouped GEMMs on their own streams, routers, all-to-alls; nodes on two streams") {
  const auto plain = scenario::read("../measured/e_base.yaml");
  const auto step = traces::import_traces(plain, {traces::read("data/moe.r0.json.gz")}, {"moe", 1.25, ""}, nullptr);
  CHECK(step.attributed_us / step.kernel_us > 0.98);
  CHECK(step.ranks[0].passes == 2 * 8 * 5);  // 8 microbatches, an embedding and 2 chunks of 2 layers
  // Four experts' GEMMs one after the other on four streams, as seen by eye in the steady phase: 2.7 ms and 1.55 ms
  // forward.
  const auto& fc1 = time_of(step, "gemm.grouped.bf16.tn", {4, 8192, 28672, 4096});
  CHECK(fc1.sample.count == 32);
  CHECK(fc1.situ_ns == doctest::Approx(2.7e6).epsilon(0.05));
  CHECK(time_of(step, "gemm.grouped.bf16.tn", {4, 8192, 4096, 14336}).situ_ns == doctest::Approx(1.55e6).epsilon(0.05));
  CHECK(time_of(step, "moe.sort_chunks", {8192, 4096}).sample.count == 128);
  CHECK(time_of(step, "moe.router.topk_aux.forward", {4096, 8}).sample.count == 32);

  const auto overlapped = scenario::read("../measured/e_ov_dw.yaml");
  const auto nodes =
      traces::import_traces(overlapped, {traces::read("data/moe_overlap.r2.json.gz")}, {"nodes", 1.25, ""}, nullptr);
  CHECK(nodes.attributed_us / nodes.kernel_us > 0.98);
  // Tokens there and back, forward and backward; probabilities are the shorter ones.
  CHECK(time_of(nodes, "all_to_all.nvlink", {2, 67108864}).sample.count == 4 * 32);
  CHECK(time_of(nodes, "all_to_all.nvlink", {2, 32768}).sample.count == 2 * 32);
  CHECK(time_of(nodes, "all_to_all.nvlink", {2, 32768}).situ_ns < 2e4);
  CHECK(time_of(nodes, "gemm.grouped.bf16.nt.acc_f32", {4, 8192, 28672, 4096}).sample.count == 32);
}

TEST_CASE("what memory bounds takes its lone time, so no kernel was taken for an operation of another size") {
  const profile::Profiles h200({profile::load("../../profiles/h200-sxm.json", {"test", 0})});
  const std::pair<const char*, const char*> runs[] = {{"e_base", "data/moe.r0.json.gz"},
                                                      {"e_ov_dw", "data/moe_overlap.r2.json.gz"},
                                                      {"a_pp4v2_m8", "data/dense.r1.json.gz"},
                                                      {"a_pp4v2_m8", "data/dense.r3.json.gz"}};
  for (const auto& [run, trace] : runs) {
    CAPTURE(trace);
    const auto scenario = scenario::read(std::string("../measured/") + run + ".yaml");
    const auto result = traces::import_traces(scenario, {traces::read(trace)}, {"run", 1.25, ""}, &h200);
    int large = 0;
    for (const auto& k : result.keys) {
      const auto& family = profile::family(k.key.family);
      constexpr double cache = 60e6;  // bytes: less may stay in the L2 of an H200
      if (family.load != profile::Load::memory || family.bytes(k.key.dims) < 2 * cache) continue;
      CAPTURE(k.key.family);
      CAPTURE(k.key.dims.front());
      ++large;
      // 0.8: ATen's products by a number against multi-tensor ones; 1.25: clocks, contention with transfers.
      CHECK(k.situ_ns / h200.time(k.key).ns == doctest::Approx(1).epsilon(0.26));
    }
    CHECK(large >= 6);
  }
}

TEST_CASE("ATen halves what 32 bits cannot address until they can") {
  constexpr std::int64_t most = INT32_MAX;
  for (const std::int64_t pieces : {1, 2, 4, 8}) {
    CHECK(traces::pieces_of("scale", pieces * (most / 4)) == pieces);
    CHECK(traces::pieces_of("scale", pieces * (most / 4) + 1) == 2 * pieces);
    CHECK(traces::pieces_of("add", pieces * (most / 2)) == pieces);
  }
  CHECK(traces::pieces_of("swiglu.forward", most) == 0);
  CHECK(traces::is_of_tensor_iterator("void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<"));
  CHECK_FALSE(traces::is_of_tensor_iterator("void multi_tensor_apply_kernel<ScalePtrFunctor<at::native::x>>"));
}

TEST_CASE(
    "steps of pretrain_gpt.py: routing weights on the experts' input, latent attention; operations cost what is "
    "shipped") {
  const profile::Profiles h200({profile::load("../../profiles/h200-sxm.json", {"test", 0})});
  const auto ratio = [&](const traces::Import& result, const std::string& name) {
    return result.profile.scalars.at("host." + name + "_us").value / h200.scalar("host." + name + "_us").value;
  };
  // Recorded by CUDA's records alone, which cost little.
  const auto llama4 = traces::import_traces(scenario::read("../measured/f_llama4.yaml"),
                                            {traces::read("data/llama4.r0.json.gz")}, {"llama4", 1.05, ""}, nullptr);
  // 4 microbatches, an embedding, 4 layers and a head; experts' products on four streams may begin out of order.
  CHECK(llama4.ranks[0].passes == doctest::Approx(2 * 4 * 6).epsilon(0.1));
  CHECK(time_of(llama4, "gemm.grouped.bf16.tn", {16, 4096, 8192, 2048}).sample.count == 16);
  auto latent = scenario::read("../real/h_mla_ep2.yaml");
  scenario::set(latent, "global_batch_size=8");
  const auto mla = traces::import_traces(latent, {traces::read("data/latent.r0.json.gz")}, {"mla", 1.05, ""}, nullptr);
  CHECK(mla.attributed_us / mla.kernel_us > 0.83);  // names of the optimizer's kernels were cut
  CHECK(time_of(mla, "rope.mla.forward", {8192, 16, 64}).sample.count == 2 * 7);
  CHECK(time_of(mla, "rmsnorm.forward", {8192, 2048}).sample.count == 2 * (7 * 3 + 1));  // layer, queries, MLP; head
  // One host's operations in one direction are slower than the reference's by one factor.
  for (const auto* run : {&llama4, &mla}) {
    const double factor = ratio(*run, "forward.gemm.bf16.tn");
    for (const char* name :
         {"forward.moe.router.gemm.forward", "forward.moe.unpermute.forward", "forward.moe.permute.forward"}) {
      CAPTURE(name);
      CHECK(ratio(*run, name) == doctest::Approx(factor).epsilon(0.35));
    }
  }
}

TEST_CASE("mixtures whose router has no type of its own: its products are plain ones of bf16, in bf16 and in FP8") {
  auto scenario = scenario::read("../real/v_nodrop.yaml");
  const auto of = [&](const char* data) {
    return traces::import_traces(scenario, {traces::read(std::string("data/") + data + ".r0.json.gz")}, {data, 1.1, ""},
                                 nullptr);
  };
  const auto plain = of("mixtral");
  CHECK(plain.ranks[0].passes == 2 * 2 * 4);  // two microbatches: embedding, two layers, head
  CHECK(plain.attributed_us / plain.kernel_us > 0.97);
  scenario::set(scenario, "fp8=hybrid");
  scenario::set(scenario, "fp8_recipe=tensorwise");
  const auto fp8 = of("mixtral_fp8");
  CHECK(fp8.ranks[0].passes == plain.ranks[0].passes);
  for (const auto* run : {&plain, &fp8})
    for (const char* layout : {"tn", "nn", "nt"}) {
      const auto& product = time_of(*run, std::string("moe.router.gemm.bf16.") + layout, {4096, 4096, 8});
      CHECK(product.sample.count == 4);
      CHECK(product.situ_ns == doctest::Approx(17e3).epsilon(0.3));
    }
  // The model in the router's type: another's products are not those of the trace.
  scenario::set(scenario, "moe_router_dtype=fp32");
  CHECK_THROWS_AS(of("mixtral_fp8"), UsageError);
}

TEST_CASE(
    "first microbatches of stock pretrain_gpt.py: the loader's mask, the embedding's gradient beside, what they run") {
  const auto one = [](const std::string& run, const std::string& data) {
    const auto scenario = scenario::read("../real/" + run + ".yaml");
    auto result =
        traces::import_traces(scenario, {traces::read("data/" + data + ".r0.json.gz")}, {data, 1.05, ""}, nullptr);
    CAPTURE(data);
    CHECK(result.attributed_us / result.kernel_us > 0.97);  // the rest zeroes the gradient buffers
    for (const auto& note : result.notes) CHECK(note.find("are not in the trace") == std::string::npos);
    return result;
  };
  const auto nemotron = one("p_nemo", "nemotron");
  CHECK(time_of(nemotron, "squared_relu.forward", {8192, 16384}).sample.count == 8);
  CHECK(time_of(nemotron, "squared_relu.backward", {8192, 16384}).sample.count == 8);
  CHECK(time_of(nemotron, "layernorm.backward", {8192, 4096}).sample.count == 2 * 8 + 1);
  CHECK(time_of(nemotron, "copy.h2d", {2 * 4096 * 4096}).sample.count == 1);  // not the loader's other tensors
  const auto& accumulated = time_of(nemotron, "add", {std::int64_t{256000} * 4096});
  CHECK(accumulated.sample.count == 1);
  CHECK(accumulated.situ_ns == doctest::Approx(1.43e6).epsilon(0.02));
  const auto gpt3 = traces::import_traces(scenario::read("../real/p_gpt.yaml"), {traces::read("data/gpt3.r0.json.gz")},
                                          {"gpt3", 1.05, ""}, nullptr);
  CHECK(gpt3.attributed_us / gpt3.kernel_us > 0.97);
  CHECK(time_of(gpt3, "dropout.forward", {33554432}).sample.count == 2 * 12 + 1);
  CHECK(time_of(gpt3, "dropout.backward", {33554432}).sample.count == 2 * 12 + 1);
  CHECK(time_of(gpt3, "gelu.backward", {8192, 16384}).sample.count == 12);
  CHECK(time_of(gpt3, "l2norm", {8192 * 16384 / 2}).situ_ns == doctest::Approx(75e3).epsilon(0.1));  // fc1's bias
  CHECK(time_of(gpt3, "add", {std::int64_t{51200} * 4096}).situ_ns == doctest::Approx(285e3).epsilon(0.05));
  CHECK(time_of(gpt3, "add", {2048 * 4096}).situ_ns < 2e4);  // positions
  // q, k and v of one buffer are not copied; nothing else is missing.
  bool copies = false;
  for (const auto& note : gpt3.notes)
    copies |= note.find("36 operations of the model are not in the") != std::string::npos;
  CHECK(copies);
  const auto graph = one("p_graph", "graph");
  CHECK(time_of(graph, "copy.d2d", {4096 * 4096 * 2}).sample.count == 3 * 8);  // input, a weight's gradient, output's
  CHECK(time_of(graph, "copy.d2d", {4096 * 6144 * 2}).sample.count == 8);
  CHECK(time_of(graph, "copy.d2d", {4096 * 6144 * 2}).situ_ns == doctest::Approx(26e3).epsilon(0.1));
  const auto blockwise = one("p_block", "blockwise");
  CHECK(time_of(blockwise, "quantize.blockwise.fp8", {8192, 28672}).sample.count == 8);
  CHECK(time_of(blockwise, "quantize.blockwise.fp8", {8192, 14336}).sample.count == 8);
}

TEST_CASE("a clock law brings times in situ back to a cool part") {
  profile::Profile lone;
  lone.name = "lone";
  lone.clocks = {{"bf16", 1980, 700, {{0.0, 1980, 100, 1.0, 1.0, 1.0}, {1.0, 1500, 700, 1.5, 1.25, 1.0}}}};
  lone.scalars["clocks.window_ms"] = {20, 0, profile::Origin::measured, ""};
  const profile::Profiles cool({lone});
  const auto result =
      traces::import_traces(dense(), {traces::read("data/dense.r3.json.gz")}, {"dense", 1.25, ""}, &cool);
  const auto& gemm = time_of(result, "gemm.bf16.tn", {28672, 4096, 4096});
  CHECK(gemm.sample.ns < gemm.situ_ns / 1.25);  // this rank computes most of the time
  CHECK(gemm.sample.ns > gemm.situ_ns / 1.51);
  const auto& norm = time_of(result, "rmsnorm.forward", {4096, 4096});
  CHECK(norm.sample.ns == doctest::Approx(norm.situ_ns));
}

TEST_CASE("kernels that the model does not know are listed, never guessed") {
  auto trace = traces::read("data/dense.r1.json.gz");
  trace.names.emplace_back("my_own_kernel");
  traces::Activity foreign = trace.activities.back();
  foreign.name = static_cast<std::uint32_t>(trace.names.size() - 1);
  foreign.start = trace.activities.back().end() + 1000;
  foreign.duration = 123000;
  trace.activities.push_back(foreign);
  const auto result = traces::import_traces(dense(), {trace}, {"dense", 1.25, ""}, nullptr);
  bool listed = false;
  for (const auto& u : result.unmapped) listed |= u.name == "my_own_kernel" && u.count == 1 && u.total_us == 123;
  CHECK(listed);
}

TEST_CASE("a profile of another part, and clocks that vary wildly, are refused") {
  auto trace = traces::read("data/dense.r1.json.gz");
  trace.device = "NVIDIA H200";
  profile::Profile other;
  other.name = "a100";
  other.device.name = "NVIDIA A100-SXM4-80GB";
  const profile::Profiles cool({other});
  CHECK_THROWS_WITH_AS(traces::import_traces(dense(), {trace}, {"x", 1.25, ""}, &cool),
                       doctest::Contains("ran on NVIDIA H200; profile a100 is of NVIDIA A100-SXM4-80GB"), UsageError);
  std::int64_t later = 0;
  for (std::size_t i = 0; i < trace.activities.size(); ++i) {
    auto& a = trace.activities[i];
    a.start += later;
    if (trace.names[a.name].find("nvjet") == std::string::npos || i % 2 == 0) continue;
    later += 2 * a.duration;
    a.duration *= 3;
  }
  CHECK_THROWS_WITH_AS(traces::import_traces(dense(), {trace}, {"x", 1.25, ""}, nullptr),
                       doctest::Contains("the SM clock varied wildly"), UsageError);
}

TEST_CASE("what no operation explains is listed with the range that launched it") {
  auto trace = traces::read("data/dense.r1.json.gz");
  trace.names.emplace_back("my_own_kernel");
  traces::Activity foreign = trace.activities.back();
  foreign.name = static_cast<std::uint32_t>(trace.names.size() - 1);
  foreign.start = trace.activities.back().end() + 1000;
  foreign.launch = {foreign.start - 500, 5, 1};
  trace.activities.push_back(foreign);
  trace.ranges = {
      {"step", 0, foreign.start + 1}, {"logging", foreign.start - 600, foreign.start - 400}, {"old", 0, 10}};
  const auto result = traces::import_traces(dense(), {trace}, {"dense", 1.25, ""}, nullptr);
  bool listed = false;
  for (const auto& u : result.unmapped) listed |= u.name == "my_own_kernel (in logging)";
  CHECK(listed);
}

TEST_CASE("wrong scenarios are refused") {
  const auto trace = traces::read("data/dense.r1.json.gz");
  auto fp8 = dense();
  scenario::set(fp8, "fp8=hybrid");
  scenario::set(fp8, "fp8_recipe=tensorwise");
  CHECK_THROWS_WITH_AS(traces::import_traces(fp8, {trace}, {"x", 1.25, ""}, nullptr),
                       doctest::Contains("the kernels of the scenario's layers are not in the trace"), UsageError);
  auto longer = dense();
  scenario::set(longer, "global_batch_size=12");
  CHECK_THROWS_WITH_AS(traces::import_traces(longer, {trace}, {"x", 1.25, ""}, nullptr),
                       doctest::Contains("32 layers run forward in the trace, 48 in a step"), UsageError);
  auto drops = dense();
  scenario::set(drops, "hidden_dropout=0.1");
  CHECK_THROWS_WITH_AS(traces::import_traces(drops, {trace}, {"x", 1.25, ""}, nullptr),
                       doctest::Contains("are not in the trace where they should be"), UsageError);
  CHECK_THROWS_WITH_AS(traces::import_traces(dense(), {trace, trace}, {"x", 1.25, ""}, nullptr),
                       doctest::Contains("rank given twice"), UsageError);
  auto moved = trace;
  moved.rank = 4;
  CHECK_THROWS_WITH_AS(traces::import_traces(dense(), {moved}, {"x", 1.25, ""}, nullptr),
                       doctest::Contains("rank 4 of a scenario of 4 GPUs"), UsageError);
}

TEST_CASE("traces that only look like the scenario's are refused: schedule, model, units, other ranks") {
  const auto trace = traces::read("data/dense.r1.json.gz"), last = traces::read("data/dense.r3.json.gz");
  const profile::Profiles h200({profile::load("../../profiles/h200-sxm.json", {"test", 0})});
  const auto refused = [](const scenario::Scenario& s, const std::vector<traces::Trace>& read,
                          const profile::Profiles* lone, const char* why) {
    CAPTURE(why);
    CHECK_THROWS_WITH_AS(traces::import_traces(s, read, {"x", 1.25, ""}, lone), doctest::Contains(why), UsageError);
  };
  const auto scaled = [](traces::Trace t, double factor) {
    for (auto& a : t.activities) {
      a.start = std::llround(static_cast<double>(a.start) * factor);
      a.duration = std::llround(static_cast<double>(a.duration) * factor);
    }
    return t;
  };
  auto plain = dense();
  for (const char* change : {"virtual_pipeline_model_parallel_size=null", "overlap_p2p_comm=false"})
    scenario::set(plain, change);
  refused(plain, {trace}, nullptr, "the step turns 8 times from forward to backward, the scenario's schedule 6 times");
  auto wide = dense();
  for (const char* change : {"hidden_size=8192", "ffn_hidden_size=28672", "num_attention_heads=64"})
    scenario::set(wide, change);
  for (const auto* lone : {&h200, static_cast<const profile::Profiles*>(nullptr)}) {
    CAPTURE(lone);
    refused(wide, {trace}, lone, "the trace is of another model");
    refused(dense(), {scaled(trace, 1000)}, lone, "% of the GPU's peak");
    refused(dense(), {scaled(trace, 0.2)}, lone, "times are not in microseconds");
    refused(dense(), {scaled(trace, 1.2), last}, lone, "they are of different runs");
  }
  refused(dense(), {scaled(trace, 1.7)}, &h200, "matrix products take 1.");
  auto of_eight = trace;
  of_eight.world_size = 8;
  refused(dense(), {of_eight}, nullptr, "distributedInfo.world_size: ran on 8 GPUs; the scenario has 4");
  using Change = std::function<void(traces::Trace&, bool)>;
  for (const auto& [why, change] :
       {std::pair<const char*, Change>{
            "ran on NVIDIA H100 80GB HBM3, ",
            [](auto&t, bool of) { t.device = of ? "NVIDIA H200" : "NVIDIA H100 80GB HBM3"; }},
        {"distributedInfo.world_size: 8 ranks, ", [](auto&t, bool of) { t.world_size = of ? 4 : 8; }},
        {"nccl 2.27, ", [](auto&t, bool of) { t.versions["nccl"] = of ? "2.28" : "2.27"; }},
        {"recorded ProfilerStep#6, ", [](auto&t, bool of) { t.steps = {of ? "ProfilerStep#5" : "ProfilerStep#6"}; }},
        {"recorded 100 s apart from the others",
         [](auto&t, bool of) { t.began = of ? 1'000'000'000 : 101'500'000'000; }}}) {
    auto here = trace, there = last;
    change(here, true), change(there, false);
    refused(dense(), {here, there}, nullptr, why);
    change(there, true);
    CHECK_NOTHROW(traces::import_traces(dense(), {here, there}, {"x", 1.25, ""}, nullptr));
  }
  for (const auto& [group, size] : {std::pair("TENSOR_MODEL_PARALLEL_GROUP", 1),
                                    {"PIPELINE_MODEL_PARALLEL_GROUP", 4},
                                    {"CONTEXT_PARALLEL_GROUP", 1},
                                    {"EXPERT_MODEL_PARALLEL_GROUP", 1}}) {
    auto grouped = trace;
    grouped.groups[group] = {3, size};
    CHECK_NOTHROW(traces::import_traces(dense(), {grouped}, {"x", 1.25, ""}, nullptr));
    grouped.groups[group] = {3};
    refused(dense(), {grouped}, nullptr, (std::string(group) + " of 3 ranks; the scenario has ").c_str());
  }
  CHECK(traces::read("data/dense.chrome.json.gz").world_size == 4);
}

TEST_CASE("reports") {
  const auto result =
      traces::import_traces(dense(), {traces::read("data/dense.r1.json.gz")}, {"dense", 1.25, ""}, nullptr);
  const auto text = traces::text(result, nullptr);
  CHECK(text.find("of the kernel time belongs to operations of the model") != std::string::npos);
  CHECK(text.find("gemm.bf16.tn m=28672 n=4096 k=4096") != std::string::npos);
  CHECK(text.find("not mapped") != std::string::npos);
  CHECK(traces::json(result, nullptr).find("\"trace_summary\"") != std::string::npos);
  CHECK(traces::json(result, nullptr) ==
        traces::json(
            traces::import_traces(dense(), {traces::read("data/dense.r1.json.gz")}, {"dense", 1.25, ""}, nullptr),
            nullptr));
}

TEST_CASE("times in situ lose what the simulation of their run charges again: contention with transfers") {
  const auto times = [](double contention) {
    profile::Profile lone;
    lone.name = "lone";
    lone.clocks = {{"bf16", 1980, 700, {{0.0, 1980, 100, 1.0, 1.0, 1.0}, {1.0, 1980, 700, 1.0, 1.0, 1.0}}}};
    lone.scalars["clocks.window_ms"] = {20, 0, profile::Origin::measured, ""};
    for (const char* kind : {"matrix", "attention", "memory"})
      lone.scalars[std::string("contention.") + kind] = {contention, 0, profile::Origin::measured, ""};
    const profile::Profiles cool({lone});
    return traces::import_traces(dense(), {traces::read("data/dense.r1.json.gz")}, {"dense", 1.25, ""}, &cool).keys;
  };
  const auto alone = times(1), beside = times(1.1);
  REQUIRE(alone.size() == beside.size());
  double least = 1, most = 0;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    CHECK(beside[i].situ_ns == alone[i].situ_ns);
    if (profile::family(alone[i].key.family).load != profile::Load::matrix) continue;
    const double ratio = beside[i].sample.ns / alone[i].sample.ns;
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  // Between all of the contention (a transfer beside the whole kernel) and none of it.
  CHECK(least >= doctest::Approx(1 / 1.1));
  CHECK(most <= 1);
  CHECK(least < 0.99);
}

}  // namespace import_test
