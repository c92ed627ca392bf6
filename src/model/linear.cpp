#include "linear.hpp"

#include <algorithm>
#include <utility>

namespace pipewright::model {
namespace {

/// Or a mixer, whose projections name the MLP's buffers (core_r0.19.0 ssm/mamba_mixer.py:289, tp_comm_buffer_name).
bool of_mlp(const Linear& linear) {
  return linear.name.ends_with("fc1") || linear.name.ends_with("fc2") || linear.name.starts_with("mamba.");
}

/// Workspace of TE's norm backward: a CTA's partial sums of dgamma (and dbeta) in fp32, as many CTAs as fit on the
/// multiprocessors (TE common/normalization/*/*_bwd_semi_cuda_kernel.cu): three each for RMSNorm, two for LayerNorm
/// (396 and 2 x 264 rows of 4096 in recorded allocations of 132).
constexpr Int rms_ctas = 3, layer_norm_ctas = 2;

/// Partial sums of PyTorch's reduction of `rows` x `columns` (16 bits) over its rows, fp32: blocks of 32 x 4 threads,
/// each thread 4 columns; the rows are split over blocks to fill the GPU (aten/src/ATen/native/cuda/Reduce.cuh,
/// setReduceConfig, global_memory_size; 142606336 B for 2048 x 16384 in recorded allocations).
Int column_sum_workspace(const profile::Device& gpu, Int rows, Int columns) {
  constexpr Int width = 32, height = 4, vector = 4;
  const Int resident = gpu.multiprocessors * (gpu.threads_per_multiprocessor / (width * height));
  const auto divide_up = [](Int a, Int b) { return (a + b - 1) / b; };
  const Int grid = divide_up(columns, vector * width), values = divide_up(rows, height);
  if (values < 256 || grid > resident) return 0;
  const Int blocks = std::max(std::min(divide_up(resident, grid), divide_up(values, 16)), divide_up(values, 256));
  return blocks > 1 ? 4 * columns * blocks * width * vector : 0;
}

}  // namespace

std::uint32_t LinearWriter::bias_gradient(const std::string& name, Int rows, Int columns) {
  const auto gradient = w_.allocate(name + "_bias_gradient", 2 * columns);
  if (const Int workspace = column_sum_workspace(d_.gpu, rows, columns)) {
    const auto partial = w_.allocate("workspace", workspace);
    w_.transient("workspace", 512);  // semaphores
    w_.free(partial);
  }
  w_.launch(name + " bias gradient", {"l2norm", {rows * columns / 2}});  // reads 16 bits
  w_.eager();
  return gradient;
}

void LinearWriter::small_gradient(const std::string& name, Int elements) {
  if (d_.frozen())
    w_.free(w_.allocate_gradient(2 * elements));
  else
    w_.small_gradient(name, elements);
}

Int LinearWriter::norm_statistics(Int rows) const { return rows * 4 * (d_.rms_norm ? 1 : 2); }

// TE has kernels tuned for these widths, where rows are a multiple of four, and general ones for any other
// (common/normalization/{rmsnorm,layernorm}/*.cu, REGISTER_NORM_LAUNCHER; common.cpp: is_tuned). cuDNN's graphs, chosen
// by NVTE_NORM_{FWD,BWD}_USE_CUDNN, serve all widths alike; LayerNorm's take as long as the tuned kernels (4096 wide:
// 22.0 and 41.1 us by cuDNN for 4096 rows, 22.0 and 42.6 tuned; 7168 wide in proportion).
profile::Key LinearWriter::norm_key(bool forward, Int rows, Int cols) const {
  static constexpr Int rms_widths[] = {512, 768, 1024, 2048, 4096, 8192};
  static constexpr Int layer_widths[] = {768,   1024,  1536,  2048,  2304,  3072,  3840,  4096,  5120,
                                         6144,  8192,  10240, 12288, 12800, 15360, 16384, 18432, 20480,
                                         24576, 25600, 30720, 32768, 40960, 49152, 65536};
  const auto has = [cols](const auto& widths) { return std::ranges::binary_search(widths, cols); };
  const bool tuned = rows % 4 == 0 && (d_.rms_norm ? has(rms_widths) : has(layer_widths));
  const bool cudnn = forward ? d_.cudnn_norm_forward : d_.cudnn_norm_backward;
  std::string family = d_.rms_norm ? "rmsnorm" : "layernorm";
  family += forward ? ".forward" : ".backward";
  if (cudnn)
    family += d_.rms_norm ? ".cudnn" : "";
  else if (!tuned)
    family += ".general";
  return {std::move(family), {rows, cols}};
}

void LinearWriter::norm(const std::string& name, bool forward, Int rows, Int cols, NormOutput output) {
  auto key = norm_key(forward, rows, cols);
  const std::string plain = key.family;
  if (output != NormOutput::plain && !d_.cudnn_norm_forward) key.family += output == NormOutput::fp8 ? ".fp8" : ".amax";
  w_.launch(name + (forward ? " forward" : " backward"), std::move(key));
  if (output != NormOutput::plain) w_.on_host(plain.c_str());  // the same call, whatever the kernel writes
}

std::uint32_t LinearWriter::gathered_buffer(const std::string& owner, Int bytes) {
  return d_.tp_overlap ? no_tensor : w_.allocate(owner, bytes);
}

void LinearWriter::gather_before(const Linear& linear, const std::string& name, Int bytes) {
  if (!d_.tp_overlap) return gather(linear, name, bytes, Stream::compute);
  into_userbuffers(name, bytes);
  overlap_ = {Overlap::ring_gather, name, bytes};
}

// With scales of their own data and scales are one coalesced call (TE pytorch/distributed.py,
// _all_gather_fp8_blockwise, _all_gather_mxfp8, _all_gather_nvfp4: a _coalescing_manager).
void LinearWriter::gather(const Linear& linear, const std::string& name, Int bytes, Stream stream) {
  w_.collective(Purpose::tp, name, "all_gather", d_.t, bytes, d_.tp_link, stream);
  if (linear.fp8() && !linear.precision.per_tensor() && !d_.tp_overlap && !d_.local_spec)
    w_.piece().kernels.back().kept = bytes;
}

/// TE pytorch/module/base.py, fill_userbuffers_buffer_for_all_gather: a rank's part is copied to where it is sent from
/// (of a bulk gather on its own stream).
void LinearWriter::into_userbuffers(const std::string& name, Int gathered) {
  w_.launch(name + " filled", {"copy.d2d", {gathered / d_.t}});
}

void LinearWriter::scatter_after(const std::string& name, Int bytes) {
  if (!d_.tp_overlap) w_.collective(Purpose::tp, name, "reduce_scatter", d_.t, bytes, d_.tp_link);
}

// With userbuffers the products beside a pipelined or bulk collective run on what its multiprocessors leave.
double LinearWriter::left_by(Int held) const { return d_.share_without(d_.left.products + (d_.tp_overlap ? held : 0)); }

// One of the `parts` equal parts of a matrix product over its tokens.
void LinearWriter::gemm_part(const Linear& linear, Product product, Int parts) {
  const bool forward = product == Product::forward;
  const std::string family = linear.fp8() ? product_family(linear.precision.recipe, "gemm.", forward)
                             : forward    ? "gemm.bf16.tn"
                                          : "gemm.bf16.nn";
  const Int m = forward ? linear.out : linear.in, k = forward ? linear.in : linear.out;
  scales(linear, product, rows(linear) / parts);
  w_.launch(linear.name + suffix(product), {family, {m, rows(linear) / parts, k}}, sm_share_);
}

void LinearWriter::gemm(const Linear& linear, Product product) {
  const auto [overlap, name, bytes] = std::exchange(overlap_, {});
  if (overlap == Overlap::none) {
    gemm_part(linear, product, 1);
  } else if (overlap == Overlap::ring_gather) {
    for (Int part = 0; part < d_.t; ++part) {
      const bool more = part + 1 < d_.t;
      if (more) {
        w_.collective(Purpose::tp, name, "send_recv", d_.t, bytes / d_.t, d_.tp_link, Stream::communication);
        w_.within_call(launches_of_transfer);
      }
      gemm_part(linear, product, d_.t);
      if (part > 0) w_.within_call(launches_of_product);
      if (more) w_.wait(Stream::communication);
    }
  } else if (overlap == Overlap::ring_scatter) {
    // TE common/comm_gemm_overlap/comm_gemm_overlap.cpp:1295-1406 (2.20): what arrived is added after the last part.
    const Margin margin(sm_share_, left_by(1));
    for (Int part = 0; part < d_.t; ++part) {
      gemm_part(linear, product, d_.t);
      if (part > 0) w_.within_call(launches_of_product);
      if (part + 1 == d_.t) break;
      w_.collective(Purpose::tp, name, "send_recv", d_.t, bytes / d_.t, d_.tp_link, Stream::communication);
      w_.within_call(launches_of_transfer);
    }
    w_.wait(Stream::communication);
    w_.launch(linear.name + " sum of parts", {"copy.d2d", {bytes * (d_.t + 1) / (2 * d_.t)}});
    w_.within_call(1);
  } else {
    const auto& held = d_.overlap_multiprocessors;
    const Margin margin(sm_share_, left_by(of_mlp(linear) ? held.fc2_forward : held.proj_forward));
    for (Int part = 0; part < pipelined_parts; ++part) {
      gemm_part(linear, product, pipelined_parts);
      if (part > 0) w_.within_call(launches_of_product);
      w_.collective(Purpose::tp, name, "reduce_scatter", d_.t, bytes / pipelined_parts, d_.tp_link,
                    Stream::communication);
      w_.within_call(1);
    }
    w_.wait(Stream::communication);
  }
}

/// What a product of `rows` tokens waits for: scales of operands that are not in cuBLAS' order yet (precision.hpp; what
/// is gathered comes as its parts were cast, which is in no order), and of NVFP4 the factor of both tensors (TE
/// common/gemm/cublaslt_gemm.cu, nvte_nvfp4_compute_per_tensor_scale).
void LinearWriter::scales(const Linear& linear, Product product, Int rows) {
  const auto& p = linear.precision;
  if (!p.scaled_by_block()) return;
  Int elements = 0;
  int launches = p.recipe == Recipe::nvfp4 ? 1 : 0;
  const auto operand = [&](bool ordered, Int n) {
    if (ordered) return;
    elements += n;
    ++launches;
  };
  if (product != Product::wgrad) operand(p.weights_ordered && !linear.bf16_weight, linear.in * linear.out);
  if (product != Product::dgrad) operand(p.casts_order && (linear.row || !gathers(linear)), rows * linear.in);
  if (product != Product::forward) operand(p.casts_order && !(linear.row && gathers(linear)), rows * linear.out);
  if (elements > 0) w_.transient("workspace", elements / p.scale_block());
  if (launches == 0) return;
  w_.launch("swizzled scales", {"small", {}});
  w_.stands_for(launches);
}

/// The gathered parts of a transposed copy, side by side: data and scales (TE pytorch/distributed.py,
/// _post_process_nvfp4_gather). Frees `gathered`.
std::uint32_t LinearWriter::joined(const std::string& name, std::uint32_t gathered, const std::string& owner,
                                   Int bytes) {
  const auto whole = w_.allocate(owner, bytes);
  w_.launch(name + " joined", {"copy.d2d", {bytes}});
  w_.stands_for(2);
  w_.free(gathered);
  return whole;
}

void LinearWriter::weight_gradient(const Linear& linear, double sm_share) {
  if (linear.frozen) return;
  std::string family = linear.fp8() ? product_family(linear.precision.recipe, "gemm.", true) : "gemm.bf16.nt";
  scales(linear, Product::wgrad, rows(linear));
  if (d_.fused_gradients) {
    family += d_.fsdp ? linear.fp8() ? ".out_bf16" : "" : d_.gradient_bytes == 4 ? ".acc_f32" : ".acc_bf16";
    w_.launch(linear.name + " wgrad", {family, {linear.in, linear.out, rows(linear)}}, sm_share);
    w_.dummy_gradient(linear.in, linear.out);
    if (w_.graphed()) w_.returns(2 * linear.in * linear.out, "", {});
    return;
  }
  if (linear.fp8()) family += ".out_bf16";
  const auto gradient = w_.allocate_gradient(2 * linear.in * linear.out);
  w_.launch(linear.name + " wgrad", {family, {linear.in, linear.out, rows(linear)}}, sm_share);
  if (w_.graphed()) {
    w_.returns(2 * linear.in * linear.out, linear.name + " gradient accumulation",
               {"add.f32", {linear.in * linear.out}});
  } else {
    w_.launch(linear.name + " gradient accumulation", accumulation(d_, linear.in * linear.out));
  }
  w_.free(gradient);
}

void LinearWriter::release(Operand operand) { w_.free({operand.data, operand.transpose}); }

std::uint32_t LinearWriter::column_product(const Linear& linear, const std::string& owner, Operand& saved, bool grad) {
  std::uint32_t gathered = no_tensor;
  if (gathers(linear)) {
    const Int bytes = gathered_bytes(linear, linear.in, false);
    gathered = d_.local_spec ? no_tensor : gathered_buffer(linear.name + "_gathered_input", bytes);
    gather_before(linear, linear.name + " all-gather", bytes);
  }
  cast_weight(linear);
  const auto out = w_.allocate(owner, 2 * rows(linear) * linear.out);
  gemm(linear, Product::forward);
  w_.free(gathered);
  if (!grad) {
    release(saved);
  } else if (saved.transpose != no_tensor) {
    w_.release(saved.data);
  }
  return out;
}

std::uint32_t LinearWriter::norm_linear(const Linear& linear, const std::string& owner, Normed& saved, bool grad) {
  const Int local = d_.local;
  saved.statistics = w_.allocate_float(linear.name + "_norm_statistics", norm_statistics(local));
  // FP8 gathers row-wise data only, so with sequence parallelism the transpose is made after the gather, in the
  // backward pass.
  const bool shard = gathers(linear), transpose = grad && !linear.frozen && second_copy_now(linear.precision, shard);
  const std::string output = linear.name + "_norm_output";
  auto normed = no_tensor;
  if (linear.precision.recipe == Recipe::delayed && linear.rank == 0) {
    // The scale is known before: the norm kernel writes FP8 (TE csrc/extensions/normalization.cpp, FULLY_FUSED).
    bool row = true, second = transpose;
    saved.out = copies(linear.precision, output, local, linear.in, row, second);
    norm(linear.name + " norm", true, local, linear.in, NormOutput::fp8);
    if (second) w_.launch(output + " transpose", {"transpose.fp8", {local, linear.in}});
  } else {
    normed = w_.allocate(output, 2 * local * linear.in);
    // The norm kernel also takes the maximum, unless an adapter asks for its output (return_layernorm_output); the bf16
    // output lives until the cast.
    const bool fused = linear.precision.recipe == Recipe::tensorwise && linear.rank == 0;
    norm(linear.name + " norm", true, local, linear.in, fused ? NormOutput::with_maximum : NormOutput::plain);
    if (linear.fp8())
      saved.out = quantize(linear.precision, output, local, linear.in, true, transpose, linear.rank > 0, shard);
    else if (linear.rank == 0)
      saved.out.data = normed;
    if (linear.fp8() && linear.rank == 0) w_.free(normed);
  }
  // Frozen weights need no input, but TE keeps the norm's output where an adapter asks for it
  // (layernorm_linear.py:427): besides what the adapter holds, the FP8 operand and, where the adapter gathers, this
  // rank's rows.
  const bool kept = grad && (!linear.frozen || (linear.rank > 0 && !linear.ends));
  auto out = column_product(linear, owner, saved.out, kept);
  if (!kept) saved.out = {};
  out = adapt(linear, out, owner, normed, saved.adapted, grad);
  if (linear.rank > 0 && d_.sp && d_.t > 1) {
    if (kept && !linear.fp8())
      saved.out.data = normed;
    else
      w_.free(normed);
  }
  if (!grad || linear.ends) w_.release(saved.statistics);
  if (!grad) saved = {};
  return out;
}

std::uint32_t LinearWriter::column_linear(const Linear& linear, const std::string& owner, Operand& saved, bool grad,
                                          bool keeps_original) {
  const bool shard = gathers(linear);
  if (linear.fp8())
    saved =
        quantize(linear.precision, linear.name + "_input", d_.local, linear.in, true,
                 grad && second_copy_now(linear.precision, shard) && !keeps_original && !linear.frozen, true, shard);
  const auto out = column_product(linear, owner, saved, grad && !(linear.fp8() && keeps_original) && !linear.frozen);
  if (linear.frozen) saved = {};
  return out;
}

std::uint32_t LinearWriter::column_backward(const Linear& linear, Operand& saved, bool keeps_original,
                                            std::uint32_t din) {
  Operand gradient;
  const bool shard = gathers(linear);
  if (linear.fp8())
    gradient = quantize(linear.precision, linear.name + "_gradient", rows(linear), linear.out, true, !linear.frozen);
  if (linear.fp8() && keeps_original && !linear.frozen)
    saved = quantize(linear.precision, linear.name + "_input", d_.local, linear.in,
                     !second_copy_now(linear.precision, shard), second_copy_now(linear.precision, shard), true, shard);
  Operand gathered;
  const Int bytes = gathered_bytes(linear, linear.in, linear.precision.gathers_second_copy());
  if (shard && !linear.frozen) {  // for the weight gradient
    if (!d_.local_spec) gathered.data = w_.allocate(linear.name + "_gathered_input", bytes);
    gather(linear, linear.name + " all-gather in backward", bytes, Stream::communication);
    if (d_.tp_overlap) w_.within_call(launches_of_bulk_gather);
  }
  const Int full_bytes = 2 * rows(linear) * linear.in;
  if (din == no_tensor) din = w_.tensor(linear.name + "_input_gradient", full_bytes);
  w_.allocate(din);
  const auto& held = d_.overlap_multiprocessors;
  const Margin margin(sm_share_, left_by(of_mlp(linear) ? held.fc1_dgrad : held.qkv_dgrad));
  gemm(linear, Product::dgrad);
  std::uint32_t full = no_tensor;
  if (shard) {
    if (!linear.frozen) w_.wait(Stream::communication);
    full = din;
    din = w_.allocate(linear.name + "_input_gradient", 2 * d_.local * linear.in);
    w_.collective(Purpose::tp, linear.name + " reduce-scatter in backward", "reduce_scatter", d_.t, full_bytes,
                  d_.tp_link, Stream::communication);
    if (d_.tp_overlap) w_.within_call(1);
    if (linear.fp8() && !linear.frozen && linear.precision.joins_gathered_second_copy())
      gathered.data = joined(linear.name + " gathered input", gathered.data, linear.name + "_gathered_input", bytes);
    if (linear.fp8() && !linear.frozen && transposes_gathered(linear.precision)) {
      gathered.transpose = w_.allocate(linear.name + "_gathered_input", bytes);
      w_.launch(linear.name + " input transpose", {"transpose.fp8", {d_.tokens, linear.in}});
    }
  } else if (reduces(linear)) {
    w_.collective(Purpose::tp, linear.name + " all-reduce in backward", "all_reduce", d_.t, full_bytes, d_.tp_link,
                  Stream::communication);
  }
  weight_gradients.put(
      [=, this, share = left_by(of_mlp(linear) ? held.fc1_wgrad : held.qkv_wgrad), saved = std::exchange(saved, {})] {
        weight_gradient(linear, share);
        release(gathered);
        release(gradient);
        release(saved);
      });
  if (reduces(linear)) w_.wait(Stream::communication);
  if (shard && d_.tp_overlap)  // dgrad = ub_obj_wgrad.get_buffer(local_chunk=True).clone()
    w_.launch(linear.name + " reduce-scatter in backward taken", {"copy.d2d", {2 * d_.local * linear.in}});
  w_.free(full);
  return din;
}

std::uint32_t LinearWriter::norm_backward(const std::string& name, std::uint32_t statistics, std::uint32_t dout,
                                          Int rows, Int cols, std::uint32_t din) {
  if (din == no_tensor) din = w_.tensor(name + "_input_gradient", 2 * rows * cols);
  w_.allocate(din);
  const auto dgamma = w_.allocate_gradient(2 * cols * (d_.rms_norm ? 1 : 2));
  w_.transient("workspace", (d_.rms_norm ? rms_ctas : 2 * layer_norm_ctas) * d_.gpu.multiprocessors * cols * 4);
  norm(name, false, rows, cols);
  if (w_.graphed() && !d_.frozen())
    w_.returns(2 * cols * (d_.rms_norm ? 1 : 2), name + " gradient accumulation", {"small", {}});
  else if (!d_.frozen())
    w_.launch(name + " gradient accumulation", {"small", {}});
  w_.free({statistics, dout});
  w_.free(dgamma);
  return din;
}

std::uint32_t LinearWriter::norm_linear_backward(const Linear& linear, Normed& saved, std::uint32_t dout) {
  const auto through_adapter = adapt_backward(linear, saved.adapted);
  if (linear.ends) {
    w_.free(dout);
    saved = {};
    return no_tensor;
  }
  auto dnorm = column_backward(linear, saved.out);
  if (through_adapter != no_tensor) {
    const auto sum = w_.allocate(linear.name + "_input_gradient", 2 * d_.local * linear.in);
    w_.launch(linear.name + " adapter gradient added", {"add", {d_.local * linear.in}});
    w_.free({std::exchange(dnorm, sum), through_adapter});
  }
  const auto din = norm_backward(linear.name + " norm", saved.statistics, dnorm, d_.local, linear.in);
  weight_gradients.put([dout, this] { w_.free(dout); });
  saved = {};
  return din;
}

std::uint32_t LinearWriter::row_linear(const Linear& linear, const std::string& owner, Operand& saved, bool grad,
                                       bool keeps_original) {
  if (linear.fp8()) {
    saved = quantize(linear.precision, linear.name + "_input", d_.tokens, linear.in, true,
                     grad && !keeps_original && !linear.frozen);
    cast_weight(linear);
  }
  const Int full = 2 * d_.tokens * linear.out;
  auto out = d_.sp ? gathered_buffer(linear.name + "_partial_output", full) : w_.allocate(owner, full);
  if (d_.sp && d_.tp_overlap) {
    const auto& held = d_.overlap_multiprocessors;
    const bool ring = (of_mlp(linear) ? held.fc2_forward : held.proj_forward) == 1;
    overlap_ = {ring ? Overlap::ring_scatter : Overlap::pipelined_scatter, linear.name + " reduce-scatter", full};
  }
  gemm(linear, Product::forward);
  if (d_.sp) {
    const auto partial = out;
    out = w_.allocate(owner, 2 * d_.local * linear.out);
    scatter_after(linear.name + " reduce-scatter", full);
    w_.free(partial);
  } else if (d_.t > 1) {
    w_.collective(Purpose::tp, linear.name + " all-reduce", "all_reduce", d_.t, 2 * d_.tokens * linear.out, d_.tp_link);
  }
  const bool serves_backward =
      linear.fp8() && grad && !keeps_original && !linear.frozen && saved.transpose == no_tensor;
  if (!serves_backward) w_.release(saved.data);
  return out;
}

std::uint32_t LinearWriter::row_backward(const Linear& linear, Operand& saved, bool keeps_original) {
  Operand gradient;
  const Int bytes = gathered_bytes(linear, linear.out, false);
  if (linear.fp8())
    gradient = quantize(linear.precision, linear.name + "_gradient", d_.local, linear.out, true,
                        !linear.frozen && second_copy_now(linear.precision, d_.sp), true, d_.sp);
  if (d_.sp) {
    const auto local = gradient;
    // Copies scaled by blocks are gathered both (TE pytorch/distributed.py, _all_gather_mxfp8).
    const bool both = linear.fp8() && linear.precision.gathers_second_copy();
    const Int second = both ? gathered_bytes(linear, linear.out, true) : 0;
    gradient.data = gathered_buffer(linear.name + "_gathered_gradient", bytes);
    gradient.transpose = both ? w_.allocate(linear.name + "_gathered_gradient", second) : no_tensor;
    gather_before(linear, linear.name + " all-gather in backward", bytes + second);
    release(local);
    if (both && linear.precision.joins_gathered_second_copy())
      gradient.transpose =
          joined(linear.name + " gathered gradient", gradient.transpose, linear.name + "_gathered_gradient", second);
  }
  // What userbuffers gather beside the dgrad is whole after it.
  const auto transpose_gradient = [&] {
    if (!d_.sp || !linear.fp8() || linear.frozen || !transposes_gathered(linear.precision)) return;
    gradient.transpose = w_.allocate(linear.name + "_gathered_gradient", bytes);
    w_.launch(linear.name + " gradient transpose", {"transpose.fp8", {d_.tokens, linear.out}});
  };
  if (!d_.tp_overlap) transpose_gradient();
  if (linear.fp8() && keeps_original && !linear.frozen)
    saved = quantize(linear.precision, linear.name + "_input", d_.tokens, linear.in, true, true);
  const auto din = w_.allocate(linear.name + "_input_gradient", 2 * d_.tokens * linear.in);
  gemm(linear, Product::dgrad);
  if (d_.tp_overlap) transpose_gradient();
  weight_gradients.put([=, this, saved = std::exchange(saved, {})] {
    weight_gradient(linear, left_by(0));
    release(gradient);
    release(saved);
  });
  return din;
}

}  // namespace pipewright::model
