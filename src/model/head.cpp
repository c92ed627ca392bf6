// Output layer and vocabulary-parallel cross entropy. Sequences of allocations from the recorded events of
// core_r0.19.0, with torch.compile's kernels of torch 2.11 and TE 2.20.2; formulas in reference 5.4.
//
//   forward:   GEMM -> logits bf16 [2 S V];  cast -> fp32 [4 S V], exponentiated in place and kept
//   backward:  gradient in place in fp32, cast to bf16 [2 S V];  dgrad;  wgrad
//
// The native fusion does the same, but torch.compile's calculate_predicted_logits and calculate_gradients
// (fused_cross_entropy.py) each work in a second fp32 copy [4 S V], freed as the kernel returns.
//
// TE's fused loss keeps instead (transformer_engine/pytorch/triton/cross_entropy.py): the gradient in the logits
// themselves before TE 2.18; an fp32 gradient in 2.18 and 2.19; since 2.20 a copy of the logits in their own type,
// which the backward pass overwrites with the gradient.
//
// In MXFP8 (fp8_output_proj; extensions/transformer_engine.py, TELMHeadColumnParallelLinear) it is a column-parallel
// layer of TE's, built outside the FP8 parameters' context: its weight is cast once a step, and its input's column-wise
// copy kept.
#include "head.hpp"

#include <utility>

