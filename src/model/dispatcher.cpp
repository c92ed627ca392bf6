// Tensors and kernels of Megatron Core core_r0.19.0 moe/token_dispatcher.py with TE's fused permutation
// (pytorch/permutation.py, triton/permutation.py); launches counted in kernel traces. Synchronous collectives run on
// the compute stream. The host waits for the token counts before it can size the all-to-all.
#include "dispatcher.hpp"

#include <algorithm>
#include <utility>

namespace pipewright::model {

void Dispatcher::smalls(const std::string& name, int count) {
  for (int i = 0; i < count; ++i) w_.launch(name, {"small", {}});
}

/// MoEAlltoAllTokenDispatcher.preprocess: sums over the routing map, counts of all ranks, copies to the host.
void Dispatcher::counts() {
  if (m_.fixed_rows) return;
  smalls("moe token counts", 2);
  if (group() > 1) {
    smalls("moe token counts", 1);
    w_.collective(Purpose::ep, "moe token counts all-gather", "all_gather", group(), 8 * m_.experts * group(),
                  m_.group_link);
    smalls("moe token counts", 4);
  }
  if (!d_.graphs.preprocess) counts_to_host();
}

void Dispatcher::counts_to_host() {
  const int copies = group() > 1 ? 4 : 1;
  for (int i = 0; i < copies; ++i)
    w_.launch_on(Stream::d2h, Purpose::ep, "moe token counts to host", {"copy.d2h", {8 * m_.local}}, {});
}

/// _HybridEPManager.setup_metadata (core_r0.19.0 moe/token_dispatcher.py:1065): the host reads the group's largest
/// number. That the tensor is made from the host's memory, which waits as well, is part of that.
void Dispatcher::agree_on_tokens() {
  smalls("moe token count", 1);
  if (group() > 1) w_.collective(Purpose::ep, "moe token count all-reduce", "all_reduce", group(), 8, m_.group_link);
  w_.launch_on(Stream::d2h, Purpose::ep, "moe token count to host", {"copy.d2h", {8}}, {});
  w_.synchronize(Stream::d2h);
}

/// make_row_id_map: where the copies of each token go, in three passes.
void Dispatcher::map_rows(Int tokens, Int experts) {
  row_map_ = w_.allocate("moe.row_map", 4 * tokens * (2 * experts + 1));
  w_.launch("moe row-id map", {"moe.row_id_map", {tokens, experts}});
  w_.stands_for(3);
}

void Dispatcher::permute(Int tokens, Int experts, Int rows) {
  map_rows(tokens, experts);
  permuted_ = w_.allocate("moe.permuted_tokens", row() * rows);
  permuted_probs_ = w_.allocate("moe.permuted_probs", m_.router_bytes * rows);
  w_.launch("moe permute", {"moe.permute.forward", {tokens, m_.width, std::max<Int>(1, rows / tokens)}});
}

void Dispatcher::preprocess() {
  if (gathers()) return;
  if (sends_once()) {
    if (m_.agrees_on_tokens) agree_on_tokens();
    return smalls("moe top-k", 2);  // of the probabilities
  }
  counts();
  permute(d_.local, m_.experts, m_.routed);
}

void Dispatcher::all_to_all(const std::string& name, Int row_bytes) {
  // Beside shared experts they use the communicator's stream (use_nccl_stream).
  w_.collective(Purpose::ep, name, "all_to_all", m_.ep, row_bytes * std::max(m_.routed, m_.arrived), m_.ep_link,
                m_.shared_overlap ? Stream::communication : Stream::compute);
}

/// fused_a2a.py: layout and counts, which the host waits for, then a copy of each token to each GPU with an expert of
/// it. HybridEP gathers the routing map instead and, between nodes, first copies its input.
void Dispatcher::send_once() {
  if (group() > 1) {
    if (m_.library == profile::Exchange::Library::hybridep) {
      w_.collective(Purpose::ep, "moe routing map all-gather", "all_gather", group(), everyone() * m_.experts,
                    m_.group_link);
      smalls("moe routing map scan", 1);
      if (m_.group_link.leaves) w_.launch("moe dispatch buffer", {"copy.d2d", {row() * d_.local}});
    } else {
      smalls("moe dispatch layout", 1);
    }
    if (!m_.budget) {
      w_.launch_on(Stream::d2h, Purpose::ep, "moe token counts to host", {"copy.d2h", {8 * m_.local}}, {});
      w_.synchronize(Stream::d2h);
    }
    arrived_ = w_.allocate("moe.dispatched_tokens", row() * m_.copies);
    arrived_probs_ = w_.allocate("moe.dispatched_probs", 4 * m_.copies * m_.topk);
    w_.dispatcher("moe dispatch", profile::Exchange::Kind::dispatch, m_, row() * d_.local);
  }
}

/// Rows by expert from what arrived.
std::uint32_t Dispatcher::spread() {
  if (m_.library == profile::Exchange::Library::deepep) smalls("moe routing map", 2);  // indices to multihot
  const Int rows = group() > 1 ? m_.copies : d_.local;
  map_rows(rows, m_.local);
  permuted_ = allocate_rows("moe.permuted_tokens", row() * spread_rows());
  probs_ = w_.allocate("moe.permuted_probs", 4 * spread_rows());
  w_.launch("moe permute", {"moe.permute.forward", {rows, m_.width, std::max<Int>(1, m_.received / rows)}});
  w_.release(arrived_probs_);
  return std::exchange(permuted_, no_tensor);
}

void Dispatcher::dispatch() {
  if (sends_once()) return send_once();
  if (gathers()) {
    if (group() == 1) return;
    // Into Megatron's global memory buffer; map and probabilities beside.
    w_.collective(Purpose::ep, "moe routing map all-gather", "all_gather", group(), everyone() * m_.experts,
                  m_.group_link);
    w_.collective(Purpose::ep, "moe probs all-gather", "all_gather", group(), everyone() * m_.experts * m_.router_bytes,
                  m_.group_link);
    w_.collective(Purpose::ep, "moe dispatch all-gather", "all_gather", group(), row() * everyone(), m_.group_link);
    return;
  }
  if (d_.graphs.preprocess && !m_.fixed_rows) counts_to_host();  // cuda_dtoh_point: before_ep_alltoall
  if (m_.ep == 1) {
    arrived_ = permuted_;
    arrived_probs_ = permuted_probs_;
    permuted_ = permuted_probs_ = no_tensor;
    return;
  }
  if (!m_.fixed_rows) w_.synchronize(Stream::d2h);
  arrived_ = allocate_rows("moe.dispatched_tokens", row() * m_.arrived);
  all_to_all("moe dispatch all-to-all", row());
  arrived_probs_ = w_.allocate("moe.dispatched_probs", m_.router_bytes * m_.arrived);
  all_to_all("moe probs all-to-all", m_.router_bytes);
  w_.release(permuted_probs_);
}

std::uint32_t Dispatcher::allocate_rows(std::string_view owner, Int bytes) {
  const PieceBuilder::Varying rows_vary(w_, m_.arrival_spread);
  return w_.allocate(owner, bytes);
}

std::uint32_t Dispatcher::sort(const std::string& name, bool forward) {
  if (forward) {  // te make_chunk_sort_map: one chunk of each expert from each rank
    w_.launch(name + " map", {"moe.sort_map", {m_.received, m_.experts * m_.etp}});
    w_.eager();
  }
  const auto sorted = allocate_rows("moe.sorted_tokens", row() * m_.received);
  w_.launch(name, {"moe.sort_chunks", {m_.received, m_.width}});
  if (!forward) w_.stands_for(2);  // zeros for the map's gradient
  return sorted;
}

std::uint32_t Dispatcher::postprocess() {
  if (sends_once()) return spread();
  if (gathers()) {
    w_.launch_on(Stream::d2h, Purpose::ep, "moe token counts to host", {"copy.d2h", {8 * m_.local}}, {});
    w_.synchronize(Stream::d2h);  // tokens_per_expert.cpu()
    // local_map: the columns of its own experts.
    permute(everyone(), m_.local, m_.received);
    probs_ = permuted_probs_;
    const auto sorted = permuted_;
    permuted_ = permuted_probs_ = no_tensor;
    return sorted;
  }
  auto rows = arrived_, gathered = no_tensor;
  if (m_.etp > 1) {
    rows = gathered = allocate_rows("moe.gathered_tokens", row() * m_.received);
    w_.collective(Purpose::ep, "moe expert-tensor all-gather", "all_gather", m_.etp, row() * m_.received, m_.etp_link);
    probs_ = w_.allocate("moe.gathered_probs", m_.router_bytes * m_.received);
    w_.collective(Purpose::ep, "moe probs all-gather", "all_gather", m_.etp, m_.router_bytes * m_.received,
                  m_.etp_link);
    w_.free(arrived_probs_);
  } else {
    probs_ = arrived_probs_;
  }
  arrived_probs_ = no_tensor;
  if (sorts()) {
    const auto unsorted_probs = probs_;
    sort_map_ = w_.allocate("moe.sort_map", 4 * m_.received);
    rows = sort("moe sort", true);
    probs_ = w_.allocate("moe.probs", m_.router_bytes * m_.received);
    w_.free({unsorted_probs, gathered});
  } else if (passes_on()) {
    arrived_ = no_tensor;
  }
  if (m_.ep == 1 && !m_.fixed_rows) w_.synchronize(Stream::d2h);  // "before_finish"
  return rows;
}

void Dispatcher::give_back(std::uint32_t rows) {
  if (passes_on())
    arrived_ = rows;
  else
    w_.free(rows);
}

void Dispatcher::release_arrived() { w_.release(arrived_); }

void Dispatcher::keep_nothing() { w_.release(row_map_, probs_, sort_map_, unsort_map_); }

/// Rows are reduced over ranks in the probabilities' type: cast, reduce-scatter, cast back.
std::uint32_t Dispatcher::reduce_in_router_type(const std::string& name, std::uint32_t rows, Int from, Int to,
                                                Int ranks, const Way& way) {
  const Int size = m_.router_bytes;
  auto wide = rows;
  if (size > 2) {
    wide = w_.allocate("moe.cast_tokens", size * from * m_.width);
    w_.launch(name + " cast", {"cast.bf16_f32", {from * m_.width}});
  }
  auto reduced = w_.allocate("moe.reduced_tokens", size * to * m_.width);
  w_.collective(Purpose::ep, name, "reduce_scatter", ranks, size * from * m_.width, way);
  if (size > 2) {
    w_.free(wide);
    const auto narrow = w_.allocate("moe.reduced_tokens", 2 * to * m_.width);
    w_.launch(name + " cast", {"cast.f32_bf16", {to * m_.width}});
    w_.free(reduced);
    reduced = narrow;
  }
  return reduced;
}

std::uint32_t Dispatcher::combine_preprocess(std::uint32_t experts_output) {
  auto rows = experts_output;
  if (gathers() || sends_once()) {
    const Int tokens = gathers() ? everyone() : copies();
    rows = w_.allocate("moe.unpermuted_tokens", row() * tokens);
    w_.launch("moe unpermute", {"moe.unpermute.forward", {tokens, m_.width, std::max<Int>(1, m_.received / tokens)}});
    w_.free(experts_output);
    return rows;
  }
  if (sorts()) {
    smalls("moe unsort chunks", 1);
    unsort_map_ = w_.allocate("moe.sort_map", 4 * m_.received);
    rows = sort("moe unsort", true);
  }
  if (m_.etp > 1) {
    const auto whole = rows;
    rows =
        reduce_in_router_type("moe expert-tensor reduce-scatter", whole, m_.received, m_.arrived, m_.etp, m_.etp_link);
    if (whole != experts_output) w_.free(whole);
  }
  if (rows != experts_output) w_.free(experts_output);
  return rows;
}

std::uint32_t Dispatcher::combine(std::uint32_t sent) {
  if (gathers()) {
    if (group() == 1) return sent;
    return reduce_in_router_type("moe combine reduce-scatter", sent, everyone(), d_.local, group(), m_.group_link);
  }
  if (sends_once()) {
    if (group() == 1) return sent;
    const auto combined = w_.allocate("moe.combined_tokens", row() * d_.local);
    w_.dispatcher("moe combine", profile::Exchange::Kind::combine, m_, row() * d_.local);
    return combined;
  }
  if (m_.ep == 1) return sent;
  const auto combined = w_.allocate("moe.combined_tokens", row() * m_.routed);
  all_to_all("moe combine all-to-all", row());
  return combined;
}

std::uint32_t Dispatcher::combine_postprocess(std::uint32_t combined) {
  if (gathers() || sends_once()) return combined;  // one row a token
  const auto output = w_.allocate("moe.output", row() * d_.local);
  w_.launch("moe unpermute", {"moe.unpermute.forward", {d_.local, m_.width, m_.topk}});
  w_.free(combined);
  return output;
}

// A function's own intermediate gradients go at once; the one it was given is its caller's.

std::uint32_t Dispatcher::combine_postprocess_backward(std::uint32_t gradient) {
  if (gathers() || sends_once()) return gradient;
  const auto din = w_.allocate("moe.combined_gradient", row() * m_.routed);
  w_.launch("moe unpermute backward", {"moe.unpermute.backward", {d_.local, m_.width, m_.topk}});
  return din;
}

std::uint32_t Dispatcher::combine_backward(std::uint32_t gradient) {
  if (gathers()) {
    if (group() == 1) return gradient;
    const auto din = w_.allocate("moe.combined_gradient", row() * everyone());
    w_.collective(Purpose::ep, "moe combine all-gather in backward", "all_gather", group(),
                  m_.router_bytes * everyone() * m_.width, m_.group_link);
    return din;
  }
  if (sends_once()) {
    if (group() == 1) return gradient;
    const auto din = w_.allocate("moe.combined_gradient", row() * m_.copies);
    w_.dispatcher("moe dispatch in backward", profile::Exchange::Kind::dispatch, m_, row() * d_.local);  // counts known
    return din;
  }
  if (m_.ep == 1) return gradient;
  const auto din = allocate_rows("moe.combined_gradient", row() * m_.arrived);
  all_to_all("moe combine all-to-all in backward", row());
  return din;
}

std::uint32_t Dispatcher::combine_preprocess_backward(std::uint32_t gradient) {
  if (gathers() || sends_once()) {
    const Int tokens = gathers() ? everyone() : copies();
    const auto din = allocate_rows("moe.experts_output_gradient", row() * (gathers() ? m_.received : spread_rows()));
    w_.launch("moe unpermute backward",
              {"moe.unpermute.backward", {tokens, m_.width, std::max<Int>(1, m_.received / tokens)}});
    return din;
  }
  auto gathered = no_tensor;
  if (m_.etp > 1) {
    gathered = allocate_rows("moe.gathered_gradient", row() * m_.received);
    w_.collective(Purpose::ep, "moe expert-tensor all-gather in backward", "all_gather", m_.etp,
                  m_.router_bytes * m_.received * m_.width, m_.etp_link);
  }
  if (!sorts()) return gathered == no_tensor ? gradient : gathered;
  const auto din = sort("moe unsort backward", false);
  w_.free({gathered, unsort_map_});
  unsort_map_ = no_tensor;
  return din;
}

std::uint32_t Dispatcher::postprocess_backward(std::uint32_t gradient) {
  if (gathers() || sends_once()) {
    const Int tokens = gathers() ? everyone() : copies();
    const auto din = w_.allocate("moe.gathered_gradient", row() * tokens);
    w_.launch("moe permute backward",
              {"moe.permute.backward", {tokens, m_.width, std::max<Int>(1, m_.received / tokens)}});
    w_.stands_for(2);
    w_.release(row_map_);
    return din;
  }
  auto unsorted = no_tensor;
  if (sorts()) {
    unsorted = sort("moe sort backward", false);
    w_.release(sort_map_);
  }
  if (m_.etp == 1) return unsorted == no_tensor ? gradient : unsorted;
  const auto din = allocate_rows("moe.dispatched_gradient", row() * m_.arrived);
  w_.collective(Purpose::ep, "moe expert-tensor reduce-scatter in backward", "reduce_scatter", m_.etp,
                row() * m_.received, m_.etp_link);
  w_.free(unsorted);
  return din;
}

std::uint32_t Dispatcher::dispatch_backward(std::uint32_t gradient) {
  if (gathers()) {
    if (group() == 1) return gradient;
    const auto din = w_.allocate("moe.dispatched_gradient", row() * d_.local);
    w_.collective(Purpose::ep, "moe dispatch reduce-scatter in backward", "reduce_scatter", group(), row() * everyone(),
                  m_.group_link);
    w_.collective(Purpose::ep, "moe probs reduce-scatter in backward", "reduce_scatter", group(),
                  everyone() * m_.experts * m_.router_bytes, m_.group_link);
    return din;
  }
  if (sends_once()) {
    if (group() == 1) return gradient;
    const auto din = w_.allocate("moe.dispatched_gradient", row() * d_.local);
    w_.dispatcher("moe combine in backward", profile::Exchange::Kind::combine, m_, row() * d_.local);
    return din;
  }
  if (m_.ep == 1) return gradient;
  all_to_all("moe probs all-to-all in backward", m_.router_bytes);
  const auto din = w_.allocate("moe.permuted_gradient", row() * m_.routed);
  all_to_all("moe dispatch all-to-all in backward", row());
  return din;
}

std::uint32_t Dispatcher::preprocess_backward(std::uint32_t gradient) {
  if (gathers() || sends_once()) return gradient;
  const auto din = w_.allocate("moe.input_gradient", row() * d_.local);
  w_.launch("moe permute backward", {"moe.permute.backward", {d_.local, m_.width, m_.topk}});
  w_.stands_for(2);  // zeros for the map's gradient
  w_.release(row_map_);
  return din;
}

}  // namespace pipewright::model
