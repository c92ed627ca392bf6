// cuBLASLt matrix products as Transformer Engine calls them (transformer_engine/common/gemm/cublaslt_gemm.cu):
// column-major, fp32 accumulation, the heuristic's first choice with 32 MiB of workspace, C = D. FP8: TN only, scales
// by pointer; the forward pass accumulates fast, dgrad and wgrad with the split accumulator. Block scaling
// (cuBLAS 12.9): e4m3 throughout, a scale for 128 x 128 elements of a weight, for 1 x 128 of anything else. MXFP8 and
// NVFP4 (Blackwell): TN, scales of both operands along k (block_scales.hpp). fp32 operands in TF32.
//
// A layer's local experts (multi_stream_cublas_gemm there) run round robin on four streams that wait for the current
// one and it for them:
//
//   current ──●                          ●──►
//   stream 0  └─ expert 0 ─ expert 4 ────┤
//   stream 1  └─ expert 1 ─ expert 5 ────┤   ...
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>

#include "block_scales.hpp"
#include "drawn_rows.hpp"
#include "kernels/elementwise.hpp"
#include "ops.hpp"

namespace pipewright::capture {
namespace {

struct Form {
  bool transpose_a = false, transpose_b = false;
  bool fp8 = false, in_f32 = false;
  bool gradient_b = false;  ///< e5m2
  bool fast = false;
  bool out_f32 = false;
  bool accumulate = false;
  bool weight_gradient = false;
  bool by_block = false;                  ///< of FP8: scales for blocks instead of one for the tensor
  std::optional<BlockScaling> scaling{};  ///< MXFP8 or NVFP4
};

std::optional<Form> form_of(const std::string& family) {
  static const std::map<std::string, Form> forms = [] {
    const Form forward{.transpose_a = true}, dgrad{}, wgrad{.transpose_b = true, .weight_gradient = true};
    const Form fp8{.transpose_a = true, .fp8 = true, .fast = true};
    const Form fp8_split{.transpose_a = true, .fp8 = true, .gradient_b = true};
    Form fp8_wgrad = fp8_split;
    fp8_wgrad.weight_gradient = true;
    const Form block{.transpose_a = true, .fp8 = true, .by_block = true};
    Form block_wgrad = block;
    block_wgrad.weight_gradient = true;
    const auto with = [](Form form, bool out_f32, bool accumulate) {
      form.out_f32 = out_f32;
      form.accumulate = accumulate;
      return form;
    };
    std::map<std::string, Form> map;
    for (const auto& [name, scaling] : {std::pair("gemm.mxfp8.tn", mxfp8), std::pair("gemm.nvfp4.tn", nvfp4)}) {
      const Form scaled{.transpose_a = true, .scaling = scaling};
      Form scaled_wgrad = scaled;
      scaled_wgrad.weight_gradient = true;
      map[name] = scaled;
      map[std::string(name) + ".out_bf16"] = scaled_wgrad;
      map[std::string(name) + ".acc_f32"] = with(scaled_wgrad, true, true);
      map[std::string(name) + ".acc_bf16"] = with(scaled_wgrad, false, true);
    }
    map.insert({{"gemm.bf16.tn", forward},
                {"gemm.bf16.nn", dgrad},
                {"gemm.bf16.nt", wgrad},
                {"gemm.bf16.nt.acc_f32", with(wgrad, true, true)},
                {"gemm.bf16.nt.acc_bf16", with(wgrad, false, true)},
                {"gemm.fp8.tn", fp8},
                {"gemm.fp8.tn.split", fp8_split},
                {"gemm.fp8.tn.acc_f32", with(fp8_wgrad, true, true)},
                {"gemm.fp8.tn.acc_bf16", with(fp8_wgrad, false, true)},
                {"gemm.fp8.tn.out_bf16", fp8_wgrad},
                {"gemm.fp8.block.tn", block},
                {"gemm.fp8.block.tn.acc_f32", with(block_wgrad, true, true)},
                {"gemm.fp8.block.tn.acc_bf16", with(block_wgrad, false, true)},
                {"gemm.fp8.block.tn.out_bf16", block_wgrad}});
    return map;
  }();
  const auto found = forms.find(family);
  return found == forms.end() ? std::nullopt : std::optional(found->second);
}

struct Shape {
  std::int64_t m, n, k;
};

/// One product: its descriptors and the kernel that the library chose.
struct Gemm {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulHeuristicResult_t choice{};
  void* scales = nullptr;
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

