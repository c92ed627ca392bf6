// The kernel families: their dimensions, their work in FLOP and their traffic in bytes, each tensor counted once.
// The table is also the source of the list in FORMAT.md (tests/profile/families_test.cpp holds both together).
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

using Dims = std::vector<std::int64_t>;

double at(const Dims& dims, std::size_t i) { return static_cast<double>(dims.at(i)); }

double product(const Dims& dims) {
  double result = 1;
  for (const auto d : dims) result *= static_cast<double>(d);
  return result;
}

double no_flop(const Dims&) { return 0; }

/// m x n x k with elements of `in` bytes read and of `out` bytes written, and read before where beta = 1.
Family gemm(std::string name, double in, double out, bool accumulate, std::string what) {
  std::vector<std::size_t> features;  // not the tokens; FP8 takes aligned operands alone
  if (in == 2) features = {0, name.find(".nt") != std::string::npos ? std::size_t{1} : std::size_t{2}};
  return {std::move(name),
          {"m", "n", "k"},
          Load::matrix,
          [](const Dims& d) { return 2 * product(d); },
          [=](const Dims& d) {
            return in * (at(d, 0) + at(d, 1)) * at(d, 2) + out * (accumulate ? 2 : 1) * at(d, 0) * at(d, 1);
          },
          std::move(what),
          false,
          std::move(features)};
}

/// GEMMs of a layer's local experts, TE's multi-stream grouped GEMM on Hopper: `tokens` rows over all experts, as
/// routing draws them. Forward and dgrad multiply tokens x k by every expert's n x k; wgrad gives every expert's n x k.
Family grouped(std::string name, double in, double out, bool weights, bool accumulate, std::string what) {
  return {std::move(name),
          {"experts", "tokens", "n", "k"},
          Load::matrix,
          [](const Dims& d) { return 2 * at(d, 1) * at(d, 2) * at(d, 3); },
          [=](const Dims& d) {
            const double a = at(d, 1) * at(d, 3), b = at(d, 1) * at(d, 2), w = at(d, 0) * at(d, 2) * at(d, 3);
            return weights ? in * (a + b) + out * (accumulate ? 2 : 1) * w : in * (a + w) + out * b;
          },
          std::move(what),
          false,
          in == 2 ? std::vector<std::size_t>{2, 3} : std::vector<std::size_t>{}};
}

/// Pairs of a query and a key that it sees in causal attention aligned at the last key: query i of q sees kv - q + i +
/// 1 keys, of which the last `window`.
double causal_pairs(double q, double kv, double window) {
  if (kv < q) return q * kv / 2;
  const double full = kv - q + 1;  // keys of the first query
  const double growing = std::clamp(window - full, 0.0, q);
  return growing * full + growing * (growing - 1) / 2 + (q - growing) * std::min(window, kv);
}

/// Causal attention. `matmuls`: 2 forward (QK', PV), 5 backward (S, dP, dV, dQ, dK), each 2 FLOP per multiply-add.
/// `tensors` of q's and of k's shape are moved. `windowed`: a last dimension says how many keys a query sees at most.
Family attention(std::string name, bool windowed, double matmuls, double tensors, std::string what) {
  std::vector<std::string> dims = {"batch", "seq_q", "seq_kv", "heads", "groups", "head_dim"};
  if (windowed) dims.emplace_back("window");
  return {
      std::move(name),
      std::move(dims),
      Load::attention,
      [=](const Dims& d) {
        const double pairs = causal_pairs(at(d, 1), at(d, 2), windowed ? at(d, 6) : at(d, 2));
        return 2 * matmuls * at(d, 0) * at(d, 3) * at(d, 5) * pairs;
      },
      [=](const Dims& d) { return 2 * tensors * at(d, 0) * at(d, 5) * (at(d, 1) * at(d, 3) + at(d, 2) * at(d, 4)); },
      std::move(what)};
}

/// MLA: q and k of qk_dim, v and output of v_dim. `qk`, `v`: matmuls with either as inner or outer width.
Family mla_attention(std::string name, double qk, double v, double tensors, std::string what) {
  return {
      std::move(name),
      {"batch", "seq_q", "seq_kv", "heads", "qk_dim", "v_dim"},
      Load::attention,
      [=](const Dims& d) {
        const double pairs = causal_pairs(at(d, 1), at(d, 2), at(d, 2));
        return 2 * at(d, 0) * at(d, 3) * pairs * (qk * at(d, 4) + v * at(d, 5));
      },
      [=](const Dims& d) { return 2 * tensors * at(d, 0) * at(d, 3) * (at(d, 1) + at(d, 2)) * (at(d, 4) + at(d, 5)); },
      std::move(what)};
}

/// A kernel bound by memory (or by a copy engine): `bytes_each` for every one of the product of its dimensions.
Family streaming(std::string name, std::vector<std::string> dims, double bytes_each, std::string what,
                 Load load = Load::memory) {
  return {std::move(name), std::move(dims), load, no_flop, [=](const Dims& d) { return bytes_each * product(d); },
          std::move(what)};
}

