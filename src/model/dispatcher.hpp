// Token dispatchers of a mixture-of-experts layer (Megatron Core moe/token_dispatcher.py), method by method.
//
//   alltoall   permute -> all-to-all(EP) [-> all-gather(ETP)] -> sort by expert    and back, with a reduce-scatter
//   allgather  all-gather(EP x ETP) -> permute local experts' tokens               and back, with a reduce-scatter
//   flex       dispatch (DeepEP, HybridEP): a token once to each GPU with one of its experts -> permute    and back,
//              reduced to one row a token on the way
#pragma once

#include "graph_writer.hpp"

namespace pipewright::model {

class Dispatcher {
 public:
  Dispatcher(PieceBuilder& builder, const Dimensions& dimensions) : w_(builder), d_(dimensions), m_(dimensions.moe) {}

  // Forward. Tokens that were sent and that arrived are freed by `release_*`, because Megatron's frames name them on.
  void preprocess();            ///< counts, permutation
  void dispatch();              ///< communication
  std::uint32_t postprocess();  ///< rows sorted by expert; its tensor is the caller's
  std::uint32_t combine_preprocess(std::uint32_t experts_output);  ///< frees its input
  std::uint32_t combine(std::uint32_t sent);                       ///< may return its input, frees nothing
  std::uint32_t combine_postprocess(std::uint32_t combined);       ///< frees its input
  /// What preprocess() has made, as a captured graph puts it out.
  void put_out(GraphWriter& graph) { graph.put_out({&permuted_, &permuted_probs_}); }
  bool permutes_first() const { return m_.dispatch == Dispatch::alltoall; }  ///< before it sends
  void release_sent() { w_.free(permuted_), permuted_ = no_tensor; }
  /// What postprocess() has returned, when combine_preprocess() is over: routed_experts_compute lets go of it, of rows
  /// that arrived as they are MoELayer.forward does.
  void give_back(std::uint32_t rows);
  void release_arrived();
  void release_probs() { w_.free(probs_), probs_ = no_tensor; }  ///< those of the sorted rows
  void keep_nothing();                                           ///< without gradient: frees the maps and probabilities

  // Backward: each takes the gradient of its output and returns that of its input, which may be the same tensor.
  std::uint32_t combine_postprocess_backward(std::uint32_t gradient);
  std::uint32_t combine_backward(std::uint32_t gradient);
  std::uint32_t combine_preprocess_backward(std::uint32_t gradient);
  std::uint32_t postprocess_backward(std::uint32_t gradient);
  std::uint32_t dispatch_backward(std::uint32_t gradient);
  std::uint32_t preprocess_backward(std::uint32_t gradient);

 private:
  bool gathers() const { return m_.dispatch == Dispatch::allgather; }
  bool sends_once() const { return m_.dispatch == Dispatch::flex; }
  bool sorts() const { return m_.dispatch == Dispatch::alltoall && m_.local > 1; }
  /// What arrives is the experts' input itself.
  bool passes_on() const { return m_.dispatch == Dispatch::alltoall && m_.local == 1 && m_.etp == 1; }
  Int copies() const { return group() > 1 ? m_.copies : d_.local; }  ///< rows before the permutation
  Int group() const { return m_.ep * m_.etp; }
  Int everyone() const { return d_.local * group(); }  ///< tokens of the whole expert group
  Int row() const { return 2 * m_.width; }
  /// Of the tensors that hold the rows of a rank's experts.
  Int spread_rows() const { return m_.budget ? m_.held : m_.received; }
  void counts();
  void counts_to_host();
  void agree_on_tokens();
  void send_once();
  std::uint32_t spread();
  void map_rows(Int tokens, Int experts);
  void permute(Int tokens, Int experts, Int rows);
  void all_to_all(const std::string& name, Int row_bytes);
  std::uint32_t sort(const std::string& name, bool forward);
  std::uint32_t allocate_rows(std::string_view owner, Int bytes);  ///< as many as routing sends
  std::uint32_t reduce_in_router_type(const std::string& name, std::uint32_t rows, Int from, Int to, Int ranks,
                                      const Way& way);
  void smalls(const std::string& name, int count);

  PieceBuilder& w_;
  const Dimensions& d_;
  const MoeDimensions& m_;
  std::uint32_t row_map_ = no_tensor, permuted_ = no_tensor, permuted_probs_ = no_tensor, arrived_ = no_tensor,
                arrived_probs_ = no_tensor, probs_ = no_tensor, sort_map_ = no_tensor, unsort_map_ = no_tensor;
};

}  // namespace pipewright::model