  void run(Lab& lab, const void* a_data, const void* b_data, void* d_data, void* workspace, cudaStream_t stream) const {
    const float alpha = 1;
    check(cublasLtMatmul(lab.cublas, operation, &alpha, a_data, a, b_data, b, &beta, d_data, d, d_data, d, &choice.algo,
                         workspace, lab.workspace_bytes, stream),
          "matmul");
  }
};

template <class T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), "descriptor");
}

cudaDataType_t type_of_a(const Form& form) {
  if (form.scaling) return form.scaling->bits == 4 ? CUDA_R_4F_E2M1 : CUDA_R_8F_E4M3;
  return form.fp8 ? CUDA_R_8F_E4M3 : form.in_f32 ? CUDA_R_32F : CUDA_R_16BF;
}
cudaDataType_t type_of_b(const Form& form) { return form.fp8 && form.gradient_b ? CUDA_R_8F_E5M2 : type_of_a(form); }

void set_scales(Gemm& gemm, const Form& form) {
  // Each scale at an address of its own 16 bytes: cuBLASLt refuses others.
  const float inverse_scales[8] = {1.0f / 112, 0, 0, 0, 1.0f / 14336, 0, 0, 0};
  check(cudaMalloc(&gemm.scales, sizeof(inverse_scales)), "scales");
  check(cudaMemcpy(gemm.scales, inverse_scales, sizeof(inverse_scales), cudaMemcpyHostToDevice), "scales");
  set(gemm.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(form.fast));
  set(gemm.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(gemm.scales));
  set(gemm.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
      static_cast<const void*>(static_cast<const float*>(gemm.scales) + (form.gradient_b ? 4 : 0)));
}

