// What libraries decide by a GPU's compute capability.
#include <fmt/format.h>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

/// Data-centre Blackwell and what follows take FP8 in every layout, its consumer parts do not; before, all but TN need
/// a transposed copy (TE common/gemm/cublaslt_gemm.cu, nvte_is_non_tn_fp8_gemm_supported). No FP8 before Ada.
std::vector<Layout> fp8_layouts_of(int capability) {
  if (capability < 89) return {};
  const bool all = (capability >= 100 && capability < 120) || capability >= 130;
  return all ? std::vector{Layout::tn, Layout::nn, Layout::nt} : std::vector{Layout::tn};
}

constexpr std::int64_t KiB = 1024, MiB = 1024 * KiB;

/// TE pytorch/cpp_extensions/gemm.py, get_cublas_workspace_size_bytes: from Hopper on with 1024 bytes of scales.
Bytes te_workspace_of(int capability) { return Bytes(capability >= 90 ? 32 * MiB + KiB : 4 * MiB); }

/// PyTorch aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: ":4096:8" from Hopper on, before
/// ":4096:2:16:8".
Bytes torch_workspace_of(int capability) {
  return Bytes(capability >= 90 ? 8 * 4096 * KiB : 2 * 4096 * KiB + 8 * 16 * KiB);
}

}  // namespace

std::string_view name(Layout layout) {
  switch (layout) {
    case Layout::tn:
      return "tn";
    case Layout::nn:
      return "nn";
    case Layout::nt:
      return "nt";
  }
  throw InternalError("layout out of range");
}

std::string capability_text(int compute_capability) {
  return fmt::format("{}.{}", compute_capability / 10, compute_capability % 10);
}

Device device(std::string name, std::int64_t multiprocessors, std::int64_t threads_per_multiprocessor,
              int compute_capability, Bytes l2) {
  return {std::move(name),
          multiprocessors,
          threads_per_multiprocessor,
          compute_capability,
          l2,
          fp8_layouts_of(compute_capability),
          te_workspace_of(compute_capability),
          torch_workspace_of(compute_capability)};
}

}  // namespace pipewright::profile
