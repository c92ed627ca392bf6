#include "published_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "robust_statistics.hpp"

namespace pipewright::tables {
namespace {

enum Heads { full, latent };

struct AttentionRow {
  std::string_view gpu;
  Heads heads;
  std::int64_t length;
  double forward_us, backward_us;
};
// benchmark/sdpa_benchmark_training/results/{llama3.1,dsv3}/{gb200,gb300}/*_20260424_*.csv: cudnn (9.22), bf16,
// top_left, batch 2, backward not deterministic. Its H200 (9.19) takes what our capture does, within 1 %.
constexpr AttentionRow attention_rows[] = {
    {"gb200-nvl72", full, 2048, 125, 389},        {"gb200-nvl72", full, 4096, 391, 1198},
    {"gb200-nvl72", full, 8192, 1397, 4127},      {"gb200-nvl72", full, 16384, 5150, 16554},
    {"gb200-nvl72", full, 32768, 21692, 71756},   {"gb200-nvl72", latent, 2048, 321, 1056},
    {"gb200-nvl72", latent, 4096, 977, 3383},     {"gb200-nvl72", latent, 8192, 3470, 11984},
    {"gb200-nvl72", latent, 16384, 13103, 50424}, {"gb200-nvl72", latent, 32768, 50456, 212546},
    {"gb300-nvl72", full, 2048, 100, 356},        {"gb300-nvl72", full, 4096, 323, 1101},
    {"gb300-nvl72", full, 8192, 1185, 3832},      {"gb300-nvl72", full, 16384, 4593, 14593},
    {"gb300-nvl72", full, 32768, 18014, 59024},   {"gb300-nvl72", latent, 2048, 268, 977},
    {"gb300-nvl72", latent, 4096, 864, 3127},     {"gb300-nvl72", latent, 8192, 3013, 11074},
    {"gb300-nvl72", latent, 16384, 11178, 43911}, {"gb300-nvl72", latent, 32768, 44189, 177494}};

struct WindowRow {
  std::string_view gpu;
  std::int64_t window, heads, groups, length;
  double forward_us, backward_us;
};
// The same benchmark's gpt_oss, heads of 64 without sinks: {gb200,gb300}_919_only_cudnn/gpt_oss_20260226_*.csv (9.19,
// afa9f7c) and gpt_oss/{gb200,gb300}/gpt_oss_20260424_*.csv (9.22).
constexpr WindowRow window_rows[] = {
    {"gb200-nvl72", 1024, 64, 8, 2048, 104, 230},   {"gb200-nvl72", 1024, 64, 8, 4096, 209, 487},
    {"gb200-nvl72", 1024, 64, 8, 8192, 423, 998},   {"gb200-nvl72", 1024, 64, 8, 16384, 853, 2024},
    {"gb300-nvl72", 1024, 64, 8, 2048, 89, 221},    {"gb300-nvl72", 1024, 64, 8, 4096, 178, 472},
    {"gb300-nvl72", 1024, 64, 8, 8192, 359, 965},   {"gb300-nvl72", 1024, 64, 8, 16384, 722, 1951},
    {"gb200-nvl72", 128, 128, 128, 2048, 109, 237}, {"gb200-nvl72", 128, 128, 128, 4096, 210, 465},
    {"gb200-nvl72", 128, 128, 128, 8192, 414, 911}, {"gb200-nvl72", 128, 128, 128, 16384, 822, 1818},
    {"gb300-nvl72", 128, 128, 128, 2048, 104, 227}, {"gb300-nvl72", 128, 128, 128, 4096, 202, 442},
    {"gb300-nvl72", 128, 128, 128, 8192, 397, 862}, {"gb300-nvl72", 128, 128, 128, 16384, 790, 1712}};

struct OlderRow {
  std::int64_t length;
  double forward_us, backward_us;
};
// v1.15.0 (0b1577c), benchmark/sdpa_benchmark_training/artifacts/sdpa_bf16_benchmark_results_NVIDIA_GB300.csv: cuDNN
// 9.13.1 through torch, batch 1, 128 heads in 8 groups, as much work as 64 heads of a batch of 2. The call itself: what
// 512 tokens take there, 156 and 225 us, over 19 and 65 us of the kernels alone (v1.17.0, the same shape).
constexpr OlderRow cudnn_9_13[] = {{4096, 480, 1540}, {8192, 1470, 4865}, {16384, 5167, 17345}, {32768, 19592, 66679}};
constexpr double forward_call_us = 156 - 19, backward_call_us = 225 - 65;

struct NormRow {
  std::string_view gpu;
  std::int64_t rows, width;
  double forward_us, backward_us;
};
// benchmark/norms/results/{gb200,gb300}/all_models_20260226_*.csv: rms_norm, cudnn, bfloat16.
constexpr NormRow norm_rows[] = {
    {"gb200-nvl72", 16384, 4096, 42, 65}, {"gb200-nvl72", 8192, 8192, 45, 77},  {"gb200-nvl72", 4096, 16384, 44, 84},
    {"gb200-nvl72", 8192, 5120, 28, 51},  {"gb200-nvl72", 8192, 4096, 23, 36},  {"gb200-nvl72", 4096, 6144, 17, 36},
    {"gb200-nvl72", 4096, 8192, 23, 41},  {"gb300-nvl72", 16384, 4096, 42, 66}, {"gb300-nvl72", 8192, 8192, 45, 74},
    {"gb300-nvl72", 4096, 16384, 44, 82}, {"gb300-nvl72", 8192, 5120, 28, 50},  {"gb300-nvl72", 8192, 4096, 22, 36},
    {"gb300-nvl72", 4096, 6144, 17, 35},  {"gb300-nvl72", 4096, 8192, 22, 41},
};

/// A part of 148 multiprocessors over its kin of 152 at a higher clock: aiconfigurator 095f58a's attention of an
/// inference engine on a B200 over a GB200, the same at every length; its products take 1.02 to 1.10 times as long.
constexpr double fewer_multiprocessors = 1 / 0.925;

struct Kin {
  std::string_view gpu;
  double longer;
};
Kin kin_of(const std::string& profile_name) {
  if (profile_name == "b200-sxm") return {"gb200-nvl72", fewer_multiprocessors};
  if (profile_name == "b300-sxm") return {"gb300-nvl72", fewer_multiprocessors};
  return {profile_name, 1};
}

}  // namespace

double over_kin(const std::string& profile_name, const std::string& kin) {
  const Kin known = kin_of(profile_name);
  return known.gpu == kin ? known.longer : 1;
}

double triton_over_h200(const std::string& profile_name) {
  // mamba3_siso_fwd_kernel took 450 ms on a GB200 and 602 on an H200, where matrix products took 543 and 1324
  // (state-spaces/mamba issue 904).
  return 450.0 / 602 * kin_of(profile_name).longer;
}

std::string_view cudnn_source() { return "NVIDIA/cudnn-frontend 3929da2 benchmark"; }

std::vector<Figure> cudnn_attention(const std::string& profile_name) {
  const Kin kin = kin_of(profile_name);
  std::vector<Figure> figures;
  const auto add = [&](const char* family, const auto& row, const std::vector<std::int64_t>& heads) {
    if (row.gpu != kin.gpu) return;
    std::vector<std::int64_t> dims = {2, row.length, row.length};
    dims.insert(dims.end(), heads.begin(), heads.end());
    for (const auto& [pass, us] : {std::pair("forward", row.forward_us), std::pair("backward", row.backward_us)})
      figures.push_back({std::string(family) + pass + ".bf16", dims, us_to_ns(us) * kin.longer});
  };
  for (const auto& row : attention_rows) {
    if (row.heads == full) add("attention.", row, {64, 8, 128});
    if (row.heads == latent) add("attention.mla.", row, {128, 192, 128});
  }
  for (const auto& row : window_rows) add("attention.window.", row, {row.heads, row.groups, 64, row.window});
  return figures;
}

OlderAttention older_attention() {
  std::vector<double> forward, backward;
  for (const auto& old : cudnn_9_13) {
    const auto* now = std::ranges::find_if(attention_rows, [&](const AttentionRow& row) {
      return row.gpu == "gb300-nvl72" && row.heads == full && row.length == old.length;
    });
    forward.push_back((old.forward_us - forward_call_us) / now->forward_us);
    backward.push_back((old.backward_us - backward_call_us) / now->backward_us);
  }
  return {traces::median(forward), traces::median(backward),
          "cuDNN 9.13.1 over 9.22 on a GB300, NVIDIA/cudnn-frontend v1.15.0 and 3929da2 benchmark"};
}

std::vector<Figure> cudnn_norms(const std::string& profile_name) {
  std::vector<Figure> figures;
  for (const auto& row : norm_rows) {
    if (row.gpu != kin_of(profile_name).gpu) continue;  // bound by memory, which is the same
    figures.push_back({"rmsnorm.forward.cudnn", {row.rows, row.width}, us_to_ns(row.forward_us)});
    figures.push_back({"rmsnorm.backward.cudnn", {row.rows, row.width}, us_to_ns(row.backward_us)});
  }
  return figures;
}

std::optional<UnderLoad> cublas_fp8_under_load(const profile::DataSheet& gpu) {
  // cublaslt_gemm (superbench) of random operands after 10,000 products of warm-up, cubes of 8192 and 16384 on an Azure
  // ND GB200 v6: 2876.6 and 2906.9 TFLOP/s (Azure/AI-benchmarking-guide 2a370be, Azure_Results/ND_GB200_v6_results.md).
  // Cool they run at 3350 and 3331 by aiconfigurator (gb200-nvl72.json). Its H200 and H100 are ours within 3 %.
  const double on_gb200 = std::sqrt(3350.0 / 2876.6 * 3331.0 / 2906.9);
  if (gpu.profile == "gb200-nvl72")
    return UnderLoad{on_gb200, "cuBLAS' on a GB200, Azure/AI-benchmarking-guide 2a370be"};
  if (!gpu.under_load || gpu.under_load->than != "gb200-nvl72") return std::nullopt;
  return UnderLoad{
      1 + gpu.under_load->share("fp8", on_gb200) * (on_gb200 - 1),
      fmt::format("cuBLAS' on a GB200, Azure/AI-benchmarking-guide 2a370be, x {:.3f}", gpu.under_load->fp8)};
}

std::optional<Nvfp4> cublas_nvfp4(const profile::DataSheet& gpu, double flop, double mxfp8_ns) {
  if (gpu.device.compute_capability == 103) {
    // Twelve products of a layer on a B300, quantized before: 3.764 ms, 7.161 ms in MXFP8 (LayerOnB300's page); the
    // smallest has 0.53 TFLOP. Its tensor cores have half as much NVFP4 again as a B200's.
    constexpr double smallest = 2.0 * 15872 * 4096 * 4096, share = 3.764 / 7.161;
    if (flop < smallest) return std::nullopt;
    return Nvfp4{share * mxfp8_ns, "as 0.526 of MXFP8, Transformer Engine d0067d0d on a B300"};
  }
  // torch._scaled_mm (cuBLAS) on a B200, time of the kernels alone: cubes of 4096, 6144, 8192 in 30.8, 84.4, 205 us
  // (pytorch/ao pull request 2427); of 8192 cuBLAS alone 210 us (DeepGEMM pull request 348).
  struct Cube {
    double flop, us;
    double rate() const { return flop / us_to_ns(us); }
  };
  constexpr Cube cubes[] = {
      {2.0 * 4096 * 4096 * 4096, 30.8}, {2.0 * 6144 * 6144 * 6144, 84.4}, {2.0 * 8192 * 8192 * 8192, 205}};
  // A GB200's NVFP4 by one library over a B200's: the median of 236 large products of aiconfigurator.
  constexpr double gb200_faster = 1.073;
  if (gpu.device.compute_capability != 100 || flop < cubes[0].flop) return std::nullopt;
  double rate = cubes[2].rate();
  for (int i = 0; i < 2; ++i) {
    if (flop < cubes[i].flop || flop >= cubes[i + 1].flop) continue;
    const double at = std::log(flop / cubes[i].flop) / std::log(cubes[i + 1].flop / cubes[i].flop);
    rate = cubes[i].rate() + at * (cubes[i + 1].rate() - cubes[i].rate());
  }
  if (gpu.profile == "gb200-nvl72") rate *= gb200_faster;
  return Nvfp4{flop / rate, "as cuBLAS' on a B200, pytorch/ao pull request 2427"};
}

}  // namespace pipewright::tables
