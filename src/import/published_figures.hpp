// Single published figures of Blackwell GPUs that stand in no table of kernels: NVIDIA's own of cuDNN and cuBLAS, and
// what others measured of cuBLAS. docs/public-tables.md says how each was taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::tables {

/// A kernel as cuDNN's own benchmark shows it (NVIDIA/cudnn-frontend 3929da2, benchmark/).
struct Figure {
  std::string family;
  std::vector<std::int64_t> dims;
  double ns = 0;
};

/// Causal attention in bf16 of a GPU, by length: Llama 3.1's heads and DeepSeek-V3's, GPT-OSS' with windows. Of a part
/// with fewer multiprocessors at a lower clock the figures of its kin, as much longer as aiconfigurator's are.
std::vector<Figure> cudnn_attention(const std::string& profile_name);
/// Attention of cuDNN before 9.17 over that: median of the lengths from 4096 to 32768.
struct OlderAttention {
  double forward = 1, backward = 1;
  std::string_view source;
};
OlderAttention older_attention();
/// RMSNorm forward and backward in bf16, by shape.
std::vector<Figure> cudnn_norms(const std::string& profile_name);
std::string_view cudnn_source();
/// How much longer a kernel takes than on that kin, a part with more multiprocessors; 1: no kin.
double over_kin(const std::string& profile_name, const std::string& kin);

/// A Triton kernel of chunked products over the same on an H200.
double triton_over_h200(const std::string& profile_name);

/// A product of that many FLOP in NVFP4 by cuBLAS, where somebody told: its rate, or its share of MXFP8's time.
struct Nvfp4 {
  double ns = 0;
  const char* source = "";
};
std::optional<Nvfp4> cublas_nvfp4(const profile::DataSheet& gpu, double flop, double mxfp8_ns);

/// What full load makes of an FP8 product's cool time: cuBLAS' own on a GB200, of kin as their products say beside it.
struct UnderLoad {
  double full = 1;
  std::string source;
};
std::optional<UnderLoad> cublas_fp8_under_load(const profile::DataSheet& gpu);

/// Twelve products of a layer on a B300, by tensor over MXFP8, ms (LayerOnB300's page).
constexpr double fp8_over_mxfp8 = 6.812 / 7.161;

/// The four forward products of a layer (15872 tokens, hidden 4096, QKV 12288, MLP 16384) on a B300 in full run, ms:
/// Transformer Engine d0067d0d, docs/examples/gemm_profiling/gemm_profiling.rst, quantized before.
struct LayerOnB300 {
  double bf16 = 4.250, fp8 = 2.158, mxfp8 = 2.365, nvfp4 = 1.254;
  std::vector<std::vector<std::int64_t>> shapes = {
      {12288, 15872, 4096}, {4096, 15872, 4096}, {16384, 15872, 4096}, {4096, 15872, 16384}};
};

}  // namespace pipewright::tables
