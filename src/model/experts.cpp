// n rows, width h, expert FFN width f, bf16. Kept for backward: rows [2 n h], fc1's output [4 n f], its activation [2 n
// f] and what that keeps (not with recompute of moe_act). fc1's bias is added by its GEMM, its gradient made by that of
// the weight gradient; fc2's is multiplied by the probability (experts.py:313):
//
//   out [2 n h] -expert by expert, fp32-> out + b p [4 n h] -joined-> [4 n h] -cast-> [2 n h]
// TE runs the GEMMs of a group on four streams; a group is one kernel here. FP8:
// rows are padded for every expert, casts are made expert by expert.
#include "experts.hpp"

#include <numeric>
#include <utility>
#include <vector>

namespace pipewright::model {

LocalExperts::LocalExperts(PieceBuilder& builder, const Dimensions& dimensions)
    : w_(builder),
      d_(dimensions),
      linear_(builder, dimensions),
      offload_(builder, dimensions),
      fc1_{"experts.fc1", d_.moe.width, d_.moe.fc1_out(d_.gated)},
      fc2_{"experts.fc2", d_.moe.f, d_.moe.width} {}

std::uint32_t LocalExperts::make_gradient(const Group& group, std::string& family, bool fp8) {
  if (d_.fused_gradients) {
    family += d_.fsdp ? fp8 ? ".out_bf16" : "" : d_.gradient_bytes == 4 ? ".acc_f32" : ".acc_bf16";
    return no_tensor;
  }
  if (fp8) family += ".out_bf16";
  return w_.allocate_gradient(2 * d_.moe.local * group.in * group.out);
}

void LocalExperts::accumulate(const Group& group, std::uint32_t gradient) {
  if (d_.bias) {
    w_.launch(group.name + " bias gradient accumulation", {"moe.bias.accumulate", {d_.moe.local, group.out}});
    w_.stands_for(static_cast<int>(d_.moe.local));
  }
  if (gradient == no_tensor) return;
  w_.launch(group.name + " gradient accumulation", accumulation(d_, d_.moe.local * group.in * group.out));
  w_.stands_for(static_cast<int>(d_.moe.local));
  w_.free(gradient);
}

Experts::Experts(PieceBuilder& builder, const Dimensions& dimensions, const Precision& precision, bool ends)
    : LocalExperts(builder, dimensions),
      precision_(precision),
      fp8_(precision.quantized()),
      act_(builder, dimensions, dimensions.moe.padded),
      fc1_adapter_{.name = fc1_.name,
                   .in = fc1_.in,
                   .out = fc1_.out,
                   .frozen = dimensions.frozen(),
                   .rank = dimensions.lora.fc1,
                   .rows = rows(),
                   .ends = ends},
      fc2_adapter_{.name = fc2_.name,
                   .in = fc2_.in,
                   .out = fc2_.out,
                   .frozen = dimensions.frozen(),
                   .rank = dimensions.lora.fc2,
                   .rows = rows()} {}

Operand Experts::input(const Group& group, bool grad) {
  if (!fp8_) return {};
  auto operand = linear_.quantize_each(precision_, group.name + "_input", d_.moe.local, rows(), group.in, true,
                                       grad && !d_.frozen());
  const PieceBuilder::Varying weights_do_not(w_, 0);
  linear_.cast_weight(
      {.name = group.name, .in = group.in, .out = group.out, .precision = precision_, .frozen = d_.frozen()},
      d_.moe.local);
  return operand;
}

/// What the weight gradient reads: the second copy, or the only one.
std::uint32_t Experts::kept(const Operand& operand) {
  return operand.transpose != no_tensor ? operand.transpose : operand.data;
}

void Experts::drop_forward_copy(Operand& operand, bool grad) {
  if (!grad || d_.frozen() || operand.transpose != no_tensor) w_.release(operand.data);
}

/// cuBLAS' order of scales, where casts did not write it (precision.hpp): one kernel for an operand of all experts, 64
/// at a time, reads and writes them before the products (TE pytorch/csrc/extensions/swizzle.cpp,
/// multi_tensor_swizzle_scales_for_gemm).
void Experts::swizzled_scales(const Group& group, Product product) {
  const auto& p = precision_;
  if (!fp8_ || !p.scaled_by_block()) return;
  constexpr Int experts_a_kernel = 64;
  std::vector<Int> operands;
  if (product != Product::dgrad && !p.casts_order) operands.push_back(rows() * group.in);
  if (product != Product::forward && !p.casts_order) operands.push_back(rows() * group.out);
  if (product != Product::wgrad && !p.weights_ordered) operands.push_back(d_.moe.local * group.in * group.out);
  const Int all = std::accumulate(operands.begin(), operands.end(), Int{0});
  if (all > 0) w_.transient("workspace", all / p.scale_block());
  for (const Int elements : operands) {
    w_.launch("experts' swizzled scales", {"copy.d2d", {elements / p.scale_block()}});
    w_.stands_for(static_cast<int>((d_.moe.local + experts_a_kernel - 1) / experts_a_kernel));
    w_.within_call(1);
  }
}

/// In 16 bits each product clears cuBLAS's semaphores first; traced products in FP8 do not. In NVFP4 a kernel before
/// each makes the factor of its two tensors.
int Experts::launches() const {
  return static_cast<int>((fp8_ && precision_.recipe != Recipe::nvfp4 ? 1 : 2) * d_.moe.local);
}

void Experts::gemm(const Group& group, Product product) {
  const bool forward = product == Product::forward;
  const std::string family = fp8_      ? product_family(precision_.recipe, "gemm.grouped.", forward)
                             : forward ? "gemm.grouped.bf16.tn"
                                       : "gemm.grouped.bf16.nn";
  const Int n = forward ? group.out : group.in, k = forward ? group.in : group.out;
  swizzled_scales(group, product);
  w_.launch(group.name + suffix(product), {family, {d_.moe.local, rows(), n, k}}, d_.share_without(d_.left.products));
  w_.stands_for(launches());
}

void Experts::weight_gradient(const Group& group) {
  if (d_.frozen()) return;
  std::string family = fp8_ ? product_family(precision_.recipe, "gemm.grouped.", true) : "gemm.grouped.bf16.nt";
  const auto gradient = make_gradient(group, family, fp8_);
  swizzled_scales(group, Product::wgrad);
  w_.launch(group.name + " wgrad", {family, {d_.moe.local, rows(), group.out, group.in}},
            d_.share_without(d_.left.products));
  w_.stands_for(launches());
  w_.completes(static_cast<int>(d_.moe.local));
  if (d_.fused_gradients) w_.dummy_gradient(group.in, group.out);
  accumulate(group, gradient);
}

/// t + b p of every expert, joined (experts.py, _apply_bias): in fp32 and cast back where the probabilities p are wider
/// than rows, else in 16 bits. Takes over `out`.
std::uint32_t Experts::add_bias(std::uint32_t out) {
  const bool wide = !d_.moe.weighs_in_16_bits();
  const Int n = rows() * d_.moe.width, bytes = wide ? 4 * n : 2 * n;
  std::vector<std::uint32_t> sums;
  for (Int expert = 0; expert < d_.moe.local; ++expert) {
    const auto product = w_.allocate("experts.biased_output", bytes / d_.moe.local);
    sums.push_back(w_.allocate("experts.biased_output", bytes / d_.moe.local));
    w_.free(product);
  }
  const auto joined = w_.allocate(wide ? "experts.biased_output" : "experts.fc2_output", bytes);
  bias_chain("experts.fc2 bias", "moe.bias.forward", 2 * d_.moe.local + (wide ? 2 : 1));
  for (const auto sum : sums) w_.free(sum);
  if (!wide) {
    w_.free(out);
    return joined;
  }
  const auto biased = w_.allocate("experts.fc2_output", 2 * n);
  w_.free({joined, out});
  return biased;
}

/// Profiles have the chains in fp32; in 16 bits they move half as much.
void Experts::bias_chain(const char* name, const char* family, Int launches) {
  Kernel kernel;
  kernel.name = name;
  kernel.key = {family, {d_.moe.local, rows(), d_.moe.width}};
  kernel.share = d_.moe.weighs_in_16_bits() ? 0.5 : 1;
  w_.launch(std::move(kernel));
  w_.stands_for(static_cast<int>(launches));
}

/// The hook of each bias adds its gradient to the main one; fc2's have waited for the weight gradients' turn.
/// Takes over `dout`; one expert's products at a time. In 16 bits an expert's rows have a view of `dout` as gradient.
std::uint32_t Experts::bias_backward(std::uint32_t dout) {
  const bool wide = !d_.moe.weighs_in_16_bits();
  const Int n = rows() * d_.moe.width, of_one = n / d_.moe.local;
  const auto cast = wide ? w_.allocate("experts.fc2_gradient", 4 * n) : dout;
  if (wide) w_.free(dout);
  std::vector<std::uint32_t> parts;
  for (Int expert = 0; expert < d_.moe.local; ++expert) {
    if (wide) parts.push_back(w_.allocate("experts.fc2_gradient", 2 * of_one));
    const auto of_bias = w_.allocate("experts.fc2_bias_gradient", (wide ? 4 : 2) * of_one);
    w_.transient("experts.fc2_bias_gradient", (wide ? 4 : 2) * of_one);
    w_.free(of_bias);
  }
  bias_chain("experts.fc2 bias backward", "moe.bias.backward", (wide ? 6 : 4) * d_.moe.local + (wide ? 2 : 1));
  if (wide) w_.free(cast);
  const auto joined = w_.allocate("experts.fc2_gradient", 2 * n);
  for (const auto part : parts) w_.free(part);
  if (!wide) w_.free(cast);
  return joined;
}

void offload_fused(OffloadWriter& offload, const Dimensions& d, std::uint32_t fc1_input, std::uint32_t fc1_out,
                   std::uint32_t fc2_input) {
  const auto& marked = d.op_offload;
  const bool all = !marked.fc1_op && !marked.activation_op;
  if (all || marked.fc1_op.value_or(false)) offload.saves(Offload::fused_group_mlp, {fc1_input});
  if (all || marked.activation_op.value_or(false)) offload.saves(Offload::fused_group_mlp, {fc1_out, fc2_input});
  offload.commit(Offload::fused_group_mlp);
}

/// experts.py:770-793: rows times their probability, in fp32 unless probabilities have 16 bits, cast back; both are
/// kept.
std::uint32_t Experts::weigh_input(std::uint32_t rows_in, bool grad) {
  const Int n = rows() * d_.moe.width;
  auto weighted = no_tensor;
  if (d_.moe.weighs_in_16_bits()) {
    weighted = weighed_input().forward("experts.weighted_input");
  } else {
    const auto wide = w_.allocate("experts.weighted_input", 4 * n);
    w_.launch("experts input x probability", {"cast.bf16_f32", {n}});
    w_.eager();
    weighted = w_.allocate("experts.weighted_input", 2 * n);
    w_.launch("experts weighted input cast", {"cast.f32_bf16", {n}});
    w_.free(wide);
  }
  if (grad) {
    unweighted_ = rows_in;
  } else if (pads()) {
    w_.free(rows_in);
  }
  return weighted;
}

std::uint32_t Experts::weigh_input_backward(std::uint32_t gradient) {
  const Int n = rows() * d_.moe.width;
  if (d_.moe.weighs_in_16_bits()) {
    const auto rows_gradient = weighed_input().backward("experts.input_gradient", gradient);
    w_.free(std::exchange(unweighted_, no_tensor));
    return rows_gradient;
  }
  const auto wide = w_.allocate("experts.weighted_input_gradient", 4 * n);
  w_.launch("experts weighted input cast backward", {"cast.bf16_f32", {n}});
  w_.free(gradient);
  const auto scaled = w_.allocate("experts.weighted_input_gradient", 4 * n);
  w_.launch("experts input x probability backward", {"scale", {n}});
  w_.eager();
  const auto products = w_.allocate("moe.probs_gradient", 4 * n);
  w_.launch("experts probability gradient", {"add.f32", {n}});
  w_.eager();
  w_.launch("experts probability gradient sum", {"l2norm", {n}});
  w_.eager();
  w_.free({products, wide});
  const auto rows_gradient = w_.allocate("experts.input_gradient", 2 * n);
  w_.launch("experts input gradient cast", {"cast.f32_bf16", {n}});
  w_.free({scaled, std::exchange(unweighted_, no_tensor)});
  return rows_gradient;
}

std::uint32_t Experts::forward(std::uint32_t arrived, bool grad) {
  const PieceBuilder::Varying rows_vary(w_, d_.moe.row_spread);
  auto rows_in = arrived;
  if (pads()) {
    rows_in = w_.allocate("experts.padded_rows", 2 * rows() * d_.moe.width);
    w_.launch("experts padding", {"copy.d2d", {2 * rows() * d_.moe.width}});
  }
  if (d_.moe.probs_on_input) rows_in = weigh_input(rows_in, grad && !fc1_adapter_.ends);
  offload_.begin(Offload::fused_group_mlp, grad);
  offload_.begin(Offload::expert_fc1, grad);
  fc1_input_ = input(fc1_, grad);
  fc1_out_ = w_.allocate("experts.fc1_output", 2 * rows() * fc1_.out);
  gemm(fc1_, Product::forward);
  drop_forward_copy(fc1_input_, grad);
  fc1_out_ = linear_.adapt(fc1_adapter_, fc1_out_, "experts.fc1_output", no_tensor, fc1_adapted_, grad);
  offload_.saves(Offload::expert_fc1, {fp8_ ? kept(fc1_input_) : rows_in});
  offload_.commit(Offload::expert_fc1);
  offload_.begin(Offload::moe_act, grad);
  activation_ = act_.forward(grad && !d_.recomputes(Recompute::moe_act));
  const bool recomputes = d_.recomputes(Recompute::moe_act);
  fc2_input_ = input(fc2_, grad && !recomputes);
  auto out = w_.allocate("experts.fc2_output", 2 * rows() * fc2_.out);
  gemm(fc2_, Product::forward);
  drop_forward_copy(fc2_input_, grad && !recomputes);
  out = linear_.adapt(fc2_adapter_, out, "experts.fc2_output", no_tensor, fc2_adapted_, grad);
  offload_.saves(Offload::moe_act, {fc1_out_});  // committed after fc2 only (experts.py:895-900)
  offload_.commit(Offload::moe_act);
  if (grad)
    offload_fused(offload_, d_, fp8_ ? kept(fc1_input_) : rows_in, fc1_out_,
                  recomputes ? no_tensor
                  : fp8_     ? kept(fc2_input_)
                             : activation_);
  if (recomputes) w_.release(activation_);  // discard_output_and_register_recompute
  auto result = d_.bias ? add_bias(out) : out;
  if (pads()) {
    const auto unpadded = w_.allocate("experts.output", 2 * d_.moe.received * d_.moe.width);
    w_.launch("experts unpadding", {"copy.d2d", {2 * d_.moe.received * d_.moe.width}});
    w_.free(result);
    result = unpadded;
  }
  // The function's variables live until it returns, the caller's longer. Weight gradients and adapters read what the
  // groups multiply; FP8 keeps casts for the former.
  const bool original = !fp8_ && !d_.frozen(), adapts = grad && fc1_adapter_.rank > 0;
  const bool keeps_rows = grad && (adapts || original);
  if (!grad) w_.free(std::exchange(fc1_out_, no_tensor));
  if (!grad || (!original && fc2_adapter_.rank == 0)) w_.release(activation_);
  if (keeps_rows) (adapts ? adapter_input_ : fc1_input_.data) = rows_in;
  if (!keeps_rows && rows_in != arrived) w_.free(rows_in);
  if (arrived != unweighted_ && !(keeps_rows && rows_in == arrived)) unneeded_ = arrived;
  return result;
}

std::uint32_t Experts::backward(std::uint32_t dout) {
  const PieceBuilder::Varying rows_vary(w_, d_.moe.row_spread);
  offload_.needed(Offload::fused_group_mlp);
  offload_.needed(Offload::moe_act);
  if (d_.recomputes(Recompute::moe_act)) {
    w_.recomputing(true);
    activation_ = act_.forward(true);
    if (fp8_ && !d_.frozen())
      fc2_input_ = linear_.quantize_each(precision_, "experts.fc2_input", d_.moe.local, rows(), fc2_.in, false, true);
    w_.recomputing(false);
  }
  auto padded = no_tensor;
  if (pads()) {
    padded = w_.allocate("experts.padded_gradient", 2 * rows() * d_.moe.width);
    w_.launch("experts padding", {"copy.d2d", {2 * rows() * d_.moe.width}});
  }
  if (d_.bias) {
    auto& biased = pads() ? padded : dout;
    biased = bias_backward(biased);
  }
  const auto through_fc2 = linear_.adapt_backward(fc2_adapter_, fc2_adapted_);
  Operand gradient;
  if (fp8_)
    gradient =
        linear_.quantize_each(precision_, "experts.fc2_gradient", d_.moe.local, rows(), fc2_.out, true, !d_.frozen());
  w_.free(padded);
  const auto dactivation = w_.allocate("experts.activation_gradient", 2 * rows() * d_.moe.f);
  gemm(fc2_, Product::dgrad);
  linear_.add_through(fc2_adapter_, through_fc2);
  const bool delays = linear_.weight_gradients.delays();
  const auto activation = std::exchange(activation_, no_tensor);
  linear_.weight_gradients.put([=, this, saved = std::exchange(fc2_input_, {})] {
    weight_gradient(fc2_);
    linear_.release(gradient);
    linear_.release(saved);
    w_.free(activation);
    if (!(delays && fp8_)) w_.free(dout);
  });
  if (delays && fp8_) w_.free(dout);  // its casts are enough

  const auto dfc1 = act_.backward(dactivation, std::exchange(fc1_out_, no_tensor));
  offload_.done(Offload::moe_act);
  offload_.needed(Offload::expert_fc1);

  const auto through_fc1 = linear_.adapt_backward(fc1_adapter_, fc1_adapted_);
  w_.release(adapter_input_);
  if (fc1_adapter_.ends) {
    w_.free(dfc1);
    return no_tensor;
  }
  Operand fc1_gradient;
  if (fp8_)
    fc1_gradient =
        linear_.quantize_each(precision_, "experts.fc1_gradient", d_.moe.local, rows(), fc1_.out, true, !d_.frozen());
  auto din = w_.allocate("experts.input_gradient", 2 * rows() * d_.moe.width);
  gemm(fc1_, Product::dgrad);
  linear_.add_through(fc1_adapter_, through_fc1);
  linear_.weight_gradients.put([=, this, saved = std::exchange(fc1_input_, {})] {
    weight_gradient(fc1_);
    linear_.release(fc1_gradient);
    linear_.release(saved);
    w_.free(dfc1);
  });
  offload_.done(Offload::expert_fc1);
  offload_.done(Offload::fused_group_mlp);
  if (d_.moe.probs_on_input) din = weigh_input_backward(din);
  if (pads()) {
    const auto whole = din;
    din = w_.allocate("experts.input_gradient", 2 * d_.moe.received * d_.moe.width);
    w_.launch("experts unpadding", {"copy.d2d", {2 * d_.moe.received * d_.moe.width}});
    w_.free(whole);
  }
  return din;
}

}  // namespace pipewright::model