/// What one GPU sends in a ring of n ranks: passes x (n-1)/n of the buffer.
Family collective(std::string name, double passes, std::string what) {
  return {std::move(name),
          {"ranks", "bytes"},
          Load::network,
          no_flop,
          [=](const Dims& d) { return passes * (at(d, 0) - 1) / at(d, 0) * at(d, 1); },
          std::move(what)};
}

// Bytes of an element with its share of a scale: one byte of E8M0 for 32, one of E4M3 for 16.
constexpr double scaled_fp8 = 1 + 1.0 / 32, scaled_fp4 = 0.5 + 1.0 / 16;

/// Of flash-linear-attention's gated delta rule. A chunk has 64 tokens; a head's state is head_dim x head_dim.
void mamba(std::vector<Family>& f) {
  using V = std::vector<std::string>;
  constexpr double chunk = 128;
  const V rows = {"rows", "head_dim", "state"}, chain = {"seq", "chains", "width"}, of_group = {"rows", "state"},
          norm = {"rows", "cols"}, channels = {"tokens", "channels"};
  const auto products = [&](const char* name, const V& dims, double chunked, double stated, double tensors,
                            std::string what) {
    f.push_back({name, dims, Load::matrix,
                 [=](const Dims& d) {
                   const double width = d.size() > 2 ? at(d, 1) : chunk;
                   return 2 * at(d, 0) * width * (chunked * chunk + stated * static_cast<double>(d.back()));
                 },
                 [=](const Dims& d) {
                   const double width = d.size() > 2 ? at(d, 1) : static_cast<double>(d.back());
                   return 2 * at(d, 0) * width * tensors;
                 },
                 std::move(what)});
  };
  const auto states = [&](const char* name, double bytes, std::string what) {
    f.push_back({name, chain, Load::memory, no_flop, [=](const Dims& d) { return bytes * product(d) / chunk; },
                 std::move(what)});
  };
  f.push_back(streaming("mamba.conv.forward", channels, 4,
                        "causal convolution of width 4 with bias and SiLU (causal_conv1d), bf16, channels last"));
  f.push_back(streaming("mamba.conv.backward", channels, 6, "its backward: gradients of input, weight and bias"));
  products("mamba.chunks.forward", rows, 1, 2, 5,
           "Mamba-2's scan by chunks of 128 tokens (mamba_ssm, Triton), rows: tokens x heads; sums of decays, every "
           "chunk's state, its output times the gate");
  products("mamba.chunks.backward", rows, 4, 7, 16, "its backward; sums and states of chunks again");
  states("mamba.states.forward", 6, "states of `chains` (sequences x heads) passed from chunk to chunk, fp32 to bf16");
  states("mamba.states.recompute", 8, "the same within backward, fp32 to fp32");
  states("mamba.states.backward", 12, "their gradients, last chunk first; both to bf16");
  products("mamba.groups.forward", of_group, 0, 1, 4,
           "products of C and B of every chunk, rows: tokens x groups, fp32 out");
  products("mamba.groups.backward", of_group, 0, 3, 24,
           "those again, sums of the gradients of B, C and their products over a group's heads, gradients of B and C");
  f.push_back(streaming("mamba.norm.forward", norm, 4, "RMSNorm by group (mamba_ssm, Triton), rows: tokens x groups"));
  f.push_back(streaming("mamba.norm.backward", norm, 6, "its backward and the sum of the weight's gradient"));
}

void gated_delta_net(std::vector<Family>& f) {
  using V = std::vector<std::string>;
  constexpr double chunk = 64;
  const V heads = {"tokens", "key_heads", "value_heads", "head_dim"}, rule = {"rows", "head_dim"},
          chain = {"seq", "chains", "head_dim"};
  const auto inputs = [&](const char* name, double of_keys, double of_values, std::string what) {
    f.push_back({name, heads, Load::memory, no_flop,
                 [=](const Dims& d) { return at(d, 0) * at(d, 3) * (of_keys * at(d, 1) + of_values * at(d, 2)); },
                 std::move(what)});
  };
  const auto products = [&](const char* name, const V& dims, double chunked, double stated, double tensors,
                            std::string what) {
    f.push_back(
        {name, dims, Load::matrix,
         [=](const Dims& d) { return 2 * product(d) * (chunked * chunk + stated * static_cast<double>(d.back())); },
         [=](const Dims& d) { return 2 * product(d) * (tensors + static_cast<double>(d.back()) / chunk); },
         std::move(what)});
  };
  f.push_back(streaming("gated_delta.conv.forward", {"tokens", "channels"}, 4,
                        "causal convolution of width 4 with SiLU (Triton), bf16, input inside the fused projection"));
  f.push_back(streaming("gated_delta.conv.backward", {"tokens", "channels"}, 12,
                        "its backward: the convolution again, input gradient, parts of the weight's and their sum"));
  inputs("gated_delta.inputs.forward", 20, 12,
         "L2 norms of q and k, both repeated for every value head, v and the gate made contiguous, decay and beta");
  inputs("gated_delta.inputs.backward", 20, 8, "its backward up to the convolution's output");
  products(
      "gated_delta.chunks.forward", rule, 6, 1, 8,
      "gated delta rule (Triton), rows: tokens x heads; sums of decays, products of a chunk's keys and their inverse, "
      "rows and updates, output; without the states");
  products("gated_delta.chunks.backward", rule, 14, 6, 22, "its backward without the states");
  products("gated_delta.state.forward", chain, 0, 2, 4,
           "states of the chunks of `chains` (sequences x heads), one after the other, and the values they correct");
  products("gated_delta.state.backward", chain, 0, 2, 6, "their gradients, last chunk first");
}

