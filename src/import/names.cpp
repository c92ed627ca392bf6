// Names of kernels as CUDA libraries give them: cuBLASLt 12 and 13 (nvjet_sm90_<types>_..._<TNT>, xmma, cutlass), cuDNN
// (sdpa ... fprop/bprop), FlashAttention, Transformer Engine, ATen, torch.compile (triton_<kind>_fused_<ops>), NCCL.
#include "names.hpp"

#include <array>

#include "pipewright/regex.hpp"

namespace pipewright::traces {
namespace {

struct NamePattern {
  const char* expression;
  Role role;
  std::vector<std::string> operations;
  std::vector<std::string> joined = {};
};

/// The loss, a router, experts' biases (experts.py: _apply_bias), a clamp's gradient, the scatter of an embedding's
/// gradient and the ends of a gated delta net's backward are chains of ATen kernels; the same kernels elsewhere are
/// small.
const std::vector<std::string> loss = {"cross_entropy.unfused.forward",
                                       "cross_entropy.unfused.backward",
                                       "moe.router.topk.forward",
                                       "moe.router.topk.backward",
                                       "moe.bias.forward",
                                       "moe.bias.backward",
                                       "moe.bias.accumulate",
                                       "clamp.backward",
                                       "glu.offset",
                                       "gated_delta.chunks.backward",
                                       "gated_delta.conv.backward",
                                       "small"};

/// The first that matches counts.
const std::vector<NamePattern>& patterns() {
  static const std::vector<NamePattern> table = {
      {"^Memset", Role::before, {"memset", "embedding.backward"}},
      {"splitKreduce|cublasLt::epilogue", Role::after, {}},
      {"_row_id_map_pass_[12]", Role::before, {}},
      {"_row_id_map_pass_3", Role::main, {"moe.row_id_map"}},
      {"_make_chunk_sort_map", Role::main, {"moe.sort_map"}},
      {"_sort_chunks_by_map", Role::main, {"moe.sort_chunks"}},
      {"triton_red_fused_flex_attention", Role::before, {}},
      {"triton_tem_fused_flex_attention_backward", Role::main, {"attention.backward"}},
      {"triton_tem_fused_flex_attention", Role::main, {"attention.forward"}},
      {"multi_(un)?padding_kernel<", Role::main, {"copy.d2d"}},
      {"triton_poi_fused_index_select_permute", Role::main, {"copy.d2d", "copy.strided"}},  // a2a: heads to ranks
      {"_unpermute", Role::main, {"moe.unpermute"}},
      {"_permute", Role::main, {"moe.permute"}},
      // Mamba-2: mamba_ssm's Triton kernels (ops/triton) and causal_conv1d's; backward computes the scan again.
      {"causal_conv1d_channellast_fwd", Role::main, {"mamba.conv.forward"}},
      {"causal_conv1d_channellast_bwd", Role::main, {"mamba.conv.backward"}},
      {"_chunk_cumsum_fwd|_chunk_state_fwd|_chunk_scan_fwd",
       Role::main,
       {"mamba.chunks.forward", "mamba.chunks.backward"}},
      {"_chunk_cumsum_bwd|_chunk_state_bwd|_chunk_scan_.*bwd", Role::main, {"mamba.chunks.backward"}},
      {"_state_passing_fwd", Role::main, {"mamba.states.forward", "mamba.states.recompute"}},
      {"_state_passing_bwd", Role::main, {"mamba.states.backward"}},
      {"_bmm_chunk_fwd", Role::main, {"mamba.groups.forward", "mamba.groups.backward"}},
      {"_bmm_chunk_bwd", Role::main, {"mamba.groups.backward"}},
      {"_layer_norm_fwd_1pass_kernel", Role::main, {"mamba.norm.forward"}},
      {"_layer_norm_bwd_kernel", Role::main, {"mamba.norm.backward"}},
      // Gated delta nets: flash-linear-attention's Triton kernels (modules/conv, modules/l2norm.py,
      // ops/gated_delta_rule) between what torch.compile makes of Megatron's preparation (gated_delta_net.py).
      {"causal_conv1d_fwd_kernel", Role::main, {"gated_delta.conv.forward", "gated_delta.conv.backward"}},
      {"causal_conv1d_bwd_kernel", Role::main, {"gated_delta.conv.backward"}},
      {"chunk_gated_delta_rule_fwd_kernel_h", Role::main, {"gated_delta.state.forward"}},
      {"chunk_gated_delta_rule_bwd_kernel_dhu", Role::main, {"gated_delta.state.backward"}},
      {"chunk_local_cumsum|recompute_w_u_fwd",
       Role::main,
       {"gated_delta.chunks.forward", "gated_delta.chunks.backward"}},
      {"chunk_scaled_dot_kkt|merge_16x16_to_64x64_inverse|chunk_fwd_kernel_o",
       Role::main,
       {"gated_delta.chunks.forward"}},
      {"chunk_bwd_kernel|prepare_wy_repr_bwd", Role::main, {"gated_delta.chunks.backward"}},
      {"l2norm_fwd_kernel|triton_poi_fused_clone_", Role::main, {"gated_delta.inputs.forward"}},
      {"l2norm_bwd_kernel|triton_poi_fused_sigmoid_backward_[0-9]+$|triton_poi_fused_cat_(squeeze_sum_)?view",
       Role::main,
       {"gated_delta.inputs.backward"}},
      {"triton.*softplus|triton_poi_fused_sigmoid_[0-9]+$",
       Role::main,
       {"gated_delta.inputs.forward", "gated_delta.inputs.backward"}},
      {"triton.*(silu|sigmoid)_backward", Role::main, {"gate.backward", "swiglu.backward"}},
      // Unfused attention (fused_softmax/*.cu of Transformer Engine), whose time the model has from streaming kernels.
      {"scaled_([a-z]+_)*softmax_warp_forward|cunn_SoftMaxForward", Role::main, {"copy.d2d", "scale"}},
      {"scaled_([a-z]+_)*softmax_warp_backward|cunn_SoftMaxBackward", Role::main, {"add", "add.f32"}},
      {"gatherTopK|bitonicSort|softmax_warp_forward|_cuda_scatter_fill|normal_and_transform",
       Role::main,
       {"moe.router.topk.forward"}},
      {"softmax_warp_backward", Role::main, {"moe.router.topk.backward"}},
      {"_cuda_scatter_gather", Role::main, {"moe.router.topk.forward", "moe.router.topk.backward"}},
      {"triton_red.*(silu|sigmoid).*sum", Role::after, {}},
      {"rmsnorm_fwd", Role::main, {"rmsnorm.forward"}},
      {"rmsnorm_bwd_finalize", Role::after, {}},
      {"rmsnorm_bwd", Role::main, {"rmsnorm.backward"}},
      {"ln_fwd|layernorm_fwd", Role::main, {"layernorm.forward"}},
      {"(ln|layernorm)_bwd_finalize", Role::after, {}},
      {"ln_bwd|layernorm_bwd", Role::main, {"layernorm.backward"}},
      {"rotary_fwd_", Role::main, {"rope.mla.forward"}},
      {"rotary_bwd_", Role::main, {"rope.mla.backward"}},
      {"fused_topk_forward|fused_score_for_aux_loss_forward", Role::main, {"moe.router.topk.forward"}},
      {"fused_topk_with_score_function_backward|fused_score_for_aux_loss_backward",
       Role::main,
       {"moe.router.topk.backward"}},
      {"fused_rope_forward", Role::main, {"rope.forward"}},
      {"fused_rope_backward", Role::main, {"rope.backward"}},
      {"extract_seed_and_offset|dot_do_o|qkv_tma_setup", Role::before, {}},
      {"convert_dq|fmha_reduce_head|flash_bwd_convert", Role::after, {}},
      {"sdpa.*fprop|flash_fprop|flash_fwd", Role::main, {"attention.forward"}},
      {"sdpa.*bprop|flash_bprop|flash_bwd", Role::main, {"attention.backward"}},
      {"blockwise|block_scaled|quantize_transpose", Role::main, {"quantize.blockwise.fp8"}},
      {"zero_amax", Role::before, {}},
      {"compute_scale_from_amax", Role::after, {}},
      {"amax_kernel", Role::main, {"amax"}},
      {"cast_transpose_general", Role::main, {"cast_transpose.fp8.row", "cast_transpose.fp8.general"}},
      {"cast_transpose", Role::main, {"cast_transpose.fp8"}},
      {"unary_kernel.*(fp8|__nv_fp)", Role::main, {"cast.fp8"}},
      {"(^|transformer_engine.*)transpose(_optimized)?_kernel", Role::main, {"transpose.fp8"}},
      {"triton.*(silu|swiglu).*(sigmoid|rsub|sub)|triton.*(sigmoid|rsub).*(silu|swiglu)|dgated|dswiglu",
       Role::main,
       {"swiglu.backward"}},
      {"triton.*silu|triton.*swiglu|swiglu|gated_act", Role::main, {"swiglu.forward", "gate.forward"}},
      // quick_geglu (fused_bias_geglu.py): y1 sigmoid(1.702 y1) (y2 + offset), times a probability
      {"triton.*cat.*sigmoid|triton.*rsub.*sigmoid", Role::main, {"swiglu.backward", "gelu.backward"}},
      {"triton.*mul.*sigmoid", Role::main, {"swiglu.forward", "gelu.forward", "gate.forward"}},
      {"launch_clamp_scalar", Role::main, {"clamp.forward", "small"}},
      {"triton.*pow.*relu.*threshold_backward|dsrelu", Role::main, {"squared_relu.backward"}},
      {"triton.*pow_relu|srelu", Role::main, {"squared_relu.forward"}},
      {"triton.*(tanh|erf|gelu).*(backward|rsub|pow)|triton.*(rsub|pow).*(tanh|erf|gelu)|dgelu",
       Role::main,
       {"gelu.backward"}},
      {"triton.*(tanh|erf|gelu)|gelu", Role::main, {"gelu.forward"}},
      {"::silu_backward_kernel|::GeluBackward", Role::main, {"gelu.backward", "glu.gate.backward", "swiglu.backward"}},
      {"::silu_kernel|::GeluCUDAKernel", Role::main, {"gelu.forward", "glu.gate.forward", "swiglu.forward"}},
      {"random_from_to_kernel", Role::before, {}},  // the seed of a compiled dropout
      {"triton.*native_dropout_backward", Role::main, {"dropout.backward"}},
      {"triton.*add.*native_dropout|triton.*native_dropout.*add", Role::main, {"dropout.forward"}, {"add"}},
      {"triton.*native_dropout|fused_dropout", Role::main, {"dropout.forward"}},
      {"masked_scale", Role::main, {"dropout.backward"}},
      {"triton_red_fused_sum_|reduce_kernel<(128, 4|512, 1), at::native::ReduceOp<c10::BFloat16, "
       "at::native::func_wrapper_t<"
       "c10::BFloat16, at::native::sum_functor<c10::BFloat16",
       Role::main,
       {"bias.gradient", "moe.bias.backward", "small"}},
      {"triton_per_fused_sum_", Role::after, {}},
      {"::elementwise_kernel<.*CUDAFunctor_add<c10::BFloat16>",
       Role::main,
       {"add", "copy.d2d"}},  // of a broadcast bias
      {"triton_poi_fused_add|CUDAFunctor_add<c10::BFloat16>",
       Role::main,
       {"add", "moe.bias.forward", "gated_delta.chunks.backward"}},
      {"CatArrayBatchedCopy", Role::main, {"cat", "copy.d2d", "moe.bias.forward", "moe.bias.backward", "small"}},
      {"multi_tensor_l2norm.*cleanup", Role::after, {}},
      {"multi_tensor_l2norm|L2NormFunctor|NormTwoOps", Role::main, {"l2norm"}},
      {"multi_tensor_scale|ScaleFunctor|ScalePtrFunctor", Role::main, {"scale"}},
      {"multi_tensor_adam|AdamFunctor", Role::main, {"adam"}},
      {"DeviceRadixSort|unique_by_key|DeviceScan|DeviceCompact|krn_partial|compute_num_of_partial|compute_grad_weight|"
       "sum_and_scatter|embedding_backward",
       Role::main,
       {"embedding.backward"}},
      {"FillFunctor<c10::BFloat16>",
       Role::main,
       {"fill", "embedding.backward", "gated_delta.chunks.forward", "moe.router.topk.forward",
        "moe.router.topk.backward"}},
      {"FillFunctor<bool>", Role::before, {"fill", "copy.d2d"}},  // a mask's zeros count as half a copy
      {"FillFunctor", Role::before, {"fill"}},
      // Of a data loader's positions (context parallelism), of sinks over heads (Transformer Engine's a2a): no table.
      {"indexSelect[A-Za-z]*<(float|long|int),", Role::main, {"small"}},
      {"vectorized_gather_kernel|indexSelect|embedding_kernel", Role::main, {"embedding.forward"}},
      {"bfloat16_copy_kernel",
       Role::main,
       {"cast.f32_bf16", "cross_entropy.unfused.backward", "moe.router.gemm.backward", "moe.bias.forward",
        "moe.bias.backward", "gated_delta.conv.backward", "small"}},
      {"unrolled_elementwise_kernel.*direct_copy|unrolled_elementwise_kernel.*copy_kernel",
       Role::main,
       {"cast.bf16_f32", "cast.bf16_f16", "cross_entropy.unfused.forward", "cross_entropy.unfused.backward",
        "moe.router.topk.forward", "moe.router.topk.backward", "moe.router.gemm.backward", "moe.bias.backward",
        "small"}},
      {"elementwise_kernel.*direct_copy", Role::main, {"copy.strided", "copy.d2d", "embedding.forward", "small"}},
      {"triton.*(log_softmax|_log_|exp|logsumexp|to_copy_max|copy__div|index_put|copy__mul_unsqueeze)",
       Role::main,
       {"cross_entropy.native.forward", "cross_entropy.native.backward"}},
      {"online_softmax|cross_entropy_kernel",
       Role::main,
       {"cross_entropy.te.forward", "cross_entropy.te.forward.fp32"}},
      {"element_mul_kernel", Role::main, {"cross_entropy.te.backward", "cross_entropy.te.backward.fp32"}},
      {"cross_entropy_(forward|tp_pre|tp_post)_kernel", Role::main, {"cross_entropy.te.forward.copy"}},
      {"cross_entropy_backward_kernel", Role::main, {"cross_entropy.te.backward.copy"}},
      {"CUDAFunctorOnSelf_add<int>", Role::main, {"small"}},
      {"CUDAFunctor_add<float>",
       Role::main,
       {"add.f32", "small", "cross_entropy.unfused.forward", "cross_entropy.unfused.backward",
        "moe.router.topk.forward", "moe.router.topk.backward", "moe.bias.forward", "moe.bias.accumulate",
        "gated_delta.chunks.backward"}},
      {"^Memcpy.*DtoD|^Memcpy$",
       Role::main,
       {"copy.d2d", "cross_entropy.unfused.forward", "moe.router.topk.forward", "small"}},
      {"masked_fill_kernel", Role::main, {"small", "cross_entropy.unfused.forward", "add"}},
      {"userbuffers.*_ag<", Role::main, {"all_gather"}},
      {"userbuffers.*_rs(_oop)?<", Role::main, {"reduce_scatter"}},
      {"nccl.*AllGather", Role::main, {"all_gather"}},
      {"nccl.*ReduceScatter", Role::main, {"reduce_scatter"}},
      {"nccl.*AllReduce", Role::main, {"all_reduce"}},
      {"nccl.*SendRecv", Role::main, {"send_recv", "all_to_all"}},
      {"AUnaryFunctor<c10::BFloat16.*MulFunctor", Role::main, {"scale", "copy.d2d"}},  // of an adapter's output
      // quick_geglu without fusion: an expert's halves multiplied, then by its fp32 probability
      {"::elementwise_kernel<.*BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16.*MulFunctor",
       Role::main,
       {"copy.strided", "copy.d2d", "add", "moe.bias.forward", "moe.bias.backward", "glu.offset",
        "small"}},  // by a broadcast gate, by the cosines of a rotation, by probabilities
      {"vectorized_elementwise_kernel.*BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16.*MulFunctor",
       Role::main,
       {"add", "moe.bias.backward", "glu.offset", "small"}},
      {"AUnaryFunctor<float.*MulFunctor",
       Role::main,
       {"scale", "cross_entropy.unfused.forward", "cross_entropy.unfused.backward", "moe.router.topk.forward",
        "moe.router.topk.backward", "small"}},
      {"at::native|elementwise|reduce_kernel", Role::main, loss},
  };
  return table;
}

/// Transposes of a GEMM, in lower case: "tn", "nn", "nt"; empty: not a GEMM.
std::string transposes(const std::string& name) {
  static const Regex nvjet(R"(^nvjet_.*_([TN])([TN])[TN]$)");
  static const Regex others(R"(gemm.*_([tn])([tn])(_|$))");
  auto match = nvjet.first_in(name);
  if (match.empty()) match = others.first_in(name);
  if (match.empty()) return {};
  const auto lower = [&](std::size_t i) { return match[i] == "T" || match[i] == "t" ? 't' : 'n'; };
  return {lower(1), lower(2)};
}

/// Results in fp32, not added to a main gradient: a router's logits from bf16, its gradients from fp32 (TF32). Only
/// a number of experts (60) leaves operands off 16 bytes, which cuBLASLt gives to kernels of Ampere.
std::string router_gemm(const std::string& name, const std::string& layout) {
  static const Regex unaligned(R"(bf16.*_tn_align[124]\b)");
  if (layout == "tn" &&
      ((name.starts_with("nvjet") && name.find("_tss_") != std::string::npos) || unaligned.found_in(name))) {
    return "moe.router.gemm.forward";
  }
  const bool bf16 = name.find("bf16_s1688gemm_bf16") != std::string::npos;
  const bool tf32 = (name.find("s1688gemm") != std::string::npos && !bf16) || name.find("tf32") != std::string::npos;
  return tf32 ? "moe.router.gemm.backward" : "";
}

/// FP8 operands: nvjet's types begin with q (e4m3) or r (e5m2); others say it.
bool is_fp8(const std::string& name) {
  static const Regex types(R"(^nvjet_sm\d+_[qr][qr])");
  return types.found_in(name) || name.find("e4m3") != std::string::npos || name.find("e5m2") != std::string::npos;
}

/// The kernels of a run in fp16 are those of bf16 with another type in their names.
std::string as_of_bf16(std::string_view kernel_name) {
  static const std::pair<std::string_view, std::string_view> types[] = {{"c10::Half", "c10::BFloat16"},
                                                                        {"::float16_copy", "::bfloat16_copy"},
                                                                        {"__half", "__nv_bfloat16"},
                                                                        {"_hsh_", "_tst_"},
                                                                        {"_hss_", "_tss_"}};
  std::string name(kernel_name);
  for (const auto& [half, bf16] : types)
    for (auto at = name.find(half); at != std::string::npos; at = name.find(half, at + bf16.size()))
      name.replace(at, half.size(), bf16);
  return name;
}

}  // namespace

Meaning meaning_of(std::string_view kernel_name) {
  const std::string name = as_of_bf16(kernel_name.substr(0, 1000));
  if (const auto layout = transposes(name); !layout.empty()) {
    if (const auto router = router_gemm(name, layout); !router.empty()) return {Role::main, {router}, {}};
    return {Role::main, {is_fp8(name) ? "gemm.fp8" : "gemm.bf16." + layout}, {}};
  }
  static const auto compiled = [] {
    std::vector<std::pair<Regex, const NamePattern*>> result;
    for (const auto& p : patterns()) result.emplace_back(Regex(p.expression), &p);
    return result;
  }();
  for (const auto& [pattern, row] : compiled) {
    if (pattern.found_in(name)) return {row->role, row->operations, row->joined};
  }
  return {};
}

std::string operation_of(const std::string& family) {
  // One kernel copies rows to their experts and, in backward, gradients of their sums; the other sums.
  if (family == "moe.permute.forward" || family == "moe.unpermute.backward") return "moe.permute";
  if (family == "moe.unpermute.forward" || family == "moe.permute.backward") return "moe.unpermute";
  if (family.starts_with("moe.router.") && !family.starts_with("moe.router.gemm"))  // of any scores: one chain
    return "moe.router.topk" + family.substr(family.rfind('.'));
  if (family.starts_with("moe.swiglu")) return family.substr(4);
  static const std::string any_width = ".any_width";
  if (const auto at = family.find(any_width); at != std::string::npos)
    return family.substr(0, at) + family.substr(at + any_width.size());
  if (family.starts_with("fast_gelu")) return family.substr(5);
  if (family == "cat.heads") return "cat";
  if (family.starts_with("moe.router.gemm.bf16.")) return family.substr(std::string_view("moe.router.").size());
  if (family.starts_with("gemm.lora.")) return "gemm." + family.substr(10);
  if (family.starts_with("rmsnorm.") || family.starts_with("layernorm."))  // whatever the width and the output
    return family.substr(0, family.find('.', family.find('.') + 1));
  if (family.starts_with("attention."))  // latent, windowed, with sinks: kernels of one name
    return family.find(".forward") != std::string::npos ? "attention.forward" : "attention.backward";
  static const std::vector<std::string> stems = {
      "gemm.grouped.fp8", "gemm.grouped.bf16.tn", "gemm.grouped.bf16.nn", "gemm.grouped.bf16.nt",
      "gemm.fp8",         "gemm.bf16.tn",         "gemm.bf16.nn",         "gemm.bf16.nt",
      "all_gather",       "reduce_scatter",       "all_reduce",           "all_to_all",
      "send_recv"};
  for (const auto& stem : stems) {
    if (family.starts_with(stem)) return stem;
  }
  return family;
}

bool is_landmark(const std::string& operation) {
  return operation.starts_with("gemm") || operation.starts_with("moe.router.gemm") ||
         operation.starts_with("attention") || operation.starts_with("rmsnorm") || operation.starts_with("layernorm") ||
         operation == "embedding.forward" || operation == "embedding.backward" || operation == "adam" ||
         operation == "l2norm";
}

bool is_beside_landmark(const std::string& operation) {
  return operation == "all_to_all" || operation == "moe.row_id_map" || operation == "moe.permute" ||
         operation == "moe.unpermute";
}

bool is_stand_in(const std::string& operation) {
  return operation.starts_with("copy.") || operation.starts_with("cast.") || operation == "fill" ||
         operation == "scale" || operation == "add.f32" || operation == "cat" || operation == "amax";
}

bool is_eager(std::string_view kernel_name) {
  return kernel_name.find("at::native::") != std::string_view::npos || kernel_name.starts_with("Memcpy DtoD") ||
         kernel_name == "Memcpy";
}

bool is_of_tensor_iterator(std::string_view kernel_name) {
  return kernel_name.find("at::native::") != std::string_view::npos &&
         kernel_name.find("elementwise_kernel") != std::string_view::npos;
}

std::int64_t pieces_of(const std::string& operation, std::int64_t elements) {
  const bool bf16 = operation == "add";
  const bool fp32 = operation == "add.f32" || operation == "scale" || operation.starts_with("cast.");
  const std::int64_t bytes = bf16 ? 2 : 4;  // of an element of the largest operand
  if (!bf16 && !fp32) return 0;
  // aten/src/ATen/native/TensorIterator.cpp: halved (split) until no operand's offset leaves 32 bits
  // (can_use_32bit_indexing).
  std::int64_t pieces = 1;
  while ((elements + pieces - 1) / pieces * bytes > INT32_MAX) pieces *= 2;
  return pieces;
}

bool is_launched_among_others(const std::string& operation) {
  return operation.starts_with("gated_delta.chunks") || operation.starts_with("gated_delta.state") ||
         operation.starts_with("mamba.chunks") || operation.starts_with("mamba.groups") ||
         operation.starts_with("mamba.states");
}

bool is_run(const std::string& operation) {
  return operation.starts_with("cross_entropy") || operation.starts_with("moe.bias") ||
         operation.starts_with("gated_delta.chunks") || operation.starts_with("gated_delta.inputs") ||
         operation == "gated_delta.conv.backward" || operation.starts_with("clamp") ||
         operation.starts_with("moe.router.topk") || operation == "moe.router.gemm.backward" ||
         operation == "embedding.backward" || operation == "l2norm" || operation == "scale" || operation == "adam" ||
         operation == "cast.f32_bf16" || operation == "cast.bf16_f32";
}

}  // namespace pipewright::traces