namespace pipewright::model {
namespace {

std::string loss_family(const scenario::Scenario& s) {
  if (!s.settings.cross_entropy_loss_fusion) return "cross_entropy.unfused";
  return s.settings.cross_entropy_fusion_impl == "te" ? "cross_entropy.te" : "cross_entropy.native";
}

/// Transformer Engine's versions have kernels of their own.
void launch_loss(PieceBuilder& builder, const std::string& loss, const std::string& pass, Kept keeps,
                 const Dimensions& d) {
  std::string family = loss + "." + pass;
  if (loss == "cross_entropy.te") family += keeps == Kept::fp32 ? ".fp32" : keeps == Kept::logits_copy ? ".copy" : "";
  builder.launch("loss " + pass, {std::move(family), {d.tokens, d.vocab}});
}

/// What TE's loss leaves for its backward pass.
Kept kept_by_te(scenario::TeVersion version) {
  if (!version.at_least(2, 18)) return Kept::logits;
  return version.at_least(2, 20) ? Kept::logits_copy : Kept::fp32;
}

}  // namespace

profile::Key head_wgrad(const Dimensions& d) {
  if (d.fsdp) return {"gemm.bf16.nt", {d.h, d.vocab, d.tokens}};
  return {d.gradient_bytes == 4 ? "gemm.bf16.nt.acc_f32" : "gemm.bf16.nt.acc_bf16", {d.h, d.vocab, d.tokens}};
}

OutputLayer::OutputLayer(PieceBuilder& builder, const Dimensions& dimensions, const scenario::Scenario& scenario,
                         std::string name)
    : w_(builder),
      d_(dimensions),
      name_(std::move(name)),
      loss_(loss_family(scenario)),
      keeps_(loss_ == "cross_entropy.te" ? kept_by_te(scenario::te_version(scenario.software)) : Kept::fp32),
      works_in_copy_(loss_ == "cross_entropy.native"),
      linear_(builder, dimensions),
      projection_{.name = name_,
                  .in = dimensions.h,
                  .out = dimensions.vocab,
                  .precision = dimensions.precision,
                  .bf16_weight = true} {}

void OutputLayer::forward() { run(false); }
void OutputLayer::forward_of_depth() {
  again_ = true;
  run(true);
}

/// Bridge's gemma2_provider.py, logit_softcapping: c tanh(x / c), every operation a kernel; tanh keeps its result.
void OutputLayer::cap_logits() {
  const Int bytes = 2 * d_.tokens * d_.vocab;
  const auto scaled = w_.allocate(name_ + ".capped_logits", bytes);
  w_.launch(name_ + " logits scaled", {"copy.d2d", {bytes}});
  tanh_ = w_.allocate(name_ + ".logits_tanh", bytes);
  w_.launch(name_ + " logits tanh", {"copy.d2d", {bytes}});
  w_.free(scaled);
  const auto capped = w_.allocate(name_ + ".logits", bytes);
  w_.launch(name_ + " logits capped", {"copy.d2d", {bytes}});
  w_.free(std::exchange(logits_, capped));
}

void OutputLayer::cap_logits_backward() {
  const Int bytes = 2 * d_.tokens * d_.vocab;
  const auto step = [&](const char* what, profile::Key key) {
    const auto gradient = w_.allocate(name_ + ".logits_gradient", bytes);
    w_.launch(name_ + what, std::move(key));
    w_.free(std::exchange(logits_, gradient));
  };
  step(" logits capped backward", {"copy.d2d", {bytes}});
  step(" logits tanh backward", {"add", {bytes / 2}});
  w_.release(tanh_);
  step(" logits scaled backward", {"copy.d2d", {bytes}});
}

void OutputLayer::run(bool counts) {
  const Int count = d_.tokens * d_.vocab;
  // Sequence parallelism: the gathered input lies in Megatron's persistent global memory buffer (state.cpp).
  if (d_.sp) w_.collective(Purpose::tp, name_ + " all-gather", "all_gather", d_.t, 2 * d_.tokens * d_.h, d_.tp_link);
  if (d_.fp8_head) {
    logits_ = linear_.column_linear(projection_, name_ + ".logits", input_, true);
  } else {
    logits_ = w_.allocate(name_ + ".logits", 2 * count);
    w_.launch(name_ + " forward", {"gemm.bf16.tn", {d_.vocab, d_.tokens, d_.h}});
  }
  if (d_.caps_logits) cap_logits();
  if (keeps_ == Kept::fp32) kept_ = w_.allocate(name_ + ".softmax", 4 * count);
  if (keeps_ == Kept::logits_copy) kept_ = w_.allocate(name_ + ".logits_copy", 2 * count);
  // TE: maximum and sum of a row's exponentials in its place.
  mask_ = w_.allocate(name_ + ".target_mask", keeps_ == Kept::logits_copy ? 2 * 4 * d_.tokens : d_.tokens);
  target_ = w_.allocate(name_ + ".target", 8 * d_.tokens);
  // A row's maximum, its index, the target's logit twice.
  const auto maximum = w_.allocate(name_ + ".loss_rows", 4 * d_.tokens),
             index = w_.allocate(name_ + ".loss_rows", 8 * d_.tokens),
             predicted = w_.allocate(name_ + ".loss_rows", 2 * 4 * d_.tokens);
  for (int i = 0; d_.t > 1 && i < 3; ++i) {  // maximum, predicted logits, sum of exponentials
    w_.collective(Purpose::tp, "loss all-reduce", "all_reduce", d_.t, 4 * d_.tokens, d_.tp_link);
  }
  const auto work = works_in_copy_ ? w_.allocate(name_ + ".softmax_work", 4 * count) : no_tensor;
  launch_loss(w_, loss_, "forward", keeps_, d_);
  w_.free(work);
  if (counts) {
    w_.launch(name_ + " most likely token", {"amax", {count}});
    if (d_.t > 1)
      w_.collective(Purpose::tp, name_ + " accepted", "all_gather", d_.t, 2 * 4 * d_.t * d_.tokens, d_.tp_link);
  }
  w_.free({maximum, index, predicted});
  if (keeps_ != Kept::logits) w_.release(logits_);
}

void OutputLayer::weight_gradient() {
  // finish_embedding_wgrad_compute launches deferred ones after the last backward (optimizer_step.cpp).
  if (!d_.computes_head_wgrads || d_.frozen()) return;
  const Int bytes = 2 * d_.h * d_.vocab;
  // Depths share the layer: autograd sums the gradients, be they stand-ins, in bf16 before a hook sees them.
  const auto join = [&] {
    w_.launch(name_ + " gradients joined", {"add", {bytes / 2}});
    w_.eager();
  };
  w_.microbatches(d_.deferred_head_wgrads);
  if (d_.fused_gradients) {
    w_.launch(name_ + " wgrad", head_wgrad(d_));
    w_.dummy_gradient(d_.h, d_.vocab);
    if (d_.one_table) {  // zero_out_wgrad (models/common/language_module)
      w_.launch(name_ + " stand-in zeroed", {"fill", {bytes}});
      w_.eager();
    }
    if (again_) {
      w_.transient("weight gradients", bytes);
      join();
    }
    w_.microbatches();
    return;
  }
  const auto gradient = w_.allocate_gradient(bytes);
  w_.launch(name_ + " wgrad", {"gemm.bf16.nt", {d_.h, d_.vocab, d_.tokens}});
  if (again_)
    join();
  else if (!d_.one_table)  // else the embedding adds the sum
    w_.launch(name_ + " gradient accumulation", accumulation(d_, d_.h * d_.vocab));
  w_.free(gradient);
  w_.microbatches();
}

void OutputLayer::done_with(std::uint32_t tensor) {
  if (d_.computes_head_wgrads) {
    w_.microbatches(d_.deferred_head_wgrads);
    w_.free(tensor);
  }
  if (d_.deferred_head_wgrads > 0) {
    w_.to_weight_gradient();
    w_.microbatches(0, d_.deferred_head_wgrads);
    w_.free(tensor);
    w_.to_backward();
  }
  w_.microbatches();
}

void OutputLayer::backward(std::uint32_t din) {
  const Int full = 2 * d_.tokens * d_.h;
  const auto work = works_in_copy_ ? w_.allocate(name_ + ".softmax_work", 4 * d_.tokens * d_.vocab) : no_tensor;
  if (keeps_ == Kept::fp32) logits_ = w_.allocate(name_ + ".logits_gradient", 2 * d_.tokens * d_.vocab);
  if (keeps_ == Kept::logits_copy) logits_ = std::exchange(kept_, no_tensor);
  launch_loss(w_, loss_, "backward", keeps_, d_);
  w_.free(work);
  w_.free({kept_, mask_, target_});
  // calculate_gradients makes bf16 of it, autograd what the logits are (fused_cross_entropy.py:82 of 0.19.0).
  if (d_.fp16 && loss_ == "cross_entropy.native") {
    const auto gradient = w_.allocate(name_ + ".logits_gradient", 2 * d_.tokens * d_.vocab);
    w_.launch(name_ + " logits gradient in fp16", {"cast.bf16_f16", {d_.tokens * d_.vocab}});
    w_.free(std::exchange(logits_, gradient));
  }
  if (d_.caps_logits) cap_logits_backward();
  if (d_.fp8_head) {
    linear_.column_backward(projection_, input_, false, din);
    linear_.weight_gradients.run();  // delay_wgrad_compute is off here
    w_.free(logits_);
    kept_ = mask_ = target_ = logits_ = no_tensor;
    return;
  }
  const bool gathers = d_.sp && d_.computes_head_wgrads && !d_.frozen();
  w_.microbatches(d_.deferred_head_wgrads);
  if (gathers)
    w_.collective(Purpose::tp, name_ + " all-gather in backward", "all_gather", d_.t, full, d_.tp_link,
                  Stream::communication);
  w_.microbatches();
  const auto whole = d_.sp ? w_.tensor(name_ + ".norm_output_gradient", full) : din;
  w_.allocate(whole);
  w_.launch(name_ + " dgrad", {"gemm.bf16.nn", {d_.h, d_.tokens, d_.vocab}});
  if (d_.sp) {
    w_.microbatches(d_.deferred_head_wgrads);
    if (gathers) w_.wait(Stream::communication);
    w_.microbatches();
    w_.allocate(din);
    w_.collective(Purpose::tp, name_ + " reduce-scatter", "reduce_scatter", d_.t, full, d_.tp_link,
                  Stream::communication);
  } else if (d_.t > 1) {
    w_.collective(Purpose::tp, name_ + " all-reduce", "all_reduce", d_.t, full, d_.tp_link, Stream::communication);
  }
  weight_gradient();
  if (d_.t > 1) w_.wait(Stream::communication);
  done_with(logits_);
  if (d_.sp) w_.free(whole);
  kept_ = mask_ = target_ = logits_ = no_tensor;
}

}  // namespace pipewright::model