/// Scales of 1 in every place: how they are ordered makes no difference then, how many bytes are read does.
void set_scales_along_k(Gemm& gemm, const BlockScaling& scaling, const Shape& s) {
  const auto of_a = scale_bytes(scaling, s.m, s.k), of_b = scale_bytes(scaling, s.n, s.k);
  check(cudaMalloc(&gemm.scales, static_cast<std::size_t>(of_a + of_b)), "scales");
  check(cudaMemset(gemm.scales, scaling.one, static_cast<std::size_t>(of_a + of_b)), "scales");
  const auto mode =
      scaling.bits == 4 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  set(gemm.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
  set(gemm.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
  set(gemm.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(gemm.scales));
  set(gemm.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
      static_cast<const void*>(static_cast<const char*>(gemm.scales) + of_a));
}

// All scales are 1: bounded by the larger of one for 1 x 128 of each operand, rows padded to 4 as TE pads them.
void set_block_scales(Gemm& gemm, const Form& form, const Shape& s) {
  const auto padded = [](std::int64_t rows, std::int64_t k) { return (rows + 3) / 4 * 4 * ((k + 127) / 128 + 3); };
  const std::int64_t count_a = padded(s.m, s.k), count = count_a + padded(s.n, s.k);
  const std::vector<float> ones(static_cast<std::size_t>(count), 1.0f);
  check(cudaMalloc(&gemm.scales, ones.size() * sizeof(float)), "scales");
  check(cudaMemcpy(gemm.scales, ones.data(), ones.size() * sizeof(float), cudaMemcpyHostToDevice), "scales");
  set(gemm.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
  set(gemm.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
      form.weight_gradient ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
  set(gemm.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
  set(gemm.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(gemm.scales));
  set(gemm.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
      static_cast<const void*>(static_cast<const float*>(gemm.scales) + count_a));
}

/// nullptr: the library has no kernel for it.
std::shared_ptr<Gemm> make_gemm(Lab& lab, const Form& form, const Shape& s) {
  if (form.scaling && !takes(*form.scaling, s.m, s.n, s.k)) return nullptr;
  auto gemm = std::make_shared<Gemm>();
  gemm->beta = form.accumulate ? 1.0f : 0.0f;
  const auto u = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
  const auto layout = [&](cublasLtMatrixLayout_t* out, cudaDataType_t type, std::int64_t rows, std::int64_t cols) {
    check(cublasLtMatrixLayoutCreate(out, type, u(rows), u(cols), rows), "layout");
  };
  layout(&gemm->a, type_of_a(form), form.transpose_a ? s.k : s.m, form.transpose_a ? s.m : s.k);
  layout(&gemm->b, type_of_b(form), form.transpose_b ? s.n : s.k, form.transpose_b ? s.k : s.n);
  layout(&gemm->d, form.out_f32 ? CUDA_R_32F : CUDA_R_16BF, s.m, s.n);
  const auto compute = form.in_f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&gemm->operation, compute, CUDA_R_32F), "descriptor");
  set(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSA, form.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSB, form.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (form.scaling) {
    set_scales_along_k(*gemm, *form.scaling, s);
  } else if (form.by_block) {
    set_block_scales(*gemm, form, s);
  } else if (form.fp8) {
    set_scales(*gemm, form);
  }
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  const std::size_t workspace = lab.workspace_bytes;
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof(workspace)),
        "preference");
  int found = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(lab.cublas, gemm->operation, gemm->a, gemm->b, gemm->d, gemm->d,
                                                     preference, 1, &gemm->choice, &found);
  check(cublasLtMatmulPreferenceDestroy(preference), "preference");
  return status == CUBLAS_STATUS_SUCCESS && found > 0 ? gemm : nullptr;
}

struct Operands {
  Operand a, b, d;
};

/// Inputs and output of `count` products of one shape, one behind the other in each slot.
std::optional<Operands> take(Lab& lab, const Form& form, const Shape& s, std::int64_t count) {
  const Content in = form.in_f32 ? Content::f32 : Content::bf16;
  const bool bytes = form.fp8 || form.scaling;  // random bytes are random e2m1, two by two
  const auto of = [&](std::int64_t rows) {
    return count * (form.scaling ? operand_bytes(*form.scaling, rows, s.k) : rows * s.k);
  };
  const auto a = lab.take(bytes ? Content::e4m3 : in, of(s.m));
  const auto b = lab.take(!bytes ? in : form.gradient_b ? Content::e5m2 : Content::e4m3, of(s.n));
  const auto d = form.accumulate ? lab.take(form.out_f32 ? Content::f32 : Content::bf16, count * s.m * s.n, true)
                                 : lab.take(Content::scratch, count * s.m * s.n * (form.out_f32 ? 4 : 2));
  if (!a || !b || !d) return std::nullopt;
  return Operands{*a, *b, *d};
}

constexpr double kPause = 1.6;

std::optional<Op> single(Lab& lab, const Form& form, const Shape& shape) {
  const auto data = take(lab, form, shape, 1);
  if (!data) return std::nullopt;
  const auto gemm = make_gemm(lab, form, shape);
  if (!gemm) return std::nullopt;
  Op op;
  op.pause = kPause;
  op.launch = [&lab, gemm, data = *data](int slot) {
    gemm->run(lab, data.a.at(slot), data.b.at(slot), data.d.at(slot), lab.workspace, lab.stream);
  };
  return op;
}

/// The four streams of grouped products, each with its workspace.
struct Streams {
  static constexpr int count = 4;  // nvte_get_num_compute_streams
  std::array<cudaStream_t, count> streams{};
  std::array<void*, count> workspaces{};
  std::array<cudaEvent_t, count> events{};

  explicit Streams(const Lab& lab) {
    for (int i = 0; i < count; ++i) {
      check(cudaStreamCreateWithPriority(&streams[i], cudaStreamNonBlocking, -1), "stream");
      check(cudaMalloc(&workspaces[i], lab.workspace_bytes), "workspace");
      check(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming), "event");
    }
  }
  ~Streams() {
    for (int i = 0; i < count; ++i) {
      cudaStreamDestroy(streams[i]);
      cudaFree(workspaces[i]);
      cudaEventDestroy(events[i]);
    }
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  /// The streams wait for `current`, run launch(i, stream, workspace) round robin, and `current` waits for them.
  template <class Launch>
  void run(cudaStream_t current, int launches, Launch launch) {
    const int used = std::min(count, launches);
    check(cudaEventRecord(events[0], current), "event");
    for (int s = 0; s < used; ++s) check(cudaStreamWaitEvent(streams[s], events[0], 0), "event");
    for (int i = 0; i < launches; ++i) launch(i, streams[i % count], workspaces[i % count]);
    for (int s = 0; s < used; ++s) check(cudaEventRecord(events[s], streams[s]), "event");
    for (int s = 0; s < used; ++s) check(cudaStreamWaitEvent(current, events[s], 0), "event");
  }
};

/// One expert's product: forward and dgrad multiply its rows with its n x k, wgrad makes its n x k.
Shape of_expert(const Form& form, std::int64_t rows, std::int64_t n, std::int64_t k) {
  return form.weight_gradient ? Shape{k, n, rows} : Shape{n, rows, k};
}

/// The experts of one microbatch, each its product; none for an expert without rows.
using Group = std::vector<std::shared_ptr<Gemm>>;

std::optional<Op> grouped(Lab& lab, const Form& form, const profile::Key& key) {
  const auto experts = key.dims.at(0), tokens = key.dims.at(1), n = key.dims.at(2), k = key.dims.at(3);
  // Draws enough for the mean of few experts; many are a mean already.
  const int draws = 2 * static_cast<int>(std::clamp<std::int64_t>(8 / experts, 1, 4));
  const auto rows = drawn_rows(experts, tokens, profile::row_alignment(key.family), draws);
  std::int64_t most = 1;
  std::map<std::int64_t, std::shared_ptr<Gemm>> of_rows;
  std::vector<Group> groups;
  for (const auto& draw : rows) {
    for (const auto r : draw) {
      most = std::max(most, r);
      if (r == 0 || of_rows.contains(r)) continue;
      of_rows[r] = make_gemm(lab, form, of_expert(form, r, n, k));
      if (!of_rows[r]) return std::nullopt;
    }
    auto& group = groups.emplace_back();
    for (const auto r : draw) group.push_back(r == 0 ? nullptr : of_rows[r]);
  }
  const Shape shape = of_expert(form, most, n, k);  // room for the largest, the others begin where it would
  const auto data = take(lab, form, shape, experts);
  if (!data) return std::nullopt;
  static Streams streams(lab);
  Op op;
  op.pause = kPause;
  op.variants = draws;
  const auto bytes = [&](cudaDataType_t type, std::int64_t lines) {
    if (form.scaling) return operand_bytes(*form.scaling, lines, shape.k);
    return lines * shape.k * (type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1);
  };
  const std::int64_t a_step = bytes(type_of_a(form), shape.m), b_step = bytes(type_of_b(form), shape.n),
                     d_step = shape.m * shape.n * (form.out_f32 ? 4 : 2);
  op.launch = [&lab, groups, data = *data, a_step, b_step, d_step](int slot) {
    const Group& group = groups[static_cast<std::size_t>(slot) % groups.size()];
    streams.run(lab.stream, static_cast<int>(group.size()), [&](int i, cudaStream_t stream, void* workspace) {
      if (!group[static_cast<std::size_t>(i)]) return;
      group[static_cast<std::size_t>(i)]->run(lab, data.a.at<char>(slot) + i * a_step,
                                              data.b.at<char>(slot) + i * b_step, data.d.at<char>(slot) + i * d_step,
                                              workspace, stream);
    });
  };
  return op;
}

/// A product of Megatron's gating in bf16 as general_gemm of Transformer Engine calls it.
std::optional<Op> plain_router(Lab& lab, const std::string& layout, const std::vector<std::int64_t>& dims) {
  const auto tokens = dims.at(0), hidden = dims.at(1), experts = dims.at(2);
  const Shape shape = layout == "tn"   ? Shape{experts, tokens, hidden}
                      : layout == "nn" ? Shape{hidden, tokens, experts}
                                       : Shape{hidden, experts, tokens};
  const auto form = form_of("gemm.bf16." + layout);
  return form ? single(lab, *form, shape) : std::nullopt;
}

/// Megatron's RouterGatingLinearFunction (moe/moe_utils.py) in fp32: forward bf16 to fp32 scores; backward casts the
/// weight and the input to fp32, multiplies in TF32 and casts both gradients back.
std::optional<Op> router(Lab& lab, const std::vector<std::int64_t>& dims, bool backward) {
  const auto tokens = dims.at(0), hidden = dims.at(1), experts = dims.at(2);
  Form forward_form;
  forward_form.transpose_a = forward_form.out_f32 = true;
  if (!backward) return single(lab, forward_form, {experts, tokens, hidden});
  Form dgrad, wgrad;
  dgrad.in_f32 = dgrad.out_f32 = wgrad.in_f32 = wgrad.out_f32 = wgrad.transpose_b = true;
  const auto data_gemm = make_gemm(lab, dgrad, {hidden, tokens, experts}),
             weight_gemm = make_gemm(lab, wgrad, {hidden, experts, tokens});
  const auto weight = lab.take(Content::bf16, experts * hidden), input = lab.take(Content::bf16, tokens * hidden),
             scores = lab.take(Content::f32, tokens * experts),
             weight_f32 = lab.take(Content::f32, experts * hidden, true),
             input_f32 = lab.take(Content::f32, tokens * hidden, true),
             d_input = lab.take(Content::f32, tokens * hidden, true),
             d_weight = lab.take(Content::f32, experts * hidden, true),
             out = lab.take(Content::scratch, tokens * hidden * 2),
             weight_out = lab.take(Content::scratch, experts * hidden * 2);
  if (!data_gemm || !weight_gemm || !weight || !input || !scores || !weight_f32 || !input_f32 || !d_input ||
      !d_weight || !out || !weight_out) {
    return std::nullopt;
  }
  Op op;
  op.launch = [=, &lab](int i) {
    kernels::cast_bf16_f32(weight->at(i), weight_f32->at<float>(i), experts * hidden, lab.stream);
    data_gemm->run(lab, weight_f32->at(i), scores->at(i), d_input->at(i), lab.workspace, lab.stream);
    kernels::cast_bf16_f32(input->at(i), input_f32->at<float>(i), tokens * hidden, lab.stream);
    weight_gemm->run(lab, input_f32->at(i), scores->at(i), d_weight->at(i), lab.workspace, lab.stream);
    kernels::cast_f32_bf16(d_input->at<float>(i), out->at(i), tokens * hidden, lab.stream);
    kernels::cast_f32_bf16(d_weight->at<float>(i), weight_out->at(i), experts * hidden, lab.stream);
  };
  return op;
}

}  // namespace

std::optional<Op> gemm_op(Lab& lab, const profile::Key& key) {
  if (key.family == "moe.router.gemm.forward") return router(lab, key.dims, false);
  if (key.family == "moe.router.gemm.backward") return router(lab, key.dims, true);
  if (constexpr std::string_view gating = "moe.router.gemm.bf16."; key.family.starts_with(gating))
    return plain_router(lab, key.family.substr(gating.size()), key.dims);
  constexpr std::string_view prefix = "gemm.grouped.";
  const bool group = key.family.starts_with(prefix);
  const auto form = form_of(group ? "gemm." + key.family.substr(prefix.size()) : key.family);
  if (!form) return std::nullopt;
  return group ? grouped(lab, *form, key) : single(lab, *form, {key.dims.at(0), key.dims.at(1), key.dims.at(2)});
}

}  // namespace pipewright::capture
