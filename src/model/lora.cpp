// LoRA adapters beside frozen linear layers, as Megatron Bridge's LoRALinear and ParallelLinearAdapter run them
// (src/megatron/bridge/peft/lora_layers.py, utils.py at 067f987df), with Megatron Core's own linear layers. Sequence of
// allocations and launches: recorded events and kernel traces of core_r0.19.0 with TE 2.20 (tests/measured/l_*.yaml).
//
//   x -in GEMM-> l [S, r] -out GEMM-> F -scale-> D     y + D -> Y     F goes when D exists, y and D when Y does
//
// x is what the frozen layer multiplies: the output of its fused norm, or the caller's tensor. Saved: x, l. Backward:
// the scaled gradient, l's gradient, both weight gradients, and x's gradient, which is added to the frozen layer's.
//
// Beside grouped experts one adapter serves all of a rank's (share_expert_adapters), on their rows; a hook sums its
// gradients over the expert-parallel ranks.
//
// Tensor parallel, beside a column-parallel layer: r is split and l gathered, out is split like the layer. Beside a
// row-parallel one: in is split and l all-reduced; the hidden width is split over the ranks, gathered, and cut to the
// rank's part of the sequence.
#include <utility>

#include "linear.hpp"

namespace pipewright::model {
namespace {

constexpr const char *forward_gemm = "gemm.lora.bf16.tn", *dgrad_gemm = "gemm.lora.bf16.nn",
                     *wgrad_gemm = "gemm.lora.bf16.nt";

}  // namespace

void LinearWriter::adapter_wgrad(const Linear& linear, Int in, Int out) {
  w_.launch(linear.name + " adapter wgrad", {wgrad_gemm, {in, out, rows(linear)}});
  const auto gradient = d_.fused_gradients ? no_tensor : w_.allocate_gradient(2 * in * out);
  if (linear.rows > 0 && d_.lora.syncs_experts)
    w_.collective(Purpose::ep, linear.name + " adapter gradient all-reduce", "all_reduce", d_.moe.ep, 2 * in * out,
                  d_.moe.ep_link);
  if (d_.fused_gradients) return;
  w_.free(gradient);
  w_.launch(linear.name + " adapter gradient accumulation", {"add.f32", {in * out}});
}

std::uint32_t LinearWriter::adapt(const Linear& linear, std::uint32_t y, const std::string& owner, std::uint32_t normed,
                                  Adapted& saved, bool grad) {
  if (linear.rank == 0) return y;
  const bool column = !linear.row, split = d_.t > 1 && linear.rows == 0;
  const Int r = linear.rank, tokens = rows(linear), low_bytes = 2 * tokens * r;
  saved.input = normed;
  if (column && d_.sp && split) {
    // TE returns the gathered output of its norm, but not what userbuffers gathered; shared experts have no norm.
    saved.gathers = d_.tp_overlap || normed == no_tensor;
    saved.input = w_.allocate(linear.name + "_adapter_input", 2 * tokens * linear.in);
    if (saved.gathers)
      w_.collective(Purpose::tp, linear.name + " adapter all-gather", "all_gather", d_.t, 2 * tokens * linear.in,
                    d_.tp_link);
  }
  saved.low = w_.allocate(linear.name + "_adapter_low", low_bytes);
  const Int own_rank = column && split ? r / d_.t : r, own_out = column || !split ? linear.out : linear.out / d_.t;
  w_.launch(linear.name + " adapter in", {forward_gemm, {own_rank, tokens, linear.in}});
  if (split)
    w_.collective(Purpose::tp, linear.name + " adapter low", column ? "all_gather" : "all_reduce", d_.t, low_bytes,
                  d_.tp_link);
  auto full = w_.allocate(linear.name + "_adapter_output", 2 * tokens * own_out);
  w_.launch(linear.name + " adapter out", {forward_gemm, {own_out, tokens, r}});
  Int elements = tokens * linear.out;
  if (!column && split) {
    const auto whole = w_.allocate(linear.name + "_adapter_output", 2 * elements);
    w_.collective(Purpose::tp, linear.name + " adapter gather", "all_gather", d_.t, 2 * elements, d_.tp_link);
    w_.free(std::exchange(full, whole));
    if (d_.sp) {
      elements = d_.local * linear.out;
      const auto part = w_.allocate(linear.name + "_adapter_output", 2 * elements);
      w_.launch(linear.name + " adapter part", {"copy.d2d", {2 * elements}});
      w_.free(std::exchange(full, part));
    }
  }
  const auto scaled = w_.allocate(linear.name + "_adapter_output", 2 * elements);
  w_.launch(linear.name + " adapter scale", {"copy.d2d", {2 * elements}});
  w_.free(full);
  const auto sum = w_.allocate(owner, 2 * elements);
  w_.launch(linear.name + " adapter added", {"add", {elements}});
  w_.eager();
  w_.free({y, scaled});
  if (!grad) {
    w_.free({saved.input, saved.low});
    saved = {};
  }
  return sum;
}

std::uint32_t LinearWriter::adapt_backward(const Linear& linear, Adapted& saved) {
  if (linear.rank == 0) return no_tensor;
  const bool column = !linear.row, split = d_.t > 1 && linear.rows == 0;
  const Int r = linear.rank, tokens = rows(linear);
  const Int own_rank = column && split ? r / d_.t : r, own_out = column || !split ? linear.out : linear.out / d_.t;
  Int elements = (column || !split ? tokens : d_.local) * linear.out;
  auto scaled = w_.allocate(linear.name + "_adapter_gradient", 2 * elements);
  w_.launch(linear.name + " adapter scale backward", {"copy.d2d", {2 * elements}});
  if (!column && split) {
    if (d_.sp) {
      const auto whole = w_.allocate(linear.name + "_adapter_gradient", 2 * tokens * linear.out);
      w_.collective(Purpose::tp, linear.name + " adapter gather backward", "all_gather", d_.t, 2 * tokens * linear.out,
                    d_.tp_link);
      w_.free(std::exchange(scaled, whole));
    }
    const auto part = w_.allocate(linear.name + "_adapter_gradient", 2 * tokens * own_out);
    w_.launch(linear.name + " adapter part backward", {"copy.d2d", {2 * tokens * own_out}});
    w_.free(std::exchange(scaled, part));
  }
  const auto dlow = w_.allocate(linear.name + "_adapter_low_gradient", 2 * tokens * r);
  w_.launch(linear.name + " adapter out dgrad", {dgrad_gemm, {r, tokens, own_out}});
  // Sums over ranks run beside the weight gradient, and input gradients are made whether anything needs them or not
  // (tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
  const auto beside_wgrad = [&](const char* name, const char* kind, Int bytes) {
    w_.collective(Purpose::tp, linear.name + name, kind, d_.t, bytes, d_.tp_link, Stream::communication);
  };
  if (split) beside_wgrad(" adapter low backward", "all_reduce", 2 * tokens * r);
  adapter_wgrad(linear, r, own_out);
  if (split) w_.wait(Stream::communication);
  w_.free({scaled, std::exchange(saved.low, no_tensor)});
  auto dx = w_.allocate(linear.name + "_adapter_input_gradient", 2 * tokens * linear.in), local = no_tensor;
  w_.launch(linear.name + " adapter in dgrad", {dgrad_gemm, {linear.in, tokens, own_rank}});
  const bool sums = column && split, scatters = sums && d_.sp && saved.gathers;
  if (scatters) {
    local = w_.allocate(linear.name + "_adapter_input_gradient", 2 * d_.local * linear.in);
    beside_wgrad(" adapter reduce-scatter", "reduce_scatter", 2 * tokens * linear.in);
  } else if (sums && !d_.sp) {
    beside_wgrad(" adapter in backward", "all_reduce", 2 * tokens * linear.in);
  }
  adapter_wgrad(linear, linear.in, own_rank);
  if (scatters || (sums && !d_.sp)) w_.wait(Stream::communication);
  w_.free(dlow);
  if (scatters)
    w_.free(std::exchange(dx, local));
  else if (sums && d_.sp)  // that of a gathered norm output that TE returned is not added (layernorm_linear.py:1134)
    w_.release(dx);
  w_.release(saved.input);
  if (linear.ends) w_.release(dx);
  return dx;
}

void LinearWriter::add_through(const Linear& linear, std::uint32_t through) {
  if (through == no_tensor) return;
  const Int tokens = linear.rows > 0 ? linear.rows : linear.row ? d_.tokens : d_.local;
  w_.launch(linear.name + " adapter gradient added", {"add", {tokens * linear.in}});
  w_.free(through);
}

}  // namespace pipewright::model
