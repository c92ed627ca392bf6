// Predictions beside measured training steps, with the profiles that come with the program. The bounds are today's
// figures rounded up: they may only be tightened.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

namespace measured_test {

using namespace pipewright;

namespace {

const std::string root = SOURCE_ROOT;

profile::Profiles shipped(const std::string& name) {
  return profile::Profiles({profile::load(root + "/profiles/" + name + ".json", {"test", 0})});
}

scenario::Scenario seventy_billion() { return scenario::read(root + "/scenarios/llama3-70b-sft-32xh100.yaml"); }

double step_with(const profile::Profiles& profiles, const char* modules) {
  auto s = seventy_billion();
  scenario::set(s, std::string("recompute_modules=") + modules);
  return static_cast<double>(predict::predict(s, profiles).step_ns);
}

}  // namespace

TEST_CASE("dense measured runs: time of forward-backward, peak memory of every rank") {
  const auto profiles = shipped("h200-sxm");
  // Runs of family b used a SwiGLU kernel 3.4 to 3.8 times slower than its lone time (README, Accuracy). t_tp2 is bound
  // by the hosts of another machine. f_lora_all and f_lora_qkv ran on a chip whose products were 8 to 10 % faster.
  // Predicted before they ran: f_gemma2_tp2 (+4.0 %), f_gemma3_tp2 (-6.5 %), f_lora_pp2v2 (-0.3 %).
  // t_dp2: its exposed collectives are right (below), its kernels 2 % too fast. w_off0: DP 4, for whose slowest chip
  // 0.8 % are added, as for t_dp2 and a_pp2dp2v2_m8_ogr, which they bring nearer, and 0.3 % for its exposed reductions,
  // which slow with the clock as those of TP 2 do (t_tp2, t_b_tp2, b_tp2pp2v2_m8: 0.3 % nearer each). Widths of
  // f_gemma*, f_phi3 run Transformer Engine's general norms: their measured times are 1 to 3 % of these steps. t_h2048
  // was 1.1 % too fast while its MLP's input gradients were interpolated 5 % too slow; they are measured now.
  // f_lora_qkv waits for its host forward, which takes 1.17 times what it was said to until 2026-11-29 (docs/hosts.md).
  const std::map<std::string, double> bounds = {
      {"a_pp4v2_m8", 0.005},   {"a3_pp4v2_m8", 0.025},  {"b_tp2pp2v2_m8", 0.047}, {"b_tp2pp2v2_m8_fp8cs", 0.02},
      {"w_off0", 0.032},       {"t_mbs2", 0.01},        {"t_s8192_v128k", 0.03},  {"t_pp2v2", 0.005},
      {"t_mbs4_r_mlp", 0.005}, {"t_v128k_full", 0.005}, {"t_fp8_block", 0.02},    {"t_h2048", 0.017},
      {"t_b_tp2", 0.057},      {"t_gpt", 0.04},         {"f_nemotron", 0.04},     {"t_b_tp2_fp8block", 0.025},
      {"t_tp2", 0.27},         {"f_lora_all", 0.055},   {"f_lora_qkv", 0.031},    {"f_gemma2_tp2", 0.056},
      {"f_gemma3_tp2", 0.07},  {"f_gemma3_4b", 0.032},  {"f_phi3", 0.037},        {"t_dp2", 0.023}};
  double sum = 0;
  int runs = 0;
  for (const auto& file : std::filesystem::directory_iterator(root + "/tests/measured")) {
    if (file.path().extension() != ".yaml") continue;
    const auto s = scenario::read(file.path().string());
    if (s.model.num_moe_experts || s.settings.cpu_offloading || s.cluster.profile != "h200-sxm") continue;
    const std::string name = file.path().stem().string();
    CAPTURE(name);
    const auto prediction = predict::predict(s, profiles);
    const double error =
        static_cast<double>(prediction.forward_backward_ns) / 1e6 / s.measured->forward_backward_ms - 1;
    CAPTURE(error);
    const auto bound = bounds.find(name);
    CHECK(std::abs(error) < (bound == bounds.end() ? 0.025 : bound->second));
    if (name != "t_tp2") sum += std::abs(error);
    ++runs;
    for (const auto& rank : s.measured->ranks) {
      const auto& predicted = prediction.ranks[static_cast<std::size_t>(rank.pp_rank)];
      const double memory = static_cast<double>(predicted.walk.peak_allocated.value) /
                                static_cast<double>(rank.peak_allocated_bytes.value) -
                            1;
      // With block scaling under sequence parallelism 1 to 4 GB more stay alive, not the same on both ranks:
      // unexplained.
      // Embeddings that need no gradient go before their microbatch's backward, all but the latest: kept here.
      CHECK(std::abs(memory) < (name == "t_b_tp2_fp8block" ? 0.082 : name == "f_lora_pp2v2" ? 0.0095 : 0.003));
    }
  }
  REQUIRE(runs > 45);  // the folder was found
  CHECK(sum / (runs - 1) < 0.018);
}

TEST_CASE("an H100's runs: packed rows, and rows that are told of sequences which are not there") {
  const auto profiles = shipped("h100-sxm");
  // Products of this chip under full load are 4 % slower than those of the profiled one (g_70b*), kernels' own times
  // are not: clocks.law_spread.
  for (const auto& [model, bound] : {std::pair{"g_8b", 0.026}, {"g_70b", 0.045}}) {
    double predicted[3], measured[3];
    int i = 0;
    for (const char* rows : {"", "_packed", "_packed_padded"}) {
      CAPTURE(rows);
      const auto s = scenario::read(root + "/tests/measured/" + model + rows + ".yaml");
      const auto p = predict::predict(s, profiles);
      predicted[i] = static_cast<double>(p.forward_backward_ns) / 1e6;
      measured[i] = s.measured->forward_backward_ms;
      CHECK(predicted[i] / measured[i] == doctest::Approx(1).epsilon(bound));
      CHECK(static_cast<double>(p.ranks[0].walk.peak_allocated.value) ==
            doctest::Approx(static_cast<double>(s.measured->ranks[0].peak_allocated_bytes.value)).epsilon(0.003));
      ++i;
    }
    // 23 and 26 ms shorter rows, 14 and 18 ms for nothing.
    for (const int row : {1, 2})
      CHECK(std::abs((predicted[row] - predicted[row - 1]) - (measured[row] - measured[row - 1])) <
            0.025 * measured[0]);
  }
}

TEST_CASE("memory outside the allocator: every measured run, every rank") {
  const auto profiles = shipped("h200-sxm");
  double sum = 0;
  int ranks = 0;
  for (const char* folder : {"/tests/measured", "/tests/memory/data"}) {
    for (const auto& file : std::filesystem::directory_iterator(root + folder)) {
      if (file.path().extension() != ".yaml") continue;
      const auto s = scenario::read(file.path().string());
      const std::string name = file.path().stem().string();
      CAPTURE(name);
      for (const auto& rank : s.measured->ranks) {
        if (!rank.outside_allocator_bytes) continue;
        const auto predicted = model::outside_allocator(s, profiles, static_cast<int>(rank.pp_rank));
        const double error =
            static_cast<double>(predicted.value) / static_cast<double>(rank.outside_allocator_bytes->value) - 1;
        CAPTURE(rank.rank);
        // Three of other settings hold the same to the byte on every rank: they ran in one process behind others
        // (../shared/measured/README.md), whose ranks had output layers, kernels and groups that these have not.
        if (name == "b_pp4v2_m8" || name.starts_with("a_pp4v2_m8_fp8cs")) {
          CHECK(error < 0);
          continue;
        }
        CHECK(std::abs(error) < 0.006);
        sum += std::abs(error);
        ++ranks;
      }
    }
  }
  CHECK(ranks > 100);
  CHECK(sum / ranks < 0.003);
}

TEST_CASE("a memory fraction is one of the device's memory: the step stops where PyTorch would refuse") {
  auto s = scenario::read(root + "/tests/measured/a_pp4v2_m8.yaml");
  s.environment["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.15";
  const auto profiles = shipped("h200-sxm");
  const auto prediction = predict::predict(s, profiles);
  REQUIRE(prediction.ranks[0].walk.failure);
  CHECK(prediction.ranks[0].walk.failure->reserved.value <= profiles.first().memory.value * 15 / 100);
  CHECK_FALSE(prediction.fits);
}

TEST_CASE("a profile that knows no communicators but those in use counts every group as one") {
  auto profile = profile::load(root + "/profiles/h200-sxm.json", {"test", 0});
  const auto s = scenario::read(root + "/tests/measured/a_pp4v2_m8.yaml");
  const auto all = model::outside_allocator(s, profile::Profiles({profile}), 1);
  for (const char* name : {"nccl_group_bytes", "nccl_group_1_bytes", "nccl_collective_bytes"})
    profile.scalars.erase(std::string("memory.outside.") + name);
  CHECK(model::outside_allocator(s, profile::Profiles({profile}), 1) > all);
}

TEST_CASE("mixture-of-experts runs, with and without expert-parallel overlap: time and memory of every rank") {
  const auto profiles = shipped("h200-sxm");
  struct Bound {
    const char* run;
    double time, peak, fixed;  // fixed: before the first step and after the last
  };
  // c_base is bound by the host's launches; t_mixtral_fp8, t_qwen30 and t_mla too, on a machine whose host is 1.4 times
  // slower than the one that the profile's host costs come from.
  // t_qwen30, t_mla and f_gptoss_plain wait for it backward, too, where the reference host takes 0.83 times what it was
  // said to until 2026-11-29 (docs/hosts.md, Both directions; 1 to 3 % more too fast), all others forward (1 to 6 %
  // less). f_gptoss*: loops over experts in Python, bound by the host (kernels alone: within 2 % of the traces).
  // f_llama4*: 120 ms of kernels in 300 ms of launches.
  for (const auto& bound : {Bound{"e_base", 0.015, 0.001, 0.0005}, Bound{"c_base", 0.03, 0.003, 0.001},
                            Bound{"e_ov_dw", 0.03, 0.002, 0.0025}, Bound{"q_base", 0.04, 0.005, 0.005},
                            Bound{"t_e_ep2", 0.05, 0.001, 0.001}, Bound{"t_e_ov", 0.05, 0.003, 0.003},
                            Bound{"t_mixtral_fp8", 0.125, 0.001, 0.001}, Bound{"t_qwen30", 0.16, 0.002, 0.002},
                            Bound{"t_mla", 0.18, 0.02, 0.02}, Bound{"f_gptoss", 0.17, 0.001, 0.001},
                            Bound{"f_gptoss_s8k", 0.09, 0.001, 0.001}, Bound{"f_gptoss_plain", 0.355, 0.001, 0.001},
                            Bound{"f_llama4", 0.37, 0.001, 0.001}, Bound{"f_llama4_qk", 0.545, 0.001, 0.001}}) {
    CAPTURE(bound.run);
    const auto s = scenario::read(root + "/tests/measured/" + bound.run + ".yaml");
    const auto prediction = predict::predict(s, profiles);
    const auto error = [](auto predicted, auto measured) {
      return static_cast<double>(predicted) / static_cast<double>(measured) - 1;
    };
    const double time =
        error(static_cast<double>(prediction.forward_backward_ns) / 1e6, s.measured->forward_backward_ms);
    CAPTURE(time);
    CHECK(std::abs(time) < bound.time);
    for (const auto& rank : s.measured->ranks) {
      CAPTURE(rank.rank);
      const auto& predicted = prediction.ranks[static_cast<std::size_t>(rank.pp_rank)];
      CHECK(std::abs(error(predicted.walk.peak_allocated.value, rank.peak_allocated_bytes.value)) < bound.peak);
      CHECK(std::abs(error(predicted.walk.static_bytes.value, rank.static_bytes.value)) <
            std::max(bound.fixed, 0.0012));
    }
  }
}

TEST_CASE("Llama 3 70B on 32 H100: what recompute costs, as Megatron Bridge published it") {
  const auto profiles = shipped("h100-sxm");
  const double baseline = step_with(profiles, "[core_attn]");
  // Throughput against the core_attn run: mlp -15.7 %, mlp and core_attn -16.6 %.
  CHECK(baseline / step_with(profiles, "[mlp]") - 1 == doctest::Approx(-0.157).epsilon(0.03 / 0.157));
  CHECK(baseline / step_with(profiles, "[mlp,core_attn]") - 1 == doctest::Approx(-0.166).epsilon(0.03 / 0.166));
}

TEST_CASE("a limit below the peak: out of memory, the rank and the place are named") {
  auto s = scenario::read(root + "/tests/measured/a_pp4v2_m8.yaml");
  s.search.memory_limit = Bytes(38'000'000'000);
  const auto prediction = predict::predict(s, shipped("h200-sxm"));
  CHECK(!prediction.fits);
  CHECK(prediction.ranks[0].walk.failure);
  CHECK(prediction.ranks[2].fits);
}

TEST_CASE("a limit above what the GPU has is told: the verdict is of another GPU") {
  auto s = scenario::read(root + "/tests/measured/a_pp4v2_m8.yaml");
  const auto profiles = shipped("h200-sxm");
  const auto told = [&] {
    return std::ranges::any_of(predict::predict(s, profiles).notes,
                               [](const auto& note) { return note.starts_with("the GPU has "); });
  };
  CHECK_FALSE(told());
  const auto has = profiles.first().memory;
  for (const auto& [limit, above] : {std::pair(has, false), std::pair(has + Bytes(1), true)}) {
    s.search.memory_limit = limit;
    CHECK(told() == above);
  }
  s.cluster.memory_bytes = has + Bytes(1);
  CHECK_FALSE(told());
}

// No run of it is published for this machine: the bounds are those of other large mixtures of experts on H100 (Megatron
// Bridge's performance summary: 158 to 253 TFLOP/s a GPU), and of the part's memory.
TEST_CASE("DeepSeek-V3 from end to end: latent attention, experts, multi-token prediction on a stage of its own") {
  const auto profiles = shipped("h100-sxm");
  auto s = scenario::read(root + "/scenarios/deepseek-v3-pretrain-1024xh100.yaml");
  // The layout that Megatron Core documents for it (docs/user-guide/features/pipeline_parallel_layout.md), overlapped.
  for (const char* change : {"pipeline_model_parallel_size=16", "virtual_pipeline_model_parallel_size=2",
                             "pipeline_model_parallel_layout=Et*3|(tt|)*29,m|L", "moe_token_dispatcher_type=alltoall",
                             "overlap_moe_expert_parallel_comm=true",
                             "recompute_modules=[mla_up_proj, layernorm, moe_act, mlp]", "global_batch_size=512"})
    scenario::set(s, change);
  const auto prediction = predict::predict(s, profiles);
  CHECK(prediction.ranks.size() == 16);
  CHECK(prediction.fits);
  CHECK(prediction.tflops_per_gpu > 100);
  CHECK(prediction.tflops_per_gpu < 400);
  scenario::set(s, "recompute_granularity=none");
  const auto plain = predict::predict(s, profiles);
  CHECK(plain.step_ns < prediction.step_ns);
  for (std::size_t rank = 0; rank < 14; ++rank) {
    CHECK(plain.ranks[rank].walk.peak_allocated > prediction.ranks[rank].walk.peak_allocated);
  }
}

// 26 gathers and 26 reductions of buckets, 28.2 ms of kernels on the slower of two chips, of which the profiler saw 2.8
// ms exposed (trace_summary); the other chip waits for it.
TEST_CASE("gathers of parameters and reductions of gradients hide behind layers as traced") {
  const auto prediction = predict::predict(scenario::read(root + "/tests/measured/t_dp2.yaml"), shipped("h200-sxm"));
  const double exposed = static_cast<double>(prediction.ranks.front().account.dp) / 1e6;
  CHECK(exposed > 1.5);
  CHECK(exposed < 4.0);
}

}  // namespace measured_test
