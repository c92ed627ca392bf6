// cuBLASLt matrix products as Transformer Engine calls them (transformer_engine/common/gemm/cublaslt_gemm.cu):
// column-major, fp32 accumulation, the heuristic's first choice with 32 MiB of workspace, C = D. FP8: TN only, scales
// by pointer; the forward pass accumulates fast, dgrad and wgrad with the split accumulator.
#include <cublasLt.h>

#include <memory>

#include "ops.hpp"

namespace pipewright::capture {
namespace {

struct Form {
  bool transpose_a = false, transpose_b = false;
  bool fp8 = false;
  bool gradient_b = false;  // e5m2
  bool fast = false;
  bool out_f32 = false;
  bool accumulate = false;
};

std::optional<Form> form_of(const std::string& family) {
  Form f;
  if (family == "gemm.bf16.tn")
    f.transpose_a = true;
  else if (family == "gemm.bf16.nn")
    f.transpose_a = false;
  else if (family == "gemm.bf16.nt")
    f.transpose_b = true;
  else if (family == "gemm.bf16.nt.acc_f32")
    f.transpose_b = f.accumulate = f.out_f32 = true;
  else if (family == "gemm.bf16.nt.acc_bf16")
    f.transpose_b = f.accumulate = true;
  else if (family == "gemm.fp8.tn")
    f.transpose_a = f.fp8 = f.fast = true;
  else if (family == "gemm.fp8.tn.split")
    f.transpose_a = f.fp8 = f.gradient_b = true;
  else if (family == "gemm.fp8.tn.acc_f32")
    f.transpose_a = f.fp8 = f.gradient_b = f.accumulate = f.out_f32 = true;
  else if (family == "gemm.fp8.tn.acc_bf16")
    f.transpose_a = f.fp8 = f.gradient_b = f.accumulate = true;
  else if (family == "gemm.fp8.tn.out_bf16")
    f.transpose_a = f.fp8 = f.gradient_b = true;
  else
    return std::nullopt;
  return f;
}

struct Gemm {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulHeuristicResult_t choice{};
  float* scales = nullptr;
  Operand a_data, b_data, d_data;
  float beta = 0;

  Gemm() = default;
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm() {
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    for (const auto layout : {a, b, d})
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    cudaFree(scales);
  }
};

template <class T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), "descriptor");
}

}  // namespace

std::optional<Op> gemm_op(Lab& lab, const profile::Key& key) {
  const auto form = form_of(key.family);
  if (!form) return std::nullopt;
  const auto m = key.dims.at(0), n = key.dims.at(1), k = key.dims.at(2);
  const auto gemm = std::make_shared<Gemm>();
  const auto a_data = lab.take(form->fp8 ? Content::e4m3 : Content::bf16, m * k);
  const auto b_data = lab.take(!form->fp8 ? Content::bf16 : form->gradient_b ? Content::e5m2 : Content::e4m3, n * k);
  const auto d_data = form->out_f32      ? lab.take(Content::f32, m * n, true)
                      : form->accumulate ? lab.take(Content::bf16, m * n, true)
                                         : lab.take(Content::scratch, m * n * 2);
  if (!a_data || !b_data || !d_data) return std::nullopt;
  gemm->a_data = *a_data;
  gemm->b_data = *b_data;
  gemm->d_data = *d_data;
  gemm->beta = form->accumulate ? 1.0f : 0.0f;

  const auto input_a = form->fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  const auto input_b = !form->fp8 ? CUDA_R_16BF : form->gradient_b ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
  const auto u = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
  const auto layout = [&](cublasLtMatrixLayout_t* out, cudaDataType_t type, std::int64_t rows, std::int64_t cols) {
    check(cublasLtMatrixLayoutCreate(out, type, u(rows), u(cols), rows), "layout");
  };
  layout(&gemm->a, input_a, form->transpose_a ? k : m, form->transpose_a ? m : k);
  layout(&gemm->b, input_b, form->transpose_b ? n : k, form->transpose_b ? k : n);
  layout(&gemm->d, form->out_f32 ? CUDA_R_32F : CUDA_R_16BF, m, n);
  check(cublasLtMatmulDescCreate(&gemm->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
  set(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSA, form->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSB, form->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (form->fp8) {
    // Each scale at an address of its own 16 bytes: cuBLASLt refuses others.
    const float inverse_scales[8] = {1.0f / 112, 0, 0, 0, 1.0f / 14336, 0, 0, 0};
    check(cudaMalloc(reinterpret_cast<void**>(&gemm->scales), sizeof(inverse_scales)), "scales");
    check(cudaMemcpy(gemm->scales, inverse_scales, sizeof(inverse_scales), cudaMemcpyHostToDevice), "scales");
    set(gemm->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(form->fast));
    set(gemm->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(gemm->scales));
    set(gemm->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        static_cast<const void*>(gemm->scales + (form->gradient_b ? 4 : 0)));
  }
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  const std::size_t workspace = Lab::workspace_bytes;
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof(workspace)),
        "preference");
  int found = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(lab.cublas, gemm->operation, gemm->a, gemm->b, gemm->d, gemm->d,
                                                     preference, 1, &gemm->choice, &found);
  check(cublasLtMatmulPreferenceDestroy(preference), "preference");
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) return std::nullopt;

  Op op;
  op.pause = 1.6;
  op.launch = [&lab, gemm](int slot) {
    const float alpha = 1;
    void* d = gemm->d_data.at(slot);
    check(cublasLtMatmul(lab.cublas, gemm->operation, &alpha, gemm->a_data.at(slot), gemm->a, gemm->b_data.at(slot),
                         gemm->b, &gemm->beta, d, gemm->d, d, gemm->d, &gemm->choice.algo, lab.workspace,
                         Lab::workspace_bytes, lab.stream),
          "matmul");
  };
  return op;
}

}  // namespace pipewright::capture