std::vector<Family> make_families() {
  using V = std::vector<std::string>;
  const V rows_cols = {"rows", "cols"}, rows_ffn = {"rows", "ffn"}, elements = {"elements"}, bytes = {"bytes"},
          rope = {"tokens", "heads", "head_dim"}, logits = {"tokens", "vocab"};
  std::vector<Family> f;
  f.push_back(gemm("gemm.bf16.tn", 2, 2, false, "bf16 in and out; forward of a linear layer"));
  f.push_back(gemm("gemm.bf16.nn", 2, 2, false, "bf16 in and out; dgrad"));
  f.push_back(gemm("gemm.bf16.nt", 2, 2, false, "bf16 in and out; wgrad without gradient accumulation fusion"));
  f.push_back(gemm("gemm.bf16.nt.acc_f32", 2, 4, true, "wgrad, added to an fp32 main gradient (beta = 1)"));
  f.push_back(gemm("gemm.bf16.nt.acc_bf16", 2, 2, true, "wgrad, added to a bf16 main gradient (beta = 1)"));
  f.push_back(gemm("gemm.lora.bf16.tn", 2, 2, false, "forward of an adapter's linear layers (torch.matmul)"));
  f.push_back(gemm("gemm.lora.bf16.nn", 2, 2, false, "their dgrad"));
  f.push_back(gemm("gemm.lora.bf16.nt", 2, 4, true, "their wgrad, added to main gradients"));
  f.push_back(gemm("gemm.fp8.tn", 1, 2, false,
                   "forward: e4m3 x e4m3, per-tensor scales, bf16 out, fast accumulation as TE calls it"));
  f.push_back(gemm("gemm.fp8.tn.split", 1, 2, false,
                   "dgrad: e4m3 x e5m2, per-tensor scales, bf16 out, split accumulator as TE calls it"));
  f.push_back(gemm("gemm.fp8.tn.acc_f32", 1, 4, true, "wgrad: e4m3 x e5m2, added to an fp32 main gradient"));
  f.push_back(gemm("gemm.fp8.tn.acc_bf16", 1, 2, true, "wgrad: e4m3 x e5m2, added to a bf16 main gradient"));
  f.push_back(
      gemm("gemm.fp8.tn.out_bf16", 1, 2, false, "wgrad: e4m3 x e5m2, bf16 out (no gradient accumulation fusion)"));
  f.push_back(
      gemm("gemm.fp8.block.tn", 1, 2, false,
           "forward and dgrad: e4m3, a scale for 128 x 128 of the weight and for 1 x 128 of the other, bf16 out"));
  f.push_back(gemm("gemm.fp8.block.tn.acc_f32", 1, 4, true, "wgrad: e4m3, scales for 1 x 128, added to fp32"));
  f.push_back(gemm("gemm.fp8.block.tn.acc_bf16", 1, 2, true, "the same, added to a bf16 main gradient"));
  f.push_back(gemm("gemm.fp8.block.tn.out_bf16", 1, 2, false, "the same, bf16 out"));
  f.push_back(gemm("gemm.mxfp8.tn", scaled_fp8, 2, false,
                   "forward and dgrad: MXFP8 (FP8 with an E8M0 scale for 32 elements along k), bf16 out"));
  f.push_back(gemm("gemm.mxfp8.tn.acc_f32", scaled_fp8, 4, true, "wgrad: MXFP8, added to an fp32 main gradient"));
  f.push_back(gemm("gemm.mxfp8.tn.acc_bf16", scaled_fp8, 2, true, "the same, added to a bf16 main gradient"));
  f.push_back(gemm("gemm.mxfp8.tn.out_bf16", scaled_fp8, 2, false, "the same, bf16 out"));
  f.push_back(gemm("gemm.nvfp4.tn", scaled_fp4, 2, false,
                   "forward and dgrad: NVFP4 (E2M1 with an E4M3 scale for 16 elements along k), bf16 out"));
  f.push_back(gemm("gemm.nvfp4.tn.acc_f32", scaled_fp4, 4, true, "wgrad: NVFP4, added to an fp32 main gradient"));
  f.push_back(gemm("gemm.nvfp4.tn.acc_bf16", scaled_fp4, 2, true, "the same, added to a bf16 main gradient"));
  f.push_back(gemm("gemm.nvfp4.tn.out_bf16", scaled_fp4, 2, false, "the same, bf16 out"));
  f.push_back(attention("attention.forward.bf16", false, 2, 2, "cuDNN fused causal GQA attention"));
  f.push_back(attention("attention.backward.bf16", false, 5, 4,
                        "its backward: dot_do_o, bprop, convert_dq, reduction of dk and dv over a group's heads"));
  f.push_back(attention("attention.window.forward.bf16", true, 2, 2,
                        "the same with a sliding window: a query sees the last `window` keys"));
  f.push_back(attention("attention.window.backward.bf16", true, 5, 4, "its backward"));
  f.push_back(attention("attention.sink.forward.bf16", true, 2, 2,
                        "the same with a sink a head (softmax_type learnable, off-by-one); window seq_kv: none"));
  f.push_back(attention("attention.sink.backward.bf16", true, 5, 4, "its backward, with the sinks' gradient"));
  f.push_back(attention("attention.dropout.forward.bf16", false, 2, 2,
                        "attention.forward.bf16 with dropout: the mask is drawn in the kernel"));
  f.push_back(attention("attention.dropout.backward.bf16", false, 5, 4, "its backward, which draws the mask again"));
  f.push_back(attention("attention.thd.forward.bf16", false, 2, 2,
                        "attention of packed sequences (thd), here of one length, with what makes their offsets"));
  f.push_back(
      attention("attention.thd.backward.bf16", false, 5, 4, "its backward, with gradients that are zeroed first"));
  f.push_back(attention("attention.thd.window.forward.bf16", true, 2, 2,
                        "the same with a sliding window: a query sees the last `window` keys of its sequence"));
  f.push_back(attention("attention.thd.window.backward.bf16", true, 5, 4, "its backward"));
  f.push_back(attention("attention.thd.padded.forward.bf16", false, 2, 2,
                        "latent attention of packed sequences: values padded with zeros to the queries' 192; up to 32 "
                        "sequences"));
  f.push_back(attention("attention.thd.padded.backward.bf16", false, 5, 4, "its backward"));
  f.push_back(attention("attention.softcap.forward.bf16", true, 2, 2,
                        "FlexAttention (torch.compile) with soft-capped scores; window seq_kv: none"));
  f.push_back(attention("attention.softcap.backward.bf16", true, 5, 4,
                        "its backward: the output's gradient made contiguous, row sums, dq, dk and dv"));
  f.push_back(grouped("gemm.grouped.bf16.tn", 2, 2, false, false, "experts' linear layers, forward"));
  f.push_back(grouped("gemm.grouped.bf16.nn", 2, 2, false, false, "their dgrad"));
  f.push_back(grouped("gemm.grouped.bf16.nt", 2, 2, true, false, "their wgrad, no gradient accumulation fusion"));
  f.push_back(grouped("gemm.grouped.bf16.nt.acc_f32", 2, 4, true, true, "their wgrad, added to fp32 main gradients"));
  f.push_back(grouped("gemm.grouped.bf16.nt.acc_bf16", 2, 2, true, true, "their wgrad, added to bf16 main gradients"));
  f.push_back(grouped("gemm.grouped.fp8.tn", 1, 2, false, false, "experts' forward, e4m3 x e4m3, bf16 out"));
  f.push_back(grouped("gemm.grouped.fp8.tn.split", 1, 2, false, false, "their dgrad, e4m3 x e5m2, bf16 out"));
  f.push_back(grouped("gemm.grouped.fp8.tn.acc_f32", 1, 4, true, true, "their wgrad, added to fp32 main gradients"));
  f.push_back(grouped("gemm.grouped.fp8.tn.acc_bf16", 1, 2, true, true, "their wgrad, added to bf16 main gradients"));
  f.push_back(grouped("gemm.grouped.fp8.tn.out_bf16", 1, 2, true, false, "their wgrad, bf16 out"));
  f.push_back(
      grouped("gemm.grouped.fp8.block.tn", 1, 2, false, false, "experts' forward and dgrad, e4m3 scaled by block"));
  f.push_back(
      grouped("gemm.grouped.fp8.block.tn.acc_f32", 1, 4, true, true, "their wgrad, added to fp32 main gradients"));
  f.push_back(grouped("gemm.grouped.fp8.block.tn.acc_bf16", 1, 2, true, true, "their wgrad, added to bf16 gradients"));
  f.push_back(grouped("gemm.grouped.fp8.block.tn.out_bf16", 1, 2, true, false, "their wgrad, bf16 out"));
  f.push_back(grouped("gemm.grouped.mxfp8.tn", scaled_fp8, 2, false, false, "experts' forward and dgrad, MXFP8"));
  f.push_back(grouped("gemm.grouped.mxfp8.tn.acc_f32", scaled_fp8, 4, true, true, "their wgrad, added to fp32"));
  f.push_back(grouped("gemm.grouped.mxfp8.tn.acc_bf16", scaled_fp8, 2, true, true, "their wgrad, added to bf16"));
  f.push_back(grouped("gemm.grouped.mxfp8.tn.out_bf16", scaled_fp8, 2, true, false, "their wgrad, bf16 out"));
  f.push_back(grouped("gemm.grouped.nvfp4.tn", scaled_fp4, 2, false, false, "experts' forward and dgrad, NVFP4"));
  f.push_back(grouped("gemm.grouped.nvfp4.tn.acc_f32", scaled_fp4, 4, true, true, "their wgrad, added to fp32"));
  f.push_back(grouped("gemm.grouped.nvfp4.tn.acc_bf16", scaled_fp4, 2, true, true, "their wgrad, added to bf16"));
  f.push_back(grouped("gemm.grouped.nvfp4.tn.out_bf16", scaled_fp4, 2, true, false, "their wgrad, bf16 out"));
  f.push_back(mla_attention("attention.mla.forward.bf16", 1, 1, 1,
                            "cuDNN fused causal attention whose q and k are wider than v (MLA)"));
  f.push_back(mla_attention("attention.mla.backward.bf16", 3, 2, 2, "its backward with its helper kernels"));
  const auto norms = [&](const std::string& norm, const char* forward, const char* backward) {
    f.push_back(streaming(norm + ".forward", rows_cols, 4, forward));
    f.push_back(streaming(norm + ".backward", rows_cols, 6, backward));
    f.push_back(streaming(norm + ".forward.general", rows_cols, 4, "the same by TE's kernel for any width"));
    f.push_back(streaming(norm + ".backward.general", rows_cols, 6, "the same by TE's kernel for any width"));
    for (const auto& [suffix, kernel] : {std::pair("", "the tuned"), std::pair(".general", "the general")}) {
      const std::string forward_of = norm + ".forward" + suffix, which = kernel;
      f.push_back(streaming(forward_of + ".amax", rows_cols, 4, which + " kernel, which takes the maximum, too"));
      f.push_back(streaming(forward_of + ".fp8", rows_cols, 3, which + " kernel, which writes FP8 and the maximum"));
    }
  };
  norms("rmsnorm", "bf16 in and out, fp32 rsigma", "bf16; with the finalize kernel (dgamma)");
  f.push_back(streaming("rmsnorm.forward.cudnn", rows_cols, 4, "the same by cuDNN (NVTE_NORM_FWD_USE_CUDNN)"));
  f.push_back(streaming("rmsnorm.backward.cudnn", rows_cols, 6, "the same by cuDNN (NVTE_NORM_BWD_USE_CUDNN)"));
  norms("layernorm", "bf16 in and out, fp32 mu and rsigma", "bf16; with the finalize kernel (dgamma, dbeta)");
  f.push_back(streaming("qk_l2_norm.forward", rows_cols, 4, "L2 norm of contiguous queries (torch.compile), bf16"));
  f.push_back(streaming("qk_l2_norm.backward", rows_cols, 6, "its backward"));
  f.push_back(streaming("qk_l2_norm.strided.forward", rows_cols, 4, "the same of keys inside the fused projection"));
  f.push_back(streaming("qk_l2_norm.strided.backward", rows_cols, 6, "its backward"));
  f.push_back(streaming("rope.forward", rope, 4, "TE's fused RoPE of one tensor (q or k), bf16, contiguous out"));
  f.push_back(streaming("rope.backward", rope, 4, "its backward"));
  f.push_back(streaming("copy.strided", rows_cols, 4,
                        "bf16: rows of cols contiguous elements out of a strided view (q, v out of the fused qkv)"));
  f.push_back(
      streaming("index_select", {"elements"}, 4,
                "bf16: parts of a tensor put into another order by at most 16 indices (PyTorch's kernel for few)"));
  f.push_back(streaming("out_correction", rows_cols, 6,
                        "bf16: a ring's step added to attention's output by both statistics (TE's, two torch.compile "
                        "kernels)"));
  f.push_back(streaming("cat", rows_cols, 4, "bf16: gradients of q, k, v joined to rows x cols (cols: all of them)"));
  f.push_back({"cat.heads",
               {"rows", "heads", "part", "other"},
               Load::memory,
               no_flop,
               [](const Dims& d) { return 4 * at(d, 0) * at(d, 1) * (at(d, 2) + at(d, 3)); },
               "bf16: two parts of every head joined (torch.cat along the last dimension); part: the wider"});
  f.push_back(streaming("swiglu.forward", rows_ffn, 6, "bf16: reads rows x 2 ffn, writes rows x ffn"));
  f.push_back(streaming("swiglu.backward", rows_ffn, 10, "bf16: reads rows x 3 ffn, writes rows x 2 ffn"));
  f.push_back(streaming("swiglu.any_width.forward", rows_ffn, 6,
                        "the same by torch.compile's kernel for any width (dynamic shapes)"));
  f.push_back(streaming("swiglu.any_width.backward", rows_ffn, 10,
                        "the same by torch.compile's kernel for any width (dynamic shapes)"));
  f.push_back(streaming("gelu.forward", rows_ffn, 4, "bf16: rows x ffn in and out (with bias where there is one)"));
  f.push_back(streaming("gelu.backward", rows_ffn, 6, "bf16: reads 2, writes 1 x rows x ffn"));
  f.push_back(streaming("squared_relu.forward", rows_ffn, 4, "bf16: rows x ffn in and out"));
  f.push_back(streaming("squared_relu.backward", rows_ffn, 6, "bf16: reads 2, writes 1 x rows x ffn"));
  f.push_back(streaming("squared_relu.any_width.forward", rows_ffn, 4,
                        "the same by torch.compile's kernel for any shape (experts beside shared ones)"));
  f.push_back(streaming("squared_relu.any_width.backward", rows_ffn, 6,
                        "the same by torch.compile's kernel for any shape (experts beside shared ones)"));
  f.push_back(streaming("fast_gelu.forward", rows_ffn, 4,
                        "tanh GELU (torch.compile): the gating half of rows x 2 ffn in, rows x ffn out, bf16"));
  f.push_back(streaming("fast_gelu.backward", rows_ffn, 6, "its backward"));
  f.push_back(streaming("glu.gate.forward", rows_ffn, 4,
                        "silu or GELU of the gating half of rows x 2 ffn (ATen's kernel over strides), bf16"));
  f.push_back(streaming("glu.gate.backward", rows_ffn, 6, "its backward: reads the half and rows x ffn"));
  f.push_back(streaming("glu.offset", rows_ffn, 4,
                        "linear half of rows x 2 ffn plus a number, or rows x ffn plus a bias (ATen), bf16"));
  f.push_back(streaming("moe.swiglu.forward", rows_ffn, 6,
                        "swiglu of the experts' rows times their probability (torch.compile), bf16"));
  f.push_back(streaming("moe.swiglu.backward", rows_ffn, 16,
                        "its backward: gradient of both halves, and of the probability (a reduction over ffn)"));
  f.push_back(streaming("clamp.forward", rows_ffn, 8, "torch.clamp of both halves of rows x 2 ffn, one by one, bf16"));
  f.push_back(streaming("clamp.backward", rows_ffn, 22,
                        "its backward: three comparisons, one conjunction, two selections (masks of one byte)"));
  f.push_back(streaming("gate.forward", rows_cols, 6,
                        "what attention or a gated norm puts out times its gate (torch.compile), bf16"));
  f.push_back(streaming("gate.backward", rows_cols, 10, "its backward: gradients of both"));
  gated_delta_net(f);
  mamba(f);
  const V of_experts = {"experts", "rows", "hidden"};
  f.push_back(
      {"moe.bias.forward", of_experts, Load::memory, no_flop, [](const Dims& d) { return 28 * at(d, 1) * at(d, 2); },
       "fc2's bias times the probability, expert by expert in fp32 (torch: mul, add), joined and cast to bf16", true});
  f.push_back({"moe.bias.backward", of_experts, Load::memory, no_flop,
               [](const Dims& d) { return 34 * at(d, 1) * at(d, 2); },
               "its backward: cast to fp32, products and sums for bias and probability, expert by expert", true});
  f.push_back(streaming("moe.bias.accumulate", {"experts", "width"}, 10,
                        "bias gradients (bf16) added to fp32 main gradients, expert by expert (DDP's hook)"));
  f.push_back({"moe.router.gemm.forward",
               {"tokens", "hidden", "experts"},
               Load::memory,
               [](const Dims& d) { return 2 * product(d); },
               [](const Dims& d) { return 2 * at(d, 0) * at(d, 1); },
               "gating: bf16 in, fp32 logits out"});
  f.push_back({"moe.router.gemm.backward",
               {"tokens", "hidden", "experts"},
               Load::memory,
               [](const Dims& d) { return 4 * product(d); },
               [](const Dims& d) { return 24 * at(d, 0) * at(d, 1); },
               "dgrad and wgrad in fp32, with the casts of input and gradient"});
  const std::pair<const char*, const char*> gating[] = {
      {"tn", "gating in bf16 (no moe_router_dtype)"}, {"nn", "its dgrad"}, {"nt", "its wgrad"}};
  for (const auto& [layout, what] : gating)
    f.push_back({std::string("moe.router.gemm.bf16.") + layout,
                 {"tokens", "hidden", "experts"},
                 Load::memory,
                 [](const Dims& d) { return 2 * product(d); },
                 [](const Dims& d) { return 2 * at(d, 0) * at(d, 1); },
                 what});
  // Sums over the kernels of one call of Megatron Core's TopKRouter.routing (kernels/megatron_probe.py).
  const std::pair<const char*, const char*> routers[] = {
      {"topk", "top-k of softmax scores, scattered into probabilities and map"},
      {"sigmoid", "the same by sigmoid scores with an expert bias"},
      {"grouped", "the same within the best groups of experts"},
      {"fused", "the same as topk in one kernel (moe_router_fusion)"},
      {"fused_sigmoid", "the same as sigmoid in one kernel (moe_router_fusion)"}};
  for (const auto& [scores, what] : routers) {
    for (const char* aux : {"", "_aux"}) {
      const auto name = std::string("moe.router.") + scores + aux;
      f.push_back(streaming(name + ".forward", {"tokens", "experts"}, 40,
                            what + std::string(*aux ? ", with the auxiliary loss" : "")));
      f.push_back(streaming(name + ".backward", {"tokens", "experts"}, 40, "its backward"));
    }
  }
  const V permuted = {"tokens", "hidden", "topk"};
  const auto permute = [&](const char* name, std::string what) {
    f.push_back({name, permuted, Load::memory, no_flop,
                 [](const Dims& d) { return 2 * at(d, 0) * at(d, 1) * (1 + at(d, 2)); }, std::move(what)});
  };
  f.push_back(
      streaming("moe.row_id_map", {"tokens", "experts"}, 9,
                "where each token's copies go (Triton, three passes; the last sorts the columns of every row)"));
  permute("moe.permute.forward",
          "copies of tokens in the order of their experts, with their probabilities (bf16, Triton)");
  permute("moe.permute.backward", "gradients of the copies summed to their tokens");
  permute("moe.unpermute.forward", "outputs of a token's experts summed");
  permute("moe.unpermute.backward", "its gradient copied to every expert");
  f.push_back(streaming("moe.sort_map", {"rows", "splits"}, 4,
                        "where each row goes when chunks are sorted (Triton, every row reads all chunks' sizes)"));
  f.push_back(streaming("moe.sort_chunks", rows_cols, 4, "rows moved from source-rank order to expert order or back"));
  f.push_back(streaming("rope.mla.forward", rope, 4, "fused MLA RoPE: bf16, heads x rotated and unrotated width"));
  f.push_back(streaming("rope.mla.backward", rope, 4, "its backward"));
  f.push_back(streaming("dropout.forward", elements, 5, "bf16 in and out, 1 B mask out"));
  f.push_back(streaming("dropout.backward", elements, 5, "bf16 in and out, 1 B mask in"));
  f.push_back(streaming("add", elements, 6, "bf16 + bf16 -> bf16 (residual; gradient of the residual)"));
  f.push_back(streaming("add.f32", elements, 12, "fp32 += fp32: addition to a main gradient outside GEMMs"));
  f.push_back(streaming("cast.bf16_f32", elements, 6, "bf16 -> fp32"));
  f.push_back(streaming("cast.bf16_f16", elements, 4, "bf16 -> fp16"));
  f.push_back(streaming("cast.f32_bf16", elements, 6, "fp32 -> bf16 (parameters after the optimizer step)"));
  f.push_back(streaming("fill", bytes, 1, "zeros written by a kernel (at::fill)"));
  f.push_back(streaming("memset", bytes, 1, "cudaMemset"));
  f.push_back(streaming("copy.d2d", bytes, 2, "device to device, contiguous"));
  f.push_back(streaming("copy.d2h", bytes, 1, "to pinned host memory", Load::none));
  f.push_back(streaming("copy.h2d", bytes, 1, "from pinned host memory", Load::none));
  f.push_back(
      {"copy.h2d.pageable",
       {"processes", "bytes"},
       Load::none,
       no_flop,
       [](const Dims& d) { return at(d, 1); },
       "from pageable host memory, until the host may go on; so many processes of the host at once, each so much"});
  f.push_back({"adam.host",
               {"threads", "parameters"},
               Load::none,
               no_flop,
               [](const Dims& d) { return 28 * at(d, 1); },
               "Adam on the host: fp32 gradient in, parameter and moments in and out; threads and parameters of all "
               "processes of the host together"});
  f.push_back(streaming("amax", elements, 2, "zero_amax, amax over bf16, scale from amax (FP8 current scaling)"));
  f.push_back(streaming("cast.fp8", elements, 3, "bf16 -> e4m3 or e5m2 with a given scale, row-wise only"));
  f.push_back(streaming("cast_transpose.fp8", rows_cols, 4, "bf16 -> fp8 row-wise and transposed"));
  f.push_back(streaming("cast_transpose.fp8.general", rows_cols, 4,
                        "the same of rows or columns off the tiles of 32, by TE's kernel for any shape (experts)"));
  f.push_back(streaming("cast_transpose.fp8.row", elements, 4,
                        "the same of one row, by TE's kernel for any shape (an optimizer's shard of a parameter)"));
  f.push_back(streaming("transpose.fp8", rows_cols, 2, "fp8 -> fp8 transposed"));
  f.push_back(streaming("quantize.blockwise.fp8", rows_cols, 4,
                        "bf16 -> fp8 in 1x128 or 128x128 blocks, both directions, with scales"));
  f.push_back(streaming("quantize.mxfp8", rows_cols, 2 + 2 * scaled_fp8,
                        "bf16 -> MXFP8 row-wise and column-wise, with scales of both"));
  f.push_back(streaming("quantize.nvfp4", rows_cols, 4 + 2 * scaled_fp4,
                        "bf16 -> NVFP4 row-wise and column-wise: amax of the tensor, then the cast (two reads)"));
  f.push_back(streaming("embedding.forward", {"tokens", "hidden"}, 8,
                        "gather of bf16 rows, and the copy from [b,s,h] to [s,b,h]"));
  f.push_back({"embedding.backward",
               {"tokens", "hidden", "vocab"},
               Load::memory,
               no_flop,
               [](const Dims& d) { return 4 * at(d, 0) * at(d, 1) + 2 * at(d, 1) * at(d, 2); },
               "scatter into a zeroed bf16 vocab x hidden gradient (sort, sums by segment)"});
  f.push_back(streaming("cross_entropy.unfused.forward", logits, 38,
                        "cast to fp32 (6 B), max (4), subtract (8), exp (8), sum (4), divide (8); vocab of this rank"));
  f.push_back(streaming("cross_entropy.unfused.backward", logits, 14,
                        "gradient in place (index_put, multiply: 8 B) and cast to bf16 (6)"));
  f.push_back(streaming("cross_entropy.native.forward", logits, 30,
                        "cross_entropy_loss_fusion, native (torch.compile): logits in, fp32 exponentials out"));
  f.push_back(streaming("cross_entropy.native.backward", logits, 18, "fp32 exponentials in, gradient in bf16 out"));
  f.push_back(
      streaming("cross_entropy.te.forward", logits, 6,
                "Transformer Engine's parallel_cross_entropy before 2.18: maximum and sum (2), the gradient over "
                "the logits (4)"));
  f.push_back(streaming("cross_entropy.te.backward", logits, 4, "multiplication by the incoming gradient, in place"));
  f.push_back(streaming("cross_entropy.te.forward.fp32", logits, 8, "2.18 and 2.19: the gradient in fp32"));
  f.push_back(streaming("cross_entropy.te.backward.fp32", logits, 14, "multiplied in place (8), cast to bf16 (6)"));
  f.push_back(streaming("cross_entropy.te.forward.copy", logits, 4, "from 2.20 on: statistics and a copy in one pass"));
  f.push_back(streaming("cross_entropy.te.backward.copy", logits, 4, "the gradient from the copy, in place"));
  f.push_back(streaming("l2norm", elements, 4, "fp32 multi-tensor L2 norm of the gradients"));
  f.push_back(streaming("scale", elements, 8, "fp32 multi-tensor scale in place (clip)"));
  f.push_back(
      streaming("adam", {"parameters"}, 28, "TE's fused Adam: fp32 gradient in, parameter and moments in and out"));
  f.push_back(collective("all_gather.<link>", 1, "bytes: of the gathered (large) buffer"));
  f.push_back(collective("reduce_scatter.<link>", 1, "bytes: of the input (large) buffer; bf16 sum"));
  f.push_back(collective("all_reduce.<link>", 2, "bytes: of the buffer"));
  f.push_back(collective("all_to_all.<link>", 1, "bytes: sent by one rank, its own share included"));
  f.push_back(streaming("send_recv.<link>", bytes, 1, "one P2P transfer, both sides ready", Load::network));
  f.push_back(
      streaming("small", {}, 0, "a kernel of some kB: scalars, amax resets, memsets of semaphores", Load::none));
  return f;
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> table = make_families();
  return table;
}

