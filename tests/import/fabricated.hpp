// Writes a trace from a model's own operations, with the names that their kernels have.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../../src/import/match.hpp"
#include "../on_h200.hpp"
#include "pipewright/import.hpp"

namespace pipewright::test {

const char *const fp32_add =
                      "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl<at::native::CUDAFunctor_add<float>>",
                  *const fp32_mul =
                      "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl<at::native::BinaryFunctor<"
                      "float, float, float, at::native::binary_internal::MulFunctor<float>>>",
                  *const joins = "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<float>",
                  *const to_bf16 =
                      "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>",
                  *const to_fp32 = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
                  *const sums =
                      "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::sum_functor>>";

using Names = std::vector<std::string>;

inline Names repeated(const Names& of_one, std::int64_t times) {
  Names result;
  for (; times > 0; --times) result.insert(result.end(), of_one.begin(), of_one.end());
  return result;
}

inline Names joined(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// What the gate of shared experts ran on an H100 (Qwen1.5-MoE, 8192 tokens of 2048).
inline const std::map<std::string, Names>& gate_kernels() {
  static const std::string product =
      "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
      "at::native::binary_internal::MulFunctor<float>>";
  static const std::map<std::string, Names> table = {
      {"shared experts gate", {"nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"}},
      {"shared experts gate sigmoid",
       {"void at::native::vectorized_elementwise_kernel<8, at::native::sigmoid_kernel_cuda>"}},
      {"shared experts gating", {"void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<" + product}},
      {"shared experts gating backward", {"void at::native::vectorized_elementwise_kernel<8, " + product}},
      {"shared experts gate's gradients",
       {"void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<" + product}},
      {"shared experts gate's gradients summed",
       {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::sum_functor>>"}},
      {"shared experts gate wgrad",
       {"nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_NNT", "void cublasLt::splitKreduce_kernel<32, 16, int, float>"}},
      {"shared experts gate dgrad",
       {"void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nn_align1>"}}};
  return table;
}

/// What a gated delta net ran on an H100 (Qwen3-Next, flash-linear-attention 0.4.2), the states' kernels apart.
inline const std::map<std::string, Names>& delta_net_kernels() {
  static const std::string sum = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor>>",
                           softplus = "fused__to_copy_add_exp_mul_neg_softplus_";
  static const std::map<std::string, Names> table = {
      {"gated_delta.conv.forward", {"causal_conv1d_fwd_kernel"}},
      {"gated_delta.conv.backward", {"causal_conv1d_fwd_kernel", "causal_conv1d_bwd_kernel", sum, to_bf16}},
      {"gated_delta.inputs.forward",
       {"triton_poi_fused_clone_split_with_sizes_view_0", "l2norm_fwd_kernel",
        "triton_poi_fused_clone_expand_split_with_sizes_unsqueeze_view_1",
        "triton_poi_fused_clone_expand_split_with_sizes_unsqueeze_view_2",
        "triton_poi_fused_clone_split_with_sizes_view_3", "triton_poi_fused_clone_4", "triton_poi_fused_clone_5",
        "triton_poi_fused_clone_5", "triton_poi_" + softplus + "0", "triton_poi_fused_sigmoid_1"}},
      {"gated_delta.inputs.backward",
       {"triton_poi_fused_sigmoid_backward_0", "triton_red_" + softplus + "softplus_backward_sum_1",
        "triton_per_" + softplus + "sum_view_2", "triton_per_" + softplus + "backward_sum_view_3",
        "triton_poi_" + softplus + "backward_4", "triton_poi_fused_cat_squeeze_sum_view_0", "l2norm_bwd_kernel",
        "triton_poi_fused_cat_view_1"}},
      {"gated_delta.chunks.forward",
       {"chunk_local_cumsum_scalar_kernel", "chunk_scaled_dot_kkt_fwd_kernel",
        "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16>",
        "merge_16x16_to_64x64_inverse_kernel", "recompute_w_u_fwd_kernel", "chunk_fwd_kernel_o"}},
      {"gated_delta.chunks.backward",
       {"recompute_w_u_fwd_kernel", "chunk_bwd_kernel_dv_local", "chunk_bwd_kernel_dqkwg", sum,
        "prepare_wy_repr_bwd_kernel",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>",
        "chunk_local_cumsum_scalar_kernel"}},
      {"gated_delta.state.forward", {"chunk_gated_delta_rule_fwd_kernel_h_blockdim64"}},
      {"gated_delta.state.backward", {"chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64"}},
      {"linear_attention.gate forward", {"triton_poi_fused__to_copy_mul_silu_view_0"}},
      {"linear_attention.gate backward", {"triton_poi_fused__to_copy_mul_silu_silu_backward_view_0"}},
      {"gate.forward", {"triton_poi_fused__to_copy_mul_sigmoid_view_0"}},
      {"gate.backward", {"triton_poi_fused__to_copy_mul_sigmoid_sigmoid_backward_view_0"}}};
  return table;
}

/// What a Mamba-2 mixer's scan ran on an H100 (mamba_ssm 2.3.2), in its order, with the operation of each kernel.
struct ScanKernel {
  std::string name, operation;
};
inline const std::vector<ScanKernel>& scan_kernels(bool forward) {
  static const std::string sum = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor>>",
                           chunks = "mamba.chunks.forward", back = "mamba.chunks.backward",
                           groups = "mamba.groups.backward";
  static const std::vector<ScanKernel> once = {{"_chunk_cumsum_fwd_kernel", chunks},
                                               {"_chunk_state_fwd_kernel", chunks},
                                               {"_state_passing_fwd_kernel", "mamba.states.forward"},
                                               {"_bmm_chunk_fwd_kernel", "mamba.groups.forward"},
                                               {"_chunk_scan_fwd_kernel", chunks}},
                                       again = {{"_chunk_cumsum_fwd_kernel", back},
                                                {"_bmm_chunk_fwd_kernel", groups},
                                                {"_chunk_state_fwd_kernel", back},
                                                {"_state_passing_fwd_kernel", "mamba.states.recompute"},
                                                {"_chunk_scan_bwd_dz_kernel", back},
                                                {sum, back},
                                                {"_chunk_scan_bwd_dstates_kernel", back},
                                                {"_state_passing_bwd_kernel", "mamba.states.backward"},
                                                {"_chunk_scan_chunk_state_bwd_dx_kernel", back},
                                                {sum, back},
                                                {"_chunk_state_bwd_db_kernel", back},
                                                {sum, groups},
                                                {fp32_add, back},
                                                {"_chunk_scan_bwd_dc_kernel", back},
                                                {sum, groups},
                                                {"_chunk_scan_bwd_dcb_kernel", back},
                                                {sum, groups},
                                                {"_bmm_chunk_bwd_kernel", groups},
                                                {"_bmm_chunk_bwd_kernel", groups},
                                                {"_chunk_scan_bwd_ddAcs_stable_kernel", back},
                                                {sum, back},
                                                {"_chunk_cumsum_bwd_kernel", back}};
  return forward ? once : again;
}
inline bool is_of_scan(const std::string& operation) {
  return operation.starts_with("mamba.states") || operation.starts_with("mamba.groups") ||
         operation.starts_with("mamba.chunks");
}

/// What eager code around attention and adapters ran on an H100 (Megatron Bridge's rotation without fusion).
inline Names eager_kernels(const model::Kernel& kernel) {
  const auto& name = kernel.name;
  const std::string doubled =
      "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, "
      "float, float, at::native::binary_internal::MulFunctor<float> >>";
  const auto of = [&](const char* part) { return name.find(part) != std::string::npos; };
  Names of_one = {
      "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
      "c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float>>>"};
  if (name.ends_with(" cos")) of_one = {"void at::native::cos_kernel_cuda", doubled, to_bf16};
  if (name.ends_with(" sin")) of_one = {"void at::native::sin_kernel_cuda", doubled, to_bf16};
  if (of("negative half")) of_one = {"void at::native::elementwise_kernel<128, 4, at::native::neg_kernel_cuda>"};
  if (of("rotate half") || of("not rotate")) of_one = {"void at::native::(anonymous namespace)::CatArrayBatchedCopy"};
  if (of("zeros")) of_one = {"void at::native::vectorized_elementwise_kernel<8, FillFunctor<c10::BFloat16>>"};
  Names result = repeated(of_one, kernel.launches);
  result.resize(static_cast<std::size_t>(kernel.launches));
  return result;
}

/// Kernels of an operation, as Megatron Core, Transformer Engine and ATen launch them.
inline Names kernels_of(const traces::Expected& e) {
  const auto& op = e.operation;
  if (const auto gate = gate_kernels().find(e.kernel->name); gate != gate_kernels().end()) return gate->second;
  for (const auto& name : {e.kernel->name, op})
    if (const auto net = delta_net_kernels().find(name); net != delta_net_kernels().end()) return net->second;
  if (op == traces::eager_operation) return eager_kernels(*e.kernel);
  if (e.kernel->name.starts_with("attention.softmax ")) {  // fused_softmax/*.cu
    const std::string pass = e.kernel->name.substr(std::string("attention.softmax ").size());
    return {"void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_" + pass +
            "<__nv_bfloat16, float, 11>"};
  }
  // Transformer Engine's all-to-all of heads (context_parallel.py, flash_attn_a2a_communicate): compiled where nothing
  // but their order changes; sinks of a rank's heads are selected.
  if (e.kernel->name == "attention.sinks of own heads")
    return {"void at::native::(anonymous namespace)::indexSelectSmallIndex<float, int, unsigned int, 2, 2, -2>"};
  if (e.kernel->key.family.starts_with("attention.softcap.backward"))
    return {"triton_red_fused_flex_attention_backward_0", "triton_tem_fused_flex_attention_backward_1"};
  if (e.kernel->key.family.starts_with("attention.softcap.")) return {"triton_tem_fused_flex_attention_0"};
  if (op == "copy.d2d" && e.kernel->name.ends_with(" in order")) return {"triton_poi_fused_index_select_permute_0"};
  if (op == "moe.router.gemm.forward" && e.kernel->key.dims.back() % 8 != 0)
    return {"void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x128_64x6_tn_align2>",
            "void cublasLt::splitKreduce_kernel<32, 16, int, float>"};
  const auto& dims = e.kernel->key.dims;
  const auto gemm = [](const std::string& layout) {
    const std::string end = layout == "tn" ? "TNT" : layout == "nn" ? "NNT" : "NTT";
    return "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_" + end;
  };
  if (op.starts_with("gemm.grouped")) return repeated({gemm(op.substr(op.size() - 2))}, dims.front());
  if (op.starts_with("gemm.bf16")) return {gemm(op.substr(op.size() - 2))};
  if (op == "moe.bias.forward")  // t + b p for each expert, joined, cast (experts.py: _apply_bias)
    return joined(repeated({fp32_mul, fp32_add}, dims.front()), {joins, to_bf16});
  if (op == "moe.bias.backward")
    return joined(joined({to_fp32}, repeated({fp32_mul, sums, fp32_mul, sums, to_bf16, to_bf16}, dims.front())),
                  {joins});
  if (op == "moe.bias.accumulate") return repeated({fp32_add}, dims.front());
  if (op == "clamp.forward")
    return repeated(
        {"void at::native::elementwise_kernel<128, 4, at::native::(anonymous namespace)::launch_clamp_scalar"}, 2);
  if (op == "clamp.backward")
    return {"void at::native::vectorized_elementwise_kernel<4, at::native::compare_scalar_kernel<c10::BFloat16>",
            "void at::native::vectorized_elementwise_kernel<4, at::native::compare_scalar_kernel<c10::BFloat16>",
            "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<bool, bool, bool, BitwiseAnd>",
            "void at::native::elementwise_kernel<128, 4, at::native::where_kernel_impl>",
            "void at::native::vectorized_elementwise_kernel<4, at::native::compare_scalar_kernel<c10::BFloat16>",
            "void at::native::elementwise_kernel<128, 4, at::native::where_kernel_impl>"};
  static const std::map<std::string, Names> rest = {
      {"swiglu.forward", {"triton_poi_fused__to_copy_add_mul_sigmoid_split_0"}},
      {"swiglu.backward",
       {"triton_poi_fused__to_copy_add_cat_mul_rsub_sigmoid_split_0",
        "triton_red_fused__to_copy_add_mul_sigmoid_sum_1"}},
      {"moe.router.gemm.forward", {"nvjet_sm90_tss_64x32_64x8_1x1_h_bz_TNT"}},
      {"moe.router.gemm.backward", {"cutlass_80_tensorop_s1688gemm_128x64_nn_align4"}},
      {"moe.router.topk.forward", {"void at::native::gatherTopK<float>"}},
      {"moe.router.topk.backward", {"void softmax_warp_backward<float>"}},
      {"all_reduce", {"ncclDevKernel_AllReduce_Sum_f32_RING_LL"}},
      {"moe.row_id_map", {"_row_id_map_pass_1_kernel", "_row_id_map_pass_2_kernel", "_row_id_map_pass_3_kernel"}},
      {"moe.permute", {"_permute_kernel"}},
      {"moe.unpermute", {"_unpermute_kernel"}},
      {"moe.sort_chunks", {"_sort_chunks_by_map_kernel"}},
      {"rmsnorm.forward", {"void transformer_engine::rmsnorm_fwd_tuned_kernel<>"}},
      {"rmsnorm.backward", {"void transformer_engine::rmsnorm_bwd_tuned_kernel<>"}},
      {"rope.forward", {"void transformer_engine::fused_rope_forward_kernel<>"}},
      {"rope.backward", {"void transformer_engine::fused_rope_backward_kernel<>"}},
      {"attention.forward", {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob"}},
      {"attention.backward", {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob"}},
      {"bias.gradient", {"triton_red_fused_sum_0"}},
      {"add", {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>"}},
      {"add.f32", {fp32_add}},
      {"small", {fp32_mul}},
      {"cat", {"void at::native::(anonymous namespace)::CatArrayBatchedCopy<bf16>"}},
      {"copy.strided", {"void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"}},
      {"copy.d2d", {"Memcpy DtoD (Device -> Device)"}},
      {"embedding.forward", {"void at::native::vectorized_gather_kernel<16, long>"}},
      {"embedding.backward", {"void at::native::compute_grad_weight<c10::BFloat16>"}},
      {"cross_entropy.te.forward", {"online_softmax_kernel"}},
      {"cross_entropy.te.backward", {"element_mul_kernel"}},
      {"cross_entropy.te.forward.fp32", {"online_softmax_kernel"}},
      {"cross_entropy.te.backward.fp32", {"element_mul_kernel"}},
      {"cross_entropy.te.forward.copy", {"cross_entropy_forward_kernel"}},
      {"cross_entropy.te.backward.copy", {"cross_entropy_backward_kernel"}},
      {"cross_entropy.native.forward", {"triton_red_fused_exp_log_sub_0"}},
      {"cross_entropy.native.backward", {"triton_poi_fused_copy__div_exp_index_put_1"}},
      {"cross_entropy.unfused.forward", {sums}},
      {"cross_entropy.unfused.backward", {sums}},
      {"cast.f32_bf16", {to_bf16}},
      {"cast.bf16_f32", {to_fp32}},
      {"l2norm", {"void multi_tensor_l2norm_kernel<float>"}},
      {"scale", {"void multi_tensor_scale_kernel<float>"}},
      {"adam", {"void multi_tensor_adam_kernel<float>"}},
      {"fill", {"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>"}},
      {"memset", {"Memset (Device)"}},
      {"amax", {"void transformer_engine::amax_kernel<16, true>"}},
      {"glu.offset", {fp32_mul}},
      {"glu.gate.forward",
       {"void at::native::elementwise_kernel<128, 4, at::native::(anonymous namespace)::silu_kernel>"}},
      {"glu.gate.backward",
       {"void at::native::elementwise_kernel<128, 4, at::native::(anonymous namespace)::silu_backward_kernel>"}},
      {"squared_relu.forward", {"triton_poi_fused_pow_relu_0"}},
      {"squared_relu.backward", {"triton_poi_fused_mul_pow_relu_threshold_backward_0"}},
      {"mamba.conv.forward", {"void causal_conv1d_channellast_fwd_kernel<>"}},
      {"mamba.conv.backward", {"void causal_conv1d_channellast_bwd_kernel<>"}},
      {"mamba.norm.forward", {"_layer_norm_fwd_1pass_kernel"}},
      {"mamba.norm.backward", {"_layer_norm_bwd_kernel"}},
      {"moe.sort_map", {"_make_chunk_sort_map_kernel"}},
      {"copy.d2h", {"Memcpy DtoH (Device -> Pinned)"}},
      {"gelu.forward", {"triton_poi_fused_mul_sigmoid_0"}},
      {"gelu.backward", {"triton_poi_fused_add_mul_rsub_sigmoid_1"}}};
  const auto found = rest.find(op);
  if (found == rest.end()) FAIL("no name for " << op);
  return found->second;
}

class Writer {
 public:
  void write(const traces::Pattern& pattern) {
    Names states;  // of a gated delta rule, which runs them before its last kernels
    bool scanned = false;
    for (std::size_t at = 0; at < pattern.compute.size(); ++at) {
      const auto& e = pattern.compute[at];
      if (is_of_scan(e.operation)) {
        if (!std::exchange(scanned, true)) scan(pattern);
        continue;
      }
      const auto names = kernels_of(e);
      // A slow host has sums of gradients run on the compute stream while products still start on theirs.
      const bool sums_next =
          at + 1 < pattern.compute.size() && pattern.compute[at + 1].operation == "moe.bias.accumulate";
      if (slow_host && e.operation.starts_with("gemm.grouped") && sums_next) {
        for (std::size_t i = 0; i < names.size(); ++i) {
          add(names[i], 1'000'000 / static_cast<std::int64_t>(names.size()), pattern, static_cast<int>(i % 4) + 20);
          add(fp32_add, 1000, pattern, 7);
        }
        ++at;
        continue;
      }
      if (e.operation.starts_with("gated_delta.state")) {
        states.insert(states.end(), names.begin(), names.end());
        continue;
      }
      // A millisecond an operation, but for what is small and attention over a window, a tenth.
      const bool window = e.operation.starts_with("attention") && is_window(*e.kernel);
      const std::int64_t ns = e.operation == "small" ? 5000 : window ? 100'000 : 1'000'000;
      // Transformer Engine's products of a group have streams of their own, so have those beside userbuffers.
      const bool grouped = e.operation.starts_with(products_apart ? "gemm" : "gemm.grouped");
      // AccumulateGrad of a table runs on the stream on which DDP made it.
      const bool accumulates = e.kernel->name == "embedding gradient accumulation";
      // Heads that arrived are put in order on the stream of the next exchange.
      const bool arrived = e.kernel->purpose == model::Purpose::compute &&
                           (e.kernel->name.ends_with(" after the exchange") ||
                            (e.kernel->name.starts_with("attention") && e.kernel->name.ends_with(" in order") &&
                             e.operation == "copy.strided"));
      const bool shared = shared_apart && e.kernel->name.starts_with("shared");
      int stream = 20;
      for (const auto& name : names) {
        if (&name == &names.back())
          for (const auto& state : std::exchange(states, {})) add(state, 1'000'000, pattern, 7);
        add(name, ns / static_cast<std::int64_t>(names.size()), pattern,
            grouped       ? stream++ % 4 + 20
            : accumulates ? 27
            : arrived     ? 28
            : shared      ? 24
                          : 7);
      }
    }
    for (const auto& e : pattern.elsewhere) {
      if (e.kernel->purpose != model::Purpose::cp) continue;
      if (e.operation == "all_to_all")
        add("ncclDevKernel_SendRecv", 100'000, pattern, 39);
      else
        add("ncclDevKernel_AllGather_RING_LL", 10'000, pattern, 28);
    }
  }
  /// A millisecond an operation, in as many parts as it has kernels.
  void scan(const traces::Pattern& pattern) {
    const auto& kernels = scan_kernels(pattern.pass == traces::Pass::forward);
    for (const auto& k : kernels) {
      const auto parts = std::ranges::count(kernels, k.operation, &ScanKernel::operation);
      add(k.name, 1'000'000 / parts, pattern, 7);
    }
  }
  /// A loader that cuts a sequence for context parallelism.
  void load(const traces::Pattern& pattern) {
    for (int i = 0; i < 3; ++i)
      add("void at::native::(anonymous namespace)::indexSelectSmallIndex<long, long, unsigned int, 2, 2, -2>", 2000,
          pattern, 7);
  }
  void foreign(const traces::Pattern& pattern) { add("my_own_kernel", 50'000, pattern, 7); }
  static bool is_window(const model::Kernel& kernel) {
    return kernel.key.dims.back() < 4096 && kernel.key.dims.back() > 0;
  }

  traces::Trace trace;
  bool products_apart = false, shared_apart = false, slow_host = false;

 private:
  void add(const std::string& name, std::int64_t ns, const traces::Pattern& pattern, int stream) {
    const auto [at, is_new] = numbers_.try_emplace(name, static_cast<std::uint32_t>(trace.names.size()));
    if (is_new) trace.names.push_back(name);
    traces::Activity a;
    a.name = at->second;
    a.stream = stream;
    a.start = now_;
    a.duration = ns;
    a.launch = {now_ - 1000, 500, pattern.pass == traces::Pass::backward ? 2 : 1};
    now_ += ns + 2000;
    trace.activities.push_back(a);
  }
  std::map<std::string, std::uint32_t> numbers_;
  std::int64_t now_ = 10'000;
};

}  // namespace pipewright::test
