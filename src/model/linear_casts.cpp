// What quantized layers cast, with which kernels of Transformer Engine, and the copies that the casts write.
#include <utility>

#include "linear.hpp"

namespace pipewright::model {
namespace {

/// Kernels behind a cast of its own call: a maximum is cleared, taken, made a scale; NVFP4's is cleared, taken, copied
/// for the second copy, and then the cast (TE pytorch/csrc/quantizer.cpp).
int launches_of(const profile::Key& cast) {
  if (cast.family == "quantize.nvfp4") return 4;
  return cast.family == "amax" ? 3 : 1;
}

/// TE common/transpose/cast_transpose.cu: kernels that are compiled for a size need whole tiles of a warp's threads in
/// either direction; anything else is cast by one for all sizes.
bool fills_no_tiles(Int rows, Int cols) { return rows % tile_of_casts != 0 || cols % tile_of_casts != 0; }
profile::Key cast_transpose(Int rows, Int cols, bool off_tiles) {
  return {off_tiles ? "cast_transpose.fp8.general" : "cast_transpose.fp8", {rows, cols}};
}

}  // namespace

// `shard`: a part of a sequence-parallel tensor. Current scaling and NVFP4 take the maximum over all parts, so that the
// gathered tensor has one scale (TE pytorch/module/layernorm_linear.py:234, linear.py:810-825 and
// _customize_quantizers_nvfp4: amax reduction group); NVFP4's cast has two, of rows and of mixed columns.
Operand LinearWriter::quantize(const Precision& precision, const std::string& name, Int rows, Int cols, bool row,
                               bool transpose, bool with_amax, bool shard) {
  const Operand result = copies(precision, name, rows, cols, row, transpose);
  const bool current = precision.recipe == Recipe::tensorwise;
  if (with_amax && current) w_.launch(name + " amax", {"amax", {rows * cols}});
  if (shard && precision.shares_maximum()) {
    // quantizer.cpp of TE calls allreduce_coalesced(...)->wait(): on the communicator's own stream.
    const Int maxima = precision.recipe == Recipe::nvfp4 && row && transpose ? 2 : 1;
    w_.collective(Purpose::tp, name + " amax all-reduce", "all_reduce", d_.t, maxima * Int{sizeof(float)}, d_.tp_link,
                  Stream::communication);
    w_.wait(Stream::communication);
  }
  launch_all(casts(precision, name, rows, cols, row, transpose, fills_no_tiles(rows, cols)));
  // The first kernel of a call carries the Python before it: with delayed scaling the cast, as no maximum is taken.
  if (with_amax && precision.recipe == Recipe::delayed) w_.on_host("quantize.delayed");
  return result;
}

// TE csrc/extensions/cast.cpp: one kernel for all with delayed scaling and both copies (multi_tensor_quantize_impl) and
// in NVFP4, maxima and casts alike (from 2.12 on, split_quantize_nvfp4_impl: 64 experts of rows in whole blocks of
// 128), else one expert after the other, in one call. Before the first the host makes every expert's quantized tensors
// ready.
Operand LinearWriter::quantize_each(const Precision& precision, const std::string& name, Int experts, Int rows,
                                    Int cols, bool row, bool transpose) {
  const Recipe recipe = precision.recipe;
  const bool at_once = (recipe == Recipe::delayed && transpose) || recipe == Recipe::nvfp4;
  const Int of_one = at_once ? rows : (rows + experts - 1) / experts;
  Casts all;
  if (recipe == Recipe::tensorwise) all.push_back({name + " amax", {"amax", {of_one * cols}}});
  const std::size_t maxima = all.size();
  const Operand result = copies(precision, name, rows, cols, row, transpose);
  const Int off = row && transpose && precision.per_tensor() && !at_once ? d_.moe.off_tiles : 0;
  for (auto& cast : casts(precision, name, of_one, cols, row, transpose, off == experts))
    all.push_back(std::move(cast));
  const std::span<const NamedKey> kernels = all;
  launch_all(kernels.first(1));
  w_.on_host("quantize.grouped");
  w_.stands_for(static_cast<int>(experts));
  launch_all(kernels.subspan(1));
  if (at_once) return result;
  const Int apart = off < experts ? off : 0;
  launch_others(kernels.first(maxima), experts - 1, other_experts);
  launch_others(kernels.subspan(maxima), experts - 1 - apart, other_experts);
  launch_others(casts(precision, name, of_one, cols, row, transpose, true), apart,
                " of experts whose rows fill no tiles");
  return result;
}

/// The same for `others` more experts, `which` they are, within the call that launched the first.
void LinearWriter::launch_others(std::span<const NamedKey> casts, Int others, std::string_view which) {
  if (others <= 0) return;
  for (const auto& [name, key] : casts) {
    Kernel kernel;
    kernel.name = name + std::string(which);
    kernel.share = static_cast<double>(others);
    kernel.launches = static_cast<int>(others) * launches_of(key);
    kernel.within_call = true;
    kernel.key = key;
    w_.launch(std::move(kernel));
  }
}

/// The tensors; one copy serves every product where both are not needed.
Operand LinearWriter::copies(const Precision& p, const std::string& name, Int rows, Int cols, bool& row,
                             bool& transpose) {
  Operand result;
  if (!p.two_copies()) {
    row |= transpose;
    transpose = false;
  }
  if (row) result.data = w_.allocate(name + "_fp8", p.copy_bytes(rows, cols, false));
  if (transpose) result.transpose = w_.allocate(name + "_fp8_transpose", p.copy_bytes(rows, cols, true));
  return result;
}

LinearWriter::Casts LinearWriter::casts(const Precision& p, const std::string& name, Int rows, Int cols, bool row,
                                        bool transpose, bool off_tiles) {
  if (!p.per_tensor()) return casts_by_block(p, name + " quantize", rows, cols, row && transpose);
  if (transpose) return {{name + " cast", cast_transpose(rows, cols, off_tiles)}};
  return {{name + " cast", {"cast.fp8", {rows * cols}}}};
}

/// A kernel that makes one copy only reads as much and writes half.
LinearWriter::Casts LinearWriter::casts_by_block(const Precision& p, const std::string& name, Int rows, Int cols,
                                                 bool both) {
  const Recipe recipe = p.recipe;
  if (recipe == Recipe::blockwise) return {{name, {"quantize.blockwise.fp8", {rows, cols}}}};
  if (both) return {{name, {recipe == Recipe::mxfp8 ? "quantize.mxfp8" : "quantize.nvfp4", {rows, cols}}}};
  Casts result;
  if (recipe == Recipe::nvfp4) result.push_back({name + " amax", {"amax", {rows * cols}}});
  result.push_back({name, {"cast.fp8", {rows * cols}}});
  return result;
}

void LinearWriter::launch_all(std::span<const NamedKey> casts) {
  for (const auto& [name, key] : casts) w_.launch(name, key);
}

void LinearWriter::cast_weight(const Linear& linear, Int experts) {
  if (!linear.fp8()) return;
  const Precision& p = linear.precision;
  const bool parameters = d_.fp8_parameters && !linear.bf16_weight;
  const bool transposes = p.per_tensor() ? p.two_copies() : p.recipe == Recipe::nvfp4;
  if (parameters && !transposes) return;  // both copies are the parameter's own
  // Frozen ones were transposed before the first step, kept ones by Megatron-FSDP's hooks.
  if (parameters && (linear.frozen || d_.transposing_forwards == 0)) return;
  const bool every_time = !d_.fp8_cached_weights && !parameters;
  if (w_.recomputes() && !every_time) return;  // done in the forward pass
  if (!every_time) w_.microbatches(0, parameters ? d_.transposing_forwards : 1);
  Casts casts;
  if (parameters) {
    // NVFP4's are half a byte and a scale for 16 (post_all_gather_processing, _nvfp4_2d_multi_tensor_transpose).
    const Int in = p.recipe == Recipe::nvfp4 ? linear.in / 2 + linear.in / 16 : linear.in;
    casts = {{linear.name + " weight transpose", {"transpose.fp8", {linear.out, in}}}};
  } else if (!p.per_tensor()) {
    casts = casts_by_block(p, linear.name + " weight cast", linear.out, linear.in, true);
  } else {
    if (p.recipe == Recipe::tensorwise)
      casts.push_back({linear.name + " weight amax", {"amax", {linear.out * linear.in}}});
    casts.push_back({linear.name + " weight cast",
                     p.two_copies() ? cast_transpose(linear.out, linear.in, fills_no_tiles(linear.out, linear.in))
                                    : profile::Key{"cast.fp8", {linear.out * linear.in}}});
  }
  launch_all(casts);
  launch_others(casts, experts - 1, other_experts);
  w_.microbatches();
}

}  // namespace pipewright::model