const Family* find_family(const std::string& name) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const Family*> all;
    for (const auto& f : families()) all.emplace(f.name, &f);
    return all;
  }();
  if (const auto found = by_name.find(name); found != by_name.end()) return found->second;
  // "all_gather.nvlink" -> "all_gather.<link>": the link's name may be any, and contains no dot before it.
  const auto dot = name.find('.');
  if (dot == std::string::npos || dot + 1 >= name.size()) return nullptr;
  const auto found = by_name.find(name.substr(0, dot) + ".<link>");
  return found == by_name.end() ? nullptr : found->second;
}

std::int64_t row_alignment(std::string_view grouped_family) {
  const auto of = grouped_family.substr(std::string_view("gemm.grouped.").size());
  return of.starts_with("nvfp4") || of.starts_with("fp8.block") ? 128
         : of.starts_with("mxfp8")                              ? 32
         : of.starts_with("fp8")                                ? 16
                                                                : 1;
}

const Family& family(const std::string& name) {
  if (const Family* found = find_family(name)) return *found;
  throw InternalError("unknown kernel family " + name);
}

std::string_view name(Origin origin) {
  switch (origin) {
    case Origin::measured:
      return "measured";
    case Origin::interpolated:
      return "interpolated";
    case Origin::published:
      return "public";
    case Origin::derived:
      return "derived";
  }
  throw InternalError("origin out of range");
}

}  // namespace pipewright::profile
