// Context parallelism by all_gather (TE d0067d0da,
// pytorch/attention/dot_product_attention/context_parallel.py:3014-4167, AttnFuncWithCPAndKVAllGather; sbhd, fused
// attention). Rank r of n holds chunks r and 2n - r - 1 of 2n:
//
//   k, v of all ranks gathered (exposed), put in order; each of the two chunks' queries against all keys up to its last
//   (bottom-right causal); saved: q, k, v, O, statistics and random state of both chunks. Backward gathers again, adds
//   both chunks' gradients of keys into zeros, puts them back and reduce-scatters them.
//
// What every rank computes is the same number of pairs; their kernels and workspaces here are rank 0's (the first and
// the last chunk: the largest workspace). TE puts the second chunk on a stream of its own (flash_attn_streams), which
// fills the first one's tail; what it makes there no other stream takes.
#include <array>
#include <utility>

#include "core_attention.hpp"

namespace pipewright::model {

/// The last of `chunks` chunks of queries against all of them. Forward: causal attention of all less that of all but
/// the last. cuDNN's backward with a mask aligned at the last key skips nothing: it runs the whole rectangle, at the
/// speed of the whole sequence's kernel (measured at ten sizes, two H200, cuDNN of the profile's PyTorch:
/// tests/model/data/context_kernels.json).
void CoreAttention::chunk_kernel(const std::string& name, const std::string& pass, Int chunks) {
  Kernel kernel = this->kernel(name, pass);
  const bool backward = pass.starts_with("backward");
  const Int longest = backward ? 2 * d_.cp : chunks, pairs = backward ? 2 * chunks : 2 * chunks - 1;
  kernel.key.dims[1] = kernel.key.dims[2] = longest * d_.s / 2;
  kernel.share = static_cast<double>(pairs) / static_cast<double>(longest * longest);
  w_.launch(std::move(kernel));
}

std::pair<std::uint32_t, std::uint32_t> CoreAttention::gather() {
  const Int bytes = 2 * d_.tokens * d_.kv * d_.cp;
  const char* const owner = "attention.gathered";
  const auto of = [&](const std::string& what) {
    const auto gathered = w_.allocate(owner, bytes);
    w_.collective(Purpose::cp, "attention." + what + " all-gather", "all_gather", d_.cp, bytes, d_.cp_link);
    return gathered;
  };
  const auto k = of("k"), v = of("v");
  const auto in_order = [&](const std::string& what, std::uint32_t gathered) {
    const auto ordered = w_.allocate(owner, bytes);
    w_.launch("attention." + what + " in order", {"index_select", {bytes / 2}});
    w_.free(gathered);
    return ordered;
  };
  const auto ordered_k = in_order("k", k);
  return {ordered_k, in_order("v", v)};
}

std::uint32_t CoreAttention::gathered_forward(bool grad) {
  const Int half = d_.tokens * d_.q;  // bytes of a chunk's queries, in 16 bits
  const auto [k, v] = gather();
  const auto out = w_.allocate("attention.core_output", 2 * half);
  const auto zeros = w_.allocate("attention.gathered", 2 * half);  // of thd; allocated for others too (line 3263)
  w_.launch("attention.output zeros", {"fill", {2 * half}});
  const auto first = w_.allocate("attention.chunk_output", half);
  rng_ = w_.allocate("attention.rng_state", 16);
  statistics_ = w_.allocate_float("attention.softmax_lse", 2 * d_.tokens * d_.heads);
  chunk_kernel("attention.core forward", "forward.bf16", 1);
  const auto second = w_.allocate_on(Stream::communication, "attention.chunk_output", half);
  later_rng_ = w_.allocate_on(Stream::communication, "attention.rng_state", 16);
  later_statistics_ = w_.allocate_on(Stream::communication, "attention.softmax_lse", 2 * d_.tokens * d_.heads);
  chunk_kernel("attention.core forward", "forward.bf16", 2 * d_.cp);
  for (int chunk = 0; chunk < 2; ++chunk) w_.launch("attention.chunk output", {"copy.d2d", {half}});
  w_.free({k, v, zeros, first, second});
  if (!grad) w_.release(rng_, statistics_, later_rng_, later_statistics_);
  return out;
}

CoreAttention::Gradients CoreAttention::gathered_backward() {
  const Int half = d_.tokens * d_.q, bytes = 2 * d_.tokens * d_.kv * d_.cp;
  const char* const owner = "attention.gathered";
  Gradients g{};
  g.q = w_.allocate("attention.q_gradient", 2 * half);
  auto dk = w_.allocate(owner, bytes), dv = w_.allocate(owner, bytes);
  for (int each = 0; each < 2; ++each) w_.launch("attention.gradient zeros", {"fill", {bytes}});
  const auto [k, v] = gather();
  const auto chunk = [&](Stream stream, Int chunks) {
    const Int keys = chunks * d_.tokens / 2;
    const std::array made = {w_.allocate_on(stream, "attention.chunk_gradient", half),
                             w_.allocate_on(stream, "attention.chunk_gradient", 2 * keys * d_.kv),
                             w_.allocate_on(stream, "attention.chunk_gradient", 2 * keys * d_.kv)};
    // As of one kernel for all (fused_backward): fp32 dq, dk and dv of every query head, row sums.
    const Int expanded = repeats() ? 2 * 2 * keys * d_.q : 0;
    w_.free(w_.allocate_on(stream, "workspace", 2 * half + expanded + 2 * d_.tokens * d_.heads + 256));
    chunk_kernel("attention.core backward", "backward.bf16", chunks);
    return made;
  };
  const auto add = [&](Int chunks) {
    w_.launch("attention.chunk q gradient", {"copy.d2d", {half}});
    for (int each = 0; each < 2; ++each)
      w_.launch("attention.chunk gradient added", {"add", {chunks * d_.tokens / 2 * d_.kv}});
  };
  const auto first = chunk(Stream::compute, 1), second = chunk(Stream::communication, 2 * d_.cp);
  add(1);
  add(2 * d_.cp);
  for (auto* gradient : {&dk, &dv}) {
    const auto ordered = w_.allocate(owner, bytes);
    w_.launch("attention.gradient in order", {"index_select", {bytes / 2}});
    w_.free(std::exchange(*gradient, ordered));
  }
  const auto scatter = [&](const std::string& what, std::uint32_t whole) {
    const auto own = w_.allocate("attention." + what + "_gradient", bytes / d_.cp);
    w_.collective(Purpose::cp, "attention." + what + " gradient reduce-scatter", "reduce_scatter", d_.cp, bytes,
                  d_.cp_link);
    w_.free(whole);
    return own;
  };
  g.k = scatter("k", dk);
  g.v = scatter("v", dv);
  for (const auto& of_chunk : {first, second})
    for (const auto tensor : of_chunk) w_.free(tensor);
  w_.free({k, v, rng_, statistics_, later_rng_, later_statistics_});
  rng_ = statistics_ = later_rng_ = later_statistics_ = no_tensor;
  return g;
}

}  // namespace pipewright::model
